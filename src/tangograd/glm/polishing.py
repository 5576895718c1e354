"""From one pass to maximum likelihood: Newton steps on whole further passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.coordinates import Coordinates
from tangograd.glm.errors import DataError
from tangograd.glm.matrices import Block, rechunk
from tangograd.glm.newton import DENSE, Solution
from tangograd.glm.numerics.linear_solve import solve
from tangograd.glm.sums import Sums
from tangograd.glm.tally import Tally

if TYPE_CHECKING:
    from tangograd.glm.engine import OnePass

Array = NDArray[np.float64]

PASSES = 3
#: a step that is worth less, in standard errors, is the last
NEGLIGIBLE = 0.01
#: a step that made the loss larger is tried again, so many times shorter
SHORTER = 8
#: of a loss
ROUNDING = 1e-13


def polish(model: OnePass, again: Callable[[], Iterable[Block]]) -> None:
    """Newton steps, one for each pass, until one is worth less than 0.01 standard errors.

    A step that makes the loss larger is not taken but made shorter; the result is never worse than
    the stream's own.

    Args:
        model: a stream after its last row; it gets the result in ``polished``.
        again: reads all rows once more.
    """
    if model.coefficient_count > DENSE:
        raise DataError(
            f"polishing forms the Fisher matrix, for at most {DENSE} coefficients; there are "
            f"{model.coefficient_count}: use more passes instead"
        )
    centred = Coordinates(model.at.m)
    best = _read(model, again(), centred.inward(model.at.outward(model.working_path.arrays.theta)))
    _keep(model, best, centred)
    shrinking, length = False, 1.0
    for _ in range(PASSES - 1):
        if best.worth < NEGLIGIBLE:
            break
        there = _read(model, again(), best.theta - length * best.step)
        if there.value <= best.value + ROUNDING * abs(best.value):
            best, shrinking, length = there, there.worth < best.worth, 1.0
            _keep(model, best, centred)
        else:
            shrinking, length = False, length / SHORTER
    if shrinking and best.worth >= NEGLIGIBLE:  # no pass will see this step
        _keep(model, best._replace(theta=best.theta - best.step), centred)


class _Reading(NamedTuple):
    """What a pass says of θ: the penalised loss, Newton's step and its worth in standard errors."""

    theta: Array
    value: float
    step: Array
    worth: float
    sums: Sums
    tally: Tally


def _keep(model: OnePass, reading: _Reading, centred: Coordinates) -> None:
    """Make it the result, with its step if that is negligible."""
    done = reading.worth < NEGLIGIBLE
    theta = reading.theta - reading.step if done else reading.theta
    tally = model.tally = reading.tally
    model.last_step = reading.worth
    model.polished = Solution(theta, tally.loss, tally.pearson, reading.sums, done, centred)
    path = model.working_path
    path.arrays.theta[:], path.arrays.v[:] = model.at.inward(centred.outward(theta)), 0.0


def _read(model: OnePass, parts: Iterable[Block], theta: Array) -> _Reading:
    """One pass over all rows."""
    model.passes += 1
    sums = Sums(model.at.m, model.outputs, model.intercept, full=True)
    tally = Tally(model.family, model.outputs + 1)
    objective = None
    for rows in rechunk((part.with_weight() for part in parts), model.block_rows):
        objective = model.objective([rows], model.at.m)
        loss, pearson, part = objective.sums(theta, full=True, meat=True)
        sums.merge(part)
        tally.add([rows], loss, pearson)
    if objective is None:
        raise DataError("the second reading of the data had no rows")
    objective.weight, objective.ridge = tally.weight, np.zeros(model.columns + 1)
    pull = objective.pull(theta)
    g = sums.gradient + pull.ravel()
    step = solve(objective.curvature(sums.fisher), g)
    dispersion = tally.pearson / tally.weight if model.family.estimates_dispersion else 1.0
    worth = math.sqrt(max(float(g @ step), 0.0) / max(dispersion, 1e-300))
    value = tally.loss + 0.5 * float(np.sum(theta * pull))
    return _Reading(theta, value, step.reshape(theta.shape), worth, sums, tally)
