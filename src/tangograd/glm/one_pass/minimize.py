"""Newton's method with step halving."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.one_pass.linear_algebra import IndefiniteError, solve

Array = NDArray[np.float64]

#: a step must have this share of the decrease that its slope promises
SUFFICIENT = 1e-4
#: the rounding error of a sum, in units of its terms
ROUNDING = 1e-12
SHORTEST = 1e-7


class Slope(NamedTuple):
    """Derivatives of a function: its gradient, its Hessian, and a substitute where that fails."""

    gradient: Array
    hessian: Array
    substitute: Array


class Minimum(NamedTuple):
    """Where the minimization ended, the last Hessian, and whether it converged."""

    theta: Array
    hessian: Array
    converged: bool


def minimize(
    value: Callable[[Array], float],
    slope: Callable[[Array], Slope],
    theta: Array,
    *,
    tolerance: float,
    size: float,
    steps: int = 40,
) -> Minimum:
    """Minimize a function by Newton steps, halved until the function decreases.

    Args:
        value: the function.
        slope: its derivatives.
        theta: where to begin.
        tolerance: a step whose decrement ``gᵀH⁻¹g`` is smaller is the last.
        size: of the terms that the function sums up, for their rounding errors.
        steps: the most steps to take.
    """
    current = value(theta)
    hessian = np.zeros((len(theta), len(theta)))
    for _ in range(steps):
        gradient, hessian, substitute = slope(theta)
        definite = True
        try:
            step = solve(hessian, gradient)
        except IndefiniteError:
            definite = False
            try:
                step = solve(substitute, gradient)
            except IndefiniteError:
                return Minimum(theta, hessian, False)
        decrement = float(gradient @ step)
        if not np.isfinite(decrement):
            return Minimum(theta, hessian, False)
        if decrement < tolerance:
            return Minimum(theta - step, hessian, definite)
        length = 1.0
        while True:
            there = value(theta - length * step)
            slack = ROUNDING * (abs(current) + size) - SUFFICIENT * length * decrement
            if there <= current + slack:
                break
            length /= 2
            if length < SHORTEST:
                return Minimum(theta, hessian, definite and decrement < 1e-2 * len(theta))
        theta, current = theta - length * step, there
    return Minimum(theta, hessian, False)
