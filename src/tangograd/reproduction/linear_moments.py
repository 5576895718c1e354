"""Exact second moments of TANGO on linear regression: what its runs must average to.

With independent, symmetric features of scales s_i, errors ``e = θ - θ*`` and noise independent of
the features, TANGO is a random linear recursion on (v, e). Its second moments of each coordinate,
``E v_i²``, ``E v_i e_i`` and ``E e_i²``, depend on each other alone, so a dozen numbers are
computed a step and nothing is approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Regression:
    """A linear regression, and the Fisher estimate that TANGO uses on it.

    ``F̂`` is the mean over the batch of ``ρ z² x xᵀ/σ²``, with ``E z² = 1``: one for the Fisher
    matrix of the model, z a pseudo-sample's standardised noise (or 1 where it is integrated out).

    Attributes:
        scales: s_i, the standard deviations of the features.
        noise: the standard deviation of the data's noise.
        sigma: that of the model, σ.
        kurtosis: ``E x_i⁴/s_i⁴``; 3 for Gaussian features, 1 for signs.
        pseudo: ``E z⁴``; 3 for a Gaussian pseudo-sample, 1 if it is integrated out.
        curvature: ρ; not 1 only where g̃ is no gradient of a pseudo-sample.
    """

    scales: ArrayLike
    noise: float = 1.0
    sigma: float = 1.0
    kurtosis: float = 3.0
    pseudo: float = 1.0
    curvature: float = 1.0

    def moments(
        self,
        error: ArrayLike,
        *,
        gamma: float,
        dt: ArrayLike,
        steps: int,
        C: ArrayLike | None = None,
        batch: int = 1,
        accelerated: bool = False,
    ) -> Array:
        """(E v_i², E v_i e_i, E e_i²) after 0, …, ``steps`` steps, shape (steps + 1, 3, d).

        With ``D = diag(s²)``, ``β = 1-δt_{k-1}``, ``τ = γ/σ²`` and r the factor of v in the update
        of θ (δt_k, or 1 if accelerated), a step is

        ``v' = β v + τ C [X e - β ρ Z v + noise]``, ``e' = e - r v'``,

        where ``E X = E Z = D``, and for diagonal second moments M

        ``E[X M X]_ii = K(M)_ii/B + (1-1/B) D_i² M_ii``,
        ``K(M)_ii = D_i tr(D M) + (kurtosis-1) D_i² M_ii``;

        the same holds for X with Z, and for Z with Z with K times ``E z⁴``.

        Args:
            error: e_0; v_0 = 0.
            gamma: γ.
            dt: δt; a number, or δt_0, …, δt_steps.
            steps: how many.
            C: the diagonal of the preconditioner; ones by default.
            batch: B.
            accelerated: ``θ_k = θ_{k-1} - v_k``.
        """
        scales = np.asarray(self.scales, dtype=np.float64)
        rates = np.broadcast_to(np.asarray(dt, dtype=np.float64), (steps + 1,))
        out = np.zeros((steps + 1, 3, len(scales)))
        out[0, 2] = np.asarray(error, dtype=np.float64) ** 2
        diagonal = np.ones_like(scales) if C is None else np.asarray(C, dtype=np.float64)
        tau = gamma / self.sigma**2 * diagonal
        kinds = (self.noise, self.kurtosis, self.pseudo, self.curvature, 1.0 / batch)
        _moments(scales**2, np.array(kinds), tau, rates, accelerated, out)
        return out

    def excess(self, error: ArrayLike, **options: object) -> Array:
        """``½ Σ s_i² E e_i²``, the expected excess loss (in units of 1/σ²) after each step."""
        squares = self.moments(error, **options)[:, 2]  # type: ignore[arg-type]
        total: Array = squares @ np.asarray(self.scales, dtype=np.float64) ** 2 / 2
        return total


@njit(cache=True, error_model="numpy")
def _moments(D, kinds, tau, dt, accelerated, out):  # type: ignore[no-untyped-def]
    noise, kurtosis, pseudo, rho, one_by_b = kinds
    d = len(D)
    for k in range(1, len(dt)):
        beta = 1 - dt[k - 1]
        rate = 1.0 if accelerated else dt[k]
        trace_x, trace_z = 0.0, 0.0  # of D with the moments of e and v, as they enter K
        for i in range(d):
            a, b, c = out[k - 1, 0, i], out[k - 1, 1, i], out[k - 1, 2, i]
            trace_x += D[i] * (c - 2 * beta * rho * b)
            trace_z += D[i] * (beta * rho) ** 2 * a
        for i in range(d):
            a, b, c = out[k - 1, 0, i], out[k - 1, 1, i], out[k - 1, 2, i]
            x, z = c - 2 * beta * rho * b, (beta * rho) ** 2 * a
            single = D[i] * (trace_x + pseudo * trace_z)
            single += (kurtosis - 1) * D[i] ** 2 * (x + pseudo * z)
            square = one_by_b * (single + noise**2 * D[i]) + (1 - one_by_b) * D[i] ** 2 * (x + z)
            pull = tau[i] * D[i]
            new = beta**2 * a + 2 * beta * pull * (b - beta * rho * a) + tau[i] ** 2 * square
            along = beta * b + pull * (c - beta * rho * b)  # E v_k e_{k-1}
            out[k, 0, i] = new
            out[k, 1, i] = along - rate * new
            out[k, 2, i] = c - 2 * rate * along + rate**2 * new
