"""Rows of numbers and levels against the paper's two equations on the matrix that they stand for."""

import functools

import numpy as np
import pytest

from tangograd.glm.coded import Coded
from tangograd.stream import glm as kernel
from tangograd.stream import glm_coded
from tangograd.stream.glm_coded import add_strip, coded_rows
from tangograd.stream.outer import STRIP, symmetric
from tangograd.stream.vectors import padded, zeros
from tests.stream.test_glm import (
    FAMILIES,
    VARIANTS,
    Counted,
    Problem,
    by_hand,
    largest_difference,
    uncounted,
)

#: the places of the numbers, and those of the levels of each category
SHAPES = {
    "numbers among levels": ((1, 4, 5), ((0, 2), (3, 6, 7))),
    "numbers first": ((0, 1, 2), ((3, 4), (5, 6, 7))),
    "levels alone": ((), ((0, 1, 2), (3, 4, 5, 6, 7))),
    "many numbers": (tuple(range(11)), ((11, 12), (13, 14, 15))),
    "one category": ((0, 7), ((1, 2, 3, 4, 5, 6),)),
}
SINGLE = [name for name in FAMILIES if name != "classes"]
NO_SUMS = (np.empty((0, 0, 0)),) * 3


def sums_of(numbers, levels):
    """Nothing yet, of so many numbers and levels: products, cross and pairs."""
    width, places = padded(numbers + 1), levels + 1
    return (
        zeros(2 * width, width).reshape(2, width, width),
        zeros(2 * places, width).reshape(2, places, width),
        np.zeros((2, places, places)),
    )


class CodedProblem(Problem):
    """The same with some columns of levels; a category is at its baseline in some rows."""

    def __init__(self, family, n, shape, **options):
        places, categories = SHAPES[shape]
        self.d = len(places) + sum(map(len, categories))
        super().__init__(family, n=n, d=self.d, **options)
        rng = np.random.default_rng(self.seed + 7)
        codes = [rng.choice([-1, *levels], n) for levels in categories]
        numbers = np.ascontiguousarray(self.X[:, list(places)])
        codes = np.column_stack(codes).astype(np.int32)
        self.coded = Coded(numbers, np.array(places, np.int64), codes, self.d, sparse=False)
        self.X = self.coded.plain()
        self.y = self._responses(rng.normal(size=(1, self.d)) / 3, rng)

    def arguments(self, state, weights, rng, rows=slice(None), sums=NO_SUMS):
        theta, v, C, S, scalars = state
        X = self.coded
        return (
            *(self.family, self.parameter, X.numbers[rows], X.codes[rows]),
            *(np.r_[X.places, self.d], np.delete(np.arange(self.d), X.places)),
            *(self.y[rows], self.w[rows], self.offset[rows], self.m),
            *(theta[0], v[0], C[0], S[0], scalars, self.alpha, self.sampled, rng),
            weights,
            *sums,
        )

    def run_coded(self):
        state, n = self.state(), len(self.y)
        weights = np.full((2, n), np.nan)
        coded_rows(*self.arguments(state, weights, np.random.default_rng(self.seed + 1)))
        fishers, squares = weights
        return state, *self.products(np.sqrt(squares)[:, None], fishers[:, None, None])


@functools.cache
def expectation(family, variant, n, seed, shape):
    problem = CodedProblem(family, n, shape, seed=seed, **VARIANTS[variant])
    return problem, *by_hand(problem)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", SINGLE)
@pytest.mark.parametrize("n", [1, 200])
def test_rows_are_the_papers_two_equations(family, variant, n):
    """Many of them with renewals of C and γ, and the penalty now and then."""
    shape = "numbers among levels"
    problem, expected, squares, fishers = expectation(family, variant, n, 3, shape)
    found, its_squares, its_fishers = problem.run_coded()
    if n > 1:
        assert found[4][kernel.RENEWAL] > problem.scalars[kernel.RENEWAL]
    assert largest_difference(found, expected) < (1e-13 if n == 1 else 1e-11)
    assert np.abs(its_squares - squares).max() < 1e-10 * max(1, np.abs(squares).max())
    assert np.abs(its_fishers - fishers).max() < 1e-10 * max(1, np.abs(fishers).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_whatever_the_columns(shape):
    problem, expected, _, _ = expectation("poisson", "penalty", 200, 5, shape)
    assert largest_difference(problem.run_coded()[0], expected) < 1e-11


def test_dense_rows_and_these_may_alternate():
    problem = CodedProblem("logit", 200, "numbers among levels", seed=6, alpha=0.05, weighted=True)
    expected, _, _ = problem.run("dense")
    state, rng = problem.state(), np.random.default_rng(0)
    nothing = (np.empty((2, 0)), rng)
    coded_rows(*problem.arguments(state, *nothing, slice(0, 70)))
    here = slice(70, 130)
    rest = (problem.y[here], problem.w[here], problem.offset[here], np.arange(70, 130), problem.m)
    end = (problem.alpha, False, rng, np.empty((0, 1)), np.empty((0, 1, 1)))
    kernel.dense_rows(problem.family, problem.parameter, problem.X, *rest, *state, *end)
    coded_rows(*problem.arguments(state, *nothing, slice(130, 200)))
    assert largest_difference(state, expected) < 1e-11


def test_the_place_of_arrays_in_memory_does_not_change_a_bit():
    problem = CodedProblem("logit", 50, "many numbers", before=100)
    allocations = np.random.default_rng(0)
    seen = set()
    for _ in range(2000):
        others = [np.empty(size) for size in allocations.integers(4, 24, size=200)]
        state = problem.state()
        for i in allocations.permutation(200)[:100]:
            others[i] = None
        coded_rows(*problem.arguments(state, np.empty((2, 0)), allocations))
        seen.add(state[0].tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [1, STRIP, 3 * STRIP + 7])
def test_sums_are_added_up_on_the_way(shape, n):
    """Of the rows' own levels, as the matrix has them; from renewal to renewal, strip by strip."""
    problem = CodedProblem("logit", n, shape, seed=4, weighted=True, alpha=0.03)
    X, state, weights = problem.coded, problem.state(), np.empty((2, n))
    levels, p = np.delete(np.arange(problem.d), X.places), len(X.places)
    sums = sums_of(p, len(levels))
    coded_rows(*problem.arguments(state, weights, np.random.default_rng(0), sums=sums))
    expected, _, _ = problem.run_coded()
    assert all(np.array_equal(a, b) for a, b in zip(state, expected, strict=True))
    Z, z = X.plain()[:, levels], np.c_[X.numbers - problem.m[X.places], np.ones(n)]
    for a, products, cross, pairs in zip(weights, *sums, strict=True):
        close = {"rtol": 1e-12, "atol": 1e-12 * a.sum()}
        np.testing.assert_allclose(symmetric(products, p + 1), (z.T * a) @ z, **close)
        np.testing.assert_allclose(cross[:-1, : p + 1], (Z.T * a) @ z, **close)
        both = pairs[:-1, :-1] + pairs[:-1, :-1].T
        right = (Z.T * a) @ Z
        np.testing.assert_allclose(both, right - np.diag(np.diag(right)), **close)


def test_sums_of_other_columns_are_refused():
    problem = CodedProblem("logit", 5, "many numbers")
    given = (problem.state(), np.empty((2, 0)), np.random.default_rng(0))
    for sums in (sums_of(3, 5), sums_of(11, 4)):
        with pytest.raises(ValueError, match="not of these numbers and levels"):
            coded_rows(*problem.arguments(*given, sums=sums))


def test_a_row_costs_its_numbers_and_its_own_levels(monkeypatch):
    """Among a thousand other levels it reads and writes as often."""
    uses = []
    levels_of = glm_coded._levels

    def counted(*given):
        return levels_of(*given).view(Counted)

    def predict(numbers, n, m, theta, v, C, z, i):  # in Python's words
        z[i] = 0.0
        z[i, : numbers.shape[1]] = numbers[n]
        z[i] -= m
        return z[i] @ theta, z[i] @ v, z[i] ** 2 @ C

    def learn(z, n, keep, gain, dt, f, theta, v, C, S):
        v[:] = keep * v + gain * C * z[n]
        theta -= dt * v
        S += f * z[n] ** 2

    states = []
    monkeypatch.setattr(glm_coded, "_levels", counted)
    monkeypatch.setattr(glm_coded, "predict", predict)
    monkeypatch.setattr(glm_coded, "learn", learn)
    for name in ("fold", "centre", "put"):  # between renewals of C, and at both ends
        monkeypatch.setattr(glm_coded, name, uncounted(getattr(glm_coded, name)))
    for extra in (0, 1000):
        problem = CodedProblem("logit", 30, "numbers first", before=10_000)
        theta, v, C, S, scalars = problem.state()
        theta, v, C, S = (np.insert(a[0], [8] * extra, 0.5) for a in (theta, v, C, S))
        levels = np.arange(3, 8 + extra)
        Counted.uses = 0
        coded_rows.py_func(
            *(problem.family, problem.parameter, problem.coded.numbers, problem.coded.codes),
            *(np.array([0, 1, 2, 8 + extra]), levels),
            *(problem.y, problem.w, problem.offset, np.r_[problem.m, np.full(extra, 0.1)]),
            *(theta, v, C, S, scalars, 0.0, False, np.random.default_rng(0)),
            *(np.empty((2, 0)), *NO_SUMS),
        )
        uses.append(Counted.uses)
        states.append([theta[None], v[None], C[None], S[None], scalars])
    assert uses[0] == uses[1] > 30 * 3
    compiled, _, _ = CodedProblem("logit", 30, "numbers first", before=10_000).run_coded()
    assert largest_difference(states[0], compiled) < 1e-12


@pytest.mark.parametrize("size", [1, 5, 10])
def test_sums_do_not_depend_on_where_a_level_is_among_the_codes(size):
    """To the last bit: a column for missing values comes and goes from one part to the next."""
    rng, n, levels = np.random.default_rng(0), 300, np.arange(3, 11)
    X, weights = rng.normal(size=(n, 3)), rng.random((2, n))
    missing = np.where(rng.random((n, 2)) < 0.2, [9, 10], -1)
    codes = np.c_[rng.integers(3, 6, n), missing].astype(np.int32)
    moved = np.full_like(codes, -1)
    for start in range(0, n, size):
        part = codes[start : start + size]
        part = part[:, (part >= 0).any(axis=0)]
        moved[start : start + size, : part.shape[1]] = part
    assert not np.array_equal(codes, moved)

    def sums(codes):
        own = np.where(codes < 0, len(levels), codes - 3).astype(np.int64)
        z = zeros(n, padded(4))
        z[:, :3], z[:, 3] = X, 1.0
        products, cross, pairs = sums_of(3, len(levels))
        add_strip(z, np.zeros_like(z), own, weights, products, cross, pairs)
        known = pairs[:, :-1, :-1]
        return products, cross[:, :-1], known + known.transpose(0, 2, 1)

    for one, other in zip(sums(codes), sums(moved), strict=True):
        assert np.array_equal(one, other)
        assert np.abs(one).max() > 1
