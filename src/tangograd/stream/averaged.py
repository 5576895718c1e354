"""Averaged SGD over single samples, compiled: what TANGO is compared with."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from tangograd.stream.tango import Gradients, Run, prepare


def averaged_sgd(
    gradients: Gradients,
    theta: ArrayLike,
    *,
    gamma: float,
    dt: ArrayLike,
    steps: int,
    rng: np.random.Generator,
    constants: ArrayLike = (0.0,),
    records: int = 1,
) -> Run:
    """SGD at the constant rate γ, and a moving average of it at the rate δt.

    ``θ_fast ← θ_fast - γ g(θ_fast)``, ``θ ← (1-δt_k) θ + δt_k θ_fast``.

    Args:
        gradients: the model; its pseudo-samples are drawn and not used, so that a TANGO run with
            the same ``rng`` sees the same random numbers.
        theta: where both start, shape (d,).
        gamma: the rate of SGD.
        dt: δt; a number, or δt_0, …, δt_steps (δt_0 is not used).
        steps: how many.
        rng: draws the samples.
        constants: given to the model.
        records: both are recorded at the start and so many times, evenly.

    Returns:
        The average as ``theta``, the fast parameters as ``v``.

    Example:
        >>> import numpy as np
        >>> from tangograd.stream.models import mean
        >>> run = averaged_sgd(mean, [0.0], gamma=0.1, dt=1e-3, steps=50_000, constants=[3.0, 1.0],
        ...                    rng=np.random.default_rng(0))
        >>> bool(abs(run.theta[-1, 0] - 3.0) < 0.2)
        True
    """
    start, rates, run = prepare(theta, dt, steps, records)
    constant = np.asarray(constants, dtype=np.float64)
    largest = _averaged(gradients, constant, start, float(gamma), rates, rng, run.theta, run.v)
    return run._replace(largest=largest)


@njit(nogil=True, error_model="numpy", fastmath=False)
def _averaged(gradients, constants, theta, gamma, dt, rng, thetas, fasts):  # type: ignore[no-untyped-def]
    d, steps, records = len(theta), len(dt) - 1, len(thetas) - 1
    fast, g, g_tilde = theta.copy(), np.empty(d), np.empty(d)
    largest = 0.0
    for i in range(d):
        thetas[0, i], fasts[0, i] = theta[i], fast[i]
        largest += fast[i] ** 2
    for k in range(1, steps + 1):
        gradients(fast, rng, constants, g, g_tilde)
        size = 0.0
        for i in range(d):
            fast[i] -= gamma * g[i]
            theta[i] += dt[k] * (fast[i] - theta[i])
            size += fast[i] ** 2
        largest = max(largest, size)
        if k * records % steps == 0:
            for i in range(d):
                thetas[k * records // steps, i], fasts[k * records // steps, i] = theta[i], fast[i]
    return math.sqrt(largest)
