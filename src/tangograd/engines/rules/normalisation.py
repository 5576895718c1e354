"""Layer, group and batch normalisation.

The Jacobian of ``x̂ = (x - mean)/σ`` is symmetric, so PyTorch's backward kernel is its tangent,
``dx̂ = (dx - mean dx - x̂ mean(x̂ dx))/σ``. Weights are applied after it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, make_dual, sum_of, unpack

aten = torch.ops.aten

ONLY_INPUT = [True, False, False]  # of the gradients that a backward kernel can compute


def _affine(
    normal: Tensor,
    moved: Tensor | None,
    w: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
) -> Tensor | None:
    """``d(x̂ w + b)``, for w and b of shapes that broadcast."""
    terms = []
    if moved is not None:
        terms.append(moved if w is None else moved * w)
    if dw is not None:
        terms.append(normal * dw)
    if db is not None:
        terms.append(db)
    return sum_of(terms)


def layer_norm(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *args: Any,
) -> Any:
    """Over the last dimensions."""
    (x, dx), (w, dw), (b, db) = unpack(input), unpack(weight), unpack(bias)
    z = func(x, normalized_shape, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        x, dx, shape = x.to(z.dtype), None if dx is None else dx.to(z.dtype), list(normalized_shape)
        normal, mean, rstd = torch.native_layer_norm(x, shape, None, None, eps)
        moved = None
        if dx is not None:
            moved, *_ = aten.native_layer_norm_backward(
                dx, x, shape, mean, rstd, None, None, ONLY_INPUT
            )
        t = _affine(normal, moved, w, dw, db)
    return make_dual(z, None if t is None else t.expand_as(z))


def group_norm(
    func: Rule,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *args: Any,
) -> Any:
    """Over groups of channels, which are the second dimension."""
    (x, dx), (w, dw), (b, db) = unpack(input), unpack(weight), unpack(bias)
    z = func(x, num_groups, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        x = x.to(z.dtype).contiguous()
        sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]), num_groups)
        normal, mean, rstd = torch.native_group_norm(x, None, None, *sizes, eps)
        moved = None
        if dx is not None:
            moved, *_ = aten.native_group_norm_backward(
                dx.to(z.dtype).contiguous(), x, mean, rstd, None, *sizes, ONLY_INPUT
            )
        channels = (-1, *[1] * (x.dim() - 2))
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        t = _affine(normal, moved, w, dw, db)
    return make_dual(z, None if t is None else t.expand_as(z))


def batch_norm(
    func: Rule,
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *args: Any,
) -> Any:
    """Over everything but channels in training; with given numbers otherwise."""
    (x, dx), (w, dw), (b, db) = unpack(input), unpack(weight), unpack(bias)
    z = func(x, w, b, running_mean, running_var, training, momentum, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    given = (None, None) if training else (running_mean, running_var)
    with torch.no_grad():
        normal, mean, rstd = torch.native_batch_norm(x, None, None, *given, training, momentum, eps)
        moved = None
        if dx is not None:
            moved, *_ = aten.native_batch_norm_backward(
                dx, x, None, *given, mean, rstd, training, eps, ONLY_INPUT
            )
        channels = (1, -1, *[1] * (x.dim() - 2))
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        t = _affine(normal, moved, w, dw, db)
    return make_dual(z, None if t is None else t.expand_as(z))
