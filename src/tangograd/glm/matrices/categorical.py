"""Numbers and levels of categories, as they are in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.matrices.base import Array, DesignMatrix
from tangograd.glm.matrices.dense import Dense, absolute_power, center_row
from tangograd.glm.matrices.row_steps import (
    Entries,
    Numbers,
    PathArrays,
    begin_entries,
    begin_numbers,
    center_numbers,
    flush_entries,
    new_entries,
    new_numbers,
    owe_center,
    predict_entries,
    predict_numbers,
    update_numbers,
)
from tangograd.glm.numerics.gram import STRIP, add_products, padded, symmetric, zeros
from tangograd.glm.numerics.jit import compiled

#: of a column's weight, what counts as none
ROUNDING = 1e-12


class _CategoricalFields(NamedTuple):
    numbers: NDArray[Any]
    places: NDArray[np.int64]
    codes: NDArray[np.int32]
    width: int


class Categorical(DesignMatrix, _CategoricalFields):
    """A matrix most of whose columns are 1 in some rows and 0 in the others.

    Attributes:
        numbers: columns that are not such, C-contiguous, float64, shape (n, p).
        places: their columns in the matrix, shape (p,).
        codes: the columns that are 1 in each row, -1 for none; shape (n, categories).
        width: of the matrix.

    Example:
        >>> X = Categorical(np.array([[5.0], [6.0]]), np.array([0]), np.array([[2], [-1]]), 3)
        >>> X.toarray()
        array([[5., 0., 1.],
               [6., 0., 0.]])
    """

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.width

    @property
    def row_bytes(self) -> int:
        return 8 * int(self.numbers.shape[1]) + 4 * int(self.codes.shape[1])

    def take(self, rows: slice | NDArray[np.int64]) -> Self:
        return self._replace(numbers=self.numbers[rows], codes=self.codes[rows])

    def widened(self, width: int) -> Self:
        return self._replace(width=width)

    @classmethod
    def concatenated(cls, parts: Sequence[Self]) -> Self:
        categories = max(part.codes.shape[1] for part in parts)
        codes = np.full((sum(len(part.codes) for part in parts), categories), -1, np.int32)
        end = 0
        for part in parts:
            start, end = end, end + len(part.codes)
            codes[start:end, : part.codes.shape[1]] = part.codes
        numbers = np.concatenate([part.numbers for part in parts])
        return parts[0]._replace(numbers=numbers, codes=codes)

    def _levels(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return rows and columns of the ones, by category."""
        found = [np.flatnonzero(own >= 0) for own in self.codes.T]
        return [(rows, own[rows]) for rows, own in zip(found, self.codes.T, strict=True)]

    def toarray(self) -> Array:
        X = np.zeros(self.shape)
        X[:, self.places] = self.numbers
        for rows, columns in self._levels():
            X[rows, columns] = 1.0
        return X

    def columns(self, which: Sequence[int]) -> Array:
        place = {int(column): at for at, column in enumerate(self.places)}
        result = np.empty((len(self.codes), len(which)))
        for at, column in enumerate(which):
            if int(column) in place:
                result[:, at] = self.numbers[:, place[int(column)]]
            else:
                result[:, at] = (self.codes == column).any(axis=1)
        return result

    def extremes(self, which: NDArray[np.int64] | None = None) -> tuple[Array, Array]:
        rows = np.bincount(self.codes.ravel() + 1, minlength=self.width + 1)[1:]
        low, high = (rows == len(self.codes)).astype(np.float64), (rows > 0).astype(np.float64)
        own = np.arange(len(self.places))
        if which is not None:
            own = np.flatnonzero(np.isin(self.places, which))
        if len(own):
            part = self.numbers[:, own]
            low[self.places[own]], high[self.places[own]] = part.min(axis=0), part.max(axis=0)
        return (low, high) if which is None else (low[which], high[which])

    def first_not_finite(self) -> tuple[int, int, float] | None:
        found = Dense(self.numbers).first_not_finite()
        return None if found is None else (found[0], int(self.places[found[1]]), found[2])

    def dot(self, coef: Array) -> Array:
        result = np.asarray(self.numbers @ coef[self.places])
        of_code = np.concatenate([coef[: self.width], np.zeros_like(coef[:1])])  # -1: none
        for own in self.codes.T:
            result += of_code[own]
        return result

    def transpose_dot(self, a: Array) -> Array:
        result = np.zeros((self.width, *a.shape[1:]))
        for part, out in zip(
            a.reshape(len(a), -1).T, result.reshape(self.width, -1).T, strict=True
        ):
            for own in self.codes.T:
                out += np.bincount(own + 1, part, minlength=self.width + 1)[1:]
        result[self.places] = self.numbers.T @ a
        return result

    def weighted_powers(self, weights: Array, center: Array, power: int) -> Array:
        total, seen = float(weights.sum()), np.zeros(len(center))
        for own in self.codes.T:
            seen += np.bincount(own + 1, weights, minlength=len(center) + 1)[1:]
        absent = total - seen
        absent[absent < ROUNDING * total] = 0.0
        result: Array = absent * np.abs(center) ** power + seen * np.abs(1 - center) ** power
        x = self.numbers - center[self.places]
        result[self.places] = weights @ absolute_power(x, power)
        return result

    def squared_norms(self, metric: Array, center: Array) -> Array:
        of_code = np.append(metric * (1 - 2 * center), 0.0)
        rest = np.delete(metric * center**2, self.places).sum()
        own = metric[self.places]
        result: Array = (self.numbers - center[self.places]) ** 2 @ own + rest
        for codes in self.codes.T:
            result += of_code[codes]
        return np.maximum(result, 0.0)

    def new_gram(self, center: Array, intercept: bool) -> CategoricalGram:
        return CategoricalGram(self.places, center, intercept)

    def workspace(self, path: PathArrays) -> tuple[Numbers, Entries]:
        return new_numbers(path, self.places), new_entries(path, self.places)

    def begin(self, path: PathArrays, work: Any) -> None:
        begin_numbers(path, work[0])
        begin_entries(work[1])

    def predict_row(self, n: int, work: Any, eta: Array, t: Array, q: Array) -> None:
        numbers, entries = work[0], work[1]
        center_numbers(self.numbers, n, numbers)
        predict_numbers(numbers, eta, t, q)
        for i in range(len(eta)):
            x_u, x_phi, x_Cm, x_Cx = 0.0, 0.0, 0.0, 0.0
            for e in range(self.codes.shape[1]):
                j = self.codes[n, e]
                if j >= 0:
                    x_u += entries.v[i, j]
                    x_phi += entries.theta[i, j]
                    x_Cm += entries.Cm[i, j]
                    x_Cx += entries.C[i, j]
            predict_entries(entries, i, (x_u, x_phi, x_Cm, x_Cx), eta, t, q)

    def update_row(self, n: int, work: Any, keep: float, dt: float, a: Array, f: Array) -> None:
        numbers, entries = work[0], work[1]
        update_numbers(numbers, keep, dt, a, f)
        s = entries.factors[0] * keep
        for i in range(len(a)):
            gain = a[i] / s
            late, x_Cm = entries.factors[1] * gain, 0.0
            for e in range(self.codes.shape[1]):
                j = self.codes[n, e]
                if j >= 0:
                    entries.v[i, j] += gain * entries.C[i, j]
                    entries.theta[i, j] += late * entries.C[i, j]
                    entries.S[i, j] += f[i] * (1 - 2 * entries.m[j])
                    x_Cm += entries.Cm[i, j]
            owe_center(entries, i, gain, x_Cm, f[i])
        entries.factors[0] = s
        entries.factors[1] += dt * s

    def flush(self, path: PathArrays, work: Any) -> None:
        numbers, entries = work[0], work[1]
        flush_entries(path, entries, numbers)


# without reference counts: nothing is allocated
@compiled(_nrt=False)
def add_categorical(
    numbers: Array,
    codes: NDArray[np.int32],
    weights: Array,
    center: Array,
    room: Array,
    products: Array,
    cross: Array,
    pairs: Array,
) -> None:
    """Add what the Gram matrix of rows ``z = [numbers - m, 1]`` with levels is made of.

    Args:
        numbers: shape (n, p).
        codes: columns of the levels, -1 for none.
        weights: a of each row.
        center: m of the numbers.
        room: zeros, for z and a z of a strip, shape (2 STRIP, size).
        products: gets ``Σ a z zᵀ`` on and above the diagonal.
        cross: ``cross[l]`` gets ``Σ a z`` over the rows with level l.
        pairs: ``pairs[l, h]`` gets ``Σ a`` over the rows with levels l and h, in one of two places.
    """
    size, z, a_z = products.shape[1], room[:STRIP], room[STRIP:]
    for start in range(0, len(weights), STRIP):
        rows = min(STRIP, len(weights) - start)
        for i in range(rows):
            n = start + i
            a = weights[n]
            center_row(numbers, n, center, 1.0, z, i)
            for j in range(size):
                a_z[i, j] = a * z[i, j]
            for e in range(codes.shape[1]):
                level = codes[n, e]
                if level < 0:
                    continue
                for j in range(size):
                    cross[level, j] += a_z[i, j]
                for before in range(e):
                    if codes[n, before] >= 0:
                        pairs[level, codes[n, before]] += a
        add_products(a_z, z, rows, products)


class CategoricalGram:
    """Sum of rows with levels: of products of numbers, of numbers by level, and of pairs of levels.

    Args:
        places: columns of the numbers.
        center: m.
        intercept: whether z ends in 1.
    """

    def __init__(self, places: NDArray[np.int64], center: Array, intercept: bool) -> None:
        self.places, self.center, self.intercept = places, center, intercept
        self._size, width = len(places) + 1, len(center)
        wide = padded(self._size)
        self._products, self._cross = zeros(wide, wide), zeros(width, wide)
        self._pairs = np.zeros((width, width))

    def add(self, X: Categorical, weights: Array) -> None:
        if not np.array_equal(X.places, self.places):
            raise ValueError(f"numbers are in columns {X.places}, not {self.places}")
        room = zeros(2 * STRIP, self._products.shape[1])
        parts = (self.center[self.places], room, self._products, self._cross, self._pairs)
        add_categorical(X.numbers, X.codes, weights, *parts)

    def matrix(self) -> Array:
        m, size = self.center.copy(), self._size
        m[self.places] = 0.0
        numbers, cross = symmetric(self._products, size), self._cross[:, :size]
        seen, total = cross[:, -1], numbers[-1, -1]
        result = np.empty((len(m) + 1,) * 2)
        along = np.outer(m, seen - 0.5 * total * m)
        result[:-1, :-1] = self._pairs + self._pairs.T - (along + along.T)
        squares = seen * (1 - 2 * m) + total * m**2
        # 0 for a level that all rows have, whatever the rounding of sums
        squares[np.abs(squares) < ROUNDING * abs(total) * m**2] = 0.0
        diagonal = np.arange(len(m))
        result[diagonal, diagonal] = squares
        own = np.append(self.places, len(m))
        crossed = cross - np.outer(m, numbers[-1])
        result[:-1, own] = crossed
        result[own, :-1] = crossed.T
        result[np.ix_(own, own)] = numbers
        if not self.intercept:
            result[-1], result[:, -1] = 0.0, 0.0
        return result

    def grow(self, width: int) -> None:
        extra = width - len(self.center)
        self.center = np.r_[self.center, np.zeros(extra)]
        self._cross = np.pad(self._cross, ((0, extra), (0, 0)))
        self._pairs = np.pad(self._pairs, (0, extra))
