"""Design matrices from their columns, dense or CSR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]
STRIP = 2048  # rows whose entries stay in the cache while the columns are written


def dense(
    rows: int,
    width: int,
    whole: Sequence[tuple[int, NDArray[Any]]],
    coded: Sequence[tuple[NDArray[np.int64], NDArray[Any] | None]],
) -> Array:
    """A C-contiguous matrix.

    Args:
        rows: of the matrix.
        width: its columns.
        whole: columns and their values, shape (rows,) each.
        coded: for each row the column of one entry (-1: none), and its value (``None``: 1).

    >>> dense(2, 3, [(0, np.array([5, 6]))], [(np.array([2, -1]), None)])
    array([[5., 0., 1.],
           [6., 0., 0.]])
    """
    X = np.zeros((rows, width)) if len(whole) < width else np.empty((rows, width))
    fill(X, whole)
    for columns, values in coded:
        at = np.flatnonzero(columns >= 0)
        X[at, columns[at]] = 1.0 if values is None else values[at]
    return X


def csr(
    rows: int,
    width: int,
    whole: Sequence[tuple[int, NDArray[Any]]],
    coded: Sequence[tuple[NDArray[np.int64], NDArray[Any] | None]],
) -> sp.csr_array[Any]:
    """The same as ``dense`` as a CSR array with sorted indices; zeros of ``whole`` are stored.

    >>> csr(2, 3, [(0, np.array([5, 6]))], [(np.array([2, -1]), None)]).toarray()
    array([[5., 0., 1.],
           [6., 0., 0.]])
    """
    entries: list[tuple[int, Any, NDArray[Any] | None]]
    entries = [(column, column, values) for column, values in whole]
    entries += [(int(columns.max(initial=-1)), columns, values) for columns, values in coded]
    entries.sort(key=lambda entry: entry[0])  # so that indices mostly are in order already
    data = np.ones((rows, len(entries)))
    indices = np.empty((rows, len(entries)), dtype=np.int32)
    for slot, (_, columns, _) in enumerate(entries):
        indices[:, slot] = columns
    fill(
        data,
        [(slot, values) for slot, (_, _, values) in enumerate(entries) if values is not None],
    )
    present = indices >= 0
    starts = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(present.sum(axis=1), out=starts[1:])
    X = sp.csr_array((data[present], indices[present], starts), shape=(rows, width))
    X.sort_indices()
    return X


def fill(X: Array, whole: Sequence[tuple[int, NDArray[Any]]]) -> None:
    """Write columns of a C-contiguous matrix."""
    for start in range(0, len(X), STRIP):
        strip = X[start : start + STRIP]
        for column, values in whole:
            strip[:, column] = values[start : start + STRIP]
