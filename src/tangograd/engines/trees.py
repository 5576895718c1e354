"""Nested outputs and arguments of models: their leaves, tangents and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from tangograd.engines.intercept import ModuleCall
from tangograd.engines.rules import make_dual, primal, unpack


def leaves_of(outputs: Any) -> list[Any]:
    """Return the leaves of nested outputs."""
    return _flatten(outputs)[0]


def tensors_of(outputs: Any) -> list[Tensor]:
    """Return the leaves of nested outputs that are tensors."""
    return [x for x in leaves_of(outputs) if isinstance(x, Tensor)]


def attach_tangents(outputs: Any, tangents: Sequence[Tensor | None]) -> Any:
    """Return outputs as dual numbers, given the tangents of their leaves."""

    def attach(z: Any, t: Tensor | None) -> Any:
        if not isinstance(z, Tensor) or t is None:
            return z
        if z.shape != t.shape:
            raise RuntimeError(
                f"the model gave outputs of shape {tuple(z.shape)}, and of {tuple(t.shape)} when "
                "run again: its forward pass must depend on its inputs and torch's random state "
                "alone"
            )
        return forward_ad.make_dual(z, t.detach().to(z.dtype))

    leaves, rebuild = _flatten(outputs)
    if not any(isinstance(x, Tensor) for x in leaves):
        raise TypeError(f"it finds no tensors in outputs of type {type(outputs).__name__}")
    return rebuild([attach(*both) for both in zip(leaves, tangents, strict=True)])


def _flatten(outputs: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the leaves of outputs, and the function that puts others in their places."""
    leaves, tree = pytree.tree_flatten(outputs)
    if not tree.is_leaf() or not is_dataclass(outputs) or isinstance(outputs, type):
        return leaves, partial(pytree.tree_unflatten, treespec=tree)
    # a dataclass that PyTorch does not know
    leaves, tree = pytree.tree_flatten({f.name: getattr(outputs, f.name) for f in fields(outputs)})
    return leaves, lambda found: replace(outputs, **pytree.tree_unflatten(found, tree))


def primals(tree: Any) -> Any:
    """Return a tree without the tangents of its tensors."""
    return pytree.tree_map_only(Tensor, primal, tree)


def detached_copy(call: ModuleCall) -> ModuleCall:
    """Return the call with inputs of its own, which a model may change or keep."""

    def copy(x: Tensor) -> Tensor:
        z, t = unpack(x)
        return make_dual(z.detach().clone().requires_grad_(x.requires_grad), t)

    args, kwargs = pytree.tree_map_only(Tensor, copy, (call.args, call.kwargs))
    return call._replace(args=args, kwargs=kwargs)
