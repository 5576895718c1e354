"""Tangents of single operations by hand: ``(x, dx) -> (f(x), Df(x) dx)``, the second without graph.

They are here because PyTorch has no formula (fused attention, ``embedding_bag``, ``weight_norm``),
or because its own is costlier: it multiplies by zeros where an input has no tangent, and keeps
tangents in the outputs' graph. Everything else goes through PyTorch's formula.

A rule is called with the function and its arguments, and returns dual outputs, or
``NotImplemented`` to leave the call to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tangograd.engines.rules import attention, elements, layers, normalisation
from tangograd.engines.rules.duals import (
    Rule,
    detach_tangent,
    make_dual,
    primal,
    tangent_of,
    unpack,
)

aten = torch.ops.aten

CONVOLUTIONS: frozenset[Callable[..., Any]] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
LAYERS: frozenset[Callable[..., Any]] = CONVOLUTIONS | {functional.linear}

RULES: dict[Callable[..., Any], Rule] = {
    functional.linear: layers.linear,
    **dict.fromkeys(CONVOLUTIONS, layers.convolution),
    **dict.fromkeys(
        (
            torch.matmul,
            Tensor.matmul,
            Tensor.__matmul__,
            torch.bmm,
            Tensor.bmm,
            torch.mm,
            Tensor.mm,
        ),
        layers.bilinear,
    ),
    **dict.fromkeys(
        (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
        partial(elements.sum_or_difference, 1.0),
    ),
    **dict.fromkeys(
        (torch.sub, Tensor.sub, Tensor.__sub__), partial(elements.sum_or_difference, -1.0)
    ),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), elements.product),
    **dict.fromkeys((Tensor.contiguous, Tensor.clone, torch.clone), elements.linear),
    **dict.fromkeys(
        (torch.relu, Tensor.relu),
        partial(elements.pointwise, lambda dx, _, z: aten.threshold_backward(dx, z, 0)),
    ),
    **dict.fromkeys(
        (torch.tanh, Tensor.tanh),
        partial(elements.pointwise, lambda dx, _, z: aten.tanh_backward(dx, z)),
    ),
    **dict.fromkeys(
        (torch.sigmoid, Tensor.sigmoid),
        partial(elements.pointwise, lambda dx, _, z: aten.sigmoid_backward(dx, z)),
    ),
    torch._C._nn.silu: partial(elements.pointwise, lambda dx, x, _: aten.silu_backward(dx, x)),
    functional.gelu: partial(elements.pointwise, elements.gelu),
    **dict.fromkeys((torch.softmax, Tensor.softmax), elements.softmax),
    torch.layer_norm: normalisation.layer_norm,
    torch.group_norm: normalisation.group_norm,
    torch.batch_norm: normalisation.batch_norm,
    torch.embedding: layers.embedding,
    torch.embedding_bag: layers.embedding_bag,
    torch._weight_norm: layers.weight_norm,
    functional.scaled_dot_product_attention: attention.attention,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), layers.recurrent),
}

__all__ = ["LAYERS", "RULES", "detach_tangent", "make_dual", "primal", "tangent_of", "unpack"]
