"""Linear equations with a positive semi-definite matrix of any scaling."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: added to the diagonal, scaled to 1, against rounding
RIDGE = 1e-14
#: a column is dependent if less than this of its diagonal is its own; rounding alone leaves 1e-13
DEPENDENT = 1e-11


def _scale(H: Array) -> Array:
    """Return the inverse root of the diagonal; 0 where that is 0."""
    diagonal = np.diag(H)
    return np.where(diagonal > 0, 1 / np.sqrt(np.maximum(diagonal, 1e-300)), 0.0)


def solve(H: Array, b: Array) -> Array:
    """Return ``H⁻¹ b``; 0 where H has no curvature, and of least norm where H is singular.

    Args:
        H: symmetric, positive semi-definite up to rounding, shape (p, p).
        b: shape (p,) or (p, k).
    """
    scale = _scale(H)
    R = H * scale[:, None] * scale
    R[np.diag_indices(len(R))] += RIDGE + (scale == 0)
    right = (scale * b.T).T
    try:
        factor = scipy.linalg.cho_factor(R, check_finite=False)
        found = scipy.linalg.cho_solve(factor, right, check_finite=False)
    except np.linalg.LinAlgError:
        found = np.linalg.pinv(R, hermitian=True) @ right
    return np.asarray((scale * found.T).T)


def dependent_columns(H: Array) -> NDArray[np.bool_]:
    """Return which columns depend linearly on the columns before them, as R drops them.

    Args:
        H: a Gram matrix of columns, shape (p, p).

    Example: the third column is the sum of the others.
        >>> x = np.array([[1.0, 0, 1], [0, 1, 1], [1, 1, 2], [0, 2, 2]])
        >>> dependent_columns(x.T @ x)
        array([False, False,  True])
    """
    scale = _scale(H)
    R = H * scale[:, None] * scale  # becomes that of what earlier columns do not explain
    dependent = np.zeros(len(R), bool)
    for j in range(len(R)):
        dependent[j] = not R[j, j] > DEPENDENT
        if not dependent[j]:
            R[j + 1 :, j + 1 :] -= np.outer(R[j + 1 :, j], R[j, j + 1 :] / R[j, j])
    return dependent
