"""Amounts that are often 0, with the log link: Tweedie regression."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np

from tangograd.glm.families.base import NON_NEGATIVE, Array, Family
from tangograd.glm.families.links import bounded, bounded_exp, log_link
from tangograd.glm.families.poisson import draw_count

#: exponents of μ/y up to which a loss is expanded, as those of Poisson and gamma are
CONTRADICTED = 5.0


class Tweedie(Family, NamedTuple("TweedieParameters", [("power", float)])):
    """Compound Poisson-gamma distribution with μ = exp(η) and variance φ μ^power.

    Args:
        power: of the variance, between 1 (Poisson) and 2 (gamma).
    """

    name, link, support, estimates_dispersion = "tweedie", "log", NON_NEGATIVE, True

    def __new__(cls, power: float = 1.5) -> Self:
        if not 1 < power < 2:
            raise ValueError(f"power must be between 1 (poisson) and 2 (gamma); got {power:g}")
        return super().__new__(cls, float(power))

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        p, mu = self.power, bounded_exp(eta)
        rise = math.exp((1 - p) * bounded(eta))  # μ^(1-p)
        loss = mu * rise / (2 - p) - y * rise / (1 - p)
        f = mu * rise
        return loss, f - y * rise, f, (2 - p) * f + (p - 1) * y * rise

    def mean(self, eta: float) -> float:
        return bounded_exp(eta)

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        """Draw a Poisson number of gamma variables."""
        p, mu = self.power, bounded_exp(eta[0])
        jumps = draw_count(mu ** (2 - p) / ((2 - p) * dispersion), rng)
        if jumps == 0:
            return 0.0
        return float(rng.gamma(jumps * (2 - p) / (p - 1), dispersion * (p - 1) * mu ** (p - 1)))

    def expansion_point(self, eta: float, y: float) -> float:
        if y == 0:
            return eta  # a Newton step from anywhere is 1/(2-p)
        own = math.log(y)
        lowest = own - CONTRADICTED / (self.power - 1)
        return min(max(eta, lowest), own + CONTRADICTED / (2 - self.power))

    def linear_predictor(self, mean: Array) -> Array:
        return log_link(mean)

    def saturated_loss(self, y: Array) -> Array:
        power: Array = y ** (2 - self.power)
        return power / (2 - self.power) - power / (1 - self.power)

    def variance(self, mean: Array) -> Array:
        return np.asarray(mean**self.power)

    def log_likelihood(
        self, loss: float, saturated: float, normalizer: float, weight: float, dispersion: float
    ) -> float:
        """Return NaN: the density has no closed form."""
        del loss, saturated, normalizer, weight, dispersion
        return math.nan
