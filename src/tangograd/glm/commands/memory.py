"""Memory that is freed goes back to the system, and is not looked for in vain."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def without_old_garbage() -> Iterator[None]:
    """Do not look for garbage among the objects that there are now, again and again.

    Those of all modules are many, and a fit leaves no cycles among them. Nothing is done where
    somebody else has done it, who would not expect it to end with this.
    """
    frozen = gc.get_freeze_count() > 0
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
