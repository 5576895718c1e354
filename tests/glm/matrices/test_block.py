"""Blocks of rows."""

import itertools

import numpy as np
import pytest

from tangograd.glm.matrices import Block, Dense, concatenate, rechunk, split
from tests.glm.matrices.samples import KINDS, categorical, dense, sparse


def block(X, first_row=0):
    n = X.shape[0]
    parts = np.arange(first_row, first_row + n) + np.array([[0.0], [1000.0], [2000.0]])
    return Block(X, *parts, first_row)


def same(one, other):
    assert np.array_equal(one.X.toarray(), other.X.toarray())
    for part in (1, 2, 3):
        assert np.array_equal(one[part], other[part])
    assert one.first_row == other.first_row


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("sizes", [(1, 2, 40), (43,), (20, 23)], ids=str)
def test_any_chunks_become_the_same_blocks(kind, sizes):
    whole = block(kind(43), first_row=5)
    starts = np.cumsum([0, *sizes])
    chunks = [whole.take(slice(*ends)) for ends in itertools.pairwise(starts)]
    found = list(rechunk(chunks, 16))
    assert [len(each) for each in found] == [16, 16, 11]
    for each, expected in zip(found, split(whole, 16), strict=True):
        same(each, expected)
        assert type(each.X) is type(whole.X)


def test_other_kinds_are_put_together_as_dense_rows():
    found = concatenate([block(categorical(5)), block(sparse(4)), block(dense(3))])
    assert isinstance(found.X, Dense)
    expected = [X.toarray() for X in (categorical(5), sparse(4), dense(3))]
    assert np.array_equal(found.X.toarray(), np.concatenate(expected))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_before_new_columns_have_zeros(kind):
    early, late = block(kind(4)), block(kind(4).widened(12), first_row=4)
    found = concatenate([early, late]).X
    assert found.shape == (8, 12)
    assert not found.toarray()[:, 9:].any()


def test_rows_without_weight_are_left_out():
    whole = block(dense(4))
    assert whole.with_weight() is whole
    whole.weights[1] = 0.0
    found = whole.with_weight()
    assert found.y.tolist() == [0.0, 2.0, 3.0]
    assert found.X.shape[0] == 3


def test_parts():
    whole = block(dense(10), first_row=100)
    assert whole.take(slice(3, 5)).first_row == 103
    assert [len(part) for part in split(whole, 4, first=3)] == [3, 4, 3]
    assert concatenate([whole]) is whole
    copied = whole.copy()
    same(copied, whole)
    assert not np.shares_memory(copied.X.values, whole.X.values)
    assert whole.nbytes == 10 * (9 + 3) * 8
