"""Short deterministic training runs whose trajectories are recorded in ``traces.npz``.

Run ``python -m tests.golden.cases`` to record them again, after a change that is meant to change them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from tangograd import TANGO, Bernoulli, Categorical, Gaussian, Poisson

PATH = Path(__file__).with_name("traces.npz")
STEPS = 40
#: Steps after which the parameters and the velocity are recorded; γ is recorded after each step.
RECORDED = (1, 2, 5, 10, 20, 40)


class Run(NamedTuple):
    """A model with its data, likelihood and optimizer, and how it takes one step."""

    model: nn.Module
    optimizer: TANGO
    step: Callable[[int], None]


def _mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def _data(rows: int, inputs: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, inputs, generator=generator, dtype=torch.float64)


def _plain(model, optimizer, likelihood, x, y, batch=8) -> Run:
    def step(k: int) -> None:
        i = torch.arange(k * batch, (k + 1) * batch) % len(x)
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x[i]), y[i])
        loss.backward()
        optimizer.step()

    return Run(model, optimizer, step)


def constant() -> Run:
    x = _data(40, 3)
    model, likelihood = _mlp(3, 2), Categorical(fisher="sampled")
    optimizer = TANGO(model.parameters(), 0.1, 0.2, preconditioner=None)
    return _plain(model, optimizer, likelihood, x, (x[:, 0] > 0).long())


def diagonal() -> Run:
    x = _data(40, 3)
    model, likelihood = _mlp(3, 3), Categorical()
    optimizer = TANGO(model.parameters(), preconditioner=DIAGONAL)
    return _plain(model, optimizer, likelihood, x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def kronecker() -> Run:
    x = _data(40, 18).reshape(40, 2, 3, 3)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 1)
    ).double()
    optimizer = TANGO(model.parameters(), preconditioner="kronecker")
    return _plain(model, optimizer, Bernoulli(), x, (x.sum((1, 2, 3)) > 0).double()[:, None])


def rmsprop() -> Run:
    x = _data(40, 3)
    model, likelihood = _mlp(3, 1), Poisson()
    optimizer = TANGO(model.parameters(), preconditioner="rmsprop", weight_decay=0.01)
    return _plain(model, optimizer, likelihood, x, x[:, :1].square().round())


def maximum() -> Run:
    x = _data(40, 3)
    model, likelihood = _mlp(3, 2), Gaussian(fisher="minibatch")
    optimizer = TANGO(model.parameters(), 0.05, "max", preconditioner=DIAGONAL)
    return _plain(model, optimizer, likelihood, x, x[:, :2].sin())


def groups() -> Run:
    x = _data(40, 3)
    model, likelihood = _mlp(3, 2), Gaussian("tracked")
    first, last = model[0].parameters(), model[2].parameters()
    optimizer = TANGO(
        [
            {"params": first, "lr": 0.05},
            {"params": last, "weight_decay": 0.1, "preconditioner": "rmsprop"},
        ],
        preconditioner=DIAGONAL,
    )
    return _plain(model, optimizer, likelihood, x, x[:, :2].sin())


def accumulation() -> Run:
    x = _data(48, 3)
    y = (x[:, 0] > 0).long()
    model, likelihood = _mlp(3, 2), Categorical()
    optimizer = TANGO(model.parameters(), preconditioner="kronecker")

    def step(k: int) -> None:
        optimizer.zero_grad()
        for rows in ((torch.arange(4) + 12 * k) % 48, (torch.arange(8) + 12 * k + 4) % 48):
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]), y[rows])
            (loss * len(rows) / 12).backward()
        optimizer.step()

    return Run(model, optimizer, step)


def closure() -> Run:
    x = _data(40, 3)
    y = (x[:, 0] > 0).double()
    model, likelihood, physics = _mlp(3, 1), Bernoulli(), Gaussian(0.5)
    optimizer = TANGO(model.parameters(), preconditioner=DIAGONAL, accelerated=True)

    def step(k: int) -> None:
        i = torch.arange(k * 8, (k + 1) * 8) % 40

        def loss() -> torch.Tensor:
            z = model(x[i])
            return likelihood(z[:, 0], y[i]) + 0.3 * physics(z.sin(), x[i, :1])

        optimizer.zero_grad()
        optimizer.evaluate(model, loss).backward()
        optimizer.step()

    return Run(model, optimizer, step)


#: The name of the inverse diagonal Fisher preconditioner.
DIAGONAL = "diagonal"

CASES = (constant, diagonal, kronecker, rmsprop, maximum, groups, accumulation, closure)


def trace(case: Callable[[], Run]) -> dict[str, np.ndarray]:
    """Return γ of all steps, and the parameters and the velocity after the recorded ones."""
    torch.manual_seed(0)
    model, optimizer, step = case()
    gammas, theta, velocity = [], [], []
    for k in range(STEPS):
        step(k)
        gammas.append([x for name, x in optimizer.diagnostics().items() if name[:5] == "gamma"])
        if k + 1 in RECORDED:
            parameters = list(model.parameters())
            theta.append(torch.cat([p.detach().reshape(-1) for p in parameters]).numpy())
            v = [optimizer.state[p]["velocity"].reshape(-1) for p in parameters]
            velocity.append(torch.cat(v).numpy())
    return {"gamma": np.array(gammas), "theta": np.array(theta), "v": np.array(velocity)}


def record() -> None:
    """Write the traces of all cases."""
    torch.set_default_dtype(torch.float64)
    found = {f"{c.__name__}.{k}": x for c in CASES for k, x in trace(c).items()}
    np.savez_compressed(PATH, **found)


if __name__ == "__main__":
    record()
