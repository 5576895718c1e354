"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return what is free to the system, where the C library can (glibc).

    Blocks that one thread allocates and another frees leave gaps, which would make the memory of a
    long stream grow.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
