"""Rows in working coordinates, and the sums over them that a fit needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.gram import padded, zeros

Array = NDArray[np.float64]

COLUMNS = ("Z", "y", "weights", "offset", "number")


@dataclass(frozen=True)
class WorkingRows:
    """Rows of a design whose columns were centred and scaled.

    Attributes:
        Z: shape (n, columns), the constant last if there is one.
        y: targets, shape (n,).
        weights: shape (n,).
        offset: known part of the linear predictor, shape (n,).
        number: of each row in the whole table, shape (n,).
        room: Z with zeros on the right up to a width that compiled sums take, if there is one.
    """

    Z: Array
    y: Array
    weights: Array
    offset: Array
    number: NDArray[np.int64]
    room: Array | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: slice | NDArray[np.intp] | NDArray[np.bool_]) -> WorkingRows:
        """Return some of the rows."""
        return WorkingRows(*(getattr(self, name)[which] for name in COLUMNS))

    def padded(self) -> Array:
        """Return Z with zeros on the right up to a width that compiled sums take."""
        if self.room is not None:
            return self.room
        room = zeros(len(self), padded(self.Z.shape[1]))
        room[:, : self.Z.shape[1]] = self.Z
        return room

    def with_columns(self, Z: Array) -> WorkingRows:
        """Return the same rows with other columns."""
        return replace(self, Z=Z, room=None)

    def grown(self, places: NDArray[np.intp], columns: int) -> WorkingRows:
        """Return the same rows with more columns, in which they are 0."""
        Z = np.zeros((len(self), columns))
        Z[:, places] = self.Z
        return self.with_columns(Z)

    def predictor(self, theta: Array) -> Array:
        """Return η without the offset, shape (n, outputs), for θ of shape (outputs, columns)."""
        return np.asarray(self.Z @ theta.T)


def concatenate(parts: Sequence[WorkingRows]) -> WorkingRows:
    """Join rows; columns that earlier rows lack were 0, and come before the constant."""
    if len(parts) == 1:
        return parts[0]
    columns = ([getattr(part, name) for part in parts] for name in COLUMNS)
    return WorkingRows(*(np.concatenate(column) for column in columns))


def apply(curvature: Array, vectors: Array) -> Array:
    """Multiply the (outputs, outputs) matrix of each row by its vector."""
    if vectors.shape[1] == 1:
        return np.asarray(curvature[:, 0] * vectors)
    return np.asarray((curvature @ vectors[:, :, None])[:, :, 0])


def weighted_sum(Z: Array, vectors: Array) -> Array:
    """Return ``Σ v_n ⊗ z_n``, flat, for vectors of shape (n, outputs)."""
    return np.asarray((vectors.T @ Z).ravel())


def gram(Z: Array, curvature: Array) -> Array:
    """Return ``Σ H_n ⊗ z_n z_nᵀ`` for matrices of shape (n, outputs, outputs)."""
    outputs, size = curvature.shape[1], Z.shape[1]
    if outputs == 1:
        return _gram(Z, curvature[:, 0, 0])
    result = np.empty((outputs, size, outputs, size))
    for k in range(outputs):
        for j in range(k + 1):
            result[k, :, j] = result[j, :, k] = _gram(Z, curvature[:, k, j])
    return result.reshape(outputs * size, outputs * size)


def _gram(Z: Array, h: Array) -> Array:
    """Return ``Zᵀ diag(h) Z``; half the work where h has no negative element."""
    if h.min(initial=0.0) < 0:
        return np.asarray(Z.T @ (Z * h[:, None]))
    S = Z * np.sqrt(h)[:, None]
    return np.asarray(S.T @ S)


def outer_products(Z: Array, vectors: Array) -> Array:
    """Return ``Σ (v_n ⊗ z_n)(v_n ⊗ z_n)ᵀ``."""
    rows = (vectors[:, :, None] * Z[:, None, :]).reshape(len(Z), -1)
    return np.asarray(rows.T @ rows)
