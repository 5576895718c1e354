"""Summaries of the estimators, and models that are written and read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tangograd.glm import DataError, TangoClassifier, TangoRegressor, family
from tangograd.glm.saved import fitted_to_dict, save
from tests.glm.simulated import simulate, simulate_classes
from tests.glm.test_estimators import LABELS

N, D = 400, 4


def test_the_summary_is_text_and_html():
    X, y = simulate("poisson", N, D)
    model = TangoRegressor("poisson").fit(X, y)
    text = str(model.summary(level=0.9))
    html = model.summary(robust=True)._repr_html_()
    for part in ("intercept", "x3", "[0.05", "0.95]", f"{model.coef_[0]:.4f}"):
        assert part in text
    assert "<table" in html


FILES = {
    "poisson": (TangoRegressor("poisson"), "poisson"),
    "no intercept": (TangoRegressor("poisson", fit_intercept=False, alpha=0.1), "poisson"),
    "probit": (TangoRegressor("binomial", "probit", covariance="diagonal"), "probit"),
    "tweedie": (TangoRegressor(family("tweedie", power=1.3)), "tweedie"),
    "negative binomial": (
        TangoRegressor(family("negative_binomial", dispersion=0.7), covariance=None),
        "negative binomial",
    ),
}


def assert_same_results(one, other):
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    for name in ("estimates", "standard_errors", "robust_errors", "covariance"):
        np.testing.assert_array_equal(getattr(one.fitted_, name), getattr(other.fitted_, name))
    assert str(one.summary()) == str(other.summary())


@pytest.mark.parametrize("case", FILES)
def test_a_saved_regression_is_the_same_in_every_bit(case, tmp_path):
    model, name = FILES[case]
    X, y = simulate(name, N, D)
    model.fit(X, y).save(tmp_path / "model.json")
    loaded = TangoRegressor.load(tmp_path / "model.json")
    assert_same_results(model, loaded)
    np.testing.assert_array_equal(model.predict(X), loaded.predict(X))
    assert loaded.score(X, y) == model.score(X, y)
    if model.covariance == "auto":
        np.testing.assert_array_equal(
            model.predict(X, interval=0.5), loaded.predict(X, interval=0.5)
        )
    assert loaded.n_features_in_ == D
    assert loaded._family() == model._family()
    assert loaded.fit_intercept == model.fit_intercept
    for either in (model, loaded):
        with pytest.raises(ValueError, match="read-only"):
            either.coef_[:] = 0
    with pytest.raises(ValueError, match="cannot learn further"):
        loaded.partial_fit(X, y)
    np.testing.assert_array_equal(loaded.fit(X, y).predict(X), model.fit(X, y).predict(X))


@pytest.mark.parametrize("kind", ["text", "objects", "floats", "bytes", "huge"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_saved_classifier_is_the_same_in_every_bit(kind, classes, tmp_path):
    X, codes = simulate_classes(N, D, classes)
    y = LABELS[kind][codes.astype(int)]
    model = TangoClassifier(alpha=0.01).fit(X, y)
    model.save(str(tmp_path / "model.json"))
    loaded = TangoClassifier.load(str(tmp_path / "model.json"))
    assert_same_results(model, loaded)
    np.testing.assert_array_equal(model.predict_proba(X), loaded.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), loaded.predict(X))
    with pytest.raises(ValueError, match="cannot learn further"):
        loaded.partial_fit(X, y)


def test_files_are_read_by_the_class_that_wrote_them(tmp_path):
    X, y = simulate("logit", N, D)
    TangoRegressor("binomial").fit(X, y).save(tmp_path / "regression.json")
    TangoClassifier().fit(X, y).save(tmp_path / "classifier.json")
    with pytest.raises(ValueError, match="load it with TangoClassifier"):
        TangoRegressor.load(tmp_path / "classifier.json")
    with pytest.raises(ValueError, match="load it with TangoRegressor"):
        TangoClassifier.load(tmp_path / "regression.json")


def test_damaged_files_are_refused(tmp_path):
    X, y = simulate("poisson", N, D)
    path = tmp_path / "model.json"
    model = TangoRegressor("poisson").fit(X, y)
    model.save(path)
    document = json.loads(path.read_text())
    document["model"]["fitted"]["estimates"][0] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="checksum"):
        TangoRegressor.load(path)
    with pytest.raises(DataError, match="no model file"):
        TangoRegressor.load(tmp_path / "other.json")


def test_names_are_kept(tmp_path):
    X, y = simulate("poisson", N, D)
    frame = pd.DataFrame(X, columns=["age", "intercept", "größe", "a b"])
    model = TangoRegressor("poisson").fit(frame, y)
    model.save(tmp_path / "model.json")
    loaded = TangoRegressor.load(tmp_path / "model.json")
    np.testing.assert_array_equal(loaded.feature_names_in_, frame.columns)
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="should match"):
        loaded.predict(frame.rename(columns={"age": "Age"}))


def test_a_first_column_that_is_called_intercept(tmp_path):
    X, y = simulate("poisson", N, D)
    X[:, 0] = 1.0
    frame = pd.DataFrame(X, columns=["intercept", "a", "b", "c"])
    model = TangoRegressor("poisson", fit_intercept=False).fit(frame, y)
    both = TangoRegressor("poisson").fit(X[:, 1:], y)
    for part, other in zip(
        model.predict(frame, interval=0.9), both.predict(X[:, 1:], interval=0.9), strict=True
    ):
        np.testing.assert_allclose(part, other, rtol=1e-6)
    with pytest.raises(DataError, match="called 'intercept'.*rename it"):
        model.save(tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize("link", ["probit", "cloglog"])
def test_a_classifier_from_a_file_has_its_link(link, tmp_path):
    """`tangograd fit --link` makes such models."""
    X, y = simulate("logit", N, D)
    regression = TangoRegressor("binomial", link).fit(X, y)
    plain = fitted_to_dict(replace(regression.fitted_, classes=("no", "yes")))
    save(tmp_path / "model.json", {"fitted": plain, "design": None})
    loaded = TangoClassifier.load(tmp_path / "model.json")
    chances = regression.predict(X)
    np.testing.assert_allclose(loaded.predict_proba(X)[:, 1], chances, rtol=1e-12)
    np.testing.assert_allclose(loaded.predict_log_proba(X)[:, 1], np.log(chances), rtol=1e-9)
    assert (loaded.predict(X) == np.where(chances > 0.5, "yes", "no")).all()
    again = loaded.fit(X, y)  # a classifier's own link is logit
    np.testing.assert_array_equal(again.coef_, TangoClassifier().fit(X, y).coef_)
    np.testing.assert_array_equal(
        again.predict_proba(X), TangoClassifier().fit(X, y).predict_proba(X)
    )
