"""Models wrapped in DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from tangograd.parallel.base import Communicator, Tensors, replaced


class DDP(Communicator):
    """The processes of a DistributedDataParallel, each with whole parameters.

    The wrapper averages gradients. What is pulled back beside them is averaged here.

    Args:
        wrapper: the model.
    """

    wrapper: DistributedDataParallel

    def __init__(self, wrapper: DistributedDataParallel) -> None:
        self.group = wrapper.process_group
        self.device = next(wrapper.parameters()).device
        self.wrapper = wrapper

    def mean_of_tensors(self, tensors: Tensors) -> list[Tensor]:
        """Average tensors, of equal shapes in all processes, in one exchange for each type."""
        found = list(tensors)
        if self.size == 1:
            return found
        for dtype in dict.fromkeys(x.dtype for x in found):
            places = [i for i, x in enumerate(found) if x.dtype == dtype]
            total = torch.cat([found[i].reshape(-1) for i in places])
            dist.all_reduce(total, group=self.group)
            pieces = total.div_(self.size).split([found[i].numel() for i in places])
            for i, piece in zip(places, pieces, strict=True):
                found[i] = piece.reshape(found[i].shape)
        return found

    def mean_of_probes(self, tensors: Tensors) -> list[Tensor]:
        """Return ``Σ h / √size``: the mean of independent h is shorter by √size."""
        return [x * self.size**0.5 for x in self.mean_of_tensors(tensors)]

    def unwrapped(self) -> AbstractContextManager[None]:
        """Make calls of the wrapper run the module inside, in a block, without its exchanges."""
        return replaced(self.wrapper, "forward", self.wrapper.module.__call__)

    @contextmanager
    def preserve_tangents(self) -> Iterator[None]:
        """Make tangents pass through what the wrapper does to outputs, in a block.

        With ``find_unused_parameters`` or ``static_graph``, the wrapper puts a node behind the
        outputs that drops tangents. The first derivative through this node reduces gradients,
        unless a flag says that this was done: VJPs in the block must not be taken for backward.
        """
        wrapper = self.wrapper
        if not (wrapper.static_graph or wrapper.find_unused_parameters):
            yield
            return
        plain = wrapper._post_forward
        reduced = not wrapper.static_graph or wrapper._static_graph_delay_allreduce_enqueued

        def set_reduced(flag: bool) -> None:
            if wrapper.static_graph:
                wrapper._static_graph_delay_allreduce_enqueued = flag

        def post_forward(outputs: Any) -> Any:
            leaves, tree = pytree.tree_flatten(outputs)
            pairs = [_unpack(leaf) for leaf in leaves]
            set_reduced(reduced)
            outputs = plain(pytree.tree_unflatten([z for z, _ in pairs], tree))
            set_reduced(True)
            joined = [
                z if t is None else forward_ad.make_dual(z, t)
                for z, (_, t) in zip(pytree.tree_leaves(outputs), pairs, strict=True)
            ]
            return pytree.tree_unflatten(joined, tree)

        set_reduced(True)
        try:
            with replaced(wrapper, "_post_forward", post_forward):
                yield
        finally:
            set_reduced(reduced)


def running_wrapper(parameters: Iterable[Tensor]) -> DistributedDataParallel | None:
    """Return the wrapper whose forward pass is under way, if it averages these gradients."""
    wrapper: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()
    if wrapper is None:
        return None
    averaged = {id(p) for p in wrapper.parameters()}
    ours = [id(p) in averaged for p in parameters if p.requires_grad]
    if any(ours) and not all(ours):
        raise ValueError(
            "the DistributedDataParallel that is running has some of the optimizer's parameters "
            "and not the others, so only part of the gradient is averaged over processes: wrap "
            "one module that has them all"
        )
    return wrapper if any(ours) else None


def _unpack(leaf: Any) -> tuple[Any, Tensor | None]:
    """Return a value and its tangent, if it has one."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf, None
    z, t = forward_ad.unpack_dual(leaf)
    return (leaf, None) if t is None else (z, t.detach())
