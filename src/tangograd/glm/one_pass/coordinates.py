"""Working coordinates: columns centred and scaled by robust units, a constant last."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.gram import padded, zeros
from tangograd.glm.one_pass.linearize import fill_rows
from tangograd.glm.one_pass.working_rows import WorkingRows

Array = NDArray[np.float64]


class Coordinates(NamedTuple):
    """The affine map between the columns of the data and those in which a model is fitted.

    Attributes:
        centre: of each column, shape (d,); zeros without an intercept.
        scale: of each column, shape (d,).
        intercept: a column of ones follows the others.
        weight_unit: the weight of a typical row, a power of two.
        target_unit: the scale of the target where the link is the identity, a power of two.
    """

    centre: Array
    scale: Array
    intercept: bool
    weight_unit: float = 1.0
    target_unit: float = 1.0

    @property
    def columns(self) -> int:
        """Columns in working coordinates, the constant included."""
        return len(self.centre) + self.intercept

    def rows(
        self, X: Array, y: Array, weights: Array, offset: Array, number: NDArray[np.int64]
    ) -> WorkingRows:
        """Return rows in working coordinates; columns that X lacks are 0."""
        buffer = RowBuffer(len(y), self.columns)
        buffer.add(self, X, y, weights, offset, number)
        return buffer.rows()

    def to_original(self, theta: Array) -> Array:
        """Return coefficients (outputs, columns) for the columns of the data."""
        d = len(self.centre)
        result = theta * self.target_unit
        result[:, :d] /= self.scale
        if self.intercept:
            result[:, -1] -= result[:, :d] @ self.centre
        return result

    def to_working(self, coefficients: Array) -> Array:
        """Return the inverse of `to_original`."""
        d = len(self.centre)
        result = coefficients / self.target_unit
        if self.intercept:
            result[:, -1] += result[:, :d] @ self.centre
        result[:, :d] *= self.scale
        return result

    def jacobian(self) -> Array:
        """Return the matrix of `to_original` for one output."""
        return self.to_original(np.eye(self.columns)).T

    def grown(self, columns: int) -> Coordinates:
        """Return coordinates with further columns, which are left as they are."""
        extra = columns - len(self.centre)
        return self._replace(
            centre=np.append(self.centre, np.zeros(extra)),
            scale=np.append(self.scale, np.ones(extra)),
        )


class RowBuffer:
    """Room for a number of rows in working coordinates, filled from chunks of any size.

    Args:
        size: the number of rows.
        columns: in working coordinates.

    Attributes:
        count: rows so far.
    """

    def __init__(self, size: int, columns: int) -> None:
        self.size, self.columns, self.count = size, columns, 0
        self._room = zeros(size, padded(columns))
        self._numbers = np.empty((3, size))
        self._places = np.empty(size, np.int64)

    def add(
        self,
        coordinates: Coordinates,
        X: NDArray[np.floating[Any]],
        y: Array,
        weights: Array,
        offset: Array,
        number: NDArray[np.int64],
    ) -> None:
        """Add rows with columns of the data; there must be room for them."""
        here = slice(self.count, self.count + len(y))
        constant = 1.0 if coordinates.intercept else 0.0
        fill_rows(X, coordinates.centre, coordinates.scale, constant, self._room[here])
        np.divide(y, coordinates.target_unit, out=self._numbers[0, here])
        np.divide(weights, coordinates.weight_unit, out=self._numbers[1, here])
        np.divide(offset, coordinates.target_unit, out=self._numbers[2, here])
        self._places[here] = number
        self.count += len(y)

    def rows(self) -> WorkingRows:
        """Return the rows, which are valid until others are added after `clear`."""
        n = self.count
        y, weights, offset = self._numbers[:, :n]
        room = self._room[:n]
        return WorkingRows(room, self.columns, y, weights, offset, self._places[:n])

    def __getstate__(self) -> tuple[int, int, WorkingRows]:
        rows = self.rows()
        return self.size, self.columns, rows.take(slice(None))

    def __setstate__(self, stored: tuple[int, int, WorkingRows]) -> None:
        size, columns, rows = stored
        RowBuffer.__init__(self, size, columns)
        self.restore(rows)

    def restore(self, rows: WorkingRows) -> None:
        """Set the rows."""
        self.count = len(rows)
        self._room[: self.count, : self.columns] = rows.Z
        self._numbers[:, : self.count] = rows.y, rows.weights, rows.offset
        self._places[: self.count] = rows.number

    def clear(self) -> None:
        """Make room for other rows."""
        self.count = 0


def power_of_two(value: float) -> float:
    """Return the power of two next to a positive value, by which divisions are exact."""
    return float(2.0 ** np.round(np.log2(value)))
