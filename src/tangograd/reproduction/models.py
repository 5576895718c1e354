"""Compiled gradients of the models on which the claims are measured."""

from __future__ import annotations

import math

from numba import njit

from tangograd.stream.models import gaussian, linear, logistic

#: The models of :func:`chosen`.
GAUSSIAN, LINEAR, LOGISTIC, COIN = range(4)
#: Fisher estimates: from pseudo-samples, with these integrated out, from the data's own gradients.
SAMPLED, EXPECTED, EMPIRICAL = range(3)
#: Coordinates of the Gaussian: linear in (μ, ln σ), (μ, σ), and the natural parameters.
AFFINE, STANDARD, NATURAL = range(3)


@njit(cache=True)
def chosen(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw a sample of the model ``constants[0]``, whose own constants are the others.

    One function for four models, because compiling the kernel for each takes time.
    """
    kind, rest = constants[0], constants[1:]
    if kind == GAUSSIAN:
        gaussian(theta, rng, rest, g, g_tilde)
    elif kind == LINEAR:
        linear(theta, rng, rest, g, g_tilde)
    elif kind == LOGISTIC:
        logistic(theta, rng, rest, g, g_tilde)
    else:
        coin(theta, rng, rest, g, g_tilde)


@njit(cache=True)
def coin(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw a coin, ``P(1) = 1/(1+e^-θ)``, and data that are 1 with probability ``constants[0]``."""
    p = 1 / (1 + math.exp(-theta[0]))
    g[0] = p - (1.0 if rng.random() < constants[0] else 0.0)
    g_tilde[0] = p - (1.0 if rng.random() < p else 0.0)


@njit(cache=True)
def gaussian_in_coordinates(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw a sample of N(μ, σ²) on data from N(constants[1], constants[2]²).

    The coordinates are ``constants[0]``: AFFINE is φ with ``(μ, ln σ) = S φ``, S = constants[3:7];
    STANDARD is ``(μ, σ)``; NATURAL is ``(μ/σ², -1/2σ²)``.
    """
    s00, s01, s10, s11 = constants[3], constants[4], constants[5], constants[6]
    mu, log_sigma = s00 * theta[0] + s01 * theta[1], s10 * theta[0] + s11 * theta[1]
    if constants[0] == STANDARD:
        mu, log_sigma = theta[0], math.log(theta[1])
        s00, s01, s10, s11 = 1.0, 0.0, 0.0, 1 / theta[1]
    elif constants[0] == NATURAL:
        variance = -0.5 / theta[1]
        mu, log_sigma = variance * theta[0], math.log(variance) / 2
        s00, s01, s10, s11 = variance, 2 * mu * variance, 0.0, variance
    g[0], g[1] = mu, log_sigma  # a place for the parameters, which are read before g is written
    gaussian(g, rng, constants[1:3], g, g_tilde)
    for x in (g, g_tilde):
        x[0], x[1] = s00 * x[0] + s10 * x[1], s01 * x[0] + s11 * x[1]


@njit(cache=True)
def batches(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw a batch of :func:`~tangograd.stream.models.linear` as one sample.

    g is the mean of ``B = constants[0]`` gradients, g̃ the mean of B pseudo-gradients times
    ``constants[1]``: with √B there, ``g̃g̃ᵀ`` is B times the outer product of the mean.
    """
    d, batch = len(theta), int(constants[0])
    one, one_tilde = g.copy(), g.copy()
    g[:], g_tilde[:] = 0.0, 0.0
    for _ in range(batch):
        linear(theta, rng, constants[2:], one, one_tilde)
        for i in range(d):
            g[i] += one[i] / batch
            g_tilde[i] += constants[1] * one_tilde[i] / batch


@njit(cache=True)
def correlated_regression(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw a sample of a linear regression, θ being the distance to the truth and σ = 1.

    The features are Gaussian, of variance 1, with correlations ``ρ^|i-j|``. The constants are the
    Fisher estimate, ρ and the standard deviation of the noise in the data. For SAMPLED,
    ``g̃ = x z``; for EXPECTED, ``g̃g̃ᵀ = xxᵀ``; for EMPIRICAL, ``g̃ = g``.
    """
    rho = constants[1]
    fresh = math.sqrt(1 - rho * rho)
    residual = -constants[2] * rng.standard_normal()
    for i in range(len(theta)):
        z = rng.standard_normal()
        g_tilde[i] = rho * g_tilde[i - 1] + fresh * z if i else z
        residual += g_tilde[i] * theta[i]
    factor = 1.0
    if constants[0] == SAMPLED:
        factor = rng.standard_normal()
    elif constants[0] == EMPIRICAL:
        factor = residual
    for i in range(len(theta)):
        g[i] = residual * g_tilde[i]
        g_tilde[i] *= factor


@njit(cache=True)
def arctan_regression(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw a sample of ``y ~ N(f(⟨x, θ⟩), σ²)``, ``f(u) = arctan(b u)/b``, f(u) = u for b = 0.

    ``constants = [Fisher estimate, b, noise, σ, *scales, *truth]``.
    """
    d, b, sigma = len(theta), constants[1], constants[3]
    noise, z = constants[2] * rng.standard_normal(), rng.standard_normal()
    u, truth = 0.0, 0.0
    for i in range(d):
        g_tilde[i] = constants[4 + i] * rng.standard_normal()  # x
        u += g_tilde[i] * theta[i]
        truth += g_tilde[i] * constants[4 + d + i]
    residual = u - truth - noise
    if b > 0:
        residual = (math.atan(b * u) - math.atan(b * truth)) / b - noise
    slope = 1 / (1 + (b * u) ** 2)
    factor = z / sigma
    if constants[0] == EXPECTED:
        factor = 1 / sigma
    elif constants[0] == EMPIRICAL:
        factor = residual / sigma**2
    for i in range(d):
        g[i] = residual / sigma**2 * slope * g_tilde[i]
        g_tilde[i] *= factor * slope


@njit(cache=True)
def signs(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]
    """Draw from a linear regression with features ±s_i and truth 0, without pseudo-samples.

    ``g̃ = x``, so ``g̃ᵀCg̃ = Σ C_i s_i²`` always. ``constants = [noise, *scales]``.
    """
    residual = -constants[0] * rng.standard_normal()
    for i in range(len(theta)):
        g_tilde[i] = constants[1 + i] if rng.random() < 0.5 else -constants[1 + i]
        residual += g_tilde[i] * theta[i]
    for i in range(len(theta)):
        g[i] = residual * g_tilde[i]


@njit(cache=True)
def rows(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Return the next row ``x_i = √(d h_i) e_i``, y = 0, of a quadratic without noise.

    Over a batch of d samples the gradient is Hθ and the mean of ``g̃g̃ᵀ`` is H, ``H = diag(h)``.
    ``constants = [i, h_1, …, h_d]``, and i is advanced.
    """
    d = len(theta)
    i = int(constants[0])
    constants[0] = (i + 1) % d
    for j in range(d):
        g[j], g_tilde[j] = 0.0, 0.0
    g[i] = d * constants[1 + i] * theta[i]
    g_tilde[i] = math.sqrt(d * constants[1 + i])


@njit(cache=True)
def kinked(theta, rng, constants, g, g_tilde):  # type: ignore[no-untyped-def] # noqa: ARG001
    """Return the gradient of ``|θ|``, with two half parabolas and the minimum x for |θ| < γ/2.

    ``constants = [γ, x]``. There is no model p_θ: the Fisher estimate is 1, that is g̃ = 1.
    """
    x, edge = constants[1], constants[0] / 2
    if abs(theta[0]) >= edge:
        g[0] = 1.0 if theta[0] > 0 else -1.0
    else:
        g[0] = (theta[0] - x) / (edge - x if theta[0] > x else edge + x)
    g_tilde[0] = 1.0
