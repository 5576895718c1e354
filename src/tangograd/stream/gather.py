"""Rows out of columns that are apart in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from tangograd.stream.vectors import (
    WIDTH,
    Array,
    constant,
    prefetch,
    read_at,
    transposed,
)

#: bytes of each column that are fetched ahead; its next rows would be waited for, one column's
#: after another's
FETCHED_AHEAD = 512


def _square(typing: Any, addresses: Any, first: Any, row: Any, places: Any, matrix: Any) -> Any:
    """WIDTH rows of as many columns: ``matrix[places[k], first + j] = column_{first+j}[row + k]``.

    Columns beyond the matrix's are not there, and are left out.
    """
    del typing, first, row

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds = signature.args
        addresses, places, matrix = (Array(context, b, kinds[k], arguments[k]) for k in (0, 3, 4))
        _, first, row, _, _ = arguments
        last, offset = b.sub(matrix.columns, constant(1)), b.mul(row, constant(8))
        columns = []
        for k in range(WIDTH):
            column = b.add(first, constant(k))
            column = b.select(b.icmp_signed("<", column, last), column, last)
            here = b.add(addresses.element(column), offset)
            prefetch(b, b.add(here, constant(FETCHED_AHEAD)))
            columns.append(read_at(b, here))
        count = b.sub(matrix.columns, first)
        for k, each in enumerate(transposed(b, columns)):
            matrix.write_first(each, places.element(constant(k)), first, count)
        return context.get_dummy_value()

    return types.void(addresses, types.intp, types.intp, places, matrix), make


def _number(typing: Any, addresses: Any, column: Any, row: Any) -> Any:
    """``column[row]``."""
    del typing, column, row

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        addresses = Array(context, b, signature.args[0], arguments[0])
        here = b.add(addresses.element(arguments[1]), b.mul(arguments[2], constant(8)))
        return b.load(b.inttoptr(here, context.get_value_type(types.float64).as_pointer()))

    return types.float64(addresses, types.intp, types.intp), make


_copy_square: Any = intrinsic(_square)
_number_at: Any = intrinsic(_number)


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def gather(addresses, length, rows, matrix):  # type: ignore[no-untyped-def]
    """``matrix[i, j] = column_j[rows[i]]``.

    As many consecutive rows as a vector has numbers are read at once, those between the rows that
    are meant too; of these, the next ones take the place.

    Args:
        addresses: of the columns: float64, contiguous, and of one length.
        length: their elements.
        rows: which of them, increasing, shape (n,).
        matrix: to write, shape (n, columns).
    """
    places, n, columns = np.empty(WIDTH, np.int64), len(rows), matrix.shape[1]
    i = 0
    while i < n:
        row = rows[i]
        if i + WIDTH > n or row + WIDTH > length:
            for j in range(columns):
                matrix[i, j] = _number_at(addresses, j, row)
            i += 1
            continue
        for k in range(WIDTH):
            places[k] = i
            i += i < n and rows[i] == row + k
        for first in range(0, columns, WIDTH):
            _copy_square(addresses, first, row, places, matrix)
