"""Fisher scoring against statsmodels, scikit-learn and scipy's root of the explicit gradient."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
import statsmodels.api as sm
from scipy.special import softmax
from sklearn.linear_model import (
    GammaRegressor,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)

from tangograd.glm import newton
from tangograd.glm.families import by_name as family
from tangograd.glm.matrices import split
from tangograd.glm.newton import Objective, maximum_likelihood, means
from tests.glm.simulated import CLASSES, FAMILIES, rows, simulate, simulate_classes

every_family = pytest.mark.parametrize("name", FAMILIES)


def fit(of, data, *, outputs=1, intercept=True, alpha=0.0, size=10_000, start=None):
    """Coefficients in the data's coordinates, shape (outputs, d + 1), and the solution."""
    parts = list(split(data, size))
    d = data.X.shape[1]
    m = means(parts, d) if intercept else np.zeros(d)
    objective = Objective(of, parts, m, outputs, intercept, alpha)
    found = maximum_likelihood(objective, np.zeros((outputs, d + 1)) if start is None else start)
    theta = found.theta.copy()
    if intercept:
        theta[:, -1] -= theta[:, :-1] @ m
    return theta, found


def with_constant(X, intercept=True):
    return np.c_[X, np.ones(len(X))] if intercept else X


def statsmodels_fit(theirs, X, y, intercept=True, **options):
    model = sm.GLM(y, with_constant(X, intercept), family=theirs, **options)
    return model.fit(tol=1e-15, tol_criterion="params", maxiter=300)


def gradient(theirs, X, y, w, offset, beta, alpha, intercept=True):
    """Of the mean loss with its penalty, from statsmodels' link and variance."""
    Z = with_constant(X, intercept)
    mu = theirs.link.inverse(Z @ beta + offset)
    s = (mu - y) / (theirs.variance(mu) * theirs.link.deriv(mu))
    penalty = alpha * beta
    if intercept:
        penalty[-1] = 0.0
    return Z.T @ (w * s) / w.sum() + penalty


def extras(n, seed=9):
    rng = np.random.default_rng(seed)
    return rng.integers(1, 5, n).astype(np.float64), 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("intercept", [True, False], ids=["", "no intercept"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights and offset"])
@every_family
def test_maximum_likelihood_is_statsmodels(name, weighted, intercept, monkeypatch):
    monkeypatch.setattr(newton, "RIDGE", 0.0)
    of, theirs = FAMILIES[name]
    X, y = simulate(name, 700, 4, seed=1)
    w, offset = extras(700) if weighted else (np.ones(700), np.zeros(700))
    theta, found = fit(of, rows(X, y, w, offset), intercept=intercept)
    expected = statsmodels_fit(theirs, X, y, intercept, freq_weights=w, offset=offset)
    if not intercept:
        assert theta[0, -1] == 0
        theta = theta[:, :-1]
    assert found.converged
    assert np.abs(theta[0] / expected.params - 1).max() < 1e-8
    mu = theirs.link.inverse(expected.predict(which="linear"))
    assert found.pearson == pytest.approx(w @ ((y - mu) ** 2 / theirs.variance(mu)), rel=1e-8)


@every_family
def test_the_ridge_changes_nothing_that_matters(name):
    """A hundred-thousandth of a standard error, on columns of all scales."""
    of, theirs = FAMILIES[name]
    X, y = simulate(name, 700, 5, kind="unscaled", seed=2)
    theta, found = fit(of, rows(X, y))
    scale = X.std(axis=0)
    expected = statsmodels_fit(theirs, (X - X.mean(axis=0)) / scale, y)
    errors = expected.bse[:-1] / scale
    assert found.converged
    assert (np.abs(theta[0, :-1] - expected.params[:-1] / scale) < 1e-5 * errors).all()


@pytest.mark.parametrize("intercept", [True, False], ids=["", "no intercept"])
@every_family
def test_penalised_estimates_are_the_root_of_the_gradient(name, intercept, monkeypatch):
    monkeypatch.setattr(newton, "RIDGE", 0.0)
    of, theirs = FAMILIES[name]
    X, y = simulate(name, 500, 3, seed=3)
    w, offset = extras(500)
    alpha = 0.2
    theta, found = fit(of, rows(X, y, w, offset), alpha=alpha, intercept=intercept)
    beta = theta[0] if intercept else theta[0, :-1]
    expected = scipy.optimize.root(
        lambda b: gradient(theirs, X, y, w, offset, b, alpha, intercept), beta * 0.9, tol=1e-14
    ).x
    assert found.converged
    assert np.abs(beta / expected - 1).max() < 1e-8
    free, _ = fit(of, rows(X, y, w, offset), intercept=intercept)
    assert np.linalg.norm(theta[0, :-1]) < np.linalg.norm(free[0, :-1])


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("gaussian", lambda alpha, total: Ridge(alpha * total, solver="cholesky")),
        (
            "logit",
            lambda alpha, total: LogisticRegression(
                C=1 / (alpha * total), solver="newton-cholesky", tol=1e-13
            ),
        ),
        (
            "poisson",
            lambda alpha, total: PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-13),
        ),
        (
            "gamma",
            lambda alpha, total: GammaRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-13),
        ),
        (
            "tweedie",
            lambda alpha, total: TweedieRegressor(
                power=1.5, alpha=alpha, solver="newton-cholesky", tol=1e-13
            ),
        ),
    ],
)
@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_the_penalty_is_scikit_learns(name, theirs, alpha, monkeypatch):
    monkeypatch.setattr(newton, "RIDGE", 0.0)
    X, y = simulate(name, 400, 3, seed=4)
    w, _ = extras(400)
    theta, _ = fit(FAMILIES[name][0], rows(X, y, w), alpha=alpha)
    model = theirs(alpha, w.sum()).fit(X, y, sample_weight=w)
    expected = np.r_[np.ravel(model.coef_), np.ravel(model.intercept_)]
    assert np.abs(theta[0] / expected - 1).max() < 1e-8


@pytest.mark.parametrize("alpha", [1e-3, 0.3])
def test_classes_are_scikit_learns(alpha, monkeypatch):
    """Their coefficients less those of the first class; the penalty is on all of them, centred."""
    monkeypatch.setattr(newton, "RIDGE", 0.0)
    X, y = simulate_classes(600, 4, 4, seed=5)
    w, _ = extras(600)
    theta, found = fit(CLASSES, rows(X, y, w), outputs=3, alpha=alpha)
    model = LogisticRegression(C=1 / (alpha * w.sum()), solver="newton-cholesky", tol=1e-13)
    model.fit(X, y, sample_weight=w)
    expected = np.c_[model.coef_, model.intercept_]
    expected = expected[1:] - expected[0]
    assert found.converged
    assert np.abs(theta - expected).max() < 1e-8


@pytest.mark.parametrize("intercept", [True, False])
def test_classes_without_penalty_are_statsmodels(intercept, monkeypatch):
    monkeypatch.setattr(newton, "RIDGE", 0.0)
    X, y = simulate_classes(600, 3, 3, seed=6)
    theta, _ = fit(CLASSES, rows(X, y), outputs=2, intercept=intercept)
    model = sm.MNLogit(y, with_constant(X, intercept)).fit(disp=0, tol=1e-14, maxiter=200)
    ours = theta if intercept else theta[:, :-1]
    assert np.abs(ours - model.params.T).max() < 1e-8


def test_two_classes_of_many_are_the_logit():
    """A multinomial model of two classes has half the penalty: that of ±θ/2."""
    X, y = simulate("logit", 300, 3, seed=7)
    several, _ = fit(CLASSES, rows(X, y), outputs=1, alpha=0.2)
    binary, _ = fit(family("binomial"), rows(X, y), alpha=0.1)
    assert np.abs(several - binary).max() < 1e-9


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_blocks_formats_and_starts_do_not_matter(form, dtype):
    X, y = simulate("poisson", 500, 4, kind="sparse", seed=8)
    expected, _ = fit(family("poisson"), rows(X, y))
    data = rows(form(X.astype(dtype)), y)
    start = np.random.default_rng(0).normal(size=(1, 5))
    for options in ({}, {"size": 77}, {"start": start}, {"start": 5 * start}):
        theta, found = fit(family("poisson"), data, **options)
        assert found.converged
        assert np.abs(theta - expected).max() < 1e-9


@every_family
def test_dependent_columns_give_the_fit_of_independent_ones(name):
    """A column twice, one of zeros, a constant one, and a sum of two others."""
    of, theirs = FAMILIES[name]
    X, y = simulate(name, 400, 3, seed=10)
    wide = np.c_[X, X[:, 0], np.zeros(400), np.full(400, 1e5 / 3), X[:, 1] + X[:, 2]]
    expected = statsmodels_fit(theirs, X, y)
    for form in (np.asarray, sp.csr_matrix):
        theta, found = fit(of, rows(form(wide), y))
        eta = with_constant(wide) @ theta[0]
        assert np.abs(eta - expected.predict(which="linear")).max() < 1e-5
        assert np.abs(theta).max() < 10
        assert (theta[0, 3:7] == 0).all()
        assert found.aliased == (3, 6)
        assert found.converged


@pytest.mark.parametrize("name", ["logit", "probit", "cloglog"])
def test_separated_classes_have_finite_coefficients(name):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(200, 3))
    y = (X[:, 0] > 0).astype(np.float64)
    theta, found = fit(FAMILIES[name][0], rows(X, y))
    assert np.isfinite(theta).all()
    assert np.abs(theta).max() < 1e4
    assert found.loss < 0.05
    assert np.array_equal(X @ theta[0, :-1] + theta[0, -1] > 0, y)
    assert found.converged


def test_three_separated_classes_have_finite_coefficients():
    X = np.random.default_rng(12).normal(size=(300, 2))
    y = np.digitize(X[:, 0], [-0.5, 0.5]).astype(np.float64)
    theta, found = fit(CLASSES, rows(X, y), outputs=2)
    assert np.isfinite(theta).all()
    assert found.loss < 0.3
    p = softmax(np.c_[np.zeros(300), with_constant(X) @ theta.T], axis=1)
    assert np.array_equal(p.argmax(axis=1), y)


def test_more_columns_than_rows():
    X, y = simulate("gaussian", 20, 40, seed=13)
    theta, _ = fit(family("gaussian"), rows(X, y))
    assert np.abs(with_constant(X) @ theta[0] - y).max() < 1e-4
    assert np.abs(theta).max() < 10


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_many_coefficients_agree_with_few(name, alpha, monkeypatch):
    """L-BFGS stops within a hundredth of a standard error of Newton's steps."""
    of, _ = FAMILIES[name]
    X, y = simulate(name, 2000, 20, kind="sparse", seed=14)
    X[:, :3] *= [1e-2, 10.0, 100.0]
    X = sp.csr_matrix(X)
    exact, _ = fit(of, rows(X, y), alpha=alpha)
    monkeypatch.setattr(newton, "DENSE", 0)
    theta, found = fit(of, rows(X, y), alpha=alpha)
    assert found.converged
    assert not found.sums.full
    Z = with_constant(X.toarray())
    V = np.linalg.inv(Z.T @ Z)
    errors = np.sqrt(np.diag(V))  # of the scale of the standard errors
    assert np.abs((theta - exact)[0] / errors).max() < 0.01


def test_many_classes_agree_with_few(monkeypatch):
    X, y = simulate_classes(1500, 10, 4, kind="sparse", seed=15)
    exact, _ = fit(CLASSES, rows(X, y), outputs=3, alpha=0.001)
    monkeypatch.setattr(newton, "DENSE", 0)
    theta, _ = fit(CLASSES, rows(sp.csr_matrix(X), y), outputs=3, alpha=0.001)
    assert np.abs(theta - exact).max() < 1e-3


def test_poor_starts_of_steep_families_converge():
    """Where a full step would overflow, halved ones are taken."""
    X, y = simulate("poisson", 400, 2, seed=16)
    expected, _ = fit(family("poisson"), rows(X, y))
    start = np.array([[8.0, -8.0, -10.0]])
    theta, found = fit(family("poisson"), rows(X, y), start=start)
    assert found.converged
    assert np.abs(theta - expected).max() < 1e-8


def test_means_are_weighted_and_exact_where_constant():
    X = np.c_[np.full(7, 0.1), np.arange(7.0), np.zeros(7)]
    w = np.array([1, 2, 3, 0.1, 0.7, 5, 1])
    for form in (np.asarray, sp.csr_matrix):
        parts = list(split(rows(form(X), np.zeros(7), w), 3))
        found = means(parts, 4)
        assert found[0] == 0.1
        assert found[1] == pytest.approx(w @ X[:, 1] / w.sum(), rel=1e-15)
        assert found[2] == found[3] == 0
    narrow = rows(np.full((3, 1), 2.0), np.zeros(3))
    wide = rows(np.full((1, 2), 2.0), np.zeros(1))
    assert np.array_equal(means([narrow, wide], 2), [2.0, 0.5])


def test_columns_that_nearly_depend_on_one_another_are_not_biased():
    """They were by a ridge of 1e-8: 1671 instead of 5004, and half a standard error."""
    rng = np.random.default_rng(20)
    a = rng.normal(size=2000)
    X = np.c_[a, a + 1e-4 * rng.normal(size=2000)]
    y = X @ [-4999.0, 5004.0] + rng.normal(size=2000)
    exact = sm.OLS(y, with_constant(X)).fit()
    theta, found = fit(FAMILIES["gaussian"][0], rows(X, y))
    np.testing.assert_allclose((theta[0] - exact.params) / exact.bse, 0, atol=2e-3)
    assert found.aliased == ()
    year = 1990.0 + np.arange(2000) % 30
    X = np.c_[year, year**2]
    y = rng.poisson(np.exp(0.02 * (year - 2005) - 0.003 * (year - 2005) ** 2)).astype(float)
    z = (year - 2005) / 15
    exact = sm.GLM(y, np.c_[z, z**2, np.ones(2000)], sm.families.Poisson()).fit(tol=1e-14)
    theta, _ = fit(FAMILIES["poisson"][0], rows(X, y))
    eta = X @ theta[0, :2] + theta[0, 2]
    np.testing.assert_allclose(eta, exact.predict(which="linear"), atol=1e-6)
