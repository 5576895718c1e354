"""Calls of a model inside a `tangents` block, handed to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Call(NamedTuple):
    """One call of a model.

    Attributes:
        plain: the model's own forward, with everything that wraps the module inside.
        inner: the module inside DistributedDataParallel and torch.compile.
        run: the forward of ``inner``.
        args: what it was called with.
        kwargs: the same.
        wrapper: what averages gradients over processes, around ``inner``.
    """

    plain: Callable[..., Any]
    inner: nn.Module
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    wrapper: DistributedDataParallel | None = None


class Body(nn.Module):
    """So that ``functional_call`` can run any function of a module, without its hooks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run it."""
        return run(*args, **kwargs)


def inside(model: nn.Module) -> nn.Module:
    """The module that a wrapper runs; tangent passes neither communicate nor compile."""
    return _unwrapped(model)[0]


def _unwrapped(model: nn.Module) -> tuple[nn.Module, DistributedDataParallel | None]:
    """The module inside, and the wrapper that averages its gradients."""
    wrapper = None
    while True:
        if isinstance(model, DistributedDataParallel):
            wrapper, model = model, model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model, wrapper


@contextmanager
def intercepted(model: nn.Module, handle: Callable[[Call], Any]) -> Iterator[None]:
    """Give each call of the model in the block to ``handle``, and return what that returns.

    The model's own hooks run once, around it; calls made by ``handle`` itself are plain calls.
    """
    own = vars(model).get("forward")  # an instance may have a forward of its own
    plain, (inner, wrapper) = model.forward, _unwrapped(model)
    run = plain if inner is model else inner
    busy = False

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal busy
        if busy:
            return plain(*args, **kwargs)
        busy = True
        try:
            return handle(Call(plain, inner, run, args, kwargs, wrapper))
        finally:
            busy = False

    compiled, model._compiled_call_impl = model._compiled_call_impl, None  # of model.compile()
    vars(model)["forward"] = forward
    try:
        yield
    finally:
        model._compiled_call_impl = compiled
        del vars(model)["forward"]
        if own is not None:
            vars(model)["forward"] = own
