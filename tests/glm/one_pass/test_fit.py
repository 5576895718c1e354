"""Estimators on the exact path: what is said, warned of and repaired."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from tangograd.glm import TangoClassifier, TangoRegressor, engine
from tests.glm.one_pass.streams import maximum_likelihood, ratio, simulate


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    """A few thousand rows are a stream of which few are kept."""
    for name, value in {"BUFFER_BYTES": 50_000, "START_ROWS": 2000, "KEPT_ROWS": 1000}.items():
        monkeypatch.setattr(engine, name, value)


def coefficients(model):
    return np.append(model.coef_, model.intercept_)[None]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_row_that_decides_is_named_by_its_place_in_the_data(shuffle):
    X, y = simulate("poisson", n=20_000, seed=13)
    w = np.ones(len(y))
    w[:100] = 0
    y[15_000] = 1e7
    model = TangoRegressor("poisson", shuffle=shuffle, random_state=0, polish=False)
    with pytest.warns(ConvergenceWarning, match=r"row 15,000\b"):
        model.fit(X, y, w)
    assert any("row 15,000" in note for note in model.fitted_.notes)


def test_levels_without_events_are_warned_of():
    X, y = simulate("poisson", n=20_000, seed=14)
    level = (np.random.default_rng(14).random(len(y)) < 0.005) * 1.0
    y[level > 0] = 0
    with pytest.warns(ConvergenceWarning, match="never varies where these columns are not 0: x4"):
        TangoRegressor("poisson", random_state=0).fit(np.c_[X, level], y)


def test_files_by_day_need_one_look():
    X, y = simulate("logit", n=20_000, seed=2, kind="by day")
    model = TangoRegressor("binomial", shuffle=False).fit(X, y)
    best, information = maximum_likelihood("logit", X, y)
    assert ratio(coefficients(model), best, information) < 1.02
    assert model.fitted_.passes == 1
    assert 0 < model.excess_ < 0.02
    assert "Excess variance over maximum likelihood: 0." in str(model.summary())
    assert model.fitted_.notes == ()


def test_aliased_columns_have_no_standard_error_and_no_degree_of_freedom():
    X, y = simulate("poisson", n=20_000, seed=3)
    X = np.c_[X, X[:, 0] + X[:, 1]]
    model = TangoRegressor("poisson", random_state=0).fit(X, y)
    assert model.coef_[4] == 0
    assert np.isnan(model.fitted_.standard_errors[5])
    assert np.isfinite(model.fitted_.standard_errors[:5]).all()
    assert model.fitted_.degrees_of_freedom == 5
    assert any("columns before them: x4" in note for note in model.fitted_.notes)


def test_partial_fit_may_be_asked_at_any_time():
    """To ask for results takes in no rows before their block is full."""
    X, y = simulate("gamma", n=12_000, seed=4)
    asked, left = TangoRegressor("gamma"), TangoRegressor("gamma")
    for begin in range(0, 12_000, 700):
        here = slice(begin, begin + 700)
        asked.partial_fit(X[here], y[here])
        left.partial_fit(X[here], y[here])
        assert np.isfinite(asked.coef_).all()
    np.testing.assert_array_equal(asked.coef_, left.coef_)
    best, information = maximum_likelihood("gamma", X, y)
    assert ratio(coefficients(left), best, information) < 1.02


@pytest.mark.parametrize("path", ["exact", "tango"])
def test_classes_on_both_paths(path, monkeypatch):
    monkeypatch.setattr(engine, "FULL_PATH", path)
    X, y = simulate("multinomial", n=20_000, seed=5)
    model = TangoClassifier(random_state=0, polish=False).fit(X, y)
    assert (model.fitted_.excess < 1.01) == (path == "exact")
