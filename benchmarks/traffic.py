"""What TANGO adds to the bytes that DistributedDataParallel all-reduces, in two processes.

    python benchmarks/traffic.py

In units of the gradient's size, which is what SGD exchanges in a step: the first step, an ordinary
step, the largest refresh, and the mean over steps 100 to 300. Written to results/traffic.json.
"""

import json
import pickle
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tangograd import TANGO, Categorical

RESULTS = Path(__file__).parent / "results" / "traffic.json"
STEPS, SETTLED, ROWS = 300, 100, 32

OPTIONS = {
    "SGD": None,
    "gamma=0.01, preconditioner=None": {"gamma": 0.01, "preconditioner": None},
    'gamma="max", preconditioner=None': {"gamma": "max", "preconditioner": None},
    'gamma=0.01, preconditioner="rmsprop"': {"gamma": 0.01, "preconditioner": "rmsprop"},
    "defaults": {},
    'preconditioner="kronecker"': {"preconditioner": "kronecker"},
}


def main():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, (folder,), 2)
        found = json.loads((Path(folder) / "found.json").read_text())
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    for name, row in found.items():
        print(f"{name:40}", "  ".join(f"{key} {value:.4g}" for key, value in row.items()))


def measure(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    counted = _count_own_exchanges()
    found = {name: run(options, counted) for name, options in OPTIONS.items()}
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _count_own_exchanges():
    """Bytes of the exchanges that TANGO makes itself, from now on, in a list of one number."""
    counted, reduce, gather = [0], dist.all_reduce, dist.all_gather_object

    def all_reduce(tensor, *args, **kwargs):
        if not kwargs.get("async_op"):  # those are DistributedDataParallel's
            counted[0] += tensor.nbytes
        return reduce(tensor, *args, **kwargs)

    def all_gather_object(items, item, *args, **kwargs):
        counted[0] += len(pickle.dumps(item))
        return gather(items, item, *args, **kwargs)

    dist.all_reduce, dist.all_gather_object = all_reduce, all_gather_object
    return counted


def run(options, counted):
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 10))
    )
    gradient = sum(p.nbytes for p in model.parameters())
    reduced = [0]

    def hook(state, bucket):
        reduced[0] += bucket.buffer().nbytes
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    tango = options is not None
    optimizer = (
        TANGO(model.parameters(), **options) if tango else torch.optim.SGD(model.parameters(), 0.1)
    )
    likelihood, shares = Categorical(), []
    random = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        x = torch.randn(ROWS, 784, generator=random)
        y = torch.randint(10, (ROWS,), generator=random)
        counted[0] = reduced[0] = 0
        optimizer.zero_grad()
        with optimizer.tangents(model) if tango else nullcontext():
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
        shares.append((reduced[0] + counted[0]) / gradient)
    settled = sorted(shares[SETTLED:])
    return {
        "first": shares[0],
        "ordinary": settled[len(settled) // 2],
        "largest refresh": settled[-1],
        "mean": sum(settled) / len(settled),
    }


if __name__ == "__main__":
    main()
