"""Exact moments against enumeration of all samples and against moments of a normal variable."""

import itertools
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tangograd.reproduction.exact import Regression, coin_law, gaussian_law, logistic_law, normals
from tangograd.reproduction.models import SAMPLED
from tangograd.reproduction.verdicts import near_mean

LAWS = [
    gaussian_law(1.0),
    Regression.gaussian((1.0, 0.25)).law((1.0, 1.0)),
    logistic_law((1.0, 0.5), (1.0, 1.0)),
    coin_law(0.3, 0.8),
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
    assert law.power(4) == pytest.approx(expectation(norm**2)) == 83
    assert law.R2 == pytest.approx(max(np.diag(second) / np.diag(F))) == 35  # both are diagonal
    assert np.allclose(law.quadratic, fourth.reshape(4, 4))
    assert law.kurtosis == pytest.approx(15)
    assert law.largest_gamma == pytest.approx(0.0630125, abs=1e-7)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_isotropic_regression(d):
    """E[‖g̃‖² g̃g̃ᵀ] = E z⁴ E[‖x‖² xxᵀ] = 3(d+2) I, and radius 1 at twice 1/R²."""
    law = Regression.gaussian(np.ones(d)).law(np.ones(d))
    assert pytest.approx(3 * (d + 2)) == law.R2
    assert law.largest_gamma == pytest.approx(2 / law.R2)


@pytest.mark.parametrize("law", LAWS)
def test_where_the_second_moment_is_finite(law):
    end = law.largest_gamma
    assert end * (1 + 1e-12) >= 2 / law.R2
    assert end <= 2 * law.power(2) / law.power(4) * (1 + 1e-12)
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
    law = coin_law(p, 0.0)
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


SCALES, START = np.array([1.0, 0.4]), np.array([1.0, -2.0])
FEATURES = {
    1.0: [(-1.0, 0.5), (1.0, 0.5)],
    3.0: [(-np.sqrt(3), 1 / 6), (0.0, 2 / 3), (np.sqrt(3), 1 / 6)],  # a Gaussian's moments to 5
}
PSEUDO = {1.0: [(1.0, 1.0)], 2.0: [(0.0, 0.5), (2.0, 0.5)]}  # z²


SIGMA, NOISE = 1.3, 0.7


def samples(kurtosis, pseudo):
    """(x, ε, z²) with probabilities."""
    features = FEATURES[kurtosis]
    for (a, p), (b, q), (z, r), noise in itertools.product(
        features, features, PSEUDO[pseudo], (-1.0, 1.0)
    ):
        yield np.array([a, b]) * SCALES, noise * NOISE, z, p * q * r / 2


def by_enumeration(samples, *, gamma, dt, steps, C, batch, accelerated):
    """The second moments of (v, e, 1) over all outcomes, from the definition of a step."""
    outcomes = [list(s) for s in itertools.product(samples, repeat=batch)]
    state = np.concatenate([np.zeros(2), START, [1.0]])
    P, moments = np.outer(state, state), []
    for k in range(1, steps + 1):
        keep, rate = 1 - dt[k - 1], 1.0 if accelerated else dt[k]
        new = np.zeros((5, 5))
        for outcome in outcomes:
            X = sum(np.outer(x, x) for x, *_ in outcome) / batch
            Z = sum(z * np.outer(x, x) for x, _, z, _ in outcome) / batch
            noise = sum(e * x for x, e, *_ in outcome) / batch
            scale = gamma / SIGMA**2 * C[:, None]
            to_v = np.hstack(
                [
                    keep * np.eye(2) - scale * keep * Z,
                    scale * X,
                    -scale * noise[:, None],
                ]
            )
            T = np.zeros((5, 5))
            T[:2], T[2:4], T[4, 4] = to_v, -rate * to_v, 1.0
            T[2:4, 2:4] += np.eye(2)
            new += np.prod([p for *_, p in outcome]) * T @ P @ T.T
        P = new
        moments.append(P)
    return np.array(moments)


@pytest.mark.parametrize("kurtosis", [1.0, 3.0])
@pytest.mark.parametrize(
    ("pseudo", "batch", "accelerated"),
    [(1.0, 1, False), (2.0, 1, False), (2.0, 1, True), (1.0, 2, True)],
)
def test_moments_of_a_path_are_those_of_all_outcomes(kurtosis, pseudo, batch, accelerated):
    x, noise, squares, weights = zip(*samples(kurtosis, pseudo), strict=True)
    factor = np.sqrt(squares) / SIGMA
    problem = Regression(np.array(x), np.array(noise), factor, np.array(weights), SIGMA)
    options = {
        "gamma": 0.2,
        "dt": np.array([0.3, 0.1, 0.25, 0.05]),
        "steps": 3,
        "C": np.array([0.5, 2.0]),
        "batch": batch,
        "accelerated": accelerated,
    }
    expected = by_enumeration(list(zip(x, noise, squares, weights, strict=True)), **options)
    assert np.allclose(problem.path(START, **options)[1:], expected, rtol=1e-12, atol=1e-14)


def test_cubatures_give_the_moments_of_gaussian_features():
    """Up to the degrees that occur, against products of Gauss-Hermite formulas."""
    options = {"gamma": 0.1, "dt": 0.1, "steps": 3, "batch": 2}
    (*z, noise, factor), weights = normals(4, 3)
    features = np.stack(z, axis=1) * SCALES
    product = Regression(features, 0.7 * noise, factor / SIGMA, weights, SIGMA)
    cubature = Regression.gaussian(SCALES**2, noise=0.7, sigma=SIGMA, kind=SAMPLED)
    assert np.allclose(product.path(START, **options), cubature.path(START, **options), rtol=1e-12)
    signs = Regression.signs(SCALES, 0.7)
    moments, excess = signs.path(START, **options), signs.excess(START, **options)
    squares = np.diagonal(moments, axis1=1, axis2=2)[:, 2:4] @ SCALES**2
    assert np.allclose(excess, squares / (1.0 * 1 + 0.16 * 4))


def test_means_are_powers_of_the_mean_step():
    law, gamma, dt = LAWS[1], 0.02, 0.01
    v = np.zeros(2)
    for _ in range(7):
        v = (1 - dt) * (v - gamma * law.fisher @ v) + gamma * law.gradient
    assert np.allclose(law.means(gamma, 7, dt)[-1], v)


@pytest.mark.parametrize("rank_one", [False, True])
def test_batches_against_all_pairs(rank_one):
    """E F̂, E[F̂SF̂] and the stationary second moment for batches of two."""
    law = replace(coin_law(0.3, 0.8), batch=2, rank_one=rank_one)
    pairs = list(itertools.product(range(4), repeat=2))
    weights = np.array([law.weights[list(pair)].prod() for pair in pairs])
    g = np.array([law.g[list(pair)].mean() for pair in pairs])
    g_tilde = np.array([law.g_tilde[list(pair), 0] for pair in pairs])
    F = 2 * g_tilde.mean(1) ** 2 if rank_one else (g_tilde**2).mean(1)
    assert weights @ F == pytest.approx(law.fisher[0, 0])
    assert weights @ F**2 == pytest.approx(law.sandwich(np.eye(1))[0, 0])
    assert weights @ F**2 == pytest.approx(law.quadratic[0, 0])
    gamma, m = 0.5 / law.R2, law.limit(0.1)[0]
    S = law.second_moment(gamma)[0, 0]
    after = weights @ (
        (1 - gamma * F) ** 2 * S + 2 * gamma * g * (1 - gamma * F) * m + (gamma * g) ** 2
    )
    assert after == pytest.approx(S)
