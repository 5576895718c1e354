"""Networks of the robustness benchmark."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn


def mlp(
    *sizes: int,
    activation: type[nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """Return linear layers with activations, and normalization where given, between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), *([norm(after)] if norm else []), activation()]
    return nn.Sequential(*layers[: -2 if norm else -1])


def convolutions(side: int, channels: tuple[int, ...], *, norm: bool = False) -> nn.Sequential:
    """Return 3 × 3 convolutions of stride 2 and a linear layer to ten classes."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, side, side))]
    for before, after in itertools.pairwise((1, *channels)):
        layers.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
        layers += [nn.BatchNorm2d(after)] if norm else []
        layers.append(nn.ReLU())
        side = (side + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * side**2, 10))


class Residual(nn.Module):
    """The sum of the input and a branch of it."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)  # type: ignore[no-any-return]


def resnet(channels: int, blocks: int) -> nn.Sequential:
    """Return a residual network with BatchNorm for images of 8 × 8 pixels."""

    def conv(before: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        conv(1),
        nn.MaxPool2d(2),
        *(Residual(nn.Sequential(conv(channels), conv(channels))) for _ in range(blocks)),
        nn.Flatten(),
        nn.Linear(16 * channels, 10),
    )


def residual_mlp(features: int, width: int, blocks: int, outputs: int) -> nn.Sequential:
    """Return residual blocks of LayerNorm, a linear layer, GELU and a linear layer."""
    return nn.Sequential(
        nn.Linear(features, width),
        *(
            Residual(
                nn.Sequential(nn.LayerNorm(width), mlp(width, width, width, activation=nn.GELU))
            )
            for _ in range(blocks)
        ),
        nn.LayerNorm(width),
        nn.Linear(width, outputs),
    )


class Recurrent(nn.Module):
    """A recurrent layer over a sequence, with a linear layer on each output or on the last."""

    def __init__(
        self, kind: type[nn.RNNBase], inputs: int, width: int, outputs: int, *, last: bool
    ) -> None:
        super().__init__()
        self.layer = kind(inputs, width, batch_first=True)
        self.head = nn.Linear(width, outputs)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(x)[0]
        return self.head(states[:, -1] if self.last else states)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Encoder layers over a sequence, with a linear layer on each output or on their mean."""

    def __init__(
        self,
        embedding: nn.Module,
        length: int,
        width: int,
        blocks: int,
        outputs: int,
        *,
        causal: bool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))
        mask = nn.Transformer.generate_square_subsequent_mask(length) if causal else None
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.positions
        for block in self.blocks:
            h = block(h, src_mask=self.mask)
        return self.head(h if self.mask is not None else h.mean(1))  # type: ignore[no-any-return]


class Mean(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Factorization(nn.Module):
    """Scalar products of the embeddings of a user and an item, and a bias of the item."""

    def __init__(self, users: int, items: int, rank: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, rank), nn.Embedding(items, rank)
        self.biases = nn.Embedding(items, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        u, i = pairs.unbind(-1)
        products = (self.users(u) * self.items(i)).sum(-1, keepdim=True)
        return products + self.biases(i)  # type: ignore[no-any-return]
