"""Memory that is freed goes back to the system."""

from __future__ import annotations

import ctypes

#: a parameter of glibc's mallopt
M_MMAP_THRESHOLD = -3
LARGE = 1 << 22


def return_large_blocks() -> None:
    """Have the C library (glibc) map large blocks one by one, and unmap them when they are freed.

    By itself it stops doing so once it has seen some. Blocks that one thread allocates and another
    frees then leave gaps among smaller ones, and the memory of a long stream grows.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
    except (AttributeError, OSError, TypeError):
        return
