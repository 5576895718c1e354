"""Targets 0 and 1, or shares in between, with the logit, probit and complementary log-log links."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import logit, ndtri, xlogy

from tangograd.glm.families.base import SHARES, Array, Family
from tangograd.glm.families.links import LARGEST, inside_unit_interval
from tangograd.glm.numerics.jit import helper

#: |η| up to which a loss is expanded on the side that its target contradicts
CONTRADICTED = 8.0
#: φ(z)/Φ(z) is not evaluated below this z
SMALLEST_MILLS = -30.0
#: log λ of the complementary log-log link is not evaluated above this
LARGEST_LOG_RATE = 6.0
#: below this rate, a series replaces differences that cancel
SMALL_RATE = 0.01
_SQRT_HALF = math.sqrt(0.5)
_SQRT_TWO_OVER_PI = math.sqrt(2 / math.pi)


class Binomial(Family):
    """Bernoulli distribution of y; a share is a mixture of failure and success."""

    name, support, classes = "binomial", SHARES, True

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        return 1.0 if rng.random() < self.mean(eta[0]) else 0.0

    def saturated_loss(self, y: Array) -> Array:
        if np.array_equal(y * y, y):  # 0 and 1 alone
            return np.zeros_like(y)
        return np.asarray(-xlogy(y, y) - xlogy(1 - y, 1 - y))

    def variance(self, mean: Array) -> Array:
        return mean * (1 - mean)


class Logit(Binomial, NamedTuple("LogitParameters", [])):
    """Logistic regression: μ = 1/(1 + exp(-η))."""

    link, canonical = "logit", True

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        e = math.exp(-abs(eta))
        inverse = 1 / (1 + e)
        p = inverse if eta >= 0 else e * inverse
        f = e * inverse * inverse
        # log(1 + e) is off by 1e-16 at most, and twice as quick as log1p
        return max(eta, 0.0) - y * eta + math.log(1 + e), p - y, f, f

    def mean(self, eta: float) -> float:
        e = math.exp(-abs(eta))
        return 1 / (1 + e) if eta >= 0 else e / (1 + e)

    def expansion_point(self, eta: float, y: float) -> float:
        if y == 0:
            return min(eta, CONTRADICTED)
        if y == 1:
            return max(eta, -CONTRADICTED)
        own = math.log(y / (1 - y))
        return min(max(eta, min(own, 0.0) - CONTRADICTED), max(own, 0.0) + CONTRADICTED)

    def linear_predictor(self, mean: Array) -> Array:
        return np.asarray(logit(inside_unit_interval(mean)))


@helper
def _mills(z: float) -> float:
    """Return φ(z)/Φ(z), the normal density over its distribution function."""
    return _SQRT_TWO_OVER_PI * math.exp(-0.5 * z * z) / math.erfc(-z * _SQRT_HALF)


@helper
def _log_normal(z: float) -> float:
    """Return log Φ(z)."""
    return math.log(0.5 * math.erfc(-z * _SQRT_HALF))


class Probit(Binomial, NamedTuple("ProbitParameters", [])):
    """Probit regression: μ = Φ(η), the normal distribution function."""

    link = "probit"

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        z, minus_z = max(eta, SMALLEST_MILLS), max(-eta, SMALLEST_MILLS)
        up, down = _mills(z), _mills(minus_z)
        loss = -y * _log_normal(z) - (1 - y) * _log_normal(minus_z)
        h = y * up * (up + z) + (1 - y) * down * (down + minus_z)
        return loss, (1 - y) * down - y * up, up * down, h

    def mean(self, eta: float) -> float:
        return 0.5 * math.erfc(-eta * _SQRT_HALF)

    # the loss is quadratic far on the side that contradicts y: no limit on the expansion point

    def linear_predictor(self, mean: Array) -> Array:
        return np.asarray(ndtri(inside_unit_interval(mean)))


class Cloglog(Binomial, NamedTuple("CloglogParameters", [])):
    """Complementary log-log link: μ = 1 - exp(-λ) with the rate λ = exp(η)."""

    link = "cloglog"

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        rate = math.exp(min(max(eta, -LARGEST), LARGEST_LOG_RATE))
        odds = math.expm1(rate)
        # g = λ/(1 - exp(-λ)) and its slope: what a success takes from the score
        g = rate + rate / odds
        if rate < SMALL_RATE:
            slope = 0.5 + rate / 6 - rate**3 / 180
        else:
            slope = 1 + 1 / odds - rate * (1 + odds) / (odds * odds)
        loss = (1 - y) * rate - y * math.log(-math.expm1(-rate))
        return loss, rate - y * g, rate * rate / odds, rate * (1 - y * slope)

    def mean(self, eta: float) -> float:
        return -math.expm1(-math.exp(min(max(eta, -LARGEST), LARGEST_LOG_RATE)))

    def expansion_point(self, eta: float, y: float) -> float:
        # exp(η) at y = 0 grows as fast as the loss of a Poisson count of 0
        if y == 0:
            return min(eta, 0.5 * CONTRADICTED)
        if y == 1:
            return max(eta, -CONTRADICTED)
        own = math.log(-math.log1p(-y))
        return min(max(eta, min(own, 0.0) - CONTRADICTED), max(own, 0.0) + 0.5 * CONTRADICTED)

    def linear_predictor(self, mean: Array) -> Array:
        return np.asarray(np.log(-np.log1p(-inside_unit_interval(mean))))
