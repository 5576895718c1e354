"""Positive amounts with the log link: gamma regression."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from tangograd.glm.families.base import POSITIVE, Array, Family
from tangograd.glm.families.links import bounded_exp, log_link

#: log y - log μ up to which a loss is expanded
CONTRADICTED = 5.0


class Gamma(Family, NamedTuple("GammaParameters", [])):
    """Gamma distribution with μ = exp(η) and variance φ μ²."""

    name, link, support, estimates_dispersion = "gamma", "log", POSITIVE, True

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        r = y * bounded_exp(-eta)
        return r + eta, 1 - r, 1.0, r

    def mean(self, eta: float) -> float:
        return bounded_exp(eta)

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        return float(rng.gamma(1 / dispersion, bounded_exp(eta[0]) * dispersion))

    def expansion_point(self, eta: float, y: float) -> float:
        return max(eta, math.log(y) - CONTRADICTED)

    def linear_predictor(self, mean: Array) -> Array:
        return log_link(mean)

    def saturated_loss(self, y: Array) -> Array:
        return 1 + np.log(y)

    def log_normalizer(self, y: Array) -> Array:
        """Return log y; its multiple in the log-likelihood depends on φ."""
        return np.log(y)

    def variance(self, mean: Array) -> Array:
        return mean**2

    def log_likelihood(
        self, loss: float, saturated: float, normalizer: float, weight: float, dispersion: float
    ) -> float:
        del saturated
        if not dispersion > 0:
            return math.inf
        nu = 1 / dispersion
        constant = weight * (nu * math.log(nu) - gammaln(nu)) + (nu - 1) * normalizer
        return float(constant - nu * loss)
