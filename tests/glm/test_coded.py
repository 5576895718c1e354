"""Rows of numbers and levels are learned from as the matrix that they stand for would be."""

import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from tangograd.glm import engine, steps
from tangograd.glm import sums as sums_module
from tangograd.glm.coded import Coded, Columns, joined
from tangograd.glm.rows import Rows, extremes, together
from tangograd.glm.sums import NO_PARTS, Sums
from tangograd.glm.watch import Watch
from tangograd.stream.glm_coded import add_strip
from tangograd.stream.vectors import padded, zeros
from tests.glm.simulated import FAMILIES, model_of, responses, shorten
from tests.glm.test_engine import numbers

PLACES = np.array([1, 4, 5])
WIDTH = 11


def matrix(n, seed=0, sparse=False):
    """Numbers of different sizes, far from 0; the levels of two categories are around them."""
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.choice([-1, 0, 2, 3], n), rng.choice([-1, 6, 7, 8, 9, 10], n)])
    values = rng.normal(size=(n, 3)) * [1, 10, 0.1] + [0, 5, 1]
    return Coded(values, PLACES, codes.astype(np.int32), WIDTH, sparse)


def simulated(name, n, seed=0, sparse=False):
    X, rng = matrix(n, seed, sparse), np.random.default_rng([seed, 1])
    slopes = rng.normal(size=WIDTH) * 0.3
    slopes[PLACES] /= [1, 10, 0.1]
    offset = 0.2 * rng.normal(size=n)
    Z = np.asarray(X.plain().todense()) if sparse else X.plain()
    eta = (Z - Z.mean(axis=0)) @ slopes + offset
    weights = rng.integers(0, 3, n).astype(np.float64)
    if name == "classes":
        return Rows(X, rng.integers(0, 3, n).astype(np.float64), weights, offset)
    return Rows(X, responses(FAMILIES[name][0], eta, rng), weights, offset)


@pytest.fixture
def short(monkeypatch):
    shorten(monkeypatch, width=WIDTH)


def fed(name, rows, sizes=(10**6,), plain=False, **options):
    model = model_of(name, WIDTH, seed=1, **options)
    start, i = 0, 0
    while start < len(rows):
        end = start + sizes[i % len(sizes)]
        part = rows.take(slice(start, end))
        model.feed_rows(part.plain() if plain else part)
        start, i = end, i + 1
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.01},
        {"intercept": False},
        {"covariance": "diagonal"},
        {"covariance": None},
        {"fisher": "sampled"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_stream_is_that_of_the_matrix(name, options, short, monkeypatch):
    rows, coded = simulated(name, 4000), []
    learn = steps._coded
    monkeypatch.setattr(steps, "_coded", lambda *given: coded.append(1) or learn(*given))
    found, expected = fed(name, rows, **options), fed(name, rows, plain=True, **options)
    assert found.streaming
    assert len(coded) > 3
    assert found.room.shape[1] == len(PLACES)  # of the numbers, however many levels there are
    scale = np.abs(expected.coefficients()).max()
    assert np.abs(found.coefficients() - expected.coefficients()).max() < 1e-11 * scale
    if found.sums is not None:
        for part in ("fisher", "meat"):
            one, other = getattr(found.sums, part), getattr(expected.sums, part)
            assert np.abs(one - other).max() < 1e-12 * np.abs(other).max()
    np.testing.assert_allclose(found.fitted().deviance, expected.fitted().deviance, rtol=1e-11)


@pytest.mark.parametrize("sizes", [(7,), (1, 7, 1000), (256,), (255, 257)], ids=str)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["logit", "classes"])
def test_any_chunks_give_the_same_bits(name, sparse, sizes, short, monkeypatch):
    rows = simulated(name, 3000, sparse=sparse)
    monkeypatch.setattr(engine, "BUFFER_BYTES", rows.plain().bytes // 3)
    whole = fed(name, rows)
    assert whole.streaming
    assert numbers(whole.fitted()) == numbers(fed(name, rows, sizes).fitted())


def test_whitened_columns_are_those_of_the_matrix(short):
    rows = simulated("poisson", 3000)
    rows.X.numbers[:, 1] = rows.X.numbers[:, 0] + 0.01 * rows.X.numbers[:, 1]
    found, expected = fed("poisson", rows), fed("poisson", rows, plain=True)
    assert found.at.W is not None
    assert numbers(found.fitted()) == numbers(expected.fitted())


def test_polishing_reads_them_too(short):
    rows = simulated("poisson", 3000)
    found, expected = fed("poisson", rows), fed("poisson", rows, plain=True)
    found.polish(lambda: [rows.take(slice(0, 1100)), rows.take(slice(1100, None))])
    expected.polish(lambda: [rows.plain()])
    assert np.abs(found.coefficients() - expected.coefficients()).max() < 1e-12


def test_levels_that_come_later(short):
    """The first rows know neither the last two levels nor the second category's missing values."""
    rows = simulated("logit", 3000)
    late = rows.X.codes[:1500, 1]
    late[late >= 9] = 6
    expected = fed("logit", rows, plain=True)
    early = Coded(rows.X.numbers[:1500], PLACES, rows.X.codes[:1500], 9, sparse=False)
    indicated = np.full((1500, 1), -1, np.int32)  # a third category, of no row yet
    later = Coded(
        rows.X.numbers[1500:], PLACES, np.c_[rows.X.codes[1500:], indicated], WIDTH, sparse=False
    )
    model = model_of("logit", 9, seed=1)
    for X, here in ((early, slice(0, 1500)), (later, slice(1500, None))):
        model.grow(X.width)
        model.feed_rows(Rows(X, rows.y[here], rows.w[here], rows.offset[here]))
    assert model.streaming
    # the start did not know the columns, whose curvature the other's knew to be 0
    assert np.abs(model.coefficients() - expected.coefficients()).max() < 1e-10


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["poisson", "gaussian"])
def test_a_level_of_all_rows_says_nothing(name, covariance, short):
    """As of a column of truths that are all true: no rounding makes it, or the intercept, vague."""
    X, y, _, offset, _ = simulated(name, 4000)
    X.codes[:, 0] = 3
    rows = Rows(X, y, np.random.default_rng(0).uniform(0.5, 2, 4000), offset)
    found, expected = (
        fed(name, rows, plain=plain, covariance=covariance).fitted() for plain in (False, True)
    )
    assert np.isnan(found.standard_errors[found.names.index("x3")])
    for part in ("standard_errors", "robust_errors"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-9)


def test_sums_are_those_of_the_matrix():
    rng = np.random.default_rng(0)
    X, m = matrix(500), rng.normal(size=WIDTH)
    scores, fishers = rng.normal(size=500), rng.uniform(0, 1, 500)
    weights = np.array([fishers, scores**2])
    z = np.c_[X.plain() - m, np.ones(500)]
    inside = zeros(500, padded(len(PLACES) + 1))  # of the kernel
    inside[:, : len(PLACES)], inside[:, len(PLACES)] = X.numbers - m[PLACES], 1.0
    levels = X.levels(WIDTH)
    own = np.where(X.codes < 0, len(levels), np.searchsorted(levels, X.codes))
    for intercept in (True, False):
        z[:, -1] = float(intercept)
        for full in (True, False):
            sums = Sums(1, WIDTH + 1, full)
            parts = sums.coded_parts(X, m, intercept)
            if full:
                add_strip(inside, np.zeros_like(inside), own, weights, *parts)
            else:
                assert parts == NO_PARTS
                sums.add_coded(X, m, weights, intercept)
            for found, a in ((sums.fisher, fishers), (sums.meat, scores**2)):
                expected = z.T @ (a[:, None] * z)
                expected = expected if full else np.diag(expected)
                assert np.abs(found - expected).max() < 1e-12 * np.abs(expected).max()


def test_the_matrix():
    X = matrix(50)
    Z = X.plain()
    assert X.shape == Z.shape == (50, WIDTH)
    assert Z.flags.c_contiguous
    np.testing.assert_array_equal(Z[:, PLACES], X.numbers)
    np.testing.assert_array_equal(X[3:9].plain(), Z[3:9])
    np.testing.assert_array_equal(X[np.array([5, 1])].plain(), Z[[5, 1]])
    np.testing.assert_array_equal(X[:, [7, 4, 0]], Z[:, [7, 4, 0]])
    np.testing.assert_array_equal(extremes(X), extremes(Z))
    some = np.array([2, 4, 9])
    np.testing.assert_array_equal(extremes(X, some), extremes(Z[:, some]))
    sparse = matrix(50, sparse=True).plain()
    assert sp.issparse(sparse)
    np.testing.assert_array_equal(sparse.toarray(), Z)


@pytest.mark.parametrize("sparse", [False, True])
def test_memory_is_counted_as_that_of_the_matrix(sparse):
    rows = simulated("poisson", 700, sparse=sparse)
    assert rows.bytes == rows.plain().bytes
    some = rows.take(slice(100, 350))
    assert some.bytes == some.plain().bytes


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["poisson", "classes"])
def test_rows_that_are_kept_stay_as_they_are(name, sparse, short, monkeypatch):
    """At a third of the memory of the matrix, for these; the result is the matrix's."""
    rows = simulated(name, 1500, sparse=sparse)
    monkeypatch.setattr(engine, "BUFFER_BYTES", 10 * rows.bytes)
    found, expected = fed(name, rows), fed(name, rows, plain=True)
    assert not found.streaming
    assert len(found.buffer) > 1
    assert all(isinstance(block.X, Coded) for block in found.buffer)
    assert numbers(found.fitted()) == numbers(expected.fitted())
    found.condense()
    expected.condense()
    assert numbers(found.fitted()) == numbers(expected.fitted())


def test_one_below_the_other():
    first, second = matrix(20), matrix(30, seed=1)
    fewer = Coded(first.numbers, PLACES, first.codes[:, :1], 6, sparse=True)
    both = joined([fewer, second])
    assert (both.width, both.sparse) == (WIDTH, False)
    expected = np.r_[np.pad(fewer.plain().toarray(), ((0, 0), (0, 5))), second.plain()]
    np.testing.assert_array_equal(both.plain(), expected)
    ones = np.ones(20)
    block = together([Rows(first, ones, ones, ones), Rows(first.plain(), ones, ones, ones)])
    np.testing.assert_array_equal(block.X, np.r_[first.plain(), first.plain()])


def test_what_is_watched_for():
    """A level of no row, and one that another always comes with."""
    X = matrix(400)
    X.codes[X.codes == 7] = 6
    X.codes[:, 0] = np.where(X.codes[:, 1] == 8, 3, np.where(X.codes[:, 0] == 3, 2, X.codes[:, 0]))
    found, expected = Watch(WIDTH), Watch(WIDTH)
    for i, here in enumerate((slice(0, 200), slice(200, 400))):
        y = np.zeros(200)
        expected.see(Rows(X[here].plain(), y, y + 1, y))
        found.see(Rows(X[here] if i else X[here].plain(), y, y + 1, y))
    assert found.constant() == expected.constant() == [7]
    assert found.duplicates() == expected.duplicates() == [(3, 8)]


def test_levels_of_no_row_cost_nothing_to_watch():
    """They are watched for as long as there are none."""
    n, width = 500, 20_000
    codes = np.arange(n, dtype=np.int32)[:, None] % 3 + 1
    rows = Rows(Coded(np.ones((n, 1)), np.array([0]), codes, width, True), *np.ones((3, n)))
    watch = Watch(width)
    watch.see(rows.plain())
    tracemalloc.start()
    watch.see(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * width < n * width
    assert watch.constant() == [0, *range(4, width)]


def columns(n, seed=0):
    rng = np.random.default_rng(seed)
    return Columns([rng.normal(size=n) for _ in range(3)], np.sort(rng.permutation(n)[: n // 2]))


def test_rows_out_of_columns():
    x = columns(1000)
    expected = np.column_stack(x.values)[x.rows]
    np.testing.assert_array_equal(x.together(), expected)
    np.testing.assert_array_equal(x[100:400].together(), expected[100:400])
    np.testing.assert_array_equal(x[100:400][np.array([5, 7])].together(), expected[[105, 107]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x))[3:9].together(), expected[3:9])
    room = np.full((500, 3), np.nan)
    assert x.together(room) is room
    np.testing.assert_array_equal(room, expected)
    whole = Columns([np.arange(3), np.array([1.5, 2.5, 3.5], np.float32)], np.arange(3))
    assert whole.together().tolist() == [[0.0, 1.5], [1.0, 2.5], [2.0, 3.5]]
    steps = np.arange(12.0)[::4]
    assert Columns([steps], np.array([2])).together().tolist() == [[8.0]]
    assert Columns([], np.arange(4)).together().shape == (4, 0)


def test_rows_must_be_in_the_columns():
    """The compiled function does not look."""
    for rows in ([3], [-1], [0, 3]):
        with pytest.raises(IndexError, match="have 3"):
            Columns([np.ones(3)], np.array(rows))
    with pytest.raises(ValueError, match="one length"):
        Columns([np.ones(3), np.ones(2)], np.arange(2))


def test_blocks_are_put_together_from_columns_and_rows(short):
    """A block that nobody keeps is written where the one before it was."""
    rows = simulated("poisson", 6000)
    apart = Coded(Columns(list(rows.X.numbers.T), np.arange(6000)), *tail(rows.X))
    found = fed("poisson", Rows(apart, *rows[1:4]), (700, 33))
    expected = fed("poisson", rows)
    assert found.streaming
    np.testing.assert_array_equal(found.coefficients(), expected.coefficients())
    np.testing.assert_array_equal(found.sums.fisher, expected.sums.fisher)
    both = joined([apart[:5], rows.X[5:9]])
    np.testing.assert_array_equal(both.plain(), rows.X[:9].plain())


def tail(X):
    return X.places, X.codes, X.width, X.sparse


def test_sums_are_the_same_whenever_they_are_asked_for(short, monkeypatch):
    """Looking changes nothing; and they are put to the others now and then."""
    rows = simulated("poisson", 6000)
    model, other = (model_of("poisson", WIDTH, seed=1) for _ in range(2))
    for start in range(0, 6000, 500):
        part = rows.take(slice(start, start + 500))
        for each in (model, other):
            each.feed_rows(part)
        assert model.sums is None or np.isfinite(model.sums.fisher).all()
    np.testing.assert_array_equal(model.sums.fisher, other.sums.fisher)
    np.testing.assert_array_equal(model.sums.meat, other.sums.meat)
    monkeypatch.setattr(sums_module, "FOLD_ROWS", 1000)
    folded = fed("poisson", rows)
    assert folded.sums._apart < 1000 + 512 < other.sums._apart
    np.testing.assert_allclose(folded.sums.fisher, other.sums.fisher, rtol=1e-11, atol=1e-9)


def test_levels_that_come_late_do_not_make_chunks_matter(short):
    """The sums of the stream are as they would be in other chunks, to the last bit."""
    rows = simulated("poisson", 8000)
    rows.X.codes[:6500][rows.X.codes[:6500] == 10] = -1

    def grown(size):
        model = model_of("poisson", WIDTH - 1, seed=1)
        for start in range(0, 8000, size):
            part = rows.take(slice(start, start + size))
            if (part.X.codes == 10).any():
                model.grow(WIDTH)
            model.feed_rows(Rows(replace(part.X, width=model.columns), *part[1:4]))
        assert model.streaming
        return model.solution().sums

    one = grown(500)
    for size in (77, 300):
        other = grown(size)
        np.testing.assert_array_equal(one.fisher, other.fisher)
        np.testing.assert_array_equal(one.meat, other.meat)
