"""Rows in working coordinates, and the sums over them that a fit needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.gram import add_gram, padded, zeros
from tangograd.glm.numerics.jit import compiled

Array = NDArray[np.float64]

COLUMNS = ("room", "y", "weights", "offset", "number")


@dataclass(frozen=True)
class WorkingRows:
    """Rows of a design whose columns were centred and scaled.

    Attributes:
        room: the columns, the constant last if there is one, and zeros up to a width that compiled
            sums take; shape (n, padded).
        columns: how many there are.
        y: targets, shape (n,).
        weights: shape (n,).
        offset: known part of the linear predictor, shape (n,).
        number: of each row in the whole table, shape (n,).
    """

    room: Array
    columns: int
    y: Array
    weights: Array
    offset: Array
    number: NDArray[np.int64]

    @classmethod
    def of(
        cls, Z: Array, y: Array, weights: Array, offset: Array, number: NDArray[np.int64]
    ) -> Self:
        """Return rows with these columns."""
        return cls(_room(Z), Z.shape[1], y, weights, offset, number)

    @property
    def Z(self) -> Array:  # noqa: N802
        """The columns, shape (n, columns)."""
        return self.room[:, : self.columns]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: slice | NDArray[np.intp] | NDArray[np.bool_]) -> WorkingRows:
        """Return some of the rows."""
        room, *rest = (getattr(self, name)[which] for name in COLUMNS)
        return WorkingRows(room, self.columns, *rest)

    def with_columns(self, Z: Array) -> WorkingRows:
        """Return the same rows with other columns."""
        return replace(self, room=_room(Z), columns=Z.shape[1])

    def only(self, columns: NDArray[np.intp]) -> WorkingRows:
        """Return the same rows with some of their columns."""
        return self if len(columns) == self.columns else self.with_columns(self.Z[:, columns])

    def grown(self, places: NDArray[np.intp], columns: int) -> WorkingRows:
        """Return the same rows with more columns, in which they are 0."""
        Z = np.zeros((len(self), columns))
        Z[:, places] = self.Z
        return self.with_columns(Z)

    def predictor(self, theta: Array) -> Array:
        """Return η without the offset, shape (n, outputs), for θ of shape (outputs, columns)."""
        return np.asarray(self.Z @ theta.T)


def _room(Z: Array) -> Array:
    room = zeros(len(Z), padded(Z.shape[1]))
    room[:, : Z.shape[1]] = Z
    return room


def concatenate(parts: Sequence[WorkingRows]) -> WorkingRows:
    """Join rows with the same columns."""
    if len(parts) == 1:
        return parts[0]
    room, *rest = (np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS)
    return WorkingRows(room, parts[0].columns, *rest)


def apply(curvature: Array, vectors: Array) -> Array:
    """Multiply the (outputs, outputs) matrix of each row by its vector."""
    if vectors.shape[1] == 1:
        return np.asarray(curvature[:, 0] * vectors)
    return np.asarray((curvature @ vectors[:, :, None])[:, :, 0])


def weighted_sum(rows: WorkingRows, vectors: Array) -> Array:
    """Return ``Σ v_n ⊗ z_n``, flat, for vectors of shape (n, outputs)."""
    return np.asarray((vectors.T @ rows.Z).ravel())


def gram(rows: WorkingRows, curvature: Array) -> Array:
    """Return ``Σ H_n ⊗ z_n z_nᵀ`` for symmetric matrices of shape (n, outputs, outputs)."""
    outputs, q = curvature.shape[1], rows.columns
    result = np.empty((outputs, q, outputs, q))
    for k in range(outputs):
        for j in range(k, outputs):
            upper = zeros(rows.room.shape[1], rows.room.shape[1])
            add_gram(np.ascontiguousarray(curvature[:, k, j]), rows.room, upper)
            _mirror(upper, result[k, :, j])
            if j != k:
                result[j, :, k] = result[k, :, j]
    return result.reshape(outputs * q, outputs * q)


@compiled
def _mirror(upper: Array, whole: Array) -> None:
    """Copy the part of a matrix on and above the diagonal to both sides of it."""
    for i in range(len(whole)):
        for j in range(i, len(whole)):
            whole[i, j] = whole[j, i] = upper[i, j]


def outer_products(rows: WorkingRows, vectors: Array) -> Array:
    """Return ``Σ (v_n ⊗ z_n)(v_n ⊗ z_n)ᵀ``."""
    return gram(rows, vectors[:, :, None] * vectors[:, None, :])
