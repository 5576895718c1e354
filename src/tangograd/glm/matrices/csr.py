"""Sparse matrices, at the cost of their non-zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tangograd.glm.matrices.base import Array, DesignMatrix
from tangograd.glm.matrices.dense import Dense, DenseGram, absolute_power
from tangograd.glm.matrices.row_steps import (
    Entries,
    Numbers,
    PathArrays,
    begin_entries,
    begin_numbers,
    flush_entries,
    new_entries,
    new_numbers,
    owe_center,
    predict_entries,
    predict_numbers,
    update_numbers,
)
from tangograd.glm.numerics.jit import compiled

#: products of the non-zeros alone are taken where their share is smaller
FEW = 0.1
#: and where no column is so far from 0, in its standard deviations, that centring would cancel
FAR = 1e3
#: rows of which dense copies are made at once
STRIP_BYTES = 1 << 20
#: of a column's weight, what counts as none
ROUNDING = 1e-12


class _CsrFields(NamedTuple):
    data: NDArray[Any]
    indices: NDArray[Any]
    indptr: NDArray[Any]
    width: int


class Csr(DesignMatrix, _CsrFields):
    """A matrix of compressed sparse rows; :func:`checked_csr` makes one of scipy's.

    Attributes:
        data: elements that are stored, float64 or float32.
        indices: their columns, increasing in each row.
        indptr: where each row begins in ``data``, shape (n + 1,).
        width: of the matrix.
    """

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.width

    def scipy(self, data: NDArray[Any] | None = None) -> sp.csr_array[Any]:
        """Return a matrix of scipy that shares memory; with other elements, if given."""
        chosen = self.data if data is None else data
        return sp.csr_array((chosen, self.indices, self.indptr), shape=self.shape)

    @classmethod
    def of(cls, X: Any) -> Self:
        """Return a canonical matrix of scipy's in CSR format as one of ours."""
        return cls(X.data, X.indices, X.indptr, X.shape[1])

    @property
    def row_bytes(self) -> int:
        return 0

    def take(self, rows: slice | NDArray[np.int64]) -> Self:
        return self.of(self.scipy()[rows])

    def widened(self, width: int) -> Self:
        return self._replace(width=width)

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        return cls.of(sp.vstack([part.scipy() for part in parts], format="csr"))

    def toarray(self) -> Array:
        return np.asarray(self.scipy().toarray(), dtype=np.float64)

    def columns(self, which: Sequence[int]) -> Array:
        return np.asarray(self.scipy()[:, which].toarray(), dtype=np.float64)

    def extremes(self, which: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        X = self.scipy() if which is None or len(which) == self.width else self.scipy()[:, which]
        return X.min(axis=0).toarray().ravel(), X.max(axis=0).toarray().ravel()

    def first_not_finite(self) -> tuple[int, int, float] | None:
        bad = np.flatnonzero(~np.isfinite(self.data))
        if not len(bad):
            return None
        row = int(np.searchsorted(self.indptr, bad[0], side="right")) - 1
        return row, int(self.indices[bad[0]]), float(self.data[bad[0]])

    def dot(self, coef: Array) -> Array:
        return np.asarray(self.scipy() @ coef[: self.width], dtype=np.float64)

    def transpose_dot(self, a: Array) -> Array:
        return np.asarray(self.scipy().T @ a, dtype=np.float64)

    def weighted_powers(self, weights: Array, center: Array, power: int) -> Array:
        total = float(weights.sum())
        absent = np.full(len(center), total)  # the weight of each column's zeros
        absent[: self.width] -= self.scipy(np.ones(len(self.data))).T @ weights
        absent[absent < ROUNDING * total] = 0.0
        result = absent * np.abs(center) ** power
        powers = absolute_power(self.data - center[self.indices], power)
        result[: self.width] += self.scipy(powers).T @ weights
        return np.asarray(result)

    def squared_norms(self, metric: Array, center: Array) -> Array:
        own, m = metric[: self.width], center[: self.width]
        squares = self.scipy(self.data.astype(np.float64) ** 2) @ own
        result = squares - 2 * (self.scipy() @ (own * m)) + own @ m**2
        rest = metric[self.width :] @ center[self.width :] ** 2
        return np.asarray(np.maximum(result, 0.0) + rest)

    def new_gram(self, center: Array, intercept: bool) -> CsrGram:
        return CsrGram(center, intercept)

    def workspace(self, path: PathArrays) -> tuple[Numbers, Entries]:
        none = np.empty(0, np.int64)
        return new_numbers(path, none), new_entries(path, none)

    def begin(self, path: PathArrays, work: Any) -> None:
        begin_numbers(path, work[0])
        begin_entries(work[1])

    def predict_row(self, n: int, work: Any, eta: Array, t: Array, q: Array) -> None:
        numbers, entries = work[0], work[1]
        predict_numbers(numbers, eta, t, q)
        for i in range(len(eta)):
            u, phi, C, Cm = entries.v[i], entries.theta[i], entries.C[i], entries.Cm[i]
            x_u, x_phi, x_Cm, x_Cx = 0.0, 0.0, 0.0, 0.0
            for e in range(self.indptr[n], self.indptr[n + 1]):
                j, x = self.indices[e], np.float64(self.data[e])
                x_u += x * u[j]
                x_phi += x * phi[j]
                x_Cm += x * Cm[j]
                x_Cx += x * x * C[j]
            predict_entries(entries, i, (x_u, x_phi, x_Cm, x_Cx), eta, t, q)

    def update_row(self, n: int, work: Any, keep: float, dt: float, a: Array, f: Array) -> None:
        numbers, entries = work[0], work[1]
        update_numbers(numbers, keep, dt, a, f)
        s = entries.factors[0] * keep
        for i in range(len(a)):
            u, phi, C, Cm = entries.v[i], entries.theta[i], entries.C[i], entries.Cm[i]
            gain = a[i] / s
            late, x_Cm = entries.factors[1] * gain, 0.0
            for e in range(self.indptr[n], self.indptr[n + 1]):
                j, x = self.indices[e], np.float64(self.data[e])
                u[j] += gain * C[j] * x
                phi[j] += late * C[j] * x
                entries.S[i, j] += f[i] * x * (x - 2 * entries.m[j])
                x_Cm += Cm[j] * x
            owe_center(entries, i, gain, x_Cm, f[i])
        entries.factors[0] = s
        entries.factors[1] += dt * s

    def flush(self, path: PathArrays, work: Any) -> None:
        numbers, entries = work[0], work[1]
        flush_entries(path, entries, numbers)


def checked_csr(X: Any) -> Csr:
    """Return a sparse matrix of scipy's in any format, each element stored once.

    Raises:
        ValueError: its arrays contradict each other, by which memory would be overwritten.
    """
    X = X.tocsr()
    X.check_format(full_check=True)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    if X.dtype not in (np.float64, np.float32):
        X = X.astype(np.float64)
    return Csr.of(X)


@compiled
def add_entries(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], weights: Array, total: Array
) -> None:
    """Add ``Σ a x xᵀ`` of sparse rows with increasing columns, on and above the diagonal."""
    for n in range(len(weights)):
        for e in range(indptr[n], indptr[n + 1]):
            j, scaled = indices[e], weights[n] * data[e]
            for other in range(e, indptr[n + 1]):
                total[j, indices[other]] += scaled * data[other]


class CsrGram:
    """Sum of sparse rows: ``Σ a x xᵀ``, ``Σ a x`` and ``Σ a``, centred when it is asked for.

    Blocks that are not sparse, or would cancel when they are centred, are added as dense rows.

    Args:
        center: m.
        intercept: whether z ends in 1.
    """

    def __init__(self, center: Array, intercept: bool) -> None:
        self.center, self.intercept = center, intercept
        width = len(center)
        self._products, self._sums, self._weight = np.zeros((width, width)), np.zeros(width), 0.0
        self._dense = DenseGram(center, intercept)

    def add(self, X: Csr, weights: Array) -> None:
        if not self._is_sparse(X):
            rows = max(1, STRIP_BYTES // (8 * X.width))
            for start in range(0, len(weights), rows):
                strip = slice(start, start + rows)
                self._dense.add(Dense(X.take(strip).toarray()), weights[strip])
            return
        add_entries(X.data, X.indices, X.indptr, weights, self._products)
        self._sums[: X.width] += X.transpose_dot(weights)
        self._weight += float(weights.sum())

    def _is_sparse(self, X: Csr) -> bool:
        """Return whether products of the entries are quicker, and as exact."""
        n, width = X.shape
        if len(X.data) > FEW * n * width or self.center[width:].any():
            return False
        square = X.scipy(np.square(X.data, dtype=np.float64)).sum(axis=0) / max(n, 1)
        far = self.center[:width] ** 2
        return bool((np.minimum(square, far) <= FAR**2 * np.abs(square - far)).all())

    def matrix(self) -> Array:
        m, sums, weight = self.center, self._sums, self._weight
        result = self._dense.matrix()
        cross = np.outer(m, sums)
        own = np.triu(self._products) + np.triu(self._products, 1).T
        result[:-1, :-1] += own + weight * np.outer(m, m) - cross - cross.T
        if self.intercept:
            apart = sums - weight * m
            result[:-1, -1] += apart
            result[-1, :-1] += apart
            result[-1, -1] += weight
        return result

    def grow(self, width: int) -> None:
        extra = width - len(self.center)
        self.center = np.r_[self.center, np.zeros(extra)]
        self._products = np.pad(self._products, (0, extra))
        self._sums = np.pad(self._sums, (0, extra))
        self._dense.grow(width)
