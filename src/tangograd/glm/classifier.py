"""TangoClassifier: responses that are classes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels

from tangograd.glm.checks import check_finite_target, read_only
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, Multinomial, by_name, means
from tangograd.glm.fitted import Fitted
from tangograd.glm.linear import GeneralisedLinear
from tangograd.glm.loaded import has_intercept

Array = NDArray[np.float64]


class TangoClassifier(ClassifierMixin, GeneralisedLinear):  # type: ignore[misc]
    """Logistic regression, with two classes or more, learned in one pass with no tuning.

    Args:
        class_weight: a weight for each class, or ``"balanced"``.
        alpha: as the others in :class:`TangoRegressor`. With more than two classes the penalty is
            that of the coefficients of all classes, centred, as in scikit-learn.
        fit_intercept: see there.
        passes: see there.
        polish: see there.
        fisher: see there.
        covariance: see there.
        shuffle: see there.
        warm_start: see there.
        random_state: see there.

    Attributes:
        classes_: the labels, sorted. Summaries have the first as the baseline.
        coef_: shape (1, d) for two classes, else (classes, d), centred.
        intercept_: shape (1,) or (classes,).

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = TangoClassifier(alpha=1e-4).fit(X, y)
        >>> round(model.score(X, y), 2)
        0.97
    """

    def __init__(
        self,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        passes: int = 1,
        polish: bool | str = "auto",
        fisher: str = "expected",
        covariance: str | None = "auto",
        shuffle: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.passes = passes
        self.polish = polish
        self.fisher = fisher
        self.covariance = covariance
        self.shuffle = shuffle
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state

    _link = "logit"  # a model from a file may have another

    def _family(self) -> Family:
        count = len(self.classes_)
        return by_name("binomial", self._link) if count == 2 else Multinomial(count)

    def _labels(self) -> tuple[Any, ...]:
        return tuple(self.classes_.tolist())

    def _codes(self, y: NDArray[Any]) -> Array:
        if len(self.classes_) == 2:
            second = np.asarray(y == self.classes_[1])
            if second.sum() + np.count_nonzero(y == self.classes_[0]) == len(y):
                return second.astype(np.float64)
        codes = np.searchsorted(self.classes_, y)
        known = np.minimum(codes, len(self.classes_) - 1)
        wrong = np.flatnonzero(self.classes_[known] != y)
        if len(wrong):
            raise DataError(
                f"row {wrong[0]} has the class {y[wrong].tolist()[0]!r}, which is not among "
                f"{self.classes_}"
            )
        return codes.astype(np.float64)

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Any, Any]:
        X, y = self._validated(X, y, reset=reset)
        if y.dtype.kind == "O":
            check_finite_target(y)
        if y.dtype.kind not in "iub":  # whole numbers are classes
            check_classification_targets(y)
        return X, y

    def _weights(self, y: NDArray[Any], codes: Array, weights: Array) -> Array:
        if self.class_weight is None:
            return weights
        if self.class_weight == "balanced":
            counts = np.bincount(codes.astype(np.int64), weights, len(self.classes_))
            if not counts.all():
                empty = self.classes_.tolist()[int(np.argmin(counts))]
                raise DataError(
                    "class_weight='balanced' divides by the weight of each class, and class "
                    f"{empty!r} has none: leave its rows out, or give class_weight as numbers"
                )
        each = compute_class_weight(
            self.class_weight, classes=self.classes_, y=y, sample_weight=weights
        )
        return np.asarray(weights * each[codes.astype(np.int64)])

    def fit(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """Learn from all rows; arguments as in :meth:`TangoRegressor.fit`, y labels of any kind."""
        with self._unchanged_by_errors():
            checked = self._checked(X, y, reset=True)
            self.classes_, self._link = _at_least_two(_classes(checked[1])), "logit"
            return self._fit(self._rows(*checked, sample_weight, offset, None))

    def partial_fit(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """Learn from further rows; the first call needs the ``classes`` of the whole stream."""
        first = not hasattr(self, "_model")
        checked = self._checked(X, y, reset=first)
        if first:
            if classes is None:
                raise ValueError(
                    "the first call of partial_fit needs classes=, all of the stream's"
                )
            self.classes_ = _at_least_two(unique_labels(classes))
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            raise ValueError(
                f"classes={classes!r} are not those of the first call, {self.classes_}"
            )
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows; give partial_fit the weights themselves"
            )
        return self._partial_fit(self._rows(*checked, sample_weight, offset, None), first)

    @property
    def coef_(self) -> Array:
        """Shape (1, d) or (classes, d); read-only."""
        return read_only(_centred_classes(self._theta()[:, :-1]))

    @property
    def intercept_(self) -> Array:
        """Shape (1,) or (classes,); read-only."""
        return read_only(_centred_classes(self._theta()[:, -1:])[:, 0])

    def decision_function(
        self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None
    ) -> Array:
        """The log-odds (η) of the second class, shape (n,); or of all, centred, (n, classes)."""
        _, eta = self._predictors(X, offset)
        if len(self.classes_) == 2:
            return eta[:, 0]
        return _centred_classes(eta.T).T

    def predict_proba(self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None) -> Array:
        """The probability of each class, shape (n, classes)."""
        _, eta = self._predictors(X, offset)
        if self._link != "logit":
            second = means(self._family(), eta[:, 0])
            return np.column_stack([1 - second, second])
        return np.asarray(softmax(np.c_[np.zeros(len(eta)), eta], axis=1))

    def predict_log_proba(
        self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None
    ) -> Array:
        """Its logarithm."""
        if self._link != "logit":
            with np.errstate(divide="ignore"):
                return np.asarray(np.log(self.predict_proba(X, offset)))
        _, eta = self._predictors(X, offset)
        return np.asarray(log_softmax(np.c_[np.zeros(len(eta)), eta], axis=1))

    def predict(self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None) -> NDArray[Any]:
        """The likeliest class of each row."""
        likeliest = self.predict_proba(X, offset).argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[likeliest]
        return chosen

    def score(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """The share of rows whose class is predicted."""
        return float(accuracy_score(y, self.predict(X, offset), sample_weight=sample_weight))

    @classmethod
    def _from_fitted(cls, fitted: Fitted) -> Self:
        if fitted.classes is None:
            raise ValueError("this is a regression: load it with TangoRegressor.load")
        loaded = cls(alpha=fitted.alpha, fit_intercept=has_intercept(fitted))._restore(fitted)
        loaded.classes_, loaded._link = np.asarray(fitted.classes), fitted.link
        return loaded


def _classes(y: NDArray[Any]) -> NDArray[Any]:
    """The distinct labels, sorted."""
    if y.dtype.kind in "iu":  # small whole numbers are counted, ten times quicker than sorted
        low, high = int(y.min()), int(y.max())
        if high - low < 1000 and abs(low) < 2**31:
            counts = np.bincount(np.subtract(y, low, dtype=np.int64))
            return np.asarray(np.flatnonzero(counts) + low, dtype=y.dtype)
    return np.asarray(np.unique(y))


def _at_least_two(classes: NDArray[Any]) -> NDArray[Any]:
    if len(classes) < 2:
        raise DataError(f"there is only one class, {classes.tolist()[0]!r}: nothing to tell apart")
    return classes


def _centred_classes(theta: Array) -> Array:
    """Coefficients against the first class as those of all, centred; two classes stay one row."""
    if len(theta) == 1:
        return theta
    whole = np.vstack([np.zeros(theta.shape[1]), theta])
    return np.asarray(whole - whole.mean(axis=0))
