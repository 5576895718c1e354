"""Models made of ``torch.distributed.fsdp.fully_shard``, whose parameters are sharded.

Units of ``fully_shard`` have a private state: groups of parameters that say where each belongs and
whether gradients are reduced, and the order of forward passes. It is used here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from tangograd.parallel.base import Communicator, Tensors
from tangograd.parallel.shards import full_tensors, is_shard

if TYPE_CHECKING:
    from tangograd.engines.intercept import ModuleCall


class FullyShard(Communicator):
    """The processes of a model made of ``fully_shard``, each with a part of every parameter.

    A backward pass reduces and scatters gradients, so all that is pulled back is a mean already.

    Args:
        model: the model; its trainable parameters are sharded over one dimension.
    """

    engine = "two-pass"

    def __init__(self, model: nn.Module) -> None:
        self.units: list[Any] = [module for module in model.modules() if _is_unit(module)]
        for unit in self.units:
            unit.reshard()  # after an evaluation, a root is not
        for name, p in model.named_parameters():
            if p.requires_grad and not is_shard(p):
                raise ValueError(
                    f"the parameter {name!r} is not sharded as others of the model are, so its "
                    "gradient is not averaged: call fully_shard on the model itself, too"
                )
        mesh: Any = next(model.parameters()).device_mesh  # type: ignore[attr-defined]
        if mesh.ndim > 1:
            raise NotImplementedError(
                "TANGO knows models sharded over a mesh of one dimension; this one has the "
                f"dimensions {mesh.mesh_dim_names or mesh.ndim}: use fully_shard with a mesh of "
                "one dimension"
            )
        self.group = mesh.get_group()
        self.device = torch.device(mesh.device_type)

    def dot(self, a: Tensors, b: Tensors) -> Tensor:
        """Return ``size`` times the inner product of the local parts, whose mean is their sum."""
        return super().dot(a, b) * self.size

    def pull_back(self, outputs: Tensors, parameters: Tensors, cotangents: Tensors) -> list[Tensor]:
        """Return the mean over processes of the VJP ``Jᵀ u``.

        ``backward`` computes it into temporary ``.grad``: parameters are unsharded during backward,
        so that ``autograd.grad`` cannot name them.
        """
        if not all(group.reduce_grads for unit in self.units for group in _groups(unit)):
            raise RuntimeError(
                "set_requires_gradient_sync(False) leaves gradients of micro-batches on each "
                "process, where what γ and C measure would be mixed with them: synchronise every "
                "micro-batch, or use a number for gamma and preconditioner=None"
            )
        kept = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        try:
            torch.autograd.backward(outputs, cotangents, retain_graph=True)
            return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        finally:
            for p, grad in zip(parameters, kept, strict=True):
                p.grad = grad

    def probe(self, outputs: Tensor, parameters: Tensors, cotangent: Tensor) -> list[Tensor]:
        """Return ``Σ h / √size`` of the VJPs h of the processes' random cotangents."""
        return super().probe(outputs, parameters, cotangent * self.size**0.5)

    def check_term(self, *args: Any, **kwargs: Any) -> None:
        """No-op: the VJP is a mean over processes, and the tangents are those of this one."""

    def tangent_pass(
        self, call: ModuleCall, parameters: Tensors, tangents: Tensors, default: Callable[[], Any]
    ) -> Any:
        """Return the outputs of a call as dual numbers, without a graph, in an open dual level.

        Each unit gathers its parameters for its own forward pass, and frees them. Their tangents
        are gathered with them, so that those of one unit are in memory at a time.
        """
        del default
        moving = dict(zip(map(id, parameters), tangents, strict=True))
        model: Any = call.inner
        called = False
        with ExitStack() as stack:
            for unit in self.units:
                inside = unit is model and unit._get_fsdp_state()._training_state.name == "FORWARD"
                stack.enter_context(_dual_in_forward(unit, moving, now=inside))
                called |= inside
            with torch.no_grad():
                return (model.forward if called else model)(*call.args, **call.kwargs)

    def returnable(self, outputs: Any) -> Any:
        """Return copies: ``fully_shard`` warns of views, and a dual is a view of its value."""
        return pytree.tree_map_only(Tensor, Tensor.clone, outputs)

    def require_whole_parameters(self, feature: str, advice: str) -> None:
        """Raise an error that names a feature which needs whole parameters."""
        raise NotImplementedError(
            f"{feature} does not work with parameters sharded by fully_shard: {advice}"
        )


def is_sharded(model: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on the model or on parts of it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not dist.is_available() or not dist.is_initialized():
        return False
    if any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise TypeError(
            "TANGO needs one velocity a parameter, and FullyShardedDataParallel flattens "
            "parameters into one: shard the model with torch.distributed.fsdp.fully_shard"
        )
    return any(_is_unit(module) for module in model.modules())


def _is_unit(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` was called on the module itself."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _groups(unit: Any) -> list[Any]:
    """Return the groups of parameters that a unit gathers."""
    return list(unit._get_fsdp_state()._fsdp_param_groups)


@contextmanager
def _dual_in_forward(unit: Any, moving: Mapping[int, Tensor], *, now: bool) -> Iterator[None]:
    """Make a unit's parameters dual in its forward passes, of which backward must not know.

    Args:
        unit: the unit.
        moving: the sharded tangents of parameters, by the identities of these.
        now: whether its forward pass is under way, with its parameters gathered.
    """
    groups = _groups(unit)
    replaced: list[tuple[Any, str, Any]] = []

    def remove_duals(*_: Any) -> None:
        for module, name, p in replaced:
            module._parameters[name] = p
        replaced.clear()

    def set_duals(*_: Any) -> None:
        remove_duals()
        known = [x for g in groups for x in g.fsdp_params if id(x.sharded_param) in moving]
        infos = [x._module_info for x in known]
        gathered = [info.module._parameters[info.param_name] for info in infos]
        pairs = zip(known, gathered, strict=True)
        tangents = full_tensors([moving[id(x.sharded_param)].to(p.dtype) for x, p in pairs])
        for info, p, t in zip(infos, gathered, tangents, strict=True):
            dual = forward_ad.make_dual(p.detach(), t)
            names = (info.param_name, *info.shared_param_names)
            for module, name in zip((info.module, *info.shared_modules), names, strict=True):
                replaced.append((module, name, p))
                module._parameters[name] = dual

    orders = [getattr(group.comm_ctx, "post_forward_order", []) for group in groups]
    orders += [group._post_forward_indices for group in groups]
    kept = [(order, len(order)) for order in orders]
    hooks = (
        unit.register_forward_pre_hook(set_duals),
        unit.register_forward_hook(remove_duals, prepend=True, always_call=True),
    )
    try:
        if now:
            set_duals()
        yield
    finally:
        for hook in hooks:
            hook.remove()
        remove_duals()
        for order, length in kept:
            del order[length:]
