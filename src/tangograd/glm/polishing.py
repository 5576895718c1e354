"""From one pass to maximum likelihood: Newton steps on whole further passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from tangograd.glm.coordinates import Coordinates
from tangograd.glm.errors import DataError
from tangograd.glm.newton import DENSE, Solution, solve
from tangograd.glm.rows import Rows, blocks, together
from tangograd.glm.sums import Sums
from tangograd.glm.tally import Tally

if TYPE_CHECKING:
    from tangograd.glm.engine import OnePass

PASSES = 3
#: a step that is worth less, in standard errors, is the last
NEGLIGIBLE = 0.01


def polish(model: OnePass, again: Callable[[], Iterable[Rows]]) -> None:
    """Newton steps, one for each pass, until one is worth less than 0.01 standard errors.

    Args:
        model: a stream after its last row; it gets the result in ``polished``.
        again: reads all rows once more.
    """
    if model.theta.size > DENSE:
        raise DataError(
            f"polishing forms the Fisher matrix, for at most {DENSE} coefficients; there are "
            f"{model.theta.size}: use more passes instead"
        )
    centred = Coordinates(model.at.m)
    theta = centred.inward(model.at.outward(model.theta))
    for _ in range(PASSES):
        model.passes += 1
        sums = Sums(model.outputs, model.columns + 1, full=True)
        tally = Tally(model.family, model.outputs + 1)
        objective = None
        for rows in _even(again(), model.block_rows):
            objective = model.objective([rows], model.at.m)
            loss, pearson, part = objective.sums(theta, full=True, meat=True)
            sums.include(part)
            tally.add([rows], loss, pearson)
        if objective is None:
            raise DataError("the second reading of the data had no rows")
        objective.weight, objective.ridge = tally.weight, np.zeros(model.columns + 1)
        g = sums.gradient + objective.pull(theta).ravel()
        step = solve(objective.curvature(sums.fisher), g)
        dispersion = tally.pearson / tally.weight if model.family.free_dispersion else 1.0
        worth = math.sqrt(max(float(g @ step), 0.0) / max(dispersion, 1e-300))
        theta = theta - step.reshape(theta.shape)
        model.tally, model.last_step = tally, worth
        model.polished = Solution(
            theta, tally.loss, tally.pearson, sums, worth < NEGLIGIBLE, centred
        )
        if worth < NEGLIGIBLE:
            break
    model.theta, model.v[:] = model.at.inward(centred.outward(theta)), 0.0


def _even(parts: Iterable[Rows], size: int) -> Iterable[Rows]:
    """The same rows in blocks of one size."""
    held: list[Rows] = []
    waiting = 0
    for part in parts:
        if len(part) and not part.w.all():
            part = part.take(np.flatnonzero(part.w))
        for block in blocks(part, size, size - waiting):
            held.append(block)
            waiting += len(block)
            if waiting == size:
                yield together(held)
                held, waiting = [], 0
    if held:
        yield together(held)
