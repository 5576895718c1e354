"""Lists of tensors seen as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tangograd.parallel.shards import local, sum_over_shards


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All elements in order, as one vector.

    >>> flatten([torch.tensor([[1.0, 2.0]]), torch.tensor(3.0)])
    tensor([1., 2., 3.])
    """
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of :func:`flatten`: pieces of ``vector`` with the shapes of ``like``.

    >>> unflatten(torch.tensor([1.0, 2.0, 3.0]), [torch.zeros(1, 2), torch.zeros(())])
    [tensor([[1., 2.]]), tensor(3.)]
    """
    pieces = vector.split([tensor.numel() for tensor in like])
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The inner product of two lists of tensors.

    >>> dot([torch.ones(2), torch.tensor(2.0)], [torch.ones(2), torch.tensor(5.0)])
    12.0
    """
    pairs = [(local(x).reshape(-1), local(y).reshape(-1)) for x, y in zip(a, b, strict=True)]
    return sum(map(float, sum_over_shards([torch.dot(x, y) for x, y in pairs], a)))


def moved(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the precision and on the device of another: itself, where it is so already."""
    if tensor.dtype == like.dtype and tensor.device == like.device:
        return tensor
    return tensor.to(like.device, like.dtype)
