"""Rows of a table in memory: a dense or sparse matrix, responses, weights and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Rows(NamedTuple):
    """Some rows.

    Attributes:
        X: shape (n, d); a C-contiguous array of float64 or float32, or a CSR matrix.
        y: responses, or numbers of classes, shape (n,).
        w: weights.
        offset: added to η.
    """

    X: NDArray[np.floating] | sp.csr_matrix
    y: Array
    w: Array
    offset: Array

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: slice | NDArray[np.int64]) -> Rows:
        """Some of them."""
        return Rows(self.X[which], self.y[which], self.w[which], self.offset[which])

    @property
    def bytes(self) -> int:
        """The memory of X."""
        if sp.issparse(self.X):
            return int(self.X.data.nbytes + self.X.indices.nbytes + self.X.indptr.nbytes)
        return int(self.X.nbytes)

    def centred(self, m: Array, intercept: bool = True) -> Array:
        """``[x - m, 1]``, dense, float64, shape (n, d + 1); the last column is 0 without intercept.

        Columns beyond those of X are 0: they had not been seen yet.
        """
        n, d = self.X.shape
        augmented = np.empty((n, len(m) + 1))
        augmented[:, :d] = self.X.toarray() if sp.issparse(self.X) else self.X
        augmented[:, d:-1] = 0.0
        augmented[:, :-1] -= m
        augmented[:, -1] = 1.0 if intercept else 0.0
        return augmented

    def dot(self, theta: Array) -> Array:
        """``X θᵀ`` for θ of shape (outputs, d or more), shape (n, outputs)."""
        return np.asarray(self.X @ theta[:, : self.X.shape[1]].T, dtype=np.float64)


def together(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one after another."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.X.shape[1] for part in parts)
    matrices = [_widened(part.X, width) for part in parts]
    if all(sp.issparse(X) for X in matrices):
        X = sp.vstack(matrices, format="csr")
    else:
        X = np.concatenate([X.toarray() if sp.issparse(X) else X for X in matrices])
    y, w, offset = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    return Rows(X, y, w, offset)


def _widened(X: NDArray[np.floating] | sp.csr_matrix, width: int) -> object:
    missing = width - X.shape[1]
    if not missing:
        return X
    if sp.issparse(X):
        return sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], width))
    return np.pad(X, ((0, 0), (0, missing)))


def blocks(rows: Rows, size: int, first: int = 0) -> Iterator[Rows]:
    """Consecutive blocks; the first has ``first`` rows if that is not 0, the others ``size``."""
    start = 0
    end = first or size
    while start < len(rows):
        yield rows.take(slice(start, end))
        start, end = end, end + size
