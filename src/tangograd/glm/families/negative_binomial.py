"""Overdispersed counts with the log link: negative binomial regression."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np
from scipy.special import gammaln, xlogy

from tangograd.glm.families.base import NON_NEGATIVE, Array, Family
from tangograd.glm.families.links import LARGEST, bounded_exp, log_link
from tangograd.glm.families.poisson import CONTRADICTED, draw_count


class NegativeBinomial(Family, NamedTuple("NegativeBinomialParameters", [("dispersion", float)])):
    """Negative binomial distribution with μ = exp(η) and variance μ + α μ².

    Args:
        dispersion: α.
    """

    name, link, support = "negative_binomial", "log", NON_NEGATIVE

    def __new__(cls, dispersion: float = 1.0) -> Self:
        if not 0 < dispersion < np.inf:
            raise ValueError(f"dispersion must be positive (0 is poisson); got {dispersion:g}")
        return super().__new__(cls, float(dispersion))

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        mu, alpha = bounded_exp(eta), self.dispersion
        spread = 1 + alpha * mu
        # beyond the largest μ the logarithm goes on along its asymptote: the loss must not fall
        beyond = max(eta - LARGEST, 0.0)
        loss = (y + 1 / alpha) * (math.log(spread) + beyond) - y * eta
        f = mu / spread
        return loss, (mu - y) / spread, f, f * (1 + alpha * y) / spread

    def mean(self, eta: float) -> float:
        return bounded_exp(eta)

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        alpha = self.dispersion
        return draw_count(rng.gamma(1 / alpha, bounded_exp(eta[0]) * alpha), rng)

    def expansion_point(self, eta: float, y: float) -> float:
        return min(eta, math.log(max(y, 0.5)) + CONTRADICTED)

    def linear_predictor(self, mean: Array) -> Array:
        return log_link(mean)

    def saturated_loss(self, y: Array) -> Array:
        alpha = self.dispersion
        return np.asarray((y + 1 / alpha) * np.log1p(alpha * y) - xlogy(y, y))

    def log_normalizer(self, y: Array) -> Array:
        alpha = self.dispersion
        size = 1 / alpha
        return np.asarray(y * np.log(alpha) + gammaln(y + size) - gammaln(size) - gammaln(y + 1))

    def variance(self, mean: Array) -> Array:
        return mean + self.dispersion * mean**2
