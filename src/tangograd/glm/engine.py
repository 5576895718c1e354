"""One pass over rows that need not fit in memory: buffer, start, stream, covariance."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.coordinates import Coordinates, whitening
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, evaluate
from tangograd.glm.fitted import Fitted
from tangograd.glm.matrices import Block, as_matrix, concatenate, split
from tangograd.glm.newton import Objective, Solution, converge, examined, maximum_likelihood, means
from tangograd.glm.one_pass.diagnostics import Diagnosis
from tangograd.glm.one_pass.exact_fit import READINGS, WORTH_READING_AGAIN, ExactFit
from tangograd.glm.one_pass.state import OnePassConfig
from tangograd.glm.one_pass.tango_path import TangoOptions, TangoPath
from tangograd.glm.polishing import polish
from tangograd.glm.precision import Precision
from tangograd.glm.sums import Sums
from tangograd.glm.tally import Tally
from tangograd.glm.watch import Watch

Array = NDArray[np.float64]

#: rows are kept in memory up to this; fewer are fit to convergence
BUFFER_BYTES = 64_000_000
#: the stream starts from Fisher scoring on max(START_ROWS, START_ROWS_EACH * d) of them
START_ROWS = 10_000
START_ROWS_EACH = 50
#: and that on so many of these
FIRST_ROWS = 2000
FIRST_ROWS_EACH = 10
#: more rows are added to those that start until the rarest column has so many events
SEEN = 10
#: their scoring has a normal prior of this precision on effects, against what is still rarer
PRIOR = 1.0
#: sums run over blocks of so many rows at most, whatever the chunks that rows come in
BLOCK_ROWS = 8192
BLOCK_BYTES = 8_000_000
#: path of a fit with a full covariance matrix, unless another is named
FULL_PATH = "exact"
#: covariance="auto" is full up to so many coefficients
FULL_COVARIANCE = 500
#: rows that the exact path keeps at most, and those it keeps of rows that fitted in memory
KEPT_ROWS = 10_000
KEPT_OF_FEW = 1000
#: c of γ = c/√(A k), over the root of mean(1/λ)/4; a little more suits slow directions
EAGERNESS = 1.5
#: mean(1/λ) where the start did not form the Fisher matrix
UNKNOWN_CONDITION = 4.0
#: λ below the first do not count in that mean, those below the second as if they were it
NO_CURVATURE = 1e-5
LITTLE_CURVATURE = 1e-3
#: mean(1/λ) from which columns are whitened; correlations 0.9^|i-j| have 9.5
SLOW = 3.0


class OnePass:
    """A generalised linear model that learns from rows as they come.

    Up to ``BUFFER_BYTES`` of rows are kept, and their maximum-likelihood estimate is the result if
    no more come. Otherwise Fisher scoring on the first of them starts TANGO, which then sees each
    row once (:mod:`tangograd.glm.one_pass.tango_path`). The result depends on the rows and their
    order alone, to the last bit, not on how they were cut into chunks.

    Args:
        family: the family.
        columns: features of a row.
        alpha: the penalty α of ``mean loss + α/2 ‖coefficients‖²``.
        intercept: fit one.
        fisher: ``"expected"``, or ``"sampled"`` for the paper's pseudo-samples.
        covariance: ``"auto"``, ``"full"``, ``"diagonal"`` or None.
        seed: of the pseudo-samples.
        path: ``"exact"`` (O(d²) a row, with a measured excess), ``"tango"`` (O(d)), or ``"auto"``:
            exact where the covariance is full.

    Example:
        >>> import numpy as np
        >>> from tangograd.glm.families import Poisson
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(1000, 2))
        >>> model = OnePass(Poisson(), 2)
        >>> model.feed(x, rng.poisson(np.exp(x @ [0.5, -0.5] + 1)))
        >>> model.coefficients().round(1)
        array([[ 0.5, -0.5,  1. ]])
    """

    def __init__(
        self,
        family: Family,
        columns: int,
        *,
        alpha: float = 0.0,
        intercept: bool = True,
        fisher: str = "expected",
        covariance: str | None = "auto",
        seed: int | np.random.Generator | None = None,
        path: str = "auto",
    ) -> None:
        self.path_name = path
        self.family, self.columns = family, columns
        self.outputs = family.outputs
        self.alpha, self.intercept = float(alpha), bool(intercept)
        self.options = TangoOptions(self.alpha, self.intercept)
        self.rng = np.random.default_rng(seed) if fisher == "sampled" else None
        self.covariance = covariance
        self.streaming = False
        self.passes = 1
        self.block_rows = 0
        self.buffer: list[Block] = []
        self.pending: list[Block] = []
        self.waiting = 0  # rows pending
        self.exact: ExactFit | None = None
        self.tally = Tally(family, self.outputs + 1)
        self.watch = Watch(columns)
        self.sums: Sums | None = None
        self.polished: Solution | None = None
        self.last_step = 0.0  # of polishing, in standard errors
        self._solution: Solution | None = None
        self._settled: OnePass | None = None  # a copy that has taken in the rows that wait
        self.at = Coordinates(np.zeros(columns))
        self.path: TangoPath | None = None  # once it streams
        self.start_rows = 0
        self.start_gamma = 0.0
        self.initial: Array | None = None  # where Fisher scoring begins, in the data's coordinates

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_settled": None}

    @property
    def coefficient_count(self) -> int:
        """Coefficients, intercepts included."""
        return self.outputs * (self.columns + 1)

    @property
    def kind(self) -> str:
        """Of the covariance: "full", "diagonal" or "none"."""
        if self.covariance is None:
            return "none"
        if self.covariance == "auto":
            return "full" if self.coefficient_count <= FULL_COVARIANCE else "diagonal"
        return self.covariance

    # --- learning

    def feed(
        self, X: Any, y: Array, weights: Array | None = None, offset: Array | None = None
    ) -> None:
        """Learn from rows: X of shape (n, columns) dense or sparse, y of shape (n,).

        The arrays are kept until the rows are learned from, and must not change.
        """
        n = len(y)
        y = np.ascontiguousarray(y, dtype=np.float64)
        w = np.ones(n) if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        shift = np.zeros(n) if offset is None else np.ascontiguousarray(offset, dtype=np.float64)
        self.feed_rows(Block(as_matrix(X), y, w, shift))

    def feed_rows(self, rows: Block) -> None:
        """The same."""
        rows = rows.with_weight()
        if not len(rows):
            return
        self._solution = self.polished = self._settled = None
        if not self.block_rows:
            self.block_rows = _block_rows(rows)
        for block in split(rows, self.block_rows, self.block_rows - self.waiting):
            self.pending.append(block)
            self.waiting += len(block)
            if self.waiting == self.block_rows:
                self._flush()

    def _flush(self) -> None:
        """Take in the pending rows as a block."""
        block = concatenate(self.pending)
        self.pending, self.waiting = [], 0
        self.watch.see(block)
        if self.streaming:
            self._stream(block)
            return
        self.buffer.append(block)
        if sum(block.X.nbytes for block in self.buffer) > BUFFER_BYTES:
            self._start()

    @property
    def takes_exact_path(self) -> bool:
        """Rows that do not fit in memory are learned from on the exact path, not on TANGO's."""
        if self.path_name != "auto":
            return self.path_name == "exact"
        return self.kind == "full" and self.rng is None and FULL_PATH == "exact"

    def _start(self) -> None:
        """Start a path from the first rows of the buffer, and learn from the others."""
        if self.takes_exact_path:
            self._start_exact(KEPT_ROWS)
            rest, self.buffer = self.buffer, []
            for block in rest:
                self._stream(block)
            return
        first = self._first()
        unit = sum(float(block.weights.sum()) for block in first) / sum(
            len(block) for block in first
        )
        # where y is never at the border of its domain, no data send a coefficient to infinity
        bordered = self.family.support.has_boundary
        prior = PRIOR * unit * self._tally_of(first).null_dispersion() if bordered else 0.0
        objective = self.objective(first, prior=prior)
        theta = self._null(first, objective.m)
        few = [first[0].take(slice(max(FIRST_ROWS, FIRST_ROWS_EACH * self.columns)))]
        if len(few[0]) < len(first[0]):  # most steps need no more
            few_objective = self.objective(few, objective.m, prior)
            theta = converge(few_objective, theta, 1e-2 * unit, 20, meat=False).theta
        found = converge(objective, theta, 1e-2 * unit, 20, meat=False)
        objective, found = self._whitened(objective, found)
        self.at = found.at
        self._prepare(objective, found)
        self.tally.add(first, found.loss, found.pearson)
        self.streaming = True
        rest, self.buffer = self.buffer, []
        for block in rest:
            self._stream(block)

    def _start_exact(self, kept_rows: int) -> ExactFit:
        """Begin the exact path from the rows in the buffer, which are not learned from yet."""
        head, have = [], 0
        for block in self.buffer:
            head.append(block)
            have += len(block)
            if have >= self._enough():
                break
        config = OnePassConfig(penalty=self.alpha, kept_rows=kept_rows)
        self.exact = ExactFit(
            self.family,
            head,
            self.columns,
            config,
            start_rows=self._enough(),
            intercept=self.intercept,
            theta=self.initial,
        )
        self.streaming = True
        return self.exact

    def _whitened(self, objective: Objective, found: Solution) -> tuple[Objective, Solution]:
        """In coordinates without slow directions, where there would be some; O(d²) a row."""
        if self.alpha > 0 or self.kind == "diagonal" or self.coefficient_count > FULL_COVARIANCE:
            return objective, found
        if _condition(objective.penalised(found.sums.fisher)) < SLOW:
            return objective, found
        at = whitening(objective.m, found.sums.fisher, self.outputs)
        if not self.intercept:
            at = Coordinates(objective.m, at.W)
        inside = self.objective([at.rows(block) for block in objective.blocks], at.rest)
        theta = at.inward(found.at.outward(found.theta))
        _, _, sums = inside.sums(theta, full=True)
        return inside, found._replace(theta=theta, sums=sums, at=at)

    def _enough(self) -> int:
        """Rows to start a stream from."""
        return max(START_ROWS, START_ROWS_EACH * self.columns)

    def _first(self) -> list[Block]:
        """Take the rows that start the stream out of the buffer.

        They are more where each says little: where events are rare, or levels of a category.
        """
        wanted = self._enough()
        first: list[Block] = []
        have = 0
        while self.buffer and (have < wanted or self._seen(first) < SEEN):
            block = self.buffer.pop(0)
            if 0 < wanted - have < len(block):
                self.buffer.insert(0, block.take(slice(wanted - have, None)))
                block = block.take(slice(wanted - have))
            first.append(block)
            have += len(block)
        return first

    def _tally_of(self, rows: list[Block], loss: float = 0.0, pearson: float = 0.0) -> Tally:
        tally = Tally(self.family, self.outputs + 1)
        tally.add(rows, loss, pearson)
        return tally

    def _seen(self, rows: list[Block]) -> float:
        """How often the rarest column has been seen to do something: informative rows with it.

        A column's rows are counted as ``(Σ x²)² / Σ x⁴`` (for centred x): those of a rare level.
        """
        tally = self._tally_of(rows)
        objective = self.objective(rows)
        squares, fourth = objective.moments(2)[:-1], objective.moments(4)[:-1]
        there = fourth > 0
        count = float(np.min(squares[there] ** 2 / fourth[there], initial=np.inf))
        count /= tally.weight / tally.rows  # in rows of the mean weight
        return count * min(tally.information() / tally.rows, 1.0)

    def _prepare(self, objective: Objective, found: Solution) -> None:
        """The state of the stream after the rows that started it."""
        sums = found.sums
        n = sum(len(block) for block in objective.blocks)
        diagonal = np.diag(sums.fisher) if sums.full else sums.fisher
        diagonal = diagonal.reshape(found.theta.shape).copy()
        if found.at.W is not None:  # a constant column is 0 but for rounding
            diagonal[1e-24 * diagonal.max() >= diagonal] = 0.0
        condition = UNKNOWN_CONDITION
        if sums.full:
            condition = _condition(objective.penalised(sums.fisher))
        q = self._leverages(objective, found.theta, diagonal)
        self.path = TangoPath.start(
            self.family,
            found.theta,
            objective.m,
            diagonal,
            self.options,
            self.rng,
            k=n,
            constant=EAGERNESS * math.sqrt(condition / 4),
            weight=objective.weight,
            loss=found.loss,
            pearson=found.pearson,
            mistakes=sums.mistakes,
            q=float(q.sum()),
            q_squared=float(q @ q),
        )
        self.start_rows, self.start_gamma = n, self.path.state.gamma
        if self.kind != "none":
            self.sums = objective.sums(found.theta, self.kind == "full", meat=True)[2]
            self.sums.gradient[:] = 0.0

    def _leverages(self, objective: Objective, theta: Array, diagonal: Array) -> Array:
        """What q was of the rows that started the stream."""
        n = sum(len(block) for block in objective.blocks)
        C = np.where(diagonal > 0, n / np.where(diagonal > 0, diagonal, 1.0), 0.0)
        result = []
        for block in objective.blocks:
            f = evaluate(self.family, objective.predictors(block, theta), block.y).fisher
            last = C[:, -1] * self.intercept
            q = np.column_stack([block.X.squared_norms(c[:-1], objective.m) for c in C]) + last
            result.append(block.weights * np.einsum("nii,ni->n", f, q))
        return np.concatenate(result)

    def _stream(self, block: Block) -> None:
        """Learn from one block."""
        if self.exact is not None:
            self.exact.update(block)
            self.exact.report(self.tally)
            return
        path = self.working_path
        block = self.at.rows(block)
        before = path.state
        scores, fishers = path.learn(block, keep=self.sums is not None)
        if not np.isfinite(path.arrays.theta).all():
            raise DataError(
                "the coefficients became infinite; look for extreme values in the features"
            )
        if self.sums is not None:
            self.sums.add(block.X, scores, fishers)
        after = path.state
        self.tally.add([block], after.loss - before.loss, after.pearson - before.pearson)

    @property
    def working_path(self) -> TangoPath:
        """The path of a stream."""
        if self.path is None:
            raise DataError("the rows are in memory: there is no stream yet")
        return self.path

    def settle(self) -> None:
        """Take in the rows that wait for a block to be full; after the last rows of a pass."""
        if self.pending:
            self._flush()
        if self.exact is not None:
            self.exact.settle()
            self.exact.report(self.tally)

    def condense(self) -> None:
        """Forget the rows in memory, but not what was learned from them; a stream may go on.

        Rows too few to start a stream from are kept, as copies.
        """
        self.settle()
        if self.streaming:
            return
        found = self.solution()
        if sum(len(block) for block in self.buffer) < self._enough():
            self.buffer = [block.copy() for block in self.buffer]
            return
        if self.takes_exact_path:
            exact = self._start_exact(KEPT_OF_FEW)
            for block in self.buffer:
                exact.update(block)
            self.tally = self._tally_of(self.buffer, found.loss, found.pearson)
            self.buffer, self._solution = [], found
            return
        objective = self.objective(self.buffer)
        self.at = found.at
        self.tally = self.settled_tally(found)
        self._prepare(objective, found)
        self.streaming, self.buffer, self._solution = True, [], found

    def rewind(self) -> None:
        """Another pass over the same rows begins: TANGO goes on, the tallies begin anew."""
        self.settle()
        if not self.streaming:
            raise DataError("rows in memory are fit to convergence: further passes change nothing")
        self.passes += 1
        self.tally = Tally(self.family, self.outputs + 1)
        if self.exact is not None:
            self.exact.begin_reading()
            return
        if self.sums is not None:
            self.sums = Sums(self.at.rest, self.outputs, self.intercept, self.sums.full)

    def grow(self, columns: int) -> None:
        """More columns, after those known; their coefficients begin at 0."""
        extra = columns - self.columns
        if extra <= 0:
            return
        if self.path is not None:
            self.path.grow(columns)
        self.at = self.at.grown(columns)
        self.columns = columns
        self._solution = self.polished = self._settled = None
        self.watch.grow(columns)
        if self.exact is not None:
            self.exact.grow(columns)
        if self.sums is not None:
            self.sums.grow(columns)

    # --- results

    def objective(self, rows: list[Block], m: Array | None = None, prior: float = 0.0) -> Objective:
        """The penalised loss of rows, with columns centred at m, by default at their means."""
        if m is None:
            m = means(rows, self.columns) if self.intercept else np.zeros(self.columns)
        return Objective(self.family, rows, m, self.outputs, self.intercept, self.alpha, prior)

    def _null(self, rows: list[Block], m: Array) -> Array:
        """θ of the model with an intercept alone, or ``initial``."""
        if self.initial is not None:
            theta = self.initial.copy()
            if self.intercept:
                theta[:, -1] += theta[:, :-1] @ m
            return theta
        theta = np.zeros((self.outputs, self.columns + 1))
        if not self.intercept:
            return theta
        weight = sum(float(block.weights.sum()) for block in rows)
        if self.family.centers_penalty:
            counts = np.zeros(self.outputs + 1)
            for block in rows:
                counts += np.bincount(block.y.astype(np.int64), block.weights, len(counts))
            shares = np.maximum(counts, 0.5)
            theta[:, -1] = np.log(shares[1:] / shares[0])
        else:
            mean = sum(float(block.weights @ block.y) for block in rows) / weight
            shift = sum(float(block.weights @ block.offset) for block in rows) / weight
            theta[0, -1] = self.family.linear_predictor(np.array([mean]))[0] - shift
        return theta

    def settled_tally(self, found: Solution | None = None) -> Tally:
        """The tally, made from the rows in memory where they are."""
        if self.streaming:
            return self.tally
        found = found or self.solution()
        return self._tally_of(self.buffer, found.loss, found.pearson)

    def settled(self) -> OnePass:
        """This with no rows pending; a copy if there are."""
        waiting = self.exact is not None and self.exact.waiting
        if not self.pending and not waiting:
            return self
        if self._settled is None:
            # rows are never written to, so the copy may share them
            shared = {id(part): list(part) for part in (self.buffer, self.pending)}
            self._settled = copy.deepcopy(self, shared)
            self._settled.settle()
        return self._settled

    def solution(self) -> Solution:
        """The estimates with their sums, in centred coordinates."""
        if self.polished is not None:
            return self.polished
        if self._solution is None:
            self._solution = self.settled()._solve()
        return self._solution

    def _solve(self) -> Solution:
        if not self.streaming:
            if not self.buffer:
                raise DataError("there are no rows to learn from")
            objective = self.objective(self.buffer)
            found = maximum_likelihood(objective, self._null(self.buffer, objective.m))
            if self.kind == "full" and not found.sums.full:
                found = found._replace(sums=objective.sums(found.theta, full=True, meat=True)[2])
            return examined(objective, found)
        sums = self.sums or Sums(self.at.rest, self.outputs, self.intercept, full=False)
        theta = self.working_path.arrays.theta
        return Solution(
            theta, self.tally.loss, self.tally.pearson, sums, False, self.at, streamed=True
        )

    def coefficients(self) -> Array:
        """Shape (outputs, columns + 1), the intercept last."""
        here = self.settled()
        if here.exact is not None and here._solution is None:
            return here.exact.coefficients()
        found = self.solution()
        return found.at.outward(found.theta)

    def polish(self, again: Callable[[], Iterable[Block]], *, only_if_needed: bool = False) -> None:
        """Read all rows again, which ``again`` does; rows in memory need none.

        Args:
            again: reads all rows once more.
            only_if_needed: do so once, and only if the measured excess is above 2%.
        """
        self.settle()
        if not self.streaming:
            return
        if self.exact is None:
            if not only_if_needed:
                polish(self, again)
            return
        if self._solution is not None:  # the rows fitted in memory
            return
        for _ in range(1 if only_if_needed else READINGS):
            enough = self.exact.settled
            if only_if_needed:
                enough = self.exact.excess <= WORTH_READING_AGAIN
            if enough:
                return
            before = self.tally
            self.rewind()
            try:
                for rows in again():
                    self.feed_rows(rows)
                self.settle()
            except BaseException:
                self.exact.abandon_reading()
                self.pending, self.waiting, self.tally = [], 0, before
                raise

    def name_rows(self, places: Callable[[], NDArray[np.int64]]) -> None:
        """Tell where the rows that were learned from are in the caller's table."""
        if self.exact is not None and self._solution is None:
            self.exact.name_rows(places())

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Diagnoses of the data and the fit by the exact path."""
        here = self.settled()
        if here.exact is None or here._solution is not None:
            return ()
        return here.exact.solution().diagnoses

    def fitted(
        self, names: tuple[str, ...] | None = None, labels: tuple[object, ...] | None = None
    ) -> Fitted:
        """Everything that is known at the end; names of the columns without the intercept."""
        here = self.settled()
        names = names or tuple(f"x{i}" for i in range(here.columns))
        if here.exact is not None and here._solution is None:
            trace = here.tally.trace_rows, here.tally.trace_loss
            return here.exact.fitted(names, labels, trace, here.watch.constant())
        found = self.solution()
        return Precision(here, found).fitted(names, labels)


def _block_rows(rows: Block) -> int:
    """A power of two, by the columns of the first rows alone."""
    fit = max(BLOCK_BYTES // max(rows.X.row_bytes, 1), 16)
    return int(min(BLOCK_ROWS, 2 ** int(math.log2(fit))))


def _condition(H: Array) -> float:
    """mean(1/λ) of the Fisher matrix scaled to diagonal 1.

    Dependent columns have directions without curvature, where there is nothing to learn; and those
    with next to none stay close to the start for any γ that the others can bear.
    """
    diagonal = np.diag(H)
    here = diagonal > 0
    scale = 1 / np.sqrt(diagonal[here])
    R = H[np.ix_(here, here)] * scale[:, None] * scale
    values = np.linalg.eigvalsh(R)
    values = values[values > NO_CURVATURE]
    return float(np.mean(1 / np.maximum(values, LITTLE_CURVATURE))) if len(values) else 1.0
