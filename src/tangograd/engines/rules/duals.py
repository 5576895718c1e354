"""Dual numbers taken apart and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

#: ``(function, *arguments) ->`` dual outputs, or ``NotImplemented`` to leave the call to PyTorch
Rule = Callable[..., Any]


def split(x: Any) -> tuple[Any, Tensor | None]:
    """A dual number as its value, with its graph, and its tangent; anything else as it is.

    This is ``forward_ad.unpack_dual`` without its cost in Python, which a pass pays for every
    argument of every operation.
    """
    level = forward_ad._current_level
    return torch._unpack_dual(x, level) if isinstance(x, Tensor) and level >= 0 else (x, None)


def tangent_of(x: object) -> Tensor | None:
    """The tangent of a dual number; ``None`` for anything else."""
    return split(x)[1]


def plain(x: Any) -> Any:
    """A dual number without its tangent, with its graph; anything else as it is."""
    return split(x)[0]


def total(terms: list[Tensor]) -> Tensor | None:
    """The sum of the terms, if there are any."""
    found: Tensor | None = None
    for term in terms:
        found = term if found is None else found + term
    return found


def dual(z: Tensor, t: Tensor | None) -> Tensor:
    """``z + ε t``, or z alone."""
    if t is None:
        return z
    t = t if t.dtype == z.dtype else t.to(z.dtype)
    return torch._make_dual(z, t, forward_ad._current_level)


def cut(outputs: Any, args: tuple[Any, ...] = ()) -> Any:
    """Take tangents out of the graph; what was changed in place stays the same object."""
    if isinstance(outputs, tuple | list):
        return pytree.tree_map_only(Tensor, lambda x: cut(x, args), outputs)
    if not isinstance(outputs, Tensor):
        return outputs
    z, t = split(outputs)
    if t is None or not t.requires_grad or any(outputs is x for x in args):
        return outputs
    return dual(z, t.detach())
