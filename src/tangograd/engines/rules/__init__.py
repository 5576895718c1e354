"""Tangents of single operations: ``(x, dx) -> (f(x), Df(x) dx)``, the second without a graph.

There is a rule where PyTorch has no forward formula (fused attention, ``embedding_bag``,
``weight_norm``), and where its formula costs more: it multiplies by zeros where an input has no
tangent, and what the outputs' graph saves it saves with tangents. Everything else goes through
PyTorch's formula.

A rule is called with the function and its arguments, and returns dual outputs, or
``NotImplemented`` to leave the call to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tangograd.engines.rules import attention, formula, layers
from tangograd.engines.rules.duals import (
    Rule,
    detach_tangent,
    make_dual,
    primal,
    tangent_of,
    unpack,
)

CONVOLUTIONS: frozenset[Callable[..., Any]] = frozenset({torch.conv1d, torch.conv2d, torch.conv3d})
LAYERS: frozenset[Callable[..., Any]] = CONVOLUTIONS | {functional.linear}

PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__),
        *(torch.bmm, Tensor.bmm, torch.mm, Tensor.mm),
    }
)

#: Cheap functions that return new tensors: their graph, or a later one, would save dual numbers.
BY_FORMULA: frozenset[Callable[..., Any]] = frozenset(
    {
        *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
        *(torch.sub, Tensor.sub, Tensor.__sub__),
        *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
        *(torch.clone, Tensor.clone, Tensor.contiguous),
        *(torch.relu, Tensor.relu),
        *(torch.tanh, Tensor.tanh),
        *(torch.sigmoid, Tensor.sigmoid),
        *(torch.softmax, Tensor.softmax),
        torch._C._nn.silu,
        functional.gelu,
        torch.layer_norm,
        torch.group_norm,
    }
)

RULES: dict[Callable[..., Any], Rule] = {
    functional.linear: layers.linear,
    **dict.fromkeys(CONVOLUTIONS, layers.convolution),
    **dict.fromkeys(PRODUCTS, layers.bilinear),
    **dict.fromkeys(BY_FORMULA, formula.by_formula),
    torch.batch_norm: formula.batch_norm,
    torch.embedding: layers.embedding,
    torch.embedding_bag: layers.embedding_bag,
    torch._weight_norm: layers.weight_norm,
    functional.scaled_dot_product_attention: attention.attention,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), layers.recurrent),
}

__all__ = ["LAYERS", "RULES", "detach_tangent", "make_dual", "primal", "tangent_of", "unpack"]
