"""Matrices of every kind, with columns of different sizes that are far from 0."""

import numpy as np
import scipy.sparse as sp

from tangograd.glm.matrices import Categorical, Dense, as_matrix

WIDTH = 9
PLACES = np.array([1, 4, 5])


def numbers(n, rng):
    return rng.normal(size=(n, 3)) * [1, 10, 0.1] + [0, 5, 1]


def dense(n, seed=0):
    rng = np.random.default_rng(seed)
    return Dense(rng.normal(size=(n, WIDTH)) * np.logspace(-2, 2, WIDTH) + 1)


def single(n, seed=0):
    return Dense(dense(n, seed).values.astype(np.float32))


def sparse(n, seed=0, share=0.08):
    rng = np.random.default_rng(seed)
    values = (rng.random((n, WIDTH)) < share) * (1 + rng.normal(size=(n, WIDTH)) ** 2)
    return as_matrix(sp.csr_array(values))


def half_full(n, seed=0):
    return sparse(n, seed, share=0.5)


def categorical(n, seed=0):
    """Numbers in the middle of the levels of two categories, each with a baseline."""
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.choice([-1, 0, 2, 3], n), rng.choice([-1, 6, 7, 8], n)])
    return Categorical(numbers(n, rng), PLACES, codes.astype(np.int32), WIDTH)


def levels_alone(n, seed=0):
    codes = np.random.default_rng(seed).choice(np.arange(-1, WIDTH), (n, 1)).astype(np.int32)
    return Categorical(np.empty((n, 0)), np.empty(0, np.int64), codes, WIDTH)


KINDS = {
    kind.__name__: kind for kind in (dense, single, sparse, half_full, categorical, levels_alone)
}
