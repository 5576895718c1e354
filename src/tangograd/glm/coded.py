"""Design matrices of numbers and of levels of categories, as they are in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.designs.matrix import csr, dense
from tangograd.stream.gather import gather

Array = NDArray[np.float64]


class Columns:
    """Numbers as a table has them, a column each; rows of them are put together when needed.

    Args:
        values: the columns, of one length.
        rows: the numbers of the rows that are meant, increasing.

    Example:
        >>> x = Columns([np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])], np.array([0, 2]))
        >>> x.together()
        array([[1., 4.],
               [3., 6.]])
        >>> x[1:].together()
        array([[3., 6.]])
    """

    def __init__(self, values: Sequence[NDArray[Any]], rows: NDArray[np.int64]) -> None:
        self.values = [np.ascontiguousarray(column, np.float64) for column in values]
        self.rows = rows
        self._length = len(values[0]) if values else 0
        # the compiled function does not look
        if any(column.shape != (self._length,) for column in self.values):
            raise ValueError("columns must be of one length")
        if values and len(rows) and not 0 <= rows.min() <= rows.max() < self._length:
            raise IndexError(f"rows are out of the columns, which have {self._length}")
        places = [column.__array_interface__["data"][0] for column in self.values]
        self._places = np.array(places, np.int64)

    def __reduce__(self) -> Any:
        return Columns, (self.values, self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: slice | NDArray[Any]) -> Columns:
        some = object.__new__(Columns)
        some.__dict__.update(self.__dict__ | {"rows": self.rows[which]})
        return some

    def together(self, room: Array | None = None) -> Array:
        """The rows, C-contiguous; written to ``room``, if there is one."""
        matrix = np.empty((len(self), len(self.values))) if room is None else room
        cast(Any, gather)(self._places, self._length, self.rows, matrix)
        return matrix


@dataclass(frozen=True)
class Coded:
    """A matrix most of whose columns are 1 in some rows and 0 in the others.

    Attributes:
        given: the columns that are not such, shape (n, p): C-contiguous, or still apart.
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

    given: Array | Columns
    places: NDArray[np.int64]
    codes: NDArray[np.int32]
    width: int
    sparse: bool

    @property
    def numbers(self) -> Array:
        """The columns that are not levels, together."""
        return self.given.together() if isinstance(self.given, Columns) else self.given

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.codes), self.width

    def levels(self, width: int) -> NDArray[np.int64]:
        """The columns that are not numbers, of a model with so many."""
        others = np.ones(width, bool)
        others[self.places] = False
        return np.flatnonzero(others)

    def __getitem__(self, which: Any) -> Any:
        """Some rows; or, after ``:,``, some columns as a dense array."""
        if not isinstance(which, tuple):
            given, codes = self.given[which], self.codes[which]
            return Coded(given, self.places, codes, self.width, self.sparse)
        columns, numbers = np.asarray(which[1]), self.numbers
        there = {int(column): at for at, column in enumerate(self.places)}
        result = np.empty((len(self.codes), len(columns)))
        for at, column in enumerate(columns):
            if int(column) in there:
                result[:, at] = numbers[:, there[int(column)]]
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
        build, numbers = csr if self.sparse else dense, self.numbers
        whole = [(int(place), numbers[:, at]) for at, place in enumerate(self.places)]
        coded = [(self.codes[:, at].astype(np.int64), None) for at in range(self.codes.shape[1])]
        return build(len(self.codes), self.width, whole, coded)

    @cached_property
    def plain_bytes(self) -> int:
        """The memory of ``plain()``; rows are asked for it again and again."""
        if not self.sparse:
            return 8 * len(self.codes) * self.width
        entries = len(self.codes) * len(self.places) + int(np.count_nonzero(self.codes >= 0))
        return 12 * entries + 4 * (len(self.codes) + 1)  # float64 with int32 indices


def joined(parts: Sequence[Coded], room: Array | None = None) -> Coded:
    """One below the other; they have the same numbers, and those with fewer levels came before.

    Args:
        parts: the matrices.
        room: a place for the numbers: of their width, and with enough rows.
    """
    categories = max(part.codes.shape[1] for part in parts)
    rows = sum(len(part.codes) for part in parts)
    codes = np.full((rows, categories), -1, np.int32)
    numbers = np.empty((rows, len(parts[0].places))) if room is None else room[:rows]
    end = 0
    for part in parts:
        start, end = end, end + len(part.codes)
        codes[start:end, : part.codes.shape[1]] = part.codes
        if isinstance(part.given, Columns):
            part.given.together(numbers[start:end])
        else:
            numbers[start:end] = part.given
    return Coded(
        numbers,
        parts[0].places,
        codes,
        max(part.width for part in parts),
        all(part.sparse for part in parts),
    )
