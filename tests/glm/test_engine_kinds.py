"""Rows of every kind of matrix are learned from as the dense matrix that they stand for would be."""

import numpy as np
import pytest

from tangograd.glm import engine
from tangograd.glm.matrices import Block, Categorical, Dense
from tests.glm.matrices.samples import KINDS, PLACES, WIDTH, categorical
from tests.glm.simulated import FAMILIES, model_of, responses, shorten
from tests.glm.test_engine import numbers


def simulated(name, n, kind=categorical):
    X, rng = kind(n), np.random.default_rng(1)
    Z = X.toarray()
    spread = Z.std(axis=0)
    slopes = 0.3 * rng.normal(size=WIDTH) / np.where(spread > 0, spread, 1.0)
    offset = 0.2 * rng.normal(size=n)
    eta = (Z - Z.mean(axis=0)) @ slopes + offset
    weights = rng.integers(0, 3, n).astype(np.float64)
    if name == "classes":
        y = rng.integers(0, 3, n).astype(np.float64)
    else:
        y = responses(FAMILIES[name][0], eta, rng)
    return Block(X, y, weights, offset)


def dense(rows):
    return rows._replace(X=Dense(rows.X.toarray()))


@pytest.fixture
def short(monkeypatch):
    """A stream that starts from the same rows, whatever their size."""
    shorten(monkeypatch, width=1)
    for name, value in {"BUFFER_BYTES": 10_000, "START_ROWS": 256, "SEEN": 0}.items():
        monkeypatch.setattr(engine, name, value)


def fed(name, rows, sizes=(10**6,), **options):
    model = model_of(name, WIDTH, seed=1, **options)
    start, i = 0, 0
    while start < len(rows):
        end = start + sizes[i % len(sizes)]
        model.feed_rows(rows.take(slice(start, end)))
        start, i = end, i + 1
    return model


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("poisson", "categorical", {}),
        ("gaussian", "categorical", {"alpha": 0.01}),
        ("logit", "categorical", {"intercept": False}),
        ("gamma", "levels_alone", {"covariance": "diagonal"}),
        ("classes", "categorical", {"alpha": 0.01}),
        ("logit", "sparse", {}),
        ("poisson", "sparse", {"alpha": 0.01, "covariance": "diagonal"}),
        ("classes", "half_full", {"intercept": False}),
        ("tweedie", "sparse", {"fisher": "sampled", "covariance": None}),
        ("logit", "single", {}),
    ],
    ids=str,
)
def test_a_stream_is_that_of_the_matrix(name, kind, options, short):
    rows = simulated(name, 4000, KINDS[kind])
    found, expected = fed(name, rows, **options), fed(name, dense(rows), **options)
    assert found.streaming
    scale = np.abs(expected.coefficients()).max()
    assert np.abs(found.coefficients() - expected.coefficients()).max() < 1e-10 * scale
    if found.sums is not None:
        for part in ("fisher", "meat"):
            one, other = getattr(found.sums, part), getattr(expected.sums, part)
            assert np.abs(one - other).max() < 1e-10 * np.abs(other).max()
    np.testing.assert_allclose(found.fitted().deviance, expected.fitted().deviance, rtol=1e-10)


@pytest.mark.parametrize("sizes", [(7,), (1, 7, 1000), (255, 257)], ids=str)
@pytest.mark.parametrize(("name", "kind"), [("logit", "categorical"), ("classes", "sparse")])
def test_any_chunks_give_the_same_bits(name, kind, sizes, short):
    rows = simulated(name, 3000, KINDS[kind])
    whole = fed(name, rows)
    assert whole.streaming
    assert numbers(whole.fitted()) == numbers(fed(name, rows, sizes).fitted())


def test_whitened_columns_are_those_of_the_matrix(short):
    rows = simulated("poisson", 3000)
    rows.X.numbers[:, 1] = rows.X.numbers[:, 0] + 0.01 * rows.X.numbers[:, 1]
    found, expected = fed("poisson", rows), fed("poisson", dense(rows))
    assert found.at.W is not None
    np.testing.assert_allclose(found.coefficients(), expected.coefficients(), rtol=1e-9)


@pytest.mark.parametrize("kind", ["categorical", "sparse"])
def test_polishing_reads_them_too(kind, short):
    rows = simulated("poisson", 3000, KINDS[kind])
    found, expected = fed("poisson", rows), fed("poisson", dense(rows))
    found.polish(lambda: [rows.take(slice(0, 1100)), rows.take(slice(1100, None))])
    expected.polish(lambda: [dense(rows)])
    assert np.abs(found.coefficients() - expected.coefficients()).max() < 1e-11


def test_levels_that_come_later(short):
    """The first rows know neither the last level nor the second category's missing values."""
    rows = simulated("logit", 3000)
    late = rows.X.codes[:1500, 1]
    late[late >= 8] = 6
    expected = fed("logit", dense(rows))
    indicated = np.full((1500, 1), -1, np.int32)  # a third category, of no row yet
    early = Categorical(rows.X.numbers[:1500], PLACES, rows.X.codes[:1500], 8)
    later = Categorical(rows.X.numbers[1500:], PLACES, np.c_[rows.X.codes[1500:], indicated], WIDTH)
    model = model_of("logit", 8, seed=1)
    for X, here in ((early, slice(0, 1500)), (later, slice(1500, None))):
        model.grow(X.width)
        model.feed_rows(Block(X, *rows.take(here)[1:4]))
    assert model.streaming
    # the start did not know the columns, whose curvature the other's knew to be 0
    assert np.abs(model.coefficients() - expected.coefficients()).max() < 1e-10


def test_levels_that_come_late_do_not_make_chunks_matter(short):
    """The sums of the stream are as they would be in other chunks, to the last bit."""
    rows = simulated("poisson", 8000)
    rows.X.codes[:6500][rows.X.codes[:6500] == 8] = -1

    def grown(size):
        model = model_of("poisson", WIDTH - 1, seed=1)
        for start in range(0, 8000, size):
            part = rows.take(slice(start, start + size))
            if (part.X.codes == 8).any():
                model.grow(WIDTH)
            model.feed_rows(part._replace(X=part.X._replace(width=model.columns)))
        assert model.streaming
        return model.solution().sums

    one = grown(500)
    for size in (77, 300):
        other = grown(size)
        np.testing.assert_array_equal(one.fisher, other.fisher)
        np.testing.assert_array_equal(one.meat, other.meat)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_level_of_all_rows_says_nothing(covariance, short):
    """As of a column of truths that are all true: no rounding makes it, or the intercept, vague."""
    rows = simulated("poisson", 4000)
    rows.X.codes[:, 0] = 3
    rows = rows._replace(weights=np.random.default_rng(0).uniform(0.5, 2, 4000))
    found, expected = (
        fed("poisson", given, covariance=covariance).fitted() for given in (rows, dense(rows))
    )
    assert np.isnan(found.standard_errors[found.names.index("x3")])
    for part in ("standard_errors", "robust_errors"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-9)


@pytest.mark.parametrize("kind", ["categorical", "sparse"])
def test_rows_in_memory_are_fit_to_convergence(kind):
    rows = simulated("poisson", 1500, KINDS[kind])
    found, expected = fed("poisson", rows, (400,)), fed("poisson", dense(rows))
    assert not found.streaming
    close = 1e-8 * expected.fitted().standard_errors.max()
    assert np.abs(found.coefficients() - expected.coefficients()).max() < close
    found.condense()
    assert np.abs(found.coefficients() - expected.coefficients()).max() < close
