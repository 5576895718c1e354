"""The moment recursion against averages over every outcome of a step."""

from itertools import product

import numpy as np
import pytest

from tangograd.reproduction.linear_moments import Regression

SCALES, START = np.array([1.0, 0.4]), np.array([1.0, -2.0])
FEATURES = {
    1.0: [(-1.0, 0.5), (1.0, 0.5)],
    3.0: [(-np.sqrt(3), 1 / 6), (0.0, 2 / 3), (np.sqrt(3), 1 / 6)],  # a Gaussian's moments to 5
}
PSEUDO = {1.0: [(1.0, 1.0)], 2.0: [(0.0, 0.5), (2.0, 0.5)]}  # z²


def samples(problem):
    """(x, ε, z²) with probabilities."""
    features, pseudo = FEATURES[problem.kurtosis], PSEUDO[problem.pseudo]
    for (a, p), (b, q), (z, r), noise in product(features, features, pseudo, (-1.0, 1.0)):
        yield np.array([a, b]) * SCALES, noise * problem.noise, z, p * q * r / 2


def by_enumeration(problem, *, gamma, dt, steps, C, batch, accelerated):
    """The second moments of (v, e, 1), all of them, by dense linear algebra."""
    outcomes = [list(s) for s in product(samples(problem), repeat=batch)]
    state = np.concatenate([np.zeros(2), START, [1.0]])
    P, moments = np.outer(state, state), []
    for k in range(1, steps + 1):
        keep, rate = 1 - dt[k - 1], 1.0 if accelerated else dt[k]
        new = np.zeros((5, 5))
        for outcome in outcomes:
            X = sum(np.outer(x, x) for x, *_ in outcome) / batch
            Z = sum(z * np.outer(x, x) for x, _, z, _ in outcome) / batch
            noise = sum(e * x for x, e, *_ in outcome) / batch
            scale = gamma / problem.sigma**2 * C[:, None]
            to_v = np.hstack(
                [
                    keep * np.eye(2) - scale * keep * problem.curvature * Z,
                    scale * X,
                    -scale * noise[:, None],
                ]
            )
            T = np.zeros((5, 5))
            T[:2], T[2:4], T[4, 4] = to_v, -rate * to_v, 1.0
            T[2:4, 2:4] += np.eye(2)
            new += np.prod([p for *_, p in outcome]) * T @ P @ T.T
        P = new
        moments.append([np.diag(P)[:2], np.diag(P[:2, 2:4]), np.diag(P)[2:4]])
    return np.array(moments)


@pytest.mark.parametrize("kurtosis", [1.0, 3.0])
@pytest.mark.parametrize(
    ("pseudo", "batch", "accelerated", "curvature"),
    [(1.0, 1, False, 1.0), (2.0, 1, False, 0.3), (2.0, 1, True, 1.0), (1.0, 2, True, 2.0)],
)
def test_moments_are_those_of_all_outcomes(kurtosis, pseudo, batch, accelerated, curvature):
    problem = Regression(SCALES, 0.7, 1.3, kurtosis, pseudo, curvature)
    options = {
        "gamma": 0.2,
        "dt": np.array([0.3, 0.1, 0.25, 0.05]),
        "steps": 3,
        "C": np.array([0.5, 2.0]),
        "batch": batch,
        "accelerated": accelerated,
    }
    expected = by_enumeration(problem, **options)
    assert np.allclose(problem.moments(START, **options)[1:], expected, rtol=1e-12, atol=1e-14)


def test_excess_is_half_the_weighted_squares():
    excess = Regression(SCALES).excess(START, gamma=0.1, dt=0.1, steps=1)
    assert np.isclose(excess[0], 0.5 * (1.0 * 1 + 0.16 * 4))
