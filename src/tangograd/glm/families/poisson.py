"""Counts with the log link: Poisson regression."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from tangograd.glm.families.base import NON_NEGATIVE, Array, Family
from tangograd.glm.families.links import bounded_exp, log_link
from tangograd.glm.numerics.jit import helper

#: log μ - log y up to which a loss is expanded; 3 would bias models of zero-inflated counts
CONTRADICTED = 5.0
#: counts beyond this are drawn from a normal distribution: they would not fit in 64 bits
LARGEST_COUNT = 1e15


@helper
def draw_count(mu: float, rng: np.random.Generator) -> float:
    """Draw a Poisson count; from a normal distribution where it is too large."""
    if mu > LARGEST_COUNT:
        return mu + math.sqrt(mu) * rng.standard_normal()
    return float(rng.poisson(mu))


class Poisson(Family, NamedTuple("PoissonParameters", [])):
    """Poisson distribution with μ = exp(η)."""

    name, link, support, canonical = "poisson", "log", NON_NEGATIVE, True

    def point(self, eta: float, y: float) -> tuple[float, float, float, float]:
        mu = bounded_exp(eta)
        return mu - y * eta, mu - y, mu, mu

    def mean(self, eta: float) -> float:
        return bounded_exp(eta)

    def sample(self, eta: Array, dispersion: float, rng: np.random.Generator) -> float:
        return draw_count(bounded_exp(eta[0]), rng)

    def expansion_point(self, eta: float, y: float) -> float:
        return min(eta, math.log(max(y, 0.5)) + CONTRADICTED)

    def linear_predictor(self, mean: Array) -> Array:
        return log_link(mean)

    def saturated_loss(self, y: Array) -> Array:
        return np.asarray(y - xlogy(y, y))

    def log_normalizer(self, y: Array) -> Array:
        return np.asarray(-gammaln(y + 1))

    def variance(self, mean: Array) -> Array:
        return mean
