"""The estimators' numbers are those of scikit-learn and statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import statsmodels.api as sm
from sklearn.linear_model import (
    GammaRegressor,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    TweedieRegressor,
)
from sklearn.metrics import d2_tweedie_score, r2_score
from threadpoolctl import threadpool_limits

from tangograd.glm import TangoClassifier, TangoRegressor
from tests.glm.simulated import FAMILIES, simulate, simulate_classes

N, D = 400, 4
PENALTY = 0.05


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(5).uniform(0.2, 3.0, N)


@pytest.fixture(scope="module")
def offset():
    return 0.5 * np.random.default_rng(6).normal(size=N)


def with_constant(X):
    return sm.add_constant(X)


# --- scikit-learn's estimates


def ridge(alpha, weight):
    return Ridge(alpha=alpha * weight, solver="cholesky")


def poisson(alpha, weight):
    return PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-10)


def gamma(alpha, weight):
    return GammaRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-10)


def tweedie(alpha, weight):
    return TweedieRegressor(power=1.5, alpha=alpha, solver="newton-cholesky", tol=1e-10)


REGRESSORS = {"gaussian": ridge, "poisson": poisson, "gamma": gamma, "tweedie": tweedie}


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("name", REGRESSORS)
def test_a_penalised_regression_is_scikit_learns(name, weighted, weights):
    X, y = simulate(name, N, D)
    w = weights if weighted else None
    model = TangoRegressor(name, alpha=PENALTY).fit(X, y, w)
    theirs = REGRESSORS[name](PENALTY, weights.sum() if weighted else N).fit(X, y, w)
    assert model.coef_.shape == (D,)
    assert isinstance(model.intercept_, float)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-5)
    assert model.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
    np.testing.assert_allclose(model.predict(X), theirs.predict(X), rtol=1e-4)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("class_weight", [None, {0: 1.0, 1: 3.0, 2: 0.5}, "balanced"])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_a_penalised_classifier_is_scikit_learns(classes, class_weight, intercept, weights):
    X, y = simulate_classes(N, D, classes)
    y = y.astype(int)
    if isinstance(class_weight, dict):
        class_weight = {label: class_weight.get(label, 2.0) for label in range(classes)}
    theirs = LogisticRegression(
        C=1 / (PENALTY * N), class_weight=class_weight, fit_intercept=intercept, tol=1e-10
    )
    theirs.set_params(solver="newton-cg").fit(X, y, weights)
    # the penalty is on the mean loss, whose weights are those of the rows and classes together
    total = weights.copy()
    if class_weight == "balanced":
        counts = np.bincount(y, weights)
        total *= (weights.sum() / (classes * counts))[y]
    elif class_weight is not None:
        total *= np.array([class_weight[label] for label in range(classes)])[y]
    ours = TangoClassifier(
        alpha=PENALTY * N / total.sum(), class_weight=class_weight, fit_intercept=intercept
    ).fit(X, y, weights)
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.intercept_.shape == theirs.intercept_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-4)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_many_sparse_columns_are_fit_as_scikit_learn_does():
    rng = np.random.default_rng(0)
    X = sp.random(2000, 1800, density=0.01, format="csr", random_state=0)
    y = (rng.random(2000) < 1 / (1 + np.exp(-(X @ rng.normal(size=1800))))).astype(int)
    with threadpool_limits(1):
        ours = TangoClassifier(alpha=1e-3).fit(X, y)
        theirs = LogisticRegression(C=1 / 2.0, tol=1e-8, max_iter=1000).fit(X, y)
    fitted = ours.fitted_
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)
    assert fitted.covariance_kind == "diagonal"
    assert fitted.covariance is None
    assert np.isfinite(fitted.standard_errors).all()
    assert any("diagonal" in note for note in fitted.notes)


# --- statsmodels' inference


@pytest.mark.parametrize("name", FAMILIES)
def test_estimates_and_errors_are_statsmodels(name, offset):
    X, y = simulate(name, N, D, offset=offset)
    ours, theirs = FAMILIES[name]
    model = TangoRegressor(ours).fit(X, y, offset=offset)
    result = sm.GLM(y, with_constant(X), family=theirs, offset=offset).fit(tol=1e-12)
    fitted = model.fitted_
    np.testing.assert_allclose(np.r_[model.intercept_, model.coef_], result.params, atol=1e-5)
    np.testing.assert_allclose(fitted.standard_errors, result.bse, rtol=1e-4)
    assert fitted.dispersion == pytest.approx(result.scale, rel=1e-5)
    assert fitted.deviance == pytest.approx(result.deviance, rel=1e-6)
    assert fitted.converged
    assert not fitted.progressive
    assert fitted.notes == ()


@pytest.mark.parametrize("name", FAMILIES)
def test_intervals_are_those_of_the_link_scale_as_statsmodels(name, offset):
    X, y = simulate(name, N, D, offset=offset)
    new = np.random.default_rng(9).normal(size=(20, D))
    ours, theirs = FAMILIES[name]
    use_t = name in {"gaussian", "gamma", "tweedie"}
    result = sm.GLM(y, with_constant(X), family=theirs, offset=offset).fit(tol=1e-12, use_t=use_t)
    given = result.get_prediction(with_constant(new), offset=offset[:20])
    expected = given.summary_frame(alpha=0.1)
    model = TangoRegressor(ours).fit(X, y, offset=offset)
    for form in (np.asarray, sp.csr_matrix, sp.csr_array, np.float32):
        mean, low, high = model.predict(form(new), offset=offset[:20], interval=0.9)
        np.testing.assert_allclose(mean, expected["mean"], rtol=1e-4)
        np.testing.assert_allclose(low, expected["mean_ci_lower"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(high, expected["mean_ci_upper"], rtol=1e-4, atol=1e-6)
    assert (low < mean).all()
    assert (mean < high).all()


@pytest.mark.parametrize("intercept", [True, False])
def test_exposure_multiplies_the_mean(intercept, weights):
    X, y = simulate("poisson", N, D)
    x = with_constant(X) if intercept else X
    model = TangoRegressor("poisson", fit_intercept=intercept).fit(X, y, exposure=weights)
    result = sm.GLM(y, x, family=sm.families.Poisson(), exposure=weights).fit(tol=1e-12)
    np.testing.assert_allclose(model.fitted_.estimates, result.params, atol=1e-7)
    np.testing.assert_allclose(model.fitted_.standard_errors, result.bse, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X, exposure=weights), result.mu, rtol=1e-6)
    np.testing.assert_allclose(model.predict(X) * weights, result.mu, rtol=1e-6)
    both = TangoRegressor("poisson", fit_intercept=intercept)
    both.fit(X, y, offset=np.log(weights) / 2, exposure=np.sqrt(weights))
    np.testing.assert_allclose(both.coef_, model.coef_, atol=1e-9)
    low = model.predict(X, exposure=weights, interval=0.95)[1]
    expected = result.get_prediction(x, exposure=weights).conf_int()
    np.testing.assert_allclose(low, expected[:, 0], rtol=1e-5)


def test_weights_count_rows(weights):
    X, y = simulate("poisson", N, D)
    model = TangoRegressor("poisson").fit(X, y, weights)
    result = sm.GLM(y, with_constant(X), family=sm.families.Poisson(), freq_weights=weights).fit()
    np.testing.assert_allclose(model.fitted_.estimates, result.params, atol=1e-6)
    np.testing.assert_allclose(model.fitted_.standard_errors, result.bse, rtol=1e-5)


def test_robust_errors_are_the_sandwich():
    X, y = simulate("poisson", N, D)
    result = sm.GLM(y, with_constant(X), family=sm.families.Poisson()).fit(cov_type="HC0")
    fitted = TangoRegressor("poisson").fit(X, y).fitted_
    np.testing.assert_allclose(fitted.robust_errors, result.bse, rtol=1e-5)


def test_multinomial_errors_are_statsmodels():
    X, y = simulate_classes(N, D)
    fitted = TangoClassifier().fit(X, y).fitted_
    result = sm.MNLogit(y, with_constant(X)).fit(disp=0, method="newton", tol=1e-12)
    np.testing.assert_allclose(fitted.estimates, result.params.T.ravel(), atol=1e-5)
    np.testing.assert_allclose(fitted.standard_errors, result.bse.T.ravel(), rtol=1e-4)


def test_intervals_are_refused_without_a_covariance():
    X, y = simulate("poisson", N, D)
    model = TangoRegressor("poisson", covariance=None).fit(X, y)
    assert model.fitted_.covariance_kind == "none"
    assert model.fitted_.standard_errors is None
    np.testing.assert_array_equal(model.coef_, TangoRegressor("poisson").fit(X, y).coef_)
    with pytest.raises(ValueError, match="full covariance matrix.*none.*covariance='full'"):
        model.predict(X, interval=0.95)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_a_level_is_between_0_and_1(level):
    X, y = simulate("poisson", N, D)
    with pytest.raises(ValueError, match="between 0 and 1"):
        TangoRegressor("poisson").fit(X, y).predict(X, interval=level)


# --- the score


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize(("name", "power"), [("poisson", 1), ("gamma", 2), ("tweedie", 1.5)])
def test_the_score_is_d2(name, power, weighted, weights):
    X, y = simulate(name, N, D)
    w = weights if weighted else None
    model = TangoRegressor(name).fit(X, y)
    expected = d2_tweedie_score(y, model.predict(X), sample_weight=w, power=power)
    assert model.score(X, y, w) == pytest.approx(expected, rel=1e-10)


def test_the_score_of_a_gaussian_model_is_r2(weights):
    X, y = simulate("gaussian", N, D)
    model = TangoRegressor().fit(X, y)
    assert model.score(X, y) == pytest.approx(r2_score(y, model.predict(X)))
    expected = r2_score(y, model.predict(X), sample_weight=weights)
    assert model.score(X, y, weights) == pytest.approx(expected)
    assert model.score(X, y) == pytest.approx(model.fitted_.d2)
    assert model.score(X, y[:, None]) == model.score(X, y)


def test_the_score_of_a_constant_target():
    X = np.arange(6.0)[:, None]
    model = TangoRegressor().fit(X, X[:, 0])
    assert model.score(X, np.full(6, 2.0)) == 0.0
    assert TangoRegressor().fit(X, np.zeros(6)).score(X, np.zeros(6)) == 1.0


def test_the_score_of_a_classifier_is_accuracy(weights):
    X, y = simulate_classes(N, D)
    model = TangoClassifier().fit(X, y)
    right = model.predict(X) == y
    assert model.score(X, y) == pytest.approx(right.mean())
    assert model.score(X, y, weights) == pytest.approx(np.average(right, weights=weights))


# --- classes


LABELS = {
    "text": np.array(["cat", "dog", "eel"]),
    "objects": np.array(["cat", "dog", "eel"], dtype=object),
    "floats": np.array([-1.0, 0.0, 2.0]),
    "bytes": np.array([-100, 0, 100], dtype=np.int8),
    "unsigned": np.array([3, 7, 250], dtype=np.uint8),
    "far": np.array([-(10**12), 0, 10**12]),
    "huge": np.array([2**63, 2**63 + 1, 2**63 + 2], dtype=np.uint64),
}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_kind(kind, classes):
    X, codes = simulate_classes(N, D, classes)
    y = LABELS[kind][codes.astype(int)]
    model = TangoClassifier().fit(X, y)
    plain = TangoClassifier().fit(X, codes.astype(int))
    np.testing.assert_array_equal(model.classes_, LABELS[kind][:classes])
    assert model.classes_.dtype == y.dtype
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.predict(X), LABELS[kind][plain.predict(X)])
    assert model.predict(X).dtype == y.dtype
    assert model.fitted_.classes == tuple(LABELS[kind][:classes].tolist())


def test_truth_values_are_labels():
    X, codes = simulate_classes(N, D, 2)
    model = TangoClassifier().fit(X, codes == 1)
    assert model.predict(X).dtype == bool
    np.testing.assert_array_equal(model.coef_, TangoClassifier().fit(X, codes).coef_)


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_consistent(classes, offset):
    X, y = simulate_classes(N, D, classes)
    model = TangoClassifier().fit(X, y, offset=offset)
    p = model.predict_proba(X, offset)
    assert p.shape == (N, classes)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X, offset))
    np.testing.assert_allclose(model.predict_log_proba(X, offset), np.log(p), atol=1e-12)
    decision = model.decision_function(X, offset)
    if classes == 2:
        assert decision.shape == (N,)
        np.testing.assert_allclose(decision, np.log(p[:, 1] / p[:, 0]), atol=1e-9)
        np.testing.assert_allclose(decision - offset, X @ model.coef_[0] + model.intercept_)
    else:
        assert decision.shape == (N, classes)
        np.testing.assert_allclose(decision.sum(axis=1), 0, atol=1e-12)
        np.testing.assert_allclose(model.coef_.sum(axis=0), 0, atol=1e-12)
    far = model.predict_log_proba(X * 1e4)
    assert np.isfinite(far).all()
    assert far.min() < -1000


def test_two_classes_are_the_binomial_regression():
    X, y = simulate("logit", N, D)
    regression, classifier = TangoRegressor("binomial").fit(X, y), TangoClassifier().fit(X, y)
    np.testing.assert_array_equal(classifier.coef_[0], regression.coef_)
    assert classifier.intercept_[0] == regression.intercept_
    np.testing.assert_allclose(classifier.predict_proba(X)[:, 1], regression.predict(X), rtol=1e-9)


def test_the_score_knows_what_exposure_explains_alone():
    rng = np.random.default_rng(0)
    X, exposure = rng.normal(size=(2000, 2)), rng.uniform(0.1, 10, 2000)
    y = rng.poisson(0.5 * exposure)
    model = TangoRegressor("poisson").fit(X, y, exposure=exposure)
    assert model.score(X, y, exposure=exposure) == pytest.approx(model.fitted_.d2, abs=1e-9)
    assert abs(model.score(X, y, exposure=exposure)) < 0.01


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9])
def test_rates_and_weights_are_counts_and_exposures(size):
    """However small the rates: the ridge is a share of the information."""
    rng = np.random.default_rng(0)
    X, time = rng.normal(size=(2000, 2)), rng.uniform(0.5, 2, 2000) / size
    counts = rng.poisson(time * size * np.exp(0.5 * X[:, 0] + 1))
    by_weight = TangoRegressor("poisson").fit(X, counts / time, sample_weight=time)
    by_exposure = TangoRegressor("poisson").fit(X, counts, exposure=time)
    errors = by_exposure.fitted_.standard_errors
    off = (by_weight.fitted_.estimates - by_exposure.fitted_.estimates) / errors
    assert np.abs(off).max() < 1e-4
    np.testing.assert_allclose(by_weight.fitted_.standard_errors, errors, rtol=1e-6)


def test_exposure_multiplies_the_hazard_of_cloglog():
    rng = np.random.default_rng(0)
    X, time = rng.normal(size=(5000, 2)), rng.uniform(0.2, 3, 5000)
    y = rng.random(5000) < 1 - np.exp(-time * np.exp(0.5 * X[:, 0] - 1))
    model = TangoRegressor("binomial", "cloglog").fit(X, y, exposure=time)
    offset = TangoRegressor("binomial", "cloglog").fit(X, y, offset=np.log(time))
    np.testing.assert_array_equal(model.coef_, offset.coef_)
    assert abs(model.coef_[0] - 0.5) < 4 * model.fitted_.standard_errors[1]
