"""Dual numbers taken apart and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

#: ``(function, *arguments) ->`` dual outputs, or ``NotImplemented`` to leave the call to PyTorch.
Rule = Callable[..., Any]


def unpack(x: Any) -> tuple[Any, Tensor | None]:
    """Return the value of a dual number, with its graph, and its tangent; ``x, None`` for others.

    This is ``forward_ad.unpack_dual`` without its cost in Python, which a pass pays for every
    argument of every operation.
    """
    level = forward_ad._current_level
    return torch._unpack_dual(x, level) if isinstance(x, Tensor) and level >= 0 else (x, None)


def tangent_of(x: object) -> Tensor | None:
    """Return the tangent of a dual number, and ``None`` for anything else."""
    return unpack(x)[1]


def primal(x: Any) -> Any:
    """Return a dual number without its tangent, with its graph, and anything else as it is."""
    return unpack(x)[0]


def sum_of(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two tangents, of which ``None`` is 0."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


@torch.no_grad()
def product_rule(f: Rule, a: Any, da: Tensor | None, b: Any, db: Tensor | None) -> Tensor | None:
    """Return the tangent of ``f(a, b)``, which is linear in each: ``f(da, b) + f(a, db)``."""
    return sum_of(None if da is None else f(da, b), None if db is None else f(a, db))


def make_dual(z: Tensor, t: Tensor | None) -> Tensor:
    """Return ``z + ε t``, or z without a tangent."""
    if t is None:
        return z
    t = t if t.dtype == z.dtype else t.to(z.dtype)
    return torch._make_dual(z, t, forward_ad._current_level)


def detach_tangent(outputs: Any, args: tuple[Any, ...] = ()) -> Any:
    """Remove the graph of the tangents of outputs.

    Args:
        outputs: dual numbers, or tuples and lists of them.
        args: the arguments of the function; those changed in place stay the same objects.
    """
    if isinstance(outputs, tuple | list):
        return pytree.tree_map_only(Tensor, lambda x: detach_tangent(x, args), outputs)
    if not isinstance(outputs, Tensor):
        return outputs
    z, t = unpack(outputs)
    if t is None or not t.requires_grad or any(outputs is x for x in args):
        return outputs
    return make_dual(z, t.detach())
