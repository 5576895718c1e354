"""Codes of levels, out of those that a table's own dictionaries have, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def occurring(entries, rows, count):  # type: ignore[no-untyped-def]
    """Which of the numbers below ``count`` occur among ``entries[rows]``."""
    found = np.zeros(count, np.bool_)
    for row in rows:
        found[entries[row]] = True
    return found


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def recode(entries, rows, table, codes):  # type: ignore[no-untyped-def]
    """``codes[i] = table[entries[rows[i]]]``."""
    for i in range(len(rows)):
        codes[i] = table[entries[rows[i]]]
