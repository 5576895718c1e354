"""Gram matrices against NumPy, and to the last bit where rounding has one order."""

import numpy as np
import pytest

from tangograd.glm.numerics.gram import (
    PADDING,
    STRIP,
    WIDE,
    WIDTH,
    add_gram,
    padded,
    symmetric,
    zeros,
)


def rows(n, size, seed=0):
    z = zeros(n, padded(size))
    z[:, :size] = np.random.default_rng(seed).normal(size=(n, size))
    return z


@pytest.mark.parametrize("n", [0, 1, STRIP - 1, 3 * STRIP + 5])
@pytest.mark.parametrize("size", [1, PADDING, PADDING + 1, WIDE * WIDTH, WIDE * WIDTH + 1, 67])
def test_sums_are_those_of_the_definition(n, size):
    z, a = rows(n, size), np.random.default_rng(1).normal(size=n)
    before = rows(padded(size), size, seed=2)
    before = before + before.T
    total = before.copy()
    add_gram(a, z, total)
    found = symmetric(total, size)
    expected = before[:size, :size] + (z.T * a @ z)[:size, :size]
    assert np.abs(found - expected).max() <= 1e-14 * (1 + np.abs(z.T * np.abs(a) @ z).max())
    assert np.array_equal(found, found.T)


def test_strips_of_rows_give_the_same_bits_as_their_sums():
    """Products are added within strips; whole strips may be summed apart."""
    z, a = rows(4 * STRIP, 20), np.random.default_rng(1).random(4 * STRIP)
    whole, parts = zeros(24, 24), zeros(24, 24)
    add_gram(a, z, whole)
    for start in range(0, len(z), STRIP):
        add_gram(a[start : start + STRIP], z[start : start + STRIP], parts)
    assert np.array_equal(whole, parts)


def test_sums_do_not_depend_on_where_arrays_lie():
    z, a = rows(200, 15), np.random.default_rng(1).random(200)
    elsewhere = np.empty(z.size + 1)[1:].reshape(z.shape)
    elsewhere[:] = z
    one, other = zeros(16, 16), np.zeros(16 * 16 + 3)[3:].reshape(16, 16)
    add_gram(a, z, one)
    add_gram(a, elsewhere, other)
    assert np.array_equal(np.triu(one), np.triu(other))


def test_other_layouts_are_refused():
    with pytest.raises(Exception, match="C-contiguous array of float64 is needed"):
        add_gram(np.ones(4), np.ones((8, 4), order="F")[:4], zeros(8, 8))
