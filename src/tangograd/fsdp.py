"""Models made of ``torch.distributed.fsdp.fully_shard``: tangents and pull-backs.

What is known here of torch's own objects, and nowhere else: a unit of ``fully_shard`` has a state,
whose groups of parameters say where each belongs, whether gradients are reduced, and the order of
forward passes that the backward pass follows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad

from tangograd.shards import whole


def is_sharded(model: nn.Module) -> bool:
    """Whether the model's parameters are spread over processes, by ``fully_shard``."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not dist.is_available() or not dist.is_initialized():
        return False
    if any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise TypeError(
            "TANGO needs one velocity a parameter, and FullyShardedDataParallel flattens "
            "parameters into one: shard the model with torch.distributed.fsdp.fully_shard"
        )
    return any(is_unit(module) for module in model.modules())


def fsdp_tangent_pass(
    model: nn.Module,
    parameters: Sequence[Tensor],
    tangents: Sequence[Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a sharded model with dual parameters and without a graph, in an open dual level.

    Each unit of ``fully_shard`` gathers its parameters for its own forward pass, and frees them.
    Their tangents are gathered with them, so that one unit's v is whole at a time.

    Args:
        model: made of ``fully_shard``; it may be inside its own call, its forward replaced.
        parameters: trainable ones, sharded.
        tangents: one each, sharded alike.
        args: of the call.
        kwargs: the same.

    Returns:
        The outputs, as duals.
    """
    moving = {id(p): v for p, v in zip(parameters, tangents, strict=True)}
    units = [_Unit(module, moving) for module in model.modules() if is_unit(module)]
    with ExitStack() as stack:
        for unit in units:
            stack.enter_context(unit.hooked())
        inside = [unit for unit in units if unit.module is model and unit.running()]
        for unit in inside:  # its hooks have run: it has its parameters already
            stack.enter_context(unit.dual())
        with torch.no_grad():
            return (model.forward if inside else model)(*args, **kwargs)


def groups(unit: nn.Module) -> list[Any]:
    """The groups of parameters that a unit of ``fully_shard`` gathers."""
    return list(unit._get_fsdp_state()._fsdp_param_groups)  # type: ignore[operator]


class _Unit:
    """A unit of ``fully_shard``, and the tangents of its parameters, by their identities."""

    def __init__(self, module: nn.Module, moving: dict[int, Tensor]) -> None:
        self.module = module
        self.groups = groups(module)
        self.moving = moving
        self._plain: list[tuple[nn.Module, str, Tensor]] = []

    def running(self) -> bool:
        """Whether the unit is in its forward pass."""
        state = self.module._get_fsdp_state()  # type: ignore[operator]
        return bool(state._training_state.name == "FORWARD")

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Make the parameters dual in each forward pass; the backward pass will know of none."""
        orders = [getattr(g.comm_ctx, "post_forward_order", []) for g in self.groups]
        orders += [g._post_forward_indices for g in self.groups]
        kept = [(order, len(order)) for order in orders]
        hooks = (
            self.module.register_forward_pre_hook(lambda *_: self._enter()),
            self.module.register_forward_hook(
                lambda *_: self._leave(), prepend=True, always_call=True
            ),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._leave()
            for order, length in kept:
                del order[length:]

    @contextmanager
    def dual(self) -> Iterator[None]:
        """The same for a unit whose hooks have run."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        self._leave()
        known = [
            (self.moving[id(p.sharded_param)], p._module_info)
            for group in self.groups
            for p in group.fsdp_params
            if id(p.sharded_param) in self.moving
        ]
        gathered = [info.module._parameters[info.param_name] for _, info in known]
        tangents = whole([v.to(p.dtype) for (v, _), p in zip(known, gathered, strict=True)])
        for (_, info), p, t in zip(known, gathered, tangents, strict=True):
            dual = forward_ad.make_dual(p.detach(), t)
            modules = [info.module, *info.shared_modules]
            names = [info.param_name, *info.shared_param_names]
            for module, name in zip(modules, names, strict=True):
                self._plain.append((module, name, p))
                module._parameters[name] = dual

    def _leave(self) -> None:
        for module, name, p in self._plain:
            module._parameters[name] = p  # type: ignore[assignment]
        self._plain.clear()


def pull_back_to_shards(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """By a backward pass, for there is no other way to parameters that are gathered on the way."""
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    try:
        torch.autograd.backward(outputs, cotangents, retain_graph=True)
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    finally:
        for p, grad in zip(parameters, kept, strict=True):
            p.grad = grad


def is_unit(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on the module itself."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)
