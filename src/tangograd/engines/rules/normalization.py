"""Group and batch normalization."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, make_dual, sum_of, unpack
from tangograd.engines.rules.formula import tangent_by_formula

aten = torch.ops.aten

ONLY_INPUT = [True, False, False]  # of the gradients that a backward kernel can compute


def group_norm(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *args: Any,
) -> Any:
    """Apply group normalization; PyTorch's formula is made of many operations and is slow.

    The Jacobian of ``x̂ = (x - mean)/σ`` is symmetric, so PyTorch's backward kernel computes the
    tangent, ``dx̂ = (dx - mean dx - x̂ mean(x̂ dx))/σ``; then ``d(x̂ w + b) = dx̂ w + x̂ dw + db``.
    """
    (x, dx), (w, dw), (b, db) = unpack(input), unpack(weight), unpack(bias)
    z = func(x, num_groups, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        x = x.to(z.dtype).contiguous()
        sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]), num_groups)
        normal, mean, rstd = torch.native_group_norm(x, None, None, *sizes, eps)
        channels = (-1, *[1] * (x.dim() - 2))
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        terms = []
        if dx is not None:
            moved, *_ = aten.native_group_norm_backward(
                dx.to(z.dtype).contiguous(), x, mean, rstd, None, *sizes, ONLY_INPUT
            )
            terms.append(moved if w is None else moved * w)
        if dw is not None:
            terms.append(normal * dw)
        if db is not None:
            terms.append(db)
        t = sum_of(terms)
    return make_dual(z, None if t is None else t.expand_as(z))


def batch_norm(
    func: Rule,
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    *options: Any,
) -> Any:
    """Apply batch normalization, and PyTorch's formula without updating the averages again."""
    pairs = [unpack(x) for x in (input, weight, bias)]
    z = func(*[x for x, _ in pairs], running_mean, running_var, training, *options)
    if all(t is None for _, t in pairs):
        return z
    given = (None, None) if training else (running_mean, running_var)
    return make_dual(z, tangent_by_formula(func, pairs, *given, training, *options))
