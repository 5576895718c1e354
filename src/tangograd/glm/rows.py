"""Rows of a table in memory: a matrix, responses, weights and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tangograd.glm.coded import Coded, joined

Array = NDArray[np.float64]
#: a C-contiguous array of float64 or float32, a CSR matrix, or numbers and levels (``Coded``, for
#: streams and for rows that wait to be used); all of shape (n, d)
Matrix = Any


def is_sparse(X: Matrix) -> bool:
    """It is a CSR matrix."""
    return bool(sp.issparse(X))


def extremes(X: Matrix, columns: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
    """The least and the largest value of each column, or of some."""
    if isinstance(X, Coded):
        return X.extremes(np.arange(X.width) if columns is None else columns)
    if columns is not None and len(columns) < X.shape[1]:
        X = X[:, columns]
    low, high = X.min(axis=0), X.max(axis=0)
    if is_sparse(X):
        low, high = low.toarray().ravel(), high.toarray().ravel()
    return low, high


class Rows(NamedTuple):
    """Some rows.

    Attributes:
        X: the features.
        y: responses, or numbers of classes, shape (n,).
        w: weights.
        offset: added to η.
        order: the numbers of the rows in X, which may have others; None for all of X as it is.
    """

    X: Matrix
    y: Array
    w: Array
    offset: Array
    order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: slice | NDArray[np.int64]) -> Rows:
        """Some of them."""
        y, w, offset = self.y[which], self.w[which], self.offset[which]
        if self.order is None:
            return Rows(self.X[which], y, w, offset)
        return Rows(self.X, y, w, offset, self.order[which])

    def solid(self) -> Rows:
        """The same with an X of their own."""
        if self.order is None:
            return self
        return Rows(self.X[self.order], self.y, self.w, self.offset)

    def plain(self) -> Rows:
        """The same with a dense or a CSR matrix."""
        if not isinstance(self.X, Coded):
            return self
        return Rows(self.X.plain(), self.y, self.w, self.offset, self.order)

    def canonical(self) -> Rows:
        """The same, if sparse with each element stored once: the kernels square them one by one."""
        if not is_sparse(self.X) or self.X.has_canonical_format:
            return self
        X, y, w, offset, _ = self.solid()
        X = X.copy()
        X.sum_duplicates()
        return Rows(X, y, w, offset)

    @property
    def bytes(self) -> int:
        """The memory of the rows of X; of numbers and levels, what it would be of plain ones."""
        X = self.X
        if is_sparse(X):
            whole = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
        else:
            whole = X.plain_bytes if isinstance(X, Coded) else X.nbytes
        return int(whole * len(self) // max(X.shape[0], 1))

    def centred(self, m: Array, intercept: bool = True) -> Array:
        """``[x - m, 1]``, dense, float64, shape (n, d + 1); the last column is 0 without intercept.

        Columns beyond those of X are 0: they had not been seen yet.
        """
        n, d = self.X.shape
        augmented = np.empty((n, len(m) + 1))
        X = self.X.toarray() if is_sparse(self.X) else self.X
        np.subtract(X, m[:d], out=augmented[:, :d])
        augmented[:, d:-1] = -m[d:]
        augmented[:, -1] = 1.0 if intercept else 0.0
        return augmented

    def dot(self, theta: Array) -> Array:
        """``X θᵀ`` for θ of shape (outputs, d or more), shape (n, outputs)."""
        return np.asarray(self.X @ theta[:, : self.X.shape[1]].T, dtype=np.float64)


def together(parts: Sequence[Rows], room: Array | None = None) -> Rows:
    """The rows of all parts, one after another.

    Args:
        parts: the rows.
        room: a place for dense rows, or for their numbers, if they are of its type and width;
            memory that was used before is quicker than new memory.
    """
    if all(isinstance(part.X, Coded) for part in parts):
        return Rows(joined([part.X for part in parts], room), *_rest(parts))
    if len(parts) == 1:
        return parts[0]
    parts = [part.plain().solid() for part in parts]
    width = max(part.X.shape[1] for part in parts)
    matrices = [_widened(part.X, width) for part in parts]
    if all(is_sparse(X) for X in matrices):
        X = sp.vstack(matrices, format="csr")
    else:
        matrices = [X.toarray() if is_sparse(X) else X for X in matrices]
        fits = room is not None and all(
            X.dtype == room.dtype and X.shape[1] == room.shape[1] for X in matrices
        )
        rows = sum(len(X) for X in matrices)
        X = np.concatenate(matrices, out=room[:rows] if room is not None and fits else None)
    return Rows(X, *_rest(parts))


def _rest(parts: Sequence[Rows]) -> tuple[Array, Array, Array]:
    """Their y, w and offset."""
    if len(parts) == 1:
        return parts[0][1:4]
    y, w, offset = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    return y, w, offset


def _widened(X: Matrix, width: int) -> Matrix:
    missing = width - X.shape[1]
    if not missing:
        return X
    if is_sparse(X):
        return sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], width))
    return np.pad(X, ((0, 0), (0, missing)))


def blocks(rows: Rows, size: int, first: int = 0) -> Iterator[Rows]:
    """Consecutive blocks; the first has ``first`` rows if that is not 0, the others ``size``."""
    start = 0
    end = first or size
    while start < len(rows):
        yield rows.take(slice(start, end))
        start, end = end, end + size
