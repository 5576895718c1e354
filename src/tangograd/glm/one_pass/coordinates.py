"""Working coordinates: columns centred and scaled by robust units, a constant last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        n, d = X.shape
        Z = np.empty((n, self.columns))
        np.subtract(X, self.centre[:d], out=Z[:, :d])
        Z[:, d : len(self.centre)] = -self.centre[d:]
        Z[:, : len(self.centre)] /= self.scale
        if self.intercept:
            Z[:, -1] = 1.0
        return WorkingRows(
            Z, y / self.target_unit, weights / self.weight_unit, offset / self.target_unit, number
        )

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


def power_of_two(value: float) -> float:
    """Return the power of two next to a positive value, by which divisions are exact."""
    return float(2.0 ** np.round(np.log2(value)))
