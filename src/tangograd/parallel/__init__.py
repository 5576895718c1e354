"""Several processes that train one model: one communicator, chosen for each `tangents` block.

Data-parallel training averages gradients over the processes, so a step's loss is the mean of
theirs, and the blocks of all processes are micro-batches of one step. ``p.grad`` is the same on all
after the backward pass. What TANGO measures besides (norms of pseudo-gradients for γ, squares for
C, curvatures for the guard) is computed from each process's own batch; the communicator averages
it, so that all processes hold the same γ, C, v and θ, to the last bit. It also knows how the
parameters are divided, and so how to compute tangents and VJPs:

* :class:`Local`: one process;
* :class:`DDP`: whole parameters, wrapped in ``DistributedDataParallel``;
* :class:`FullyShard`: sharded parameters, of a model made of ``fully_shard``.

Which processes belong together follows from the model (:func:`communicator_for`). During a forward
pass the communicator is that of the open pass (:func:`tangograd.session.communicator`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tangograd.parallel.base import LOCAL, Communicator, Local
from tangograd.parallel.ddp import DDP, running_wrapper
from tangograd.parallel.fully_shard import FullyShard, is_sharded

__all__ = [
    "DDP",
    "LOCAL",
    "Communicator",
    "FullyShard",
    "Local",
    "batch_factor",
    "communicator_for",
]


def communicator_for(
    model: nn.Module | None, parameters: Iterable[Tensor] | None = None
) -> Communicator:
    """Return the communicator of the processes that train a model.

    The model is wrapped in ``DistributedDataParallel`` or made of ``fully_shard``, or the wrapper's
    own forward pass is under way, as around a ``training_step`` of Lightning. A plain model trains
    alone, whether ``torch.distributed`` is initialised or not.

    Args:
        model: the model, if there is one.
        parameters: those that are trained; by default those of the model.

    Example:
        >>> type(communicator_for(nn.Linear(2, 1))).__name__
        'Local'
    """
    while model is not None and isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner  # torch.compile
    if isinstance(model, DistributedDataParallel):
        return DDP(model)
    if model is not None and is_sharded(model):
        return FullyShard(model)
    if parameters is None:
        parameters = () if model is None else model.parameters()
    wrapper = running_wrapper(parameters)
    return LOCAL if wrapper is None else DDP(wrapper)


def batch_factor(samples: float, model: nn.Module) -> float:
    """Return what to multiply the loss by when processes have batches of different sizes.

    Gradients are averaged over the processes, each counting alike, as the wrapper does. With
    this factor, ``n·size/N`` for n of N samples, each sample counts alike instead, and the step is
    that of one process on the union of the batches::

        factor = batch_factor(len(x), model)
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        (factor * loss).backward()

    All processes must call it, for they exchange their numbers.

    Args:
        samples: in this process's batch (the sum of their weights, if they have weights).
        model: wrapped in DistributedDataParallel, or made of ``fully_shard``.
    """
    communicator = communicator_for(model)
    own = torch.tensor(float(samples), dtype=torch.float64, device=communicator.device)
    return samples / communicator.read({"mean": own})["mean"]
