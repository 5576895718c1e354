"""Sums of outer products over rows, compiled: ``Σ_n a_n z_n z_nᵀ``, which covariances are made of.

BLAS puts both factors of a product in an order of its own before it multiplies them, which for many
rows of few columns takes about as long as the product, and its libraries do not know the newest
processors. Here a tile of the sum stays in registers while the rows go by: rows are multiplied
where they are, and only tiles on and above the diagonal.

Each element is added up in the order of the rows (products by fused multiply-add): the result does
not depend on the width of the processor's vectors, nor on where arrays lie in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tangograd.stream.vectors import (
    VECTOR,
    WIDTH,
    ZERO,
    Array,
    constant,
    plus_product,
    repeated,
    zeros,
)

#: a tile has so many rows, and columns of so many vectors
TALL, VECTORS = WIDTH, 3
#: rows whose products are taken at once, which stay in the processor's nearest caches
STRIP = 128


def _tile(vectors: int) -> Any:
    """A function that adds a tile with columns of so many vectors."""

    def add(typing: Any, left: Any, right: Any, rows: Any, i: Any, j: Any, total: Any) -> Any:
        del typing, rows, i, j
        size = types.intp
        return types.void(left, right, size, size, size, total), make

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        left, right, total = (Array(context, b, kinds[k], arguments[k]) for k in (0, 1, 5))
        _, _, rows, i, j, _ = arguments
        columns = [b.add(j, constant(WIDTH * k)) for k in range(vectors)]
        sums = [[cgutils.alloca_once(b, VECTOR) for _ in columns] for _ in range(TALL)]
        for one in sums:
            for each in one:
                b.store(ZERO, each)
        with cgutils.for_range(b, rows) as loop:
            z = [right.read(loop.index, column) for column in columns]
            for k, one in enumerate(sums):
                place = left.place(loop.index, b.add(i, constant(k)))
                a = repeated(b, b.load(place))
                for each, z_each in zip(one, z, strict=True):
                    b.store(plus_product(b, a, z_each, b.load(each)), each)
        for k, one in enumerate(sums):
            row = b.add(i, constant(k))
            for each, column in zip(one, columns, strict=True):
                total.write(b.fadd(total.read(row, column), b.load(each)), row, column)
        return context.get_dummy_value()

    return intrinsic(add)


_one, _two, _three = (_tile(vectors) for vectors in range(1, VECTORS + 1))


def _scaled(typing: Any, a: Any, z: Any, row: Any, into: Any) -> Any:
    """``into[row] = a z[row]``."""
    del typing, a, row

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        z, into = (Array(context, b, kinds[k], arguments[k]) for k in (1, 3))
        a, row = repeated(b, arguments[0]), arguments[2]
        step = constant(WIDTH)
        with cgutils.for_range_slice(b, constant(0), z.columns, step) as (column, _):
            into.write(b.fmul(a, z.read(row, column)), row, column)
        return context.get_dummy_value()

    return types.void(types.float64, z, types.intp, into), make


def _spread(vectors: int) -> Any:
    """A function that does what ``spread`` does, for one row and so many vectors of it."""

    def add(
        typing: Any, a: Any, z: Any, row: Any, j: Any, a_z: Any, totals: Any, places: Any
    ) -> Any:
        del typing, a, row, j
        size = types.intp
        return types.void(types.float64, z, size, size, a_z, totals, places), make

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        z, a_z, totals, places = (Array(context, b, kinds[k], arguments[k]) for k in (1, 4, 5, 6))
        a, (row, j) = repeated(b, arguments[0]), arguments[2:4]
        columns = [b.add(j, constant(WIDTH * k)) for k in range(vectors)]
        parts = [b.fmul(a, z.read(row, column)) for column in columns]
        for part, column in zip(parts, columns, strict=True):
            a_z.write(part, row, column)
        with cgutils.for_range(b, places.columns) as loop:
            place = b.load(places.place(row, loop.index))
            for part, column in zip(parts, columns, strict=True):
                totals.write(b.fadd(totals.read(place, column), part), place, column)
        return context.get_dummy_value()

    return intrinsic(add)


_spread_one, _spread_two, _spread_three = (_spread(vectors) for vectors in range(1, VECTORS + 1))


scale_row: Any = intrinsic(_scaled)


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def add_products(left, right, rows, total):  # type: ignore[no-untyped-def]
    """Add ``Σ left_n right_nᵀ`` over the first rows to a matrix, on and above the diagonal.

    Args:
        left: shape (n, size), C-contiguous, like all here; size as ``vectors.padded`` has it.
        right: of the same shape.
        rows: how many.
        total: shape (size, size); below the diagonal it gets what it gets.
    """
    size = left.shape[1]
    for i in range(0, size, TALL):
        j = i
        while j < size:
            vectors = (size - j) // WIDTH
            if vectors >= 3:
                _three(left, right, rows, i, j, total)
                j += 3 * WIDTH
            elif vectors == 2:
                _two(left, right, rows, i, j, total)
                j += 2 * WIDTH
            else:
                _one(left, right, rows, i, j, total)
                j += WIDTH


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def spread(weights, z, a_z, totals, places):  # type: ignore[no-untyped-def]
    """Add each row, times its weight, to as many totals as it has places; in the order of rows.

    Args:
        weights: a, shape (rows,).
        z: shape (rows or more, size), with size as ``vectors.padded`` has it.
        a_z: gets a z of each row, shape of z.
        totals: to ``totals[l]`` is added a z of the rows that have the place l, shape (…, size).
        places: of each row, int64, shape (rows or more, places of a row).
    """
    j, rows, size = 0, len(weights), z.shape[1]
    while j < size:
        vectors = (size - j) // WIDTH
        if vectors >= 3:
            for n in range(rows):
                _spread_three(weights[n], z, n, j, a_z, totals, places)
            j += 3 * WIDTH
        elif vectors == 2:
            for n in range(rows):
                _spread_two(weights[n], z, n, j, a_z, totals, places)
            j += 2 * WIDTH
        else:
            for n in range(rows):
                _spread_one(weights[n], z, n, j, a_z, totals, places)
            j += WIDTH


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def add_outer(weights, z, totals):  # type: ignore[no-untyped-def]
    """Add ``Σ_n weights[k, n] z_n z_nᵀ`` to ``totals[k]``, on and above the diagonal.

    Args:
        weights: shape (kinds, n).
        z: shape (n, size), with size as ``vectors.padded`` has it.
        totals: shape (kinds, size, size).
    """
    rows, size = z.shape
    a_z = zeros(min(rows, STRIP), size)
    for start in range(0, rows, STRIP):
        strip = z[start : start + STRIP]
        for k in range(len(totals)):
            for n in range(len(strip)):
                scale_row(weights[k, start + n], strip, n, a_z)
            add_products(a_z, strip, len(strip), totals[k])


def symmetric(upper: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The symmetric matrix of the first columns, from what is on and above its diagonal.

    >>> symmetric(np.array([[1.0, 2.0, 0.0], [9.0, 3.0, 0.0], [9.0, 9.0, 0.0]]), 2)
    array([[1., 2.],
           [2., 3.]])
    """
    own = upper[:size, :size]
    return np.triu(own) + np.triu(own, 1).T
