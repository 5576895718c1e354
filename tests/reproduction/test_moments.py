"""Exact moments, against enumeration of all samples and against moments of a normal variable."""

import itertools
from math import prod

import numpy as np
import pytest

from tangograd.reproduction.moments import (
    bernoulli_law,
    gaussian_law,
    linear_law,
    logistic_law,
)
from tangograd.reproduction.verdicts import near_mean

LAWS = [
    gaussian_law(1.0),
    linear_law((1.0, 0.5), (1.0, 1.0)),
    logistic_law((1.0, 0.5), (1.0, 1.0)),
    bernoulli_law(0.3, 0.8),
]


def normal_moment(k):
    """E z^k = (k-1)!! for even k."""
    return 0 if k % 2 else prod(range(1, k, 2))


def expectation(polynomial):
    return sum(c * normal_moment(k) for k, c in enumerate(polynomial.coef))


def test_the_papers_gaussian_at_sigma_one():
    law = LAWS[0]
    z = np.polynomial.Polynomial([0, 1])
    g = np.array([-z, 1 - z**2], dtype=object)
    norm = g[0] ** 2 + g[1] ** 2
    F = np.array([[expectation(a * b) for b in g] for a in g])
    second = np.array([[expectation(norm * a * b) for b in g] for a in g])
    fourth = np.array([expectation(a * b * c * d) for a, b, c, d in itertools.product(g, repeat=4)])
    assert np.allclose(law.fisher, F)
    assert law.fourth_power == pytest.approx(expectation(norm**2)) == 83
    assert law.R2 == pytest.approx(max(np.diag(second) / np.diag(F))) == 35  # both are diagonal
    assert np.allclose(law.quadratic, fourth.reshape(4, 4))
    assert law.kurtosis == pytest.approx(15)
    assert law.largest_gamma == pytest.approx(0.0630125, abs=1e-7)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_isotropic_regression(d):
    """E[‖g̃‖² g̃g̃ᵀ] = E z⁴ E[‖x‖² xxᵀ] = 3(d+2) I, and radius 1 at twice 1/R²."""
    law = linear_law((1.0,) * d, (1.0,) * d)
    assert pytest.approx(3 * (d + 2)) == law.R2
    assert law.largest_gamma == pytest.approx(2 / law.R2)


@pytest.mark.parametrize("law", LAWS)
def test_where_the_second_moment_is_finite(law):
    end = law.largest_gamma
    assert end * (1 + 1e-12) >= 2 / law.R2
    assert end <= 2 * law.squared_norm / law.fourth_power * (1 + 1e-12)
    assert law.radius(0.99 * end) < 1 < law.radius(1.01 * end)
    P = np.eye(law.g.shape[1]) - 0.7 * end * law.g_tilde[:, :, None] * law.g_tilde[:, None, :]
    squares = np.einsum("n,nij,nkl->ikjl", law.weights, P, P).reshape(len(law.quadratic), -1)
    assert np.allclose(law.propagator(0.7 * end), squares)
    with pytest.raises(ValueError, match="infinite"):
        law.second_moment(1.01 * end)


@pytest.mark.parametrize("dt", [0.0, 0.2])
def test_moments_are_those_of_all_sequences_of_samples(dt):
    """2¹⁶ sequences of pseudo-samples; the data never show the event."""
    p, k = 0.3, 16
    law = bernoulli_law(p, 0.0)
    gamma = 1 / law.R2
    v, weights = np.zeros(1), np.ones(1)
    for _ in range(k):
        cases = [((p - y) ** 2, p if y else 1 - p) for y in (0, 1)]
        v = np.concatenate([(1 - dt) * (1 - gamma * a) * v + gamma * p for a, _ in cases])
        weights = np.concatenate([weights * w for _, w in cases])
    assert weights @ v == pytest.approx(law.limit(gamma, dt)[0], rel=1e-3)
    assert weights @ v**2 == pytest.approx(law.second_moment(gamma, dt)[0, 0], rel=2e-3)


@pytest.mark.parametrize("law", LAWS)
def test_the_second_moment_is_what_the_recursion_tends_to(law):
    """With (P, g) jointly, at every point: cross terms included."""
    gamma, dt = 0.5 / law.R2, 0.01
    d = law.g.shape[1]
    P = (1 - dt) * (np.eye(d) - gamma * law.g_tilde[:, :, None] * law.g_tilde[:, None, :])
    m, S = law.limit(gamma, dt), law.second_moment(gamma, dt)
    cross = np.einsum("n,ni,nj->ij", law.weights, P @ m, gamma * law.g)
    noise = gamma**2 * np.einsum("n,ni,nj->ij", law.weights, law.g, law.g)
    assert np.allclose(law.weights @ (P @ m + gamma * law.g), m)
    after = np.einsum("n,nij,jk,nlk->il", law.weights, P, S, P) + cross + cross.T + noise
    assert np.allclose(after, S)


def test_near_mean_on_a_skewed_law():
    x = np.random.default_rng(0).gamma(1.0, size=(500, 30))
    assert all(near_mean(row, "an exponential", 1.0).holds for row in x)
    long = x.reshape(30, 500).mean(1)
    assert near_mean(long, "its averages", 1.0).holds
    assert not near_mean(long, "its averages", 1.3).holds
