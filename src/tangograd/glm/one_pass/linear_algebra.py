"""Dense positive definite systems, scaled to unit diagonal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

Array = NDArray[np.float64]

#: added to the unit diagonal: less than the rounding error of a sum over many rows
JITTER = 1e-14
#: a column whose share of variance not explained by the columns before is below this is aliased;
#: a sum over rows and its elimination have rounding errors of 1e-15 for each column at most
ALIASED = 1e-13


class IndefiniteError(ArithmeticError):
    """A matrix that should be positive definite is not, or is not finite."""


class Factor(NamedTuple):
    """The Cholesky factor of a positive definite matrix scaled to unit diagonal.

    Attributes:
        lower: the factor L of ``D A D``, with rounding noise above the diagonal.
        scale: the diagonal of D.
    """

    lower: Array
    scale: Array

    def solve(self, b: Array) -> Array:
        """Return ``A⁻¹ b`` for a vector or the columns of a matrix."""
        scale = self.scale if b.ndim == 1 else self.scale[:, None]
        x, _ = lapack.dpotrs(self.lower, scale * b, lower=1)
        return np.asarray(scale * x)

    def inverse(self) -> Array:
        """Return ``A⁻¹``."""
        return self.solve(np.eye(len(self.scale)))


def factorize(A: Array) -> Factor:
    """Factorize a positive definite matrix; raise `IndefiniteError` if it is not one."""
    places = slice(None, None, len(A) + 1)
    diagonal = A.ravel()[places]
    if not 0 < diagonal.min() <= diagonal.max() < np.inf:
        raise IndefiniteError("the diagonal is not positive and finite")
    scale = 1 / np.sqrt(diagonal)
    scaled = A * scale[:, None]
    scaled *= scale
    scaled.ravel()[places] = 1 + JITTER
    lower, info = lapack.dpotrf(scaled, lower=1, clean=0)
    if info != 0:
        raise IndefiniteError("the matrix is not positive definite")
    return Factor(lower, scale)


def solve(A: Array, b: Array) -> Array:
    """Solve ``A x = b`` for a positive definite A."""
    return factorize(A).solve(b)


def independent_columns(A: Array, first: int | None = None) -> NDArray[np.intp]:
    """Return the columns, in order, that do not depend linearly on those before them.

    That is Cholesky's elimination of a Gram matrix scaled to unit diagonal: the pivot of column j
    is ``1 - R²`` of its regression on the columns kept so far. As in R, the later of two equal
    columns is dropped.

    Args:
        A: a positive semi-definite Gram matrix.
        first: a column that comes before all others: the constant.
    """
    diagonal = np.diag(A)
    order = np.arange(len(A))
    if first is not None:
        order = np.append(first, np.delete(order, first))
    present = order[(diagonal[order] > 0) & np.isfinite(diagonal[order])]
    scale = 1 / np.sqrt(diagonal[present])
    S = A[np.ix_(present, present)] * scale[:, None] * scale
    least = max(ALIASED, 2e-15 * len(S))
    try:  # most matrices have nothing to drop, and LAPACK's factor is fast
        lower: Any = np.linalg.cholesky(S)
        if (np.diag(lower) ** 2 > least).all():
            return np.sort(present)
    except np.linalg.LinAlgError:
        pass
    kept = []
    for j in range(len(S)):
        pivot = S[j, j]
        if not pivot > least:
            continue
        kept.append(j)
        row = S[j, j + 1 :] / pivot
        S[j + 1 :, j + 1 :] -= np.outer(S[j, j + 1 :], row)
    return np.sort(present[kept])
