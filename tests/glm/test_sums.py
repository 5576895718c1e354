"""Sums over rows against dense matrices, row by row."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import softmax

from tangograd.glm import sums as sums_module
from tangograd.glm.old_families import family
from tangograd.glm.rows import Rows, blocks, together
from tangograd.glm.sums import Sums, respond, squares, weighted, weighted_powers
from tangograd.stream.vectors import padded
from tests.glm.simulated import CLASSES, rows, simulate_classes

N, D = 50, 4


@pytest.fixture
def problem():
    """Rows of three classes, what they are centred at, and θ."""
    rng = np.random.default_rng(0)
    X, y = simulate_classes(N, D, seed=1)
    X[rng.random(X.shape) < 0.4] = 0.0
    return rows(X, y, rng.uniform(0.5, 2, N)), rng.normal(size=D), rng.normal(size=(2, D + 1))


def formats(X):
    return [X, sp.csr_matrix(X), X.astype(np.float32), sp.csr_matrix(X.astype(np.float32))]


def test_responses_of_classes_are_those_of_the_softmax(problem):
    block, m, theta = problem
    eta = (block.X - m) @ theta[:, :-1].T + theta[:, -1]
    loss, s, fisher = respond(CLASSES, eta, block.y)
    p = softmax(np.c_[np.zeros(N), eta], axis=1)
    own = np.eye(3)[block.y.astype(int)]
    assert np.abs(loss + np.log((p * own).sum(axis=1))).max() < 1e-13
    assert np.abs(s - (p - own)[:, 1:]).max() < 1e-14
    for i in range(N):
        q = p[i, 1:]
        assert np.abs(fisher[i] - (np.diag(q) - np.outer(q, q))).max() < 1e-14


@pytest.mark.parametrize("y", [0.0, 1.0, 2.0])
def test_responses_of_extreme_classes_are_finite(y):
    eta = np.array([[800.0, -800.0], [-800.0, -900.0], [0.0, 700.0]])
    for part in respond(CLASSES, eta, np.full(3, y)):
        assert np.isfinite(part).all()


def test_responses_of_one_output_are_the_familys():
    eta, y = np.array([[0.5], [-1.0]]), np.array([2.0, 0.0])
    loss, s, f = respond(family("poisson"), eta, y)
    mu = np.exp(eta[:, 0])
    assert np.allclose(loss, mu - y * eta[:, 0], rtol=1e-15)
    assert np.allclose(s, (mu - y)[:, None], rtol=1e-15)
    assert np.allclose(f, mu[:, None, None], rtol=1e-15)


@pytest.mark.parametrize("strip", [7, 256])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_sums_are_those_of_the_dense_matrices(problem, full, intercept, strip, monkeypatch):
    monkeypatch.setattr(sums_module, "STRIP_ROWS", strip)
    monkeypatch.setattr(sums_module, "STRIP_BYTES", 1)
    block, m, theta = problem
    eta = (block.X - m) @ theta[:, :-1].T + theta[:, -1]
    _, s, f = respond(CLASSES, eta, block.y)
    w = block.w[:, None]
    p = 2 * (D + 1)
    gradient, fisher, meat = np.zeros(p), np.zeros((p, p)), np.zeros((p, p))
    for i in range(N):
        x = np.r_[block.X[i] - m, float(intercept)]
        g = block.w[i] * np.kron(s[i], x)
        gradient += g
        fisher += block.w[i] * np.kron(f[i], np.outer(x, x))
        meat += np.outer(g, g)
    if not full:
        fisher, meat = np.diag(fisher), np.diag(meat)
    for X in formats(block.X):
        tolerance = 1e-12 if X.dtype == np.float64 else 2e-5
        sums = Sums(2, D + 1, full)
        half = N // 2
        for here in (slice(half), slice(half, None)):
            part = Rows(X[here], block.y[here], block.w[here], block.offset[here])
            sums.add(part, m, (w * s)[here], (w[:, :, None] * f)[here], intercept)
        assert np.abs(sums.gradient - gradient).max() < tolerance
        assert np.abs(sums.fisher - fisher).max() < tolerance
        assert np.abs(sums.meat - meat).max() < tolerance


def test_sums_without_meat(problem):
    block, m, _ = problem
    sums = Sums(1, D + 1, True)
    sums.add(block, m, np.ones((N, 1)), np.ones((N, 1, 1)), meat=False)
    assert not sums.meat.any()
    assert sums.fisher.any()


@pytest.mark.parametrize("full", [True, False])
def test_growing_is_having_had_zeros(problem, full):
    block, m, _ = problem
    rng = np.random.default_rng(3)
    scores, fishers = rng.normal(size=(N, 2)), rng.normal(size=(N, 2, 2))
    fishers = np.einsum("nij,nkj->nik", fishers, fishers)
    later = rows(np.c_[block.X, rng.normal(size=(N, 2))], block.y)
    wide = rows(np.c_[block.X, np.zeros((N, 2))], block.y)
    grown, whole = Sums(2, D + 1, full), Sums(2, D + 3, full)
    grown.add(block, m, scores, fishers)
    grown.grow(D + 3)
    whole.add(wide, np.r_[m, 0, 0], scores, fishers)
    for sums in (grown, whole):
        sums.add(later, np.r_[m, 0, 0], scores, fishers)
    for name in ("gradient", "fisher", "meat"):
        assert np.abs(getattr(grown, name) - getattr(whole, name)).max() < 1e-12


def test_including_is_adding(problem):
    block, m, _ = problem
    scores, fishers = np.ones((N, 1)), np.ones((N, 1, 1))
    one, two = Sums(1, D + 1, True), Sums(1, D + 1, True)
    one.add(block, m, scores, fishers)
    two.add(block, m, scores, fishers)
    one.include(two)
    assert np.array_equal(one.fisher, 2 * two.fisher)
    assert np.array_equal(one.meat, 2 * two.meat)
    assert np.array_equal(one.gradient, 2 * two.gradient)


@pytest.mark.parametrize("intercept", [True, False])
def test_weighted_sums_and_squares(problem, intercept):
    """Also of columns that X does not have yet, which are 0."""
    block, m, _ = problem
    m, rng = np.r_[m, 0.5], np.random.default_rng(2)
    w, C = rng.normal(size=N), rng.random(D + 2)
    x = np.c_[block.X - m[:-1], np.full(N, -0.5), np.full(N, float(intercept))]
    for X in formats(block.X):
        tolerance = 1e-12 if X.dtype == np.float64 else 2e-5
        assert np.abs(weighted(X, m, w, intercept) - w @ x).max() < tolerance
        assert np.abs(weighted_powers(X, m, w**2, 2, intercept) - w**2 @ x**2).max() < tolerance
        fourth = weighted_powers(X, m, w**2, 4, intercept)
        assert np.abs(fourth / (w**2 @ x**4 + 1e-99) - 1)[: D + 1 + intercept].max() < tolerance
        assert np.abs(squares(X, m, C, intercept) - x**2 @ C).max() < tolerance


def test_squares_of_float32_are_summed_in_float64():
    X = sp.csr_matrix(np.array([[0.1], [0.2], [3e20]], dtype=np.float32))
    expected = (X.toarray().astype(np.float64) ** 2).sum()
    assert weighted_powers(X, np.zeros(1), np.ones(3))[0] == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("value", [1 / 3, 1e6 / 3, -7.7])
def test_a_constant_sparse_column_has_no_spread(value):
    X = sp.csr_matrix(np.c_[np.full(999, value), np.arange(999.0)])
    found = weighted_powers(X, np.array([value, 500.0]), np.full(999, 0.3))
    assert found[0] == 0
    assert found[1] > 0


def test_rows_together_and_apart(problem):
    """Blocks put together are the rows; narrower ones are widened; dense and sparse mix."""
    block, m, _ = problem
    cut = list(blocks(block, 16, 5))
    assert [len(part) for part in cut] == [5, 16, 16, 13]
    back = together(cut)
    for a, b in zip(back[:4], block[:4], strict=True):
        assert np.array_equal(a, b)
    narrow = rows(block.X[:, :2], block.y)
    for form in (np.asarray, sp.csr_matrix):
        mixed = together([rows(form(narrow.X), block.y), block])
        assert np.array_equal(mixed.X, np.r_[np.c_[narrow.X, np.zeros((N, 2))], block.X])
    sparse = together([rows(sp.csr_matrix(narrow.X), block.y)] * 2)
    assert sp.issparse(sparse.X)
    x = narrow.centred(m, intercept=False)
    assert np.array_equal(x, np.c_[narrow.X - m[:2], np.tile(-m[2:], (N, 1)), np.zeros(N)])


def test_rows_in_an_order(problem):
    block, _, _ = problem
    order = np.random.default_rng(5).permutation(N)[:30]
    some = Rows(block.X, block.y[order], block.w[order], block.offset[order], order)
    assert len(some) == 30
    solid = some.take(slice(3, 11)).solid()
    assert np.array_equal(solid.X, block.X[order[3:11]])
    assert np.array_equal(solid.y, block.y[order[3:11]])
    assert together([some, solid]).X.shape == (38, D)
    assert some.bytes == 30 * D * 8


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("far", [0.0, 1e5])
def test_rows_with_few_entries_are_summed_from_them_alone(far, dtype, intercept, monkeypatch):
    rng = np.random.default_rng(3)
    X, y = simulate_classes(200, 30, seed=2)
    X[rng.random(X.shape) < 0.95] = 0.0
    X[:, 3] = 0.0  # not in these rows, but in others: m is not 0
    X[:, 4] += far  # nearly all mean
    X = X.astype(dtype)
    m = X.mean(axis=0, dtype=np.float64) + 1e-3
    w = rng.uniform(0.5, 2, 200)
    block, dense = (rows(form, y, w) for form in (sp.csr_matrix(X), X))
    _, s, f = respond(CLASSES, 0.3 * rng.normal(size=(200, 2)), y)
    chosen = []
    product = sums_module._sparse_product
    monkeypatch.setattr(
        sums_module, "_sparse_product", lambda *args: chosen.append(1) or product(*args)
    )
    found, wanted = Sums(2, 31, full=True), Sums(2, 31, full=True)
    found.add(block, m, s, f, intercept)
    assert bool(chosen) == (not far)  # where centring cancels, the rows are made dense
    wanted.add(dense, m, s, f, intercept)
    for name in ("gradient", "fisher", "meat"):
        size = np.abs(getattr(wanted, name)).max()
        assert np.abs(getattr(found, name) - getattr(wanted, name)).max() <= 1e-13 * size


@pytest.mark.parametrize("full", [True, False])
def test_rows_of_one_output_are_added_as_they_stream(full, monkeypatch):
    """With more columns later, and put to the others now and then."""
    monkeypatch.setattr(sums_module, "FOLD_ROWS", 120)
    rng = np.random.default_rng(0)
    sums, size = Sums(1, D, full), D
    fisher, meat = np.zeros((D + 2, D + 2)), np.zeros((D + 2, D + 2))
    for step in range(6):
        if step == 3:
            size = D + 2
            sums.grow(size)
        z, weights = np.zeros((50, padded(size))), rng.uniform(0, 2, (2, 50))
        z[:, :size] = rng.normal(size=(50, size))
        sums.add_single(z, weights)
        x = np.zeros((50, D + 2))  # the intercept, which is the last, stays it
        x[:, : size - 1], x[:, -1] = z[:, : size - 1], z[:, size - 1]
        fisher += (x.T * weights[0]) @ x
        meat += (x.T * weights[1]) @ x
    for found, right in ((sums.fisher, fisher), (sums.meat, meat)):
        right = right if full else np.diag(right)
        assert np.abs(found - right).max() < 1e-12 * np.abs(right).max()
