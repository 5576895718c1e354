"""The estimators are scikit-learn's kind: checks, tables of all kinds, pipelines, searches, routing."""

from __future__ import annotations

import copy
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from tangograd.glm import TangoClassifier, TangoRegressor, family
from tests.glm.simulated import simulate, simulate_classes

N, D = 300, 4
NAMES = ["age", "bmi", "größe", "a b"]


@pytest.fixture(scope="module")
def data():
    return simulate("poisson", N, D)


# --- scikit-learn's own checks


CHECKED = [
    TangoRegressor(),
    TangoRegressor("poisson"),
    TangoRegressor("tweedie", alpha=0.1),
    TangoRegressor(family("negative_binomial", dispersion=0.5)),
    TangoRegressor(fit_intercept=False, covariance=None, passes=2, polish=True),
    TangoRegressor(fisher="sampled", covariance="diagonal", warm_start=True, shuffle=False),
    TangoClassifier(),
    TangoClassifier(alpha=0.1, polish=True, passes=2, fisher="sampled", covariance="full"),
]


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda one: repr(one)[:40])
def test_scikit_learns_checks(estimator):
    with warnings.catch_warnings():
        # the check of other array libraries is not run unless the environment asks for it
        warnings.simplefilter("ignore", SkipTestWarning)
        results = check_estimator(estimator, on_fail="raise")
    assert len(results) > 50
    others = {r["check_name"] for r in results if r["status"] != "passed"}
    assert others <= {"check_array_api_input"}


# --- tables


TABLES = {
    "fortran": np.asfortranarray,
    "strided": lambda X: np.repeat(np.repeat(X, 2, axis=1), 2, axis=0)[::2, ::2],
    "list": lambda X: X.tolist(),
    "pandas": lambda X: pd.DataFrame(X, columns=NAMES, index=np.arange(len(X))[::-1]),
    "polars": lambda X: pl.DataFrame(X, schema=NAMES),
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    "csc_matrix": sp.csc_matrix,
    "csc_array": sp.csc_array,
    "coo_array": sp.coo_array,
}


def columns(y, kind):
    """The target (or the weights) in the kind of column that goes with the table."""
    if kind == "pandas":
        return pd.Series(y, index=np.arange(len(y))[::-1])
    return {"polars": pl.Series, "list": np.ndarray.tolist}.get(kind, np.asarray)(y)


@pytest.mark.parametrize("kind", TABLES)
def test_all_kinds_of_tables_give_the_same(kind, data):
    X, y = data
    w, offset = np.exp(0.3 * X[:, 0]), 0.1 * X[:, 1]
    table = TABLES[kind](X)
    model = TangoRegressor("poisson").fit(X, y, w, offset)
    other = TangoRegressor("poisson").fit(
        table, columns(y, kind), columns(w, kind), columns(offset, kind)
    )
    np.testing.assert_allclose(other.coef_, model.coef_, rtol=1e-9)
    np.testing.assert_allclose(
        other.fitted_.standard_errors, model.fitted_.standard_errors, rtol=1e-9
    )
    prediction = other.predict(table, columns(offset, kind))
    assert isinstance(prediction, np.ndarray)
    np.testing.assert_allclose(prediction, model.predict(X, offset), rtol=1e-9)
    score = other.score(table, columns(y, kind), columns(w, kind), columns(offset, kind))
    assert score == pytest.approx(model.score(X, y, w, offset))
    labels = columns(np.where(y > 1, "many", "few"), kind)
    classifier = TangoClassifier().fit(table, labels)
    np.testing.assert_allclose(classifier.coef_, TangoClassifier().fit(X, y > 1).coef_, rtol=1e-7)
    assert classifier.score(table, labels) > 0.7


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.int8, np.uint8, bool])
def test_numbers_of_all_kinds_give_the_same(dtype, data):
    X, y = data
    X = np.abs(np.round(2 * X)).astype(dtype)
    model = TangoRegressor("poisson").fit(X.astype(np.float64), y)
    for form in (np.asarray, pd.DataFrame, sp.csr_array):
        if form is sp.csr_array and dtype is np.float16:
            continue  # which scipy does not have
        other = TangoRegressor("poisson").fit(form(X), y.astype(np.int32))
        np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-7)
        np.testing.assert_allclose(other.predict(form(X)), model.predict(X), rtol=1e-6)


def test_entries_of_a_sparse_matrix_that_come_in_parts(data):
    X, y = data
    whole = sp.csr_matrix(X)
    parts = sp.csr_matrix(
        (np.repeat(whole.data / 2, 2), np.repeat(whole.indices, 2), 2 * whole.indptr),
        shape=X.shape,
    )
    before = parts.data.copy()
    model = TangoRegressor("poisson").fit(parts, y)
    np.testing.assert_allclose(model.coef_, TangoRegressor("poisson").fit(whole, y).coef_)
    np.testing.assert_array_equal(parts.data, before)


@pytest.mark.parametrize("table", [pd.DataFrame, pl.DataFrame])
def test_names_of_columns(table, data):
    X, y = data
    frame = table(dict(zip(NAMES, X.T, strict=True)))
    model = TangoRegressor("poisson").fit(frame, y)
    np.testing.assert_array_equal(model.feature_names_in_, NAMES)
    assert model.n_features_in_ == D
    assert model.fitted_.names == ("intercept", *NAMES)
    assert "größe" in str(model.summary())
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table(dict(zip(["age", "bmi", "size", "a b"], X.T, strict=True))))
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame[NAMES[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.partial_fit(table(dict(zip("abcd", X.T, strict=True))), y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)
    with pytest.raises(ValueError, match="feature names should match|3 features"):
        model.predict(frame[NAMES[:3]])


def test_arrays_have_no_names(data):
    X, y = data
    model = TangoRegressor("poisson").fit(X, y)
    assert not hasattr(model, "feature_names_in_")
    assert model.fitted_.names == ("intercept", "x0", "x1", "x2", "x3")
    with pytest.raises(ValueError, match="X has 3 features, but TangoRegressor is expecting 4"):
        model.predict(X[:, :3])
    with pytest.raises(ValueError, match="X has 3 features"):
        model.partial_fit(X[:, :3], y)


@pytest.mark.parametrize("estimator", [TangoRegressor(), TangoClassifier()], ids=str)
@pytest.mark.parametrize(
    "use", ["predict", "predict_proba", "decision_function", "summary", "coef_", "fitted_", "save"]
)
def test_nothing_is_known_before_a_fit(estimator, use, tmp_path):
    arguments = {"summary": (), "save": (tmp_path / "m.json",)}.get(use, (np.ones((1, 4)),))
    if not hasattr(type(estimator), use):
        assert use in ("predict_proba", "decision_function")
        return
    with pytest.raises(NotFittedError):
        getattr(estimator, use)(*arguments)
    assert list(tmp_path.iterdir()) == []


# --- pipelines and searches


def test_pipelines(data):
    X, y = data
    frame = pd.DataFrame(X * [1, 1e3, 1e-3, 1] + 5, columns=NAMES)
    pipeline = make_pipeline(StandardScaler(), TangoRegressor("poisson"))
    pipeline.set_output(transform="pandas").fit(frame, y)
    np.testing.assert_array_equal(pipeline[-1].feature_names_in_, NAMES)
    alone = TangoRegressor("poisson").fit(frame, y)
    np.testing.assert_allclose(pipeline.predict(frame), alone.predict(frame), rtol=1e-6)
    np.testing.assert_allclose(pipeline[-1].coef_, alone.coef_ * frame.std(ddof=0), rtol=1e-5)


def test_categories_come_from_scikit_learns_encoders(data):
    X, y = data
    frame = pd.DataFrame({"x": X[:, 0], "group": np.array(["a", "b", "c"])[np.arange(N) % 3]})
    encoder = make_column_transformer(
        (OneHotEncoder(drop="first"), ["group"]), remainder="passthrough"
    )
    pipeline = make_pipeline(encoder, TangoRegressor("poisson")).fit(frame, y)
    assert pipeline[-1].n_features_in_ == 3
    assert pipeline[-1].fitted_.notes == ()


def test_searches(data):
    X, y = data
    grid = {"alpha": [0.0, 1.0, 100.0]}
    with joblib.parallel_config("threading", n_jobs=2):
        search = GridSearchCV(TangoRegressor("poisson"), grid, cv=3).fit(X, y)
    assert search.best_params_["alpha"] == 0.0
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] > scores[1] > scores[2]
    assert search.best_estimator_.score(X, y) == search.score(X, y)
    families = {"family": ["gaussian", "poisson", family("tweedie", power=1.2)]}
    assert GridSearchCV(TangoRegressor(), families, cv=3).fit(X, y).best_score_ > 0


def test_cross_validation():
    X, y = simulate_classes(N, D)
    scores = cross_val_score(TangoClassifier(), X, y, cv=5)
    assert scores.shape == (5,)
    assert scores.mean() > 0.45
    losses = cross_val_score(TangoClassifier(), X, y, cv=5, scoring="neg_log_loss")
    assert losses.mean() > -np.log(3)
    several = OneVsRestClassifier(TangoClassifier()).fit(X, y)
    assert several.score(X, y) > 0.45


# --- copies


MODELS = {
    "regressor": TangoRegressor(family("tweedie", power=1.4), alpha=0.1),
    "probit": TangoRegressor("binomial", "probit"),
    "classifier": TangoClassifier(class_weight={0: 1.0, 1: 2.0}),
}


@pytest.mark.parametrize("name", MODELS)
def test_clones_have_the_parameters_and_nothing_else(name, data):
    model = clone(MODELS[name]).fit(data[0], (data[1] > 0).astype(int))
    other = clone(model)
    assert other.get_params() == model.get_params()
    assert not hasattr(other, "coef_")
    assert repr(other) == repr(model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("started", ["fit", "partial_fit"])
def test_copies_are_the_same_and_apart(name, started, data, tmp_path):
    X, y = data[0], (data[1] > 0).astype(int)
    model = clone(MODELS[name])
    extra = {"classes": [0, 1]} if name == "classifier" and started == "partial_fit" else {}
    getattr(model, started)(X, y, **extra)
    joblib.dump(model, tmp_path / "model.joblib")
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model.joblib"),
    ]
    before = model.predict(X)
    for other in copies:
        np.testing.assert_array_equal(other.predict(X), before)
        np.testing.assert_array_equal(other.fitted_.standard_errors, model.fitted_.standard_errors)
        other.partial_fit(X[:50], y[:50])
        np.testing.assert_array_equal(model.predict(X), before)
    model.partial_fit(X[:50], y[:50])
    for other in copies:
        np.testing.assert_array_equal(other.coef_, model.coef_)


def test_a_fitted_model_keeps_few_rows():
    """Those by which the exact path would go on; none without it."""
    X, y = simulate("poisson", 20_000, D)
    assert len(pickle.dumps(TangoRegressor("poisson").fit(X, y))) < 400_000
    assert len(pickle.dumps(TangoRegressor("poisson", covariance=None).fit(X, y))) < 30_000


# --- metadata


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_metadata_reach_a_pipelines_model(data):
    X, y = data
    w, offset, exposure = np.exp(0.5 * X[:, 0]), 0.3 * X[:, 1], np.exp(0.2 * X[:, 2])
    requested = TangoRegressor("poisson")
    asked = {"sample_weight": True, "offset": True, "exposure": True}
    requested.set_fit_request(**asked).set_score_request(**asked)
    requested.set_predict_request(offset=True, exposure=True)
    pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), requested)
    pipeline.fit(X, y, sample_weight=w, offset=offset, exposure=exposure)
    alone = TangoRegressor("poisson").fit(X, y, w, offset, exposure)
    np.testing.assert_allclose(
        pipeline.predict(X, offset=offset, exposure=exposure),
        alone.predict(X, offset, exposure),
        rtol=1e-6,
    )
    score = pipeline.score(X, y, sample_weight=w, offset=offset, exposure=exposure)
    assert score == pytest.approx(alone.score(X, y, w, offset, exposure))


@pytest.mark.usefixtures("routing")
def test_metadata_are_split_by_a_search(data):
    X, y = data
    offset = 2 * np.random.default_rng(1).normal(size=N)
    y = np.random.default_rng(2).poisson(np.exp(0.5 * X[:, 0] + offset))
    requested = TangoRegressor("poisson").set_fit_request(sample_weight=True, offset=True)
    requested.set_score_request(sample_weight=True, offset=True)
    search = GridSearchCV(requested, {"alpha": [0.0, 10.0]}, cv=3)
    search.fit(X, y, sample_weight=np.ones(N), offset=offset)
    assert search.best_params_ == {"alpha": 0.0}
    # beyond what the offset explains; a score that does not know it would be below 0
    assert 0.3 < search.best_score_ < 0.6
    np.testing.assert_allclose(
        search.best_estimator_.coef_, TangoRegressor("poisson").fit(X, y, offset=offset).coef_
    )
    classifier = TangoClassifier().set_partial_fit_request(classes=True, offset=True)
    assert classifier.get_metadata_routing().partial_fit.requests["offset"] is True


@pytest.mark.usefixtures("routing")
def test_metadata_that_nobody_asked_for_are_refused(data):
    X, y = data
    search = GridSearchCV(TangoRegressor("poisson"), {"alpha": [0.0]}, cv=3)
    with pytest.raises(ValueError, match="offset"):
        search.fit(X, y, offset=np.zeros(N))
