"""Design matrices of numbers and of levels of categories, as they are in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.designs.matrix import csr, dense, fill
from tangograd.glm.pool import Pool

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Coded:
    """A matrix most of whose columns are 1 in some rows and 0 in the others.

    Attributes:
        numbers: shape (n, p), C-contiguous: the columns that are not such.
        places: which columns of the matrix these are, shape (p,).
        codes: the columns that are 1, shape (n, categories); -1 for none.
        width: of the matrix.
        sparse: it would be kept in CSR form otherwise.

    Example:
        >>> X = Coded(np.array([[5.0], [6.0]]), np.array([0]), np.array([[2], [-1]]), 3, False)
        >>> X.plain()
        array([[5., 0., 1.],
               [6., 0., 0.]])
        >>> X[:, [2]]
        array([[1.],
               [0.]])
    """

    numbers: Array
    places: NDArray[np.int64]
    codes: NDArray[np.int32]
    width: int
    sparse: bool

    @classmethod
    def of(
        cls,
        rows: int,
        width: int,
        whole: Sequence[tuple[int, NDArray[Any]]],
        coded: Sequence[NDArray[np.int64]],
        sparse: bool,
        pool: Pool,
    ) -> Coded:
        """From columns of numbers with their places, and from the codes of each category."""
        numbers = pool.empty((rows, len(whole)))
        fill(numbers, [(at, values) for at, (_, values) in enumerate(whole)])
        codes = np.empty((rows, len(coded)), np.int32)
        for at, columns in enumerate(coded):
            codes[:, at] = columns
        places = np.array([place for place, _ in whole], np.int64)
        return cls(numbers, places, codes, width, sparse)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.numbers), self.width

    def levels(self, width: int) -> NDArray[np.int64]:
        """The columns that are not numbers, of a model with so many."""
        return np.delete(np.arange(width), self.places)

    def __getitem__(self, which: Any) -> Any:
        """Some rows; or, after ``:,``, some columns as a dense array."""
        if not isinstance(which, tuple):
            return replace(self, numbers=self.numbers[which], codes=self.codes[which])
        columns = np.asarray(which[1])
        there = {int(column): at for at, column in enumerate(self.places)}
        result = np.empty((len(self.numbers), len(columns)))
        for at, column in enumerate(columns):
            if int(column) in there:
                result[:, at] = self.numbers[:, there[int(column)]]
            else:
                result[:, at] = (self.codes == column).any(axis=1)
        return result

    def extremes(self, columns: NDArray[np.int64]) -> tuple[Array, Array]:
        """The least and the largest value of some columns, at a cost of the rows' own levels."""
        rows = np.bincount(self.codes.ravel() + 1, minlength=self.width + 1)[1:]
        low, high = (rows == len(self.codes)).astype(np.float64), (rows > 0).astype(np.float64)
        own = np.flatnonzero(np.isin(self.places, columns))
        if len(own):
            values = self.numbers[:, own]
            low[self.places[own]], high[self.places[own]] = values.min(axis=0), values.max(axis=0)
        return low[columns], high[columns]

    def plain(self) -> Any:
        """The same as a dense array or a CSR matrix."""
        build = csr if self.sparse else dense
        whole = [(int(place), self.numbers[:, at]) for at, place in enumerate(self.places)]
        coded = [(self.codes[:, at].astype(np.int64), None) for at in range(self.codes.shape[1])]
        return build(len(self.numbers), self.width, whole, coded)


def joined(parts: Sequence[Coded]) -> Coded:
    """One below the other; they have the same numbers, and those with fewer levels came before."""
    categories = max(part.codes.shape[1] for part in parts)
    codes = np.full((sum(len(part.codes) for part in parts), categories), -1, np.int32)
    end = 0
    for part in parts:
        start, end = end, end + len(part.codes)
        codes[start:end, : part.codes.shape[1]] = part.codes
    return Coded(
        np.concatenate([part.numbers for part in parts]),
        parts[0].places,
        codes,
        max(part.width for part in parts),
        all(part.sparse for part in parts),
    )
