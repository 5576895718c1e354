"""Memory that is used again."""

from __future__ import annotations

import math
import weakref

import numpy as np
from numpy.typing import NDArray

#: so many pieces of memory wait at most to be used again
WAITING = 8


class Pool:
    """Gives out arrays, and takes their memory back when nobody refers to them any more.

    Memory that the system gives anew costs more than what is then written to it. One thread asks
    for arrays; any thread may have and leave them.

    Example:
        >>> pool = Pool()
        >>> first = pool.empty((2, 3))
        >>> address = first.ctypes.data
        >>> del first
        >>> pool.empty((3, 2)).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._waiting: list[NDArray[np.float64]] = []

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """A C-contiguous float64 array, of any content."""
        size = math.prod(shape)
        del self._waiting[:-WAITING]
        at = next((at for at, each in enumerate(self._waiting) if len(each) >= size), None)
        memory = np.empty(max(size, 1)) if at is None else self._waiting.pop(at)
        # views of this array refer to it, not to the memory: numpy looks through arrays alone
        loan = np.frombuffer(memory.data)
        # whatever runs meanwhile, memory is taken out of the list once, and comes to its end
        weakref.finalize(loan, self._waiting.append, memory).atexit = False
        return loan[:size].reshape(shape)
