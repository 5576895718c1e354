"""Sums over rows: the gradient, the Fisher matrix, and the outer products of the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.coded import Coded
from tangograd.glm.coded_sums import ROUNDING, CodedSums, coded_squares
from tangograd.glm.old_families import Family
from tangograd.glm.rows import Matrix, Rows, is_sparse
from tangograd.stream.glm import MULTINOMIAL
from tangograd.stream.outer import STRIP, add_outer, symmetric
from tangograd.stream.vectors import padded

Array = NDArray[np.float64]

#: sparse rows with a smaller share of non-zeros are multiplied as such
FEW = 0.1
#: unless a column is so far from 0, in its standard deviations, that centring would cancel
FAR = 1e3
#: rows are centred and multiplied so many bytes at once, which stay in the processor's cache
STRIP_BYTES = 1 << 18
STRIP_ROWS = 256  # but at least
NO_PARTS = (np.empty((0, 0, 0)),) * 3
#: sums that are kept apart are put to the others after so many rows
FOLD_ROWS = 1 << 20


def respond(family: Family, eta: Array, y: Array) -> tuple[Array, Array, Array]:
    """Losses (n,), scores (n, outputs) and Fisher matrices (n, outputs, outputs) of rows."""
    if family.code != MULTINOMIAL:
        loss, s, f = family.points(eta[:, 0], y)
        return loss, s[:, None], f[:, None, None]
    largest = np.maximum(eta.max(axis=1), 0.0)
    p = np.exp(eta - largest[:, None])
    total = p.sum(axis=1) + np.exp(-largest)
    p /= total[:, None]
    own = y.astype(np.int64) - 1
    rows = np.flatnonzero(own >= 0)
    loss = largest + np.log(total)
    loss[rows] -= eta[rows, own[rows]]
    fisher = -p[:, :, None] * p[:, None, :]
    diagonal = np.arange(p.shape[1])
    fisher[:, diagonal, diagonal] += p
    s = p.copy()
    s[rows, own[rows]] -= 1
    return loss, s, fisher


class Sums:
    """Weighted sums of the Fisher matrix, the sandwich's meat and the gradient.

    The coefficients are flat, output by output: ``outputs * size`` of them.

    Args:
        outputs: how many linear predictors.
        size: coefficients for each.
        full: the whole matrices; their diagonals otherwise.
    """

    def __init__(self, outputs: int, size: int, full: bool) -> None:
        p = outputs * size
        self.outputs, self.size, self.full = outputs, size, full
        self.gradient = np.zeros(p)
        self.mistakes = 0  # rows to whose class the model gives less than one half
        self._fisher = np.zeros((p, p) if full else p)
        self._meat = np.zeros((p, p) if full else p)
        # sums of rows of one output, by compiled functions, and the number of these rows
        self._outer: Array | None = None
        self._coded: CodedSums | None = None
        self._apart = 0

    def add(
        self,
        rows: Rows,
        m: Array,
        scores: Array,
        fishers: Array,
        intercept: bool = True,
        meat: bool = True,
    ) -> None:
        """Rows centred at m, with weighted scores and weighted Fisher matrices."""
        if not self.full:
            self.gradient += np.hstack(
                [weighted(rows.X, m, s, intercept) for s in np.ascontiguousarray(scores.T)]
            )
            for i in range(self.outputs):
                here = np.s_[i * self.size : (i + 1) * self.size]
                self._fisher[here] += weighted_powers(rows.X, m, fishers[:, i, i], 2, intercept)
                self._meat[here] += weighted_powers(rows.X, m, scores[:, i] ** 2, 2, intercept)
            return
        if _few_entries(rows.X, m):
            self._add_sparse(rows.X, m, scores, fishers, intercept, meat)
            return
        if is_sparse(rows.X):  # whose strips are slow to take
            rows = Rows(rows.X.toarray(), rows.y, rows.w, rows.offset)
        for start in range(0, len(rows), self.strip):
            strip = slice(start, start + self.strip)
            x = rows.take(strip).centred(m, intercept)
            self._add_dense(x, scores[strip], fishers[strip], meat)

    def add_single(self, z: Array, weights: Array) -> None:
        """Rows of one output, as ``z = [x - m, 1]``, padded, and their w f and (w s)².

        For covariances: of a stream, whose θ moves, the sum of the gradients says nothing.
        """
        if self.full:
            self._count(len(z))
            if self._outer is None:
                self._outer = np.zeros((2, z.shape[1], z.shape[1]))
            cast(Any, add_outer)(weights, z, self._outer)
        else:
            fisher, meat = weights @ z[:, : self.size] ** 2
            self._fisher += fisher
            self._meat += meat

    def coded_parts(self, X: Coded, m: Array, intercept: bool) -> tuple[Array, Array, Array]:
        """What the kernel for rows of numbers and levels adds to; nothing for diagonals."""
        if not self.full:
            return NO_PARTS
        self._count(len(X.codes))
        if self._coded is None:
            self._coded = CodedSums(X, m, intercept)
        return self._coded.parts

    def add_coded(self, X: Coded, m: Array, weights: Array, intercept: bool) -> None:
        """To diagonals, rows of one output with numbers and levels; as ``add_single``."""
        self._fisher += coded_squares(X, m, weights[0], intercept)
        self._meat += coded_squares(X, m, weights[1], intercept)

    def _count(self, rows: int) -> None:
        """Further rows come; after many, their sums go to the others, lest rounding adds up."""
        if self._apart >= FOLD_ROWS:
            self._fold()
        self._apart += rows

    def _fold(self) -> None:
        """Put all sums to the others."""
        self._fisher, self._meat = self.fisher, self.meat
        self._outer, self._coded, self._apart = None, None, 0

    @property
    def fisher(self) -> Array:
        """The Fisher matrix, or its diagonal."""
        return self._whole(self._fisher, 0)

    @property
    def meat(self) -> Array:
        """The outer products of the scores, or their diagonal."""
        return self._whole(self._meat, 1)

    def _whole(self, total: Array, kind: int) -> Array:
        """With the sums that are kept apart."""
        if self._outer is not None:
            total = total + symmetric(self._outer[kind], self.size)
        return total if self._coded is None else total + self._coded.matrices()[kind]

    @property
    def strip(self) -> int:
        """How many rows to multiply at once: whole strips of the compiled function."""
        fitting = STRIP_BYTES // (8 * self.size)
        return max(STRIP_ROWS, fitting // STRIP * STRIP) if self.full else max(1, fitting)

    def _add_dense(self, x: Array, scores: Array, fishers: Array, meat: bool) -> None:
        """The same of rows that are centred."""
        self.gradient += (scores.T @ x).ravel()
        self._add_blocks(self._fisher, lambda i, j: _product(x, fishers[:, i, j], definite=i == j))
        if meat:
            z = (scores[:, :, None] * x[:, None, :]).reshape(len(x), -1)
            self._meat += z.T @ z

    def _add_sparse(
        self, X: Matrix, m: Array, scores: Array, fishers: Array, intercept: bool, meat: bool
    ) -> None:
        """The same from the non-zeros alone."""
        self.gradient += np.hstack(
            [weighted(X, m, s, intercept) for s in np.ascontiguousarray(scores.T)]
        )
        self._add_blocks(
            self._fisher, lambda i, j: _sparse_product(X, m, fishers[:, i, j], intercept)
        )
        if meat:
            self._add_blocks(
                self._meat,
                lambda i, j: _sparse_product(X, m, scores[:, i] * scores[:, j], intercept),
            )

    def _add_blocks(self, total: Array, block_of: Callable[[int, int], Array]) -> None:
        """To a symmetric matrix, the blocks of each pair of outputs."""
        size = self.size
        for i in range(self.outputs):
            for j in range(i, self.outputs):
                block = block_of(i, j)
                here = np.s_[i * size : (i + 1) * size]
                there = np.s_[j * size : (j + 1) * size]
                total[here, there] += block
                if i != j:
                    total[there, here] += block.T

    def include(self, other: Sums) -> None:
        """Add another's sums."""
        self.gradient += other.gradient
        self.mistakes += other.mistakes
        self._fisher += other.fisher
        self._meat += other.meat

    def grow(self, size: int) -> None:
        """More coefficients, before the last (the intercept)."""
        old, self.size = self.size, size
        if self._coded is not None:
            self._coded.grow(size - 1)
        kept = np.r_[np.arange(old - 1), size - 1]
        if self._outer is not None:
            before, width = self._outer, padded(size)
            self._outer = np.zeros((2, width, width))
            for own, each in zip(self._outer, before, strict=True):
                own[np.ix_(kept, kept)] = symmetric(each, old)
        kept = (np.arange(self.outputs)[:, None] * size + kept).ravel()
        for name in ("gradient", "_fisher", "_meat"):
            before = getattr(self, name)
            after = np.zeros([self.outputs * size] * before.ndim)
            after[np.ix_(*[kept] * before.ndim)] = before
            setattr(self, name, after)


def weighted(X: Matrix, m: Array, weights: Array, intercept: bool = True) -> Array:
    """``Σ w [x - m, 1]``; the columns of m that X does not have are 0."""
    total = float(weights.sum())
    result = np.zeros(len(m) + 1)
    result[: X.shape[1]] = X.T @ weights
    result[:-1] -= total * m
    result[-1] = total if intercept else 0.0
    return result


def weighted_powers(
    X: Matrix, m: Array, weights: Array, power: int = 2, intercept: bool = True
) -> Array:
    """``Σ w |[x - m, 1]|^power``, elementwise."""
    d, total = X.shape[1], float(weights.sum())
    result = np.empty(len(m) + 1)
    if is_sparse(X):
        absent = np.full(len(m), total)  # the weight of each column's zeros
        absent[:d] -= _with_data(X, np.ones(len(X.data))).T @ weights
        absent[absent < ROUNDING * total] = 0.0
        result[:-1] = absent * np.abs(m) ** power
        result[:d] += _with_data(X, _power(X.data - m[X.indices], power)).T @ weights
    else:
        x = np.subtract(X, m[:d], dtype=np.float64)
        result[:d] = weights @ _power(x, power)
        result[d:-1] = total * np.abs(m[d:]) ** power
    result[-1] = total if intercept else 0.0
    return result


def _power(x: Array, power: int) -> Array:
    """|x|^power, for 1 and even powers by products alone."""
    if power == 1:
        return np.abs(x)
    return x * x if power == 2 else (x * x) ** (power // 2)


def squares(X: Matrix, m: Array, weights: Array, intercept: bool = True) -> Array:
    """``Σ_j w_j [x - m, 1]_j²`` of each row, shape (n,)."""
    d = X.shape[1]
    own, centre = weights[:d], m[:d]
    if is_sparse(X):
        result = (
            np.asarray(
                _with_data(X, X.data.astype(np.float64) ** 2) @ own - 2 * (X @ (own * centre))
            )
            + own @ centre**2
        )
    else:
        result = (X - centre) ** 2 @ own
    rest = weights[d:-1] @ m[d:] ** 2 + (weights[-1] if intercept else 0.0)
    return np.asarray(np.maximum(result, 0.0) + rest)


def _with_data(X: Matrix, data: Array) -> Matrix:
    """A sparse matrix with other elements in its places."""
    return X.__class__((data, X.indices, X.indptr), X.shape)


def _product(x: Array, weights: Array, definite: bool) -> Array:
    """``xᵀ diag(weights) x``; for positive weights half the work."""
    if definite:
        z = x * np.sqrt(weights)[:, None]
        return np.asarray(z.T @ z)
    return np.asarray(x.T @ (x * weights[:, None]))


def _few_entries(X: Matrix, m: Array) -> bool:
    """Products of the non-zeros alone are quicker, and as exact."""
    if not is_sparse(X) or X.nnz > FEW * X.shape[0] * X.shape[1]:
        return False
    n, d = X.shape
    square = np.asarray(_with_data(X, np.square(X.data, dtype=np.float64)).sum(axis=0)).ravel() / n
    centre = m[:d] ** 2
    kept = np.minimum(square, centre) <= FAR**2 * np.abs(square - centre)
    return bool(kept.all()) and not m[d:].any()


def _sparse_product(X: Matrix, m: Array, weights: Array, intercept: bool) -> Array:
    """``Σ w [x - m, 1] [x - m, 1]ᵀ``, from ``Σ w x xᵀ``, ``Σ w x`` and ``Σ w``."""
    d, size = X.shape[1], len(m) + 1
    by_row = np.repeat(weights, np.diff(X.indptr))
    total, along = float(weights.sum()), np.asarray(X.T @ weights, dtype=np.float64)
    result = np.zeros((size, size))
    result[:d, :d] = (X.T @ _with_data(X, X.data * by_row)).toarray()
    cross = np.outer(m[:d], along)
    result[:d, :d] += total * np.outer(m[:d], m[:d]) - cross - cross.T
    if intercept:
        result[:d, -1] = result[-1, :d] = along - total * m[:d]
        result[-1, -1] = total
    return result
