"""Calls of a module, handed to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from tangograd.parallel.base import replaced


class ModuleCall(NamedTuple):
    """One call of a model.

    Attributes:
        model: the model that was called.
        forward: its own forward, with everything that wraps the module inside.
        inner: the module inside DistributedDataParallel and torch.compile.
        run: the forward of ``inner``.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """

    model: nn.Module
    forward: Callable[..., Any]
    inner: nn.Module
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class FunctionalBody(nn.Module):
    """A module by which ``functional_call`` runs any function of another one, without its hooks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the function."""
        return run(*args, **kwargs)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside wrappers; tangent passes neither communicate nor compile."""
    if isinstance(model, DistributedDataParallel):
        return unwrap(model.module)
    compiled = model._modules.get("_orig_mod")
    return model if compiled is None else unwrap(compiled)


def call_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleCall:
    """Return a call of a model with these arguments."""
    inner, forward = unwrap(model), model.forward
    return ModuleCall(model, forward, inner, forward if inner is model else inner, args, kwargs)


@contextmanager
def intercepted(model: nn.Module, handle: Callable[[ModuleCall], Any]) -> Iterator[None]:
    """Pass each call of the model in a block to ``handle``, and return what that returns.

    The model's own hooks run once, around it; calls made by ``handle`` itself are plain calls.
    """
    plain = call_of(model, (), {})
    busy = False

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal busy
        if busy or torch.compiler.is_compiling():  # called in a compiled function
            return plain.forward(*args, **kwargs)
        busy = True
        try:
            return handle(plain._replace(args=args, kwargs=kwargs))
        finally:
            busy = False

    # model.compile() sets the second one
    with replaced(model, "forward", forward), replaced(model, "_compiled_call_impl", None):
        yield


def call_with_values(
    call: ModuleCall, parameters: Sequence[Tensor], values: Sequence[Tensor]
) -> Any:
    """Make the call with other values in the place of the parameters."""
    value = {id(p): x for p, x in zip(parameters, values, strict=True)}
    body = FunctionalBody(call.inner)
    swaps = {
        f"{prefix}.{name}": value[id(p)]
        for prefix, module in body.named_modules()  # a module that is there twice, once
        for name, p in module._parameters.items()
        if p is not None and id(p) in value
    }
    # tied weights are all named; torch's own way of tying swaps a shared module twice
    return functional_call(body, swaps, (call.run, call.args, call.kwargs), tie_weights=False)


def has_compiled(model: nn.Module | None) -> bool:
    """Return whether parts of a model were given to ``torch.compile`` or scripted."""
    return model is not None and any(
        isinstance(part, torch.jit.ScriptModule)
        or "_orig_mod" in part._modules
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def uncompiled(model: nn.Module | None) -> AbstractContextManager[Any]:
    """Run compiled parts of a model eagerly in a block."""
    return torch.compiler.set_stance("force_eager") if has_compiled(model) else nullcontext()
