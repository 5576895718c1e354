"""Sums of outer products, against NumPy's."""

import numpy as np
import pytest

from tangograd.stream import outer
from tangograd.stream.outer import STRIP, add_outer, add_products, scale_row, spread, symmetric
from tangograd.stream.vectors import WIDTH, padded

SIZES = [1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH, 5 * WIDTH - 2, 70]


def numbers(rows, size, seed=0):
    z = np.zeros((rows, padded(size)))
    z[:, :size] = np.random.default_rng(seed).normal(size=(rows, size))
    return z


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [0, 1, STRIP - 1, STRIP, 3 * STRIP + 5])
def test_weighted_outer_products(rows, size):
    z, weights = numbers(rows, size), np.random.default_rng(1).uniform(0, 2, (2, rows))
    totals = np.zeros((2, padded(size), padded(size)))
    for _ in range(2):  # it adds
        add_outer(weights, z, totals)
    for total, w in zip(totals, weights, strict=True):
        right = 2 * (z.T * w) @ z
        found = symmetric(total, size)
        assert found.shape == (size, size)
        assert np.abs(found - right[:size, :size]).max() <= 1e-12 * max(1, np.abs(right).max())
        assert np.array_equal(found, found.T)


def test_weights_may_be_part_of_an_array():
    z, weights = numbers(40, 5), np.random.default_rng(1).uniform(0, 2, (2, 100))
    totals = np.zeros((2, padded(5), padded(5)))
    add_outer(weights[:, :40], z, totals)
    assert np.allclose(symmetric(totals[1], 5), ((z.T * weights[1, :40]) @ z)[:5, :5], rtol=1e-13)


@pytest.mark.parametrize("size", SIZES)
def test_an_element_is_added_up_in_the_order_of_rows(size):
    """To the last bit, so that the width of vectors and the place in memory do not matter."""
    left, right = numbers(STRIP, size, 2), numbers(STRIP, size, 3)
    total = np.zeros((padded(size), padded(size)))
    add_products(left, right, STRIP, total)
    for i, j in ((0, 0), (0, size - 1), (size - 1, size - 1)):
        expected = np.longdouble(0)
        for n in range(STRIP):  # 64 bits of mantissa: a product of two numbers is rounded a little
            expected = np.longdouble(
                float(np.longdouble(left[n, i]) * np.longdouble(right[n, j]) + expected)
            )
        assert total[i, j] == pytest.approx(float(expected), rel=1e-15, abs=1e-17)


def test_the_place_in_memory_does_not_change_a_bit():
    z, weights = numbers(300, 20), np.random.default_rng(1).uniform(0, 2, (2, 300))
    seen = set()
    for shift in range(9):
        room = np.zeros(z.size + 16)[shift : shift + z.size].reshape(z.shape)
        room[:] = z
        totals = np.zeros((2, z.shape[1], z.shape[1]))
        add_outer(weights, room, totals)
        seen.add(totals.tobytes())
    assert len(seen) == 1


def test_only_the_first_rows_are_multiplied():
    left, right = numbers(10, 3), numbers(10, 3, 1)
    total = np.zeros((padded(3), padded(3)))
    add_products(left, right, 4, total)
    assert np.allclose(np.triu(total[:3, :3]), np.triu((left[:4].T @ right[:4])[:3, :3]))


def test_rows_are_scaled():
    z, into = numbers(3, 20), numbers(3, 20, 1)
    before = into.copy()
    scaled(2.5, z, 1, into)
    assert np.array_equal(into[1], 2.5 * z[1])
    assert np.array_equal(into[[0, 2]], before[[0, 2]])


@outer.njit
def scaled(a, z, row, into):
    scale_row(a, z, row, into)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("categories", [0, 1, 3])
def test_rows_are_spread_to_their_places(size, categories):
    """In the order of rows, to the last bit; those after the last weight are left alone."""
    rng, rows = np.random.default_rng(4), 50
    z, a_z, totals = numbers(rows + 2, size), numbers(rows + 2, size, 1), numbers(4, size, 2)
    a, places = rng.uniform(0, 2, rows), rng.integers(4, size=(rows + 2, categories))
    into, expected = a_z.copy(), totals.copy()
    for n in range(rows):
        into[n] = a[n] * z[n]
        for place in places[n]:
            expected[place] += into[n]
    spread(a, z, a_z, totals, places)
    assert np.array_equal(a_z, into)
    assert np.array_equal(totals, expected)


def test_nothing_that_is_no_number_is_lost():
    z, totals = numbers(5, 3), np.zeros((1, padded(3), padded(3)))
    z[2, 1] = np.nan
    add_outer(np.ones((1, 5)), z, totals)
    assert np.isnan(symmetric(totals[0], 3)[1]).all()
    assert np.isfinite(symmetric(totals[0], 3)[0, 0])


def test_other_layouts_are_refused():
    z, totals = numbers(40, 5), np.zeros((1, padded(5), padded(5)))
    with pytest.raises(TypeError, match="another layout"):
        add_outer(np.ones((1, 20)), z[::2], totals)
    with pytest.raises(TypeError, match="another layout"):
        add_outer(np.ones((1, 40)), z.astype(np.float32), totals)
