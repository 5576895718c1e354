"""Operations on DTensors, as ``fully_shard`` leaves parameters: each process has a part.

Elementwise operations act on the parts. Sums over elements are added up over processes here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_shard(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor, of which each process has a part."""
    tensors = sys.modules.get("torch.distributed.tensor")  # its import takes long
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a sharded tensor, and other tensors unchanged."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def from_local(part: Tensor, like: Any) -> Tensor:
    """Return a tensor sharded like another one, of which this process has the given part."""
    if not is_shard(like):
        return part
    layout = {"shape": like.shape, "stride": like.stride(), "run_check": False}
    sharded: Tensor = type(like).from_local(part, like.device_mesh, like.placements, **layout)
    return sharded


def full_tensors(tensors: Sequence[Any]) -> list[Tensor]:
    """Gather sharded tensors of one type in one exchange; all processes must call it."""
    by_rows = all(is_shard(x) and [p.is_shard(0) for p in x.placements] == [True] for x in tensors)
    if not tensors or not by_rows:
        return [x.full_tensor() if is_shard(x) else x for x in tensors]
    size, pieces = tensors[0].device_mesh.size(), []
    for tensor in tensors:
        rows, part = -(-len(tensor) // size), local(tensor)  # the last processes may have fewer
        pieces.append(torch.cat([part, part.new_zeros(rows - len(part), *tensor.shape[1:])]))
    own = torch.cat([piece.reshape(-1) for piece in pieces])
    gathered = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(gathered, own, group=tensors[0].device_mesh.get_group())
    columns = torch.stack(gathered).split([piece.numel() for piece in pieces], 1)
    return [
        column.reshape(-1, *tensor.shape[1:])[: len(tensor)]
        for column, tensor in zip(columns, tensors, strict=True)
    ]


def sum_over_shards(numbers: Sequence[Tensor], tensors: Sequence[Any]) -> list[Tensor]:
    """Add up, over processes, numbers computed from the local parts of tensors.

    Args:
        numbers: a 0-d tensor for each tensor.
        tensors: the tensors; numbers of those that are not sharded are returned unchanged.
    """
    found = list(numbers)
    sharded = [i for i, tensor in enumerate(tensors) if is_shard(tensor)]
    if sharded:
        total = torch.stack([found[i].double() for i in sharded])
        dist.all_reduce(total, group=tensors[sharded[0]].device_mesh.get_group())
        for i, number in zip(sharded, total, strict=True):
            found[i] = number
    return found


def sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of all elements of each tensor, over the parts of all processes.

    >>> sums([torch.ones(2, 3)])
    [tensor(6.)]
    """
    found = sum_over_shards([local(tensor).sum() for tensor in tensors], tensors)
    return [number.to(tensor.dtype) for number, tensor in zip(found, tensors, strict=True)]


def all_finite(tensor: Tensor) -> bool:
    """Return whether all elements are finite, also in the parts of other processes."""
    (count,) = sum_over_shards([(~local(tensor).isfinite()).sum()], [tensor])
    return not bool(count)
