"""What is noticed in data as they stream by."""

import numpy as np
import pytest
import scipy.sparse as sp

from tangograd.glm import watch as module
from tangograd.glm.matrices import split
from tangograd.glm.watch import SORTED, Watch
from tests.glm.simulated import rows

FORMS = pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
SIZES = pytest.mark.parametrize("size", [1, 7, 1000])


def seen(X, y=None, size=1000):
    watch = Watch(X.shape[1])
    for block in split(rows(X, np.arange(float(X.shape[0])) if y is None else y), size):
        watch.see(block)
    return watch


@SIZES
@FORMS
def test_constant_columns(form, size):
    """Of zeros, of another value, and one that varies only in the last row."""
    X = np.c_[np.zeros(50), np.full(50, 0.1), np.ones(50), np.arange(50.0)]
    X[-1, 2] = 2.0
    assert seen(form(X), size=size).constant() == [0, 1]


@FORMS
def test_duplicated_columns(form):
    """Equal in all rows; not if a later row differs, nor if both are constant."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) * (rng.random((60, 3)) < 0.7)
    X = np.c_[X, X[:, 0], X[:, 1], X[:, 0], np.ones((60, 2))]
    watch = seen(form(X), size=20)
    assert watch.duplicates() == [(0, 3), (1, 4), (0, 5)]
    X[45, 3] += 1
    assert seen(form(X), size=20).duplicates() == [(1, 4), (0, 5)]


def test_duplicates_are_not_looked_for_among_many(monkeypatch):
    monkeypatch.setattr(module, "MANY", 3)
    X = np.repeat(np.arange(10.0)[:, None], 4, axis=1)
    assert seen(X).duplicates() == []


def test_columns_that_come_later_were_zero():
    watch = Watch(1)
    watch.see(rows(np.arange(3.0)[:, None], np.arange(3.0)))
    watch.grow(3)
    watch.see(rows(np.c_[np.arange(3.0), np.full(3, 5.0), np.zeros(3)], np.arange(3.0)))
    assert watch.constant() == [2]


def test_columns_that_come_before_the_first_row_are_like_the_others():
    watch = Watch(1)
    watch.grow(3)
    assert watch.constant() == []
    watch.see(rows(np.c_[np.arange(3.0), np.full(3, 5.0), np.zeros(3)], np.arange(3.0)))
    assert watch.constant() == [1, 2]
    narrow = Watch(1)
    narrow.grow(2)
    narrow.see(rows(np.arange(3.0)[:, None], np.arange(3.0)))
    narrow.see(rows(np.c_[np.arange(3.0), np.ones(3)], np.arange(3.0)))
    assert narrow.constant() == []


@SIZES
def test_neighbouring_targets_correlate(size):
    rng = np.random.default_rng(1)
    y = np.cumsum(rng.normal(size=300))
    found = seen(np.zeros((300, 1)), y, size).neighbour_correlation()
    centred = y - y.mean()
    expected = centred[1:] @ centred[:-1] / 299 / (centred @ centred / 300)
    # the means of the first and the last 299 differ a little from that of all
    assert found == pytest.approx(expected, abs=0.01)
    assert found == pytest.approx(seen(np.zeros((300, 1)), y).neighbour_correlation(), abs=1e-12)


@pytest.mark.parametrize("origin", [0.0, 1e9])
def test_sorted_targets_are_told_from_shuffled_ones(origin):
    """Wherever they lie: squares of large numbers would cancel."""
    rng = np.random.default_rng(2)
    X = np.zeros((2000, 1))
    for y in (rng.normal(size=2000), rng.random(2000) < 0.2, rng.poisson(0.3, 2000)):
        target = y + origin
        assert abs(seen(X, target).neighbour_correlation()) < 0.1
        assert seen(X, np.sort(target)).neighbour_correlation() > SORTED


def test_too_few_rows_or_one_value_do_not_correlate():
    assert Watch(1).neighbour_correlation() == 0
    assert seen(np.zeros((1, 1)), np.ones(1)).neighbour_correlation() == 0
    assert seen(np.zeros((5, 1)), np.full(5, 0.1)).neighbour_correlation() == 0
