"""What the processes run with ``fully_shard``, and the same in one process."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tangograd import TANGO
from tests.parallel.jobs import CLASSES, INPUTS, Known, batches, share


class Block(nn.Module):
    """Sizes that do not divide by two, and a fused operation without a forward-mode formula."""

    def __init__(self, width=5):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).unsqueeze(-1).chunk(3, -2)  # of a row's own features
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.squeeze(-1)).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(INPUTS, 5)
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(5, CLASSES)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def make(options, *, shard, **policy):
    torch.manual_seed(1)
    model = Net()
    if shard:
        for unit in (*model.blocks, model):
            fully_shard(unit, mp_policy=MixedPrecisionPolicy(**policy))
    return model, TANGO(model.parameters(), **options)


def steps(model, optimizer, likelihood, data, own, parts=1):
    for x, y in data:
        optimizer.zero_grad()
        pieces = own(torch.arange(len(x))).chunk(parts)
        for rows in pieces:
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]), y[rows])
            (loss / len(pieces)).backward()
        optimizer.step()


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def results(model, optimizer):
    groups = optimizer.state_dict()["param_groups"]
    return {
        "theta": [whole(p) for p in model.parameters()],
        "v": [whole(optimizer.state[p]["velocity"]) for p in model.parameters()],
        "groups": torch.utils._pytree.tree_map_only(torch.Tensor, whole, groups),
    }


def alone(options, likelihood, count=4):
    model, optimizer = make(options, shard=False)
    steps(model, optimizer, likelihood(), batches(count), lambda rows: rows)
    return results(model, optimizer)


def fsdp(options, likelihood, count=4, parts=1, **policy):
    model, optimizer = make(options, shard=True, **policy)
    evaluate = torch.ones(2, INPUTS)
    with torch.no_grad():
        model(evaluate)  # leaves the root gathered
    steps(model, optimizer, likelihood(), batches(count), lambda rows: share(rows, 2), parts)
    for p in model.parameters():
        v = optimizer.state[p]["velocity"]
        assert isinstance(v, DTensor)
        assert v.placements == p.placements
        assert v.to_local().shape == p.to_local().shape
    return results(model, optimizer)


def seeded():
    return Known(generator=torch.Generator().manual_seed(3))


def states(model, optimizer):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def save(options, folder, count=3):
    """Train, save, and go on; both what was saved and where it led."""
    model, optimizer = make(options, shard=True)
    data = list(batches(2 * count))
    steps(model, optimizer, seeded(), data[:count], lambda rows: share(rows, 2))
    saved = results(model, optimizer)
    dcp.save(states(model, optimizer), checkpoint_id=folder)
    steps(model, optimizer, seeded(), data[count:], lambda rows: share(rows, 2))
    return saved, results(model, optimizer)


def resume(options, folder, count=3):
    """The same from what was saved, in as many processes as there are."""
    alone = not dist.is_initialized()
    model, optimizer = make(options, shard=not alone)
    found = states(model, optimizer)
    dcp.load(found, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=found["model"],
        optim_state_dict=found["optimizer"],
    )
    loaded = results(model, optimizer)
    data = list(batches(2 * count))[count:]
    steps(model, optimizer, seeded(), data, lambda rows: rows if alone else share(rows, 2))
    return loaded, results(model, optimizer)


def refused(options):
    """What is said of options that do not work with shards."""
    model, optimizer = make(options, shard=True)
    try:
        steps(model, optimizer, Known(), batches(1), lambda rows: share(rows, 2))
    except NotImplementedError as error:
        return str(error)
    return None


def refused_models():
    """What is said of a model that is sharded in part, of a closure, and of a residual."""
    said = []
    model, optimizer = make({"gamma": 0.1}, shard=True)
    part = Net()
    fully_shard(part.blocks[0])
    tries = (
        lambda: TANGO(part.parameters()).tangents(part).__enter__(),
        lambda: optimizer.evaluate(model, lambda: None),
    )
    for attempt in tries:
        try:
            attempt()
        except (NotImplementedError, ValueError) as error:
            said.append(str(error))
    return said


def unsynchronised(options):
    """Micro-batches without synchronisation; what is said of it, or where it led."""
    model, optimizer = make(options, shard=True)
    try:
        for x, y in batches(3):
            optimizer.zero_grad()
            pieces = share(torch.arange(len(x)), 2).chunk(2)
            for i, rows in enumerate(pieces):
                model.set_requires_gradient_sync(i == 1)
                with optimizer.tangents(model):
                    loss = Known()(model(x[rows]), y[rows])
                (loss / 2).backward()
            optimizer.step()
    except RuntimeError as error:
        return str(error)
    return results(model, optimizer)
