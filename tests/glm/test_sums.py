"""Sums over rows with several outputs, against their definition."""

import numpy as np
import pytest

from tangograd.glm.sums import Sums
from tests.glm.matrices.samples import KINDS, WIDTH, categorical, sparse

N, OUTPUTS = 120, 2
rng = np.random.default_rng(0)
CENTER = rng.normal(size=WIDTH)
SCORES = rng.normal(size=(N, OUTPUTS))
FISHERS = rng.normal(size=(N, OUTPUTS, OUTPUTS))
FISHERS = FISHERS @ FISHERS.transpose(0, 2, 1)


def expected_of(X, center, intercept, full):
    """Of all coefficients, flat: the gradient, the Fisher matrix and the meat."""
    x = np.pad(X.toarray(), ((0, 0), (0, len(center) - X.shape[1])))
    z = np.column_stack([x - center, np.full(N, float(intercept))])
    each = np.einsum("nk,nj->nkj", SCORES, z).reshape(N, -1)
    fisher = np.einsum("nkl,ni,nj->kilj", FISHERS, z, z).reshape(each.shape[1], -1)
    meat = each.T @ each
    return (each.sum(axis=0), *((fisher, meat) if full else (np.diag(fisher), np.diag(meat))))


def close(sums, expected):
    for found, right in zip((sums.gradient, sums.fisher, sums.meat), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=0, atol=1e-11 * (1 + np.abs(right).max()))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_sums_are_those_of_the_definition(kind, intercept, full):
    X = kind(N)
    parts, half = [Sums(CENTER, OUTPUTS, intercept, full) for _ in range(2)], slice(0, N // 2)
    for sums, rows in zip(parts, (half, slice(N // 2, N)), strict=True):
        sums.add(X.take(rows), SCORES[rows], FISHERS[rows])
    parts[0].merge(parts[1])
    close(parts[0], expected_of(X, CENTER, intercept, full))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", [categorical, sparse])
def test_growing_is_having_had_zeros(kind, full):
    X, later = kind(N), np.r_[CENTER, [0.0, 0.0]]
    sums = Sums(CENTER, OUTPUTS, True, full)
    half = slice(0, N // 2)
    sums.add(X.take(half), SCORES[half], FISHERS[half])
    sums.grow(len(later))
    rest = slice(N // 2, N)
    sums.add(X.take(rest).widened(len(later)), SCORES[rest], FISHERS[rest])
    close(sums, expected_of(X, later, True, full))


def test_the_meat_may_be_left_out():
    sums = Sums(CENTER, OUTPUTS, True, True)
    sums.add(sparse(N), SCORES, FISHERS, meat=False)
    assert sums.fisher.any()
    assert not sums.meat.any()
