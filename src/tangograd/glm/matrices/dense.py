"""Dense matrices of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.matrices.base import Array, DesignMatrix, grown
from tangograd.glm.matrices.row_steps import (
    Numbers,
    PathArrays,
    begin_numbers,
    center_numbers,
    flush_numbers,
    new_numbers,
    predict_numbers,
    update_numbers,
)
from tangograd.glm.numerics.gram import STRIP, add_products, padded, symmetric, zeros
from tangograd.glm.numerics.jit import compiled, helper


class _DenseFields(NamedTuple):
    values: NDArray[Any]


class Dense(DesignMatrix, _DenseFields):
    """A dense matrix.

    Attributes:
        values: C-contiguous, float64 or float32, shape (n, width).
    """

    @property
    def shape(self) -> tuple[int, int]:
        n, width = self.values.shape
        return n, width

    @property
    def row_bytes(self) -> int:
        return 8 * int(self.values.shape[1])

    def take(self, rows: slice | NDArray[np.int64]) -> Self:
        if isinstance(rows, slice):
            return type(self)(self.values[rows])
        return type(self)(np.take(self.values, rows, axis=0))

    def widened(self, width: int) -> Self:
        missing = width - self.values.shape[1]
        return type(self)(np.pad(self.values, ((0, 0), (0, missing)))) if missing else self

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        return cls(np.concatenate([part.values for part in parts]))

    def toarray(self) -> Array:
        return np.asarray(self.values, dtype=np.float64)

    def columns(self, which: Sequence[int]) -> Array:
        return np.asarray(self.values[:, which], dtype=np.float64)

    def extremes(self, which: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        some = which is not None and len(which) < self.values.shape[1]
        values = self.values[:, which] if some else self.values
        return values.min(axis=0), values.max(axis=0)

    def first_not_finite(self) -> tuple[int, int, float] | None:
        with np.errstate(invalid="ignore", over="ignore"):  # the sum is a quick first look
            if np.isfinite(self.values.sum()) or np.isfinite(self.values).all():
                return None
        row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(self.values)))
        return row, column, float(self.values[row, column])

    def dot(self, coef: Array) -> Array:
        return np.asarray(self.values @ coef[: self.values.shape[1]], dtype=np.float64)

    def transpose_dot(self, a: Array) -> Array:
        return np.asarray(self.values.T @ a, dtype=np.float64)

    def weighted_powers(self, weights: Array, center: Array, power: int) -> Array:
        width = self.values.shape[1]
        result: Array = np.abs(center) ** power * weights.sum()
        x = np.subtract(self.values, center[:width], dtype=np.float64)
        result[:width] = weights @ absolute_power(x, power)
        return result

    def squared_norms(self, metric: Array, center: Array) -> Array:
        width = self.values.shape[1]
        x = np.subtract(self.values, center[:width], dtype=np.float64)
        return np.asarray(x**2 @ metric[:width] + metric[width:] @ center[width:] ** 2)

    def new_gram(self, center: Array, intercept: bool) -> DenseGram:
        return DenseGram(center, intercept)

    def workspace(self, path: PathArrays) -> Numbers:
        return new_numbers(path, np.arange(path.theta.shape[1] - 1))

    def begin(self, path: PathArrays, work: Any) -> None:
        begin_numbers(path, work)

    def predict_row(self, n: int, work: Any, eta: Array, t: Array, q: Array) -> None:
        center_numbers(self.values, n, work)
        predict_numbers(work, eta, t, q)

    def update_row(self, n: int, work: Any, keep: float, dt: float, a: Array, f: Array) -> None:
        update_numbers(work, keep, dt, a, f)

    def flush(self, path: PathArrays, work: Any) -> None:
        flush_numbers(path, work)


def absolute_power(x: Array, power: int) -> Array:
    """Return ``|x|^power``, for 1 and even powers by products alone."""
    if power == 1:
        return np.abs(x)
    return x * x if power == 2 else (x * x) ** (power // 2)


@helper
def center_row(values: Array, n: int, center: Array, last: float, z: Array, i: int) -> None:
    """Write ``[x - m, last]`` of row n to row i of z; what is behind it stays as it is."""
    width = values.shape[1]
    for j in range(width):
        z[i, j] = values[n, j] - center[j]
    for j in range(width, len(center)):
        z[i, j] = -center[j]
    z[i, len(center)] = last


# without reference counts: nothing is allocated
@compiled(_nrt=False)
def add_dense(
    values: Array, weights: Array, center: Array, last: float, room: Array, total: Array
) -> None:
    """Add ``Σ a z zᵀ`` of rows, on and above the diagonal; strips of them stay in the cache.

    Args:
        values: x of the rows.
        weights: a.
        center: m.
        last: 1 with an intercept, otherwise 0.
        room: zeros, for z and a z of a strip, shape (2 STRIP, size).
        total: shape (size, size).
    """
    size, z, a_z = total.shape[1], room[:STRIP], room[STRIP:]
    for start in range(0, len(values), STRIP):
        rows = min(STRIP, len(values) - start)
        for i in range(rows):
            center_row(values, start + i, center, last, z, i)
            a = weights[start + i]
            for j in range(size):
                a_z[i, j] = a * z[i, j]
        add_products(a_z, z, rows, total)


class DenseGram:
    """Sum of dense rows: ``Σ a z zᵀ`` itself, on and above the diagonal.

    Args:
        center: m.
        intercept: whether z ends in 1.
    """

    def __init__(self, center: Array, intercept: bool) -> None:
        self.center, self.last = center, float(intercept)
        self._size = len(center) + 1
        self._total = zeros(padded(self._size), padded(self._size))

    def add(self, X: Dense, weights: Array) -> None:
        room = zeros(2 * STRIP, self._total.shape[1])
        add_dense(X.values, weights, self.center, self.last, room, self._total)

    def matrix(self) -> Array:
        return symmetric(self._total, self._size)

    def grow(self, width: int) -> None:
        total = grown(self.matrix(), len(self.center), width)
        self.center = np.r_[self.center, np.zeros(width - len(self.center))]
        self._size = width + 1
        self._total = zeros(padded(self._size), padded(self._size))
        self._total[: self._size, : self._size] = total
