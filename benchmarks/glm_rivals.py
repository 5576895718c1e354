"""Logistic regression by others, each as ``(X, y) → (coefficients, seconds of the fit)``.

The settings are the documented defaults, without penalty where that can be said; what only brings
the data into a method's own shape is not timed, except where noted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from glm_families import Array

Found = tuple[Array, float]
VW_CONSTANT = 11650396  # the index of Vowpal Wabbit's intercept


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = fit()
    return found, time.perf_counter() - start


def scikit(model: Any, X: Array, y: Array) -> Found:
    """Of any estimator in scikit-learn's manner."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one pass has not converged, they say
        fitted, seconds = timed(lambda: model.fit(X, y))
    return np.append(fitted.intercept_, fitted.coef_), seconds


def sgd(X: Array, y: Array) -> Found:
    from sklearn.linear_model import SGDClassifier

    settings = {"average": True, "max_iter": 1, "tol": None, "random_state": 0}
    return scikit(SGDClassifier(loss="log_loss", **settings), X, y)


def lbfgs(X: Array, y: Array) -> Found:
    from sklearn.linear_model import LogisticRegression

    return scikit(LogisticRegression(C=np.inf), X, y)


def glum(X: Array, y: Array) -> Found:
    from glum import GeneralizedLinearRegressor

    return scikit(GeneralizedLinearRegressor(family="binomial", alpha=0), X, y)


def statsmodels(X: Array, y: Array) -> Found:
    import statsmodels.api as sm

    design = np.column_stack([np.ones(len(X)), X])
    model, making = timed(lambda: sm.GLM(y, design, family=sm.families.Binomial()))
    fitted, fitting = timed(model.fit)
    return np.asarray(fitted.params), making + fitting


def write_vw(path: Path, X: Array, y: Array, rows: int = 50_000) -> None:
    """Vowpal Wabbit's text format, the columns named by their numbers."""
    with path.open("wb") as file:
        for start in range(0, len(X), rows):
            label = np.where(y[start : start + rows] > 0, "1 |", "-1 |")
            parts = [pa.array(label.astype(object), pa.string())]
            for j, column in enumerate(X[start : start + rows].astype(np.float32).T):
                text = pc.cast(pa.array(column), pa.string())
                parts.append(pc.binary_join_element_wise(f"{j}", text, ":"))
            lines = pc.binary_join_element_wise(*parts, " ")
            file.write("\n".join(lines.to_pylist()).encode() + b"\n")


def vowpal_wabbit(path: Path, columns: int, settings: str = "") -> Found:
    """One pass over the text file, or over its binary cache if one lies beside it."""
    import vowpalwabbit

    cache = path.with_suffix(".cache")
    command = f"--loss_function logistic --quiet --cache_file {cache} -d {path} {settings}"
    workspace, seconds = timed(lambda: vowpalwabbit.Workspace(command))
    theta = [workspace.get_weight(j) for j in (VW_CONSTANT, *range(columns))]
    workspace.finish()
    return np.array(theta), seconds
