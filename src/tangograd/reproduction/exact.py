"""Exact moments of TANGO's velocity, for models whose gradients have a known distribution.

At a fixed θ, with ``P = (1-δt)(I - γ F̂)``, the velocity obeys ``v_k = P_k v_{k-1} + γ g_k`` with
independent and identically distributed pairs (P_k, g_k). So its moments solve linear systems:

* mean: ``m = ((1-δt) E F̂ + (δt/γ) I)⁻¹ E g``, for any γ for which the next line holds;
* second moment: ``S = E[P S P] + γ E[P m gᵀ + g mᵀ P] + γ² E[g gᵀ]``, finite if and only if the
  spectral radius of ``S ↦ E[P S P]`` is below 1.

A :class:`Law` is the distribution of the gradients of one sample, as points and weights of a
cubature formula that is exact for the polynomials that occur. A :class:`Regression` gives the law
at every θ of a linear regression, where the moments of θ and v together obey a linear recursion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from tangograd.reproduction.models import EMPIRICAL, SAMPLED

Array = NDArray[np.float64]


def normals(n: int, points: int) -> tuple[list[Array], Array]:
    """Return points and weights of Gauss-Hermite quadrature for n standard normal variables.

    Exact for polynomials of degree up to ``2·points - 1`` in each variable.

    Example:
        >>> (z,), weights = normals(1, 5)
        >>> round(float(weights @ z**8), 9)
        105.0
    """
    x, w = hermegauss(points)
    grids = [np.asarray(grid).ravel() for grid in np.meshgrid(*[x] * n, indexing="ij")]
    weights = reduce(np.multiply.outer, [w / w.sum()] * n).ravel()
    return grids, weights


def cubature(d: int) -> tuple[Array, Array]:
    """Return points, shape (2d² + 1, d), and weights of a cubature formula for N(0, I).

    Exact for polynomials of total degree 5; for d > 4 some weights are negative (Stroud 1971).

    Example:
        >>> x, weights = cubature(6)
        >>> (weights @ x[:, 0] ** 4).round(9), (weights @ (x[:, 0] * x[:, 1]) ** 2).round(9)
        (np.float64(3.0), np.float64(1.0))
    """
    e, size = np.eye(d), np.sqrt(d + 2)
    i, j = np.triu_indices(d, 1)
    pairs = np.concatenate([e[i] + e[j], e[i] - e[j]]) * size / np.sqrt(2)
    half = np.concatenate([e * size, pairs])
    weights = np.repeat([(4 - d) / 2, 1.0], [d, d * (d - 1)]) / (d + 2) ** 2
    points = np.concatenate([half, -half, np.zeros((1, d))])
    return points, np.concatenate([weights, weights, [2 / (d + 2)]])


@dataclass(frozen=True)
class Law:
    """The joint distribution of g and F̂: points and weights of ``(g, g̃)``, and how a batch is used.

    g is the mean over the batch, and so is F̂ of ``g̃g̃ᵀ``; or, with ``rank_one`` and ``E g̃ = 0``,
    F̂ is B times the outer product of the mean of g̃.
    """

    g: Array  # gradients on data, shape (n, d)
    g_tilde: Array  # gradients on pseudo-samples, shape (n, d)
    weights: Array  # shape (n,)
    batch: int = 1
    rank_one: bool = False

    def changed(self, P: Array) -> Law:
        """Return the law in the coordinates φ with ``P = ∂θ/∂φ``, where gradients are ``Pᵀg``."""
        return replace(self, g=self.g @ P, g_tilde=self.g_tilde @ P)

    def mean(self, values: Array) -> Array:
        """Return the expectation of a function of one sample, given its value at each point."""
        return np.tensordot(self.weights, values, 1)

    @cached_property
    def fisher(self) -> Array:
        """``F = E g̃g̃ᵀ``."""
        return self._product(self.g_tilde, self.g_tilde)

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of F."""
        return float(np.linalg.eigvalsh(self.fisher)[0])

    @cached_property
    def gradient(self) -> Array:
        """``E g``."""
        return self.mean(self.g)

    @property
    def sigma2(self) -> float:
        """``σ² = E‖g‖²`` of one sample."""
        return float(self.mean((self.g**2).sum(1)))

    def power(self, k: int) -> float:
        """Return ``E‖g̃‖ᵏ`` of one sample for an even k; ``E‖g̃‖² = tr F``."""
        return float(self.mean((self.g_tilde**2).sum(1) ** (k // 2)))

    @cached_property
    def R2(self) -> float:  # noqa: N802
        """The smallest R² with ``E F̂² ≼ R² F``: the theorem needs ``γ ≤ 1/R²``."""
        second = self.sandwich(np.eye(len(self.gradient)))
        return float(eigh(second, self.fisher, eigvals_only=True)[-1])

    @property
    def kurtosis(self) -> float:
        """The largest ``E⟨g̃,u⟩⁴ / (E⟨g̃,u⟩²)²`` over directions u, on a grid of the plane."""
        angles = np.linspace(0, np.pi, 360, endpoint=False)
        along = self.g_tilde @ np.stack([np.cos(angles), np.sin(angles)])
        return float((self.mean(along**4) / self.mean(along**2) ** 2).max())

    def sandwich(self, S: Array) -> Array:
        """Return ``E[F̂ S F̂]`` for a symmetric S.

        It is ``K(S)/B + (1-1/B) FSF`` with ``K(S) = E[g̃g̃ᵀ S g̃g̃ᵀ]``. For rank one, the pairs of
        equal indices in ``B ḡ̃ḡ̃ᵀ = Σ g̃_i g̃_jᵀ/B`` also give ``(1-1/B)(FSF + tr(SF) F)``.
        """
        F, one = self.fisher, 1 / self.batch
        along = (self.g_tilde @ S * self.g_tilde).sum(1)
        pairs = F @ S @ F
        if self.rank_one:
            pairs = 2 * pairs + np.trace(S @ F) * F
        return one * self._product(along[:, None] * self.g_tilde, self.g_tilde) + (1 - one) * pairs

    @cached_property
    def quadratic(self) -> Array:
        """The matrix of :meth:`sandwich`, which maps vec S to vec E[F̂ S F̂]."""
        d = len(self.gradient)
        columns = [self.sandwich(S).ravel() for S in np.eye(d * d).reshape(-1, d, d)]
        return np.stack(columns, axis=1)

    @property
    def largest_gamma(self) -> float:
        """The γ from which on ``E‖v‖²`` is infinite at δt = 0.

        ``E[P S P] = S - γ L(S) + γ² Q(S)`` with ``L(S) = FS + SF``, ``Q(S) = E[F̂ S F̂]``, both
        positive on symmetric matrices, and the map keeps positive matrices positive, so that its
        radius is its largest eigenvalue: it passes 1 at ``γ = 1/λ_max(L⁻¹ Q)``, which is between
        ``2/R²`` (as ``Q(I) ≼ R² F``) and ``2 E‖g̃‖²/E‖g̃‖⁴`` (by taking ``S = I``).
        """
        return float(1 / eigh(self.quadratic, self._L, eigvals_only=True)[-1])

    def damped(self, gamma: float, dt: float = 0.0, C: Array | None = None) -> Array:
        """Return ``A = (1-δt) F + (δt/γ) C⁻¹``; C is diagonal, ones by default."""
        diagonal = np.ones(len(self.gradient)) if C is None else C
        return (1 - dt) * self.fisher + dt / gamma * np.diag(1 / diagonal)

    def limit(self, gamma: float, dt: float = 0.0, C: Array | None = None) -> Array:
        """Return the stationary mean of v, ``A⁻¹ E g``: the damped natural gradient."""
        return np.asarray(np.linalg.solve(self.damped(gamma, dt, C), self.gradient), np.float64)

    def means(self, gamma: float, steps: int, dt: float = 0.0) -> Array:
        """Return the mean of v after 0, …, ``steps`` steps from 0, ``(1 - ((1-δt)(1-γF))^k) m``."""
        values, Q = np.linalg.eigh(self.fisher)
        remaining = ((1 - dt) * (1 - gamma * values)) ** np.arange(steps + 1)[:, None]
        return np.asarray((1 - remaining) * (self.limit(gamma, dt) @ Q) @ Q.T)

    def propagator(self, gamma: float, dt: float = 0.0) -> Array:
        """Return the matrix of ``S ↦ E[P S P]``, which maps vec S to vec E[P S P]."""
        identity = np.eye(len(self._L))
        return (1 - dt) ** 2 * (identity - gamma * self._L + gamma**2 * self.quadratic)

    def radius(self, gamma: float, dt: float = 0.0) -> float:
        """Return the factor by which second moments grow in a step."""
        return float(np.abs(np.linalg.eigvals(self.propagator(gamma, dt))).max())

    def second_moment(self, gamma: float, dt: float = 0.0) -> Array:
        """Return the stationary ``E vvᵀ``; raise :class:`ValueError` if it is infinite."""
        if self.radius(gamma, dt) >= 1:
            raise ValueError(f"the second moment of v is infinite at gamma={gamma}")
        d, m, one = len(self.gradient), self.limit(gamma, dt), 1 / self.batch
        third = one * self._product((self.g_tilde @ m)[:, None] * self.g_tilde, self.g)
        third += (1 - one) * np.outer(self.fisher @ m, self.gradient)  # E[F̂ m gᵀ]
        cross = gamma * (1 - dt) * (np.outer(m, self.gradient) - gamma * third)
        square = one * self._product(self.g, self.g)
        square += (1 - one) * np.outer(self.gradient, self.gradient)  # E[g gᵀ]
        source = cross + cross.T + gamma**2 * square
        system = np.eye(d * d) - self.propagator(gamma, dt)
        return np.asarray(np.linalg.solve(system, source.ravel()), np.float64).reshape(d, d)

    def covariance(self, gamma: float) -> Array:
        """Return the stationary covariance W of v at δt = 0."""
        m = self.limit(gamma)
        return self.second_moment(gamma) - np.outer(m, m)

    def fluctuation(self, gamma: float) -> float:
        """Return the stationary ``E‖v-m‖²/‖m‖²`` at δt = 0, m the natural gradient."""
        return float(np.trace(self.covariance(gamma)) / (self.limit(gamma) ** 2).sum())

    def diffusion(self, gamma: float) -> Array:
        """Return the rate of variance of θ in units of δt, as δt → 0.

        The autocovariance of v is ``(I - γF)^k W``; its sum over all k is ``(F⁻¹W + WF⁻¹)/γ - W``.
        """
        W = self.covariance(gamma)
        half = np.linalg.solve(self.fisher, W) / gamma
        return np.asarray(half + half.T - W, np.float64)

    @cached_property
    def _L(self) -> Array:  # noqa: N802
        identity = np.eye(len(self.gradient))
        return np.kron(self.fisher, identity) + np.kron(identity, self.fisher)

    def _product(self, a: Array, b: Array) -> Array:
        return np.asarray((self.weights[:, None] * a).T @ b, np.float64)


def gaussian_law(mean: float = 0.0, theta: ArrayLike = (0.0, 0.0)) -> Law:
    """Return the law of :func:`~tangograd.stream.models.gaussian` at θ, on data from N(mean, 1)."""
    mu, sigma = np.asarray(theta)[0], np.exp(np.asarray(theta)[1])
    (y, z), weights = normals(2, 5)  # up to degree 8 in z, 4 in y
    residuals = ((mean + y - mu) / sigma, z)
    g, g_tilde = (np.stack([-x / sigma, 1 - x**2], axis=1) for x in residuals)
    return Law(g, g_tilde, weights)


def logistic_law(scales: Sequence[float], truth: Sequence[float], points: int = 24) -> Law:
    """Return the law of :func:`~tangograd.stream.models.logistic` at θ = 0, where ``g̃ = ±x/2``."""
    features, weights = normals(len(scales), points)
    x = np.stack(features, axis=1) * np.asarray(scales)
    p = 1 / (1 + np.exp(-x @ np.asarray(truth)))
    g = np.concatenate([x / 2, x / 2, -x / 2, -x / 2])  # the label is 0, 0, 1, 1
    g_tilde = np.concatenate([x / 2, -x / 2, x / 2, -x / 2])
    return Law(g, g_tilde, np.concatenate([1 - p, 1 - p, p, p]) * np.tile(weights / 2, 4))


def coin_law(p: float, q: float) -> Law:
    """Return the law of a coin of probability p, on data of probability q: ``g = p - y``."""
    y, y_tilde = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]])
    weights = np.where(y == 1, q, 1 - q) * np.where(y_tilde == 1, p, 1 - p)
    return Law((p - y)[:, None], (p - y_tilde)[:, None], weights)


@dataclass(frozen=True)
class Regression:
    """A linear regression ``y ~ N(⟨x, θ⟩, σ²)``: points and weights of one sample."""

    x: Array  # features, shape (n, d)
    noise: Array  # y - ⟨x, θ*⟩, shape (n,)
    factor: Array  # g̃ = factor · x, shape (n,)
    weights: Array  # shape (n,)
    sigma: float = 1.0

    @classmethod
    def gaussian(
        cls,
        covariance: ArrayLike,
        *,
        noise: float = 1.0,
        sigma: float = 1.0,
        kind: int = SAMPLED,
        offset: ArrayLike | None = None,
    ) -> Regression:
        """Return a regression on Gaussian features, with one of the Fisher estimates at ``θ* + δ``.

        The residual ``r = ⟨x, δ⟩ - noise`` at ``θ* + δ`` is Gaussian and ``x = a r + u`` with u
        independent of r, so that a product formula is exact up to degree 9 in r and 5 in u.

        Args:
            covariance: covariance of the features (a vector stands for a diagonal).
            noise: standard deviation of the noise in the data.
            sigma: standard deviation of the noise in the model.
            kind: SAMPLED, EXPECTED or EMPIRICAL, which is of degree 8 in r.
            offset: δ, zero by default.
        """
        phi = np.asarray(covariance, np.float64)
        phi = np.diag(phi) if phi.ndim == 1 else phi
        delta = np.zeros(len(phi)) if offset is None else np.asarray(offset, np.float64)
        variance = float(delta @ phi @ delta) + noise**2
        a = phi @ delta / variance
        values, Q = np.linalg.eigh(phi - variance * np.outer(a, a))
        u, u_weights = cubature(len(phi))
        (r,), r_weights = normals(1, 5)
        (z,), z_weights = normals(1, 3) if kind == SAMPLED else ([np.ones(1)], np.ones(1))
        points = reduce(np.multiply.outer, [r_weights, z_weights, u_weights]).ravel()
        r, z, i = np.meshgrid(r * np.sqrt(variance), z, np.arange(len(u)), indexing="ij")
        r, z = r.ravel(), z.ravel()
        x = np.outer(r, a) + (u * np.sqrt(np.maximum(values, 0)) @ Q.T)[i.ravel()]
        factor = r / sigma**2 if kind == EMPIRICAL else z / sigma
        return cls(x, x @ delta - r, factor, points, sigma)

    @classmethod
    def signs(cls, scales: ArrayLike, noise: float) -> Regression:
        """Return a regression on the features ±s_i, with pseudo-samples integrated out."""
        s = np.asarray(scales, np.float64)
        corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * (len(s) + 1))).reshape(len(s) + 1, -1).T
        n = len(corners)
        return cls(corners[:, 1:] * s, noise * corners[:, 0], np.ones(n), np.full(n, 1 / n))

    def law(self, offset: ArrayLike) -> Law:
        """Return the law of the gradients at ``θ* + offset``."""
        residual = self.x @ np.asarray(offset, np.float64) - self.noise
        g = residual[:, None] * self.x / self.sigma**2
        return Law(g, self.factor[:, None] * self.x, self.weights)

    def path(
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
        """Return ``E uuᵀ``, ``u = (v, e, 1)`` with ``e = θ - θ*``, after 0, …, ``steps`` steps.

        The shape is (steps + 1, 2d + 1, 2d + 1), v_0 is 0, e_0 is ``error``, and the options are
        those of :func:`~tangograd.stream.tango`. With ``w = ((1-δt) v, e, 1)`` a step is ``v' = G
        w`` for a matrix G that depends on the sample alone, and ``e' = e - δt v'``. So the second
        moments are multiplied by ``E[G⊗G]``, which for a mean over a batch is
        ``E[G⊗G]/B + (1-1/B) E G⊗E G``.
        """
        points, d = self.x.shape
        n = 2 * d + 1
        scaled = gamma * (np.ones(d) if C is None else np.asarray(C, np.float64))[:, None]
        outer = self.x[:, :, None] * self.x[:, None, :]
        G = np.zeros((points, n, n))
        G[:, np.arange(n), np.arange(n)] = 1.0
        G[:, :d, :d] -= scaled * self.factor[:, None, None] ** 2 * outer
        G[:, :d, d:-1] = scaled * outer / self.sigma**2
        G[:, :d, -1] = -scaled[:, 0] * self.noise[:, None] * self.x / self.sigma**2
        flat = G.reshape(points, -1)
        once = (self.weights[:, None] * flat).T @ flat
        twice = np.outer(mean := self.weights @ flat, mean)
        pairs = (once / batch + (1 - 1 / batch) * twice).reshape(n, n, n, n)
        K = pairs.swapaxes(1, 2).reshape(n * n, n * n)
        rates = np.broadcast_to(np.asarray(dt, np.float64), (steps + 1,))
        out, start = np.empty((steps + 1, n, n)), [*np.zeros(d), *np.asarray(error), 1.0]
        out[0] = np.outer(start, start)
        keep, move = np.ones(n), np.eye(n)
        for k in range(1, steps + 1):
            keep[:d] = 1 - rates[k - 1]
            move[d:-1, :d] = -np.eye(d) * (1.0 if accelerated else rates[k])
            moved = K @ (out[k - 1] * np.multiply.outer(keep, keep)).ravel()
            out[k] = move @ moved.reshape(n, n) @ move.T
        return out

    def excess(self, error: ArrayLike, **options: object) -> Array:
        """Return the expected excess loss after each step of a path, relative to the start's."""
        d = self.x.shape[1]
        squares = self.path(error, **options)[:, d:-1, d:-1]  # type: ignore[arg-type]
        excess = np.tensordot(squares, (self.weights[:, None] * self.x).T @ self.x, 2)
        return np.asarray(excess / excess[0])
