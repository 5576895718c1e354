"""Classes and counts."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tangograd.likelihoods.base import Elementwise, Fisher, Likelihood, Options, positive


class Categorical(Likelihood):
    """Classification: outputs are logits with classes last, targets are class indices.

    ``ℓ = -log_softmax(z)_y``, ``s = p - e_y``, ``H = diag(p) - ppᵀ``.

    Args:
        ignore_index: targets of this value do not count, as in ``nn.CrossEntropyLoss``.
        **options: ``fisher`` and ``generator``; see :class:`Likelihood`.

    Example:
        >>> likelihood = Categorical()
        >>> likelihood(torch.zeros(2, 4), torch.tensor([0, 3]))  # ln 4
        tensor(1.3863)
    """

    layout = "classes last, one class index a sample"

    def __init__(
        self,
        ignore_index: int = -100,
        *,
        fisher: Fisher = "expected",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(fisher=fisher, generator=generator, event_dims=1)
        self.ignore_index = ignore_index

    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``-log_softmax(z)_y``."""
        return -outputs.log_softmax(-1).gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``softmax(z) - e_y``."""
        one = torch.ones_like(targets, dtype=outputs.dtype).unsqueeze(-1)
        return outputs.softmax(-1).scatter_add(-1, targets.long().unsqueeze(-1), -one)

    def sample(self, outputs: Tensor) -> Tensor:
        """One class a sample."""
        p = outputs.softmax(-1).reshape(-1, outputs.shape[-1])
        drawn = torch.multinomial(p, 1, generator=self._generator_on(outputs.device))
        return drawn.reshape(outputs.shape[:-1])

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """``p ⊙ t - p ⟨p, t⟩``."""
        p = outputs.softmax(-1)
        pt = p * tangents
        return pt.addcmul(p, pt.sum(-1, keepdim=True), value=-1)

    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(outputs.shape[:-1])

    def _convert(self, outputs: Tensor, targets: Tensor) -> Tensor:
        del outputs
        if targets.is_floating_point() or targets.is_complex():
            raise ValueError(f"Categorical needs integer class indices; got {targets.dtype}")
        return targets.long()

    def _plainly_valid(self, outputs: Tensor, targets: Tensor) -> bool:
        classes = outputs.shape[-1]
        if 0 <= self.ignore_index < classes or not targets.numel():
            return False
        low, high = targets.aminmax()
        return int(low) >= 0 and int(high) < classes

    def _ignored(self, targets: Tensor) -> Tensor:
        return targets == self.ignore_index

    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        classes = outputs.shape[-1]
        return (targets < 0) | (targets >= classes), f"classes from 0 to {classes - 1}"


class Bernoulli(Elementwise):
    """Yes or no: outputs are logits, targets in [0, 1].

    ``ℓ = softplus(z) - y z``, ``s = p - y``, ``H = p(1-p)`` with ``p = sigmoid(z)``.

    Example:
        >>> Bernoulli()(torch.zeros(3), torch.tensor([0.0, 1.0, 1.0]))  # ln 2
        tensor(0.6931)
    """

    domain = "between 0 and 1"

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``sigmoid(z) - y``."""
        return outputs.sigmoid() - targets

    def sample(self, outputs: Tensor) -> Tensor:
        """0 or 1."""
        return torch.bernoulli(outputs.sigmoid(), generator=self._generator_on(outputs.device))

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        return softplus(z) - y * z

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return z.sigmoid() * (-z).sigmoid()

    def _inside(self, y: Tensor) -> Tensor:
        return (y >= 0) & (y <= 1)


class Poisson(Elementwise):
    """Counts: outputs are log-means, ``ℓ = μ - y z + ln y!``, ``s = μ - y``, ``H = μ = eᶻ``.

    Example:
        >>> Poisson()(torch.zeros(2), torch.tensor([0, 1]))  # both have p = e⁻¹
        tensor(1.)
    """

    domain = "counts (0, 1, 2, …)"

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``eᶻ - y``."""
        return outputs.exp() - targets

    def sample(self, outputs: Tensor) -> Tensor:
        """A count an element."""
        return torch.poisson(outputs.exp(), generator=self._generator_on(outputs.device))

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        return z.exp() - y * z + torch.lgamma(y + 1)

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return z.exp()

    def _inside(self, y: Tensor) -> Tensor:
        return _is_count(y)


class NegativeBinomial(Elementwise):
    """Overdispersed counts: outputs are log-means, variance ``μ + α μ²`` with α the dispersion.

    ``s = (μ - y)/(1 + αμ)``, ``H = μ/(1 + αμ)``.

    Args:
        dispersion: α > 0; Poisson is the limit α → 0.
        **options: ``fisher``, ``generator`` and ``event_dims``; see :class:`Likelihood`.

    Example:
        >>> NegativeBinomial(dispersion=1.0)(torch.zeros(1), torch.tensor([0]))  # p = 1/2
        tensor(0.6931)
    """

    domain = "counts (0, 1, 2, …)"

    def __init__(self, dispersion: float, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.dispersion = positive("dispersion", dispersion)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``(μ - y)/(1 + αμ)``."""
        odds = outputs + math.log(self.dispersion)  # ln αμ
        return odds.sigmoid() / self.dispersion - targets * (-odds).sigmoid()

    def sample(self, outputs: Tensor) -> Tensor:
        """A Poisson count whose mean is ``μ`` times a Gamma variable of mean 1, variance α."""
        generator = self._generator_on(outputs.device)
        shape = torch.full_like(outputs, 1 / self.dispersion)
        mixed = torch._standard_gamma(shape, generator=generator) * self.dispersion
        return torch.poisson(outputs.exp() * mixed, generator=generator)

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        r = 1 / self.dispersion
        log_one_plus = softplus(z + math.log(self.dispersion))  # ln(1 + αμ)
        coefficient = torch.lgamma(y + r) - math.lgamma(r) - torch.lgamma(y + 1)
        return (y + r) * log_one_plus - y * (z + math.log(self.dispersion)) - coefficient

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return (z + math.log(self.dispersion)).sigmoid() / self.dispersion

    def _inside(self, y: Tensor) -> Tensor:
        return _is_count(y)


def _is_count(y: Tensor) -> Tensor:
    return (y >= 0) & (y == y.round()) & y.isfinite()
