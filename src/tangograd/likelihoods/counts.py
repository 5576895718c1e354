"""Likelihoods of counts."""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tangograd.likelihoods.base import Options
from tangograd.likelihoods.elementwise import Elementwise, positive


class Poisson(Elementwise):
    """Counts: outputs are log-means, ``ℓ = μ - y z + ln y!``, ``s = μ - y``, ``H = μ = eᶻ``.

    The midpoint Fisher information is ``(μ + y)/2``; ``prior`` is added to y as a pseudo-count, so
    that a mean near 0 with a count of 0 has an information of ``prior/2``.

    Example:
        >>> Poisson()(torch.zeros(2), torch.tensor([0, 1]))  # both have p = e⁻¹
        tensor(1.)
    """

    domain = "counts (0, 1, 2, …)"

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``eᶻ - y``."""
        return outputs.exp() - targets

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw a count for each element."""
        return torch.poisson(_finite(outputs.exp()), generator=self._generator_on(outputs.device))

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        return z.exp() - y * z + torch.lgamma(y + 1)

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return z.exp()

    def _midpoint_diagonal(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        return (z.exp() + y + prior) / 2

    def _inside(self, y: Tensor) -> Tensor:
        return _is_count(y)


class NegativeBinomial(Elementwise):
    """Overdispersed counts: outputs are log-means, variance ``μ + α μ²`` with α the dispersion.

    ``s = (μ - y)/(1 + αμ)``, ``H = μ/(1 + αμ)``. The midpoint Fisher information is
    ``(μ + y)/2 / (1 + αμ)``; ``prior`` is added to y as a pseudo-count.

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
        """Return ``(μ - y)/(1 + αμ)``."""
        odds = self._log_odds(outputs)
        return odds.sigmoid() / self.dispersion - targets * (-odds).sigmoid()

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw a Poisson count whose mean is ``μ`` times a Gamma variable of mean 1, variance α."""
        generator = self._generator_on(outputs.device)
        shape = torch.full_like(outputs, 1 / self.dispersion)
        mixed = torch._standard_gamma(shape, generator=generator) * self.dispersion
        return torch.poisson(_finite(outputs.exp() * mixed), generator=generator)

    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        r, odds = 1 / self.dispersion, self._log_odds(z)
        coefficient = torch.lgamma(y + r) - math.lgamma(r) - torch.lgamma(y + 1)
        return (y + r) * softplus(odds) - y * odds - coefficient

    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        return self._log_odds(z).sigmoid() / self.dispersion

    def _midpoint_diagonal(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        odds = self._log_odds(z)  # μ/(1 + αμ) and 1/(1 + αμ) do not overflow as sigmoids
        return (odds.sigmoid() / self.dispersion + (y + prior) * (-odds).sigmoid()) / 2

    def _log_odds(self, z: Tensor) -> Tensor:
        """Return ``ln αμ``."""
        return z + math.log(self.dispersion)

    def _inside(self, y: Tensor) -> Tensor:
        return _is_count(y)


def _finite(mean: Tensor) -> Tensor:
    """Return means for sampling; a batch with other than finite means is refused by the step."""
    return mean.nan_to_num(0.0, posinf=0.0)


def _is_count(y: Tensor) -> Tensor:
    return (y >= 0) & (y == y.round()) & y.isfinite()
