"""The coordinates in which a model is learned: columns centred, and whitened where that pays."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from tangograd.glm.matrices import Block, Dense

Array = NDArray[np.float64]


class Coordinates:
    """``z = (x - m) W``, with an intercept of their own.

    Args:
        m: what the columns are centred at, shape (d,); zeros without an intercept.
        W: shape (d, d); None for the identity.

    Example: coefficients of z are those of x again after ``outward``.
        >>> import numpy as np
        >>> at = Coordinates(np.array([1.0, 2.0]), np.array([[2.0, 0.0], [1.0, 1.0]]))
        >>> theta = np.array([[3.0, 4.0, 5.0]])  # the intercept last
        >>> at.outward(theta)
        array([[  6.,   7., -15.]])
        >>> bool(np.allclose(at.inward(at.outward(theta)), theta))
        True
    """

    def __init__(self, m: Array, W: Array | None = None) -> None:
        self.m, self.W = m, W

    def rows(self, rows: Block) -> Block:
        """The same rows with z for X, if there is a W; otherwise the centring is left to others."""
        if self.W is None:
            return rows
        x = rows.X.widened(len(self.m)).toarray() - self.m
        return rows._replace(X=Dense(x @ self.W))

    @property
    def rest(self) -> Array:
        """What the columns of ``rows`` are still to be centred at."""
        return self.m if self.W is None else np.zeros_like(self.m)

    def outward(self, theta: Array) -> Array:
        """Coefficients, shape (outputs, d + 1), in the coordinates of the data."""
        result = theta.copy()
        if self.W is not None:
            result[:, :-1] = theta[:, :-1] @ self.W.T
        result[:, -1] -= result[:, :-1] @ self.m
        return result

    def inward(self, theta: Array) -> Array:
        """The inverse."""
        result = theta.copy()
        result[:, -1] += theta[:, :-1] @ self.m
        if self.W is not None:
            result[:, :-1] = np.linalg.solve(self.W, theta[:, :-1].T).T
        return result

    def turn(self) -> Array:
        """The matrix of ``outward`` for one output, shape (d + 1, d + 1)."""
        return self.outward(np.eye(len(self.m) + 1)).T

    def grown(self, columns: int) -> Coordinates:
        """With more columns, which stay as they are."""
        extra = columns - len(self.m)
        W = None if self.W is None else scipy.linalg.block_diag(self.W, np.eye(extra))
        return Coordinates(np.r_[self.m, np.zeros(extra)], W)


def whitening(m: Array, fisher: Array, outputs: int) -> Coordinates:
    """Coordinates in which a Fisher matrix is nearly the identity, and the intercept apart.

    Args:
        m: what the columns are centred at so far.
        fisher: in those coordinates, of all outputs; the mean of their blocks is whitened.
        outputs: how many there are.
    """
    size = len(m) + 1
    own = fisher.reshape(outputs, size, outputs, size)
    mean = np.mean([own[i, :, i] for i in range(outputs)], axis=0)
    apart, total = mean[:-1, -1], mean[-1, -1]
    shift = apart / total if total > 0 else np.zeros_like(m)
    F = mean[:-1, :-1] - np.outer(shift, apart)
    scale = 1 / np.sqrt(np.where(np.diag(F) > 0, np.diag(F), 1.0))
    R = F * scale[:, None] * scale
    R[np.diag_indices(len(R))] += np.where(np.diag(F) > 0, 1e-8, 1.0)
    values, vectors = np.linalg.eigh(R)
    W = scale[:, None] * (vectors / np.sqrt(np.maximum(values, 1e-8))) @ vectors.T
    return Coordinates(m + shift, W)
