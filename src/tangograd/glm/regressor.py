"""TangoRegressor: responses that are numbers."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import (
    check_consistent_length,
    column_or_1d,
)

from tangograd.glm.checks import checked_weights, read_only
from tangograd.glm.families import Family, by_name, means
from tangograd.glm.fitted import Fitted
from tangograd.glm.linear import GeneralisedLinear
from tangograd.glm.loaded import has_intercept, interval_quantile, predictor_errors
from tangograd.glm.matrices import Block
from tangograd.glm.tally import Tally

Array = NDArray[np.float64]


class TangoRegressor(RegressorMixin, GeneralisedLinear):  # type: ignore[misc]
    """A generalised linear model, learned in one pass over the rows with no tuning.

    ``E[y|x] = g⁻¹(x·coef + intercept)``. Up to 64 MB of rows are fit to convergence. Of more, each
    block of rows is a Newton step on quadratic sums (O(d²) a row), whose excess variance over
    maximum likelihood is measured; without a full covariance, TANGO sees each row once (O(d)).

    Args:
        family: ``"gaussian"``, ``"binomial"``, ``"poisson"``, ``"gamma"``, ``"negative_binomial"``,
            ``"tweedie"``, or a :func:`tangograd.glm.family` with its dispersion or power.
        link: of binomial models ``"logit"`` (default), ``"probit"`` or ``"cloglog"``; the others
            have one link each, identity for gaussian and log for the rest.
        alpha: the penalty in ``mean loss + alpha/2 ‖coef‖²``, the loss being half the deviance.
        fit_intercept: add a constant to the predictor.
        passes: over the rows; two come closer to maximum likelihood.
        polish: ``"auto"``: read the rows once more if the measured excess of the variance over
            maximum likelihood's is above 2%; True: up to three times more, until it is negligible;
            False: never.
        fisher: ``"expected"``, or ``"sampled"`` for the pseudo-samples of the paper.
        covariance: ``"full"`` (O(d²) a row), ``"diagonal"``, None (no standard errors), or
            ``"auto"``: full up to 500 coefficients, diagonal beyond.
        shuffle: ``fit`` goes through the rows in random order (of runs of neighbouring rows).
        warm_start: ``fit`` starts from the previous fit's coefficients.
        random_state: of the order and the pseudo-samples.

    Attributes:
        coef_: shape (d,).
        intercept_: a number.
        fitted_: everything else that is known; see also ``summary()``.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(5000, 2)) * [1, 1000]
        >>> y = rng.poisson(np.exp(X @ [0.5, 0.0005]))
        >>> model = TangoRegressor("poisson").fit(X, y)
        >>> (model.coef_ * [1, 1000]).round(2)
        array([0.51, 0.49])
    """

    def __init__(
        self,
        family: str | Family = "gaussian",
        link: str | None = None,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        passes: int = 1,
        polish: bool | str = "auto",
        fisher: str = "expected",
        covariance: str | None = "auto",
        shuffle: bool = True,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.family = family
        self.link = link
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.passes = passes
        self.polish = polish
        self.fisher = fisher
        self.covariance = covariance
        self.shuffle = shuffle
        self.warm_start = warm_start
        self.random_state = random_state

    def _family(self) -> Family:
        return by_name(self.family, self.link)

    def _codes(self, y: NDArray[Any]) -> Array:
        numbers = np.ascontiguousarray(y, dtype=np.float64)
        self._family().check(numbers)
        return numbers

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        self._family()  # or its error, before any of the data
        return self._validated(X, y, y_numeric=True, reset=reset)

    def fit(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Self:
        """Learn from all rows.

        Args:
            X: shape (n, d); dense or sparse, float64 or float32, a data frame of numbers.
            y: shape (n,).
            sample_weight: of each row's loss. Standard errors count a row of weight 2 as two rows;
                robust ones as one row that counts twice.
            offset: added to the linear predictor.
            exposure: multiplies the mean (log links), or the hazard (cloglog).
        """
        with self._unchanged_by_errors():
            checked = self._checked(X, y, reset=True)
            return self._fit(self._rows(*checked, sample_weight, offset, exposure))

    def partial_fit(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> Self:
        """Learn from further rows; arguments as in ``fit``, in whose place chunks of a stream go.

        The result is that of ``fit(shuffle=False)`` on all the rows, to the last bit.
        """
        first = not hasattr(self, "_model")
        checked = self._checked(X, y, reset=first)
        return self._partial_fit(self._rows(*checked, sample_weight, offset, exposure), first)

    @property
    def coef_(self) -> Array:
        """Shape (d,); read-only."""
        return read_only(self._theta()[0, :-1])

    @property
    def intercept_(self) -> float:
        """The constant of the predictor."""
        return float(self._theta()[0, -1])

    def predict(
        self,
        X: ArrayLike | sp.spmatrix,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        interval: float | None = None,
    ) -> Array | tuple[Array, Array, Array]:
        """The mean of y for each row.

        Args:
            X: shape (n, d).
            offset: as in ``fit``.
            exposure: as in ``fit``.
            interval: a level such as 0.95; the result is then (mean, low, high), an interval for
                the mean that reflects the uncertainty of the coefficients.
        """
        matrix, eta = self._predictors(X, offset, exposure)
        model_family, eta = self._family(), eta[:, 0]
        if interval is None:
            return means(model_family, eta)
        if not 0 < interval < 1:
            raise ValueError(f"interval must be a level between 0 and 1; got {interval!r}")
        width = interval_quantile(self.fitted_, interval) * predictor_errors(self.fitted_, matrix)
        return tuple(means(model_family, at) for at in (eta, eta - width, eta + width))  # type: ignore[return-value]

    def score(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """D², the share of the deviance that an intercept leaves: R² for gaussian models."""
        matrix, eta = self._predictors(X, offset, exposure)
        check_consistent_length(eta, y)
        y = self._codes(column_or_1d(y))
        w = checked_weights(sample_weight, len(y))
        model_family, shift = self._family(), self._offset(len(y), offset, exposure)
        tally = Tally(model_family, 2)
        tally.add([Block(matrix, y, w, shift)], 0.0, 0.0)
        null = tally.null_predictor() + shift
        total = float(w @ model_family.unit_deviance(y, null))
        left = float(w @ model_family.unit_deviance(y, eta[:, 0]))
        if total > 0:
            return 1 - left / total
        return 1.0 if left == 0 else 0.0

    @classmethod
    def _from_fitted(cls, fitted: Fitted) -> Self:
        if fitted.classes is not None:
            raise ValueError("this is a classifier: load it with TangoClassifier.load")
        chosen: str | Family = fitted.family
        if fitted.parameters:
            chosen = by_name(fitted.family, fitted.link, **fitted.parameters)
        link = None if fitted.parameters else fitted.link
        with_intercept = has_intercept(fitted)
        return cls(chosen, link, alpha=fitted.alpha, fit_intercept=with_intercept)._restore(fitted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        support = self._family().support
        tags.target_tags.positive_only = support.lower == 0 and not math.isfinite(support.upper)
        return tags
