"""Small streams, their maximum-likelihood estimates by an independent Newton, and one-pass fits."""

import numpy as np

from tangograd.glm.families import by_name, evaluate
from tangograd.glm.one_pass import start
from tangograd.glm.one_pass.start import fit_start
from tangograd.glm.one_pass.state import OnePassConfig, OnePassState

FAMILIES = {
    "gaussian": by_name("gaussian"),
    "logit": by_name("binomial"),
    "probit": by_name("binomial", "probit"),
    "cloglog": by_name("binomial", "cloglog"),
    "poisson": by_name("poisson"),
    "gamma": by_name("gamma"),
    "negative_binomial": by_name("negative_binomial", dispersion=0.5),
    "tweedie": by_name("tweedie", power=1.5),
    "multinomial": by_name("multinomial", count=3),
}
START = 2000


def targets(name, eta, rng):
    mu = np.exp(np.minimum(eta, 20))
    if name == "multinomial":
        scores = np.c_[np.zeros(len(eta)), eta, 0.3 - 0.5 * eta]
        return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(float)
    draw = {
        "gaussian": lambda: eta + rng.normal(size=len(eta)),
        "logit": lambda: (rng.logistic(size=len(eta)) < eta) * 1.0,
        "probit": lambda: (rng.normal(size=len(eta)) < eta) * 1.0,
        "cloglog": lambda: (np.log(rng.exponential(size=len(eta))) < eta) * 1.0,
        "poisson": lambda: rng.poisson(mu) * 1.0,
        "gamma": lambda: rng.gamma(2.0, mu / 2),
        "negative_binomial": lambda: rng.poisson(rng.gamma(2.0, mu / 2)) * 1.0,
        "tweedie": lambda: _tweedie(mu, rng),
    }
    return draw[name]()


def _tweedie(mu, rng):
    jumps = rng.poisson(2 * np.sqrt(mu))
    return np.where(jumps > 0, rng.gamma(np.maximum(jumps, 1), np.sqrt(mu) / 2), 0.0)


def simulate(name, n=12_000, d=4, seed=0, kind="independent"):
    """X and y: independent rows, sorted by a column, by day with a trend, or sorted by y."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.logspace(-2, 2, d) + np.arange(d)
    beta = rng.normal(size=d) / np.logspace(-2, 2, d) / np.sqrt(d)
    if kind == "by day":
        X[:, 0] = np.sort(rng.integers(0, 300, n))
        beta[0] = 0.005
    if kind == "heavy":
        X[:, 0] = np.minimum(np.exp(2.5 * rng.normal(size=n)), 400)
        beta[0] = -0.02
    if kind == "sorted by x":
        X = X[np.argsort(X[:, 1])]
    y = targets(name, (X - X.mean(axis=0)) @ beta + 0.2, rng)
    if kind == "sorted by y":
        order = np.argsort(y + 1e-9 * rng.random(n))
        X, y = X[order], y[order]
    return X, y


def fitted_state(name, X, y, sizes=None, *, w=None, offset=None, **options):
    """A state that has learned X and y in chunks of these sizes, again and again."""
    n = len(y)
    w = np.ones(n) if w is None else w
    offset = np.zeros(n) if offset is None else offset
    family, m = FAMILIES[name], min(START, n)
    intercept = options.pop("intercept", True)
    config = OnePassConfig(**({"kept_rows": 1000} | options))
    begin = fit_start(
        family, X[:m], y[:m], w[:m], offset[:m], intercept=intercept, penalty=config.penalty
    )
    state = OnePassState.init(family, begin, config)
    feed(state, X, y, sizes, w=w, offset=offset)
    return state


def feed(state, X, y, sizes=None, *, w=None, offset=None):
    n = len(y)
    begin, i = 0, 0
    while begin < n:
        end = n if sizes is None else begin + sizes[i % len(sizes)]
        here = slice(begin, end)
        state.update(
            X[here],
            y[here],
            None if w is None else w[here],
            None if offset is None else offset[here],
        )
        begin, i = end, i + 1


def coefficients(state, found):
    """In the units of the data, the intercept (if any) last."""
    return state.start.coordinates.to_original(found.theta.copy())


def maximum_likelihood(name, X, y, w=None, offset=None, alpha=0.0, intercept=True):
    """The estimate, shape (outputs, d + 1), and the information of standardised columns over φ."""
    family, n = FAMILIES[name], len(y)
    w = np.ones(n) if w is None else w
    offset = np.zeros(n) if offset is None else offset
    centre = X.mean(axis=0) if intercept else np.zeros(X.shape[1])
    scale = X.std(axis=0)
    scale[scale == 0] = 1
    Z = np.c_[(X - centre) / scale, np.ones(n)] if intercept else X / scale
    k, q = family.outputs, Z.shape[1]
    pull = np.diag(np.r_[alpha * w.sum() / scale**2, [0.0] * intercept])
    P = np.kron(np.eye(k) - (k > 1) / (k + 1), pull)
    b = np.zeros(k * q)
    if intercept:
        b[q - 1 :: q] = start.null_predictor(family, y, w) - np.average(offset, weights=w)

    def value(b):
        eta = Z @ b.reshape(k, q).T + offset[:, None]
        return w @ evaluate(family, eta, y).loss + b @ P @ b / 2

    for _ in range(200):
        eta = Z @ b.reshape(k, q).T + offset[:, None]
        _, s, f, h = evaluate(family, eta, y)
        g = np.einsum("n,nk,ni->ki", w, s, Z).ravel() + P @ b
        H = np.einsum("n,nkl,ni,nj->kilj", w, h, Z, Z, optimize=True).reshape(k * q, k * q) + P
        step = np.linalg.solve(H, g)
        if g @ step < 1e-18 * n:
            break
        t = 1.0
        while value(b - t * step) > value(b) + 1e-12 * n and t > 1e-6:
            t /= 2
        b = b - t * step
    phi = 1.0
    if family.estimates_dispersion:
        phi = float(w @ (s[:, 0] ** 2 / f[:, 0, 0])) / w.sum()
    theta = b.reshape(k, q).copy()
    d = len(scale)
    theta[:, :d] /= scale
    if intercept:
        theta[:, -1] -= theta[:, :d] @ centre
    T = np.diag(np.r_[scale, [1.0] * intercept])
    if intercept:
        T[-1, :d] = centre
    T = np.kron(np.eye(k), T)
    return theta, T.T @ H @ T / phi


def ratio(theta, best, information):
    difference = (theta - best).ravel()
    return 1 + difference @ information @ difference / best.size
