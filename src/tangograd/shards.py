"""Tensors that are spread over processes, as ``fully_shard`` leaves parameters.

Elementwise operations act on the parts. Sums do not: a number that is read off such a tensor is
that of the part, so sums over elements are taken here, of the parts and then over the processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def is_shard(tensor: Tensor) -> bool:
    """Whether the tensor is spread over processes."""
    tensors = sys.modules.get("torch.distributed.tensor")  # its import takes long
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All of each sharded tensor, of one type, in one exchange; all processes must ask for it."""
    if not tensors or not all(_in_rows(tensor) for tensor in tensors):
        return [x.full_tensor() if is_shard(x) else x for x in tensors]  # type: ignore[attr-defined]
    mesh = tensors[0].device_mesh  # type: ignore[attr-defined]
    size, pieces = mesh.size(), []
    for tensor in tensors:
        rows = -(-len(tensor) // size)  # a process's, but for the last ones that may have fewer
        part = local(tensor)
        piece = part.new_zeros(rows, *tensor.shape[1:])
        piece[: len(part)] = part
        pieces.append(piece)
    own = torch.cat([piece.reshape(-1) for piece in pieces])
    every = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(every, own, group=mesh.get_group())
    columns = torch.stack(every).split([piece.numel() for piece in pieces], 1)
    return [
        column.reshape(-1, *tensor.shape[1:])[: len(tensor)]
        for column, tensor in zip(columns, tensors, strict=True)
    ]


def _in_rows(tensor: Tensor) -> bool:
    """Whether each process has consecutive rows of the tensor."""
    return is_shard(tensor) and [p.is_shard(0) for p in tensor.placements] == [True]  # type: ignore[attr-defined]


def like(part: Tensor, tensor: Tensor) -> Tensor:
    """A sharded tensor like another one, of which this process has that part."""
    if not is_shard(tensor):
        return part
    return type(tensor).from_local(  # type: ignore[attr-defined,no-any-return]
        part,
        tensor.device_mesh,  # type: ignore[attr-defined]
        tensor.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor; a whole one as it is."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of all elements of each tensor, over the parts of all processes.

    >>> sums([torch.ones(2, 3)])
    [tensor(6.)]
    """
    found = [local(tensor).sum() for tensor in tensors]
    sharded = [i for i, tensor in enumerate(tensors) if is_shard(tensor)]
    if sharded:
        mesh = tensors[sharded[0]].device_mesh  # type: ignore[attr-defined]
        total = torch.stack([found[i].double() for i in sharded])
        dist.all_reduce(total, group=mesh.get_group())
        for i, whole in zip(sharded, total, strict=True):
            found[i] = whole.to(tensors[i].dtype)
    return found


def over_shards(numbers: Sequence[float], tensors: Sequence[Tensor]) -> float:
    """The sum of numbers, one a tensor, computed from the local parts: added up over processes."""
    if not any(is_shard(tensor) for tensor in tensors):
        return sum(numbers)
    pairs = list(zip(numbers, tensors, strict=True))
    whole = sum(number for number, tensor in pairs if not is_shard(tensor))
    mesh = next(tensor for tensor in tensors if is_shard(tensor)).device_mesh  # type: ignore[attr-defined]
    part = sum(number for number, tensor in pairs if is_shard(tensor))
    total = torch.tensor(part, dtype=torch.float64, device=mesh.device_type)
    dist.all_reduce(total, group=mesh.get_group())
    return whole + float(total)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether every element of every tensor is finite, also in other processes' parts."""
    return not over_shards([float((~local(x).isfinite()).sum()) for x in tensors], tensors)
