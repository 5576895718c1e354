"""Diagnoses of the data and the fit: objects with numbers and a remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.one_pass.expansion import expand_at
from tangograd.glm.one_pass.finish import Finish
from tangograd.glm.one_pass.state import OnePassState

Array = NDArray[np.float64]

Kind = Literal[
    "excess",
    "ordering",
    "drift",
    "leverage",
    "influence",
    "no_events",
    "separation",
    "aliased",
]
Remedy = Literal["read_again", "shuffle", "inspect_rows", "merge_levels", "set_alpha", "none"]

#: measured excess above which the result should not be used as it is
LARGE_EXCESS = 0.1
#: leverage above which one row decides a coefficient
DECISIVE = 0.5
#: squared standard errors by which one row moves the estimate if it decides a coefficient
MOVING = 9.0
#: rows that are named
NAMED = 5
#: correlation of neighbouring targets above which rows count as grouped by the target
GROUPED = 0.1
#: information on the effect of one unit of a column below which nothing was seen of it
NO_INFORMATION = 0.5
#: share of the loss of a constant model below which classes may be separated
SEPARATED = 0.03
#: parts of the stream whose mean residuals are compared, and the z value that is unlikely
PARTS = 10
UNLIKELY = 6.0


@dataclass(frozen=True)
class Diagnosis:
    """Something the user should know.

    Attributes:
        kind: what it is.
        value: its size: the excess, a correlation, a leverage, a z value.
        columns: of the data, by number.
        rows: of the data, by number.
        remedy: the way out.
    """

    kind: Kind
    value: float
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    remedy: Remedy = "none"

    @property
    def serious(self) -> bool:
        """Return whether a warning is due."""
        return self.kind in ("excess", "leverage", "influence", "no_events")


def diagnose(state: OnePassState, found: Finish) -> list[Diagnosis]:
    """Return what is wrong, the most important first."""
    if separated(state, found):
        return [Diagnosis("separation", found.loss, remedy="set_alpha")]
    result = []
    if not found.excess <= LARGE_EXCESS:
        result.append(Diagnosis("excess", found.excess, remedy="read_again"))
        correlation = state.totals.neighbour_correlation
        if correlation > GROUPED:
            result.append(Diagnosis("ordering", correlation, remedy="shuffle"))
        elif (z := drift(state, found)) > UNLIKELY:
            result.append(Diagnosis("drift", z, remedy="read_again"))
    tests: tuple[tuple[Kind, Array, float], ...] = (
        ("leverage", found.leverage, DECISIVE),
        ("influence", found.influence, MOVING),
    )
    for kind, sizes, limit in tests:
        decisive = np.flatnonzero(sizes > limit)
        if len(decisive):
            order = decisive[np.argsort(-sizes[decisive])][:NAMED]
            rows = tuple(int(i) for i in found.kept.rows.number[order])
            result.append(Diagnosis(kind, float(sizes[order[0]]), rows=rows, remedy="inspect_rows"))
            break
    result += _columns(state, found)
    return result


def _columns(state: OnePassState, found: Finish) -> list[Diagnosis]:
    """Return what is wrong with columns."""
    result = []
    d = len(state.start.coordinates.centre)
    aliased = tuple(int(j) for j in np.setdiff1d(np.arange(d), found.columns))
    if aliased:
        result.append(Diagnosis("aliased", float(len(aliased)), columns=aliased))
    if state.family.estimates_dispersion or state.config.penalty > 0:
        return result
    silent = silent_columns(state, found)
    if silent:
        result.append(
            Diagnosis("no_events", float(len(silent)), columns=silent, remedy="merge_levels")
        )
    return result


def separated(state: OnePassState, found: Finish) -> bool:
    """Return whether a linear function of the columns tells the classes apart, or all but.

    Then the estimate goes to infinity, and the loss to 0: no kept row is misclassified, or the
    estimate has not settled.
    """
    family = state.family
    if not family.classes or state.config.penalty > 0:
        return False
    if found.loss > SEPARATED * state.totals.null_loss(family):
        return False
    rows = found.kept.rows
    eta = rows.predictor(found.theta) + rows.offset[:, None]
    mistakes = expand_at(family, eta, rows.y).loss >= math.log(2)
    return bool(not mistakes.any() or not found.excess <= LARGE_EXCESS)


def silent_columns(state: OnePassState, found: Finish) -> tuple[int, ...]:
    """Return the columns of which the data say next to nothing.

    Of a level without events (or with nothing but events) the estimate goes to infinity, and the
    information on it to 0: at the path's weak prior, less than that of one event is left.
    """
    outputs, q = found.theta.shape
    d = len(state.start.coordinates.centre)
    information = np.full((outputs, q), np.inf)
    information[:, found.columns] = np.diag(state.quadratic.J).reshape(outputs, q)[:, found.columns]
    unit = np.where(state.path.unit > 0, state.path.unit, 1.0)
    return tuple(
        int(j)
        for j in found.columns
        if j < d and (information[:, j] / unit[j] ** 2).min() < NO_INFORMATION
    )


def drift(state: OnePassState, found: Finish) -> float:
    """Return the largest z value of the mean residual in a part of the stream."""
    kept, family = found.kept, state.family
    eta = kept.rows.predictor(found.theta) + kept.rows.offset[:, None]
    here = expand_at(family, eta, kept.rows.y)
    s, w = here.score[:, 0], kept.rows.weights / found.probability
    edges = np.linspace(kept.rows.number.min(), kept.rows.number.max() + 1, PARTS + 1)
    part = np.digitize(kept.rows.number, edges) - 1
    largest = 0.0
    for k in range(PARTS):
        terms = (w * s)[part == k]
        spread = float(np.sqrt((terms**2).sum()))
        if spread > 0:
            largest = max(largest, abs(float(terms.sum())) / spread)
    return largest


def describe(diagnosis: Diagnosis, names: Sequence[str]) -> str:
    """Return a sentence or two for the user.

    Args:
        diagnosis: what is wrong.
        names: of the columns.
    """
    value, rows = diagnosis.value, ", ".join(f"{row:,}" for row in diagnosis.rows)
    columns = _listed([names[j] for j in diagnosis.columns])
    texts = {
        "excess": (
            f"the variances are about {_times(value)} those of maximum likelihood: the order of "
            "the rows, or a few extreme ones, misled this pass"
        ),
        "ordering": (
            "the rows are sorted or grouped by the target (neighbouring targets correlate by "
            f"{value:.2g})"
        ),
        "drift": (
            "the relation between the columns and the target changes along the data (mean "
            f"residual of a tenth of the rows: {value:.0f} standard errors)"
        ),
        "leverage": f"one row decides a coefficient (leverage {value:.2f}): row {rows}",
        "influence": (
            f"one row moves the estimates by {math.sqrt(max(value, 0.0)):.3g} standard errors: "
            f"row {rows}"
        ),
        "no_events": (
            f"the target never varies where these columns are not 0: {columns}; their "
            "maximum-likelihood estimates are infinite, and the numbers shown are arbitrary"
        ),
        "separation": (
            "the classes are linearly separable, or all but, so the maximum-likelihood estimate "
            "does not exist"
        ),
        "aliased": f"left out, since they depend linearly on the columns before them: {columns}",
    }
    return texts[diagnosis.kind] + REMEDIES[diagnosis.remedy]


REMEDIES: dict[Remedy, str] = {
    "read_again": "; read the rows once more (polish), or shuffle them",
    "shuffle": "; shuffle them, or read them once more (polish)",
    "inspect_rows": " (counted from 0); check whether such rows are errors",
    "merge_levels": "; merge such levels with others, or set alpha",
    "set_alpha": "; set alpha to choose one",
    "none": "",
}


def _times(excess: float) -> str:
    return f"{1 + excess:.3g} times" if np.isfinite(excess) else "unknown multiples of"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
