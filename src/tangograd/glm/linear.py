"""Generalised linear models in one pass, as scikit-learn estimators: what all share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    check_is_fitted,
    validate_data,
)

from tangograd.glm import engine
from tangograd.glm.checks import check_among, check_finite_target, checked_weights, numbers_for
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family
from tangograd.glm.fitted import Fitted
from tangograd.glm.loaded import Loaded, has_intercept
from tangograd.glm.matrices import Block, DesignMatrix, as_matrix
from tangograd.glm.numerics.blas_threads import single_thread
from tangograd.glm.one_pass.diagnostics import describe
from tangograd.glm.order import Shuffled

if TYPE_CHECKING:
    from tangograd.glm.reports.summary import Summary

Array = NDArray[np.float64]

NUMBERS = (int, float, np.integer, np.floating)
#: columns from which linear algebra may use several threads
WIDE = 256
EXTREME = "the coefficients are not finite; look for extreme values in X"


class GeneralisedLinear(BaseEstimator):  # type: ignore[misc]
    """What regressors and classifiers share."""

    # the parameters, set by the constructors
    alpha: float
    fit_intercept: bool
    passes: int
    polish: bool | str
    fisher: str
    covariance: str | None
    shuffle: bool
    warm_start: bool
    random_state: int | np.random.RandomState | None

    _model: OnePass | Loaded

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
            check_finite_target(y)
            raise
        return as_matrix(X), y

    def _check_options(self) -> None:
        check_among(self.fisher, "fisher", ("expected", "sampled"))
        check_among(self.covariance, "covariance", ("auto", "full", "diagonal", None))
        check_among(self.polish, "polish", ("auto", True, False))
        if not (isinstance(self.alpha, NUMBERS) and 0 <= self.alpha < np.inf):
            raise ValueError(f"alpha must be 0 or positive; got {self.alpha!r}")
        if not (isinstance(self.passes, int | np.integer) and self.passes >= 1):
            raise ValueError(f"passes must be 1 or more; got {self.passes!r}")

    def _engine(self, columns: int) -> OnePass:
        return OnePass(
            self._family(),
            columns,
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
    ) -> Block:
        codes = self._codes(y)
        weights = self._weights(y, codes, checked_weights(sample_weight, len(y)))
        return Block(X, codes, weights, self._offset(len(y), offset, exposure))

    def _check_finite(self, X: DesignMatrix) -> None:
        """Name the first row and column that are not finite."""
        found = X.first_not_finite()
        if found is None:
            return
        row, column, value = found
        names = getattr(self, "feature_names_in_", None)
        name = f"column {column}" if names is None else f"column {names[column]!r}"
        what = "NaN" if np.isnan(value) else "infinity (inf)"
        raise DataError(f"X has {what} in row {row} of {name}: drop such rows or fill them in")

    def _offset(self, n: int, offset: ArrayLike | None, exposure: ArrayLike | None) -> Array:
        total = np.zeros(n)
        if offset is not None:
            total += numbers_for(offset, "offset", n)
        if exposure is not None:
            if self._family().link not in ("log", "cloglog"):
                raise ValueError(
                    "exposure multiplies the mean (of cloglog the hazard), which needs a log or "
                    f"cloglog link; that of {self._family().name} is {self._family().link}"
                )
            given = numbers_for(exposure, "exposure", n)
            if not (given > 0).all():
                first = int(np.flatnonzero(~(given > 0))[0])
                raise DataError(f"exposure must be positive; row {first} has {given[first]:g}")
            total += np.log(given)
        return total

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """A fit that fails leaves the model of the one before."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _fit(self, rows: Block) -> Self:
        if not rows.weights.any():
            raise DataError("sample_weight is zero in all rows: there is nothing to learn from")
        if rows.X.nbytes <= engine.BUFFER_BYTES:
            self._check_finite(rows.X)
        before = getattr(self, "_model", None) if self.warm_start else None
        model = self._engine(rows.X.shape[1])
        if before is not None and before.coefficients().shape == (model.outputs, model.columns + 1):
            model.initial = before.coefficients()
            model.initial[:, -1] *= self.fit_intercept
        try:
            # products of narrow blocks are quickest on one thread, by far on a busy machine
            narrow = rows.X.shape[1] < WIDE
            with (
                np.errstate(invalid="ignore", over="ignore"),
                single_thread() if narrow else nullcontext(),
            ):
                self._learn(model, rows)
        except (DataError, np.linalg.LinAlgError) as error:
            self._check_finite(rows.X)  # what is not finite reaches the coefficients at once
            if isinstance(error, DataError):
                raise
            raise DataError(EXTREME) from error
        self._model = model
        return self

    def _learn(self, model: OnePass, rows: Block) -> None:
        ordered = Shuffled(rows, self.shuffle, self.random_state)
        for part in ordered:
            model.feed_rows(part)
        model.settle()
        for _ in range(int(self.passes) - 1 if model.streaming else 0):
            model.rewind()
            for part in ordered:
                model.feed_rows(part)
        if self.polish:
            model.polish(ordered.again, only_if_needed=self.polish == "auto")
        model.name_rows(ordered.places)
        self._warn(model)
        model.condense()
        if not np.isfinite(model.coefficients()).all():
            raise DataError(EXTREME)

    def _warn(self, model: OnePass) -> None:
        """Warn of what makes the result unfit for use."""
        names = [str(name) for name in getattr(self, "feature_names_in_", ())]
        names = names or [f"x{i}" for i in range(self.n_features_in_)]
        said = [describe(each, names) for each in model.diagnoses if each.serious]
        if said:
            warnings.warn("\n".join(said), ConvergenceWarning, stacklevel=4)

    def _partial_fit(self, rows: Block, first: bool) -> Self:
        self._check_finite(rows.X)
        model = self._engine(rows.X.shape[1]) if first else self._model
        if isinstance(model, Loaded):
            raise ValueError("a loaded model cannot learn further; fit a new one")
        model.feed_rows(rows.copy())
        self._model = model
        return self

    # --- results

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    @property
    def fitted_(self) -> Fitted:
        """Everything that the fit knows: :class:`tangograd.glm.fitted.Fitted`."""
        check_is_fitted(self)
        if isinstance(self._model, Loaded):
            return self._model.fitted
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            names = [f"x{i}" for i in range(self.n_features_in_)]
        return self._model.fitted(tuple(str(name) for name in names), self._labels())

    @property
    def excess_(self) -> float:
        """Excess variance over maximum likelihood, as a share: measured; 0 after convergence."""
        return self.fitted_.excess - 1

    def _theta(self) -> Array:
        check_is_fitted(self)
        return self._model.coefficients()

    def _predictors(
        self, X: Any, offset: ArrayLike | None = None, exposure: ArrayLike | None = None
    ) -> tuple[Any, Array]:
        """Return X, checked, and η of shape (n, outputs)."""
        check_is_fitted(self)
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
            reset=False,
        )
        X = as_matrix(X)
        self._check_finite(X)
        theta = self._theta()
        eta = X.dot(theta[:, :-1].T) + theta[:, -1]
        return X, eta + self._offset(X.shape[0], offset, exposure)[:, None]

    def summary(self, *, level: float = 0.95, robust: bool = False) -> Summary:
        """Coefficients with standard errors, z, p and intervals; to print or show in a notebook.

        Args:
            level: of the intervals.
            robust: standard errors of the sandwich covariance, right also where the model is not.
        """
        from tangograd.glm.reports.summary import Summary

        return Summary(self.fitted_, level=level, robust=robust)

    def save(self, path: str | Path) -> None:
        """Write the fitted model as versioned JSON; nothing in it is executable."""
        from tangograd.glm.saved import fitted_to_dict, save

        if not self.fit_intercept and has_intercept(self.fitted_):
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
        names = list(fitted.names[1:] if has_intercept(fitted) else fitted.names)
        self._model = Loaded(fitted)
        self.n_features_in_ = len(names)
        if names != [f"x{i}" for i in range(len(names))]:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
