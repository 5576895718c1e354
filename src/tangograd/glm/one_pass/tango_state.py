"""Scalars, options and arrays for one row of TANGO's path."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.jit import Compiled, helper, like

Array = NDArray[np.float64]


class _StateFields(NamedTuple):
    k: float = 0.0
    dt: float = 0.0
    gamma: float = 0.0
    constant: float = 0.0
    renewal: float = 0.0
    penalty_row: float = 0.0
    penalty_rows: float = 0.0
    q: float = 0.0
    q_squared: float = 0.0
    noise: float = 0.0
    weight: float = 0.0
    loss: float = 0.0
    pearson: float = 0.0
    limited: float = 0.0
    mistakes: float = 0.0


class TangoState(Compiled, _StateFields):
    """Scalars of the path; sums are over its rows.

    Attributes:
        k: rows.
        dt: ``δt_{k-1}``.
        gamma: γ before the limits of single rows.
        constant: c of ``γ = c/√(A k)``.
        renewal: the row at which C and γ are renewed.
        penalty_row: the row at which the penalty is applied; 0 without one.
        penalty_rows: for how many rows.
        q: Σ q.
        q_squared: Σ q min(q, 1/γ).
        noise: Σ γ q², the cost of the noise of F̂.
        weight: Σ w.
        loss: Σ w loss.
        pearson: Σ w s²/f, an estimate of φ Σ w.
        limited: rows whose γ was limited.
        mistakes: rows whose class seemed less likely than not.
    """


class _OptionFields(NamedTuple):
    alpha: float = 0.0
    intercept: bool = True


class TangoOptions(Compiled, _OptionFields):
    """Options of the path.

    Attributes:
        alpha: the penalty α of ``mean loss + α/2 ‖θ‖²``.
        intercept: there is one.
    """


class _ScratchFields(NamedTuple):
    eta: Array
    t: Array
    q: Array
    s: Array
    a: Array
    f: Array
    pseudo_score: Array
    F: Array
    F_hat: Array
    unused: Array


class Scratch(Compiled, _ScratchFields):
    """Arrays for the row in work, of shapes (outputs,) and (outputs, outputs).

    Attributes:
        eta: η.
        t: the tangent t.
        q: ``zᵀCz``.
        s: score of the loss.
        a: multiples of C z that v gains.
        f: w times the diagonal of F.
        pseudo_score: score of a pseudo-sample.
        F: Fisher information.
        F_hat: F̂; F itself, unless it is sampled.
        unused: observed information.
    """

    @classmethod
    def new(cls, outputs: int, sampled: bool) -> Scratch:
        """Return arrays for rows."""
        F, F_hat, unused = np.empty((3, outputs, outputs))
        rows = tuple(np.empty((7, outputs)))
        return cls._make((*rows, F, F_hat if sampled else F, unused))


@helper
def with_schedule(
    state: TangoState, gamma: float, renewal: float, penalty_row: float, penalty_rows: float
) -> TangoState:
    """Return the state with another γ and other rows at which something is due."""
    values = (
        state.k,
        state.dt,
        gamma,
        state.constant,
        renewal,
        penalty_row,
        penalty_rows,
        state.q,
        state.q_squared,
        state.noise,
        state.weight,
        state.loss,
        state.pearson,
        state.limited,
        state.mistakes,
    )
    return like(state, values)
