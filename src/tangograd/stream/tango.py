"""TANGO's recursion over single samples, compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
#: ``gradients(theta, rng, constants, g, g_tilde)``, compiled.
Gradients = Callable[[Array, np.random.Generator, Array, Array, Array], None]


class Run(NamedTuple):
    """What was seen of one run.

    Attributes:
        theta: θ at the recorded steps, shape (records, d); the first row is the start.
        v: the velocity there (for averaged SGD, the fast parameters).
        largest: the maximum of ‖v‖ over all steps, recorded or not.
    """

    theta: Array
    v: Array
    largest: float


def tango(
    gradients: Gradients,
    theta: ArrayLike,
    *,
    gamma: float,
    dt: ArrayLike,
    steps: int,
    rng: np.random.Generator,
    constants: ArrayLike = (0.0,),
    v: ArrayLike | None = None,
    C: ArrayLike | None = None,
    batch: int = 1,
    rank_one: bool = False,
    frozen: bool = False,
    accelerated: bool = False,
    records: int = 1,
) -> Run:
    """Run Definition 1 of the paper, on batches and with a diagonal preconditioner where given.

    ``v_k = (1-δt_{k-1}) v_{k-1} + γ C [ḡ - (1-δt_{k-1}) F̂ v_{k-1}]``, ``θ_k = θ_{k-1} - δt_k v_k``,
    ḡ the mean of g over the batch, F̂ the mean of ``g̃ g̃ᵀ`` (or, if ``rank_one``, B times the outer
    product of the mean of g̃, the paper's equation for minibatches).

    Args:
        gradients: the model.
        theta: θ_0, shape (d,).
        gamma: γ.
        dt: δt; a number, or δt_0, …, δt_steps.
        steps: how many.
        rng: draws the samples.
        constants: given to the model.
        v: v_0; zero by default.
        C: the diagonal of C; ones by default.
        batch: B.
        rank_one: the paper's F̂ for minibatches.
        frozen: θ stays, and v solves the damped equation.
        accelerated: ``θ_k = θ_{k-1} - v_k``.
        records: θ and v are recorded at the start and so many times, evenly.

    Example: δt = 1 is SGD; a mean is found.
        >>> import numpy as np
        >>> from tangograd.stream.models import mean
        >>> run = tango(mean, [0.0], gamma=0.1, dt=1e-3, steps=50_000, constants=[3.0, 1.0],
        ...             rng=np.random.default_rng(0))
        >>> bool(abs(run.theta[-1, 0] - 3.0) < 0.2)
        True
    """
    start, rates, run = prepare(theta, dt, steps, records)
    largest = _tango(
        gradients,
        np.asarray(constants, dtype=np.float64),
        start,
        np.zeros_like(start) if v is None else np.array(v, dtype=np.float64),
        np.ones_like(start) if C is None else np.array(C, dtype=np.float64),
        float(gamma),
        rates,
        batch,
        rank_one,
        frozen,
        accelerated,
        rng,
        run.theta,
        run.v,
    )
    return run._replace(largest=largest)


def prepare(theta: ArrayLike, dt: ArrayLike, steps: int, records: int) -> tuple[Array, Array, Run]:
    """A copy of θ_0, the rates δt_0, …, δt_steps, and room for the records."""
    if steps % records:
        raise ValueError(f"steps ({steps}) must be a multiple of records ({records})")
    start = np.array(theta, dtype=np.float64)
    # contiguous also where δt is one number, so that one compiled kernel does for both
    rates = np.ascontiguousarray(np.broadcast_to(np.asarray(dt, dtype=np.float64), (steps + 1,)))
    room = (records + 1, len(start))
    return start, rates, Run(np.empty(room), np.empty(room), 0.0)


@njit(nogil=True, error_model="numpy", fastmath=False)
def _tango(  # type: ignore[no-untyped-def]
    gradients,
    constants,
    theta,
    v,
    C,
    gamma,
    dt,
    batch,
    rank_one,
    frozen,
    accelerated,
    rng,
    thetas,
    vs,
):
    d, steps, records = len(theta), len(dt) - 1, len(thetas) - 1
    g, g_tilde = np.empty(d), np.empty(d)
    g_sum, g_tilde_sum, Fv = np.empty(d), np.empty(d), np.empty(d)
    largest = 0.0
    for i in range(d):
        thetas[0, i], vs[0, i] = theta[i], v[i]
        largest += v[i] ** 2
    for k in range(1, steps + 1):
        keep = 1 - dt[k - 1]
        for i in range(d):
            g_sum[i], g_tilde_sum[i], Fv[i] = 0.0, 0.0, 0.0
        for _ in range(batch):
            gradients(theta, rng, constants, g, g_tilde)
            along = 0.0
            for i in range(d):
                along += g_tilde[i] * v[i]
            for i in range(d):
                g_sum[i] += g[i]
                g_tilde_sum[i] += g_tilde[i]
                Fv[i] += g_tilde[i] * along
        if rank_one:
            along = 0.0
            for i in range(d):
                along += g_tilde_sum[i] * v[i]
            for i in range(d):
                Fv[i] = g_tilde_sum[i] * along  # B (Σg̃/B) ⟨Σg̃/B, v⟩, with the 1/B below
        size = 0.0
        for i in range(d):
            v[i] = keep * v[i] + gamma * C[i] * (g_sum[i] - keep * Fv[i]) / batch
            if not frozen:
                theta[i] -= v[i] if accelerated else dt[k] * v[i]
            size += v[i] ** 2
        largest = max(largest, size)
        if k * records % steps == 0:
            for i in range(d):
                thetas[k * records // steps, i], vs[k * records // steps, i] = theta[i], v[i]
    return math.sqrt(largest)
