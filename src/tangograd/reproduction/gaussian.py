"""The Gaussian model: natural gradient flow, and exact and asymptotic moments of TANGO on it.

``θ = (μ, s)`` with ``s = ln σ``; the data are from N(m, 1). With ``a = m-μ``, ``p = e⁻²ˢ`` and
``q = (1+a²) p``, one step of TANGO, ``v ← (1-δt) v + γ [ĝ - (1-δt) Â v]``, has

* the mean gradient ``(-a p, 1-q)`` and the Fisher matrix ``A = diag(p, 2)``, so that the natural
  gradient is ``f = (-a, (1-q)/2)``;
* the noise ``ξ - (1-δt) ζ``, ``ξ = ĝ - E ĝ`` and ``ζ = (Â - A) v``, of covariance :func:`noise`.

There are three levels of detail: the exact flow, to which TANGO converges (:func:`flow`); the first
terms of the difference, as δt → 0 (:func:`expansion`); and moments at a given δt (:func:`moments`).

TANGO in other coordinates φ, with ``P = ∂θ/∂φ``, moves θ by ``P v``. As long as P hardly changes,
it is TANGO in θ with the preconditioner ``P Pᵀ``, so that one formula covers both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy import stats
from scipy.integrate import solve_ivp

from tangograd.reproduction import figures as fig
from tangograd.reproduction.exact import Array, gaussian_law
from tangograd.reproduction.models import AFFINE, STANDARD
from tangograd.stream import Run, models

Jacobian = Callable[[Array], Array]  # P at θ

M, TAU = 10.0, 1.0  # the data of Figure 1
START = (0.0, 0.0)


def flow(t: float | Array, mean: float = M) -> Array:
    """Return the natural gradient flow from N(0, 1) to N(mean, 1) at time t, in ``(μ, ln σ)``.

    The moments ``E y`` and ``E y²`` of the model decay exponentially to the data's, so
    ``μ = m (1-e⁻ᵗ)`` and ``σ² = 1 + m² e⁻ᵗ (1-e⁻ᵗ)``.
    """
    decay = np.exp(-np.asarray(t, dtype=np.float64))
    variance = 1 + mean**2 * decay * (1 - decay)
    return np.stack([mean * (1 - decay), np.log(variance) / 2], axis=-1)


def half_plane(theta: Array) -> Array:
    """Return rows (μ, σ) of rows (μ, ln σ)."""
    return np.stack([theta[:, 0], np.exp(theta[:, 1])], axis=1)


def half_plane_panel(*paths: fig.Mark, mean: float = M, **options: Any) -> fig.Panel:
    """Return a panel with paths in (μ, σ), beside the natural gradient's and its two ends."""
    way = fig.path(circle(mean), fig.GREY, "natural gradient", 6)
    ends = fig.points(0, 1, fig.RED), fig.points(mean, 1, fig.RED, marker="*", size=10.0)
    return fig.panel(way, *paths, *ends, xlabel="μ", ylabel="σ", **options)


def circle(mean: float = M) -> Array:
    """Return (μ, σ) along the natural gradient's path, until it is within e⁻¹⁰ of its end."""
    return half_plane(flow(-np.log(np.linspace(1, math.exp(-10), 1000)), mean))


def deviation(path: Array) -> float:
    """Return the largest distance of a path in (μ, σ) from the circle ``(μ-5)² + σ² = 26``."""
    return float(np.abs(np.hypot(path[:, 0] - M / 2, path[:, 1]) - math.sqrt(26)).max())


def natural_gradient(theta: Array, mean: float = M) -> Array:
    """Return ``f``."""
    a, p = mean - theta[0], math.exp(-2 * theta[1])
    return np.array([-a, (1 - (1 + a * a) * p) / 2])


def derivative(theta: Array, mean: float = M) -> Array:
    """Return the derivative ``Df`` of the natural gradient with respect to θ."""
    a, p = mean - theta[0], math.exp(-2 * theta[1])
    return np.array([[1.0, 0.0], [a * p, (1 + a * a) * p]])


def fisher(theta: Array) -> Array:
    """Return the diagonal of A."""
    return np.array([math.exp(-2 * theta[1]), 2.0])


def run(method: Callable[..., Run], rng: np.random.Generator, **options: Any) -> Run:
    """Run ``tango`` or ``averaged_sgd`` on the data of Figure 1, from N(0, 1) by default."""
    options = {"theta": START, "constants": (M, TAU)} | options
    return method(models.gaussian, rng=rng, **options)


def gradient_flow(
    time: float, mean: float = M, P: Jacobian = lambda _: np.eye(2), rate: float = 1.0
) -> Array:
    """Return SGD and averaged SGD without noise; rows (t, fast μ, ln σ, μ, ln σ).

    ``dθ_fast/dt = -rate · P Pᵀ A f(θ_fast)`` with ``P = ∂θ/∂φ`` in other coordinates φ, and
    ``dθ/dt = θ_fast - θ``; averaged SGD has the rate γ/δt.
    """

    def slope(_: float, y: Array) -> Array:
        jacobian, gradient = P(y), fisher(y) * natural_gradient(y, mean)
        return np.concatenate([-rate * jacobian @ jacobian.T @ gradient, y[:2] - y[2:]])

    times = time * np.linspace(0, 1, 4001) ** 3  # more of them where it is fast
    options: dict[str, Any] = {"method": "LSODA", "t_eval": times, "rtol": 1e-8, "atol": 1e-9}
    solution = solve_ivp(slope, (0, time), 2 * START, **options)
    return np.column_stack([times, solution.y.T])


@njit(cache=True)
def noise(mu, s, v11, v12, v22, keep):  # type: ignore[no-untyped-def]
    """Return the covariance of ``ξ - (1-δt) ζ`` for a given E vvᵀ: its elements 11, 12 and 22.

    ``Cov ξ + (1-δt)² E[(g̃g̃ᵀ-A) vvᵀ (g̃g̃ᵀ-A)]``; with ``g̃ = (-z/σ, 1-z²)`` and z normal, the fourth
    moments are ``E g̃₁⁴ = 3p²``, ``E g̃₁²g̃₂² = 10p``, ``E g̃₂⁴ = 60``, and odd ones vanish.
    """
    a, p = M - mu, math.exp(-2 * s)
    k = keep * keep
    return (
        p * p + k * (2 * p * p * v11 + 10 * p * v22),
        2 * a * p * p + k * 18 * p * v12,
        2 * p * p + 4 * a * a * p * p + k * (10 * p * v11 + 56 * v22),
    )


class Expansion(NamedTuple):
    """``θ_{T/δt} - θ(T) ≈ √δt N(0, S) + δt b`` as δt → 0."""

    b: Array
    S: Array


def expansion(gamma: float, time: float, *, noisy: bool = True, damped: bool = True) -> Expansion:
    """Return the first terms of TANGO's difference from the flow.

    Write ``θ = θ(t) + x`` and average over the fast v, whose covariance is W, with f, A and W taken
    at θ(t). To first order in δt the moments of x, v and ``x vᵀ`` close:

    * ``S' = -Df S - S Dfᵀ + D``, D the diffusion: the linearised stochastic differential equation
      with the noise ``A⁻¹(ξ-ζ)``;
    * ``b' = -Df b - ½ D²f:S - A⁻¹ Σᵢ ∂ᵢA (W A⁻¹)ᵢ/γ + A⁻¹(I/γ - A) f - A⁻¹ Df f/γ + ½ Df f``: the
      curvature of f, the correlation of θ and v, the damping δt/γ, the lag of v, and Euler's steps;
    * ``b(0) = ((γA)⁻¹ - I) f``, since v starts at 0 and not at f.

    Without noise S = W = 0, and undamped there is no damping, as in :func:`moments`.
    """

    def change(t: float, y: Array) -> Array:
        theta, b, S = flow(t), y[:2], y[2:].reshape(2, 2)
        f, A, Df = natural_gradient(theta), fisher(theta), derivative(theta)
        p, (ap, q) = A[0], Df[1]
        D2f = np.array([[-p, -2 * ap], [-2 * ap, -2 * q]])  # of f₂; that of f₁ is 0
        law, nothing = gaussian_law(M, theta), np.zeros((2, 2))
        W, D = (law.covariance(gamma), law.diffusion(gamma)) if noisy else (nothing, nothing)
        curvature = np.array([0.0, (D2f * S).sum() / 2])
        correlation = np.array([-2 * p * W[1, 0] / A[0], 0.0]) / (gamma * A)  # ∂A/∂s = diag(-2p, 0)
        damping = (1 / gamma - A) * f / A if damped else 0.0
        lag = Df @ f / (gamma * A)
        db = -Df @ b - curvature - correlation + damping - lag + Df @ f / 2
        dS = D - Df @ S - S @ Df.T
        return np.concatenate([db, dS.ravel()])

    b = (1 / (gamma * fisher(flow(0))) - 1) * natural_gradient(flow(0))
    y = solve_ivp(change, (0, time), [*b, 0, 0, 0, 0], "LSODA", rtol=1e-9, atol=1e-9).y[:, -1]
    return Expansion(y[:2], y[2:].reshape(2, 2))


def moments(
    gamma: float,
    dt: float,
    steps: int,
    *,
    noisy: bool = True,
    curvature: bool = True,
    damped: bool = True,
) -> tuple[Array, Array]:
    """Return mean and covariance of θ after so many steps of TANGO, without random numbers.

    One step maps ``x = (μ, s, v)`` to ``h(x) + L n``, n of covariance :func:`noise`. With the mean
    and the covariance P of x,

    ``E x ← h(E x) + ½ D²h:P``, ``P ← Dh P Dhᵀ + L N(E vvᵀ) Lᵀ``.

    In v this is exact, however large its noise; of θ's fluctuation, which is O(√δt), the third and
    higher powers are left out.

    Args:
        gamma: γ.
        dt: δt.
        steps: number of steps.
        noisy: whether gradients and Fisher matrices are sampled; if not, P = 0.
        curvature: whether D²h is used; its effect bounds that of the terms left out.
        damped: whether v has TANGO's factors 1-δt, which the paper's proposition leaves out.
    """
    keep = 1 - dt if damped else 1.0
    x, P = _moments(gamma, dt, steps, noisy, curvature, keep)
    return x[:2], P[:2, :2]


@njit(cache=True)
def _moments(gamma, dt, steps, noisy, curvature, keep):  # type: ignore[no-untyped-def]
    x, P, N = np.zeros(4), np.zeros((4, 4)), np.empty((4, 4))
    J, JP, n = np.zeros((4, 4)), np.empty((4, 4)), np.empty((2, 2))
    L = np.array([-dt * gamma, -dt * gamma, gamma, gamma])
    for _ in range(steps):
        a, p = M - x[0], math.exp(-2 * x[1])
        q = (1 + a * a) * p
        along = a + keep * x[2]
        h1, h2 = -p * along, 1 - q - 2 * keep * x[3]  # E ĝ - (1-δt) A v
        if noisy and curvature:
            h1 += -2 * p * P[0, 1] - 2 * p * along * P[1, 1] + 2 * keep * p * P[1, 2]
            h2 += -p * P[0, 0] - 4 * a * p * P[0, 1] - 2 * q * P[1, 1]
        if noisy:
            J[2, 0], J[2, 1], J[2, 2] = gamma * p, gamma * 2 * p * along, keep * (1 - gamma * p)
            J[3, 0], J[3, 1], J[3, 3] = gamma * 2 * a * p, gamma * 2 * q, keep * (1 - 2 * gamma)
            for i in range(2):
                for j in range(4):
                    J[i, j] = (i == j) - dt * J[2 + i, j]
            v11, v12, v22 = P[2, 2] + x[2] ** 2, P[2, 3] + x[2] * x[3], P[3, 3] + x[3] ** 2
            n[0, 0], n[0, 1], n[1, 1] = noise(x[0], x[1], v11, v12, v22, keep)
            n[1, 0] = n[0, 1]
            for i in range(4):
                for j in range(4):
                    N[i, j] = L[i] * L[j] * n[i % 2, j % 2]
                    JP[i, j] = 0.0
                    for k in range(4):
                        JP[i, j] += J[i, k] * P[k, j]
            for i in range(4):
                for j in range(4):
                    for k in range(4):
                        N[i, j] += JP[i, k] * J[j, k]
            P, N = N, P
        x[2] = keep * x[2] + gamma * h1
        x[3] = keep * x[3] + gamma * h2
        x[0] -= dt * x[2]
        x[1] -= dt * x[3]
    return x, P


@dataclass(frozen=True)
class Coordinates:
    """Coordinates φ of the Gaussian: AFFINE ones, with ``(μ, ln σ) = S φ``, STANDARD or NATURAL."""

    name: str
    kind: int
    S: ArrayLike = ((1.0, 0.0), (0.0, 1.0))

    def constants(self, mean: float) -> Array:
        """Return the constants of the model on data from N(mean, 1)."""
        return np.array([self.kind, mean, 1.0, *np.ravel(self.S)])

    @property
    def start(self) -> tuple[float, float]:
        """N(0, 1) in these coordinates."""
        return {AFFINE: (0.0, 0.0), STANDARD: (0.0, 1.0)}.get(self.kind, (0.0, -0.5))

    def decode(self, phi: Array) -> Array:
        """Return rows θ of rows φ."""
        if self.kind == AFFINE:
            return phi @ np.asarray(self.S, dtype=np.float64).T
        if self.kind == STANDARD:
            return np.stack([phi[:, 0], np.log(phi[:, 1])], axis=1)
        variance = -0.5 / phi[:, 1]
        return np.stack([phi[:, 0] * variance, np.log(variance) / 2], axis=1)

    def jacobian(self, theta: Array) -> Array:
        """Return ``P = ∂θ/∂φ``."""
        mu, sigma = theta[0], np.exp(theta[1])
        if self.kind == AFFINE:
            return np.asarray(self.S, dtype=np.float64)
        if self.kind == STANDARD:
            return np.diag([1.0, 1 / sigma])
        return np.array([[1.0, 2 * mu], [0.0, 1.0]]) * float(sigma**2)


def spread(time: float, mean: float, gamma: float, P: Jacobian) -> Array:
    """Return the covariance of θ around the flow, divided by δt, as δt → 0, with ``P = ∂θ/∂φ``.

    ``S' = -Df S - S Dfᵀ + P D Pᵀ``, D the diffusion in the coordinates φ.
    """

    def slope(t: float, packed: Array) -> Array:
        theta, S = flow(t, mean), packed.reshape(2, 2)
        Df, jacobian = derivative(theta, mean), P(theta)
        D = gaussian_law(mean, theta).changed(jacobian).diffusion(gamma)
        return np.asarray(jacobian @ D @ jacobian.T - Df @ S - S @ Df.T).ravel()

    solution = solve_ivp(slope, (0, time), np.zeros(4), rtol=1e-3, atol=1e-6)
    return np.asarray(solution.y[:, -1]).reshape(2, 2)


def lag(time: float, mean: float, gamma: float, P: Jacobian) -> Array:
    """Return the distance of TANGO's mean from the flow, divided by δt, to the order 1/γ.

    In the coordinates φ with ``P = ∂θ/∂φ``, v follows with a delay:
    ``v̇ δt = γ (E g - F v) - δt v``, so ``v = v̄ - (δt/γ) F⁻¹ (v̄ + dv̄/dt)`` with ``v̄ = F⁻¹ E g``, and
    as it starts from 0 the distance ``(δt/γ) F⁻¹ v̄`` is missing. In θ the displacement b obeys
    ``b' = -Df b + γ⁻¹ A⁻¹ P⁻ᵀ (w + dw/dt)``, ``b(0) = γ⁻¹ A⁻¹ P⁻ᵀ w``, with ``w = P⁻¹ f``.
    """

    def velocity(t: float) -> Array:
        theta = flow(t, mean)
        return np.asarray(np.linalg.solve(P(theta), natural_gradient(theta, mean)))

    def pull(theta: Array, w: Array) -> Array:
        return np.asarray(np.linalg.solve(P(theta).T, w) / fisher(theta) / gamma)

    def slope(t: float, b: Array) -> Array:
        theta, change = flow(t, mean), (velocity(t + 1e-5) - velocity(t - 1e-5)) / 2e-5
        return np.asarray(pull(theta, velocity(t) + change) - derivative(theta, mean) @ b)

    solution = solve_ivp(slope, (0, time), pull(flow(0, mean), velocity(0)), rtol=1e-3, atol=1e-6)
    return np.asarray(solution.y[:, -1])


def distance(theta: Array, time: float, mean: float) -> Array:
    """Return the distances of rows of θ to the flow, in Fisher's metric there: ``√(eᵀ A e)``."""
    centre = flow(time, mean)
    return np.asarray(np.sqrt((theta - centre) ** 2 @ fisher(centre)))


def median_distance(time: float, mean: float, gamma: float, P: Jacobian, dt: float) -> float:
    """Return the median of that distance for TANGO at a small δt, with ``P = ∂θ/∂φ``.

    Errors are Gaussian, with the mean ``δt lag`` and the covariance ``δt spread``; the median is
    that of a grid of equally probable points.
    """
    normal = stats.norm.ppf((np.arange(200) + 0.5) / 200)
    grid = np.stack(np.meshgrid(normal, normal), axis=-1).reshape(-1, 2)
    root = np.linalg.cholesky(spread(time, mean, gamma, P))
    error = np.sqrt(dt) * grid @ root.T + dt * lag(time, mean, gamma, P)
    return float(np.median(distance(flow(time, mean) + error, time, mean)))
