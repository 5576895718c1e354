"""Small models for the kernels: each draws a data sample and a pseudo-sample."""

from __future__ import annotations

import math

from numba import njit


@njit(cache=True)
def gaussian(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """N(μ, σ²) in ``θ = (μ, ln σ)``, on data from N(constants[0], constants[1]²).

    The loss is ``ln σ + (y-μ)²/2σ²``; the Fisher matrix diag(1/σ², 2).
    """
    precision = math.exp(-theta[1])
    y = constants[0] + constants[1] * rng.standard_normal()
    z = (y - theta[0]) * precision
    z_tilde = rng.standard_normal()
    g[0], g[1] = -z * precision, 1.0 - z * z
    g_tilde[0], g_tilde[1] = -z_tilde * precision, 1.0 - z_tilde * z_tilde


@njit(cache=True)
def mean(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """N(θ, 1) on data from N(constants[0], constants[1]²): the Fisher matrix is 1."""
    y = constants[0] + constants[1] * rng.standard_normal()
    g[0] = theta[0] - y
    g_tilde[0] = rng.standard_normal()
