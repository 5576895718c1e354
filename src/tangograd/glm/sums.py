"""Sums over rows: the gradient, the Fisher information, and the outer products of the scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.matrices import DesignMatrix, GramSum

Array = NDArray[np.float64]


class Sums:
    """Weighted sums of the gradient, the Fisher matrix and the sandwich's meat.

    The coefficients are flat, output by output: ``outputs * size`` of them, with size the columns
    and the intercept.

    Args:
        center: m, that columns are centred at, shape (d,).
        outputs: linear predictors of a row.
        intercept: there is one.
        full: the whole matrices; their diagonals otherwise.
    """

    def __init__(self, center: Array, outputs: int, intercept: bool, full: bool) -> None:
        self.center, self.outputs, self.intercept, self.full = center, outputs, intercept, full
        self.gradient = np.zeros(outputs * self.size)
        self.mistakes = 0  # rows to whose class the model gives less than one half
        pairs = list(itertools.combinations_with_replacement(range(outputs), 2))
        self._fisher = _Blocks(center, outputs, intercept, full, pairs)
        self._meat = _Blocks(center, outputs, intercept, full, pairs)

    @property
    def size(self) -> int:
        """Coefficients of one output."""
        return len(self.center) + 1

    def add(self, X: DesignMatrix, scores: Array, fishers: Array, meat: bool = True) -> None:
        """Add rows with weighted scores and weighted Fisher matrices in their outputs."""
        for i in range(self.outputs):
            own = np.ascontiguousarray(scores[:, i])
            total = own.sum()
            part = self.gradient[i * self.size : (i + 1) * self.size]
            part[: X.shape[1]] += X.transpose_dot(own)
            part[:-1] -= total * self.center
            part[-1] += total if self.intercept else 0.0
        self._fisher.add(X, lambda i, j: np.ascontiguousarray(fishers[:, i, j]))
        if meat:
            self._meat.add(X, lambda i, j: scores[:, i] * scores[:, j])

    @property
    def fisher(self) -> Array:
        """The Fisher matrix, or its diagonal."""
        return self._fisher.matrix()

    @property
    def meat(self) -> Array:
        """The outer products of the scores, or their diagonal."""
        return self._meat.matrix()

    def merge(self, other: Sums) -> None:
        """Add another's sums."""
        self.gradient += other.gradient
        self.mistakes += other.mistakes
        self._fisher.merge(other._fisher)
        self._meat.merge(other._meat)

    def grow(self, width: int) -> None:
        """Add columns before the intercept, which were 0 so far and are not centred."""
        extra = [self.size - 1] * (width - len(self.center))
        gradient = self.gradient.reshape(self.outputs, -1)
        self.gradient = np.insert(gradient, extra, 0.0, axis=1).ravel()
        self.center = np.r_[self.center, np.zeros(len(extra))]
        self._fisher.grow(width)
        self._meat.grow(width)


class _Blocks:
    """A symmetric sum over rows, by pairs of outputs; diagonals of theirs if it is not full."""

    def __init__(
        self,
        center: Array,
        outputs: int,
        intercept: bool,
        full: bool,
        pairs: list[tuple[int, int]],
    ) -> None:
        self.center, self.intercept = center, intercept
        self.grams = {pair: GramSum(center, intercept) for pair in pairs} if full else None
        self.diagonal = np.zeros((outputs, len(center) + 1))

    def add(self, X: DesignMatrix, weights: Callable[[int, int], Array]) -> None:
        """Add rows, with weights for each pair of outputs."""
        if self.grams is not None:
            for (i, j), gram in self.grams.items():
                gram.add(X, weights(i, j))
            return
        for i, own in enumerate(self.diagonal):
            a = weights(i, i)
            own[:-1] += X.weighted_powers(a, self.center, 2)
            own[-1] += a.sum() if self.intercept else 0.0

    def merge(self, other: _Blocks) -> None:
        """Add another sum."""
        self.diagonal += other.diagonal
        if self.grams is not None and other.grams is not None:
            for pair, gram in self.grams.items():
                gram.merge(other.grams[pair])

    def grow(self, width: int) -> None:
        """Add columns before the intercept."""
        extra = [len(self.center)] * (width - len(self.center))
        self.diagonal = np.insert(self.diagonal, extra, 0.0, axis=1)
        self.center = np.r_[self.center, np.zeros(len(extra))]
        for gram in (self.grams or {}).values():
            gram.grow(width)

    def matrix(self) -> Array:
        """Return the matrix of the flat coefficients, or its diagonal."""
        if self.grams is None:
            return self.diagonal.ravel().copy()
        outputs, size = self.diagonal.shape
        total = np.empty((outputs, size, outputs, size))
        for (i, j), gram in self.grams.items():
            block = gram.matrix()
            total[i, :, j], total[j, :, i] = block, block
        return total.reshape(outputs * size, outputs * size)
