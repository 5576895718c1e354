"""Exact moments of the velocity at a fixed θ, for models whose gradients have a known law.

At a fixed θ, with ``P = (1-δt)(I - γ g̃g̃ᵀ)``, the velocity obeys ``v_k = P_k v_{k-1} + γ g_k``, the
pairs (P_k, g_k) independent of each other and of one law. So its moments obey linear recursions
without noise, and where a moment is finite it is the solution of a linear system:

* mean: ``m = ((1-δt) F + (δt/γ) I)⁻¹ E g``, for any γ for which the next line holds;
* second moment: ``S = E[P S P] + γ E[P m gᵀ + g mᵀ P] + γ² E[g gᵀ]``, finite if and only if the
  spectral radius of ``S ↦ E[P S P]`` is below 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

Array = NDArray[np.float64]

HUGE = 1e9


@dataclass(frozen=True)
class Law:
    """The joint law of the gradients ``(g, g̃)`` of one sample: points and probabilities.

    Attributes:
        g: gradients on data, shape (n, d).
        g_tilde: gradients on pseudo-samples, shape (n, d).
        weights: probabilities, shape (n,).
    """

    g: Array
    g_tilde: Array
    weights: Array

    def mean(self, values: Array) -> Array:
        """The expectation of a function of the sample, given at each point."""
        return np.tensordot(self.weights, values, 1)

    @cached_property
    def fisher(self) -> Array:
        """``F = E g̃g̃ᵀ``."""
        return self.mean(outer(self.g_tilde, self.g_tilde))

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
        """``σ² = E‖g‖²``."""
        return float(self.mean(_squares(self.g)))

    @property
    def squared_norm(self) -> float:
        """``E‖g̃‖² = tr F``."""
        return float(self.mean(_squares(self.g_tilde)))

    @property
    def fourth_power(self) -> float:
        """``E‖g̃‖⁴``."""
        return float(self.mean(_squares(self.g_tilde) ** 2))

    @property
    def R2(self) -> float:  # noqa: N802
        """The smallest R² with ``E[‖g̃‖² g̃g̃ᵀ] ≼ R² F``: the theorem needs ``γ ≤ 1/R²``."""
        second = self.mean(
            _squares(self.g_tilde)[:, None, None] * outer(self.g_tilde, self.g_tilde)
        )
        return float(eigh(second, self.fisher, eigvals_only=True)[-1])

    @property
    def kurtosis(self) -> float:
        """The largest ``E⟨g̃,u⟩⁴ / (E⟨g̃,u⟩²)²`` over directions u, on a grid of the plane."""
        angles = np.linspace(0, np.pi, 360, endpoint=False)
        along = self.g_tilde @ np.stack([np.cos(angles), np.sin(angles)])
        return float((self.mean(along**4) / self.mean(along**2) ** 2).max())

    @cached_property
    def quadratic(self) -> Array:
        """The matrix of ``Q(S) = E[g̃g̃ᵀ S g̃g̃ᵀ]``, which maps vec S to vec Q(S)."""
        pairs = outer(self.g_tilde, self.g_tilde).reshape(len(self.weights), -1)
        return (self.weights[:, None] * pairs).T @ pairs  # E g̃_i g̃_j g̃_k g̃_l, in any order

    @property
    def largest_gamma(self) -> float:
        """The γ from which on ``E‖v‖²`` is infinite at δt = 0.

        ``E[P S P] = S - γ L(S) + γ² Q(S)`` with ``L(S) = FS + SF``, ``Q(S) = E[g̃g̃ᵀ S g̃g̃ᵀ]``, both
        positive on symmetric matrices, and the map keeps positive matrices positive, so that its
        radius is its largest eigenvalue: it passes 1 at ``γ = 1/λ_max(L⁻¹ Q)``. As ``Q(I) ≼ R² F``
        and by taking ``S = I``, that is between ``2/R²`` and ``2 E‖g̃‖²/E‖g̃‖⁴``.
        """
        return float(1 / eigh(self.quadratic, self._L, eigvals_only=True)[-1])

    def damped(self, gamma: float, dt: float = 0.0) -> Array:
        """``A = (1-δt) F + (δt/γ) I``."""
        return (1 - dt) * self.fisher + dt / gamma * np.eye(len(self.gradient))

    def limit(self, gamma: float, dt: float = 0.0) -> Array:
        """The mean of v, ``A⁻¹ E g``: the damped natural gradient."""
        return np.asarray(np.linalg.solve(self.damped(gamma, dt), self.gradient), np.float64)

    def propagator(self, gamma: float, dt: float = 0.0) -> Array:
        """The matrix of ``S ↦ E[P S P]``, which maps vec S to vec E[P S P]."""
        identity = np.eye(len(self._L))
        return (1 - dt) ** 2 * (identity - gamma * self._L + gamma**2 * self.quadratic)

    def radius(self, gamma: float, dt: float = 0.0) -> float:
        """By how much second moments grow in a step."""
        return float(np.abs(np.linalg.eigvals(self.propagator(gamma, dt))).max())

    def second_moment(self, gamma: float, dt: float = 0.0) -> Array:
        """``E vvᵀ`` when v has forgotten its start.

        Raises:
            ValueError: where it is infinite.
        """
        if self.radius(gamma, dt) >= 1:
            raise ValueError(f"the second moment of v is infinite at gamma={gamma}")
        d, m = len(self.gradient), self.limit(gamma, dt)
        cross = gamma * (1 - dt) * (np.outer(m, self.gradient) - gamma * self._third @ m)
        source = cross + cross.T + gamma**2 * self.mean(outer(self.g, self.g))
        system = np.eye(d * d) - self.propagator(gamma, dt)
        return np.asarray(np.linalg.solve(system, source.ravel()), np.float64).reshape(d, d)

    @cached_property
    def _L(self) -> Array:  # noqa: N802
        identity = np.eye(len(self.gradient))
        return np.kron(self.fisher, identity) + np.kron(identity, self.fisher)

    @cached_property
    def _third(self) -> Array:
        """``E g̃_i g_j g̃_k``."""
        return self.mean(np.einsum("ni,nj,nk->nijk", self.g_tilde, self.g, self.g_tilde))


def outer(a: Array, b: Array) -> Array:
    """``a bᵀ`` at each point."""
    return a[:, :, None] * b[:, None, :]


def _squares(x: Array) -> Array:
    return np.asarray((x**2).sum(1))


def normals(n: int, points: int) -> tuple[list[Array], Array]:
    """Gauss-Hermite quadrature for n standard normal variables.

    Exact for polynomials of degree up to ``2·points - 1`` in each.

    Returns:
        The variables at all points, and the probabilities.

    Example:
        >>> (z,), weights = normals(1, 5)
        >>> round(float(weights @ z**8), 9)
        105.0
    """
    x, w = hermegauss(points)
    grids = [np.asarray(grid).ravel() for grid in np.meshgrid(*[x] * n, indexing="ij")]
    weights = reduce(np.multiply.outer, [w / w.sum()] * n).ravel()
    return grids, weights


def gaussian_law(mean: float = 0.0) -> Law:
    """:func:`~tangograd.stream.models.gaussian` at (0, 0), on data from N(mean, 1)."""
    (y, z), weights = normals(2, 5)  # up to degree 8 in z, 4 in y
    g, g_tilde = (np.stack([-x, 1 - x**2], axis=1) for x in (y + mean, z))
    return Law(g, g_tilde, weights)


def linear_law(scales: Sequence[float], offset: Sequence[float]) -> Law:
    """:func:`~tangograd.stream.models.linear`, σ = noise = 1, at the truth plus an offset."""
    (*features, noise, z), weights = normals(len(scales) + 2, 3)  # up to degree 4 in each
    x = np.stack(features, axis=1) * np.asarray(scales)
    return Law((x @ np.asarray(offset) - noise)[:, None] * x, z[:, None] * x, weights)


def logistic_law(scales: Sequence[float], truth: Sequence[float], points: int = 24) -> Law:
    """:func:`~tangograd.stream.models.logistic` at θ = 0, where ``g̃ = ±x/2``, as Gaussian as x."""
    features, weights = normals(len(scales), points)
    x = np.stack(features, axis=1) * np.asarray(scales)
    p = 1 / (1 + np.exp(-x @ np.asarray(truth)))
    cases = [
        ((0.5 - y) * x, (0.5 - y_tilde) * x, weights * (p if y else 1 - p) / 2)
        for y in (0, 1)
        for y_tilde in (0, 1)
    ]
    g, g_tilde, probabilities = (np.concatenate(parts) for parts in zip(*cases, strict=True))
    return Law(g, g_tilde, probabilities)


def bernoulli_law(p: float, q: float) -> Law:
    """A coin of probability p in its logit, ``g = p - y``, on data of probability q."""
    y, y_tilde = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0])
    weights = np.where(y == 1, q, 1 - q) * np.where(y_tilde == 1, p, 1 - p)
    return Law((p - y)[:, None], (p - y_tilde)[:, None], weights)


def finite(v: ArrayLike) -> Array:
    """What has diverged stays a number, and large."""
    return np.clip(np.nan_to_num(np.asarray(v, np.float64), nan=HUGE), -HUGE, HUGE)
