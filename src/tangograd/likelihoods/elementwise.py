"""The base class of families whose output elements are independent given z."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from tangograd.likelihoods.base import Likelihood
from tangograd.likelihoods.batch import Batch


class Elementwise(Likelihood):
    """Base class of families in which each output element has its own scalar target.

    The elements of a sample are independent given z, so H and H⁺ are diagonal.
    """

    #: The domain of the targets, in words.
    domain: str

    @abstractmethod
    def _element_loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Return ``-ln p(y|z)`` of each element."""

    @abstractmethod
    def _fisher_diagonal(self, z: Tensor) -> Tensor:
        """Return ``E (∂ℓ/∂z)²`` of each element."""

    @abstractmethod
    def _inside(self, y: Tensor) -> Tensor:
        """Return whether each target is in the domain (NaN is not)."""

    def _midpoint_diagonal(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        """Return the diagonal of H⁺(z, y); by default ``(H + s²)/2``.

        See :meth:`~tangograd.likelihoods.Likelihood.midpoint_product`.
        """
        del prior
        return (self._fisher_diagonal(z) + self.score(z, y).square()) / 2

    def log_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the elements' log-losses over the event."""
        loss = self._element_loss(outputs, self._convert(outputs, targets))
        return self._sum_over_event(loss)

    def fisher_product(self, outputs: Tensor, tangents: Tensor) -> Tensor:
        """Return ``H t`` with the diagonal H."""
        return self._fisher_diagonal(outputs) * tangents

    def midpoint_product(self, z: Tensor, y: Tensor, t: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``H⁺(z, y) t`` with the diagonal H⁺."""
        return self._finite_midpoint(z, y, prior) * t

    def midpoint_sample(self, z: Tensor, y: Tensor, *, prior: float = 0.0) -> Tensor:
        """Return ``b = ±√H⁺``, with an independent random sign for each element."""
        return self._signs(z) * self._finite_midpoint(z, y, prior).sqrt()

    def _finite_midpoint(self, z: Tensor, y: Tensor, prior: float) -> Tensor:
        """Return the diagonal of H⁺; ∞ is replaced by the largest number, since ∞ · 0 is NaN."""
        diagonal = self._midpoint_diagonal(z, self._convert(z, y), prior)
        return diagonal.clamp(max=torch.finfo(z.dtype).max)

    def _sample_losses(self, batch: Batch) -> Tensor:
        if batch.element_weights is None:
            return self.log_loss(batch.z, batch.y)
        return self._sum_over_event(batch.element_weights * self._element_loss(batch.z, batch.y))

    def _sum_over_event(self, loss: Tensor) -> Tensor:
        events = self.event_dimensions(loss)
        return loss.sum(tuple(range(-events, 0))) if events else loss

    def _target_shape(self, outputs: Tensor) -> tuple[int, ...]:
        return tuple(outputs.shape)

    def _outside_domain(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, str]:
        del outputs
        return ~self._inside(targets), self.domain


def positive(name: str, value: float) -> float:
    """Return the value.

    Raises:
        ValueError: it is not positive and finite.
    """
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {value}")
    return float(value)
