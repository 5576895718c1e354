"""The engine: chunks, buffer and stream give what they should, whatever comes."""

import copy

import numpy as np
import pytest
import scipy.sparse as sp

from tangograd.glm import engine
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.families import by_name as family
from tests.glm.simulated import data, excess, fit, model_of, rows, shorten

FORMS = {
    "dense": np.asarray,
    "float32": lambda X: X.astype(np.float32),
    "sparse": sp.csr_matrix,
    "sparse float32": lambda X: sp.csr_matrix(X.astype(np.float32)),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@pytest.fixture
def streaming(monkeypatch):
    """No rows are kept but those that start the stream."""
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)


@pytest.fixture
def short(monkeypatch):
    """Streams of a few thousand rows, with a buffer of some 1200."""
    shorten(monkeypatch, width=5)


def numbers(fitted):
    """Everything in it that could differ, as bytes."""
    found = {}
    for name, value in vars(fitted).items():
        if isinstance(value, np.ndarray | float | int):
            found[name] = np.asarray(value).tobytes()
        else:
            found[name] = value
    return found


# --- chunks


@pytest.mark.parametrize("sizes", [(1000,), (7,), (1, 7, 1000), (256,), (255, 257)], ids=str)
@every_form
@pytest.mark.parametrize("name", ["logit", "gamma", "classes"])
def test_any_chunks_give_the_same_bits(name, form, sizes, short, monkeypatch):
    X, y = data(name, 3000, 5, kind="sparse", seed=2)
    X = form(X + 0.25 * (X > 0))
    monkeypatch.setattr(engine, "BUFFER_BYTES", rows(X, y).X.nbytes // 3)
    rng = np.random.default_rng(0)
    extra = {"w": rng.integers(0, 3, 3000).astype(np.float64), "offset": rng.normal(size=3000) / 4}
    whole = fit(name, X, y, **extra)
    parts = fit(name, X, y, sizes=sizes, **extra)
    assert whole.streaming
    assert numbers(whole.fitted()) == numbers(parts.fitted())


@pytest.mark.parametrize("options", [{"fisher": "sampled"}, {"alpha": 0.05}, {"intercept": False}])
@pytest.mark.parametrize("name", ["poisson", "classes"])
def test_any_chunks_give_the_same_bits_with_options(name, options, short):
    X, y = data(name, 2500, 5, seed=3)
    whole, parts = fit(name, X, y, **options), fit(name, X, y, sizes=(1, 130, 900), **options)
    assert whole.streaming
    assert numbers(whole.fitted()) == numbers(parts.fitted())


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["poisson", "classes"])
def test_any_chunks_of_whitened_columns_give_the_same_bits(name, form, short):
    X, y = data(name, 2500, 5, kind="correlated", seed=3)
    X = form(X)
    whole, parts = fit(name, X, y), fit(name, X, y, sizes=(1, 130, 900))
    assert whole.streaming
    assert whole.at.W is not None
    assert numbers(whole.fitted()) == numbers(parts.fitted())


@every_form
def test_any_chunks_in_the_buffer_give_the_same_bits(form):
    X, y = data("poisson", 20_000, 5, kind="sparse", seed=4)
    X = form(X)
    whole, parts = fit("poisson", X, y), fit("poisson", X, y, sizes=(1, 7, 1000, 9000))
    assert not whole.streaming
    assert numbers(whole.fitted()) == numbers(parts.fitted())


def test_dense_and_sparse_streams_agree(short):
    X, y = data("poisson", 4000, 5, kind="sparse", seed=5)
    dense, sparse = fit("poisson", X, y), fit("poisson", sp.csr_matrix(X), y)
    # the buffer holds more rows of the sparse
    assert np.abs(dense.coefficients() - sparse.coefficients()).max() < 0.02
    mixed = OnePass(family("poisson"), 5, seed=1)
    for i in range(0, 4000, 256):
        part = X[i : i + 256]
        mixed.feed(sp.csr_matrix(part) if i % 512 else part, y[i : i + 256])
    assert np.abs(mixed.coefficients() - dense.coefficients()).max() < 0.02


def test_results_in_between_change_nothing(short):
    """Rows that wait for their block to fill are in the results, and still wait."""
    X, y = data("logit", 3000, 5, seed=6)
    asked, left = model_of("logit", 5), model_of("logit", 5)
    for i in range(0, 3000, 100):
        for model in (asked, left):
            model.feed(X[i : i + 100], y[i : i + 100])
        so_far = asked.fitted()
        assert so_far.rows == min(i + 100, 3000)
        if i + 100 <= 1200:
            expected = fit("logit", X[: i + 100], y[: i + 100]).fitted()
            assert np.array_equal(so_far.estimates, expected.estimates)
    assert numbers(asked.fitted()) == numbers(left.fitted())


def test_pending_rows_that_would_start_the_stream(short, monkeypatch):
    """Their copy starts it; the model itself does so later."""
    X, y = data("logit", 3000, 5, seed=7)
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1100 * 5 * 8)
    model = fit("logit", X[:1200], y[:1200])
    before = copy.deepcopy(vars(model))
    fitted = model.fitted()
    assert fitted.progressive
    assert not model.streaming
    assert model.path is before["path"] is None
    assert np.array_equal(model.at.m, before["at"].m)
    assert model.tally.rows == 0
    assert sum(len(block) for block in model.buffer + model.pending) == 1200


def test_columns_in_any_sparse_format_and_stored_in_pieces():
    X, y = data("poisson", 500, 4, kind="sparse", seed=8)
    expected = fit("poisson", X, y).coefficients()
    model = OnePass(family("poisson"), 4)
    model.feed(sp.csc_matrix(X), y)
    assert np.abs(model.coefficients() - expected).max() < 1e-9


def test_elements_stored_twice_are_their_sum(short):
    X, y = data("poisson", 3000, 5, kind="sparse", seed=8)
    whole = sp.csr_matrix(X)
    coo = whole.tocoo()
    twice = sp.csr_matrix(whole.shape)
    order = np.argsort(np.r_[coo.row, coo.row], kind="stable")
    twice = sp.csr_matrix(
        (
            np.r_[0.25 * coo.data, 0.75 * coo.data][order],
            np.r_[coo.col, coo.col][order],
            2 * whole.indptr,
        ),
        shape=whole.shape,
    )
    assert twice.nnz == 2 * whole.nnz
    expected = fit("poisson", whole, y).coefficients()
    model = OnePass(family("poisson"), 5, seed=1)
    model.feed(twice, y)
    assert twice.nnz == 2 * whole.nnz
    assert np.abs(model.coefficients() - expected).max() < 1e-12


# --- columns that come later


@every_form
def test_growing_in_the_buffer_is_having_had_zeros(form):
    X, y = data("logit", 2000, 5, seed=9)
    X[:1300, 3:] = 0.0
    whole = fit("logit", form(X), y).fitted()
    model = OnePass(family("binomial"), 3)
    model.feed(form(X[:700, :3]), y[:700])
    assert model.coefficients().shape == (1, 4)
    model.feed(form(X[700:1300, :3]), y[700:1300])
    model.grow(5)
    assert model.coefficients().shape == (1, 6)
    model.feed(form(X[1300:]), y[1300:])
    grown = model.fitted()
    assert np.array_equal(grown.estimates, whole.estimates)
    assert np.array_equal(grown.standard_errors, whole.standard_errors)
    assert grown.notes == whole.notes


@pytest.mark.parametrize("kind", ["independent", "correlated"])
@pytest.mark.parametrize("name", ["poisson", "classes"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_growing_in_the_stream_is_having_had_zeros(name, form, kind, short, monkeypatch):
    """To rounding: sums over columns are of other lengths."""
    X, y = data(name, 4000, 5, kind=kind, seed=10)
    X[:2000, 3:] = 0.0
    monkeypatch.setattr(engine, "BUFFER_BYTES", rows(form(X[:1200]), y[:1200]).X.nbytes)
    whole = fit(name, form(X), y, sizes=(500,)).fitted()
    monkeypatch.setattr(engine, "BUFFER_BYTES", rows(form(X[:1200, :3]), y[:1200]).X.nbytes)
    model = model_of(name, 3, seed=1)
    model.feed(form(X[:2000, :3]), y[:2000])
    assert model.streaming
    before = model.coefficients()
    model.grow(5)
    after = model.coefficients()
    assert np.allclose(after, np.insert(before, [3, 3], 0.0, axis=1), rtol=1e-12, atol=0)
    model.feed(form(X[2000:]), y[2000:])
    grown = model.fitted()
    assert np.abs(grown.estimates / whole.estimates - 1).max() < 1e-6
    assert np.abs(grown.standard_errors / whole.standard_errors - 1).max() < 1e-6


def test_growing_to_what_is_there_changes_nothing():
    model = OnePass(family("poisson"), 3)
    model.grow(3)
    model.grow(2)
    assert model.columns == 3


# --- weights, rows and columns of all kinds


def test_whole_weights_are_repeated_rows():
    X, y = data("gamma", 1500, 4, seed=18)
    w = np.random.default_rng(0).integers(0, 4, 1500)
    weighted = fit("gamma", X, y, w=w.astype(np.float64)).fitted()
    repeated = fit("gamma", np.repeat(X, w, axis=0), np.repeat(y, w)).fitted()
    assert np.abs(weighted.estimates - repeated.estimates).max() < 1e-9
    assert np.allclose(weighted.standard_errors, repeated.standard_errors, rtol=1e-9)
    for name in ("dispersion", "deviance", "null_deviance", "log_likelihood", "weight"):
        assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), rel=1e-9)
    assert weighted.rows == (w > 0).sum()


def test_rows_without_weight_are_not_there(short):
    X, y = data("logit", 3000, 4, seed=19)
    w = (np.random.default_rng(0).random(3000) < 0.7).astype(np.float64)
    some = fit("logit", X, y, w=w, sizes=(333,))
    there = fit("logit", X[w > 0], y[w > 0])
    assert numbers(some.fitted()) == numbers(there.fitted())
    model = OnePass(family("binomial"), 4)
    model.feed(X[:10], y[:10], np.zeros(10))
    with pytest.raises(DataError, match="there are no rows to learn from"):
        model.fitted()


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_rows_of_zeros(form, intercept, short):
    """They teach the intercept, and nothing without one."""
    X, y = data("poisson", 4000, 5, seed=20)
    X[::2] = 0.0
    model = fit("poisson", form(X), y, intercept=intercept)
    assert model.streaming
    assert np.isfinite(model.coefficients()).all()
    others = fit("poisson", form(X[1::2]), y[1::2], intercept=intercept)
    if not intercept:
        assert np.abs(model.coefficients() - others.coefficients()).max() < 0.1
    assert np.isfinite(model.fitted().standard_errors).all()


def test_a_model_of_zeros_only_is_its_intercept(monkeypatch):
    y = np.random.default_rng(0).poisson(3.0, 20_000).astype(np.float64)
    for form in (np.asarray, sp.csr_matrix):
        X = form(np.zeros((20_000, 2)))
        for size in (64_000_000, 1):
            monkeypatch.setattr(engine, "BUFFER_BYTES", size)
            fitted = fit("poisson", X, y).fitted()
            assert fitted.estimates[0] == pytest.approx(np.log(y.mean()), abs=0.002)
            assert np.array_equal(fitted.estimates[1:], [0, 0])
            assert np.isnan(fitted.standard_errors[1:]).all()
            assert fitted.standard_errors[0] == pytest.approx(1 / np.sqrt(y.sum()), rel=0.1)


@pytest.mark.parametrize("value", [1 / 3, -1.0, 1e6 / 3, 1e-5])
@every_form
@pytest.mark.parametrize("size", [64_000_000, 1], ids=["buffer", "stream"])
def test_a_constant_column_is_said_and_has_no_effect(form, value, size, monkeypatch):
    X, y = data("logit", 12_000, 4, seed=21)
    monkeypatch.setattr(engine, "BUFFER_BYTES", size)
    monkeypatch.setattr(engine, "START_ROWS", 5000)
    without = fit("logit", form(X), y).fitted()
    fitted = fit("logit", form(np.c_[X, np.full(12_000, value)]), y).fitted()
    assert fitted.estimates[-1] == 0
    assert np.isnan(fitted.standard_errors[-1])
    assert np.abs(fitted.estimates[:-1] - without.estimates).max() < 1e-6
    assert np.abs(fitted.standard_errors[:-1] / without.standard_errors - 1).max() < 1e-6
    assert fitted.notes == (
        "constant: x4; the intercept says the same, so the coefficient is 0",
        *without.notes,
    )


def test_a_column_constant_at_first_is_learned_later(short):
    X, y = data("poisson", 40_000, 3, seed=22)
    X[:, 2] = np.where(np.arange(40_000) < 1500, 5.0, 5.0 + X[:, 2])
    rng = np.random.default_rng(1)
    y = rng.poisson(np.exp(0.5 * (X[:, 2] - 5))).astype(np.float64)
    for form in (np.asarray, sp.csr_matrix):
        model = fit("poisson", form(X), y)
        assert model.start_rows < 1500
        assert model.coefficients()[0, 2] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("path", ["tango", "exact", "memory"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_a_duplicated_column_is_said(form, path, monkeypatch):
    n = 30_000
    X, y = data("logit", n, 5, seed=23)
    best = fit("logit", X, y).coefficients()
    if path != "memory":
        monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
        monkeypatch.setattr(engine, "FULL_PATH", path)
    fitted = (model := fit("logit", form(np.c_[X, X[:, 1]]), y)).fitted()
    theta = model.coefficients()
    if path == "tango":  # they share the effect
        assert theta[0, 1] == pytest.approx(theta[0, 5], abs=1e-4)
        said = "x5 equals x1 in every row"
    else:
        assert theta[0, 5] == 0
        said = "depend linearly on the columns before them: x5"
    merged = np.delete(theta, 5, axis=1)
    merged[0, 1] += theta[0, 5]
    assert excess("logit", X, y, merged, best) < 1.1
    assert fitted.excess < 1.1
    assert any(said in note for note in fitted.notes)


def test_levels_of_a_category_that_sum_to_one(streaming):
    """One column too many, as when no level is left out: the fit is that without it."""
    n, rng = 40_000, np.random.default_rng(24)
    level = rng.integers(0, 5, n)
    X = np.eye(5)[level]
    y = rng.poisson(np.exp(0.3 * level - 0.5)).astype(np.float64)
    theta = fit("poisson", X, y).coefficients()[0]
    means = [y[level == i].mean() for i in range(5)]
    expected = np.log(means)
    errors = 1 / np.sqrt([y[level == i].sum() for i in range(5)])
    assert (np.abs(theta[:-1] + theta[-1] - expected) < 0.6 * errors).all()


@pytest.mark.usefixtures("tango_path")
def test_a_sorted_stream_is_noticed(monkeypatch):
    X, y = data("gaussian", 20_000, 3, seed=25)
    order = np.argsort(y)
    said = "the rows seem to be sorted by the target"
    assert not any(said in note for note in fit("gaussian", X[order], y[order]).fitted().notes)
    condensed = fit("gaussian", X[order], y[order])
    condensed.condense()
    assert not any(said in note for note in condensed.fitted().notes)
    monkeypatch.setattr(engine, "BUFFER_BYTES", 1)
    model = fit("gaussian", X[order], y[order])
    assert any(said in note for note in model.fitted().notes)
    model.polish(lambda: [rows(X, y)])
    assert not any(said in note for note in model.fitted().notes)
    assert not any(said in note for note in fit("gaussian", X, y).fitted().notes)


@pytest.mark.parametrize("name", ["logit", "probit", "cloglog", "classes"])
@pytest.mark.parametrize("size", [64_000_000, 1], ids=["buffer", "stream"])
def test_separated_classes_are_said(name, size, monkeypatch):
    monkeypatch.setattr(engine, "BUFFER_BYTES", size)
    X = np.random.default_rng(26).normal(size=(20_000, 3))
    X[:, 0] += 0.3 * np.sign(X[:, 0])  # a gap
    y = (X[:, 0] > 0).astype(np.float64)
    if name == "classes":
        y += X[:, 0] > 1.0
        X[:, 0] += 0.5 * (X[:, 0] > 1.0)
    fitted = fit(name, X, y).fitted()
    assert np.isfinite(fitted.estimates).all()
    assert np.isfinite(fitted.deviance)
    assert any("linearly separable" in note for note in fitted.notes)


def test_rare_events_are_not_separated():
    rng = np.random.default_rng(27)
    X = rng.normal(size=(100_000, 2))
    y = np.zeros(100_000)
    y[rng.choice(100_000, 3)] = 1.0
    notes = fit("logit", X, y).fitted().notes
    assert not any("separated" in note for note in notes)


def test_infinite_values_are_an_error(short):
    X, y = data("gaussian", 3000, 3)
    X[2000, 1] = np.inf
    with pytest.raises(DataError, match="became infinite; look for extreme values"):
        fit("gaussian", X, y)


def test_outliers_are_bounded_and_said(short):
    X, y = data("poisson", 20_000, 4, kind="independent", seed=28)
    X[5000::50, 0] = 1e4
    y[5000::50] = 1.0
    fitted = fit("poisson", X, y).fitted()
    assert np.isfinite(fitted.estimates).all()
    assert any("so extreme that their effect was bounded" in note for note in fitted.notes)


# --- what is left of the rows


def test_condensing_keeps_what_was_learned(monkeypatch):
    monkeypatch.setattr(engine, "START_ROWS", 3000)
    X, y = data("gamma", 30_000, 4, seed=29)
    model = fit("gamma", X[:3000], y[:3000])
    before = model.fitted()
    model.condense()
    assert not model.buffer
    assert numbers(model.fitted()) == numbers(before)
    model.feed(X[3000:], y[3000:])
    after = model.fitted()
    assert not after.progressive
    assert after.rows == 30_000
    assert after.excess < 1.1
    best = fit("gamma", X, y).coefficients()
    assert excess("gamma", X, y, model.coefficients(), best) < 1.3


def test_rows_too_few_to_start_from_are_kept():
    """As copies: the caller may reuse its arrays."""
    X, y = data("gamma", 3000, 4, seed=29)
    given = X[:1000].copy()
    model = fit("gamma", given, y[:1000])
    model.condense()
    given[:] = np.nan
    model.feed(X[1000:], y[1000:])
    best = fit("gamma", X, y).fitted()
    assert np.allclose(model.fitted().estimates, best.estimates, rtol=1e-8)


def test_condensing_a_stream_changes_nothing(short):
    X, y = data("poisson", 3000, 4)
    model, same = fit("poisson", X, y), fit("poisson", X, y)
    model.condense()
    assert numbers(model.fitted()) == numbers(same.fitted())


def test_a_given_start_leads_to_the_same_end():
    X, y = data("logit", 1000, 3, kind="unscaled", seed=30)
    expected = fit("logit", X, y).coefficients()
    model = OnePass(family("binomial"), 3)
    model.initial = expected * 1.1
    model.feed(X, y)
    assert np.allclose(model.coefficients(), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("covariance", "columns", "kind"),
    [
        ("auto", 499, "full"),
        ("auto", 500, "diagonal"),
        ("full", 500, "full"),
        ("diagonal", 2, "diagonal"),
        (None, 2, "none"),
    ],
)
def test_kinds_of_covariance(covariance, columns, kind):
    assert OnePass(family("poisson"), columns, covariance=covariance).kind == kind


def test_blocks_are_smaller_for_wide_rows():
    for d, expected in ((1, engine.BLOCK_ROWS), (1000, 512), (100_000, 16)):
        model = OnePass(family("gaussian"), d)
        model.feed(np.zeros((1, d)), np.zeros(1))
        assert model.block_rows == expected
