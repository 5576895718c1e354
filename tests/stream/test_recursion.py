"""One row of the recursion in vectors, against the same in NumPy's words."""

import numpy as np
import pytest
from numba import njit

from tangograd.stream.recursion import centre_of, learn, predict, put, taken, widened
from tangograd.stream.vectors import WIDEST, padded

SIZES = [0, 1, 2, 6, 7, 8, 15, 20, 50]


@njit
def predicted(X, row, m, theta, v, C, z, n):
    return predict(X, row, m, theta, v, C, z, n)


@njit
def learned(z, n, keep, gain, dt, f, theta, v, C, S):
    learn(z, n, keep, gain, dt, f, theta, v, C, S)


def state(d, seed=0):
    """θ, v, C, S of d coefficients and an intercept, padded."""
    arrays = np.zeros((4, padded(d + 1)))
    arrays[:, : d + 1] = np.random.default_rng(seed).uniform(0.5, 2, (4, d + 1))
    return list(arrays)


def rows(d, n=3, dtype=np.float64):
    return np.random.default_rng(d).normal(size=(n, d)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("d", SIZES)
def test_predictions(d, dtype):
    X, (theta, v, C, _) = rows(d, dtype=dtype), state(d)
    m = centre_of(np.random.default_rng(1).normal(size=d))
    assert len(m) == padded(d + 1)
    z = np.full((2, padded(d + 1)), np.nan)
    found = predicted(X, 1, m, theta, v, C, z, 1)
    x = np.zeros(padded(d + 1))
    x[:d], x[d] = X[1].astype(np.float64) - m[:d], 1.0
    assert np.array_equal(z[1], x)
    assert np.isnan(z[0]).all()
    np.testing.assert_allclose(found, [x @ theta, x @ v, x**2 @ C], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("d", SIZES)
def test_the_papers_two_equations(d):
    (theta, v, C, S), z = state(d), np.zeros((2, padded(d + 1)))
    z[:, : d + 1] = np.random.default_rng(2).normal(size=(2, d + 1))
    before = [each.copy() for each in (theta, v, C, S, z)]
    keep, gain, dt, f = 0.9, -0.3, 0.05, 0.7
    learned(z, 1, keep, gain, dt, f, theta, v, C, S)
    expected_v = keep * before[1] + gain * C * z[1]
    np.testing.assert_allclose(v, expected_v, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(theta, before[0] - dt * expected_v, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(S, before[3] + f * z[1] ** 2, rtol=1e-14)
    assert np.array_equal(C, before[2])
    assert np.array_equal(z, before[4])
    assert not np.r_[v[d + 1 :], theta[d + 1 :], S[d + 1 :]].any()


def test_the_last_row_may_end_where_memory_does():
    """Vectors of which a row has only a part do not touch what is after it."""
    for d in (1, 5, 9):
        room = np.full(d + WIDEST, np.nan)
        X = room[:d].reshape(1, d)
        X[:] = 1.0
        theta, v, C, _ = state(d)
        m, z = np.zeros(padded(d + 1)), np.zeros((1, padded(d + 1)))
        assert np.isfinite(predicted(X, 0, m, theta, v, C, z, 0)).all()
        assert np.isfinite(z).all()


def test_what_is_no_number_is_not_lost():
    X, (theta, v, C, _) = rows(3), state(3)
    X[0, 1] = np.nan
    z = np.zeros((1, padded(4)))
    assert np.isnan(predicted(X, 0, np.zeros(padded(4)), theta, v, C, z, 0)).all()


def test_other_layouts_and_types_are_refused():
    theta, v, C, S = state(3)
    m, z = np.zeros(padded(4)), np.zeros((1, padded(4)))
    for X in (np.zeros((4, 6))[:, ::2], np.zeros((4, 3), np.int32), np.zeros((4, 3), np.int64)):
        with pytest.raises(TypeError, match="another layout or type"):
            predicted(X, 0, m, theta, v, C, z, 0)
    with pytest.raises(TypeError, match="another layout or type"):
        learned(z.astype(np.float32), 0, 1.0, 1.0, 1.0, 1.0, theta, v, C, S)


def test_elements_are_taken_and_put_back():
    assert np.array_equal(widened(np.arange(9.0)), [*range(9), *[0] * 7])
    whole, places = np.arange(20.0), np.array([3, 7, 1])
    part = taken(whole, places)
    assert np.array_equal(part, [3, 7, 1, 0, 0, 0, 0, 0])
    put(part + 100, places, whole)
    assert np.array_equal(whole[[3, 7, 1]], [103, 107, 101])
    assert whole.sum() == 190 + 300
