"""Global state of PyTorch that passes with tangents change, and the lock that protects it.

PyTorch has one forward-AD level per process. A pass therefore holds a process-wide lock, which also
covers the other global state that passes change: the cache of ``torch.nn.utils.parametrize``,
oneDNN's flag and ``DistributedDataParallel.forward``.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

#: Seconds after which a thread stops waiting for a pass that another thread holds open.
LOCK_TIMEOUT = 60.0

#: A block in which torch functions bypass the modes of engines, and their cost in Python.
plain_torch = torch._C.DisableTorchFunction

_lock = threading.RLock()


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the process-wide lock in a block; one thread may take it several times.

    Raises:
        RuntimeError: another thread held it for :data:`LOCK_TIMEOUT` seconds.
    """
    if not _lock.acquire(timeout=LOCK_TIMEOUT):
        raise RuntimeError(
            f"another thread has been inside a `tangents` block for {LOCK_TIMEOUT:g} seconds. "
            "PyTorch has one forward-mode level per process, so only one thread can be inside a "
            "block at a time: keep blocks short, and do not wait for other threads inside them."
        )
    try:
        yield
    finally:
        _lock.release()


@contextmanager
def without_cached_weights() -> Iterator[None]:
    """Hide the weights cached by ``parametrize.cached()`` in a block, and drop those it adds.

    Cached weights have the tangents, values and graph of the pass in which they were computed.
    """
    kept, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = kept


@cache
def load_formulas() -> None:
    """Load PyTorch's forward-mode formulas without the deprecation warning that this gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with forward_ad.dual_level():
            forward_ad.make_dual(torch.zeros(()), torch.zeros(()))
