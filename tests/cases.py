"""Models, likelihoods and dense oracles that several test files share."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.distributions import Independent, StudentT
from torch.nn.attention import SDPBackend, sdpa_kernel

from tangograd import (
    Bernoulli,
    Categorical,
    FromDistribution,
    Gamma,
    Gaussian,
    MeanScaleGaussian,
    NegativeBinomial,
    Poisson,
)
from tangograd.estimates import ESTIMATES
from tangograd.reference import fisher_matrix
from tangograd.vectors import flatten


def student(z: Tensor) -> Independent:
    return Independent(StudentT(5.0, z, 1.0), 1)


LIKELIHOODS = {
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "gaussian": lambda **options: Gaussian(0.7, **options),
    "mean-scale": MeanScaleGaussian,
    "poisson": Poisson,
    "negative-binomial": lambda **options: NegativeBinomial(0.5, **options),
    "gamma": lambda **options: Gamma(2.5, **options),
    "student-t": lambda **options: FromDistribution(student, **options),
}

#: Every likelihood with every Fisher estimate that it has.
COMBINATIONS = [
    (name, fisher)
    for name in LIKELIHOODS
    for fisher in ESTIMATES
    if (name, fisher) != ("student-t", "expected")
]

OUTPUTS = 4  # even, for MeanScaleGaussian


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(2)
        )
        self.head = nn.Linear(16, OUTPUTS)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, OUTPUTS)

    def forward(self, x):
        return self.head(self.gru(x)[0])


class TiedEmbedding(nn.Module):
    """A language model in small: the embedding is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(OUTPUTS, 3)
        self.hidden = nn.Linear(3, 3)
        self.output = nn.Linear(3, OUTPUTS)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.hidden(self.embedding(tokens)).tanh())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, OUTPUTS)

    def forward(self, x):
        with sdpa_kernel(SDPBackend.MATH):
            mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.norm(x + mixed))


class Raw(nn.Module):
    """An unsupervised model: raw parameters, no inputs; every sample has the same outputs."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.randn(OUTPUTS) / 2)
        self.scale = nn.Parameter(torch.randn(()))

    def forward(self, x):
        return (self.theta * (1 + self.scale.sin()) + self.theta.roll(1) ** 2).expand(len(x), -1)


def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, OUTPUTS))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(5, 3)),
    "conv": (ConvNet, lambda: torch.randn(4, 2, 4, 4)),
    "gru": (Recurrent, lambda: torch.randn(2, 3, 3)),
    "tied": (TiedEmbedding, lambda: torch.randint(OUTPUTS, (2, 3))),
    "attention": (Attention, lambda: torch.randn(2, 3, 4)),
    "raw": (Raw, lambda: torch.zeros(3, 0)),
}


def problem(model_name: str, likelihood_name: str, **options):
    """A small model with data that its own outputs make likely."""
    make, inputs = MODELS[model_name]
    model, x = make(), inputs()
    likelihood = LIKELIHOODS[likelihood_name](**options)
    with torch.no_grad():
        y = likelihood.sample(model(x) + 0.3)
    return model, x, y, likelihood


def set_velocity(optimizer, model, scale=0.5, previous_lr=0.3):
    """Give a fresh optimizer a random velocity, as if it had taken steps."""
    for p in model.parameters():
        optimizer.state[p]["velocity"] = scale * torch.randn_like(p)
    for group in optimizer.param_groups:
        group["previous_lr"] = previous_lr
    return flatten([optimizer.state[p]["velocity"] for p in model.parameters()])


def rows(likelihood, z, y, w=None):
    """One row a sample, and weights that sum to 1."""
    events = likelihood.event_dimensions(z)
    leading = z.shape[: z.dim() - events]
    w = torch.ones(leading) if w is None else w
    return (
        z.reshape(-1, *z.shape[z.dim() - events :]),
        y.reshape(-1, *y.shape[len(leading) :]),
        (w / w.sum()).reshape(-1),
    )


def sample_gradients(likelihood, z, y, parameters):
    """``g_i`` of each sample by an ordinary backward pass of its log-loss, shape (B, d)."""
    losses = likelihood.log_loss(z, y)
    return torch.stack(
        [
            flatten(
                [
                    torch.zeros_like(p) if g is None else g
                    for g, p in zip(
                        torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True),
                        parameters,
                        strict=True,
                    )
                ]
            )
            for loss in losses
        ]
    )


def dense_estimate(likelihood, z, y, parameters, w=None):
    """g, and the matrix F̂ that the likelihood's estimate stands for, with the same ỹ."""
    z, y, w = rows(likelihood, z, y, w)
    g = sample_gradients(likelihood, z, y, parameters)
    gradient = w @ g
    if likelihood.fisher == "expected":
        return gradient, fisher_matrix(likelihood, z, parameters, w)
    if likelihood.fisher != "empirical":
        counting = z.detach().clone()
        counting[w == 0] = counting[w > 0][0]  # so that all draw from the same random numbers
        drawn = deepcopy(likelihood).sample(counting)
        g = sample_gradients(likelihood, z, drawn, parameters)
    if likelihood.fisher == "minibatch":
        h = w.sqrt() @ g
        return gradient, torch.outer(h, h)
    return gradient, g.T @ (w[:, None] * g)


def midpoint_matrix(model, likelihood, x, y):
    """Return the dense midpoint Fisher matrix ``Σ J_iᵀ H⁺_i J_i / B``, as γ and C use it."""
    z, params = model(x), list(model.parameters())
    events = likelihood.event_dimensions(z)
    z, y = z.reshape(-1, *z.shape[z.dim() - events :]), y.reshape(-1, *y.shape[z.dim() - events :])
    units = torch.eye(z[0].numel()).reshape(-1, *z.shape[1:])
    matrix = 0.0
    for i in range(len(z)):
        J = torch.stack(
            [
                flatten(
                    torch.autograd.grad(
                        z[i],
                        params,
                        u,
                        retain_graph=True,
                        materialize_grads=True,
                        allow_unused=True,
                    )
                )
                for u in units
            ]
        )
        z_i, y_i = z[i : i + 1].expand_as(units), y[i : i + 1].expand(len(units), *y.shape[1:])
        H = likelihood.midpoint_product(z_i.detach(), y_i, units, prior=1 / (20 * len(z)))
        matrix = matrix + J.T @ H.reshape(len(units), -1) @ J / len(z)
    return matrix.detach()
