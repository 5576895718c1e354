"""Inverse link functions and their logarithms that several families share; scalar and compiled."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.jit import helper

Array = NDArray[np.float64]

#: exp(η) stays finite, and no mean of real data is that far away
LARGEST = 50.0
#: probabilities and means are kept this far from the ends of their range by links
EDGE = 1e-10


@helper
def bounded(eta: float) -> float:
    """Return η, limited to ±LARGEST."""
    return min(max(eta, -LARGEST), LARGEST)


@helper
def bounded_exp(eta: float) -> float:
    """Return exp(η) with η limited to ±LARGEST."""
    return math.exp(min(max(eta, -LARGEST), LARGEST))


def log_link(mean: Array) -> Array:
    """Return the logarithm of a mean; of a mean of 0, that of ``EDGE``."""
    return np.asarray(np.log(np.where(mean > 0, mean, EDGE)))


def inside_unit_interval(mean: Array) -> Array:
    """Return probabilities, kept ``EDGE`` away from 0 and 1."""
    return np.clip(mean, EDGE, 1 - EDGE)
