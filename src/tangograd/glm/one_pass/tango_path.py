"""TANGO's recursion over the rows of a generalised linear model, at O(d) a row.

A row ``z = [x - m, 1]`` has linear predictors ``η_i = z·θ_i``, one for each output i (one in all
but multinomial models). With s the score of its loss and F̂ its Fisher information there (expected,
or the outer product of a pseudo-sample's score), Definition 1 of the paper with a diagonal C reads,
``t = (1-δt_{k-1}) z·v`` being the tangent,

    v_k = (1-δt_{k-1}) v_{k-1} + γ_k C (s - F̂ t) z,        θ_k = θ_{k-1} - δt_k v_k.

Three things are added, none of which moves the fixed point in the end:

- ``δt_k = 1/k`` and ``γ_k = c/√(A k)``, with ``A = E[q²]/2E[q]`` for ``q = tr F̂ · zᵀCz``: of the
  variance of the estimate, relative to that of maximum likelihood, 2Aγ_k is due to the noise of F̂
  and ``mean(1/λ)/2kγ_k`` to what the last rows have not yet taught (λ the eigenvalues of C F).
  Their sum is least at ``c² = mean(1/λ)/4``, for all k at once: no horizon is needed.
- A row's γ is at most 1/q (the rule 1/max, row by row), and, unless the model is linear, such that
  its η moves by at most ``LARGEST_MOVE``.
- Columns are centred at the means m of the first rows, so that features far from 0 do not resemble
  the intercept.

C is the inverse of the mean Fisher diagonal, renewed whenever k has grown by 5%.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.matrices import Block, PathArrays
from tangograd.glm.numerics.jit import compiled, helper, like
from tangograd.glm.one_pass.tango_state import Scratch, TangoOptions, TangoState, with_schedule

__all__ = ["TangoOptions", "TangoPath", "TangoState", "run"]

Array = NDArray[np.float64]

#: a row moves its η by at most this
LARGEST_MOVE = 3.0
#: C and γ are renewed when k has grown by this factor
GROWTH = 1.05
#: γ A is at most this, half of what is stable in mean square
STABLE = 0.5
#: the penalty is applied whenever γ times the rows since then reaches this
STRIDE = 0.05
LOG_TWO = math.log(2)


@helper
def sample_fisher(
    family: Family,
    eta: Array,
    dispersion: float,
    rng: np.random.Generator,
    s: Array,
    F_hat: Array,
    unused: Array,
) -> None:
    """Write ``F̂ = s sᵀ/φ`` with the score s of a pseudo-sample: an unbiased estimate of F."""
    family.derivatives(eta, family.sample(eta, dispersion, rng), s, unused, unused)
    for i in range(len(s)):
        for j in range(len(s)):
            F_hat[i, j] = s[i] * s[j] / dispersion


@helper
def limited_rate(gamma: float, q: float, move: float) -> tuple[float, float]:
    """Return γ of a row, and before the limit on the move of η, which is γ ``move``."""
    stable = 1 / q if gamma * q > 1 else gamma
    return (LARGEST_MOVE / move if stable * move > LARGEST_MOVE else stable), stable


@helper
def penalty_stride(gamma: float) -> float:
    """Return for how many rows the penalty is applied at once."""
    return float(max(1.0, math.floor(STRIDE / gamma)))


@helper
def renewed(path: PathArrays, state: TangoState, options: TangoOptions) -> TangoState:
    """Set C to the inverse of the mean Fisher diagonal and γ to c/√(A k); return the state.

    C is 0 where there is no information, and γ stays as it is while nothing has been learned.
    """
    k = state.k
    outputs, size = path.S.shape
    for i in range(outputs):
        for j in range(size):
            curvature = path.S[i, j] / k
            if j < size - 1:
                curvature += options.alpha * state.weight / k
            path.C[i, j] = 1 / curvature if path.S[i, j] > 0 else 0.0
        if not options.intercept:
            path.C[i, size - 1] = 0.0
    gamma = state.gamma
    if state.q > 0:
        A = 0.5 * state.q_squared / state.q
        gamma = min(STABLE / A, state.constant / math.sqrt(A * k))
    row, rows = state.penalty_row, state.penalty_rows
    if options.alpha > 0 and row == 0:
        rows = penalty_stride(gamma)
        row = k + rows
    return with_schedule(state, gamma, float(math.ceil(k * GROWTH)), row, rows)


@helper
def penalised(
    family: Family, path: PathArrays, state: TangoState, options: TangoOptions
) -> TangoState:
    """Add the penalty's gradient and its part of ``F v`` to v; return the state.

    They are those of the rows since the last time. With several classes the penalty is that of the
    coefficients of all of them, centred.
    """
    outputs, size = path.theta.shape
    rate = state.gamma * state.penalty_rows * options.alpha * state.weight / state.k
    for j in range(size - 1):
        mean = 0.0
        if family.centers_penalty:
            for i in range(outputs):
                mean += (path.theta[i, j] - path.v[i, j]) / (outputs + 1)
        for i in range(outputs):
            pull = path.theta[i, j] - path.v[i, j] - mean
            path.v[i, j] += rate * path.C[i, j] * pull
    rows = penalty_stride(state.gamma)
    return with_schedule(state, state.gamma, state.renewal, state.k + rows, rows)


@helper
def learn_rows(
    family: Family,
    block: Block,
    n: int,
    work: Any,
    scratch: Scratch,
    state: TangoState,
    options: TangoOptions,
    rng: np.random.Generator | None,
    scores: Array,
    fishers: Array,
) -> tuple[int, TangoState]:
    """Learn from rows, from one on until C, γ or the penalty are due.

    Args:
        family: the family.
        block: the rows.
        n: the first row.
        work: of the matrix, on θ, v, C and S.
        scratch: for a row.
        state: before the rows.
        options: of the path.
        rng: draws pseudo-samples for F̂, which is F without it.
        scores: gets w s of each row where it was learned from, unless empty.
        fishers: gets w F in the same way, unless empty.

    Returns:
        the number of the next row, and the state before it.
    """
    eta, t, q, s, a, f, pseudo_score, F, F_hat, unused = scratch
    k, dt, gamma, weight, loss = state.k, state.dt, state.gamma, state.weight, state.loss
    q_sum, q_squared, noise = state.q, state.q_squared, state.noise
    pearson, limited, mistakes = state.pearson, state.limited, state.mistakes
    due = min(state.renewal, state.penalty_row) if options.alpha > 0 else state.renewal
    outputs, keeping = len(eta), len(scores) > 0
    while n < len(block.y):
        w = block.weights[n]
        k += 1
        keep, dt = 1 - dt, 1 / k
        block.X.predict_row(n, work, eta, t, q)
        for i in range(outputs):
            eta[i] += block.offset[n]
            t[i] *= keep
        row_loss = family.derivatives(eta, block.y[n], s, F, unused)
        if rng is not None:
            dispersion = 1.0
            if family.estimates_dispersion and pearson > 0:
                dispersion = pearson / weight
            sample_fisher(family, eta, dispersion, rng, pseudo_score, F_hat, unused)
        trace, square, move = 0.0, 0.0, 0.0
        for i in range(outputs):
            a[i] = s[i]
            f[i] = w * F[i, i]
            trace += w * F_hat[i, i] * q[i]
            for j in range(outputs):
                a[i] -= F_hat[i, j] * t[j]
                square += (w * F_hat[i, j]) ** 2 * q[i] * q[j]
            a[i] *= w
            move = max(move, abs(a[i]) * q[i])
        row_gamma, stable = limited_rate(gamma, trace, 0.0 if family.quadratic else move)
        for i in range(outputs):
            a[i] *= row_gamma
        block.X.update_row(n, work, keep, dt, a, f)
        q_sum += trace
        q_squared += square * (stable / gamma if stable < gamma else 1.0)
        noise += row_gamma * square
        limited += row_gamma < gamma
        weight += w
        loss += w * row_loss
        if family.estimates_dispersion and F[0, 0] > 0:
            pearson += w * (s[0] * s[0] / F[0, 0])
        if family.classes:
            mistakes += row_loss > LOG_TWO
        if keeping:
            for i in range(outputs):
                scores[n, i] = w * s[i]
                for j in range(outputs):
                    fishers[n, i, j] = w * F[i, j]
        n += 1
        if k >= due:
            break
    values = (
        k,
        dt,
        gamma,
        state.constant,
        state.renewal,
        state.penalty_row,
        state.penalty_rows,
        q_sum,
        q_squared,
        noise,
        weight,
        loss,
        pearson,
        limited,
        mistakes,
    )
    return n, like(state, values)


# without reference counts, which would cost more than the arithmetic: nothing is allocated
@compiled(_nrt=False)
def run(
    family: Family,
    block: Block,
    path: PathArrays,
    work: Any,
    scratch: Scratch,
    state: TangoState,
    options: TangoOptions,
    rng: np.random.Generator | None,
    scores: Array,
    fishers: Array,
) -> TangoState:
    """Learn from a block of rows; return the state after them. Arguments as ``learn_rows``."""
    n = 0
    while n < len(block.y):
        block.X.begin(path, work)
        n, state = learn_rows(family, block, n, work, scratch, state, options, rng, scores, fishers)
        block.X.flush(path, work)
        if options.alpha > 0 and state.k >= state.penalty_row:
            state = penalised(family, path, state, options)
        if state.k >= state.renewal:
            state = renewed(path, state, options)
    return state


@dataclass
class TangoPath:
    """A path in work.

    Attributes:
        family: of the targets.
        arrays: θ, v, C, S and m.
        state: its scalars.
        options: what it does.
        rng: draws pseudo-samples for F̂; None for the expected F.
    """

    family: Family
    arrays: PathArrays
    state: TangoState
    options: TangoOptions
    rng: np.random.Generator | None

    @classmethod
    def start(
        cls,
        family: Family,
        theta: Array,
        center: Array,
        fisher: Array,
        options: TangoOptions,
        rng: np.random.Generator | None = None,
        **statistics: float,
    ) -> TangoPath:
        """Return a path that goes on after rows which were learned from by other means.

        Args:
            family: of the targets.
            theta: the estimate from these rows, shape (outputs, width + 1).
            center: m, shape (width,).
            fisher: diagonal of their Fisher information at this estimate, shape of ``theta``.
            options: what the path does.
            rng: draws pseudo-samples for F̂; None for the expected F.
            **statistics: fields of the state: ``k``, ``constant``, ``weight`` and the sums.
        """
        arrays = PathArrays(
            np.array(theta), np.zeros_like(theta), np.zeros_like(theta), np.array(fisher), center
        )
        state = TangoState(**{name: float(value) for name, value in statistics.items()})
        state = renewed(arrays, state._replace(dt=1 / state.k), options)
        return cls(family, arrays, state, options, rng)

    def learn(self, block: Block, keep: bool = True) -> tuple[Array, Array]:
        """Learn from rows.

        Args:
            block: the rows.
            keep: return what is said below; empty arrays otherwise.

        Returns:
            w s and w F of each row at the θ that it was learned from, shapes (n, outputs) and
            (n, outputs, outputs).
        """
        n, outputs = len(block) if keep else 0, len(self.arrays.theta)
        scores, fishers = np.empty((n, outputs)), np.empty((n, outputs, outputs))
        self.state = run(
            self.family,
            block,
            self.arrays,
            block.X.workspace(self.arrays),
            Scratch.new(outputs, self.rng is not None),
            self.state,
            self.options,
            self.rng,
            scores,
            fishers,
        )
        return scores, fishers

    def grow(self, width: int) -> None:
        """Add columns before the intercept, not centred; their coefficients begin at 0."""
        center = self.arrays.center
        extra = [len(center)] * (width - len(center))
        theta, v, C, S = (np.insert(part, extra, 0.0, axis=1) for part in self.arrays[:4])
        self.arrays = PathArrays(theta, v, C, S, np.insert(center, extra, 0.0))
