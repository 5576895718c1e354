"""TANGO with parameters and velocity spread over processes: ``fully_shard``.

    torchrun --standalone --nproc-per-node 2 examples/fsdp.py --folder fsdp-run

Handwritten digits. The checkpoint does not know how many processes wrote it: go on with any number,

    torchrun --standalone --nproc-per-node 1 examples/fsdp.py --folder fsdp-run --epochs 8
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from tangograd import TANGO, Categorical

BATCH = 128  # samples, of all processes together


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh())


def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.get_default_dtype()), torch.tensor(y)


def train(folder, epochs=4):
    """Train, from the last checkpoint if there is one; one is written after each epoch."""
    torch.manual_seed(0)
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 32), block(32), block(32), nn.Linear(32, 10))
    for unit in (model[1], model[2], model):
        fully_shard(unit)
    optimizer, likelihood = TANGO(model.parameters()), Categorical()

    def states():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        return {
            "model": of_model,
            "optimizer": of_optimizer,
            "likelihood": likelihood.state_dict(),
        }

    # a checkpoint is whole once it has its .metadata, which is written last
    saved = sorted(Path(folder).glob("epoch-*/.metadata"))
    done = int(saved[-1].parent.name.split("-")[1]) if saved else 0
    if saved:
        found = states()
        dcp.load(found, checkpoint_id=saved[-1].parent)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
        likelihood.load_state_dict(found["likelihood"])

    rank, size = dist.get_rank(), dist.get_world_size()
    for epoch in range(done, epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(x) // BATCH * BATCH].split(BATCH):
            rows = batch[rank::size]
            optimizer.zero_grad()
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        dcp.save(states(), checkpoint_id=Path(folder) / f"epoch-{epoch + 1:04d}")
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).double().mean())
    return {"resumed after epoch": done, "epochs": epochs, "accuracy": accuracy}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("fsdp-run"))
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    summary = train(arguments.folder, arguments.epochs)
    if dist.get_rank() == 0:
        print(summary)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
