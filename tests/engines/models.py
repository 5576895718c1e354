"""Small models of many architectures, for all engines."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.test_session import WithoutJvp

CLASSES, B = 4, 5


class Named(nn.Module):
    """A body whose output is averaged over positions, if it has any, and a head."""

    def __init__(self, body, width, call=lambda body, x: body(x)):
        super().__init__()
        self.body, self.head, self.call = body, nn.Linear(width, CLASSES), call

    def forward(self, x):
        h = self.call(self.body, x)
        return self.head(h.mean(1) if h.dim() == 3 else h.flatten(1))


class TiedEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 3)
        self.inside = nn.Linear(3, 3)

    def forward(self, x):
        h = torch.tanh(self.inside(self.embedding(x))).mean(1)
        return functional.linear(h, self.embedding.weight)


class Attention(nn.Module):
    """Fused attention, causal."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).flatten(1)


class Energy(nn.Module):
    """Its outputs are derivatives of a scalar in the inputs, as forces are."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            energy = self.energy(x).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


class Shared(nn.Module):
    """A layer under two names, and a weight under two others."""

    def __init__(self):
        super().__init__()
        layer, other = nn.Linear(3, 3), nn.Linear(3, 3)
        other.weight = layer.weight
        self.layers = nn.Sequential(layer, nn.Tanh(), layer, other, nn.Linear(3, CLASSES))

    def forward(self, x):
        return self.layers(x)


class ChangesThings(nn.Module):
    """Its input in place, a buffer by another, and what it was given."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, CLASSES)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        x = x.clone() if x.requires_grad else x
        x.mul_(2)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean)


class HardSwish(nn.Module):
    """Sums with constants, then changed in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        h = self.first(x)
        W = self.second.weight + 0.1
        return functional.linear(h * functional.relu6(h + 3, inplace=True) / 6, W.clamp_(-0.3, 0.3))


def numbers(*shape):
    return lambda: torch.randn(B, *shape)


def tokens():
    return torch.randint(CLASSES, (B, 3))


def images():
    return torch.randn(B, 2, 4, 4)


MODELS = {
    "MLP": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CLASSES)), numbers(3)),
    "pointwise functions": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 4), nn.SiLU(), nn.LayerNorm(4), nn.Sigmoid()
        ),
        numbers(3),
    ),
    "functions in place": (
        lambda: nn.Sequential(
            nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES), nn.ELU(inplace=True)
        ),
        numbers(3),
    ),
    "conv, BatchNorm": (
        lambda: Named(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()), 12),
        images,
    ),
    "conv, GroupNorm": (
        lambda: Named(nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), 16),
        images,
    ),
    "conv, MaxPool": (
        lambda: Named(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.Tanh()), 12),
        images,
    ),
    "LSTM": (
        lambda: Named(nn.LSTM(3, 4, batch_first=True), 4, lambda lstm, x: lstm(x)[0]),
        numbers(3, 3),
    ),
    "GRU": (
        lambda: Named(nn.GRU(3, 4, batch_first=True), 4, lambda gru, x: gru(x)[0]),
        numbers(3, 3),
    ),
    "fused attention": (lambda: Named(Attention(), 12), numbers(3, 4)),
    "MultiheadAttention": (
        lambda: Named(
            nn.MultiheadAttention(4, 2, batch_first=True),
            4,
            lambda attention, x: attention(x, x, x, need_weights=False)[0],
        ),
        numbers(3, 4),
    ),
    "TransformerEncoderLayer": (
        lambda: Named(
            nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, activation="gelu"), 4
        ),
        numbers(3, 4),
    ),
    "TransformerEncoderLayer, dropout": (
        lambda: Named(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.2, batch_first=True), 4),
        numbers(3, 4),
    ),
    "tied embeddings": (TiedEmbeddings, tokens),
    "padded embeddings": (
        lambda: Named(nn.Embedding(CLASSES, 4, padding_idx=1), 4),
        tokens,
    ),
    "shared layers": (Shared, numbers(3)),
    "changed inputs and buffers": (ChangesThings, numbers(3)),
    "hard swish": (HardSwish, numbers(3)),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, CLASSES)),
        numbers(3),
    ),
    "EmbeddingBag": (lambda: Named(nn.EmbeddingBag(CLASSES, 4), 4), tokens),
    "EmbeddingBag, maximum": (lambda: Named(nn.EmbeddingBag(CLASSES, 4, mode="max"), 4), tokens),
    "weight norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, CLASSES)
        ),
        numbers(3),
    ),
    "spectral norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, CLASSES)
        ),
        numbers(3),
    ),
    "checkpointed block": (
        lambda: Named(
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)),
            4,
            lambda body, x: checkpoint(body, x, use_reentrant=False),
        ),
        numbers(3),
    ),
    "custom Function without jvp": (lambda: Named(WithoutJvp(), 4), numbers(4)),
    "compiled module": (
        lambda: torch.compile(
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CLASSES)), backend="eager"
        ),
        numbers(3),
    ),
    "compiled part": (
        lambda: Named(torch.compile(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), backend="eager"), 4),
        numbers(3),
    ),
    "scripted part": (
        lambda: Named(
            torch.jit.trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.ones(1, 3).double()), 4
        ),
        numbers(3),
    ),
    "derivative inside": (Energy, numbers(4)),
}
