"""Rows out of columns that are apart in memory."""

from __future__ import annotations

from typing import Any

from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

#: rows that are written while they stay in the processor's nearest cache
TILE = 64


def _pointer(typing: Any, address: Any) -> Any:
    """The address of float64 numbers as a pointer to them."""
    del typing, address
    kind = types.CPointer(types.float64)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.intp), make


_numbers_at: Any = intrinsic(_pointer)


@njit(cache=True, error_model="numpy", nogil=True)
def gather(addresses, length, rows, matrix):  # type: ignore[no-untyped-def]
    """``matrix[i, j] = column_j[rows[i]]``.

    Args:
        addresses: of the columns: float64, contiguous, and of one length.
        length: their elements.
        rows: which of them, shape (n,).
        matrix: to write, shape (n, columns).
    """
    for start in range(0, len(rows), TILE):
        end = min(start + TILE, len(rows))
        for j in range(len(addresses)):
            column = carray(_numbers_at(addresses[j]), (length,))
            for i in range(start, end):
                matrix[i, j] = column[rows[i]]
