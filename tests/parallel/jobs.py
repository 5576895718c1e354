"""What the processes run, and the same in one process."""

from __future__ import annotations

import os
import pickle
import warnings
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tangograd import TANGO, Categorical, Gaussian
from tangograd.curvature import Auto
from tangograd.curvature.pseudo_gradients import probe
from tangograd.parallel import batch_factor, communicator_for

INPUTS, CLASSES = 4, 3


class Known(Categorical):
    """What is drawn follows from the outputs, and no prior from the rows: so in any batch."""

    def sample(self, outputs):
        return (1e3 * outputs).sin().argmax(-1)

    def _draw(self, p):
        return (1e3 * p).sin().argmax(-1)

    def _midpoint(self, z, y, prior):
        return super()._midpoint(z, y, 0.0)


class Net(nn.Module):
    """A second head is used in every other step only, where ``sometimes``."""

    def __init__(self, sometimes=False):
        super().__init__()
        self.body = nn.Linear(INPUTS, 5)
        self.head = nn.Linear(5, CLASSES)
        self.sometimes = sometimes
        if sometimes:
            self.other = nn.Linear(5, CLASSES)

    def forward(self, x, other=False):
        hidden = self.body(x).tanh()
        return self.head(hidden) + self.other(hidden) if other else self.head(hidden)


def make_model(**options):
    torch.manual_seed(1)
    return Net(**options)


def batches(steps, rows=12):
    """The batches of all processes together."""
    random = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(rows, INPUTS, generator=random)
        yield x, torch.randint(CLASSES, (rows,), generator=random)


def share(rows, sizes):
    """This process's rows: its part of an even split, or of that given."""
    parts = rows.chunk(sizes) if isinstance(sizes, int) else rows.split(list(sizes))
    return parts[dist.get_rank()]


def results(optimizer, model):
    """What must be the same everywhere."""
    return {
        "theta": [p.detach().clone() for p in model.parameters()],
        "v": [optimizer.state[p]["velocity"].clone() for p in model.parameters()],
        "groups": optimizer.state_dict()["param_groups"],
    }


def train(optimizer, model, likelihood, steps, own, *, parts=1, weighted=False, as_function=False):
    """Train on the rows ``own(all rows)`` of each batch, in micro-batches.

    Args:
        parts: how many micro-batches.
        weighted: whether the loss is weighted by this process's number of samples.
        as_function: whether the loss is given as a function.
    """
    wrapped = isinstance(model, DistributedDataParallel)
    sometimes = (model.module if wrapped else model).sometimes
    for step, (x, y) in enumerate(batches(steps)):
        if isinstance(likelihood, Gaussian):
            y = torch.nn.functional.one_hot(y, CLASSES).to(x)
        optimizer.zero_grad()
        pieces = own(torch.arange(len(x))).chunk(parts)
        factor = batch_factor(sum(map(len, pieces)), model) if weighted else 1.0
        for i, rows in enumerate(pieces):
            last = i == len(pieces) - 1
            with model.no_sync() if wrapped and not last else nullcontext():
                other = {"other": True} if sometimes and step % 2 else {}

                def body(rows=rows, x=x, y=y, other=other):
                    return likelihood(model(x[rows], **other), y[rows])

                if as_function:
                    loss = optimizer.evaluate(model, body)
                else:
                    with optimizer.tangents(model):
                        loss = body()
                (factor * loss / len(pieces)).backward()
        optimizer.step()


def alone(options, likelihood, steps=4, **model_options):
    """One process on whole batches."""
    model = make_model(**model_options)
    optimizer = TANGO(model.parameters(), **options)
    train(optimizer, model, likelihood(), steps, lambda rows: rows)
    return results(optimizer, model)


def ddp(options, likelihood, steps=4, *, wrapper=None, sizes=2, how=None, **model_options):
    """This process's part under DistributedDataParallel."""
    model = DistributedDataParallel(make_model(**model_options), **(wrapper or {}))
    optimizer = TANGO(model.parameters(), **options)
    train(optimizer, model, likelihood(), steps, lambda rows: share(rows, sizes), **(how or {}))
    return results(optimizer, model.module)


class Step(nn.Module):
    """A forward pass that opens the block itself, with the module inside, as Lightning's does."""

    def __init__(self, model, optimizer, likelihood, as_function):
        super().__init__()
        self.model, self.likelihood = model, likelihood
        self.tools = optimizer, as_function

    def forward(self, x, y):
        optimizer, as_function = self.tools
        if as_function:
            return optimizer.evaluate(self.model, lambda: self.likelihood(self.model(x), y))
        with optimizer.tangents(self.model):
            return self.likelihood(self.model(x), y)


def ddp_around_the_block(options, likelihood, steps=4, *, wrapper=None, as_function=False):
    """The same as :func:`ddp`, the wrapper being around the whole of it."""
    model = make_model()
    optimizer = TANGO(model.parameters(), **options)
    step = Step(model, optimizer, likelihood(), as_function)
    wrapped = DistributedDataParallel(step, **(wrapper or {}))
    for x, y in batches(steps):
        rows = share(torch.arange(len(x)), 2)
        optimizer.zero_grad()
        wrapped(x[rows], y[rows]).backward()
        optimizer.step()
    return results(optimizer, model)


def the_wrong_module():
    """What is said where the block is not given the wrapper that runs in it."""
    model = make_model()
    wrapper, optimizer = DistributedDataParallel(model), TANGO(model.parameters())
    x, y = next(batches(1))
    said = []
    for wrong in (model, nn.Sequential(wrapper), None):
        try:
            with optimizer.tangents(wrong):
                Known()(wrapper(x), y)
        except RuntimeError as error:
            said.append(str(error))
    return said


def partly_averaged():
    """What is said where the wrapper around the block does not have all parameters."""
    model, other = make_model(), torch.zeros(1, requires_grad=True)
    step = Step(model, TANGO([*model.parameters(), other]), Known(), False)
    try:
        DistributedDataParallel(step)(*next(batches(1)))
    except ValueError as error:
        return str(error)
    return None


def lightning_ddp(options, steps=6):
    """The same by Lightning."""
    os.environ |= {
        "RANK": str(dist.get_rank()),
        "LOCAL_RANK": str(dist.get_rank()),
        "WORLD_SIZE": str(dist.get_world_size()),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    warnings.simplefilter("ignore")  # its own
    import lightning
    from lightning.fabric.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.likelihood = make_model(), Known()

        def training_step(self, batch):
            rows = share(torch.arange(len(batch[0])), 2)
            with self.optimizers().tangents(self.network):
                return self.likelihood(self.network(batch[0][rows]), batch[1][rows])

        def configure_optimizers(self):
            return TANGO(self.parameters(), **options)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(cluster_environment=TorchElasticEnvironment()),
        max_epochs=1,
        use_distributed_sampler=False,
        **dict.fromkeys(quiet, False),
    )
    module = Module()
    trainer.fit(module, DataLoader(list(batches(steps)), batch_size=None))
    return results(trainer.optimizers[0], module)


def unwrapped(options, likelihood, steps=4):
    """A plain model, while processes are there; with the number of exchanges."""
    model = make_model()
    optimizer = TANGO(model.parameters(), **options)
    with counting() as counts:
        train(optimizer, model, likelihood(), steps, lambda rows: share(rows, 2))
    return results(optimizer, model), counts


@contextmanager
def counting():
    """Count the exchanges that tangograd makes, and their bytes."""
    counts = {"calls": 0, "bytes": 0}
    reduce, gather = dist.all_reduce, dist.all_gather_object

    def counting_reduce(tensor, *args, **kwargs):
        if not kwargs.get("async_op"):  # those are the wrapper's
            counts["calls"] += 1
            counts["bytes"] += tensor.nbytes
        return reduce(tensor, *args, **kwargs)

    def counting_gather(items, item, *args, **kwargs):
        counts["calls"] += 1
        counts["bytes"] += len(pickle.dumps(item))
        return gather(items, item, *args, **kwargs)

    dist.all_reduce, dist.all_gather_object = counting_reduce, counting_gather
    try:
        yield counts
    finally:
        dist.all_reduce, dist.all_gather_object = reduce, gather


def traffic(options, steps):
    """Bytes exchanged in each step: by DistributedDataParallel, and by tangograd itself."""
    model = DistributedDataParallel(make_model())
    reduced = []

    def hook(state, bucket):
        reduced[-1] += bucket.buffer().nbytes
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    tango = options is not None
    optimizer = (
        TANGO(model.parameters(), **options) if tango else torch.optim.SGD(model.parameters(), 0.1)
    )
    likelihood, own = Categorical(), []
    for x, y in batches(steps):
        rows = share(torch.arange(len(x)), 2)
        reduced.append(0)
        optimizer.zero_grad()
        with counting() as counts:
            with optimizer.tangents(model) if tango else nullcontext():
                loss = likelihood(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        own.append(counts)
    return reduced, own


class Recorded(Categorical):
    """Keeps what it draws."""

    def __init__(self, **options):
        super().__init__(**options)
        self.drawn = []

    def _draw(self, p):
        self.drawn.append(super()._draw(p))
        return self.drawn[-1]


def draws(wrapped, rows=3000):
    """Pseudo-samples for the same outputs everywhere, and where the generator then stands."""
    model = make_model()
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    model = DistributedDataParallel(model) if wrapped else model
    torch.manual_seed(0)
    likelihood = Recorded(fisher="sampled")
    optimizer = TANGO(model.parameters(), gamma=0.01)
    with optimizer.tangents(model):
        likelihood(model(torch.ones(rows, INPUTS)), torch.zeros(rows, dtype=torch.long))
    return likelihood.drawn[0], likelihood.drawn[-1], likelihood.generator.get_state()


def tracked():
    """A Gaussian likelihood that learns its variance; what it has learned."""
    likelihood = Gaussian("tracked")
    options = {"gamma": 0.05, "preconditioner": None}
    found = ddp(options, lambda: likelihood, sizes=(7, 5), how={"weighted": True})
    return found, float(likelihood.variance)


def one_cannot_run_again(steps=3):
    """One of the processes does something between model and likelihood."""
    model = DistributedDataParallel(make_model())
    optimizer, likelihood = TANGO(model.parameters()), Known()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x, y in batches(steps):
            rows = share(torch.arange(len(x)), 2)
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]) * (1 + dist.get_rank()), y[rows])
            loss.backward()
            optimizer.step()
    return results(optimizer, model.module), [str(w.message) for w in said]


class Noisy(nn.Module):
    """Statistics of the batch in buffers, and random numbers: each process's own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, 5), nn.BatchNorm1d(5), nn.Dropout(0.2))
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def noisy(steps=12):
    """With the defaults; in the middle the residual is looked at."""
    torch.manual_seed(1)
    model = DistributedDataParallel(Noisy())
    torch.manual_seed(dist.get_rank())
    optimizer, likelihood = TANGO(model.parameters()), Categorical()
    for step, (x, y) in enumerate(batches(steps)):
        rows = share(torch.arange(len(x)), 2)
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        if step == 5:
            assert optimizer.residual(model, likelihood, [(x[rows], y[rows])]) > 0
    return results(optimizer, model.module)


def squared_probe(draws=200, wrapped=True):
    """The mean of ‖h‖², h being a random vector with second moments F̂: the trace of F̂."""
    model = make_model()
    model = DistributedDataParallel(model) if wrapped else model
    optimizer = TANGO(model.parameters(), preconditioner=None)
    (x, y), total = next(batches(1)), 0.0
    rows = share(torch.arange(len(x)), 2) if wrapped else torch.arange(len(x))
    likelihood = Categorical()
    for _ in range(draws):
        with optimizer.tangents(model):
            likelihood(model(x[rows]), y[rows])
        pulled = optimizer._blocks.pending.blocks[-1].pulled
        pulled[0].share.add(torch.ones(()))
        h = probe(pulled, list(model.parameters()), communicator_for(model))
        total += float(sum(piece.square().sum() for piece in h)) / draws
        optimizer._blocks.pending.blocks.clear()
    return total


def samples_counted():
    """How many samples γ "auto" takes a batch of twelve for, which has been split unevenly."""
    seen, measured = [], Auto.measured

    def noting(self, *args, **kwargs):
        seen.append(kwargs["samples"])
        return measured(self, *args, **kwargs)

    Auto.measured = noting
    try:
        ddp({}, Known, 2, sizes=(8, 4), how={"weighted": True})
    finally:
        Auto.measured = measured
    return seen
