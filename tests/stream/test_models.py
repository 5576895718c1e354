"""Each model's gradients have the means and second moments that its docstring says."""

import numpy as np

from tangograd.stream import models

N = 20_000
SCALES, TRUTH, THETA = np.array([1.0, 0.5]), np.array([0.7, -0.4]), np.array([0.2, 0.3])


def draw(model, theta, constants):
    rng, g, g_tilde = np.random.default_rng(0), np.empty((N, len(theta))), np.empty((N, len(theta)))
    for i in range(N):
        model(theta, rng, constants, g[i], g_tilde[i])
    return g, g_tilde


def assert_means(samples, expected):
    """Within five standard errors."""
    error = np.abs(samples.mean(0) - expected)
    assert (error < 5 * samples.std(0) / np.sqrt(len(samples)) + 1e-12).all()


def outer(g):
    return g[:, :, None] * g[:, None, :]


def test_linear():
    g, g_tilde = draw(models.linear, THETA, np.array([1.5, 2.0, *SCALES, *TRUTH]))
    assert_means(g, SCALES**2 * (THETA - TRUTH) / 4)
    assert_means(outer(g_tilde), np.diag(SCALES**2) / 4)


def test_logistic():
    constants = np.array([*SCALES, *TRUTH])
    g, g_tilde = draw(models.logistic, THETA, constants)
    x = np.random.default_rng(1).standard_normal((1_000_000, 2)) * SCALES
    p, q = (1 / (1 + np.exp(-x @ t)) for t in (THETA, TRUTH))
    data, fisher = (p - q)[:, None] * x, (p * (1 - p))[:, None, None] * outer(x)
    assert_means(g, data.mean(0) + 0)
    assert_means(outer(g_tilde), fisher.mean(0))
    at_truth, _ = draw(models.logistic, TRUTH, constants)
    assert_means(at_truth, 0)


def test_gaussian_and_mean():
    g, g_tilde = draw(models.gaussian, np.array([1.0, 0.3]), np.array([3.0, 2.0]))
    variance = np.exp(0.6)
    assert_means(g, [-2 / variance, 1 - (4 + 4) / variance])
    assert_means(outer(g_tilde), np.diag([1 / variance, 2]))
    g, g_tilde = draw(models.mean, np.array([1.0]), np.array([3.0, 2.0]))
    assert_means(g, -2.0)
    assert_means(outer(g_tilde), 1.0)
