"""TANGO in several processes, with DistributedDataParallel, and a run that survives its processes.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py --folder ddp-run

Handwritten digits. Kill one of the processes at any time: the others end with an error, and the
same line goes on from the last checkpoint, as if nothing had happened.
"""

import argparse
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tangograd import TANGO, Categorical
from tangograd.files import replacing
from tangograd.parallel import batch_factor

BATCH = 64  # samples a process


def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.get_default_dtype()), torch.tensor(y)


def own_batches(samples, epoch):
    """This process's part of each batch of an epoch; the last ones may differ by a sample."""
    rank, size = dist.get_rank(), dist.get_world_size()
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
    whole = [batch for batch in order.split(BATCH * size) if len(batch) >= size]
    return [batch[rank::size] for batch in whole]


def train(folder, epochs=5, every=10, after_step=None):
    """Train, from the last checkpoint if there is one; one is written each ``every`` steps."""
    torch.manual_seed(0)
    x, y = digits()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)))
    optimizer, likelihood = TANGO(model.parameters()), Categorical()
    checkpoint, done = Path(folder) / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        likelihood.load_state_dict(saved["likelihood"])
        done = saved["step"]

    step = 0
    for epoch in range(epochs):
        for rows in own_batches(len(x), epoch):
            step += 1
            if step <= done:
                continue
            factor = batch_factor(len(rows), model)  # so that samples count alike
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]), y[rows])
            (factor * loss).backward()
            optimizer.step()
            if step % every == 0 and dist.get_rank() == 0:  # all processes hold the same
                with replacing(checkpoint) as draft:  # whole, or the one before
                    states = {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "likelihood": likelihood.state_dict(),
                        "step": step,
                    }
                    torch.save(states, draft)
            if after_step:
                after_step(step)
    with torch.no_grad():
        accuracy = float((model.module(x).argmax(1) == y).double().mean())
    return model.module, {"resumed after": done, "steps": step, "accuracy": accuracy}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("ddp-run"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for others")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=arguments.timeout))
    _, summary = train(arguments.folder, arguments.epochs)
    if dist.get_rank() == 0:
        print(summary)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
