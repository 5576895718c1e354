"""Likelihoods of one number η, compiled: what a generalised linear model needs of a row.

``point(family, parameter, η, y)`` is the loss, the score ``s = ∂loss/∂η`` and the Fisher weight
``f``, the expectation over y of ``∂²loss/∂η²``; the loss is half the deviance up to a function of y
(the dispersion φ cancels in the estimates and is left out). ``parts`` is the same but for a factor
of the likelihood, of which many rows may have one logarithm.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

GAUSSIAN, LOGIT, PROBIT, CLOGLOG, POISSON, GAMMA, NEGATIVE_BINOMIAL, TWEEDIE = range(8)

LOG_TWO = math.log(2)

#: exp(η) stays a number, and no real mean is that far
_LARGEST = 50.0
_LARGEST_COUNT = 1e15
_SMALLEST_MILLS = -30.0
_SQRT_HALF = math.sqrt(0.5)
_SQRT_TWO_OVER_PI = math.sqrt(2 / math.pi)


@njit(cache=True, error_model="numpy", fastmath=False)
def _exp(eta):  # type: ignore[no-untyped-def]
    return math.exp(min(max(eta, -_LARGEST), _LARGEST))


@njit(cache=True, error_model="numpy", fastmath=False)
def _mills(z):  # type: ignore[no-untyped-def]
    """φ(z) / Φ(z), the normal density over its distribution function."""
    z = max(z, _SMALLEST_MILLS)
    return _SQRT_TWO_OVER_PI * math.exp(-0.5 * z * z) / math.erfc(-z * _SQRT_HALF)


@njit(cache=True, error_model="numpy", fastmath=False)
def parts(family, parameter, eta, y):  # type: ignore[no-untyped-def]
    """``loss - log(factor)``, the factor (1 … 2), score and Fisher weight of one row."""
    if family == LOGIT:
        e = math.exp(-abs(eta))
        inverse = 1 / (1 + e)
        p = inverse if eta >= 0 else e * inverse
        return max(eta, 0.0) - y * eta, 1 + e, p - y, e * inverse * inverse
    loss, s, f = _other_point(family, parameter, eta, y)
    return loss, 1.0, s, f


@njit(cache=True, error_model="numpy", fastmath=False)
def point(family, parameter, eta, y):  # type: ignore[no-untyped-def]
    """Loss, score and Fisher weight of one row; see the module."""
    rest, factor, s, f = parts(family, parameter, eta, y)
    # log(1 + e) is off by 1e-16 at most, and twice as quick as log1p
    return (rest if factor == 1 else rest + math.log(factor)), s, f


@njit(cache=True, error_model="numpy", fastmath=False)
def is_mistake(rest, factor):  # type: ignore[no-untyped-def]
    """Whether y of 0 or 1 is the less likely, by the first two of ``parts``.

    The rest of a logistic loss is 0 for the likelier one, and for the other it is not; of shares in
    between, neither is right. Other losses are then above log 2.
    """
    return rest > (0.0 if factor > 1 else LOG_TWO)


@njit(cache=True, error_model="numpy", fastmath=False)
def _other_point(family, parameter, eta, y):  # type: ignore[no-untyped-def]
    """The same of the families without such a factor."""
    if family == GAUSSIAN:
        return 0.5 * (eta - y) * (eta - y), eta - y, 1.0
    if family == POISSON:
        mu = _exp(eta)
        return mu - y * eta, mu - y, mu
    if family == GAMMA:
        r = y * _exp(-eta)
        return r + eta, 1 - r, 1.0
    if family == NEGATIVE_BINOMIAL:
        mu = _exp(eta)
        spread = 1 + parameter * mu
        # beyond the largest μ the logarithm goes on along its asymptote: the loss must not fall
        beyond = max(eta - _LARGEST, 0.0)
        loss = (y + 1 / parameter) * (math.log(spread) + beyond) - y * eta
        return loss, (mu - y) / spread, mu / spread
    if family == TWEEDIE:
        mu = _exp(eta)
        rise = math.exp((1 - parameter) * min(max(eta, -_LARGEST), _LARGEST))  # μ^(1-p)
        loss = mu * rise / (2 - parameter) - y * rise / (1 - parameter)
        return loss, (mu - y) * rise, mu * rise
    if family == PROBIT:
        up, down = _mills(eta), _mills(-eta)
        loss = -y * _log_normal(eta) - (1 - y) * _log_normal(-eta)
        return loss, (1 - y) * down - y * up, up * down
    # complementary log-log: μ = 1 - exp(-λ), λ = exp(η)
    rate = math.exp(min(max(eta, -_LARGEST), 6.0))
    odds = math.expm1(rate)
    loss = (1 - y) * rate - y * math.log(-math.expm1(-rate))
    return loss, rate * (1 - y - y / odds), rate * rate / odds


@njit(cache=True, error_model="numpy", fastmath=False)
def _log_normal(z):  # type: ignore[no-untyped-def]
    """Log Φ(z)."""
    return math.log(0.5 * math.erfc(-max(z, _SMALLEST_MILLS) * _SQRT_HALF))


@njit(cache=True, error_model="numpy", fastmath=False)
def mean_of(family, eta):  # type: ignore[no-untyped-def]
    """μ, the mean of y."""
    if family == GAUSSIAN:
        return eta
    if family == LOGIT:
        e = math.exp(-abs(eta))
        return 1 / (1 + e) if eta >= 0 else e / (1 + e)
    if family == PROBIT:
        return 0.5 * math.erfc(-eta * _SQRT_HALF)
    if family == CLOGLOG:
        return -math.expm1(-math.exp(min(max(eta, -_LARGEST), 6.0)))
    return _exp(eta)


@njit(cache=True, error_model="numpy", fastmath=False)
def _count(mu, rng):  # type: ignore[no-untyped-def]
    """A Poisson number; normal where it would not be an integer of 64 bits."""
    if mu > _LARGEST_COUNT:
        return mu + math.sqrt(mu) * rng.standard_normal()
    return float(rng.poisson(mu))


@njit(cache=True, error_model="numpy", fastmath=False)
def draw(family, parameter, eta, dispersion, rng):  # type: ignore[no-untyped-def]
    """A pseudo-sample ỹ of the model."""
    mu = mean_of(family, eta)
    if family == GAUSSIAN:
        return mu + math.sqrt(dispersion) * rng.standard_normal()
    if family in (LOGIT, PROBIT, CLOGLOG):
        return 1.0 if rng.random() < mu else 0.0
    if family == POISSON:
        return _count(mu, rng)
    if family == GAMMA:
        return rng.gamma(1 / dispersion, mu * dispersion)
    if family == NEGATIVE_BINOMIAL:
        return _count(rng.gamma(1 / parameter, mu * parameter), rng)
    # Tweedie with 1 < p < 2: a Poisson number of gamma variables
    jumps = _count(mu ** (2 - parameter) / ((2 - parameter) * dispersion), rng)
    if jumps == 0:
        return 0.0
    shape = (2 - parameter) / (parameter - 1)
    return rng.gamma(jumps * shape, dispersion * (parameter - 1) * mu ** (parameter - 1))


@njit(cache=True, error_model="numpy", fastmath=False)
def points(family, parameter, eta, y):  # type: ignore[no-untyped-def]
    """``point`` of many rows: three arrays like η."""
    loss, s, f = np.empty_like(eta), np.empty_like(eta), np.empty_like(eta)
    for i in range(len(eta)):
        loss[i], s[i], f[i] = point(family, parameter, eta[i], y[i])
    return loss, s, f


@njit(cache=True, error_model="numpy", fastmath=False)
def means(family, eta):  # type: ignore[no-untyped-def]
    """``mean_of`` of many rows."""
    mu = np.empty_like(eta)
    for i in range(len(eta)):
        mu[i] = mean_of(family, eta[i])
    return mu
