"""What a forward pass depends on besides parameters and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.utils import parametrize


class Conditions:
    """The random state, the model's buffers and autocast, as they are now.

    Example: the same random numbers, twice.

        >>> before = Conditions(None)
        >>> first = torch.rand(2)
        >>> with before.restored():
        ...     again = torch.rand(2)
        >>> bool((first == again).all())
        True
    """

    def __init__(self, model: object) -> None:
        self.model = model
        self.buffers = _buffers(model)
        self.random = torch.get_rng_state()
        self.cuda_random = torch.cuda.get_rng_state_all() if "cuda" in _devices() else []
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in _devices()
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Go back to these conditions; afterwards all is as it was before the block."""
        now = _buffers(self.model)
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng())
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            stack.enter_context(without_cached_weights())
            self.restore()
            try:
                yield
            finally:
                _write(now)

    def restore(self) -> None:
        """Go back to the random state and the buffers for good."""
        torch.set_rng_state(self.random)
        if self.cuda_random:
            torch.cuda.set_rng_state_all(self.cuda_random)
        _write(self.buffers)


@contextmanager
def without_cached_weights() -> Iterator[None]:
    """A block that sees none of the weights that ``parametrize.cached()`` keeps, and leaves none.

    They have the tangents, the values and the graph of the pass in which they were computed.
    """
    kept, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = kept


@contextmanager
def without_autocast() -> Iterator[None]:
    """A block in which operations have the precision of what they are given."""
    with ExitStack() as stack:
        for kind in _devices():
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _devices() -> list[str]:
    """The kinds in use."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()
    return ["cpu", "cuda"] if used else ["cpu"]


#: a place for a buffer, the tensor in it, and its value
Slot = tuple[nn.Module, str, Tensor, Tensor]


def _buffers(model: object) -> list[Slot]:
    if not isinstance(model, nn.Module):
        return []
    return [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _write(slots: Sequence[Slot]) -> None:
    """Put back tensors, which a model may have replaced, and values, which it may have changed."""
    buffers = tuple(buffer for _, _, buffer, _ in slots)
    with torch.no_grad(), _unsafe_preserve_version_counter(buffers):
        for module, name, buffer, value in slots:
            module._buffers[name] = buffer
            buffer.copy_(value)
