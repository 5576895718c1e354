"""What a fitted model says of new rows: means, probabilities, and intervals of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, logit

from tangograd.glm.designs.columns import Faults, numbers, take_column
from tangograd.glm.designs.design import Design, Rows
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, Multinomial, by_name
from tangograd.glm.families import means as family_means
from tangograd.glm.fitted import Array, Fitted
from tangograd.glm.loaded import has_intercept, interval_quantile
from tangograd.glm.matrices import as_matrix
from tangograd.glm.saved import fitted_from_dict, load

TINY = 1e-300


def family_of(fitted: Fitted) -> Family:
    """The family of a fitted model.

    Raises:
        DataError: there is none of its name, link and parameters.
    """
    if fitted.family == Multinomial.name:
        return Multinomial(len(fitted.classes or ()))
    try:
        return by_name(fitted.family, fitted.link, **fitted.parameters)
    except ValueError as error:
        raise DataError(f"not a usable model: {error}; fit it again") from error


def predictors(fitted: Fitted, X: Any, offset: Array | None = None) -> Array:
    """``η = X θᵀ + offset``, shape (n, outputs), for X of shape (n, columns), dense or CSR."""
    theta = fitted.estimates.reshape(len(fitted.outcomes), -1)
    base: Array | float = 0.0
    if has_intercept(fitted):
        base, theta = theta[:, 0], theta[:, 1:]
    eta = as_matrix(X).dot(theta.T) + base
    return eta if offset is None else eta + offset[:, None]


def means(fitted: Fitted, eta: Array) -> Array:
    """The means, shape (n,); of a classifier the probabilities, shape (n, classes)."""
    known = family_of(fitted)
    if isinstance(known, Multinomial):
        return known.probabilities(eta)
    mean = family_means(known, eta[:, 0])
    return mean if fitted.classes is None else np.c_[1 - mean, mean]


def intervals(fitted: Fitted, X: Any, eta: Array, level: float) -> tuple[Array, Array]:
    """The lower and upper ends of intervals for the means, shaped as they are.

    By the delta method: ``η ± q se(η)``, ``se² = x V xᵀ``, put through the inverse link; of several
    classes the same for the log-odds of each against all others. Coefficients of which the data say
    nothing (no standard error) count as known.

    Raises:
        DataError: the model has no full covariance matrix, or no more rows than coefficients.
    """
    if fitted.covariance is None:
        held = "none" if fitted.covariance_kind == "none" else "its diagonal alone"
        raise DataError(
            f"intervals need the covariance matrix of the coefficients, and this model has {held}: "
            "leave out --interval, or fit a model with fewer columns"
        )
    reach = interval_quantile(fitted, level)
    variances = _predictor_covariances(fitted, X)
    if fitted.family == "multinomial":
        p = np.clip(means(fitted, eta), TINY, 1 - np.finfo(float).eps)
        log_odds = logit(p)
        spread = reach * np.sqrt(np.maximum(_log_odds_variances(p, variances), 0.0))
        return np.asarray(expit(log_odds - spread)), np.asarray(expit(log_odds + spread))
    spread = reach * np.sqrt(np.maximum(variances[:, :, 0], 0.0))
    low, high = means(fitted, eta - spread), means(fitted, eta + spread)
    if fitted.classes is None:
        return low, high
    return np.c_[high[:, 0], low[:, 1]], np.c_[low[:, 0], high[:, 1]]


def _predictor_covariances(fitted: Fitted, X: Any) -> Array:
    """Of the rows' η, shape (n, outputs, outputs)."""
    x = as_matrix(X).toarray()
    if has_intercept(fitted):
        x = np.c_[np.ones(len(x)), x]
    outputs, size = len(fitted.outcomes), len(fitted.names)
    V = np.nan_to_num(np.asarray(fitted.covariance)).reshape(outputs, size, outputs, size)
    result = np.empty((len(x), outputs, outputs))
    for i in range(outputs):
        for j in range(i + 1):
            result[:, i, j] = result[:, j, i] = np.einsum("nk,nk->n", x @ V[i, :, j], x)
    return result


def _log_odds_variances(p: Array, variances: Array) -> Array:
    """Of each class's log-odds ``η_k - log Σ_{j≠k} exp η_j``, shape (n, classes)."""
    classes = p.shape[1]
    gradients = np.empty((len(p), classes, classes))
    for k in range(classes):
        gradients[:, k] = -p / (1 - p[:, [k]])
        gradients[:, k, k] = 1.0
    own = gradients[:, :, 1:]
    return np.asarray(np.einsum("nki,nij,nkj->nk", own, variances, own))


@dataclass(frozen=True)
class Predictions:
    """What a model says of some rows.

    Attributes:
        kept: the numbers of the rows that have a prediction, increasing.
        mean: their means, or the probabilities of the classes, shape (kept, classes).
        low: ends of the intervals, shaped as the means; ``None`` if they were not asked for.
        high: the same.
        dropped: how many rows have no prediction since a column is missing, by column.
        unseen: how many since a level is not known, by column and level.
    """

    kept: NDArray[np.int64]
    mean: Array
    low: Array | None
    high: Array | None
    dropped: dict[str, int]
    unseen: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Model:
    """A model as it is saved: what was fitted, and how tables become its columns.

    Attributes:
        fitted: the model.
        design: from tables to columns; ``None`` if columns of numbers are matched by name.

    >>> fitted = Fitted(
    ...     "poisson", "log", ("intercept", "x"), np.array([0.0, 1.0]), rows=9, weight=9.0,
    ...     dispersion=1.0, log_likelihood=-9.0, deviance=9.0, null_deviance=9.0, progressive=False
    ... )
    >>> Model(fitted).predict(pa.record_batch({"x": [0.0, None, 1.0]})).mean.round(3)
    array([1.   , 2.718])
    """

    fitted: Fitted
    design: Design | None = None

    @staticmethod
    def load(path: str | Path) -> Model:
        """Read a model that ``tangograd fit`` or an estimator's ``save`` wrote.

        Raises:
            DataError: it is not one.
        """
        payload = load(path)
        if payload.keys() != {"fitted", "design"} or not isinstance(payload["fitted"], dict):
            raise DataError(f"{path} has not the parts of a model: fit it again")
        plain = payload["design"]
        model = Model(
            fitted_from_dict(payload["fitted"]), None if plain is None else Design.from_dict(plain)
        )
        family_of(model.fitted)
        if model.design is not None and model.design.names != model.columns:
            raise DataError(f"{path}: its design has other columns than its coefficients")
        return model

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the coefficients without the intercept."""
        return self.fitted.names[1:] if has_intercept(self.fitted) else self.fitted.names

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return self.columns if self.design is None else self.design.reads(training=False)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Of these columns, for a reader that must guess."""
        if self.design is None:
            return dict.fromkeys(self.columns, pa.float64())
        return {name: kind for name, kind in self.design.types.items() if name in self.reads}

    def predict(
        self,
        batch: pa.RecordBatch,
        *,
        interval: float | None = None,
        where: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> Predictions:
        """Means, or probabilities, of the rows that have all values and no unknown levels.

        Args:
            batch: columns by name; others may be there too.
            interval: the level of intervals of the mean, if they are wanted.
            where: from the index of a row to its place, for errors.

        Raises:
            DataError: a column is not there, a value is infinite, or the model has no covariance.
        """
        rows = self._rows(batch, where)
        eta = predictors(self.fitted, rows.X, rows.offset)
        low = high = None
        if interval is not None:
            low, high = intervals(self.fitted, rows.X, eta, interval)
        mean = means(self.fitted, eta)
        return Predictions(rows.kept, mean, low, high, rows.dropped, rows.unseen)

    def _rows(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> Rows:
        if self.design is not None:
            return self.design.rows(batch, where=where, training=False)
        faults, dropped = Faults(), {}
        X = np.empty((batch.num_rows, len(self.columns)))
        for j, name in enumerate(self.columns):
            column = numbers(name, take_column(batch, name, "number"), faults)
            X[:, j] = column.values
            if column.missing is not None:
                dropped[name] = int(column.missing.sum())
        faults.complain(where)
        kept = np.flatnonzero(~np.isnan(X).any(axis=1))
        return Rows(X[kept], None, None, None, kept, dropped)
