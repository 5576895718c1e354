"""A stream of rows on the exact path, as estimators and commands use it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.fitted import Fitted
from tangograd.glm.matrices import Block, split
from tangograd.glm.one_pass.diagnostics import Diagnosis, describe
from tangograd.glm.one_pass.finish import Finish
from tangograd.glm.one_pass.solution import Solution, solution
from tangograd.glm.one_pass.start import fit_start
from tangograd.glm.one_pass.state import OnePassConfig, OnePassState
from tangograd.glm.tally import Tally

Array = NDArray[np.float64]

#: a reading is the last if the estimate is so near to maximum likelihood, in standard errors
NEGLIGIBLE = 0.01
#: measured excess from which rows that can be read again are
WORTH_READING_AGAIN = 0.02
#: readings after the first, at most
READINGS = 3


class ExactFit:
    """Readings of a table: the state of the one that is going on, and the best result so far.

    Args:
        family: the family.
        head: the first rows; the path starts from them, and they are still to be learned from.
        columns: of all rows.
        config: what was chosen beforehand.
        start_rows: how many of the head to start from.
        intercept: fit one.
        theta: coefficients (outputs, columns + 1) to begin with.
    """

    def __init__(
        self,
        family: Family,
        head: list[Block],
        columns: int,
        config: OnePassConfig,
        *,
        start_rows: int,
        intercept: bool = True,
        theta: Array | None = None,
    ) -> None:
        X = np.concatenate([rows.X.widened(columns).toarray() for rows in head])
        y, weights, offset = (
            np.concatenate([np.asarray(getattr(rows, name)) for rows in head])
            for name in ("y", "weights", "offset")
        )
        most = start_rows
        start = fit_start(
            family,
            X[:most],
            y[:most],
            weights[:most],
            offset[:most],
            intercept=intercept,
            penalty=config.penalty,
            theta=theta,
        )
        self.state = OnePassState.init(family, start, config)
        self.best: tuple[OnePassState, Finish] | None = None
        self._found: tuple[OnePassState, Finish] | None = None
        self._names: dict[int, int] = {}  # numbers of kept rows in the caller's table

    def update(self, rows: Block) -> None:
        """Learn from rows."""
        self._found = None
        for part in split(rows, self.state.pending.size):
            self.state.update(part.X.toarray(), part.y, part.weights, part.offset)

    def grow(self, columns: int) -> None:
        """Add columns after those known."""
        self._found = None
        self.state.grow(columns)

    @property
    def waiting(self) -> int:
        """Rows that wait for their block to be full."""
        return self.state.pending.count

    def settle(self) -> None:
        """Take in the rows that wait for their block to be full."""
        self.state.flush()

    def report(self, tally: Tally) -> None:
        """Set a tally to the sums over the rows of this reading, in the units of the data."""
        state, totals = self.state, self.state.totals
        if totals.rows == tally.rows:
            return
        unit, scale = state.start.coordinates.weight_unit, state.start.coordinates.target_unit
        tally.rows, tally.weight = totals.rows, unit * totals.weight
        tally.total = unit * scale * totals.target
        tally.variation = unit * scale**2 * totals.variation
        tally.loss, tally.pearson, tally.saturated = (
            unit * scale**2 * part for part in (totals.loss, totals.pearson, totals.saturated)
        )
        tally.normalizer = unit * totals.normalizer
        if len(totals.classes):
            tally.classes = unit * totals.classes
        if state.null_model.active:
            tally.set_null_predictor(scale * state.null_model.predictor)
        tally.note()

    def begin_reading(self) -> None:
        """Begin another reading of the same rows, on a path that is held by the result so far."""
        state, found = self.best = self._result()
        self.state = state.again(found)
        self._found = None

    def abandon_reading(self) -> None:
        """Return to the result before the reading that was not completed."""
        if self.best is not None:
            self.state, self._found = self.best[0], self.best

    def _result(self) -> tuple[OnePassState, Finish]:
        """Return the reading with the least claim, which is finished if need be."""
        if self._found is None:
            own = self.state, self.state.finish()
            better = self.best is not None and not own[1].excess <= self.best[1].excess
            self._found = self.best if better and self.best is not None else own
        return self._found

    @property
    def excess(self) -> float:
        """The measured excess."""
        return self._result()[1].excess

    @property
    def settled(self) -> bool:
        """Whether the estimate is that of maximum likelihood to a hundredth standard error."""
        found = self._result()[1]
        return bool(found.excess * found.theta.shape[0] * len(found.columns) <= NEGLIGIBLE**2)

    def coefficients(self) -> Array:
        """Return coefficients (outputs, columns + 1), the intercept last."""
        state, found = self._result()
        theta = state.start.coordinates.to_original(found.theta.copy())
        if state.start.coordinates.intercept:
            return theta
        return np.column_stack([theta, np.zeros(len(theta))])

    def solution(self) -> Solution:
        """Return everything in the units of the data."""
        state, found = self._result()
        said = solution(state, found)
        renamed = (
            replace(each, rows=tuple(self._names.get(row, row) for row in each.rows))
            for each in said.diagnoses
        )
        return replace(said, diagnoses=tuple(renamed))

    def name_rows(self, places: NDArray[np.int64]) -> None:
        """Tell where the rows that were learned from are in the caller's table."""
        numbers = self._result()[1].kept.rows.number
        self._names = dict(zip(numbers.tolist(), places[numbers].tolist(), strict=True))

    def fitted(
        self,
        names: tuple[str, ...],
        labels: tuple[object, ...] | None,
        trace: tuple[list[int], list[float]],
        constant: list[int],
    ) -> Fitted:
        """Return everything that is known at the end.

        Args:
            names: of the columns.
            labels: of the classes.
            trace: numbers of rows and the mean loss up to them.
            constant: numbers of the columns that never varied.
        """
        state, said = self._result()[0], self.solution()
        family, coordinates = state.family, state.start.coordinates
        theta = said.coefficients
        theta = np.roll(theta, 1, axis=1) if coordinates.intercept else theta[:, :-1]
        notes = [describe(each, names) for each in _without(said.diagnoses, constant)]
        if constant:
            same = "; the intercept says the same" if coordinates.intercept else ""
            which = ", ".join(names[j] for j in constant[:10])
            notes.insert(0, f"constant: {which}{same}, so the coefficient is 0")
        return Fitted(
            family=family.name,
            link=family.link,
            parameters=family.parameters,
            names=(("intercept",) if coordinates.intercept else ()) + names,
            estimates=theta.ravel(),
            classes=labels,  # type: ignore[arg-type]
            standard_errors=np.sqrt(np.diag(said.covariance)),
            robust_errors=np.sqrt(np.diag(said.robust)),
            covariance_kind="full",
            covariance=said.covariance,
            excess=1 + said.excess,
            rows=said.rows,
            weight=said.weight,
            dispersion=said.dispersion,
            log_likelihood=said.log_likelihood,
            deviance=said.deviance,
            null_deviance=said.null_deviance,
            progressive=False,
            alpha=state.config.penalty,
            passes=self.state.readings,
            converged=self.settled,
            notes=tuple(notes),
            trace_rows=np.asarray(trace[0], np.int64),
            trace_loss=np.asarray(trace[1], np.float64),
        )


def _without(diagnoses: tuple[Diagnosis, ...], constant: list[int]) -> list[Diagnosis]:
    """Return the diagnoses, but for aliased columns that are constant."""
    result = []
    for each in diagnoses:
        if each.kind == "aliased":
            rest = tuple(j for j in each.columns if j not in constant)
            if rest:
                result.append(replace(each, columns=rest, value=float(len(rest))))
        else:
            result.append(each)
    return result
