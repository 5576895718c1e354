"""Fits whose results are recorded: small copies of the benchmark cases, in memory and streamed.

``python -m tests.glm.golden.cases`` records them anew, which is right only after a change that is
meant to change results.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import scipy.sparse as sp

from tangograd.glm import TangoClassifier, TangoRegressor, engine, family
from tests.glm.commands.runs import fit

PATH = Path(__file__).with_name("coefficients.npz")
ROWS, COLUMNS = 3000, 6
#: a stream of a few thousand rows
SHORT = {
    "BUFFER_BYTES": 1200 * COLUMNS * 8,
    "BLOCK_ROWS": 256,
    "START_ROWS": 600,
    "START_ROWS_EACH": 0,
    "FIRST_ROWS": 100,
    "FULL_PATH": "tango",
}
MEMORY = {"BUFFER_BYTES": 10**9}


def _features(kind, rng):
    X = rng.normal(size=(ROWS, COLUMNS))
    if kind == "correlated":
        return X + 5 * rng.normal(size=(ROWS, 1))  # whitened
    if kind == "unscaled":
        return X * np.logspace(-2, 2, COLUMNS) + np.logspace(-2, 2, COLUMNS)
    if kind == "sparse":
        return (rng.random((ROWS, COLUMNS)) < 0.2) * (1 + X**2)
    return X


def _data(name, kind):
    """X, and y of a family with all kinds of targets."""
    rng = np.random.default_rng(sum(map(ord, name + kind)))
    X = _features(kind, rng)
    eta = ((X - X.mean(axis=0)) / X.std(axis=0)) @ (0.8 * rng.normal(size=COLUMNS)) * 0.5 + 0.3
    mu = np.exp(eta)
    y = {
        "gaussian": lambda: eta + rng.normal(size=ROWS),
        "binomial": lambda: (rng.random(ROWS) < mu / (1 + mu)).astype(float),
        "classes": lambda: np.digitize(eta + rng.logistic(size=ROWS), [-0.5, 1.0]),
        "poisson": lambda: rng.poisson(mu).astype(float),
        "gamma": lambda: rng.gamma(2.0, mu / 2),
        "negative_binomial": lambda: rng.poisson(rng.gamma(2.0, mu / 2)).astype(float),
        "tweedie": lambda: np.where(rng.random(ROWS) < 0.3, 0.0, rng.gamma(2.0, mu)),
    }[name]()
    return X, y


def _estimator(chosen, link=None, kind="independent", limits=SHORT, as_=np.asarray, **options):
    """A function that fits an estimator and returns what is recorded."""
    name = chosen if isinstance(chosen, str) else chosen.name

    def results():
        X, y = _data(name, kind)
        rng = np.random.default_rng(5)
        given = {}
        if options.pop("rows", None):
            given = {"sample_weight": rng.integers(0, 3, ROWS), "offset": rng.normal(size=ROWS) / 5}
        if name == "classes":
            model = TangoClassifier(random_state=0, **options)
        else:
            model = TangoRegressor(chosen, link, random_state=0, **options)
        with mock.patch.multiple(engine, **limits):
            return _recorded(model.fit(as_(X), y, **given).fitted_)

    return results


def _command(name, *options):
    """The same for a file with two categories; coefficients in the order of the summary."""

    def results():
        X, y = _data(name, "independent")
        rng = np.random.default_rng(6)
        table = pd.DataFrame({f"x{j}": X[:, j] for j in range(3)})
        table["a"] = rng.choice(list("uvw"), ROWS)
        table["b"] = rng.choice([f"level {i}" for i in range(9)], ROWS)
        table["y"] = y
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(engine, **SHORT):
            path = Path(folder) / "table.csv"
            table.to_csv(path, index=False)
            found = fit(path, "--target", "y", "--family", name, "--holdout", "0", *options)
        lines = found["summary"]["coefficients"]
        return {
            part: np.array([line[part] for line in lines])
            for part in ("estimate", "standard_error")
        }

    return results


def _recorded(fitted):
    result = {
        "estimates": fitted.estimates,
        "deviance": fitted.deviance,
        "null deviance": fitted.null_deviance,
        "log-likelihood": fitted.log_likelihood,
        "dispersion": fitted.dispersion,
    }
    if fitted.standard_errors is not None:
        result |= {"errors": fitted.standard_errors, "robust errors": fitted.robust_errors}
    return {part: np.asarray(value) for part, value in result.items()}


NEGATIVE_BINOMIAL = family("negative_binomial", dispersion=0.5)
TWEEDIE = family("tweedie", power=1.4)
CASES = {
    "gaussian": _estimator("gaussian", kind="unscaled"),
    "logit": _estimator("binomial"),
    "probit": _estimator("binomial", "probit"),
    "cloglog": _estimator("binomial", "cloglog"),
    "poisson, weights, offset": _estimator("poisson", rows=True),
    "gamma": _estimator("gamma", kind="unscaled"),
    "negative binomial": _estimator(NEGATIVE_BINOMIAL),
    "tweedie": _estimator(TWEEDIE),
    "classes": _estimator("classes"),
    "poisson, sparse": _estimator("poisson", kind="sparse", as_=sp.csr_array),
    "classes, sparse": _estimator("classes", kind="sparse", as_=sp.csr_array),
    "logit, float32": _estimator("binomial", as_=np.float32),
    "logit, correlated": _estimator("binomial", kind="correlated"),
    "logit, two passes": _estimator("binomial", passes=2),
    "logit, polished": _estimator("binomial", polish=True),
    "logit, no intercept": _estimator("binomial", fit_intercept=False),
    "logit, no errors": _estimator("binomial", covariance=None),
    "poisson, diagonal": _estimator("poisson", covariance="diagonal"),
    "poisson, penalty": _estimator("poisson", alpha=0.05),
    "classes, penalty": _estimator("classes", alpha=0.05),
    "poisson, sampled": _estimator("poisson", fisher="sampled"),
    "classes, sampled": _estimator("classes", fisher="sampled"),
    "logit, in memory": _estimator("binomial", limits=MEMORY),
    "tweedie, in memory": _estimator(TWEEDIE, limits=MEMORY),
    "classes, in memory": _estimator("classes", limits=MEMORY),
    "poisson, sparse, in memory": _estimator(
        "poisson", kind="sparse", as_=sp.csr_array, limits=MEMORY
    ),
    "logit, categories": _command("binomial"),
    "gamma, categories, penalty": _command("gamma", "--alpha", "0.05"),
}


def record():
    """Write the results of all cases."""
    found = {f"{case}: {part}": v for case, run in CASES.items() for part, v in run().items()}
    np.savez_compressed(PATH, **found)


if __name__ == "__main__":
    record()
