"""Streams of rows in the orders, and with the tails, that files have."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Generator = np.random.Generator


class Predictors(NamedTuple):
    """Columns in file order with the linear predictor of each row (of unit scale)."""

    X: Array
    eta: Array
    offset: Array | None = None
    weights: Array | None = None
    sort_by_target: float = 0.0
    change: Callable[[Generator, Array], Array] | None = None


class Stream(NamedTuple):
    """Rows in file order."""

    X: Array
    y: Array
    offset: Array
    weights: Array


def _normal(rng: Generator, n: int, d: int, sd: float = 1.0) -> tuple[Array, Array]:
    X = rng.normal(size=(n, d))
    beta = rng.normal(size=d)
    return X, sd * (X @ beta) / np.linalg.norm(beta)


def _unit(rng: Generator, X: Array, sd: float = 1.0) -> Array:
    """A predictor whose bulk has this standard deviation; heavy tails are not bounded."""
    scale = np.maximum(np.median(np.abs(X - np.median(X, axis=0)), axis=0) * 1.5, 1e-300)
    beta = rng.normal(size=X.shape[1]) / scale / np.sqrt(X.shape[1])
    return sd * (X - np.median(X, axis=0)) @ beta


def independent(rng, n, d):
    return Predictors(*_normal(rng, n, d))


def correlated(rng, n, d):
    L = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(range(d), range(d))))
    X = rng.normal(size=(n, d)) @ L.T
    return Predictors(X, _unit(rng, X))


def unscaled(rng, n, d):
    X = rng.normal(size=(n, d)) * np.logspace(-6, 6, d) + np.logspace(-6, 6, d) * 3
    return Predictors(X, _unit(rng, X))


def t3(rng, n, d):
    X = rng.standard_t(3, size=(n, d))
    return Predictors(X, np.clip(_unit(rng, X), -6, 6))


def sorted_by_x(rng, n, d):
    X, eta = _normal(rng, n, d)
    order = np.argsort(X[:, 0])
    return Predictors(X[order], eta[order])


def sorted_by_eta(rng, n, d):
    X, eta = _normal(rng, n, d)
    order = np.argsort(eta)
    return Predictors(X[order], eta[order])


def sorted_weakly_by_y(rng, n, d):
    return Predictors(*_normal(rng, n, d), sort_by_target=0.3)


def sorted_by_y(rng, n, d):
    return Predictors(*_normal(rng, n, d), sort_by_target=1.0)


def by_day(rng, n, d):
    X, eta = _normal(rng, n, d)
    day = np.sort(rng.integers(0, 1000, n)).astype(float)
    X[:, 0] = day
    return Predictors(X, eta + 0.002 * (day - 500))


def by_store_then_day(rng, n, d):
    X, eta = _normal(rng, n, d)
    store = np.arange(n) * 40 // n
    day = np.empty(n)
    for s in range(40):
        here = store == s
        day[here] = np.sort(rng.integers(0, 730, here.sum()))
    X[:, 0] = day
    D = (store[:, None] == np.arange(1, 40)).astype(float)
    return Predictors(np.c_[X, D], eta + 0.001 * (day - 365) + rng.normal(size=40)[store])


def drifting_columns(rng, n, d):
    X = rng.normal(size=(n, d))
    drift = np.linspace(-2, 2, n)[:, None] * rng.normal(size=d)
    X = X + drift
    return Predictors(X, _unit(rng, X))


def random_walks(rng, n, d):
    X = np.cumsum(rng.normal(size=(n, d)), axis=0) / np.sqrt(n)
    return Predictors(X, _unit(rng, X))


def drifting_coefficients(rng, n, d):
    X = rng.normal(size=(n, d))
    a, b = rng.normal(size=(2, d)) / np.sqrt(d)
    t = np.linspace(0, 1, n)
    return Predictors(X, (1 - t) * (X @ a) + t * (X @ b) + t - 0.5)


def season(rng, n, d):
    X, eta = _normal(rng, n, d)
    t = np.arange(n) / n
    return Predictors(X, eta + 1.5 * np.sin(2 * np.pi * 2 * t))


def block_trend(rng, n, d):
    X, eta = _normal(rng, n, d)
    X[:, 0] = np.repeat(np.linspace(0, 6, 20), -(-n // 20))[:n] + 0.01 * rng.normal(size=n)
    return Predictors(X, eta + 0.5 * X[:, 0] - 2)


def one_lognormal(rng, n, d):
    X, eta = _normal(rng, n, d)
    X[:, 0] = np.exp(2.5 * rng.normal(size=n))
    return Predictors(X, eta + 0.3 * np.minimum(np.log(X[:, 0]), 4) + 1e-3 * X[:, 0])


def one_lognormal_3(rng, n, d):
    X, eta = _normal(rng, n, d)
    X[:, 0] = np.exp(3 * rng.normal(size=n))
    return Predictors(X, eta - 0.01 * X[:, 0])


def one_cauchy(rng, n, d):
    X, eta = _normal(rng, n, d)
    X[:, 0] = rng.standard_cauchy(n)
    return Predictors(X, eta + 0.1 * X[:, 0])


def one_pareto(rng, n, d):
    X, eta = _normal(rng, n, d)
    X[:, 0] = rng.pareto(1.1, n)
    return Predictors(X, eta - 0.05 * X[:, 0])


def all_t15(rng, n, d):
    X = rng.standard_t(1.5, size=(n, d))
    return Predictors(X, _unit(rng, X, 0.7))


def strong_8(rng, n, d):
    return Predictors(*_normal(rng, n, d, 8.0))


def strong_20(rng, n, d):
    return Predictors(*_normal(rng, n, d, 20.0))


def nearly_separated(rng, n, d):
    X, eta = _normal(rng, n, d, 40.0)
    return Predictors(X, eta)


def outlier_rows(rng, n, d):
    X, eta = _normal(rng, n, d)
    rows = rng.integers(n // 4, n, 5)
    X[rows] *= 1000.0
    return Predictors(X, eta)


def zipf_levels(rng, n, d):
    X, eta = _normal(rng, n, d)
    level = np.minimum(rng.zipf(1.5, n), 200) - 1
    D = (level[:, None] == np.arange(1, 200)).astype(float)
    D = D[:, D.sum(axis=0) >= 30]
    return Predictors(np.c_[X, D], eta + rng.normal(size=200)[level])


def late_level(rng, n, d):
    X, eta = _normal(rng, n, d)
    X[:, 0] = (np.arange(n) > 0.7 * n) & (rng.random(n) < 0.3)
    return Predictors(X, eta + 2 * X[:, 0])


def rare_events(rng, n, d):
    X, eta = _normal(rng, n, d)
    return Predictors(X, eta - 7)


def uncommon_events(rng, n, d):
    X, eta = _normal(rng, n, d)
    return Predictors(X, eta - 5)


def one_large_count(rng, n, d):
    X, eta = _normal(rng, n, d)

    def change(rng, y):
        y[rng.integers(n // 2, n)] = 1e7
        return y

    return Predictors(X, eta, change=change)


def zero_inflated(rng, n, d):
    X, eta = _normal(rng, n, d)
    return Predictors(X, eta, change=lambda rng, y: y * (rng.random(n) < 0.5))


# --- kinds that were not used to choose the algorithm


def customers(rng, n, d):
    """Rows of 20,000 customers one after another, each with an effect that no column explains."""
    X, eta = _normal(rng, n, d)
    who = np.arange(n) * 20_000 // n
    X[:, 0] = rng.normal(size=20_000)[who]
    return Predictors(X, eta + 0.7 * rng.normal(size=20_000)[who])


def roll_out(rng, n, d):
    """A treatment that only the last 5% of the rows can have."""
    X, eta = _normal(rng, n, d)
    X[:, 0] = (np.arange(n) > 0.95 * n) & (rng.random(n) < 0.5)
    return Predictors(X, eta + 0.5 * X[:, 0])


def inflation(rng, n, d):
    """A column that grows exponentially, by a factor of 50 in the file."""
    X, eta = _normal(rng, n, d)
    X[:, 0] = np.exp(np.linspace(0, 4, n) + 0.3 * rng.normal(size=n))
    return Predictors(X, eta + 0.02 * X[:, 0])


def two_sources(rng, n, d):
    """Two files one after another: the second has other means, spreads and correlations."""
    X = rng.normal(size=(n, d))
    half = n // 2
    X[half:] = (X[half:] @ rng.normal(size=(d, d)) / np.sqrt(d)) * 3 + 4
    return Predictors(X, _unit(rng, X))


def calibrations(rng, n, d):
    """Sensors whose zero jumps fifty times."""
    X = rng.normal(size=(n, d))
    jumps = np.cumsum(rng.normal(size=(50, d)), axis=0)[np.arange(n) * 50 // n]
    X = X + jumps
    return Predictors(X, _unit(rng, X))


def growing_spread(rng, n, d):
    """Columns whose spread grows from 0.1 to 10."""
    X = rng.normal(size=(n, d)) * np.logspace(-1, 1, n)[:, None]
    return Predictors(X, np.clip(_unit(rng, X, 0.3), -6, 6))


def hours(rng, n, d):
    """Hours of a year as dummies of hour and weekday, and demand that follows the season."""
    hour = np.arange(n) * 8760 // n
    H = (hour[:, None] % 24 == np.arange(1, 24)).astype(float)
    W = ((hour // 24)[:, None] % 7 == np.arange(1, 7)).astype(float)
    heat = 10 + 10 * np.sin(2 * np.pi * hour / 8760) + 3 * rng.normal(size=n)
    X = np.c_[H, W, heat, rng.normal(size=(n, d))]
    beta = np.r_[rng.normal(size=29) / 2, 0.05, rng.normal(size=d) / np.sqrt(d)]
    return Predictors(X, X @ beta - 1)


def outages(rng, n, d):
    """Fifty bursts of 200 rows in which a column is 30 and the mean is high."""
    X, eta = _normal(rng, n, d)
    X[:, 0] = 0.1 * rng.normal(size=n)
    for begin in rng.integers(0, n - 200, 50):
        X[begin : begin + 200, 0] += 30
    return Predictors(X, eta + 0.05 * X[:, 0])


def exposures(rng, n, d):
    """Exposures with a log-standard deviation of 1.5 that grow along the file."""
    X, eta = _normal(rng, n, d)
    return Predictors(X, eta, offset=1.5 * rng.normal(size=n) + np.linspace(-1, 1, n))


def heavy_weights(rng, n, d):
    """Weights exp(1.5 N), the large ones first."""
    X, eta = _normal(rng, n, d)
    weights = np.sort(np.exp(1.5 * rng.normal(size=n)))[::-1].copy()
    return Predictors(X, eta, weights=weights)


def rare_dummies(rng, n, d):
    """Fifty dummies of 100 rows, each level's rows next to one another."""
    X, eta = _normal(rng, n, d)
    D = np.zeros((n, 50))
    for j, begin in enumerate(rng.integers(0, n - 100, 50)):
        D[begin : begin + 100, j] = 1
    return Predictors(np.c_[X, D], eta + D @ rng.normal(size=50) / 2)


def saw_tooth(rng, n, d):
    """A hundred files, each sorted by its predictor."""
    X, eta = _normal(rng, n, d)
    part = np.arange(n) * 100 // n
    order = np.lexsort((eta, part))
    return Predictors(X[order], eta[order])


def latent_walk(rng, n, d):
    """A mean that no column explains and that walks along the file."""
    X, eta = _normal(rng, n, d)
    walk = np.cumsum(rng.normal(size=n)) / np.sqrt(n)
    return Predictors(X, eta + walk)


def polynomial(rng, n, d):
    """A year with its square and cube, in order."""
    year = np.sort(1990 + 30 * rng.random(n))
    X = np.c_[year, year**2, year**3, rng.normal(size=(n, d))]
    t = (year - 2005) / 15
    return Predictors(X, t - t**2 + t**3 + X[:, 3:] @ rng.normal(size=d) / np.sqrt(d))


KNOWN = {
    f.__name__: f
    for f in (
        independent, correlated, unscaled, t3, sorted_by_x, sorted_by_eta, sorted_weakly_by_y,
        sorted_by_y, by_day, by_store_then_day, drifting_columns, random_walks,
        drifting_coefficients, season, block_trend, one_lognormal, one_lognormal_3, one_cauchy,
        one_pareto, all_t15, strong_8, strong_20, nearly_separated, outlier_rows, zipf_levels,
        late_level, rare_events, uncommon_events, one_large_count, zero_inflated,
    )
}  # fmt: skip
FRESH = {
    f.__name__: f
    for f in (
        customers, roll_out, inflation, two_sources, calibrations, growing_spread, hours, outages,
        exposures, heavy_weights, rare_dummies, saw_tooth, latent_walk, polynomial,
    )
}  # fmt: skip
KINDS = KNOWN | FRESH
BINARY = {"logit", "probit", "cloglog"}
#: kinds that make sense for some families alone
ONLY = {
    "strong_8": BINARY | {"multinomial"},
    "strong_20": BINARY | {"multinomial"},
    "nearly_separated": BINARY,
    "rare_events": BINARY | {"poisson", "negative_binomial"},
    "uncommon_events": BINARY | {"poisson", "negative_binomial"},
    "one_large_count": {"poisson", "negative_binomial"},
    "zero_inflated": {"poisson", "negative_binomial", "tweedie"},
}


def applies(kind: str, family: str) -> bool:
    return family in ONLY.get(kind, {family})


def make(kind: str, family: str, seed: int, n: int, d: int) -> Stream:
    """Return a stream of one kind, with targets of a family."""
    rng = np.random.default_rng([seed, sum(map(ord, kind))])
    X, eta, offset, weights, sort, change = KINDS[kind](rng, n, d)
    if family not in BINARY | {"multinomial"}:  # counts that a file may have
        eta = np.clip(eta, -12, 8)
    offset = np.zeros(n) if offset is None else offset
    if family in BINARY | {"multinomial", "gaussian"}:
        offset = offset / 3
    y = target(family, eta + offset, rng)
    if change is not None:
        y = change(rng, y)
    weights = np.ones(n) if weights is None else weights
    if sort:
        order = np.argsort(sort * _ranks(y, rng) + (1 - sort) * rng.random(n), kind="stable")
        X, y, offset, weights = X[order], y[order], offset[order], weights[order]
    return Stream(np.ascontiguousarray(X), y, offset, weights)


def _ranks(y: Array, rng: Generator) -> Array:
    """Return ranks in (0, 1), ties in random order."""
    ranks = np.empty(len(y))
    ranks[np.lexsort((rng.random(len(y)), y))] = np.linspace(0, 1, len(y))
    return ranks


def target(family: str, eta: Array, rng: Generator) -> Array:
    """Return a target for each linear predictor."""
    n = len(eta)
    if family == "gaussian":
        return eta + rng.normal(size=n)
    if family == "logit":
        return (rng.logistic(size=n) < eta).astype(float)
    if family == "probit":
        return (rng.normal(size=n) < eta).astype(float)
    if family == "cloglog":
        return (np.log(rng.exponential(size=n)) < eta).astype(float)
    if family == "poisson":
        return rng.poisson(np.exp(eta)).astype(float)
    if family == "gamma":
        return np.maximum(rng.gamma(2.0, np.exp(eta) / 2), 1e-300)
    if family == "negative_binomial":
        return rng.poisson(rng.gamma(2.0, np.exp(eta) / 2)).astype(float)
    if family == "tweedie":  # power 1.5, φ = 1
        mu = np.exp(eta)
        jumps = rng.poisson(2 * np.sqrt(mu))
        return np.where(jumps > 0, rng.gamma(np.maximum(jumps, 1), np.sqrt(mu) / 2), 0.0)
    scores = np.c_[np.zeros(n), eta, -0.5 * eta + 0.3]  # three classes
    return (scores + rng.gumbel(size=(n, 3))).argmax(axis=1).astype(float)
