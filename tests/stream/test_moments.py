"""Sums over responses, against NumPy's."""

import numpy as np
import pytest

from tangograd.stream.moments import moments, with_neighbours


@pytest.mark.parametrize("n", [1, 2, 7, 8, 1000])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_weighted_moments(n, shift):
    rng = np.random.default_rng(n)
    y, w = rng.normal(size=n) + shift, rng.uniform(0.1, 3, n)
    weight, total, variation = moments(y, w)
    mean = np.average(y, weights=w)
    assert weight == pytest.approx(w.sum(), rel=1e-13)
    assert total == pytest.approx(w @ y, rel=1e-13)
    assert variation == pytest.approx(w @ (y - mean) ** 2, rel=1e-6 if shift else 1e-12, abs=1e-16)


@pytest.mark.parametrize("n", [1, 2, 9, 1000])
def test_products_with_the_one_before(n):
    y, origin, before = np.random.default_rng(n).normal(size=n) + 5, 4.0, -2.0
    z = y - origin
    found = with_neighbours(y, origin, before)
    expected = z.sum(), z @ z, z @ np.r_[before, z[:-1]]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_column_without_variation_has_none():
    assert moments(np.full(1000, 0.1), np.ones(1000))[2] < 1e-25


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_not_lost(bad):
    y = np.ones(20)
    y[7] = bad
    assert not np.isfinite(moments(y, np.ones(20))[1])
    assert not np.isfinite(with_neighbours(y, 0.0, 0.0)[0])


def test_the_place_in_memory_does_not_change_a_bit():
    y, w = np.random.default_rng(0).normal(size=(2, 999))
    seen = set()
    for shift in range(9):
        here, there = np.empty(1010), np.empty(1010)
        one, other = here[shift : shift + 999], there[:999]
        one[:], other[:] = y, w**2
        seen.add((*moments(one, other), *with_neighbours(one, 0.3, 0.1)))
    assert len(seen) == 1
