"""Random numbers of rows: splitmix64 in Python's integers, uniform, independent of chunks."""

import numpy as np
import pytest
from scipy import stats

from tangograd.glm.numerics.row_hash import row_hash, row_uniforms

MASK = 2**64 - 1


def splitmix(row, seed):
    x = (row * 0x9E3779B97F4A7C15 + seed * 0xD1B54A32D192ED03) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


@pytest.mark.parametrize("row", [0, 1, 12345678901, 2**62])
@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_bits_are_splitmix64(row, seed):
    assert int(row_hash(row, seed)) == splitmix(row, seed)
    assert row_uniforms(row, 1, seed)[0] == ((splitmix(row, seed) >> 11) + 0.5) / 2**53


def test_numbers_are_uniform_and_independent():
    n = 100_000
    one, other = row_uniforms(0, n, seed=0), row_uniforms(0, n, seed=1)
    for u in (one, other):
        assert stats.kstest(u, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(n)


def test_chunks_do_not_matter():
    whole = row_uniforms(10**12, 100, seed=3)
    parts = [row_uniforms(10**12 + start, 25, seed=3) for start in range(0, 100, 25)]
    assert np.array_equal(whole, np.concatenate(parts))
