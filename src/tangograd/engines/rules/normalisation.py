"""Layer, group and batch normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, dual, plain, tangent_of, total


def _normalised(
    x: Tensor, dx: Tensor | None, dims: tuple[int, ...], eps: float
) -> tuple[Tensor, Tensor | None]:
    """``x̂ = (x - mean)/σ`` and ``dx̂ = (dx - mean dx - x̂ mean(x̂ dx))/σ``."""
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    normal = (x - mean).mul_(rstd)
    if dx is None:
        return normal, None
    along = (normal * dx).mean(dims, keepdim=True)
    return normal, (dx - dx.mean(dims, keepdim=True)).sub_(normal * along).mul_(rstd)


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
        terms.append(moved if w is None else moved.mul_(w))
    if dw is not None:
        terms.append(normal.mul_(dw))
    if db is not None:
        terms.append(db)
    return total(terms)


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
    dx, dw, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, w, b = plain(input), plain(weight), plain(bias)
    z = func(x, normalized_shape, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        dims = tuple(range(-len(tuple(normalized_shape)), 0))
        t = _affine(*_normalised(x, dx, dims, eps), w, dw, db)
    return dual(z, None if t is None else t.expand_as(z))


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
    dx, dw, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, w, b = plain(input), plain(weight), plain(bias)
    z = func(x, num_groups, w, b, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    with torch.no_grad():
        groups = (x.shape[0], num_groups, -1)
        normal, moved = _normalised(
            x.reshape(groups), None if dx is None else dx.reshape(groups), (-1,), eps
        )
        channels = (-1, *[1] * (x.dim() - 2))
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        moved = None if moved is None else moved.reshape(x.shape)
        t = _affine(normal.reshape(x.shape), moved, w, dw, db)
    return dual(z, None if t is None else t.expand_as(z))


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
    dx, dw, db = tangent_of(input), tangent_of(weight), tangent_of(bias)
    x, w, b = plain(input), plain(weight), plain(bias)
    z = func(x, w, b, running_mean, running_var, training, momentum, eps, *args)
    if dx is None and dw is None and db is None:
        return z
    channels = (1, -1, *[1] * (x.dim() - 2))
    with torch.no_grad():
        w, dw, db = (None if y is None else y.reshape(channels) for y in (w, dw, db))
        if training:
            normal, moved = _normalised(x, dx, tuple(i for i in range(x.dim()) if i != 1), eps)
        else:
            assert running_mean is not None
            assert running_var is not None
            rstd = (running_var.reshape(channels) + eps).rsqrt()
            normal = (x - running_mean.reshape(channels)) * rstd
            moved = None if dx is None else dx * rstd
        t = _affine(normal, moved, w, dw, db)
    return dual(z, None if t is None else t.expand_as(z))
