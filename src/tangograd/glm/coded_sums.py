"""The sums of rows of numbers and levels, kept as what they are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.coded import Coded
from tangograd.stream.outer import symmetric
from tangograd.stream.vectors import padded, zeros

Array = NDArray[np.float64]

#: a share of the weight that counts as none
ROUNDING = 1e-12


class CodedSums:
    """``Σ a x xᵀ`` over rows ``x = [e - m_e, numbers - m_x, 1]``, for a = w f and a = (w s)².

    The levels e of a row are few, so its products are added where these are, and the sums are
    centred once, when they are asked for.

    Args:
        X: rows with these numbers and levels.
        m: what the columns are centred at, shape (d,).
        intercept: whether the 1 is there; 0 otherwise.
    """

    def __init__(self, X: Coded, m: Array, intercept: bool) -> None:
        self.places, self.levels = X.places, X.levels(len(m))
        self.m, self.intercept = m, intercept
        size, levels = padded(len(self.places) + 1), len(self.levels) + 1
        self._products = zeros(2 * size, size).reshape(2, size, size)
        self._cross = zeros(2 * levels, size).reshape(2, levels, size)
        self._pairs = np.zeros((2, levels, levels))

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """What they are made of, for :func:`tangograd.stream.glm_coded.coded_rows` to add to."""
        return self._products, self._cross, self._pairs

    def grow(self, columns: int) -> None:
        """More levels, after all columns; they are centred at 0."""
        old, extra = len(self.levels), columns - len(self.m)
        self.levels = np.r_[self.levels, np.arange(len(self.m), columns)]
        self.m = np.r_[self.m, np.zeros(extra)]
        # what is after the levels belongs to none of them, and is of no use
        self._cross = np.pad(self._cross[:, :old], ((0, 0), (0, extra + 1), (0, 0)))
        self._pairs = np.pad(self._pairs[:, :old, :old], ((0, 0), (0, extra + 1), (0, extra + 1)))

    def matrices(self) -> tuple[Array, Array]:
        """Of the Fisher matrix and of the scores' outer products, shape (d + 1, d + 1) each."""
        size, levels = len(self.places) + 1, len(self.levels)
        order = np.r_[self.levels, self.places, len(self.m)]
        found = []
        for products, cross, pairs in zip(self._products, self._cross, self._pairs, strict=True):
            own = _centred(
                symmetric(products, size),
                cross[:levels, :size],
                pairs[:levels, :levels],
                self.m[self.levels],
            )
            if not self.intercept:
                own[-1], own[:, -1] = 0.0, 0.0
            total = np.empty_like(own)
            total[order[:, None], order] = own
            found.append(total)
        return found[0], found[1]


def coded_squares(X: Coded, m: Array, weights: Array, intercept: bool) -> Array:
    """``Σ w [x - m, 1]²``, elementwise."""
    total = float(weights.sum())
    codes = X.codes + 1  # 0 for none
    seen = np.zeros(len(m) + 1)
    for column in codes.T:
        seen += np.bincount(column, weights, minlength=len(seen))
    result = np.empty(len(m) + 1)
    result[:-1] = _level_squares(seen[1:], total, m)
    result[X.places] = weights @ (X.numbers - m[X.places]) ** 2
    result[-1] = total if intercept else 0.0
    return result


def _centred(numbers: Array, cross: Array, pairs: Array, m: Array) -> Array:
    """``Σ a x xᵀ`` for ``x = [e - m, z]``, with levels e and ``z = [numbers, 1]``.

    From ``Σ a z zᵀ``, ``Σ a e zᵀ`` and ``Σ a e eᵀ`` off the diagonal, each pair there in one of its
    two places.
    """
    seen, total, n = cross[:, -1], numbers[-1, -1], len(m)
    result = np.empty((n + len(numbers),) * 2)
    along = np.outer(m, seen - 0.5 * total * m)
    np.subtract(pairs + pairs.T, along + along.T, out=result[:n, :n])
    result[np.arange(n), np.arange(n)] = _level_squares(seen, total, m)
    result[:n, n:] = cross - np.outer(m, numbers[-1])
    result[n:, :n] = result[:n, n:].T
    result[n:, n:] = numbers
    return result


def _level_squares(seen: Array, total: float, m: Array) -> Array:
    """``Σ a (e - m)²`` of levels; 0 for one that all rows have, whatever the rounding of sums."""
    result = seen * (1 - 2 * m) + total * m**2
    return np.where(result < ROUNDING * total * m**2, 0.0, result)
