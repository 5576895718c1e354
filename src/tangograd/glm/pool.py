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

    Memory that the system gives anew costs more than what is then written to it.

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
        memory = next((each for each in self._waiting if len(each) >= size), None)
        if memory is None:
            memory = np.empty(max(size, 1))
        else:
            self._waiting = [each for each in self._waiting if each is not memory]
        # views of this array refer to it, not to the memory: numpy looks through arrays alone
        loan = np.frombuffer(memory.data)
        weakref.finalize(loan, self._back, memory).atexit = False
        return loan[:size].reshape(shape)

    def _back(self, memory: NDArray[np.float64]) -> None:
        self._waiting = [*self._waiting, memory][-WAITING:]
