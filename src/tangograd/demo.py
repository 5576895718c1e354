"""A classifier of handwritten digits, trained by TANGO beside SGD and Adam.

The data are scikit-learn's 1797 digits of 8×8 pixels. All three optimizers start from the same
weights and see the same batches. The rates are set by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from tangograd import TANGO, Categorical
from tangograd.files import replacing

BATCH, TRAINING = 100, 1300

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.003),
    "TANGO": lambda parameters: TANGO(parameters),
}


@dataclass
class Run:
    """What was seen of one optimizer, epoch by epoch."""

    optimizer: str
    train_loss: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    gamma: list[float] = field(default_factory=list)
    damping: list[float] = field(default_factory=list)
    fisher_quotient: list[list[float]] = field(default_factory=list)


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training inputs and targets, test inputs and targets."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    inputs, targets = torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    return inputs[:TRAINING], targets[:TRAINING], inputs[TRAINING:], targets[TRAINING:]


def train(name: str, epochs: int, seed: int) -> Iterator[Run]:
    """Train with one optimizer, and yield the results after each epoch."""
    x, y, x_test, y_test = digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    )
    likelihood = Categorical()
    optimizer = OPTIMIZERS[name](model.parameters())
    run = Run(name)
    for _ in range(epochs):
        batches = [(x[rows], y[rows]) for rows in torch.randperm(TRAINING).split(BATCH)]
        quotients = []
        for inputs, targets in batches:
            optimizer.zero_grad()
            if isinstance(optimizer, TANGO):
                with optimizer.tangents(model):
                    loss = likelihood(model(inputs), targets)
            else:
                loss = likelihood(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if isinstance(optimizer, TANGO):
                quotients.append(optimizer.diagnostics()["fisher_quotient"])
        with torch.no_grad():
            run.train_loss.append(likelihood(model(x), y).item())
            run.test_loss.append(likelihood(model(x_test), y_test).item())
            hits = model(x_test).argmax(-1) == y_test
            run.test_accuracy.append(hits.double().mean().item())
        if isinstance(optimizer, TANGO):
            known = optimizer.diagnostics()
            run.gamma.append(known["gamma"])
            run.damping.append(known["damping"])
            run.fisher_quotient.append([q for q in quotients if q == q])  # NaN while v is 0
        yield run


def train_all(epochs: int, seed: int, report: Callable[[str], None] = lambda _: None) -> list[Run]:
    """Train with every optimizer; ``report`` hears the name at the end of each epoch."""
    runs = {}
    for name in OPTIMIZERS:
        for run in train(name, epochs, seed):
            runs[name] = run
            report(name)
    return list(runs.values())


def figures(runs: list[Run], seed: int) -> dict[str, Any]:
    """The results as plain data."""
    return {
        "data": "scikit-learn digits",
        "training_samples": TRAINING,
        "batch": BATCH,
        "epochs": len(runs[0].train_loss),
        "seed": seed,
        "runs": [asdict(run) for run in runs],
    }


def draw(runs: list[Run], path: Path) -> None:
    """Draw the loss curves of all, and TANGO's view of itself."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    losses, inside = figure.subplots(1, 2)
    colours = {"SGD": "#0072B2", "Adam": "#E69F00", "TANGO": "#009E73"}  # Okabe and Ito
    for run in runs:
        epochs = range(1, len(run.train_loss) + 1)
        colour = colours[run.optimizer]
        losses.plot(epochs, run.test_loss, color=colour, lw=2, label=f"{run.optimizer}, test")
        losses.plot(
            epochs, run.train_loss, color=colour, lw=1, ls="--", label=f"{run.optimizer}, training"
        )
    losses.set(yscale="log", xlabel="epoch", ylabel="log-loss", title="Handwritten digits")
    tango = next(run for run in runs if run.optimizer == "TANGO")
    epochs = range(1, len(tango.gamma) + 1)
    inside.fill_between(
        epochs,
        [min(q) for q in tango.fisher_quotient],
        [max(q) for q in tango.fisher_quotient],
        color="#009E73",
        alpha=0.25,
        lw=0,
    )
    inside.plot(
        epochs,
        [median(q) for q in tango.fisher_quotient],
        color="#009E73",
        lw=2,
        label="curvature along v (median and range in the epoch)",
    )
    inside.plot(
        epochs, [2 / g for g in tango.gamma], color="#D55E00", ls="--", label="2/γ: unstable above"
    )
    inside.plot(epochs, tango.damping, color="black", ls=":", label="δt/γ: damped below")
    inside.set(
        yscale="log",
        xlabel="epoch",
        ylabel="vᵀF̂v / vᵀC⁻¹v",
        title="TANGO: curvature along v and its limits",
    )
    for axes, columns in ((losses, 3), (inside, 1)):
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=columns,
            fontsize=9,
            frameon=False,
        )
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as draft:
        figure.savefig(draft, dpi=150)
