"""Dual numbers taken apart and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

#: ``(function, *arguments) ->`` dual outputs, or ``NotImplemented`` to leave the call to PyTorch
Rule = Callable[..., Any]


def tangent_of(x: object) -> Tensor | None:
    """The tangent of a dual number; ``None`` for anything else."""
    return forward_ad.unpack_dual(x).tangent if isinstance(x, Tensor) else None


def plain(x: Any) -> Any:
    """A dual number without its tangent, with its graph; anything else as it is."""
    return forward_ad.unpack_dual(x).primal if isinstance(x, Tensor) else x


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
    made: Tensor = forward_ad.make_dual(z, t if t.dtype == z.dtype else t.to(z.dtype))
    return made


def cut(outputs: Any, args: tuple[Any, ...] = ()) -> Any:
    """Take tangents out of the graph; what was changed in place stays the same object."""
    if isinstance(outputs, tuple | list):
        return pytree.tree_map_only(Tensor, lambda x: cut(x, args), outputs)
    t = tangent_of(outputs)
    if t is None or not t.requires_grad or any(outputs is x for x in args):
        return outputs
    return dual(plain(outputs), t.detach())
