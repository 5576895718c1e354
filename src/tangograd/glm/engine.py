"""One pass over rows that need not fit in memory: buffer, start, stream, covariance."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm import families
from tangograd.glm.coded import Coded
from tangograd.glm.coordinates import Coordinates, whitening
from tangograd.glm.errors import DataError
from tangograd.glm.fitted import Fitted
from tangograd.glm.newton import Objective, Solution, converge, examined, means
from tangograd.glm.old_families import Family
from tangograd.glm.one_pass.diagnostics import Diagnosis
from tangograd.glm.one_pass.exact_fit import READINGS, WORTH_READING_AGAIN, ExactFit
from tangograd.glm.one_pass.state import OnePassConfig
from tangograd.glm.polishing import polish
from tangograd.glm.precision import Precision
from tangograd.glm.rows import Matrix, Rows, blocks, is_sparse, together
from tangograd.glm.steps import step
from tangograd.glm.sums import Sums, respond, squares
from tangograd.glm.tally import Tally
from tangograd.glm.watch import Watch
from tangograd.stream import glm as kernel

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
    row once (:mod:`tangograd.stream.glm`). The result depends on the rows and their order alone, to
    the last bit, not on how they were cut into chunks.

    Args:
        family: the family.
        columns: features of a row.
        classes: how many, for a multinomial family.
        alpha: the penalty α of ``mean loss + α/2 ‖coefficients‖²``.
        intercept: fit one.
        fisher: ``"expected"``, or ``"sampled"`` for the paper's pseudo-samples.
        covariance: ``"auto"``, ``"full"``, ``"diagonal"`` or None.
        seed: of the pseudo-samples.
        path: ``"exact"`` (O(d²) a row, with a measured excess), ``"tango"`` (O(d)), or ``"auto"``:
            exact where the covariance is full.

    Example:
        >>> import numpy as np
        >>> from tangograd.glm.old_families import family
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(1000, 2))
        >>> model = OnePass(family("poisson"), 2)
        >>> model.feed(x, rng.poisson(np.exp(x @ [0.5, -0.5] + 1)))
        >>> model.coefficients().round(1)
        array([[ 0.5, -0.5,  1. ]])
    """

    def __init__(
        self,
        family: Family,
        columns: int,
        *,
        classes: int = 2,
        alpha: float = 0.0,
        intercept: bool = True,
        fisher: str = "expected",
        covariance: str | None = "auto",
        seed: int | np.random.Generator | None = None,
        path: str = "auto",
    ) -> None:
        self.path = path
        self.family, self.columns = family, columns
        self.outputs = classes - 1 if family.code == kernel.MULTINOMIAL else 1
        self.alpha, self.intercept = float(alpha), intercept
        self.sampled = fisher == "sampled"
        self.rng = np.random.default_rng(seed)
        self.covariance = covariance
        self.streaming = False
        self.passes = 1
        self.block_rows = 0
        self.buffer: list[Rows] = []
        self.pending: list[Rows] = []
        self.waiting = 0  # rows pending
        self.room: Array | None = None
        self.exact: ExactFit | None = None
        self.tally = Tally(family, self.outputs + 1)
        self.watch = Watch(columns)
        self.sums: Sums | None = None
        self.polished: Solution | None = None
        self.last_step = 0.0  # of polishing, in standard errors
        self._solution: Solution | None = None
        self._settled: OnePass | None = None  # a copy that has taken in the rows that wait
        size = columns + 1
        self.at = Coordinates(np.zeros(columns))
        self.theta, self.v, self.C, self.S = (np.zeros((self.outputs, size)) for _ in range(4))
        self.scalars = np.zeros(kernel.SCALARS)
        self.start_rows = 0
        self.start_gamma = 0.0
        self.initial: Array | None = None  # where Fisher scoring begins, in the data's coordinates

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"room": None, "_settled": None}

    @property
    def kind(self) -> str:
        """Of the covariance: "full", "diagonal" or "none"."""
        if self.covariance is None:
            return "none"
        if self.covariance == "auto":
            return "full" if self.theta.size <= FULL_COVARIANCE else "diagonal"
        return self.covariance

    # --- learning

    def feed(
        self, X: Matrix, y: Array, weights: Array | None = None, offset: Array | None = None
    ) -> None:
        """Learn from rows: X of shape (n, columns) dense or sparse, y of shape (n,).

        The arrays are kept until the rows are learned from, and must not change.
        """
        n = len(y)
        X = X.tocsr() if is_sparse(X) else np.ascontiguousarray(X)  # of one layout, compiled once
        y = np.ascontiguousarray(y, dtype=np.float64)
        w = np.ones(n) if weights is None else np.ascontiguousarray(weights, dtype=np.float64)
        shift = np.zeros(n) if offset is None else np.ascontiguousarray(offset, dtype=np.float64)
        self.feed_rows(Rows(X, y, w, shift))

    def feed_rows(self, rows: Rows) -> None:
        """The same."""
        if len(rows) and not rows.w.all():
            rows = rows.take(np.flatnonzero(rows.w))
        if not len(rows):
            return
        rows = rows.canonical()
        self._solution = self.polished = self._settled = None
        if not self.block_rows:
            self.block_rows = _block_rows(rows)
        for block in blocks(rows, self.block_rows, self.block_rows - self.waiting):
            self.pending.append(block)
            self.waiting += len(block)
            if self.waiting == self.block_rows:
                self._flush()

    def _flush(self) -> None:
        """Take in the pending rows as a block."""
        block = together(self.pending, self._room())
        self.pending, self.waiting = [], 0
        self.watch.see(block)
        if self.streaming:
            self._stream(block)
            return
        self.buffer.append(block)
        if sum(block.bytes for block in self.buffer) > BUFFER_BYTES:
            self._start()

    def _room(self) -> Array | None:
        """Where a block of dense rows, or their numbers, may be put together that nobody keeps."""
        X = self.pending[0].X
        if not self.streaming or is_sparse(X):
            return None
        shape = self.block_rows, len(X.places) if isinstance(X, Coded) else self.columns
        if self.room is None or self.room.shape != shape:
            self.room = np.empty(shape)
        return self.room

    @property
    def takes_exact_path(self) -> bool:
        """Rows that do not fit in memory are learned from on the exact path, not on TANGO's."""
        if self.path != "auto":
            return self.path == "exact"
        return self.kind == "full" and not self.sampled and FULL_PATH == "exact"

    def _start(self) -> None:
        """Start a path from the first rows of the buffer, and learn from the others."""
        if self.takes_exact_path:
            self._start_exact(KEPT_ROWS)
            rest, self.buffer = self.buffer, []
            for block in rest:
                self._stream(block)
            return
        first = self._first()
        unit = sum(float(block.w.sum()) for block in first) / sum(len(block) for block in first)
        # where y is never at the border of its domain, no data send a coefficient to infinity
        bordered = self.family.name not in ("gaussian", "gamma")
        prior = PRIOR * unit * self._tally_of(first).null_dispersion() if bordered else 0.0
        objective = self.objective(first, prior=prior)
        theta = self._null(first, objective.m)
        few = [first[0].take(slice(max(FIRST_ROWS, FIRST_ROWS_EACH * self.columns)))]
        if len(few[0]) < len(first[0]):  # most steps need no more
            few_objective = self.objective(few, objective.m, prior)
            theta = converge(few_objective, theta, 1e-2 * unit, 20, meat=False).theta
        found = converge(objective, theta, 1e-2 * unit, 20, meat=False)
        objective, found = self._whitened(objective, found)
        self.at, self.theta = found.at, found.theta
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
            head.append(block.plain())
            have += len(block)
            if have >= self._enough():
                break
        family = new_family(self.family, self.outputs)
        config = OnePassConfig(penalty=self.alpha, kept_rows=kept_rows)
        self.exact = ExactFit(
            family,
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
        if self.alpha > 0 or self.kind == "diagonal" or self.theta.size > FULL_COVARIANCE:
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

    def _first(self) -> list[Rows]:
        """Take the rows that start the stream out of the buffer.

        They are more where each says little: where events are rare, or levels of a category.
        """
        wanted = self._enough()
        first: list[Rows] = []
        have = 0
        while self.buffer and (have < wanted or self._seen(first) < SEEN):
            block = self.buffer.pop(0)
            if 0 < wanted - have < len(block):
                self.buffer.insert(0, block.take(slice(wanted - have, None)))
                block = block.take(slice(wanted - have))
            first.append(block.plain().solid())
            have += len(block)
        return first

    def _tally_of(self, rows: list[Rows], loss: float = 0.0, pearson: float = 0.0) -> Tally:
        tally = Tally(self.family, self.outputs + 1)
        tally.add(rows, loss, pearson)
        return tally

    def _seen(self, rows: list[Rows]) -> float:
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
        scalars, sums = self.scalars, found.sums
        n = sum(len(block) for block in objective.blocks)
        diagonal = np.diag(sums.fisher) if sums.full else sums.fisher
        self.S[:] = diagonal.reshape(self.S.shape)
        if found.at.W is not None:  # a constant column is 0 but for rounding
            self.S[1e-24 * self.S.max() >= self.S] = 0.0
        condition = UNKNOWN_CONDITION
        if sums.full:
            condition = _condition(objective.penalised(sums.fisher))
        scalars[kernel.CONSTANT] = EAGERNESS * math.sqrt(condition / 4)
        scalars[kernel.ROWS] = n
        scalars[kernel.DT] = 1 / n
        scalars[kernel.WEIGHT] = objective.weight
        scalars[kernel.LOSS] = found.loss
        scalars[kernel.PEARSON] = found.pearson
        scalars[kernel.MISTAKES] = sums.mistakes
        q = self._leverages(objective)
        scalars[kernel.Q], scalars[kernel.Q2] = q.sum(), q @ q
        scalars[kernel.SCALE] = 1.0
        scalars[kernel.INTERCEPT] = float(self.intercept)
        kernel.renew(scalars, self.S, self.C, self.alpha)
        self.start_rows, self.start_gamma = n, float(scalars[kernel.GAMMA])
        if self.kind != "none":
            self.sums = objective.sums(found.theta, self.kind == "full", meat=True)[2]
            self.sums.gradient[:] = 0.0

    def _leverages(self, objective: Objective) -> Array:
        """What q was of the rows that started the stream."""
        n = sum(len(block) for block in objective.blocks)
        C = np.where(self.S > 0, n / np.where(self.S > 0, self.S, 1.0), 0.0)
        result = []
        for block in objective.blocks:
            _, _, f = respond(self.family, objective.predictors(block, self.theta), block.y)
            q = np.column_stack([squares(block.X, objective.m, c, self.intercept) for c in C])
            result.append(block.w * np.einsum("nii,ni->n", f, q))
        return np.concatenate(result)

    def _stream(self, block: Rows) -> None:
        """Learn from one block."""
        if self.exact is not None:
            self._stream_exact(block)
            return
        if self.at.W is not None or self.family.code == kernel.MULTINOMIAL:
            block = block.plain()  # only the stream of one output has a kernel for levels
        block = self.at.rows(block)
        loss, pearson = self.scalars[kernel.LOSS], self.scalars[kernel.PEARSON]
        step(self, block)
        if not np.isfinite(self.theta).all():
            raise DataError(
                "the coefficients became infinite; look for extreme values in the features"
            )
        self.tally.add(
            [block], self.scalars[kernel.LOSS] - loss, self.scalars[kernel.PEARSON] - pearson
        )

    def _stream_exact(self, block: Rows) -> None:
        """Learn from one block on the exact path."""
        assert self.exact is not None
        self.exact.update(block)
        self._count_exact()

    def _count_exact(self) -> None:
        """Set the tally to the totals of the exact path."""
        assert self.exact is not None
        self.exact.report(self.tally)

    def settle(self) -> None:
        """Take in the rows that wait for a block to be full; after the last rows of a pass."""
        if self.pending:
            self._flush()
        if self.exact is not None:
            self.exact.settle()
            self._count_exact()

    def condense(self) -> None:
        """Forget the rows in memory, but not what was learned from them; a stream may go on.

        Rows too few to start a stream from are kept, as copies.
        """
        self.settle()
        if self.streaming:
            return
        found = self.solution()
        if sum(len(block) for block in self.buffer) < self._enough():
            self.buffer = [copy.deepcopy(block.solid()) for block in self.buffer]
            return
        if self.takes_exact_path:
            exact = self._start_exact(KEPT_OF_FEW)
            for block in self.buffer:
                exact.update(block)
            self.tally = self._tally_of(self.buffer, found.loss, found.pearson)
            self.buffer, self._solution = [], found
            return
        objective = self.objective(self.buffer)
        self.at, self.theta = found.at, found.theta.copy()
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
            self.sums = Sums(self.outputs, self.columns + 1, self.sums.full)

    def grow(self, columns: int) -> None:
        """More columns, after those known; their coefficients begin at 0."""
        extra = columns - self.columns
        if extra <= 0:
            return
        for name in ("theta", "v", "C", "S"):
            setattr(self, name, np.insert(getattr(self, name), [self.columns] * extra, 0.0, axis=1))
        self.at = self.at.grown(columns)
        self.columns = columns
        self._solution = self.polished = self._settled = None
        self.watch.grow(columns)
        if self.exact is not None:
            self.exact.grow(columns)
        if self.sums is not None:
            self.sums.grow(columns + 1)

    # --- results

    def objective(self, rows: list[Rows], m: Array | None = None, prior: float = 0.0) -> Objective:
        """The penalised loss of rows, with columns centred at m, by default at their means."""
        rows = [block.plain() for block in rows]
        if m is None:
            m = means(rows, self.columns) if self.intercept else np.zeros(self.columns)
        return Objective(self.family, rows, m, self.outputs, self.intercept, self.alpha, prior)

    def _null(self, rows: list[Rows], m: Array) -> Array:
        """θ of the model with an intercept alone, or ``initial``."""
        if self.initial is not None:
            theta = self.initial.copy()
            if self.intercept:
                theta[:, -1] += theta[:, :-1] @ m
            return theta
        theta = np.zeros((self.outputs, self.columns + 1))
        if not self.intercept:
            return theta
        weight = sum(float(block.w.sum()) for block in rows)
        if self.family.code == kernel.MULTINOMIAL:
            counts = np.zeros(self.outputs + 1)
            for block in rows:
                counts += np.bincount(block.y.astype(np.int64), block.w, len(counts))
            shares = np.maximum(counts, 0.5)
            theta[:, -1] = np.log(shares[1:] / shares[0])
        else:
            mean = sum(float(block.w @ block.y) for block in rows) / weight
            shift = sum(float(block.w @ block.offset) for block in rows) / weight
            theta[0, -1] = self.family.predictor(mean) - shift
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
            found = converge(objective, self._null(self.buffer, objective.m))
            if self.kind == "full" and not found.sums.full:
                found = found._replace(sums=objective.sums(found.theta, full=True, meat=True)[2])
            return examined(objective, found)
        sums = self.sums or Sums(self.outputs, self.columns + 1, full=False)
        return Solution(
            self.theta, self.tally.loss, self.tally.pearson, sums, False, self.at, streamed=True
        )

    def coefficients(self) -> Array:
        """Shape (outputs, columns + 1), the intercept last."""
        here = self.settled()
        if here.exact is not None and here._solution is None:
            return here.exact.coefficients()
        found = self.solution()
        return found.at.outward(found.theta)

    def polish(self, again: Callable[[], Iterable[Rows]], *, only_if_needed: bool = False) -> None:
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

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What is wrong with the data or the fit, if the exact path found it."""
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


def new_family(old: Family, outputs: int) -> families.Family:
    """Return the family whose former description this is."""
    if old.code == kernel.MULTINOMIAL:
        return families.by_name("multinomial", count=outputs + 1)
    return families.by_name(old.name, old.link, **old.parameters)


def _block_rows(rows: Rows) -> int:
    """A power of two, by the width of the first rows alone."""
    if is_sparse(rows.X) or (isinstance(rows.X, Coded) and rows.X.sparse):
        return BLOCK_ROWS
    fit = max(BLOCK_BYTES // (8 * max(rows.X.shape[1], 1)), 16)
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
