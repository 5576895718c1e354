"""Functions of single elements, and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, make_dual, sum_of, unpack

aten = torch.ops.aten


def sum_or_difference(
    sign: float, func: Rule, a: Any, b: Any, *, alpha: float = 1.0, **kwargs: Any
) -> Any:
    """``d(a + αb) = da + α db``."""
    if kwargs:
        return NotImplemented
    (a, da), (b, db) = unpack(a), unpack(b)
    z = func(a, b, **({} if alpha == 1 else {"alpha": alpha}))
    if not isinstance(z, Tensor):
        return z
    with torch.no_grad():
        if da is not None and db is not None:
            t = torch.add(da, db, alpha=sign * alpha)
        elif da is not None:
            t = da.expand_as(z).clone()  # what is changed in place must be its own
        elif db is not None:
            t = (db * (sign * alpha)).expand_as(z)
        else:
            return z
    return make_dual(z, t)


def product(func: Rule, a: Any, b: Any, **kwargs: Any) -> Any:
    """``d(a b) = da b + a db``, element by element."""
    if kwargs:
        return NotImplemented
    (a, da), (b, db) = unpack(a), unpack(b)
    z = func(a, b)
    with torch.no_grad():
        t = sum_of(([] if da is None else [da * b]) + ([] if db is None else [a * db]))
    return make_dual(z, t) if isinstance(z, Tensor) else z


def linear(func: Rule, x: Any, *args: Any, **kwargs: Any) -> Any:
    """``d f(x) = f(dx)``, for functions that return new tensors: views keep to PyTorch's rules."""
    x, dx = unpack(x)
    if dx is None:
        return NotImplemented
    z = func(x, *args, **kwargs)
    with torch.no_grad():
        t = func(dx, *args, **kwargs)
    return make_dual(z, t)


def pointwise(
    backward: Callable[..., Tensor], func: Rule, x: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """A function of each element: the derivative's formula serves both directions."""
    x, dx = unpack(x)
    z = func(x, *args, **kwargs)
    if dx is None:
        return z
    with torch.no_grad():
        t = backward(dx, x, z, *args, **kwargs)
    return make_dual(z, t)


def softmax(func: Rule, x: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    """The softmax has a symmetric Jacobian, so its backward is its tangent."""
    if args or kwargs or not isinstance(dim, int):
        return NotImplemented
    x, dx = unpack(x)
    z = func(x, dim)
    if dx is None:
        return z
    with torch.no_grad():
        t = aten._softmax_backward_data(dx.to(z.dtype), z, dim, z.dtype)
    return make_dual(z, t)


def gelu(dx: Tensor, x: Tensor, z: Tensor, approximate: str = "none") -> Tensor:
    """The derivative of GELU, times dx."""
    del z
    result: Tensor = aten.gelu_backward(dx, x, approximate=approximate)
    return result
