"""Numbers that are drawn for rows by their place in a table, whatever chunks they come in.

splitmix64 of the seed and the row's number (Steele, Lea and Flood 2014): samples, folds and
hold-out rows chosen by it do not depend on chunks, threads or machines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.jit import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SEED = np.uint64(0xD1B54A32D192ED03)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = (np.uint64(bits) for bits in (30, 27, 31, 11))


@compiled
def row_hash(row: int, seed: int) -> int:
    """Return 64 random bits of a row."""
    x = np.uint64(row) * _GOLDEN + np.uint64(seed) * _SEED
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)  # type: ignore[return-value]


@compiled
def row_uniform(row: int, seed: int) -> float:
    """Return a random number of a row, in the open interval (0, 1)."""
    return (float(row_hash(row, seed) >> _11) + 0.5) / 2.0**53


@compiled
def _fill(first: int, seed: int, result: NDArray[np.float64]) -> None:
    for i in range(len(result)):
        result[i] = row_uniform(first + i, seed)


def row_uniforms(first: int, count: int, seed: int) -> NDArray[np.float64]:
    """Return the random numbers of consecutive rows.

    Args:
        first: number of the first row.
        count: how many rows.
        seed: different seeds give independent numbers.

    Example:
        >>> whole = row_uniforms(0, 5, seed=1)
        >>> bool((whole[3:] == row_uniforms(3, 2, seed=1)).all())
        True
    """
    result = np.empty(count)
    _fill(first, seed, result)
    return result
