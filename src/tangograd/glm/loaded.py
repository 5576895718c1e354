"""A fitted model that predicts: from a file, and with intervals."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.errors import DataError
from tangograd.glm.fitted import Fitted
from tangograd.glm.matrices import DesignMatrix

Array = NDArray[np.float64]


INTERCEPT = "intercept"


def has_intercept(fitted: Fitted) -> bool:
    """The first coefficient is the intercept."""
    return fitted.names[:1] == (INTERCEPT,)


class Loaded:
    """A model read from a file: it predicts, and learns no more."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted
        outputs = len(fitted.outcomes)
        theta = fitted.estimates.reshape(outputs, -1)
        if has_intercept(fitted):
            theta = np.roll(theta, -1, axis=1)
        else:
            theta = np.c_[theta, np.zeros(outputs)]
        self.theta = theta

    def coefficients(self) -> Array:
        """Shape (outputs, d + 1), the intercept last."""
        return self.theta.copy()


def interval_quantile(fitted: Fitted, level: float) -> float:
    """Return half the length of an interval for a predictor, in standard errors.

    Raises:
        DataError: there are no more rows than coefficients.
    """
    if math.isnan(fitted.reference_freedom):
        raise DataError(
            "there are no intervals: the model was fit to no more rows than it has coefficients"
        )
    return fitted.quantile(level)


def predictor_errors(fitted: Fitted, X: DesignMatrix) -> Array:
    """The standard error of η of each row, shape (n,), for a model with one output."""
    if fitted.covariance is None:
        raise ValueError(
            "intervals need the full covariance matrix, and this model has "
            f"{'none' if fitted.covariance_kind == 'none' else 'its diagonal alone'}: fit with "
            "covariance='full'"
        )
    V = np.nan_to_num(fitted.covariance)  # coefficients without a variance are 0
    if len(V) > X.shape[1]:
        cross = X.dot(V[1:, 0])
        inner, base = V[1:, 1:], V[0, 0]
    else:
        cross, inner, base = np.zeros(X.shape[0]), V, 0.0
    squares = np.einsum("ij,ij->i", X.toarray(), X.dot(inner))
    return np.asarray(np.sqrt(np.maximum(squares + 2 * cross + base, 0.0)))
