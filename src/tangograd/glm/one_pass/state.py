"""The state of one pass: named, mergeable, serializable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.errors import DataError
from tangograd.glm.families import Family
from tangograd.glm.one_pass.coordinates import RowBuffer
from tangograd.glm.one_pass.exact_path import ExactPath, block_rows
from tangograd.glm.one_pass.finish import Finish, PathTotals, finish
from tangograd.glm.one_pass.null_model import NullModel
from tangograd.glm.one_pass.penalty import Penalty
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.row_sample import RowSample
from tangograd.glm.one_pass.start import Start, prior_precision
from tangograd.glm.one_pass.totals import RunningTotals
from tangograd.glm.one_pass.working_rows import outer_products

Array = NDArray[np.float64]

#: rows that are kept, both halves together, if the budget of bytes has room for them
KEPT_ROWS = 10_000
KEPT_BYTES = 64_000_000
#: measured excess up to which an estimate is next to that of maximum likelihood
NEXT_TO_IT = 0.1


@dataclass(frozen=True)
class OnePassConfig:
    """What of a pass is chosen beforehand.

    Attributes:
        penalty: α of ``mean loss + α/2 ‖coefficients‖²``.
        seed: of the hash that chooses the kept rows; another one for each further reading.
        kept_rows: rows to keep at most.
        kept_bytes: memory for them.
        meat: sum the outer products of the scores on the way.
    """

    penalty: float = 0.0
    seed: int = 0
    kept_rows: int = KEPT_ROWS
    kept_bytes: int = KEPT_BYTES
    meat: bool = False

    def half(self, columns: int, outputs: int) -> int:
        """Return the rows of each half of the sample."""
        row = 8 * (columns + 2 * outputs + 7)
        return max(1, min(self.kept_rows, self.kept_bytes // row) // 2)


@dataclass
class OnePassState:
    """Everything that is known after some rows of a pass.

    The result depends on the rows, their numbers and their order, to the last bit, and not on how
    they were cut into chunks: rows wait until a block is full.

    Attributes:
        family: the family.
        config: what was chosen beforehand.
        start: where the path began.
        path: the running solution.
        quadratic: the sums of expansions.
        sample: the kept rows.
        totals: further sums.
        null_model: the model with an intercept alone.
        readings: of the table, this one included.
        pending: rows that wait for their block to be full.
    """

    family: Family
    config: OnePassConfig
    start: Start
    path: ExactPath
    quadratic: QuadraticModel
    sample: RowSample
    totals: RunningTotals = field(default_factory=RunningTotals)
    null_model: NullModel = field(default_factory=NullModel)
    readings: int = 1
    pending: RowBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.pending = RowBuffer(self.block_rows, self.start.coordinates.columns)

    @classmethod
    def init(
        cls, family: Family, start: Start, config: OnePassConfig | None = None
    ) -> OnePassState:
        """Return the state before the first row."""
        config = config or OnePassConfig()
        outputs, q = start.theta.shape
        return cls(
            family=family,
            config=config,
            start=start,
            path=ExactPath.begin(start),
            quadratic=QuadraticModel(outputs * q, config.meat),
            sample=RowSample(config.half(q, outputs), config.seed),
        )

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return block_rows(self.quadratic.size)

    @property
    def penalty(self) -> Penalty:
        """The penalty in working coordinates."""
        outputs = self.start.theta.shape[0]
        return Penalty(self.config.penalty, self.start.coordinates, outputs)

    @property
    def rows_seen(self) -> int:
        """Rows so far, those that wait included."""
        return self.totals.rows + self.pending.count

    def update(
        self,
        X: Array,
        y: Array,
        weights: Array | None = None,
        offset: Array | None = None,
        numbers: NDArray[np.int64] | int | None = None,
    ) -> None:
        """Learn from rows.

        Args:
            X: dense, shape (n, d).
            y: targets.
            weights: of the rows; ones by default.
            offset: known part of η; zeros by default.
            numbers: of the rows in the whole table, or of the first of them; by default they
                follow the last.
        """
        n = len(y)
        first = self.rows_seen if numbers is None else numbers
        if isinstance(first, int):
            first = np.arange(first, first + n, dtype=np.int64)
        weights = np.ones(n) if weights is None else weights
        offset = np.zeros(n) if offset is None else offset
        begin, coordinates = 0, self.start.coordinates
        while begin < n:
            here = slice(begin, min(n, begin + self.pending.size - self.pending.count))
            begin = here.stop
            self.pending.add(
                coordinates, X[here], y[here], weights[here], offset[here], first[here]
            )
            if self.pending.count == self.pending.size:
                self.flush()

    def flush(self) -> None:
        """Take in the rows that wait, as a block; after the last rows of a pass."""
        if not self.pending.count:
            return
        rows = self.pending.rows()
        with np.errstate(over="ignore", invalid="ignore"):
            penalty = None
            if self.config.penalty > 0:
                weight = self.totals.weight + float(rows.weights.sum())
                penalty = self.penalty.matrix(weight)
            step = self.path.move(self.family, rows, self.quadratic, penalty)
            last = step.last
            if not all(np.isfinite(part).all() for part in (np.diag(last.sums.J), *last.sums[1:])):
                raise DataError(
                    "the sums over the rows became infinite; look for values in the features that "
                    "are missing or extreme"
                )
            meat = None
            if self.config.meat:
                meat = outer_products(rows, rows.weights[:, None] * last.score)
            self.quadratic.add(last.sums, meat)
            null_eta = self.null_model.add(self.family, rows, self.totals)
            self.sample.offer(rows, last.eta, null_eta, step.key)
            self.totals.add(self.family, rows, last.loss, last.pearson)
        self.pending.clear()

    def grow(self, columns: int) -> None:
        """Add columns after those known; they were 0 in all rows so far."""
        before = self.start.coordinates
        old, extra = len(before.centre), columns - len(before.centre)
        if extra <= 0:
            return
        outputs, coordinates = self.start.theta.shape[0], before.grown(columns)
        q = coordinates.columns
        places = np.append(np.arange(old), [q - 1] * before.intercept).astype(np.intp)
        flat = (np.arange(outputs)[:, None] * q + places).ravel()
        self.start = self.start.grown(coordinates, places)
        self.path.grow(places, q)
        self.quadratic.grow(flat, outputs * q)
        self.sample.grow(places, q)
        waiting = self.pending.rows().grown(places, q)
        self.pending = RowBuffer(self.block_rows, q)
        self.pending.restore(waiting)

    def merge(self, other: OnePassState) -> None:
        """Add the state of other rows; both must come from the same start."""
        if self.start.id != other.start.id:
            raise ValueError("states can be merged only if they have the same start")
        self.flush()
        other.flush()
        self.quadratic.merge(other.quadratic)
        self.sample.merge(other.sample)
        self.null_model.merge(other.null_model, self.family, self.totals, other.totals)
        self.totals.merge(other.totals)

    def finish(self) -> Finish:
        """Return the estimate from all rows so far."""
        self.flush()
        totals = PathTotals(self.totals.loss, self.totals.pearson, self.totals.weight)
        outputs = self.start.theta.shape[0]
        prior = prior_precision(self.path.unit, self.start.coordinates.intercept)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return finish(
                self.family,
                self.quadratic,
                self.sample,
                totals,
                theta=self.path.theta,
                prior=np.tile(prior, outputs),
                penalty=self.penalty.matrix(self.totals.weight),
                intercept=self.start.coordinates.intercept,
            )

    def to_bytes(self) -> bytes:
        """Return the state as bytes, without pickle."""
        from tangograd.glm.one_pass.stored_state import to_bytes

        return to_bytes(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> OnePassState:
        """Return a state that was stored; raise a `DataError` if it is damaged."""
        from tangograd.glm.one_pass.stored_state import from_bytes

        return from_bytes(data)

    def again(self, found: Finish) -> OnePassState:
        """Return an empty state for another reading, whose path is held by this one's result.

        The Hessian of the result holds the path as strongly as all rows do, so that it hardly
        moves; the new sums are those of expansions next to the estimate. Next to maximum likelihood
        it does not move at all, which makes the reading a Newton step.
        """
        outputs, q = found.theta.shape
        flat = (np.arange(outputs)[:, None] * q + found.columns).ravel()
        inside = np.ix_(flat, flat)
        prior = prior_precision(self.path.unit, self.start.coordinates.intercept)
        J = np.diag(np.tile(prior, outputs))
        J[inside] = found.hessian - self.penalty.matrix(self.totals.weight)[inside]
        config = replace(self.config, seed=self.config.seed + 1)
        state = OnePassState.init(self.family, self.start, config)
        z = J @ found.theta.ravel()
        frozen = bool(found.excess <= NEXT_TO_IT)
        state.path = ExactPath(found.theta.copy(), J, z, self.path.unit.copy(), frozen)
        state.readings = self.readings + 1
        return state
