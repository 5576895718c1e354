"""Simulated regressions for the tests of the numerical core."""

import numpy as np
import statsmodels.api as sm

from tangograd.glm import engine
from tangograd.glm.engine import OnePass
from tangograd.glm.families import Multinomial, evaluate, samples
from tangograd.glm.families import by_name as family
from tangograd.glm.matrices import Block, as_matrix

links = sm.families.links
#: our family and statsmodels'
FAMILIES = {
    "gaussian": (family("gaussian"), sm.families.Gaussian()),
    "logit": (family("binomial"), sm.families.Binomial()),
    "probit": (family("binomial", "probit"), sm.families.Binomial(links.Probit())),
    "cloglog": (family("binomial", "cloglog"), sm.families.Binomial(links.CLogLog())),
    "poisson": (family("poisson"), sm.families.Poisson()),
    "gamma": (family("gamma"), sm.families.Gamma(links.Log())),
    "negative binomial": (
        family("negative_binomial", dispersion=0.5),
        sm.families.NegativeBinomial(links.Log(), alpha=0.5),
    ),
    "tweedie": (
        family("tweedie", power=1.5),
        sm.families.Tweedie(links.Log(), var_power=1.5, eql=True),
    ),
}
CLASSES = Multinomial(3)


def features(kind, n, d, rng):
    """Of one of the kinds that the benchmarks have."""
    X = rng.normal(size=(n, d))
    if kind == "correlated":
        return X @ np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(range(d), range(d)))).T
    if kind == "unscaled":
        return X * np.logspace(-3, 3, d) + np.logspace(-3, 3, d)
    if kind == "heavy":
        return rng.standard_t(3, size=(n, d))
    if kind == "sparse":
        return (rng.random((n, d)) < np.linspace(0.05, 0.3, d)).astype(np.float64)
    return X


def responses(of, eta, rng, phi=0.5):
    """Of our family, at η."""
    return samples(of, eta, phi if of.estimates_dispersion else 1.0, rng)


def simulate(name, n, d, *, kind="independent", seed=0, intercept=0.3, offset=None):
    """X and y of a model whose linear predictor has standard deviation 1.

    Rows of heavy tails are shrunk to |X θ| ≤ 4, or the exponentials of a few would decide all.
    """
    rng = np.random.default_rng(seed)
    X = features(kind, n, d, rng)
    truth = rng.normal(size=d) / X.std(axis=0)
    truth /= np.std(X @ truth)
    if kind == "heavy":
        X /= np.maximum(np.abs(X @ truth) / 4, 1.0)[:, None]
    eta = (X - X.mean(axis=0)) @ truth + intercept + (0.0 if offset is None else offset)
    return X, responses(FAMILIES[name][0], eta, rng)


def simulate_classes(n, d, classes=3, *, kind="independent", seed=0):
    """X and the numbers of the classes, as floats."""
    rng = np.random.default_rng(seed)
    X = features(kind, n, d, rng)
    truth = rng.normal(size=(classes, d)) / X.std(axis=0) / np.sqrt(d)
    chances = (X - X.mean(axis=0)) @ truth.T + rng.gumbel(size=(n, classes))
    return X, chances.argmax(axis=1).astype(np.float64)


def shorten(monkeypatch, width):
    """Streams of a few thousand rows, with a buffer of some 1200."""
    for name, value in {
        "BUFFER_BYTES": 1200 * width * 8,
        "BLOCK_ROWS": 256,
        "START_ROWS": 600,
        "START_ROWS_EACH": 0,
        "FIRST_ROWS": 100,
        "FULL_PATH": "tango",
    }.items():
        monkeypatch.setattr(engine, name, value)


def rows(X, y, w=None, offset=None):
    """As the engine has them."""
    n = len(y)
    return Block(
        as_matrix(X), y, np.ones(n) if w is None else w, np.zeros(n) if offset is None else offset
    )


def data(name, n, d, **options):
    if name == "classes":
        return simulate_classes(n, d, **options)
    return simulate(name, n, d, **options)


def model_of(name, d, **options):
    if name == "classes":
        return OnePass(CLASSES, d, **options)
    return OnePass(FAMILIES[name][0], d, **options)


def fit(name, X, y, *, sizes=None, w=None, offset=None, **options):
    """Fed in chunks of these sizes, again and again."""
    model = model_of(name, X.shape[1], seed=1, **options)
    start, i = 0, 0
    while start < len(y):
        end = len(y) if sizes is None else start + sizes[i % len(sizes)]
        here = slice(start, end)
        model.feed(
            X[here],
            y[here],
            None if w is None else w[here],
            None if offset is None else offset[here],
        )
        start, i = end, i + 1
    return model


def excess(name, X, y, theta, best, alpha=0.0, intercept=True, w=None):
    """1 + n/p (θ-θ̂)ᵀF(θ-θ̂)/φ: the variance relative to maximum likelihood's, at one sample."""
    of = CLASSES if name == "classes" else FAMILIES[name][0]
    Z = np.c_[X, np.full(len(X), float(intercept))]
    w = np.ones(len(y)) if w is None else w
    _, s, f, _ = evaluate(of, Z @ best.T, y)
    difference = (Z @ (theta - best).T)[:, :, None]
    moved = float(w @ (difference.transpose(0, 2, 1) @ f @ difference)[:, 0, 0])
    moved += alpha * w.sum() * float(np.sum((theta - best)[:, :-1] ** 2))
    phi = float(w @ (s[:, 0] ** 2 / f[:, 0, 0]) / w.sum()) if of.estimates_dispersion else 1.0
    return 1 + moved / phi / (best.size - (0 if intercept else len(best)))
