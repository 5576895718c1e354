"""Every operation of every kind of matrix against the dense array that it stands for."""

import numpy as np
import pytest
import scipy.sparse as sp

from tangograd.glm.matrices import (
    Categorical,
    Csr,
    Dense,
    GramSum,
    PathArrays,
    as_matrix,
)
from tangograd.glm.matrices import base as base_module
from tangograd.glm.numerics.jit import compiled
from tests.glm.matrices.samples import KINDS, WIDTH, categorical, dense, sparse

N = 300
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
rng = np.random.default_rng(7)
CENTER = rng.normal(size=WIDTH)
WEIGHTS = rng.random(N)
LATER = np.r_[CENTER, [0.3, 0.0]]  # columns that these rows do not have


def centred(X, center=LATER, intercept=True):
    x = np.zeros((X.shape[0], len(center)))
    x[:, : X.shape[1]] = X.toarray()
    return np.column_stack([x - center, np.full(len(x), float(intercept))])


def close(found, expected, rtol=1e-12):
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * (1 + np.abs(expected).max()))


@every_kind
def test_the_array_is_what_was_given(kind):
    X, whole = kind(N), kind(N).toarray()
    assert X.shape == whole.shape == (N, WIDTH)
    assert whole.dtype == np.float64
    if isinstance(X, Categorical):
        expected = np.zeros((N, WIDTH))
        expected[:, X.places] = X.numbers
        for n in range(N):
            expected[n, X.codes[n][X.codes[n] >= 0]] = 1
        assert np.array_equal(whole, expected)
    assert np.array_equal(X.columns([3, 1, 4]), whole[:, [3, 1, 4]])
    low, high = X.extremes()
    close(low, whole.min(axis=0))
    close(high, whole.max(axis=0))
    assert X.nbytes > 0
    assert X.row_bytes * N <= X.nbytes * (2 if kind.__name__ == "single" else 1)


@every_kind
def test_products(kind):
    X, whole = kind(N), kind(N).toarray()
    for shape in ((WIDTH,), (WIDTH + 2,), (WIDTH + 2, 3)):
        coef = rng.normal(size=shape)
        close(X.dot(coef), whole @ coef[:WIDTH])
    for shape in ((N,), (N, 3)):
        a = rng.normal(size=shape)
        close(X.transpose_dot(a), whole.T @ a)


@every_kind
def test_sums_of_powers_and_norms(kind):
    X, z = kind(N), centred(kind(N))[:, :-1]
    for power in (1, 2, 4):
        close(X.weighted_powers(WEIGHTS, LATER, power), WEIGHTS @ np.abs(z) ** power)
    metric = rng.random(len(LATER))
    close(X.squared_norms(metric, LATER), z**2 @ metric)


@every_kind
def test_rows(kind):
    X, whole = kind(N), kind(N).toarray()
    for rows in (slice(10, 250), slice(0, 0), np.array([5, 3, 3, 299])):
        assert np.array_equal(X.take(rows).toarray(), whole[rows])
    again = type(X).concatenated([X.take(slice(0, 7)), X.take(slice(7, None))])
    assert np.array_equal(again.toarray(), whole)
    wide = X.widened(WIDTH + 2)
    assert np.array_equal(wide.toarray(), np.pad(whole, ((0, 0), (0, 2))))
    copied = X.copy()
    assert np.array_equal(copied.toarray(), whole)
    for one, other in zip(copied, X, strict=True):
        assert not np.shares_memory(one, other) or not np.size(one)


@every_kind
@pytest.mark.parametrize("intercept", [True, False])
def test_gram_matrices(kind, intercept, monkeypatch):
    monkeypatch.setattr(base_module, "FOLD_ROWS", 150)
    X, z = kind(N), centred(kind(N), intercept=intercept)
    weights = WEIGHTS - 0.2  # of any sign
    gram = GramSum(CENTER, intercept)
    for rows in (slice(0, 100), slice(100, 200)):
        gram.add(X.take(rows), weights[rows])
    gram.grow(len(LATER))
    assert not gram.matrix()[WIDTH:-1].any()
    # what grows is not centred, and 0 so far
    early = np.column_stack([centred(X, CENTER, intercept)[:200], np.zeros((200, 2))])
    early = early[:, np.r_[:WIDTH, WIDTH + 1, WIDTH + 2, WIDTH]]
    close(gram.matrix(), early.T * weights[:200] @ early)
    known = GramSum(np.r_[CENTER, [0.0, 0.0]], intercept)  # columns announced from the beginning
    for rows in (slice(0, 100), slice(100, 200)):
        known.add(X.take(rows), weights[rows])
    for each in (gram, known):
        each.add(X.take(slice(200, N)).widened(len(LATER)), weights[200:])
    assert np.array_equal(gram.matrix(), known.matrix())
    whole, other = GramSum(LATER, intercept), GramSum(LATER, intercept)
    whole.add(X.take(slice(0, 200)), weights[:200])
    other.add(X.take(slice(200, N)), weights[200:])
    whole.merge(other)
    close(whole.matrix(), z.T * weights @ z)
    assert np.array_equal(whole.matrix(), whole.matrix().T)


def test_kinds_may_follow_each_other_in_a_sum():
    parts = [kind(50) for name, kind in KINDS.items() if name != "levels_alone"]
    gram = GramSum(LATER, True)
    for X in parts:
        gram.add(X, WEIGHTS[:50])
    expected = sum(centred(X).T * WEIGHTS[:50] @ centred(X) for X in parts)
    close(gram.matrix(), expected)


def test_sparse_columns_far_from_zero_do_not_cancel():
    """Centring products of entries would lose ten of sixteen digits here."""
    values = sparse(N).toarray()
    values[:, 2] = 1e5 + rng.normal(size=N)
    X, center = as_matrix(sp.csr_array(values)), values.mean(axis=0)
    gram = GramSum(center, True)
    gram.add(X, WEIGHTS)
    z = centred(X, center)
    close(gram.matrix(), z.T * WEIGHTS @ z, rtol=1e-13)


def test_a_level_that_all_rows_have_does_not_vary():
    X = Categorical(np.empty((N, 0)), np.empty(0, np.int64), np.zeros((N, 1), np.int32), 2)
    gram = GramSum(np.array([1.0, 0.0]), True)
    gram.add(X, WEIGHTS)
    assert not gram.matrix()[:2, :2].any()


def test_sums_of_levels_need_the_same_numbers():
    gram = GramSum(CENTER, True)
    gram.add(categorical(N), WEIGHTS)
    with pytest.raises(ValueError, match="numbers are in columns"):
        gram.add(categorical(N)._replace(places=np.array([0, 1, 2])), WEIGHTS)


@every_kind
def test_the_first_element_that_is_not_finite(kind):
    X = kind(N)
    assert X.first_not_finite() is None
    if not X[0].size:  # levels are always finite
        return
    values = X[0].copy()
    flat = values.reshape(-1)
    flat[len(flat) // 2] = np.nan
    flat[-1] = np.inf
    row, column, value = X._replace(**{X._fields[0]: values}).first_not_finite()
    bad = X._replace(**{X._fields[0]: values}).toarray()
    assert not np.isfinite(bad[row, column])
    assert np.isfinite(bad[:row]).all()
    assert np.isnan(value)


class TestTaken:
    """What is made of arrays and of scipy's matrices."""

    def test_arrays(self):
        values = dense(5).values
        assert as_matrix(values).values is values
        assert as_matrix(np.asfortranarray(values)).values.flags.c_contiguous
        assert as_matrix(values.astype(np.float32)).values.dtype == np.float32
        assert as_matrix(values.astype(np.int64)).values.dtype == np.float64
        assert as_matrix(as_matrix(values)) is not None

    @pytest.mark.parametrize("form", ["csr", "csc", "coo"])
    def test_sparse_matrices_of_any_format(self, form):
        values = sparse(40).toarray()
        found = as_matrix(sp.csr_matrix(values).asformat(form))
        assert isinstance(found, Csr)
        assert np.array_equal(found.toarray(), values)

    def test_elements_that_are_stored_twice_are_added(self):
        X = sp.csr_array(
            (np.array([1.0, 2, 4]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2)
        )
        found = as_matrix(X)
        assert found.indices.tolist() == [0, 1]
        assert found.data.tolist() == [2.0, 5.0]
        assert X.data.tolist() == [1.0, 2.0, 4.0]

    @pytest.mark.parametrize("index", [-1, 2, 10**9])
    def test_columns_that_are_not_there_are_refused(self, index):
        X = sp.csr_array((np.ones(2), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
        X.indices[1] = index
        with pytest.raises(ValueError, match="indices must be"):
            as_matrix(X)

    def test_rows_that_end_before_they_begin_are_refused(self):
        X = sp.csr_array((np.ones(2), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
        X.indptr[1] = 5
        with pytest.raises(ValueError, match="[iI]nd"):
            as_matrix(X)


@compiled
def steps(X, path, work, keep, dt, a, f, predicted):
    """As many steps of the recursion as X has rows, with given gains."""
    X.begin(path, work)
    for n in range(len(keep)):
        X.predict_row(n, work, predicted[n, 0], predicted[n, 1], predicted[n, 2])
        X.update_row(n, work, keep[n], dt[n], a[n], f[n])
    X.flush(path, work)


def test_read_only_arrays_need_no_compilation_of_their_own():
    X, values = dense(3), dense(3).values
    values.flags.writeable = False
    given = (np.ones(3), np.ones(3), np.ones((3, 1)), np.ones((3, 1)), np.empty((3, 3, 1)))
    path = PathArrays(*(np.zeros((1, WIDTH + 1)) for _ in range(4)), CENTER)
    steps(X, path, X.workspace(path), *given)
    known = len(steps.signatures)
    steps(Dense(values), path, X.workspace(path), *given)
    assert len(steps.signatures) == known


@every_kind
@pytest.mark.parametrize("outputs", [1, 2])
def test_steps_of_the_recursion(kind, outputs):
    """In the paper's symbols, against NumPy; lazily scaled columns lose no digits."""
    X, z = kind(N), centred(kind(N))
    size = (outputs, len(LATER) + 1)
    theta, v, S, C = (rng.normal(size=size) for _ in range(4))
    S, C = np.abs(S) + 10, np.abs(C)
    C[:, 3] = 0.0
    keep = 1 - 1 / (1000.0 + np.arange(N))
    dt = 1 / (1001.0 + np.arange(N))
    a, f = rng.normal(size=(2, N, outputs)) / 1000
    f = np.abs(f)
    path = PathArrays(theta.copy(), v.copy(), C, S.copy(), LATER)
    found = np.empty((N, 3, outputs))
    steps(X, path, X.workspace(path), keep, dt, a, f, found)
    expected = np.empty_like(found)
    for n in range(N):
        expected[n] = theta @ z[n], v @ z[n], C @ z[n] ** 2
        v = keep[n] * v + a[n, :, None] * C * z[n]
        theta = theta - dt[n] * v
        S = S + f[n, :, None] * z[n] ** 2
    close(found, expected)
    for name, value in (("theta", theta), ("v", v), ("S", S)):
        close(getattr(path, name), value)
