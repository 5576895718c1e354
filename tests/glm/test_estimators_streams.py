"""More rows than are kept: any chunking gives the same bits, one pass is near maximum likelihood."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import scipy.sparse as sp
import statsmodels.api as sm
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from tangograd.glm import TangoClassifier, TangoRegressor, engine
from tests.glm.simulated import FAMILIES, simulate, simulate_classes

N, D = 3000, 5
MANY = 12_000


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture
def little_memory(monkeypatch):
    """A few thousand rows are a stream."""
    for name, value in {
        "BUFFER_BYTES": 20_000,
        "START_ROWS": 800,
        "FIRST_ROWS": 300,
        "BLOCK_ROWS": 256,
        "KEPT_ROWS": 500,
    }.items():
        monkeypatch.setattr(engine, name, value)


@pytest.fixture
def no_memory(monkeypatch):
    """What follows the first rows is a stream."""
    monkeypatch.setattr(engine, "BUFFER_BYTES", 50_000)
    monkeypatch.setattr(engine, "START_ROWS", 3000)
    monkeypatch.setattr(engine, "KEPT_ROWS", 2000)


def assert_same_bits(one, other):
    np.testing.assert_array_equal(one.coef_, other.coef_)
    np.testing.assert_array_equal(one.intercept_, other.intercept_)
    for part in fields(one.fitted_):
        mine, its = (getattr(model.fitted_, part.name) for model in (one, other))
        np.testing.assert_array_equal(mine, its, err_msg=part.name)


def cut(sizes, n):
    """Slices of these sizes, again and again."""
    start, i = 0, 0
    while start < n:
        yield slice(start, start + sizes[i % len(sizes)])
        start, i = start + sizes[i % len(sizes)], i + 1


def in_chunks(model, sizes, X, y, first=None, **columns):
    for here in cut(sizes, len(y)):
        given = {name: column[here] for name, column in columns.items()}
        model.partial_fit(X[here], y[here], **(first or {}), **given)
    return model


def holed(X):
    return np.where(np.abs(X) > 0.7, X, 0.0)


FORMS = {
    "float64": np.asarray,
    "float32": np.float32,
    "csr": lambda X: sp.csr_matrix(holed(X)),
    "csr_array of int64": lambda X: wide_indices(sp.csr_array(holed(X))),
}


def wide_indices(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


CHUNKS = {
    "one by one": [1] * 10 + [240],
    "uneven": [1, 700, 13, 255, 257],
    "blocks": [256],
    "all": [N],
}


@pytest.fixture(params=["stream", "memory"])
def mode(request):
    if request.param == "stream":
        request.getfixturevalue("little_memory")
    return request.param


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("form", FORMS)
def test_any_chunking_gives_the_same_regression(form, chunks, mode):
    X, y = simulate("poisson", N, D)
    X = FORMS[form](X)
    rng = np.random.default_rng(1)
    columns = {
        "sample_weight": rng.uniform(0.5, 2, N) * (rng.random(N) > 0.2),
        "offset": 0.1 * rng.normal(size=N),
        "exposure": rng.uniform(0.5, 2, N),
    }
    whole = TangoRegressor("poisson", shuffle=False, alpha=0.01).fit(X, y, **columns)
    parts = TangoRegressor("poisson", alpha=0.01)
    in_chunks(parts, CHUNKS[chunks], X, y, **columns)
    assert (whole.fitted_.excess > 1) == (mode == "stream")
    assert whole.fitted_.rows == np.count_nonzero(columns["sample_weight"])
    assert_same_bits(whole, parts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_any_chunking_gives_the_same_classifier(form, classes, mode):
    X, y = simulate_classes(N, D, classes)
    X = FORMS[form](X)
    w = np.random.default_rng(1).uniform(0.5, 2, N)
    names = np.array(["a", "b", "c"])[:classes]
    y = names[y.astype(int)]
    options = {"class_weight": dict.fromkeys(names.tolist(), 1.5), "fisher": "sampled"}
    whole = TangoClassifier(shuffle=False, random_state=3, **options).fit(X, y, w)
    parts = TangoClassifier(random_state=3, **options)
    in_chunks(parts, [1, 700, 13, 255, 257], X, y, {"classes": names}, sample_weight=w)
    assert whole.fitted_.progressive == (mode == "stream")
    assert_same_bits(whole, parts)


@pytest.mark.parametrize("d", [1, 17, 60])
def test_chunks_of_all_widths(d, mode):
    X, y = simulate("gaussian", N, d, kind="unscaled")
    whole = TangoRegressor(shuffle=False).fit(X, y)
    assert_same_bits(whole, in_chunks(TangoRegressor(), [37, 411], X, y))


def test_looking_between_chunks_changes_nothing(mode):
    X, y = simulate("poisson", N, D)
    looked = TangoRegressor("poisson")
    for here in cut([170], N):
        looked.partial_fit(X[here], y[here])
        assert looked.fitted_.rows == min(here.stop, N)
        assert np.isfinite(looked.predict(X[:3])).all()
    assert_same_bits(looked, in_chunks(TangoRegressor("poisson"), [N], X, y))


def test_the_callers_array_may_be_used_again(mode):
    X, y = simulate("poisson", N, D)
    model = TangoRegressor("poisson")
    space, target, w = np.empty((100, D)), np.empty(100), np.empty(100)
    for here in cut([100], N):
        space[:], target[:], w[:] = X[here], y[here], 1.0
        model.partial_fit(space, target, w)
        space[:], target[:], w[:] = 1e9, 1e9, 7.0
    assert_same_bits(model, TangoRegressor("poisson", shuffle=False).fit(X, y))


def test_a_fit_leaves_the_callers_arrays_alone(mode):
    X, y = simulate("poisson", N, D)
    w = np.ones(N)
    before = X.copy(), y.copy(), w.copy()
    for array in (X, y, w):
        array.flags.writeable = False
    model = TangoRegressor("poisson", random_state=0, passes=2, polish=True).fit(X, y, w, w)
    for array, kept in zip((X, y, w), before, strict=True):
        np.testing.assert_array_equal(array, kept)
    assert_same_bits(
        model, TangoRegressor("poisson", random_state=0, passes=2, polish=True).fit(*before, w)
    )


# --- order


@pytest.mark.usefixtures("little_memory")
def test_the_order_is_random_and_can_be_repeated():
    X, y = simulate("poisson", N, D)
    w = np.random.default_rng(1).uniform(0.5, 2, N)
    models = [TangoRegressor("poisson", random_state=s).fit(X, y, w) for s in (0, 0, 1)]
    assert_same_bits(*models[:2])
    assert not np.array_equal(models[0].coef_, models[2].coef_)
    given = TangoRegressor("poisson", random_state=np.random.RandomState(0)).fit(X, y, w)
    assert given.fitted_.rows == N
    unshuffled = TangoRegressor("poisson", shuffle=False).fit(X, y, w)
    assert not np.array_equal(models[0].coef_, unshuffled.coef_)


@pytest.mark.parametrize("name", ["logit", "poisson"])
@pytest.mark.usefixtures("no_memory")
def test_rows_sorted_by_the_target(name):
    X, y = simulate(name, MANY, D)
    order = np.argsort(y, kind="stable")
    family = FAMILIES[name][0]
    exact = likelihood(name, X, y)
    as_they_are = TangoRegressor(family, shuffle=False, polish=False)
    with pytest.warns(ConvergenceWarning, match="times those of maximum likelihood"):
        as_they_are.fit(X[order], y[order])
    assert any("sorted or grouped by the target" in note for note in as_they_are.fitted_.notes)
    assert distance(as_they_are, exact) > 0.1
    for passes, options in (
        (1, {}),
        (2, {"shuffle": False}),
        (3, {"shuffle": False, "polish": True}),
    ):
        model = TangoRegressor(family, random_state=0, **options).fit(X[order], y[order])
        assert model.fitted_.notes == ()
        assert distance(model, exact) < (1e-4 if passes == 3 else 0.02)
        assert model.fitted_.passes == passes


def test_rows_in_memory_may_be_sorted():
    X, y = simulate("poisson", N, D)
    order = np.argsort(y)
    assert TangoRegressor("poisson", shuffle=False).fit(X[order], y[order]).fitted_.notes == ()


# --- accuracy


def likelihood(name, X, y, **options):
    """Maximum likelihood: estimates and covariance."""
    result = sm.GLM(y, sm.add_constant(X), family=FAMILIES[name][1], **options).fit(tol=1e-12)
    return result.params, result.cov_params()


def distance(model, exact):
    """Squared, in the Fisher metric, by the number of coefficients."""
    params, covariance = exact
    gap = model.fitted_.estimates - params
    return float(gap @ np.linalg.solve(covariance, gap)) / len(params)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("no_memory")
def test_one_pass_is_near_maximum_likelihood_and_polish_there(name):
    X, y = simulate(name, MANY, D, kind="unscaled")
    exact = likelihood(name, X, y)
    ours = FAMILIES[name][0]
    one, two, sampled, polished = (
        TangoRegressor(ours, random_state=0, **options).fit(X, y)
        for options in ({}, {"passes": 2}, {"fisher": "sampled"}, {"polish": True})
    )
    assert one.fitted_.passes == 1
    assert distance(one, exact) < 0.005
    np.testing.assert_allclose(
        one.fitted_.standard_errors / np.sqrt(np.diag(exact[1])), 1.0, atol=0.03
    )
    assert two.fitted_.passes == 2
    assert two.fitted_.rows == MANY
    assert distance(two, exact) < 0.002
    assert distance(sampled, exact) < 0.5
    assert not np.array_equal(sampled.coef_, one.coef_)
    errors = np.sqrt(np.diag(exact[1]))
    np.testing.assert_allclose((polished.fitted_.estimates - exact[0]) / errors, 0, atol=0.02)
    np.testing.assert_allclose(polished.fitted_.standard_errors, errors, rtol=0.02)
    assert polished.fitted_.converged
    assert polished.fitted_.passes in (1, 2, 3, 4)


@pytest.mark.usefixtures("no_memory")
def test_one_pass_over_classes():
    X, y = simulate_classes(MANY, D, 3)
    result = sm.MNLogit(y, sm.add_constant(X)).fit(disp=0, method="newton")
    exact = result.params.T.ravel(), result.cov_params()
    for form in (np.asarray, np.float32, sp.csr_matrix):
        model = TangoClassifier(random_state=0).fit(form(X), y)
        assert distance(model, exact) < 0.005
    polished = TangoClassifier(random_state=0, polish=True).fit(X, y)
    gap = (polished.fitted_.estimates - exact[0]) / np.sqrt(np.diag(exact[1]))
    np.testing.assert_allclose(gap, 0, atol=0.01)


@pytest.mark.usefixtures("no_memory")
def test_a_penalty_in_the_stream(monkeypatch):
    X, y = simulate("poisson", MANY, D)
    streamed = [
        TangoRegressor("poisson", alpha=1.0, random_state=0).fit(form(X), y)
        for form in (np.asarray, sp.csr_matrix)
    ]
    polished = TangoRegressor("poisson", alpha=1.0, polish=True).fit(X, y)
    monkeypatch.undo()
    exact = TangoRegressor("poisson", alpha=1.0).fit(X, y)
    plain = TangoRegressor("poisson").fit(X, y)
    assert not exact.fitted_.progressive
    reference = exact.fitted_.estimates, exact.fitted_.covariance
    assert distance(plain, reference) > 100
    for model in streamed:
        assert distance(model, reference) < 0.005
    assert distance(polished, reference) < 1e-4


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson"])
@pytest.mark.usefixtures("no_memory")
def test_the_unit_of_the_weights_does_not_matter(name, scale):
    X, y = simulate(name, MANY, D)
    w = np.random.default_rng(1).uniform(0.5, 2, MANY)
    model = TangoRegressor(FAMILIES[name][0], alpha=0.01, shuffle=False)
    one = model.fit(X, y, w).fitted_
    other = model.fit(X, y, scale * w).fitted_
    gap = (other.estimates - one.estimates) / one.standard_errors
    np.testing.assert_allclose(gap, 0, atol=1e-6)


@pytest.mark.usefixtures("no_memory")
def test_kinds_of_covariance_in_the_stream():
    X, y = simulate("gaussian", MANY, D)
    full, auto, diagonal, none = (
        TangoRegressor(covariance=kind, shuffle=False).fit(X, y)
        for kind in ("full", "auto", "diagonal", None)
    )
    np.testing.assert_array_equal(auto.coef_, full.coef_)  # on the exact path
    np.testing.assert_array_equal(none.coef_, diagonal.coef_)  # on TANGO's
    assert auto.fitted_.deviance == full.fitted_.deviance
    kinds = [model.fitted_.covariance_kind for model in (full, auto, diagonal, none)]
    assert kinds == ["full", "full", "diagonal", "none"]
    np.testing.assert_array_equal(auto.fitted_.covariance, full.fitted_.covariance)
    np.testing.assert_allclose(  # of columns that hardly correlate
        diagonal.fitted_.standard_errors[1:], full.fitted_.standard_errors[1:], rtol=0.05
    )
    assert none.fitted_.standard_errors is None
    for model in (diagonal, none):
        with pytest.raises(ValueError, match="full covariance matrix.*covariance='full'"):
            model.predict(X[:3], interval=0.9)


# --- going on


@pytest.mark.parametrize("form", ["float64", "csr"])
@pytest.mark.usefixtures("no_memory")
def test_learning_goes_on_after_a_fit(form):
    X, y = simulate("poisson", MANY, D)
    X = FORMS[form](X)
    dense = X.toarray() if sp.issparse(X) else X
    half = MANY // 2
    model = TangoRegressor("poisson").fit(X[:half], y[:half])
    first = model.coef_
    for here in cut([1000], half):
        model.partial_fit(X[half:][here], y[half:][here])
    assert model.fitted_.rows == MANY
    assert not np.array_equal(model.coef_, first)
    assert distance(model, likelihood("poisson", dense, y)) < 0.25


def test_learning_goes_on_after_a_fit_of_rows_in_memory():
    X, y = simulate("poisson", MANY, D)
    half = MANY // 2
    model = TangoRegressor("poisson").fit(X[:half], y[:half])
    assert model.fitted_.converged
    model.partial_fit(X[half:], y[half:])
    assert model.fitted_.rows == MANY
    assert distance(model, likelihood("poisson", X, y)) < 0.25


def test_a_warm_start_ends_where_a_cold_one_does(mode):
    X, y = simulate("poisson", N, D)
    cold = TangoRegressor("poisson", random_state=0).fit(X, y)
    warm = TangoRegressor("poisson", random_state=0, warm_start=True)
    warm.fit(X[:500], y[:500]).fit(X, y)
    scale = cold.fitted_.standard_errors
    gap = (warm.fitted_.estimates - cold.fitted_.estimates) / scale
    np.testing.assert_allclose(gap, 0, atol=1e-3 if mode == "memory" else 0.3)
    warm.set_params(fit_intercept=False).fit(X, y)
    assert warm.intercept_ == 0.0
    cold = TangoRegressor("poisson", random_state=0, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(warm.coef_, cold.coef_, atol=1e-6 if mode == "memory" else 0.02)
    warm.fit(X[:, :2], y)  # of other columns: a cold start
    assert warm.coef_.shape == (2,)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("extra", range(-300, 301, 100))
def test_passes_and_polish_when_the_buffer_just_overflows(extra, monkeypatch):
    X, y = simulate("poisson", N, D)
    monkeypatch.setattr(engine, "BUFFER_BYTES", X.nbytes - 8 * D * extra)
    model = TangoRegressor("poisson", passes=2, polish=True).fit(X, y)
    assert model.fitted_.converged
    assert not model.fitted_.progressive
    if extra <= 0:
        assert model.fitted_.passes == 1
    else:
        assert model.fitted_.passes >= 2


@pytest.mark.usefixtures("no_memory")
def test_polishing_never_makes_it_worse():
    """Rows that contradict the model by orders of magnitude, where Newton's steps go astray."""
    rng = np.random.default_rng(1)
    X = rng.standard_t(2, size=(MANY, 4))
    truth = np.array([-0.3, 0.2, 0.4, -0.5])
    y = rng.gamma(2, np.exp(np.clip(X @ truth, -4, 4)) / 2)

    def loss(model):
        eta = X @ model.coef_ + model.intercept_
        return np.mean(eta + y * np.exp(-eta))

    with pytest.warns(ConvergenceWarning, match="one row"):
        one, polished = (
            TangoRegressor("gamma", polish=p, random_state=0).fit(X, y) for p in (False, True)
        )
    assert loss(polished) <= loss(one)
    assert np.abs(polished.coef_).max() < 2


@pytest.mark.usefixtures("no_memory")
def test_a_stream_that_few_rows_decide_is_told_so():
    rng = np.random.default_rng(0)
    X = rng.standard_t(2, size=(MANY, 4))
    y = rng.poisson(np.exp(np.clip(X @ [-0.5, 0.5, 1.0, -0.7], -5, 5)))
    with pytest.warns(ConvergenceWarning, match="one row"):
        model = TangoRegressor("poisson", random_state=0).fit(X, y)
    assert any("one row" in note for note in model.fitted_.notes)
