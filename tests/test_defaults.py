"""Default arguments train on inputs that were difficult: small versions of the benchmark's tasks.

``benchmarks/robustness.py`` has the full comparison with Adam.
"""

from itertools import pairwise

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from torch import nn

from tangograd import TANGO, Bernoulli, Categorical, Gamma, Gaussian


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for i, o in pairwise(widths):
        layers += [nn.Linear(i, o), activation()]
    return nn.Sequential(*layers[:-1])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.rnn(x.reshape(-1, 8, 8))[1][0])


def convolutions():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def shrunk(model, factor):
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(factor)
    return model


def digits(scale=1 / 16):
    data = load_digits()
    return torch.tensor(data.data) * scale, torch.tensor(data.target)


def table(load):
    data = load()
    return torch.tensor(data.data), torch.tensor(data.target)


def binary():
    x, y = table(load_breast_cancer)
    return x, y.double()[:, None]


def positive(level, draw):
    x = torch.randn(500, 6)
    return x, draw(level * torch.exp(0.7 * torch.sin(2 * x).sum(1, keepdim=True)))


def amounts():
    return positive(1e4, lambda mu: mu * torch.distributions.Gamma(2.0, 2.0).sample(mu.shape))


def noisy():
    x, y = digits()
    wrong = torch.rand(len(y)) < 0.4
    return x, torch.where(wrong, y[torch.randperm(len(y))], y)


#: name: (model, likelihood, data, batch, steps, largest final loss over the loss at the start)
TASKS = {
    "raw breast cancer, B=1": (lambda: mlp(30, 32, 1), Bernoulli, binary, 1, 300, 0.1),
    "raw breast cancer, B=100": (lambda: mlp(30, 32, 1), Bernoulli, binary, 100, 100, 0.02),
    "raw wine, B=32": (lambda: mlp(13, 32, 3), Categorical, lambda: table(load_wine), 32, 150, 0.1),
    "raw pixels": (lambda: mlp(64, 32, 10), Categorical, lambda: digits(16.0), 64, 60, 0.1),
    "weights x 0.03": (lambda: shrunk(mlp(64, 32, 10), 0.03), Categorical, digits, 64, 80, 0.5),
    "weights x 0.03, convolutions": (
        lambda: shrunk(convolutions(), 0.03), Categorical, digits, 64, 60, 0.5,
    ),
    "eight ReLU layers": (lambda: mlp(64, *[24] * 7, 10), Categorical, digits, 64, 120, 0.5),
    "large amounts": (lambda: mlp(6, 16, 1, activation=nn.Tanh), lambda: Gamma(2.0), amounts,
                      50, 100, 0.01),
    "recurrent": (Recurrent, Categorical, digits, 64, 80, 0.5),
    "BatchNorm": (convolutions, Categorical, digits, 64, 60, 0.3),
    "label noise": (lambda: mlp(64, 32, 10), Categorical, noisy, 64, 80, 0.9),
    "30 samples": (lambda: mlp(64, 16, 10), Categorical,
                   lambda: tuple(a[:30] for a in digits()), 30, 60, 0.1),
    "far targets": (lambda: mlp(6, 16, 1), Gaussian,
                    lambda: positive(100.0, lambda mu: mu), 50, 100, 0.7),
}  # fmt: skip


def train(model, optimizer, likelihood, x, y, batch, steps):
    for _ in range(steps):
        rows = torch.randint(len(x), (batch,)) if batch < len(x) else torch.arange(len(x))
        optimizer.zero_grad()
        if isinstance(optimizer, TANGO):
            with optimizer.tangents(model):
                loss = likelihood(model(x[rows]), y[rows])
        else:
            loss = likelihood(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()


def ratio(name, make=lambda parameters: TANGO(parameters)):
    """Return the final loss over all data, over that at the start."""
    build, family, data, batch, steps, _ = TASKS[name]
    model, (x, y), likelihood = build(), data(), family()
    with torch.no_grad():
        start = float(likelihood(model(x), y))
    train(model, make(model.parameters()), likelihood, x, y, batch, steps)
    with torch.no_grad():
        return float(likelihood(model(x), y)) / start


@pytest.mark.parametrize("name", TASKS)
def test_default_arguments_train(name):
    assert ratio(name) < TASKS[name][-1]


@pytest.mark.parametrize("name", ["weights x 0.03", "weights x 0.03, convolutions"])
def test_tiny_initial_weights_train_with_the_diagonal(name):
    assert ratio(name, lambda p: TANGO(p, preconditioner="diagonal")) < 0.9


def test_targets_far_away_on_a_log_scale_are_reached_as_fast_as_with_adam():
    ours = ratio("large amounts")
    torch.manual_seed(0)
    assert ours < ratio("large amounts", lambda p: torch.optim.Adam(p, 1e-2))
