"""Centred and whitened coordinates: the same model in other words."""

import numpy as np
import pytest
import scipy.sparse as sp

from tangograd.glm.coordinates import Coordinates, whitening
from tangograd.glm.sums import Sums
from tests.glm.simulated import features, rows

N, D = 400, 4


@pytest.fixture
def block():
    rng = np.random.default_rng(0)
    X = features("correlated", N, D, rng) + np.array([0.0, 1.0, -3.0, 100.0])
    return rows(X, rng.normal(size=N))


def fisher_of(block, m, weights):
    """Of two outputs that have the same weights, and nothing in common."""
    sums = Sums(m, 2, True, True)
    f = np.zeros((N, 2, 2))
    f[:, 0, 0] = f[:, 1, 1] = weights
    sums.add(block.X, np.zeros((N, 2)), f)
    return sums.fisher


@pytest.mark.parametrize("white", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_predictors_are_the_same(block, white, form):
    rng = np.random.default_rng(1)
    at = Coordinates(rng.normal(size=D), rng.normal(size=(D, D)) if white else None)
    theta = rng.normal(size=(2, D + 1))
    given = rows(form(block.X.values), block.y)
    inside = np.c_[at.rows(given).X.toarray() - at.rest, np.ones(N)] @ theta.T
    outside = np.c_[block.X.values, np.ones(N)] @ at.outward(theta).T
    assert np.abs(inside - outside).max() < 1e-10
    assert np.abs(at.inward(at.outward(theta)) - theta).max() < 1e-10
    assert np.abs(theta @ at.turn().T - at.outward(theta)).max() < 1e-12


def test_whitening_makes_the_fisher_matrix_the_identity(block):
    """Centred at what makes the intercept independent: the means weighted by f."""
    weights = np.random.default_rng(2).uniform(0.1, 1.0, N)
    m = block.X.values.mean(axis=0)
    at = whitening(m, fisher_of(block, m, weights), 2)
    expected = np.eye(D + 1)
    expected[-1, -1] = weights.sum()
    found = fisher_of(at.rows(block), at.rest, weights)
    assert np.abs(found - np.kron(np.eye(2), expected)).max() < 1e-6
    assert np.allclose(at.m, weights @ block.X.values / weights.sum(), rtol=1e-10)


def test_whitening_leaves_columns_without_curvature_alone(block):
    block.X.values[:, 1] = 7.0
    block.X.values[:, 3] = block.X.values[:, 0]
    m = block.X.values.mean(axis=0)
    m[1] = 7.0
    at = whitening(m, fisher_of(block, m, np.ones(N)), 2)
    assert np.isfinite(at.W).all()
    z = at.rows(block).X.values
    assert np.abs(z[:, 1]).max() < 1e-12
    assert np.abs(z).max() < 1e3


def test_columns_that_come_later_stay_as_they_are(block):
    rng = np.random.default_rng(3)
    at = Coordinates(rng.normal(size=D), rng.normal(size=(D, D)))
    grown = at.grown(D + 2)
    theta = rng.normal(size=(1, D + 1))
    wide = np.insert(theta, [D, D], [0.5, -0.5], axis=1)
    expected = np.insert(at.outward(theta), [D, D], [0.5, -0.5], axis=1)
    assert np.abs(grown.outward(wide) - expected).max() < 1e-12
    assert np.abs(grown.rows(block).X.values[:, :D] - at.rows(block).X.values).max() < 1e-12
    assert np.array_equal(grown.rows(block).X.values[:, D:], np.zeros((N, 2)))
