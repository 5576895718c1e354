"""Nested outputs and arguments of models: their leaves, tangents and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from tangograd.engines.intercept import ModuleCall
from tangograd.engines.rules import primal, unpack

#: Outputs with their graph, and their tangent.
Pair = tuple[Tensor, Tensor | None]


def leaves_of(outputs: Any) -> list[Any]:
    """Return the leaves of outputs, also of a dataclass that PyTorch does not know."""
    if is_dataclass(outputs) and not isinstance(outputs, type):
        known = pytree.tree_leaves(outputs)
        if len(known) == 1 and known[0] is outputs:
            return pytree.tree_leaves({f.name: getattr(outputs, f.name) for f in fields(outputs)})
    return pytree.tree_leaves(outputs)


def pairs_of(outputs: Any) -> list[Pair]:
    """Return the tensors in outputs, each with its tangent."""
    return [unpack(x) for x in leaves_of(outputs) if isinstance(x, Tensor)]


def attach_tangents(outputs: Any, tangents: Sequence[Tensor | None]) -> Any:
    """Return outputs as dual numbers, given the tangents of their leaves."""

    def attach(z: Any, t: Any) -> Any:
        if not isinstance(z, Tensor) or t is None:
            return z
        if z.shape != t.shape:
            raise RuntimeError(
                f"the model gave outputs of shape {tuple(z.shape)}, and of {tuple(t.shape)} when "
                "run again: its forward pass must depend on its inputs and torch's random state "
                "alone"
            )
        return forward_ad.make_dual(z, t.detach().to(z.dtype))

    found = [attach(*both) for both in zip(leaves_of(outputs), tangents, strict=True)]
    if not any(isinstance(x, Tensor) for x in found):
        raise TypeError(f"it finds no tensors in outputs of type {type(outputs).__name__}")
    leaves, tree = pytree.tree_flatten(outputs)
    if len(leaves) == 1 and leaves[0] is outputs and is_dataclass(outputs):
        inner = {f.name: getattr(outputs, f.name) for f in fields(outputs)}
        _, tree = pytree.tree_flatten(inner)
        return replace(outputs, **pytree.tree_unflatten(found, tree))  # type: ignore[type-var]
    return pytree.tree_unflatten(found, tree)


def primals(tree: Any) -> Any:
    """Return a tree without the tangents of its tensors."""
    return pytree.tree_map_only(Tensor, primal, tree)


def detached_copy(call: ModuleCall) -> ModuleCall:
    """Return the call with inputs of its own, which a model may change or keep."""

    def copy(x: Tensor) -> Tensor:
        z, t = forward_ad.unpack_dual(x)
        z = z.detach().clone().requires_grad_(x.requires_grad)
        return z if t is None else forward_ad.make_dual(z, t)  # type: ignore[no-any-return]

    args, kwargs = pytree.tree_map_only(Tensor, copy, (call.args, call.kwargs))
    return call._replace(args=args, kwargs=kwargs)
