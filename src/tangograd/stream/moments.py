"""Sums over the responses of a block of rows, each in one go, compiled.

NumPy would go over them once for each operation; a block has so few rows that this is noticed.
"""

from __future__ import annotations

from numba import njit

#: sums may be reordered: always in the same way, for nothing is written
_SUMS = {"contract", "reassoc", "nsz"}


@njit(cache=True, error_model="numpy", fastmath=_SUMS, nogil=True)
def moments(y, w):  # type: ignore[no-untyped-def]
    """``Σ w``, ``Σ w y`` and, with the mean of these, ``Σ w (y - mean)²``.

    >>> import numpy as np
    >>> moments(np.array([1.0, 4.0]), np.array([2.0, 1.0]))
    (3.0, 6.0, 6.0)
    """
    weight, total, variation = 0.0, 0.0, 0.0
    for i in range(len(y)):
        weight += w[i]
        total += w[i] * y[i]
    mean = total / weight
    for i in range(len(y)):
        variation += w[i] * (y[i] - mean) ** 2
    return weight, total, variation


@njit(cache=True, error_model="numpy", fastmath=_SUMS, nogil=True)
def with_neighbours(y, origin, before):  # type: ignore[no-untyped-def]
    """Of ``z = y - origin``, ``Σ z``, ``Σ z²`` and ``Σ z times the one before``.

    >>> import numpy as np
    >>> with_neighbours(np.array([3.0, 5.0]), 1.0, 10.0)
    (6.0, 20.0, 28.0)
    """
    first = y[0] - origin
    total, squares, products = first, first * first, first * before
    for i in range(1, len(y)):
        z = y[i] - origin
        total += z
        squares += z * z
        products += z * (y[i - 1] - origin)
    return total, squares, products
