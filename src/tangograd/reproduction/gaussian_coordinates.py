"""A Gaussian model in several coordinates: its flow, and how TANGO fluctuates around it.

All formulas are in ``θ = (μ, ln σ)``. TANGO in other coordinates φ, with ``P = ∂θ/∂φ``, moves θ by
``P v``: as long as P hardly changes, it is TANGO in θ with the preconditioner ``P C Pᵀ``. So one
formula, with a preconditioner that depends on θ, covers preconditioned TANGO and other coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, stats

from tangograd.reproduction.gaussian_model import flow

Array = NDArray[np.float64]

LINEAR, STANDARD, NATURAL = 0.0, 1.0, 2.0


@njit(cache=True)
def gaussian_in(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """N(μ, σ²) on data from N(constants[1], constants[2]²), in the coordinates constants[0].

    0: φ with ``(μ, ln σ) = S φ``, S = constants[3:7]; 1: ``(μ, σ)``; 2: ``(μ/σ², -1/2σ²)``.
    """
    s00, s01, s10, s11 = constants[3], constants[4], constants[5], constants[6]
    mu = s00 * theta[0] + s01 * theta[1]
    sigma = math.exp(s10 * theta[0] + s11 * theta[1]) if constants[0] == 0 else theta[1]
    if constants[0] == 1:
        mu, s00, s01, s10, s11 = theta[0], 1.0, 0.0, 0.0, 1 / sigma
    elif constants[0] == 2:
        variance = -0.5 / theta[1]
        mu, sigma = variance * theta[0], math.sqrt(variance)
        s00, s01, s10, s11 = variance, 2 * mu * variance, 0.0, variance
    z = (constants[1] + constants[2] * rng.standard_normal() - mu) / sigma
    z_tilde = rng.standard_normal()
    a, b = -z / sigma, 1 - z * z
    g[0], g[1] = s00 * a + s10 * b, s01 * a + s11 * b
    a, b = -z_tilde / sigma, 1 - z_tilde * z_tilde
    g_tilde[0], g_tilde[1] = s00 * a + s10 * b, s01 * a + s11 * b


@dataclass(frozen=True)
class Coordinates:
    """Coordinates φ of the Gaussian.

    Attributes:
        name: for pictures.
        kind: of :func:`gaussian_in`.
        S: ``(μ, ln σ) = S φ``, for linear ones.
    """

    name: str
    kind: float
    S: ArrayLike = ((1.0, 0.0), (0.0, 1.0))

    def constants(self, mean: float) -> Array:
        """Of the model, on data from N(mean, 1)."""
        return np.array([self.kind, mean, 1.0, *np.ravel(self.S)])

    def encode(self, theta: ArrayLike) -> Array:
        """φ of ``θ = (μ, ln σ)``."""
        mu, log_sigma = np.asarray(theta, dtype=np.float64)
        if self.kind == LINEAR:
            return np.linalg.solve(np.asarray(self.S), np.array([mu, log_sigma]))
        if self.kind == STANDARD:
            return np.array([mu, np.exp(log_sigma)])
        precision = np.exp(-2 * log_sigma)
        return np.array([mu * precision, -precision / 2])

    def decode(self, phi: Array) -> Array:
        """θ of φ, for rows of φ."""
        if self.kind == LINEAR:
            return phi @ np.asarray(self.S, dtype=np.float64).T
        if self.kind == STANDARD:
            return np.stack([phi[:, 0], np.log(phi[:, 1])], axis=1)
        variance = -0.5 / phi[:, 1]
        return np.stack([phi[:, 0] * variance, np.log(variance) / 2], axis=1)

    def jacobian(self, theta: Array) -> Array:
        """``P = ∂θ/∂φ``."""
        mu, sigma = theta[0], np.exp(theta[1])
        if self.kind == LINEAR:
            return np.asarray(self.S, dtype=np.float64)
        if self.kind == STANDARD:
            return np.diag([1.0, 1 / sigma])
        return np.array([[1.0, 2 * mu], [0.0, 1.0]]) * float(sigma**2)


def fisher(theta: Array) -> Array:
    """diag(1/σ², 2)."""
    return np.diag([np.exp(-2 * theta[1]), 2.0])


def gradient_moments(theta: Array, mean: float) -> tuple[Array, Array]:
    """``E g`` and ``E g gᵀ`` of ``g = (-z/σ, 1-z²)``, ``z = (y-μ)/σ``, y from N(mean, 1)."""
    sigma = np.exp(theta[1])
    a, b = (mean - theta[0]) / sigma, 1 / sigma
    z = [1.0, a, a**2 + b**2, a**3 + 3 * a * b**2, a**4 + 6 * a**2 * b**2 + 3 * b**4]
    cross = (z[3] - z[1]) / sigma
    second = [[z[2] / sigma**2, cross], [cross, 1 - 2 * z[2] + z[4]]]
    return np.array([-z[1] / sigma, 1 - z[2]]), np.array(second)


def pseudo_gradients(theta: Array) -> tuple[Array, Array]:
    """Weights and values of g̃ that integrate polynomials of degree 7 in g̃ exactly."""
    z, weights = np.polynomial.hermite_e.hermegauss(8)
    sigma = np.exp(theta[1])
    return weights / weights.sum(), np.stack([-z / sigma, 1 - z**2], axis=1)


def diffusion(theta: Array, mean: float, gamma: float, C: Array) -> Array:
    """The rate of variance of θ in units of δt: ``F⁻¹ N F⁻¹`` for frozen θ and δt → 0.

    v has the mean ``F⁻¹ E g`` and the second moment M that one step of
    ``v' = v + γ C (g - g̃ g̃ᵀ v)`` leaves as it is. The noise of θ is what its martingale has,
    ``N = Cov(g - g̃ g̃ᵀ v) = E g gᵀ + E[g̃ g̃ᵀ M g̃ g̃ᵀ] - 2 E g E gᵀ``, as g and g̃ are independent.
    """
    F, (first, second) = fisher(theta), gradient_moments(theta, mean)
    weights, g_tilde = pseudo_gradients(theta)
    outer = g_tilde[:, :, None] * g_tilde[:, None, :]
    average = np.linalg.solve(F, first)
    maps = np.eye(2) - gamma * C @ outer
    kron = np.einsum("n,nij,nkl->ikjl", weights, maps, maps).reshape(4, 4)
    if np.abs(np.linalg.eigvals(kron)).max() >= 1:
        raise ValueError(f"the velocity has no second moment at γ = {gamma}")
    push = gamma * np.outer(C @ first, average - gamma * C @ first)
    source = gamma**2 * C @ second @ C + push + push.T
    M = np.linalg.solve(np.eye(4) - kron, source.ravel()).reshape(2, 2)
    noise = second - 2 * np.outer(first, first)
    noise += np.einsum("n,nij,jk,nkl->il", weights, outer, M, outer)
    return np.linalg.solve(F, np.linalg.solve(F, noise).T)


def _derivative(theta: Array, mean: float) -> Array:
    """Of the flow's velocity ``(m-μ, ((1+(m-μ)²)/σ² - 1)/2)`` with respect to θ."""
    gap, precision = mean - theta[0], np.exp(-2 * theta[1])
    return np.array([[-1.0, 0.0], [-gap * precision, -(1 + gap**2) * precision]])


def spread(time: float, mean: float, gamma: float, C: Callable[[Array], Array]) -> Array:
    """The covariance of TANGO's θ around the flow at a time, divided by δt, as δt → 0.

    ``Σ' = A Σ + Σ Aᵀ + diffusion``, A the derivative of the flow's velocity.
    """

    def slope(t: float, packed: Array) -> Array:
        theta, sigma = flow(t, mean), packed.reshape(2, 2)
        A = _derivative(theta, mean)
        rate: Array = A @ sigma + sigma @ A.T + diffusion(theta, mean, gamma, C(theta))
        return rate.ravel()

    solution = integrate.solve_ivp(slope, (0, time), np.zeros(4), rtol=1e-3, atol=1e-6)
    end: Array = solution.y[:, -1].reshape(2, 2)
    return end


def lag(time: float, mean: float, gamma: float, P: Callable[[Array], Array]) -> Array:
    """How far TANGO's mean is from the flow at a time, divided by δt, to the order 1/γ.

    In the coordinates φ with ``P = ∂θ/∂φ`` and no other preconditioner, v needs time to follow:
    ``v̇ δt = γ (E g - F v) - δt v``, so ``v = v̄ - (δt/γ) F⁻¹ (v̄ + dv̄/dt)`` with ``v̄ = F⁻¹ E g``, and
    while it starts from 0 a way of ``(δt/γ) F⁻¹ v̄`` is not gone. In θ the displacement b obeys
    ``b' = A b + γ⁻¹ F⁻¹ P⁻ᵀ (w + dw/dt)``, ``b(0) = γ⁻¹ F⁻¹ P⁻ᵀ w``, with ``w = P⁻¹ v̄``.
    """

    def velocity(t: float) -> Array:
        theta = flow(t, mean)
        natural = np.linalg.solve(fisher(theta), gradient_moments(theta, mean)[0])
        return np.linalg.solve(P(theta), natural)

    def pull(t: float, w: Array) -> Array:
        theta = flow(t, mean)
        return np.linalg.solve(fisher(theta), np.linalg.solve(P(theta).T, w)) / gamma

    def slope(t: float, b: Array) -> Array:
        change = (velocity(t + 1e-5) - velocity(t - 1e-5)) / 2e-5
        rate: Array = _derivative(flow(t, mean), mean) @ b + pull(t, velocity(t) + change)
        return rate

    start = pull(0, velocity(0))
    solution = integrate.solve_ivp(slope, (0, time), start, rtol=1e-3, atol=1e-6)
    end: Array = solution.y[:, -1]
    return end


def distance(theta: Array, time: float, mean: float) -> Array:
    """Of rows of θ to the flow at a time, in Fisher's metric there: ``√(eᵀ F e)``."""
    centre = flow(time, mean)
    error = theta - centre
    length: Array = np.sqrt(np.einsum("ni,ij,nj->n", error, fisher(centre), error))
    return length


def median_distance(
    time: float, mean: float, gamma: float, P: Callable[[Array], Array], dt: float
) -> float:
    """The median of that distance for TANGO at a small δt, in the coordinates with ``P = ∂θ/∂φ``.

    Errors are Gaussian, with the mean ``δt lag`` and the covariance ``δt spread``; the median is
    that of a grid of equally probable points.
    """
    covariance = spread(time, mean, gamma, lambda theta: P(theta) @ P(theta).T)
    normal = stats.norm.ppf((np.arange(200) + 0.5) / 200)
    grid = np.stack(np.meshgrid(normal, normal), axis=-1).reshape(-1, 2)
    error = np.sqrt(dt) * grid @ np.linalg.cholesky(covariance).T + dt * lag(time, mean, gamma, P)
    return float(np.median(distance(flow(time, mean) + error, time, mean)))


def thinned(path: Array, apart: float = 0.02) -> Array:
    """A path to be drawn: without the points that are nearer than that to the last one kept."""
    kept = [path[0]]
    for point in path[1:]:
        if np.abs(point - kept[-1]).max() >= apart:
            kept.append(point)
    return np.array(kept)
