"""A limit of BLAS to one thread, for many small products.

The limit is one of the process. It is set by the first user and lifted by the last, so that fits in
several threads leave the number of threads as it was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import threadpoolctl

_lock = threading.Lock()
_users = 0
_limit: Any = None


@contextmanager
def single_thread() -> Iterator[None]:
    """Limit BLAS to one thread in this block; blocks may be nested and concurrent."""
    global _users, _limit
    with _lock:
        if _users == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _lift()


def _lift() -> None:
    """Restore the number of threads that was before the limit.

    From version 3.8 on, threadpoolctl obeys only the thread that set a limit first. That one may
    have left before, so control is taken from it, and given up afterwards.
    """
    take_control = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if take_control is not None:
        take_control(force=True)
    _limit.restore_original_limits()
    if take_control is not None:
        take_control(force=True)


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    """Return the libraries' controller; to look for them takes longer than a small fit."""
    return threadpoolctl.ThreadpoolController()
