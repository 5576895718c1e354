"""Tasks of the robustness benchmark: what TANGO must train with default arguments.

About a third of the tasks is held out, chosen before anything was tuned on the others and spread
over the kinds. Every task is small: a run of TANGO takes a few seconds on one core.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import robustness_data as data_sets
import robustness_networks as networks
import torch
from robustness_data import (
    CHARACTERS,
    bernoulli,
    cancer,
    categorical,
    diabetes,
    digits,
    gaussian,
    mislabelled,
    mnist,
    negative_binomial,
    poisson,
    subset,
    synthetic,
    text,
    tracked,
    wine,
)
from robustness_networks import convolutions, mlp
from torch import Tensor, nn


class Problem(NamedTuple):
    """A task for one seed.

    Attributes:
        model: the network at its start.
        likelihood: the log-loss to train with.
        x: the inputs of all training samples.
        y: the targets of all training samples.
    """

    model: nn.Module
    likelihood: nn.Module
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """A network, a family and data, and how to train.

    Attributes:
        name: kind and specifics.
        data: the data set.
        network: returns a new network.
        family: the likelihood and the reported loss.
        batch: samples of a step.
        steps: the number of steps, a multiple of 20.
        held_out: whether the task is reserved for the final report.
        init_scale: factor of the initial weights (not of biases).
        micro_batches: into how many parts a batch is split, whose gradients are accumulated.
        bfloat16: run the model under autocast to bfloat16, or with parameters of this type.
        wrong_labels: start from a network that was trained on permuted targets.
        evaluated: the number of training samples on which the reported loss is computed.
    """

    name: str
    data: data_sets.Data
    network: Callable[[], nn.Module]
    family: data_sets.Family
    batch: int
    steps: int = 300
    held_out: bool = False
    init_scale: float = 1.0
    micro_batches: int = 1
    bfloat16: Literal["autocast", "parameters"] | None = None
    wrong_labels: bool = False
    evaluated: int = 1000

    def build(self, seed: int) -> Problem:
        """Return the data, the initial network and the likelihood for a seed."""
        rng = np.random.default_rng(seed)
        arrays = self.data(rng)
        order = rng.permutation(len(arrays[0]))  # the evaluated rows come first: mix the classes
        x, y = (
            torch.tensor(a[order], dtype=torch.float32 if a.dtype.kind == "f" else torch.int64)
            for a in arrays
        )
        if self.family.likelihood is not categorical.likelihood:
            y = y.float()
        torch.manual_seed(seed)
        model = self.network()
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() > 1:
                    p.mul_(self.init_scale)
        likelihood = self.family.likelihood()
        if self.wrong_labels:
            optimizer = torch.optim.Adam(model.parameters(), 3e-3)
            wrong = y[torch.randperm(len(y))]
            for _ in range(200):
                rows = torch.randint(len(x), (100,))
                optimizer.zero_grad()
                likelihood(model(x[rows]), wrong[rows]).backward()
                optimizer.step()
        if self.bfloat16 == "parameters":
            model, x = model.bfloat16(), x.bfloat16()
        return Problem(model, likelihood, x, y)

    def precision(self) -> AbstractContextManager[object]:
        """Return the context in which the model runs."""
        if self.bfloat16 == "autocast":
            return torch.autocast("cpu", torch.bfloat16)
        return nullcontext()


def small_digits() -> nn.Module:
    return mlp(64, 64, 64, 10)


def small_regressor() -> nn.Module:
    return mlp(10, 32, 32, 1, activation=nn.Tanh)


def curve_regressor(outputs: int) -> Callable[[], nn.Module]:
    return lambda: mlp(1, 64, 64, outputs, activation=nn.Tanh)


def counts(level: float, spread: float = 0.7) -> data_sets.Data:
    """Return Poisson counts of median ``level``."""
    return synthetic(lambda rng, f: rng.poisson(level * np.exp(spread * f)))


def overdispersed(level: float, dispersion: float) -> data_sets.Data:
    """Return negative binomial counts of median mean ``level``."""

    def draw(rng: np.random.Generator, f: data_sets.Array) -> data_sets.Array:
        frailty = rng.gamma(1 / dispersion, dispersion, size=f.shape)
        return rng.poisson(level * np.exp(0.7 * f) * frailty)

    return synthetic(draw)


def amounts(level: float, concentration: float) -> data_sets.Data:
    """Return gamma-distributed amounts of median mean ``level``."""
    return synthetic(
        lambda rng, f: (
            level * np.exp(0.7 * f) * rng.gamma(concentration, 1 / concentration, size=f.shape)
        )
    )


def heavy_tails(level: float, scale: float, df: float) -> data_sets.Data:
    """Return a signal around ``level`` with Student-t noise."""
    return synthetic(lambda rng, f: level + f + scale * rng.standard_t(df, size=f.shape))


HELD_OUT = {"held_out": True}

TASKS = [
    # Raw columns
    Task("raw: breast cancer", cancer(raw=True), lambda: mlp(30, 32, 1), bernoulli, 32),
    Task("raw: breast cancer, deeper", cancer(raw=True), lambda: mlp(30, 64, 64, 1), bernoulli, 100,
         **HELD_OUT),
    Task("raw: wine", wine(raw=True), lambda: mlp(13, 32, 3), categorical, 32),
    Task("raw: wine, B=1", wine(raw=True), lambda: mlp(13, 32, 32, 3), categorical, 1, 400,
         **HELD_OUT),
    Task("raw: diabetes, tracked", diabetes(raw=True), lambda: mlp(10, 32, 1), tracked, 50),
    Task("raw: diabetes as counts", diabetes(raw=True), lambda: mlp(10, 32, 1), poisson, 50,
         **HELD_OUT),
    # Likelihoods
    Task("family: categorical", digits(), small_digits, categorical, 64),
    Task("family: bernoulli", cancer(raw=False), lambda: mlp(30, 32, 1), bernoulli, 32, 160),
    Task("family: multi-label bernoulli", data_sets.images(digits()),
         lambda: mlp(64, 48, 16, 48, 64), bernoulli, 64, **HELD_OUT),
    Task("family: deep autoencoder", data_sets.images(mnist()),
         lambda: mlp(784, 128, 32, 8, 32, 128, 784), bernoulli, 100, 200, evaluated=500),
    Task("family: poisson", counts(3), small_regressor, poisson, 50),
    Task("family: negative binomial", overdispersed(5, 0.5), small_regressor,
         negative_binomial(0.5), 50),
    Task("family: gaussian", diabetes(raw=False), lambda: mlp(10, 32, 1), gaussian(), 50),
    Task("family: gaussian, small variance", data_sets.curve(lambda x: 0.1 + 0 * x, rows=1000),
         curve_regressor(1), gaussian(0.01), 64, **HELD_OUT),
    Task("family: tracked gaussian", data_sets.curve(lambda x: 0.05 + 0 * x, rows=1000),
         curve_regressor(1), tracked, 64),
    Task("family: gamma", amounts(3, 2), small_regressor, data_sets.gamma(2), 50),
    Task("family: mean and scale", data_sets.curve(lambda x: np.exp(x - 1.5), rows=1000),
         curve_regressor(2), data_sets.mean_scale(-1.5), 64),
    Task("family: mean and scale, far away",
         synthetic(lambda rng, f: 50 + 5 * f + rng.normal(size=f.shape)),
         lambda: mlp(10, 32, 32, 2), data_sets.mean_scale(0), 64, **HELD_OUT),
    Task("family: student t", heavy_tails(0, 0.2, 2), small_regressor,
         data_sets.student(3, 0.2), 50),
    Task("family: laplace", heavy_tails(0, 0.2, 2), small_regressor, data_sets.laplace(0.2), 50),
    Task("family: laplace, learned scale",
         synthetic(lambda rng, f: 3 + f + rng.laplace(scale=0.3, size=f.shape)),
         lambda: mlp(10, 32, 32, 2), data_sets.laplace_with_scale(np.log(0.3)), 50, **HELD_OUT),
    # Large counts and amounts
    Task("large: counts", counts(1e4), small_regressor, poisson, 50),
    Task("large: amounts", amounts(1e4, 2), small_regressor, data_sets.gamma(2), 50),
    Task("large: amounts, ReLU, precise", amounts(2e4, 20), lambda: mlp(10, 32, 32, 1),
         data_sets.gamma(20), 100, **HELD_OUT),
    Task("large: overdispersed counts", overdispersed(1e4, 0.5), small_regressor,
         negative_binomial(0.5), 50, **HELD_OUT),
    Task("large: counts, wide spread", counts(1e3, 2), lambda: mlp(10, 32, 32, 1), poisson, 20),
    # Raw pixels
    Task("pixels: digits 0..16", digits(16), small_digits, categorical, 64),
    Task("pixels: MNIST 0..255", mnist(255), lambda: mlp(784, 64, 64, 10), categorical, 64,
         **HELD_OUT),
    Task("pixels: MNIST 0..255, convolutions", mnist(255), lambda: convolutions(28, (8, 16)),
         categorical, 50, 200, evaluated=500),
    # Initial weights
    Task("init: x 0.03", digits(), small_digits, categorical, 64, init_scale=0.03),
    Task("init: x 0.3", digits(), lambda: mlp(64, 64, 64, 64, 10), categorical, 64, init_scale=0.3,
         **HELD_OUT),
    Task("init: x 3", digits(), small_digits, categorical, 64, init_scale=3),
    Task("init: x 3, tanh", counts(3), small_regressor, poisson, 50, init_scale=3, **HELD_OUT),
    Task("init: x 0.03, convolutions", mnist(), lambda: convolutions(28, (8, 16)), categorical, 50,
         200, init_scale=0.03, evaluated=500),
    # Deep networks
    Task("deep: 8 ReLU layers", digits(), lambda: mlp(64, *[48] * 7, 10), categorical, 64),
    Task("deep: 8 ReLU layers, regression",
         synthetic(lambda rng, f: f + 0.1 * rng.normal(size=f.shape)),
         lambda: mlp(10, *[32] * 7, 1), tracked, 64, **HELD_OUT),
    Task("deep: residual, LayerNorm", mnist(), lambda: networks.residual_mlp(784, 48, 4, 10),
         categorical, 64, 200),
    # BatchNorm
    Task("norm: convolutions", digits(), lambda: convolutions(8, (8, 16), norm=True), categorical,
         64, 200),
    Task("norm: residual network", digits(), lambda: networks.resnet(8, 2), categorical, 64, 160,
         evaluated=500),
    Task("norm: ReLU network", mnist(), lambda: mlp(784, 64, 64, 10, norm=nn.BatchNorm1d),
         categorical, 50, **HELD_OUT),
    # Attention
    Task("attention: characters", text(32),
         lambda: networks.Transformer(
             nn.Embedding(CHARACTERS, 32), 32, 32, 2, CHARACTERS, causal=True
         ),
         categorical, 16, 200, evaluated=100),
    Task("attention: rows of digits", data_sets.sequences(digits()),
         lambda: networks.Transformer(nn.Linear(8, 32), 8, 32, 1, 10, causal=False), categorical,
         32, **HELD_OUT),
    # Recurrent networks
    Task("recurrent: LSTM, characters", text(32),
         lambda: nn.Sequential(
             nn.Embedding(CHARACTERS, 32),
             networks.Recurrent(nn.LSTM, 32, 64, CHARACTERS, last=False),
         ),
         categorical, 16, 200, evaluated=100),
    Task("recurrent: GRU, rows of digits", data_sets.sequences(digits()),
         lambda: networks.Recurrent(nn.GRU, 8, 32, 10, last=True), categorical, 32),
    Task("recurrent: GRU, adding", data_sets.adding(12, 2000),
         lambda: networks.Recurrent(nn.GRU, 2, 32, 1, last=True), gaussian(0.01), 50, 400,
         **HELD_OUT),
    # Embeddings with rare tokens
    Task("embedding: topics", data_sets.topics(1000, 5, 12, 2000),
         lambda: nn.Sequential(nn.Embedding(1000, 16), networks.Mean(), mlp(16, 32, 5)),
         categorical, 32),
    Task("embedding: ratings", data_sets.ratings(400, 300, 3000),
         lambda: networks.Factorization(400, 300, 8), bernoulli, 64, **HELD_OUT),
    # Noisy and few data
    Task("noise: 40% permuted labels", mislabelled(digits(), 0.4), small_digits, categorical, 64),
    Task("noise: 40% permuted labels, binary", mislabelled(cancer(raw=False), 0.4),
         lambda: mlp(30, 32, 1), bernoulli, 32, **HELD_OUT),
    Task("few: 30 digits", subset(digits(), 30), lambda: mlp(64, 16, 10), categorical, 30, 100),
    Task("few: 30 rows, tracked", subset(diabetes(raw=False), 30), lambda: mlp(10, 32, 1), tracked,
         10, 160, **HELD_OUT),
    # Batch sizes
    Task("batch: 1", digits(), small_digits, categorical, 1, 400),
    Task("batch: 1, counts", counts(3), small_regressor, poisson, 1, 400, **HELD_OUT),
    Task("batch: 4", mnist(), lambda: mlp(784, 64, 10), categorical, 4),
    Task("batch: 512", digits(), small_digits, categorical, 512),
    # Fine-tuning
    Task("fine-tuning: digits", digits(), small_digits, categorical, 64, wrong_labels=True),
    Task("fine-tuning: binary", cancer(raw=False), lambda: mlp(30, 64, 64, 1), bernoulli, 32,
         wrong_labels=True, **HELD_OUT),
    # Sixteen bits
    Task("bfloat16: autocast", digits(), small_digits, categorical, 64, bfloat16="autocast"),
    Task("bfloat16: autocast, convolutions", digits(), lambda: convolutions(8, (8, 16)),
         categorical, 64, bfloat16="autocast", **HELD_OUT),
    Task("bfloat16: parameters", digits(), small_digits, categorical, 64, bfloat16="parameters"),
    # Accumulation
    Task("accumulation: 4 micro-batches", digits(), small_digits, categorical, 64, micro_batches=4),
    Task("accumulation: unequal micro-batches", amounts(3, 2), small_regressor,
         data_sets.gamma(2), 50, micro_batches=3, **HELD_OUT),
]  # fmt: skip

RAW_TASKS = [
    Task(f"{name}, B={batch}", data, network, family, batch, 500)
    for name, data, network, family in (
        ("breast cancer", cancer(raw=True), lambda: mlp(30, 32, 1), bernoulli),
        ("wine", wine(raw=True), lambda: mlp(13, 32, 3), categorical),
    )
    for batch in (1, 32, 100)
]
