"""Bad input is refused by name of row and column; odd input is fit and remarked on."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from tangograd.glm import DataError, TangoClassifier, TangoRegressor, engine, family
from tests.glm.simulated import simulate, simulate_classes

N, D = 2000, 4
NAMES = ["age", "bmi", "größe", "a b"]


@pytest.fixture(scope="module")
def data():
    return simulate("poisson", N, D)


@pytest.fixture(params=["memory", "stream", "long start"])
def mode(request, monkeypatch):
    if request.param != "memory":
        monkeypatch.setattr(engine, "BUFFER_BYTES", 10_000)
        monkeypatch.setattr(engine, "BLOCK_ROWS", 256)
    if request.param == "stream":
        monkeypatch.setattr(engine, "START_ROWS", 500)
        monkeypatch.setattr(engine, "FIRST_ROWS", 200)
    return request.param


# --- what is not finite


TABLES = {
    "array": (np.asarray, "column 2"),
    "float32": (np.float32, "column 2"),
    "csr": (sp.csr_matrix, "column 2"),
    "pandas": (lambda X: pd.DataFrame(X, columns=NAMES), "column 'größe'"),
    "polars": (lambda X: pl.DataFrame(X, schema=NAMES), "column 'größe'"),
}


@pytest.mark.parametrize("row", [0, 1000, N - 1])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
@pytest.mark.parametrize("kind", TABLES)
def test_features_that_are_not_finite(kind, value, word, row, mode, data):
    X, y = data[0].copy(), data[1]
    X[row, 2] = value
    form, name = TABLES[kind]
    message = f"X has {word}.* in row {row} of {name}: "
    if word == "inf":
        message = f"X has infinity.* in row {row} of {name}: "
    for model in (TangoRegressor("poisson", random_state=0), TangoRegressor(shuffle=False)):
        with pytest.raises(DataError, match=message):
            model.fit(form(X), y)
        assert not hasattr(model, "coef_")
    with pytest.raises(DataError, match=message):
        TangoClassifier(random_state=0).fit(form(X), np.arange(N) % 3)
    fresh = TangoRegressor("poisson")
    with pytest.raises(DataError, match=message):
        fresh.partial_fit(form(X), y)
    known = TangoRegressor("poisson").fit(form(data[0]), y)
    with pytest.raises(DataError, match=message):
        known.predict(form(X))


def test_infinities_of_both_signs(data):
    X, y = data[0].copy(), data[1]
    X[7, 1], X[8, 1] = np.inf, -np.inf
    with pytest.raises(DataError, match="row 7 of column 1"):
        TangoRegressor().fit(X, y)


def test_large_numbers_are_finite(data):
    X, y = data
    model = TangoRegressor("poisson").fit(X, y)
    large = TangoRegressor("poisson").fit((X * 1e37).astype(np.float32), y)
    np.testing.assert_allclose(large.coef_ * 1e37, model.coef_, rtol=1e-4)
    with pytest.raises(DataError, match="extreme values"):
        TangoRegressor("poisson").fit(X * 1e300, y)


TARGETS = {
    "gaussian": (np.nan, "finite"),
    "poisson": (-1.0, "poisson model must be 0 or positive, but it is -1 in row 12"),
    "gamma": (0.0, "gamma model must be positive, but it is 0 in row 12"),
    "tweedie": (-0.5, "tweedie model must be 0 or positive, but it is -0.5 in row 12"),
    "negative_binomial": (-2.0, "must be 0 or positive, but it is -2 in row 12"),
    "binomial": (2.0, "binomial model must be between 0 and 1, but it is 2 in row 12"),
}


@pytest.mark.parametrize("learn", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", TARGETS)
def test_targets_out_of_the_domain(name, learn, data):
    X, y = data[0], np.full(N, 0.5)
    value, message = TARGETS[name]
    y[12] = y[17] = value
    with pytest.raises(DataError, match=message):
        getattr(TangoRegressor(name), learn)(X, y)
    for value in (np.nan, np.inf):
        y[12] = value
        with pytest.raises(DataError, match=f"y must be finite, and is {value} in row 12"):
            getattr(TangoRegressor(name), learn)(X, y)


def test_a_score_of_targets_out_of_the_domain(data):
    X, y = data
    model = TangoRegressor("poisson").fit(X, y)
    with pytest.raises(DataError, match="row 0"):
        model.score(X, -1 - y)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        model.score(X, y[:-1])


# --- columns beside X


COLUMNS = {
    "negative weight": ({"sample_weight": (5, -1.0)}, "sample_weight must be 0.*row 5 has -1"),
    "weight of NaN": ({"sample_weight": (5, np.nan)}, "sample_weight must be finite; row 5"),
    "offset of inf": ({"offset": (9, np.inf)}, "offset must be finite; row 9 has inf"),
    "exposure of 0": ({"exposure": (3, 0.0)}, "exposure must be positive; row 3 has 0"),
    "negative exposure": ({"exposure": (3, -2.0)}, "exposure must be positive; row 3 has -2"),
}


@pytest.mark.parametrize("learn", ["fit", "partial_fit"])
@pytest.mark.parametrize("case", COLUMNS)
def test_bad_weights_offsets_and_exposures(case, learn, data):
    changes, message = COLUMNS[case]
    given = {}
    for name, (row, value) in changes.items():
        given[name] = np.ones(N)
        given[name][row] = value
    with pytest.raises(DataError, match=message):
        getattr(TangoRegressor("poisson"), learn)(*data, **given)
    if "sample_weight" not in given:
        with pytest.raises(DataError, match=message):
            TangoRegressor("poisson").fit(*data).predict(data[0], **given)


@pytest.mark.parametrize("name", ["sample_weight", "offset", "exposure"])
@pytest.mark.parametrize("shape", [(N - 1,), (N, 1), ()])
def test_columns_of_another_length(name, shape, data):
    with pytest.raises(DataError, match=f"{name} must have a number for each of the {N} rows"):
        TangoRegressor("poisson").fit(*data, **{name: np.ones(shape)})


def test_targets_of_another_length(data):
    X, y = data
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        TangoRegressor().fit(X, y[:-1])
    with pytest.raises(ValueError, match="should be a 1d array"):
        TangoRegressor().fit(X, np.c_[y, y])


def test_no_weights_at_all(data):
    X, y = data
    with pytest.raises(DataError, match="sample_weight is zero in all rows"):
        TangoRegressor().fit(X, y, np.zeros(N))
    model = TangoRegressor().partial_fit(X[:5], y[:5], np.zeros(5))  # others may follow
    with pytest.raises(DataError, match="no rows to learn from"):
        model.predict(X)
    model.partial_fit(X[5:], y[5:])
    np.testing.assert_array_equal(model.coef_, TangoRegressor().fit(X[5:], y[5:]).coef_)


@pytest.mark.parametrize("name", ["gaussian", "binomial"])
def test_exposure_needs_a_log_link(name, data):
    with pytest.raises(
        ValueError, match="needs a log or cloglog link; that of .* is (identity|logit)"
    ):
        TangoRegressor(name).fit(data[0], data[1] > 0, exposure=np.ones(N))


# --- options


OPTIONS = {
    "family": ({"family": "possion"}, "the families are .*got 'possion'"),
    "link": ({"link": "probit"}, "the links of gaussian are identity; got 'probit'"),
    "a family's link": ({"family": family("poisson"), "link": "logit"}, "has its link"),
    "fisher": ({"fisher": "exact"}, "fisher must be one of 'expected', 'sampled'; got 'exact'"),
    "covariance": ({"covariance": "yes"}, "covariance must be one of .* got 'yes'"),
    "alpha": ({"alpha": -0.1}, "alpha must be 0 or positive; got -0.1"),
    "infinite alpha": ({"alpha": np.inf}, "alpha must be 0 or positive; got inf"),
    "alpha of NaN": ({"alpha": np.nan}, "alpha must be 0 or positive; got nan"),
    "alpha of text": ({"alpha": "1"}, "alpha must be 0 or positive; got '1'"),
    "several alphas": ({"alpha": [1.0, 2.0]}, "alpha must be 0 or positive"),
    "passes": ({"passes": 0}, "passes must be 1 or more; got 0"),
    "half a pass": ({"passes": 1.5}, "passes must be 1 or more; got 1.5"),
}


@pytest.mark.parametrize("learn", ["fit", "partial_fit"])
@pytest.mark.parametrize("case", OPTIONS)
def test_bad_options(case, learn, data):
    options, message = OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        getattr(TangoRegressor(**options), learn)(*data)
    if not {"family", "link"} & options.keys():
        with pytest.raises(ValueError, match=message):
            TangoClassifier(**options).fit(data[0], data[1] > 0)


# --- classes


def test_one_class(data):
    with pytest.raises(DataError, match="only one class, 'a'"):
        TangoClassifier().fit(data[0], np.full(N, "a"))
    with pytest.raises(DataError, match="only one class, 0"):
        TangoClassifier().partial_fit(data[0], np.zeros(N), classes=[0])


def test_numbers_that_are_not_classes(data):
    with pytest.raises(ValueError, match="Unknown label type"):
        TangoClassifier().fit(*simulate("gaussian", N, D))
    with pytest.raises(DataError, match="y must be finite, and is nan in row 3"):
        TangoClassifier().fit(data[0], np.where(np.arange(N) == 3, np.nan, 1.0))
    for missing in (None, np.nan, pd.NA):
        labels = np.array(["a", "b"], dtype=object)[np.arange(N) % 2]
        labels[3] = missing
        for y in (labels, pd.Series(labels)):
            with pytest.raises(
                DataError, match="y must be finite, and is (None|nan|<NA>) in row 3"
            ):
                TangoClassifier().fit(data[0], y)


STREAMS = {
    "no classes": ({"classes": None}, {}, "first call of partial_fit needs classes="),
    "unknown": ({"classes": [0, 1]}, {}, "row 2 has the class 2, which is not among"),
    "unknown, weighted": (
        {"classes": [0, 1]},
        {"class_weight": {0: 1.0, 1: 2.0}},
        "row 2 has the class 2",
    ),
    "text": ({"classes": ["0", "1", "2"]}, {}, "row 0 has the class 0, which is not among"),
    "balanced": ({"classes": [0, 1, 2]}, {"class_weight": "balanced"}, "balanced.*needs all rows"),
}


def test_a_class_without_weight_cannot_be_balanced(data):
    y = np.array(["no", "yes"])[np.arange(N) % 2]
    with pytest.raises(DataError, match="weight of each class, and class 'yes' has none"):
        TangoClassifier(class_weight="balanced").fit(data[0], y, sample_weight=y == "no")


def test_no_intervals_without_more_rows_than_coefficients(data):
    X, y = data[0][:2], np.arange(2.0)
    with pytest.raises(DataError, match="no more rows than it has coefficients"):
        TangoRegressor().fit(X, y).predict(X, interval=0.9)


@pytest.mark.parametrize("case", STREAMS)
def test_bad_streams_of_classes(case, data):
    arguments, options, message = STREAMS[case]
    with pytest.raises(ValueError, match=message):
        TangoClassifier(**options).partial_fit(data[0], np.arange(N) % 3, **arguments)


@pytest.mark.parametrize("mode", ["memory", "stream"], indirect=True)
def test_a_failed_call_changes_nothing(mode, data):
    X, y = simulate_classes(N, D, 3)
    model = TangoClassifier().partial_fit(X, y, classes=[0, 1, 2])
    before, errors = model.coef_, model.fitted_.standard_errors
    bad = X.copy()
    bad[3, 1] = np.nan
    unknown = np.where(np.arange(N) == 1700, 7, y)
    for arguments in (
        {"X": bad, "y": y},
        {"X": X, "y": unknown},
        {"X": X, "y": y, "sample_weight": -np.ones(N)},
        {"X": X, "y": y, "offset": np.full(N, np.nan)},
        {"X": X, "y": y[:-1]},
        {"X": X[:, :2], "y": y},
        {"X": X, "y": y, "classes": [0, 1]},
    ):
        with pytest.raises(ValueError):
            model.partial_fit(**arguments)
        np.testing.assert_array_equal(model.coef_, before)
        np.testing.assert_array_equal(model.fitted_.standard_errors, errors)
        np.testing.assert_array_equal(model.classes_, [0, 1, 2])
    other = TangoClassifier().partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_array_equal(model.partial_fit(X, y).coef_, other.partial_fit(X, y).coef_)


# --- odd data


def notes(model):
    return " ".join(model.fitted_.notes)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_constant_and_duplicated_columns_are_named(form, mode, data):
    X, y = data
    frame = np.c_[X, np.full(N, 3.0), X[:, 1], np.zeros(N)]
    model = TangoRegressor("poisson", random_state=0).fit(form(frame), y)
    plain = TangoRegressor("poisson", random_state=0).fit(form(X), y)
    assert "constant: x4, x6" in notes(model)
    assert "columns before them: x5" in notes(model)
    assert model.coef_[4] == pytest.approx(0, abs=1e-12)
    assert model.coef_[6] == 0
    close = {"abs": 1e-5} if mode == "memory" else {"abs": 0.02}
    assert model.coef_[1] + model.coef_[5] == pytest.approx(plain.coef_[1], **close)
    assert np.isfinite(model.predict(form(frame))).all()
    named = pd.DataFrame(frame, columns=[*NAMES, "one", "twin", "zero"])
    model = TangoRegressor("poisson", random_state=0).fit(named, y)
    assert "constant: one, zero" in notes(model)
    assert "before them: twin" in notes(model)
    assert "constant" not in notes(plain)


@pytest.mark.parametrize("mode", ["memory", "stream"], indirect=True)
@pytest.mark.parametrize("classes", [2, 3])
def test_separated_classes_are_said_so(classes, mode):
    X = np.random.default_rng(0).normal(size=(N, 3))
    X[:, 0] += 10 * (np.arange(N) % classes)
    model = TangoClassifier(random_state=0).fit(X, np.arange(N) % classes)
    assert "linearly separable" in notes(model)
    assert np.isfinite(model.coef_).all()
    assert np.abs(model.coef_).max() < 1e4
    assert model.score(X, np.arange(N) % classes) > 0.99
    assert np.isfinite(model.predict_log_proba(X)).all()


def test_rows_of_zeros(mode, data):
    X, y = data[0].copy(), data[1]
    X[::2] = 0
    for form in (np.asarray, sp.csr_matrix):
        model = TangoRegressor("poisson", random_state=0).fit(form(X), y)
        assert np.isfinite(model.coef_).all()
        assert np.isfinite(model.fitted_.standard_errors).all()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_nothing_but_zeros(form):
    y = np.random.default_rng(0).poisson(2.0, 50)
    model = TangoRegressor("poisson").fit(form(np.zeros((50, 3))), y)
    np.testing.assert_array_equal(model.coef_, 0)
    assert model.intercept_ == pytest.approx(np.log(y.mean()))
    assert np.isfinite(model.predict(form(np.zeros((2, 3))), interval=0.9)).all()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("name", ["gaussian", "poisson", "gamma"])
def test_one_row(name, form):
    model = TangoRegressor(name).fit(form(np.array([[1.0, 2.0, 3.0]])), [2.0])
    assert model.predict(form(np.array([[1.0, 2.0, 3.0]]))) == pytest.approx([2.0], rel=1e-5)
    assert np.isfinite(model.coef_).all()
    assert str(model.summary())


@pytest.mark.parametrize("name", ["gaussian", "poisson", "gamma", "binomial", "tweedie"])
def test_more_columns_than_rows(name):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 50)), rng.integers(0, 2, 20) + (name == "gamma")
    model = TangoRegressor(name).fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert model.score(X, y) > 0.99
    assert str(model.summary())


def test_a_column_of_all_zeros_in_the_target():
    X, _ = simulate("poisson", 200, D)
    for name in ("poisson", "negative_binomial", "tweedie", "binomial"):
        model = TangoRegressor(name).fit(X, np.zeros(200))
        assert np.isfinite(model.coef_).all()
        assert model.predict(X).max() < 1e-3


def test_wide_sparse_rows_in_a_stream(monkeypatch):
    rng = np.random.default_rng(0)
    X = sp.random(3000, 1510, density=0.01, format="csr", random_state=1)
    y = rng.poisson(np.exp(X @ rng.normal(size=1510)))
    monkeypatch.setattr(engine, "BUFFER_BYTES", 100_000)
    monkeypatch.setattr(engine, "START_ROWS", 1000)
    monkeypatch.setattr(engine, "START_ROWS_EACH", 1)
    with threadpool_limits(1):
        model = TangoRegressor("poisson", alpha=0.1, random_state=0).fit(X, y)
        with pytest.raises(DataError, match="at most 1500 coefficients"):
            TangoRegressor("poisson", alpha=0.1, polish=True).fit(X, y)
    assert model.fitted_.progressive
    assert model.fitted_.covariance_kind == "diagonal"
    assert np.isfinite(model.coef_).all()
    assert model.score(X, y) > 0


def test_a_failed_fit_leaves_the_model_before():
    X, y = simulate_classes(N, D, 3)
    model = TangoClassifier().fit(X, np.array(["a", "b", "c"])[y.astype(int)])
    before, chosen = model.predict_proba(X), model.predict(X)
    for arguments in (
        {"X": X, "y": y > 0, "sample_weight": -np.ones(N)},
        {"X": X[:, :2], "y": y > 0, "offset": np.full(N, np.nan)},
        {"X": X, "y": np.ones(N)},
    ):
        with pytest.raises(ValueError):
            model.fit(**arguments)
        np.testing.assert_array_equal(model.predict_proba(X), before)
        assert (model.predict(X) == chosen).all()


def noted(model, words):
    return any(words in note for note in model.fitted_.notes)


@pytest.mark.parametrize("n", [200, 3000, 20_000])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_without_a_gap_are_separated(n, classes):
    """The ridged solution may be wrong about rows at the border, but it is the ridge's."""
    X = np.random.default_rng(n).normal(size=(n, 2))
    eta = X[:, 0] + 0.3 * X[:, 1]
    model = TangoClassifier().fit(X, np.digitize(eta, [0.0, 0.8][: classes - 1]))
    assert noted(model, "linearly separable")
    assert np.isfinite(model.fitted_.estimates).all()
    noise = 0.1 * np.random.default_rng(0).logistic(size=n)
    blurred = TangoClassifier().fit(X, np.digitize(eta + noise, [0.0, 0.8][: classes - 1]))
    assert not blurred.fitted_.notes


def test_what_the_data_do_not_determine_is_said():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    level = (rng.random(2000) < 0.05).astype(float)
    frame = pd.DataFrame(np.c_[X, level], columns=["a", "b", "c", "level"])
    y = (X[:, 0] + rng.logistic(size=2000) > 0) & (level == 0)
    quasi = TangoClassifier().fit(frame, y)
    assert noted(quasi, "do not determine the coefficients of level,")
    frame["sum"] = frame["a"] + frame["b"]
    dependent = TangoRegressor().fit(frame, X[:, 0] + rng.normal(size=2000))
    assert noted(dependent, "depend linearly on the columns before them: sum")
    assert dependent.fitted_.degrees_of_freedom == 5
    assert not TangoRegressor().fit(frame.drop(columns="sum"), X[:, 0]).fitted_.notes
    assert not TangoRegressor(alpha=1e-3).fit(frame, X[:, 0]).fitted_.notes
