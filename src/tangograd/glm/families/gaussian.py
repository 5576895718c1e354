"""Gaussian targets with the identity link: linear regression."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tangograd.glm.families.base import REAL_NUMBERS, Array, Family


class Gaussian(Family, NamedTuple("GaussianParameters", [])):
    """Normal distribution around η; φ is its variance."""

    name, link, support = "gaussian", "identity", REAL_NUMBERS
    canonical, quadratic, estimates_dispersion = True, True, True

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        residual = eta - y
        return 0.5 * residual * residual, residual, 1.0, 1.0

    def mean(self, eta: float) -> float:
        return eta

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        return float(eta[0] + math.sqrt(dispersion) * rng.standard_normal())

    def linear_predictor(self, mean: Array) -> Array:
        return np.asarray(mean, dtype=np.float64)

    def saturated_loss(self, y: Array) -> Array:
        return np.zeros_like(y)

    def variance(self, mean: Array) -> Array:
        return np.ones_like(mean)

    def log_likelihood(
        self, loss: float, saturated: float, normalizer: float, weight: float, dispersion: float
    ) -> float:
        """Return the log-likelihood at the variance of maximum likelihood, as is usual."""
        del normalizer, dispersion
        variance = 2 * (loss - saturated) / weight
        if not variance > 0:
            return math.inf
        return float(-0.5 * weight * (math.log(2 * math.pi * variance) + 1))

    def constant_loss(self, mean: float, weight: float, variation: float) -> float:
        del mean, weight
        return 0.5 * variation
