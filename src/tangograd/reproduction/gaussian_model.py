"""What is known of TANGO on the Gaussian model of Figure 1, without drawing a random number.

``θ = (μ, s)`` with ``s = ln σ``; the data are from N(m, τ²). With ``a = m-μ``, ``p = e⁻²ˢ`` and
``q = (τ²+a²) p``, one step of TANGO, ``v ← (1-δt) v + γ [ĝ - (1-δt) Â v]``, has

* the mean gradient ``F = (-a p, 1-q)`` and the Fisher matrix ``A = diag(p, 2)``, so that the
  natural gradient is ``f = A⁻¹F = (-a, (1-q)/2)``;
* the noise ``ξ - (1-δt) ζ``, ``ξ = ĝ - F`` and ``ζ = (Â - A) v``, of covariance
  :func:`noise`, from the moments of a normal variable up to the eighth.

Three levels of detail: the exact flow, to which TANGO tends (:func:`flow`); the first terms of the
difference, as δt → 0 (:func:`expansion`); and mean and covariance at a given δt
(:func:`mean_and_covariance`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

Array = NDArray[np.float64]

M, TAU = 10.0, 1.0  # the data
START = (0.0, 0.0)


def flow(t: float | Array, mean: float = M) -> Array:
    """The natural gradient from N(0, 1) to N(mean, 1), at the time t, in ``(μ, ln σ)``.

    The moments ``E y`` and ``E y²`` of the model decay exponentially to the data's, so
    ``μ = m (1-e⁻ᵗ)`` and ``σ² = 1 + m² e⁻ᵗ (1-e⁻ᵗ)``.
    """
    decay = np.exp(-np.asarray(t, dtype=np.float64))
    variance = 1 + mean**2 * decay * (1 - decay)
    return np.stack([mean * (1 - decay), np.log(variance) / 2], axis=-1)


def circle(points: int = 1000) -> Array:
    """(μ, σ) along the natural gradient's path, until it is within e⁻¹⁰ of its end."""
    return half_plane(flow(-np.log(np.linspace(1, math.exp(-10), points))))


def half_plane(theta: Array) -> Array:
    """(μ, ln σ) to (μ, σ), a row each."""
    return np.stack([theta[:, 0], np.exp(theta[:, 1])], axis=1)


def deviation(path: Array) -> float:
    """The largest distance of a path in (μ, σ) from the circle ``(μ-5)² + σ² = 26``."""
    return float(np.abs(np.hypot(path[:, 0] - M / 2, path[:, 1]) - math.sqrt(26)).max())


def natural_gradient(theta: Array) -> Array:
    """``f = A⁻¹F``."""
    a, p = M - theta[0], math.exp(-2 * theta[1])
    return np.array([-a, (1 - (TAU**2 + a * a) * p) / 2])


def fisher(theta: Array) -> Array:
    """The diagonal of A."""
    return np.array([math.exp(-2 * theta[1]), 2.0])


@njit(cache=True)
def noise(mu, s, v11, v12, v22, keep):  # type: ignore[no-untyped-def]
    """The covariance of ``ξ - (1-δt) ζ`` where E vvᵀ is given: its elements 11, 12 and 22.

    ``Cov ξ + (1-δt)² E[(g̃g̃ᵀ-A) vvᵀ (g̃g̃ᵀ-A)]``; with ``g̃ = (-z/σ, 1-z²)`` and z normal, the fourth
    moments are ``E g̃₁⁴ = 3p²``, ``E g̃₁²g̃₂² = 10p``, ``E g̃₂⁴ = 60``, and odd ones vanish.
    """
    a, p = M - mu, math.exp(-2 * s)
    b = TAU * TAU * p
    k = keep * keep
    return (
        b * p + k * (2 * p * p * v11 + 10 * p * v22),
        2 * a * b * p + k * 18 * p * v12,
        2 * b * b + 4 * a * a * p * b + k * (10 * p * v11 + 56 * v22),
    )


def velocity_covariance(theta: Array, gamma: float) -> Array:
    """``W = Cov v`` at rest at a fixed θ, as δt → 0.

    It solves ``AW + WA - γ AWA = γ N(W + ffᵀ)``, N being :func:`noise`: three linear equations.
    """
    f, A = natural_gradient(theta), fisher(theta)

    def N(v11: float, v12: float, v22: float) -> Array:  # noqa: N802
        return np.array(noise(theta[0], theta[1], v11, v12, v22, 1.0))

    loss = np.array([A[i] + A[j] - gamma * A[i] * A[j] for i, j in ((0, 0), (0, 1), (1, 1))])
    gain = np.stack([N(*unit) - N(0.0, 0.0, 0.0) for unit in np.eye(3)], axis=1)
    w = np.linalg.solve(np.diag(loss) - gamma * gain, gamma * N(f[0] ** 2, f[0] * f[1], f[1] ** 2))
    return np.array([[w[0], w[1]], [w[1], w[2]]])


@dataclass(frozen=True)
class Expansion:
    """``θ_{T/δt} - θ(T) ≈ √δt N(0, S) + δt b`` as δt → 0.

    Attributes:
        b: the bias is ``δt b``.
        S: the covariance is ``δt S``.
    """

    b: Array
    S: Array


def expansion(gamma: float, time: float, *, noisy: bool = True, damped: bool = True) -> Expansion:
    """The first terms of TANGO's difference from the flow.

    Write ``θ = θ(t) + x`` and average over the fast v, whose covariance is W, with f, A and W taken
    at θ(t). To first order in δt the moments of x, v and ``x vᵀ`` close:

    * ``S' = -Df S - S Dfᵀ + (W A⁻¹ + A⁻¹ W)/γ - W``, which is the linearised stochastic
      differential equation with the noise ``A⁻¹(ξ-ζ)``;
    * ``b' = -Df b - ½ D²f:S - A⁻¹ Σᵢ ∂ᵢA (W A⁻¹)ᵢ/γ + A⁻¹(I/γ - A) f - A⁻¹ Df f/γ + ½ Df f``: the
      curvature of f, the correlation of θ and v, the damping δt/γ, the lag of v, and Euler's steps;
    * ``b(0) = ((γA)⁻¹ - I) f``, since v starts at 0 and not at f.

    Args:
        gamma: γ.
        time: T.
        noisy: whether F and A are sampled; if not, S = W = 0.
        damped: whether Â is ``(1-δt) g̃g̃ᵀ + (δt/γ) I``; if not, it is ``g̃g̃ᵀ``.
    """

    def change(_: float, y: Array) -> Array:
        theta, b, S = y[:2], y[2:4], y[4:].reshape(2, 2)
        a, p = M - theta[0], math.exp(-2 * theta[1])
        q = (TAU**2 + a * a) * p
        f, A = natural_gradient(theta), fisher(theta)
        Df = np.array([[1.0, 0.0], [a * p, q]])
        D2f = np.array([[-p, -2 * a * p], [-2 * a * p, -2 * q]])  # of f₂; that of f₁ is 0
        W = velocity_covariance(theta, gamma) if noisy else np.zeros((2, 2))
        curvature = np.array([0.0, (D2f * S).sum() / 2])
        correlation = np.array([-2 * p * W[1, 0] / A[0], 0.0]) / (gamma * A)  # ∂A/∂s = diag(-2p, 0)
        damping = (1 / gamma - A) * f / A if damped else 0.0
        lag = Df @ f / (gamma * A)
        db = -Df @ b - curvature - correlation + damping - lag + Df @ f / 2
        dS = -Df @ S - S @ Df.T + (W / A + (W / A).T) / gamma - W
        return np.concatenate([-f, db, dS.ravel()])

    theta = np.array(START)
    b = (1 / (gamma * fisher(theta)) - 1) * natural_gradient(theta)
    start = np.concatenate([theta, b, np.zeros(4)])
    y = solve_ivp(change, (0.0, time), start, "LSODA", rtol=1e-9, atol=1e-9).y[:, -1]
    return Expansion(y[2:4], y[4:].reshape(2, 2))


@njit(cache=True)
def noise_free(gamma, dt, steps, damped, path):  # type: ignore[no-untyped-def]
    """TANGO with F and A in place of their samples; θ evenly over the steps, into ``path``.

    ``v ← keep v + γ (F - keep A v)``, ``θ ← θ - δt v``, with ``keep = 1-δt`` as in TANGO if
    ``damped``, else 1 as in the paper's proposition.
    """
    mu, s = START
    v, w = 0.0, 0.0
    keep = 1 - dt if damped else 1.0
    records = len(path) - 1
    path[0, 0], path[0, 1] = mu, s
    for k in range(1, steps + 1):
        a, p = M - mu, math.exp(-2 * s)
        v = keep * v + gamma * (-a * p - keep * p * v)
        w = keep * w + gamma * (1 - (TAU * TAU + a * a) * p - keep * 2 * w)
        mu -= dt * v
        s -= dt * w
        if k * records % steps == 0:
            path[k * records // steps, 0], path[k * records // steps, 1] = mu, s


def mean_and_covariance(
    gamma: float, dt: float, steps: int, *, curvature: bool = True
) -> tuple[Array, Array]:
    """Mean and covariance of θ after so many steps of TANGO, at a δt that is not infinitely small.

    One step maps ``x = (μ, s, v)`` to ``h(x) + L n``, n of covariance :func:`noise`. With the mean
    and the covariance P of x,

    ``E x ← h(E x) + ½ D²h:P``, ``P ← Dh P Dhᵀ + L N(E vvᵀ) Lᵀ``.

    In v this is exact, however large its noise; of θ's fluctuation, which is O(√δt), the third and
    higher powers are left out.

    Args:
        gamma: γ.
        dt: δt.
        steps: how many.
        curvature: whether D²h is used; what it changes shows what is still left out.
    """
    x, P = _mean_and_covariance(gamma, dt, steps, curvature)
    return x[:2], P[:2, :2]


@njit(cache=True)
def _mean_and_covariance(gamma, dt, steps, curvature):  # type: ignore[no-untyped-def]
    x, P = np.zeros(4), np.zeros((4, 4))
    x[0], x[1] = START
    J, JP, n, N = np.zeros((4, 4)), np.empty((4, 4)), np.empty((2, 2)), np.empty((4, 4))
    L = np.array([-dt * gamma, -dt * gamma, gamma, gamma])
    keep = 1 - dt
    for _ in range(steps):
        a, p = M - x[0], math.exp(-2 * x[1])
        q = (TAU * TAU + a * a) * p
        along = a + keep * x[2]
        h1, h2 = -p * along, 1 - q - 2 * keep * x[3]  # the bracket F - (1-δt) A v
        if curvature:
            h1 += -2 * p * P[0, 1] - 2 * p * along * P[1, 1] + 2 * keep * p * P[1, 2]
            h2 += -p * P[0, 0] - 4 * a * p * P[0, 1] - 2 * q * P[1, 1]
        J[2, 0], J[2, 1], J[2, 2] = gamma * p, gamma * 2 * p * along, keep * (1 - gamma * p)
        J[3, 0], J[3, 1], J[3, 3] = gamma * 2 * a * p, gamma * 2 * q, keep * (1 - 2 * gamma)
        for i in range(2):
            for j in range(4):
                J[i, j] = -dt * J[2 + i, j]
            J[i, i] += 1
        v11, v12, v22 = P[2, 2] + x[2] ** 2, P[2, 3] + x[2] * x[3], P[3, 3] + x[3] ** 2
        n[0, 0], n[0, 1], n[1, 1] = noise(x[0], x[1], v11, v12, v22, keep)
        n[1, 0] = n[0, 1]
        for i in range(4):
            for j in range(4):
                N[i, j] = L[i] * L[j] * n[i % 2, j % 2]
        _add_product(J, P, N, JP)
        P, N = N, P
        x[2] = keep * x[2] + gamma * h1
        x[3] = keep * x[3] + gamma * h2
        x[0] -= dt * x[2]
        x[1] -= dt * x[3]
    return x, P


@njit(cache=True)
def _add_product(J, P, to, JP):  # type: ignore[no-untyped-def]
    """``to += J P Jᵀ``; JP is room to work in."""
    d = len(P)
    for i in range(d):
        for j in range(d):
            JP[i, j] = 0.0
            for k in range(d):
                JP[i, j] += J[i, k] * P[k, j]
    for i in range(d):
        for j in range(d):
            for k in range(d):
                to[i, j] += JP[i, k] * J[j, k]
