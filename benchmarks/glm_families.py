"""The families of the GLM benchmarks: loss, derivatives, Fisher matrix, and how to draw.

Nothing is shared with ``tangograd.glm``: the formulas are written anew. The loss is minus the
log-likelihood at dispersion 1, and convex in the linear predictor η, of shape (rows, outcomes): one
outcome for a regression, classes - 1 for several classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]


class Family:
    """One outcome, with dispersion 1 unless ``free``; subclasses give the formulas."""

    outcomes = 1
    free = False  # the dispersion is estimated
    drawn_dispersion = 1.0  # that of sample()
    log_link = False

    def loss(self, eta: Array, y: Array) -> Array:
        """Minus log-likelihood of each row, up to what does not depend on η; shape (rows,)."""
        return self._loss(eta[:, 0], y)

    def slope(self, eta: Array, y: Array) -> Array:
        """Its derivative by η, shape (rows, outcomes)."""
        return self._slope(eta[:, 0], y)[:, None]

    def curvature(self, eta: Array, y: Array) -> Array:
        """Its second derivative, shape (rows, outcomes, outcomes)."""
        return self._curvature(eta[:, 0], y)[:, None, None]

    def fisher(self, eta: Array) -> Array:
        """The mean of the curvature over y, the same shape."""
        return self._fisher(eta[:, 0])[:, None, None]

    def pearson(self, eta: Array, y: Array) -> Array:
        """``slopeᵀ fisher⁻¹ slope``, of mean outcomes·φ; shape (rows,)."""
        return self._slope(eta[:, 0], y) ** 2 / self._fisher(eta[:, 0])

    def sample(self, rng: np.random.Generator, eta: Array) -> Array:
        """Draw y, shape (rows,)."""
        return self._sample(rng, eta[:, 0])

    def _loss(self, eta: Array, y: Array) -> Array:
        raise NotImplementedError

    def _slope(self, eta: Array, y: Array) -> Array:
        raise NotImplementedError

    def _curvature(self, eta: Array, y: Array) -> Array:
        raise NotImplementedError

    def _fisher(self, eta: Array) -> Array:
        raise NotImplementedError

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        raise NotImplementedError


class Gaussian(Family):
    """Identity link, standard deviation ``noise``."""

    free = True
    noise = 2.0
    drawn_dispersion = noise**2

    def _loss(self, eta: Array, y: Array) -> Array:
        return (y - eta) ** 2 / 2

    def _slope(self, eta: Array, y: Array) -> Array:
        return eta - y

    def _curvature(self, eta: Array, y: Array) -> Array:  # noqa: ARG002
        return np.ones_like(eta)

    def _fisher(self, eta: Array) -> Array:
        return np.ones_like(eta)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        return eta + self.noise * rng.standard_normal(len(eta))


class Logit(Family):
    """Binomial, logit link."""

    def _loss(self, eta: Array, y: Array) -> Array:
        return np.logaddexp(0, eta) - y * eta

    def _slope(self, eta: Array, y: Array) -> Array:
        return special.expit(eta) - y

    def _curvature(self, eta: Array, y: Array) -> Array:  # noqa: ARG002
        return self._fisher(eta)

    def _fisher(self, eta: Array) -> Array:
        return special.expit(eta) * special.expit(-eta)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        return (rng.random(len(eta)) < special.expit(eta)).astype(np.int64)


class Probit(Family):
    """Binomial, probit link."""

    def _loss(self, eta: Array, y: Array) -> Array:
        return -special.log_ndtr((2 * y - 1) * eta)

    def _slope(self, eta: Array, y: Array) -> Array:
        sign = 2 * y - 1
        return -sign * _mills(sign * eta)

    def _curvature(self, eta: Array, y: Array) -> Array:
        t = (2 * y - 1) * eta
        return _mills(t) * (_mills(t) + t)

    def _fisher(self, eta: Array) -> Array:
        return _mills(eta) * _mills(-eta)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        return (rng.standard_normal(len(eta)) < eta).astype(np.int64)


def _mills(t: Array) -> Array:
    """φ(t) / Φ(t)."""
    return np.exp(-(t**2) / 2 - special.log_ndtr(t)) / np.sqrt(2 * np.pi)


class Cloglog(Family):
    """Binomial, complementary log-log link."""

    log_link = True  # as steep: η is clipped when simulating

    def _loss(self, eta: Array, y: Array) -> Array:
        u = np.exp(eta)
        return np.where(y > 0, -np.log(-np.expm1(-u)), u)

    def _slope(self, eta: Array, y: Array) -> Array:
        u = np.exp(eta)
        return np.where(y > 0, -u / np.expm1(u), u)

    def _curvature(self, eta: Array, y: Array) -> Array:
        u = np.exp(eta)
        return np.where(y > 0, u * (u * np.exp(u) - np.expm1(u)) / np.expm1(u) ** 2, u)

    def _fisher(self, eta: Array) -> Array:
        u = np.exp(eta)
        return u**2 / np.expm1(u)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        return (rng.random(len(eta)) < -np.expm1(-np.exp(eta))).astype(np.int64)


class Poisson(Family):
    """Log link."""

    log_link = True

    def _loss(self, eta: Array, y: Array) -> Array:
        return np.exp(eta) - y * eta

    def _slope(self, eta: Array, y: Array) -> Array:
        return np.exp(eta) - y

    def _curvature(self, eta: Array, y: Array) -> Array:  # noqa: ARG002
        return np.exp(eta)

    def _fisher(self, eta: Array) -> Array:
        return np.exp(eta)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        return rng.poisson(np.exp(eta)).astype(np.float64)


@dataclass
class Gamma(Family):
    """Log link, dispersion 1 / concentration."""

    concentration: float = 2.0
    free = log_link = True

    @property
    def drawn_dispersion(self) -> float:
        """1 / concentration."""
        return 1 / self.concentration

    def _loss(self, eta: Array, y: Array) -> Array:
        return eta + y * np.exp(-eta)

    def _slope(self, eta: Array, y: Array) -> Array:
        return 1 - y * np.exp(-eta)

    def _curvature(self, eta: Array, y: Array) -> Array:
        return y * np.exp(-eta)

    def _fisher(self, eta: Array) -> Array:
        return np.ones_like(eta)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        return rng.gamma(self.concentration, np.exp(eta) / self.concentration)


@dataclass
class NegativeBinomial(Family):
    """Variance μ + dispersion μ²."""

    dispersion: float = 0.5
    log_link = True

    def _loss(self, eta: Array, y: Array) -> Array:
        return (y + 1 / self.dispersion) * np.log1p(self.dispersion * np.exp(eta)) - y * eta

    def _slope(self, eta: Array, y: Array) -> Array:
        return (np.exp(eta) - y) / (1 + self.dispersion * np.exp(eta))

    def _curvature(self, eta: Array, y: Array) -> Array:
        return (1 + self.dispersion * y) * self._fisher(eta) / (1 + self.dispersion * np.exp(eta))

    def _fisher(self, eta: Array) -> Array:
        return 1 / (np.exp(-eta) + self.dispersion)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        means = rng.gamma(1 / self.dispersion, np.exp(eta) * self.dispersion)
        return rng.poisson(means).astype(np.float64)


@dataclass
class Tweedie(Family):
    """Sums of a Poisson number of gammas, of variance scale·μ^power."""

    power: float = 1.5
    scale: float = 1.0
    free = log_link = True

    @property
    def drawn_dispersion(self) -> float:
        """The scale."""
        return self.scale

    def _loss(self, eta: Array, y: Array) -> Array:
        p = self.power
        return np.exp((2 - p) * eta) / (2 - p) - y * np.exp((1 - p) * eta) / (1 - p)

    def _slope(self, eta: Array, y: Array) -> Array:
        p = self.power
        return np.exp((2 - p) * eta) - y * np.exp((1 - p) * eta)

    def _curvature(self, eta: Array, y: Array) -> Array:
        p = self.power
        return (2 - p) * np.exp((2 - p) * eta) + (p - 1) * y * np.exp((1 - p) * eta)

    def _fisher(self, eta: Array) -> Array:
        return np.exp((2 - self.power) * eta)

    def _sample(self, rng: np.random.Generator, eta: Array) -> Array:
        p, mean = self.power, np.exp(eta)
        number = rng.poisson(mean ** (2 - p) / (self.scale * (2 - p)))
        size = self.scale * (p - 1) * mean ** (p - 1)
        return size * rng.gamma(number * (2 - p) / (p - 1))


class Multinomial(Family):
    """Classes 0, 1, …, with a linear predictor for each but the first."""

    def __init__(self, classes: int) -> None:
        self.outcomes = classes - 1

    def _chances(self, eta: Array) -> Array:
        return np.exp(eta - special.logsumexp(_with_baseline(eta), axis=1, keepdims=True))

    def loss(self, eta: Array, y: Array) -> Array:
        """``log Σ exp η - η_y``, with η = 0 for the first class."""
        full = _with_baseline(eta)
        return special.logsumexp(full, axis=1) - full[np.arange(len(y)), y]

    def slope(self, eta: Array, y: Array) -> Array:
        """``p - 1_y``."""
        return self._chances(eta) - (y[:, None] == 1 + np.arange(self.outcomes))

    def curvature(self, eta: Array, y: Array) -> Array:  # noqa: ARG002
        """That of any y."""
        return self.fisher(eta)

    def fisher(self, eta: Array) -> Array:
        """``diag(p) - p pᵀ``."""
        p = self._chances(eta)
        return p[:, :, None] * np.eye(self.outcomes) - p[:, :, None] * p[:, None, :]

    def pearson(self, eta: Array, y: Array) -> Array:
        """``Σ (1_y - p)² / p`` over all classes, which is ``1 / p_y - 1``."""
        return np.expm1(self.loss(eta, y))

    def sample(self, rng: np.random.Generator, eta: Array) -> Array:
        """The largest of η plus Gumbel noise."""
        return np.argmax(_with_baseline(eta) + rng.gumbel(size=(len(eta), self.outcomes + 1)), 1)


def _with_baseline(eta: Array) -> Array:
    return np.column_stack([np.zeros(len(eta)), eta])
