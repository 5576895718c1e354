"""Linear, convolution, embedding and recurrent layers, and matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import (
    Rule,
    detach_tangent,
    make_dual,
    product_rule,
    sum_of,
    unpack,
)
from tangograd.engines.rules.products import product

#: A mode of ``embedding_bag``, which is not linear in the weight.
MAXIMUM = 2


def linear(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor,
    bias: Tensor | None = None,
) -> Any:
    """Apply a linear layer: ``d(x Wᵀ + b) = dx Wᵀ + x dWᵀ + db``."""
    (x, dx), (W, dW), (b, db) = unpack(input), unpack(weight), unpack(bias)
    batch = None
    if x.dim() != 2:  # or it may multiply one matrix at a time
        batch = x.shape[:-1]
        x, dx = (None if y is None else y.reshape(-1, y.shape[-1]) for y in (x, dx))

    def as_given(z: Tensor) -> Tensor:
        return z if batch is None else z.reshape(*batch, *z.shape[1:])

    z = as_given(func(x, W, b))
    with torch.no_grad():
        t = None
        if dW is not None:
            t = product(x, dW, db)
        if dx is not None:
            t = product(dx, W, db if t is None else None, onto=t)
    if t is None and db is not None:
        return NotImplemented
    return make_dual(z, None if t is None else as_given(t))


def convolution(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Apply a convolution, which is bilinear as a linear layer is."""
    (x, dx), (W, dW), (b, db) = unpack(input), unpack(weight), unpack(bias)
    z = func(x, W, b, *args, **kwargs)
    with torch.no_grad():
        t = None
        if dW is not None:
            t = func(x, dW, db, *args, **kwargs)
        if dx is not None:
            through = func(dx, W, db if t is None else None, *args, **kwargs)
            t = through if t is None else t.add_(through)
    return NotImplemented if t is None and db is not None else make_dual(z, t)


def bilinear(func: Rule, a: Tensor, b: Tensor) -> Any:
    """Multiply matrices: ``d(a b) = da b + a db``."""
    (a, da), (b, db) = unpack(a), unpack(b)
    return make_dual(func(a, b), product_rule(func, a, da, b, db))


def embedding(
    func: Rule, weight: Tensor, indices: Tensor, padding_idx: int = -1, *args: Any, **kwargs: Any
) -> Any:
    """Take rows of the weight; the row of paddings has neither gradient nor tangent."""
    W, dW = unpack(weight)
    z = func(W, indices, padding_idx, *args, **kwargs)
    if dW is None:
        return z
    with torch.no_grad():
        t = func(dW, indices, padding_idx, *args, **kwargs)
        if padding_idx >= 0:
            t.masked_fill_((indices == padding_idx).unsqueeze(-1), 0.0)
    return make_dual(z, t)


def embedding_bag(
    func: Rule,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    *args: Any,
) -> Any:
    """Apply an embedding bag; sums and means are linear in the weight and the samples' weights."""
    if mode == MAXIMUM:
        return NotImplemented
    (W, dW), (w, dw) = unpack(weight), unpack(per_sample_weights)

    def bags(W: Tensor, w: Tensor | None) -> Any:
        return func(W, indices, offsets, scale_grad_by_freq, mode, sparse, w, *args)

    z, *others = bags(W, w)
    t = product_rule(lambda *both: bags(*both)[0], W, dW, w, dw)
    return (make_dual(z, t), *others)


def weight_norm(func: Rule, v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """Compute ``W = g v/‖v‖``, with norms over all dimensions but one."""
    (v, dv), (g, dg) = unpack(v), unpack(g)
    z = func(v, g, dim)
    with torch.no_grad():
        norm = torch.norm_except_dim(v, 2, dim)
        direction = v / norm
        t = None if dg is None else direction * dg
        if dv is not None:
            dims = [i for i in range(v.dim()) if i != dim % v.dim()] if dim != -1 else None
            along = (direction * dv).sum(dims, keepdim=True) if dims != [] else direction * dv
            t = sum_of(t, (dv - direction * along) * (g / norm))
    return make_dual(z, t)


def recurrent(func: Rule, *args: Any, **kwargs: Any) -> Any:
    """Run a recurrent layer by PyTorch's own kernels: oneDNN's have no forward formula."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return detach_tangent(func(*args, **kwargs))
    finally:
        torch._C._set_mkldnn_enabled(enabled)
