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


@njit(cache=True)
def _regression(theta, rng, constants, x):  # type: ignore[no-untyped-def]
    """Draw x and y of a linear regression; returns the residual ``⟨x, θ⟩ - y``.

    The constants are: the standard deviation of the noise in the data, that of the model, d scales
    of the features, and d true parameters.
    """
    d = len(theta)
    residual = -constants[0] * rng.standard_normal()
    for i in range(d):
        x[i] = constants[2 + i] * rng.standard_normal()
        residual += x[i] * (theta[i] - constants[2 + d + i])
    return residual


@njit(cache=True)
def linear(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Linear regression, ``y ~ N(⟨x, θ⟩, σ²)`` with independent features: F = diag(scales²)/σ².

    ``constants = [noise, σ, *scales, *truth]``.
    """
    residual, z = _regression(theta, rng, constants, g_tilde), rng.standard_normal()
    for i in range(len(theta)):
        g[i] = residual * g_tilde[i] / constants[1] ** 2
        g_tilde[i] *= z / constants[1]


@njit(cache=True)
def logistic(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Logistic regression with independent Gaussian features; ``constants = [*scales, *truth]``."""
    d, eta, truth = len(theta), 0.0, 0.0
    for i in range(d):
        g_tilde[i] = constants[i] * rng.standard_normal()  # x
        eta += g_tilde[i] * theta[i]
        truth += g_tilde[i] * constants[d + i]
    p = 1 / (1 + math.exp(-eta))
    y = 1.0 if rng.random() * (1 + math.exp(-truth)) < 1 else 0.0
    y_tilde = 1.0 if rng.random() < p else 0.0
    for i in range(d):
        g[i] = (p - y) * g_tilde[i]
        g_tilde[i] *= p - y_tilde
