"""Generalised linear models in one pass, as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, softmax
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from tangograd.glm import engine
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, family, multinomial
from tangograd.glm.fitted import Fitted
from tangograd.glm.rows import Rows, is_sparse

if TYPE_CHECKING:
    from tangograd.glm.summary import Summary

Array = NDArray[np.float64]

#: rows are shuffled in runs of about so many bytes, which memory reads at once,
RUN_BYTES = 4096
#: unless neighbouring targets correlate by more than this: then one by one
TOGETHER = 0.05
NUMBERS = (int, float, np.integer, np.floating)
EXTREME = "the coefficients are not finite; look for extreme values in X"


class _GeneralisedLinear(BaseEstimator):  # type: ignore[misc]
    """What regressors and classifiers share."""

    # the parameters, set by the constructors
    alpha: float
    fit_intercept: bool
    passes: int
    polish: bool
    fisher: str
    covariance: str | None
    shuffle: bool
    warm_start: bool
    random_state: int | np.random.RandomState | None

    _model: OnePass | _Loaded

    # --- what differs

    def _family(self) -> Family:
        raise NotImplementedError

    def _labels(self) -> tuple[Any, ...] | None:
        return None

    def _codes(self, y: NDArray[Any]) -> Array:
        """The target as numbers that the family takes."""
        raise NotImplementedError

    def _weights(self, y: NDArray[Any], codes: Array, weights: Array) -> Array:  # noqa: ARG002
        """The weights of the rows, given those of the user."""
        return weights

    # --- learning

    def _validated(self, X: Any, y: Any, **options: Any) -> tuple[Any, NDArray[Any]]:
        """X, dense in C order or CSR, and y of shape (n,); X may not be finite yet, see _fit."""
        self._check_options()
        try:
            X, y = validate_data(
                self,
                X,
                y,
                accept_sparse="csr",
                dtype=[np.float64, np.float32],
                order="C",
                ensure_all_finite=False,
                **options,
            )
        except (TypeError, ValueError):
            _check_finite_target(y)
            raise
        if is_sparse(X) and not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        return X, y

    def _check_options(self) -> None:
        _in(self.fisher, "fisher", ("expected", "sampled"))
        _in(self.covariance, "covariance", ("auto", "full", "diagonal", None))
        if not (isinstance(self.alpha, NUMBERS) and 0 <= self.alpha < np.inf):
            raise ValueError(f"alpha must be 0 or positive; got {self.alpha!r}")
        if not (isinstance(self.passes, int | np.integer) and self.passes >= 1):
            raise ValueError(f"passes must be 1 or more; got {self.passes!r}")

    def _engine(self, columns: int) -> OnePass:
        labels = self._labels()
        return OnePass(
            self._family(),
            columns,
            classes=len(labels) if labels is not None else 2,
            alpha=float(self.alpha),
            intercept=self.fit_intercept,
            fisher=self.fisher,
            covariance=self.covariance,
            seed=check_random_state(self.random_state).randint(2**31),
        )

    def _rows(
        self,
        X: Any,
        y: NDArray[Any],
        sample_weight: ArrayLike | None,
        offset: ArrayLike | None,
        exposure: ArrayLike | None,
    ) -> Rows:
        codes = self._codes(y)
        weights = self._weights(y, codes, _weights(sample_weight, len(y)))
        return Rows(X, codes, weights, self._offset(len(y), offset, exposure))

    def _check_finite(self, X: Any) -> None:
        """Name the first row and column that are not finite."""
        values = X.data if is_sparse(X) else X
        with np.errstate(invalid="ignore", over="ignore"):  # the sum is a quick first look
            if np.isfinite(values.sum()) or np.isfinite(values).all():
                return
        if is_sparse(X):
            X = X.tocoo()
            worst = np.flatnonzero(~np.isfinite(X.data))[0]
            row, column, value = int(X.row[worst]), int(X.col[worst]), X.data[worst]
        else:
            row, column = (int(i[0]) for i in np.nonzero(~np.isfinite(X)))
            value = X[row, column]
        names = getattr(self, "feature_names_in_", None)
        name = f"column {column}" if names is None else f"column {names[column]!r}"
        what = "NaN" if np.isnan(value) else "infinity (inf)"
        raise DataError(f"X has {what} in row {row} of {name}: drop such rows or fill them in")

    def _offset(self, n: int, offset: ArrayLike | None, exposure: ArrayLike | None) -> Array:
        total = np.zeros(n)
        if offset is not None:
            total += _column(offset, "offset", n)
        if exposure is not None:
            if self._family().link != "log":
                raise ValueError(
                    f"exposure multiplies the mean, which needs a log link; that of "
                    f"{self._family().name} is {self._family().link}"
                )
            given = _column(exposure, "exposure", n)
            if not (given > 0).all():
                first = int(np.flatnonzero(~(given > 0))[0])
                raise DataError(f"exposure must be positive; row {first} has {given[first]:g}")
            total += np.log(given)
        return total

    def _fit(self, rows: Rows) -> Self:
        if not rows.w.any():
            raise DataError("sample_weight is zero in all rows: there is nothing to learn from")
        if rows.bytes <= engine.BUFFER_BYTES:
            self._check_finite(rows.X)
        before = getattr(self, "_model", None) if self.warm_start else None
        model = self._engine(rows.X.shape[1])
        if before is not None and before.theta.shape == model.theta.shape:
            model.initial = before.coefficients()
            model.initial[:, -1] *= self.fit_intercept
        try:
            with np.errstate(invalid="ignore", over="ignore"):
                self._learn(model, rows)
        except (DataError, np.linalg.LinAlgError) as error:
            self._check_finite(rows.X)  # what is not finite reaches the coefficients at once
            if isinstance(error, DataError):
                raise
            raise DataError(EXTREME) from error
        self._model = model
        return self

    def _learn(self, model: OnePass, rows: Rows) -> None:
        ordered = _Shuffled(rows, self.shuffle, self.random_state)
        for part in ordered:
            model.feed_rows(part)
        model.settle()
        for _ in range(int(self.passes) - 1 if model.streaming else 0):
            model.rewind()
            for part in ordered:
                model.feed_rows(part)
        if self.polish:
            model.polish(lambda: [rows])
        model.condense()
        if not np.isfinite(model.coefficients()).all():
            raise DataError(EXTREME)

    def _partial_fit(self, rows: Rows, first: bool) -> Self:
        self._check_finite(rows.X)
        model = self._engine(rows.X.shape[1]) if first else self._model
        if isinstance(model, _Loaded):
            raise ValueError("a loaded model cannot learn further; fit a new one")
        X, y, w, offset, _ = rows
        model.feed_rows(Rows(X.copy(), y.copy(), w.copy(), offset.copy()))
        self._model = model
        return self

    # --- results

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    @property
    def fitted_(self) -> Fitted:
        """Everything that the fit knows: :class:`tangograd.glm.fitted.Fitted`."""
        check_is_fitted(self)
        if isinstance(self._model, _Loaded):
            return self._model.fitted
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{i}" for i in range(self.n_features_in_)]
        return self._model.fitted(tuple(str(name) for name in names), self._labels())

    def _theta(self) -> Array:
        check_is_fitted(self)
        return self._model.coefficients()

    def _predictors(
        self, X: Any, offset: ArrayLike | None = None, exposure: ArrayLike | None = None
    ) -> tuple[Any, Array]:
        """X, checked, and η of shape (n, outputs)."""
        check_is_fitted(self)
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            reset=False,
        )
        self._check_finite(X)
        theta = self._theta()
        eta = np.asarray(X @ theta[:, :-1].T, dtype=np.float64) + theta[:, -1]
        return X, eta + self._offset(X.shape[0], offset, exposure)[:, None]

    def summary(self, *, level: float = 0.95, robust: bool = False) -> Summary:
        """Coefficients with standard errors, z, p and intervals; to print or show in a notebook.

        Args:
            level: of the intervals.
            robust: standard errors of the sandwich covariance, right also where the model is not.
        """
        from tangograd.glm.summary import Summary

        return Summary(self.fitted_, level=level, robust=robust)

    def save(self, path: str | Path) -> None:
        """Write the fitted model as versioned JSON; nothing in it is executable."""
        from tangograd.glm.saved import fitted_to_dict, save

        if not self.fit_intercept and _has_intercept(self.fitted_):
            raise DataError(
                "the first column is called 'intercept', which in a model file is the constant's "
                "name: rename it"
            )
        save(Path(path), {"fitted": fitted_to_dict(self.fitted_), "design": None})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A model written by ``save`` or by ``tangograd fit``, for prediction."""
        from tangograd.glm.saved import fitted_from_dict, load

        return cls._from_fitted(fitted_from_dict(load(Path(path))["fitted"]))

    @classmethod
    def _from_fitted(cls, fitted: Fitted) -> Self:
        raise NotImplementedError

    def _restore(self, fitted: Fitted) -> Self:
        names = list(fitted.names[1:] if _has_intercept(fitted) else fitted.names)
        self._model = _Loaded(fitted)
        self.n_features_in_ = len(names)
        if names != [f"x{i}" for i in range(len(names))]:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class TangoRegressor(RegressorMixin, _GeneralisedLinear):  # type: ignore[misc]
    """A generalised linear model, learned in one pass over the rows with no tuning.

    ``E[y|x] = g⁻¹(x·coef + intercept)``, by TANGO: each row is seen once, at a cost of O(d). The
    estimate is that of maximum likelihood up to a few per cent of its standard errors; up to 64 MB
    of rows, or with ``polish``, it is maximum likelihood's.

    Args:
        family: ``"gaussian"``, ``"binomial"``, ``"poisson"``, ``"gamma"``, ``"negative_binomial"``,
            ``"tweedie"``, or a :func:`tangograd.glm.family` with its dispersion or power.
        link: of binomial models ``"logit"`` (default), ``"probit"`` or ``"cloglog"``; the others
            have one link each, identity for gaussian and log for the rest.
        alpha: the penalty in ``mean loss + alpha/2 ‖coef‖²``, the loss being half the deviance.
        fit_intercept: add a constant to the predictor.
        passes: over the rows; two come closer to maximum likelihood.
        polish: at most three further passes with Newton steps, until one is worth less than 0.01
            standard errors.
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
        polish: bool = False,
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
        return family(self.family, self.link)

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
            sample_weight: of each row's loss.
            offset: added to the linear predictor.
            exposure: multiplies the mean (log links).
        """
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
        """Shape (d,)."""
        return self._theta()[0, :-1]

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
        X, eta = self._predictors(X, offset, exposure)
        model_family, eta = self._family(), eta[:, 0]
        if interval is None:
            return model_family.mean(eta)
        if not 0 < interval < 1:
            raise ValueError(f"interval must be a level between 0 and 1; got {interval!r}")
        width = norm.ppf(0.5 + interval / 2) * predictor_errors(self.fitted_, X)
        return tuple(model_family.mean(at) for at in (eta, eta - width, eta + width))  # type: ignore[return-value]

    def score(
        self,
        X: ArrayLike | sp.spmatrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """D², the share of the deviance explained: R² for gaussian models."""
        X, eta = self._predictors(X, offset, exposure)
        check_consistent_length(X, y)
        y = self._codes(column_or_1d(y))
        w = _weights(sample_weight, len(y))
        model_family = self._family()
        mean = float(np.average(y, weights=w))
        null = np.full(len(y), model_family.predictor(mean))
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
            chosen = family(fitted.family, fitted.link, **fitted.parameters)
        link = None if fitted.parameters else fitted.link
        with_intercept = _has_intercept(fitted)
        return cls(chosen, link, alpha=fitted.alpha, fit_intercept=with_intercept)._restore(fitted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._family().name not in ("gaussian", "binomial")
        return tags


class TangoClassifier(ClassifierMixin, _GeneralisedLinear):  # type: ignore[misc]
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
        polish: bool = False,
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

    def _family(self) -> Family:
        return family("binomial") if len(self.classes_) == 2 else multinomial()

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
            _check_finite_target(y)
        if y.dtype.kind not in "iub":  # whole numbers are classes
            check_classification_targets(y)
        return X, y

    def _weights(self, y: NDArray[Any], codes: Array, weights: Array) -> Array:
        if self.class_weight is None:
            return weights
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
        checked = self._checked(X, y, reset=True)
        self.classes_ = _at_least_two(_classes(checked[1]))
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
        """Shape (1, d) or (classes, d)."""
        return _centred_classes(self._theta()[:, :-1])

    @property
    def intercept_(self) -> Array:
        """Shape (1,) or (classes,)."""
        return _centred_classes(self._theta()[:, -1:])[:, 0]

    def decision_function(
        self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None
    ) -> Array:
        """The log-odds of the second class, shape (n,); or of all, centred, (n, classes)."""
        _, eta = self._predictors(X, offset)
        if len(self.classes_) == 2:
            return eta[:, 0]
        return _centred_classes(eta.T).T

    def predict_proba(self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None) -> Array:
        """The probability of each class, shape (n, classes)."""
        _, eta = self._predictors(X, offset)
        return np.asarray(softmax(np.c_[np.zeros(len(eta)), eta], axis=1))

    def predict_log_proba(
        self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None
    ) -> Array:
        """Its logarithm."""
        _, eta = self._predictors(X, offset)
        return np.asarray(log_softmax(np.c_[np.zeros(len(eta)), eta], axis=1))

    def predict(self, X: ArrayLike | sp.spmatrix, offset: ArrayLike | None = None) -> NDArray[Any]:
        """The likeliest class of each row."""
        _, eta = self._predictors(X, offset)
        chosen: NDArray[Any] = self.classes_[np.c_[np.zeros(len(eta)), eta].argmax(axis=1)]
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
        loaded = cls(alpha=fitted.alpha, fit_intercept=_has_intercept(fitted))._restore(fitted)
        loaded.classes_ = np.asarray(fitted.classes)
        return loaded


def _has_intercept(fitted: Fitted) -> bool:
    return fitted.names[:1] == ("intercept",)


class _Loaded:
    """A model read from a file: it predicts, and learns no more."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted = fitted
        outputs = len(fitted.outcomes)
        theta = fitted.estimates.reshape(outputs, -1)
        if _has_intercept(fitted):
            theta = np.roll(theta, -1, axis=1)
        else:
            theta = np.c_[theta, np.zeros(outputs)]
        self.theta = theta

    def coefficients(self) -> Array:
        """Shape (outputs, d + 1), the intercept last."""
        return self.theta.copy()


class _Shuffled:
    """The rows in one random order of runs of neighbours, or as they are; block after block."""

    def __init__(
        self, rows: Rows, shuffle: bool, random_state: int | np.random.RandomState | None
    ) -> None:
        self.rows = rows
        self.shuffle = shuffle and rows.bytes > engine.BUFFER_BYTES
        self.rng = check_random_state(random_state)

    def __iter__(self) -> Iterator[Rows]:
        if not self.shuffle:
            yield self.rows
            return
        n = len(self.rows)
        apart = _neighbour_correlation(self.rows.y) > TOGETHER
        run = 1 if apart else max(1, RUN_BYTES * n // max(self.rows.bytes, 1))
        starts = self.rng.permutation(-(-n // run)) * run
        order = (starts[:, None] + np.arange(run)).ravel()
        order = order[order < n]
        X, y, w, offset, _ = self.rows
        w, offset = (column if _same(column) else column[order] for column in (w, offset))
        for begin in range(0, n, engine.BLOCK_ROWS):
            here = slice(begin, begin + engine.BLOCK_ROWS)
            yield Rows(X, y[order[here]], w[here], offset[here], order[here])


def _neighbour_correlation(y: Array) -> float:
    z = y - y.mean()
    return float(z[1:] @ z[:-1] / max(float(z @ z), 1e-300))


def _same(column: Array) -> bool:
    return bool((column == column[0]).all())


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


def predictor_errors(fitted: Fitted, X: Any) -> Array:
    """The standard error of η of each row, shape (n,), for a model with one output."""
    if fitted.covariance is None:
        raise ValueError(
            "intervals need the full covariance matrix, and this model has "
            f"{'none' if fitted.covariance_kind == 'none' else 'its diagonal alone'}: fit with "
            "covariance='full'"
        )
    V = np.nan_to_num(fitted.covariance)  # coefficients without a variance are 0
    if len(V) > X.shape[1]:
        cross = np.asarray(X @ V[1:, 0])
        inner, base = V[1:, 1:], V[0, 0]
    else:
        cross, inner, base = np.zeros(X.shape[0]), V, 0.0
    XV = np.asarray(X @ inner)
    squares = (
        np.asarray(X.multiply(XV).sum(axis=1)).ravel()
        if is_sparse(X)
        else (np.einsum("ij,ij->i", X, XV))
    )
    return np.asarray(np.sqrt(np.maximum(squares + 2 * cross + base, 0.0)))


def _centred_classes(theta: Array) -> Array:
    """Coefficients against the first class as those of all, centred; two classes stay one row."""
    if len(theta) == 1:
        return theta
    whole = np.vstack([np.zeros(theta.shape[1]), theta])
    return np.asarray(whole - whole.mean(axis=0))


def _column(values: ArrayLike, name: str, n: int) -> Array:
    column = np.asarray(values, dtype=np.float64)
    if column.shape != (n,):
        raise DataError(
            f"{name} must have a number for each of the {n} rows; its shape is {column.shape}"
        )
    if not np.isfinite(column).all():
        first = int(np.flatnonzero(~np.isfinite(column))[0])
        raise DataError(f"{name} must be finite; row {first} has {column[first]}")
    return np.ascontiguousarray(column)


def _weights(sample_weight: ArrayLike | None, n: int) -> Array:
    if sample_weight is None:
        return np.ones(n)
    weights = _column(sample_weight, "sample_weight", n)
    if (weights < 0).any():
        first = int(np.flatnonzero(weights < 0)[0])
        raise DataError(f"sample_weight must be 0 or positive; row {first} has {weights[first]:g}")
    return weights


def _check_finite_target(y: Any) -> None:
    """Name the first row of y that is not finite, or missing among labels."""
    values = np.asarray(y).ravel()
    if y is None or values.dtype.kind not in "fO":
        return
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values)
    else:
        bad = np.fromiter(map(_missing, values), bool, len(values))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise DataError(f"y must be finite, and is {values[first]} in row {first}")


def _missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # which NaN is
    except TypeError:  # pandas' NA
        return True


def _in(value: object, name: str, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
