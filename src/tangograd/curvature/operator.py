"""The Fisher matrix of recorded batches as a linear operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tangograd.parallel import Communicator
from tangograd.session import CannotReplayError
from tangograd.state import Group


class FisherSource(Protocol):
    """A batch whose Fisher product can be computed for any direction."""

    def products(
        self, parameters: Sequence[Tensor], x: Sequence[Tensor], *, graph: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return, for each likelihood, outputs z with their graph, ``t = J x`` and ``H t``."""


class BatchFisher:
    """The operator ``x → (xᵀ F̂ x, F̂ x)`` of a step's batches, priors and processes included.

    A batch that cannot be run again does not raise here, because other processes take part in the
    exchanges that follow: :attr:`failure` keeps the error, and the results are 0.

    Args:
        sources: the batches of this process.
        groups: the parameter groups.
        communicator: the processes that train together.

    Attributes:
        parameters: the trainable parameters; x has a tensor for each.
        failure: why a batch could not be run again, if one could not.
    """

    def __init__(
        self, sources: Sequence[FisherSource], groups: Sequence[Group], communicator: Communicator
    ) -> None:
        self.sources = sources
        self.communicator = communicator
        self.parameters = trainable(groups)
        self.failure: CannotReplayError | None = None
        self._priors = [g.prior for g in groups for p in g.params if p.requires_grad]

    def quadratic(self, x: Sequence[Tensor]) -> Tensor:
        """Return ``xᵀ F̂ x``, of this process's batches; its mean over processes is that of all."""
        return self._run(x, with_product=False)[0]

    def product(self, x: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return ``xᵀ F̂ x`` as :meth:`quadratic` does, and ``F̂ x`` of all processes."""
        quadratic, product = self._run(x, with_product=True)
        pieces = zip(self.communicator.mean_of_tensors(product), self._priors, x, strict=True)
        return quadratic, [piece + prior * a if prior else piece for piece, prior, a in pieces]

    def _run(self, x: Sequence[Tensor], *, with_product: bool) -> tuple[Tensor, list[Tensor]]:
        quadratic = self._prior(x)
        product = [torch.zeros_like(p) for p in self.parameters] if with_product else []
        try:
            with self.communicator.unwrapped():
                for source in self.sources:
                    terms = source.products(self.parameters, x, graph=with_product)
                    for _, t, Ht in terms:
                        quadratic = quadratic + (t * Ht).sum()
                    if with_product:
                        outputs, cotangents = [z for z, _, _ in terms], [Ht for _, _, Ht in terms]
                        pulled = self.communicator.pull_back(outputs, self.parameters, cotangents)
                        product = [a + b for a, b in zip(product, pulled, strict=True)]
        except CannotReplayError as error:
            self.failure = error
        return quadratic, product

    def _prior(self, x: Sequence[Tensor]) -> Tensor:
        """Return ``Σ λ ‖x‖²``."""
        weighted = [(prior, a) for prior, a in zip(self._priors, x, strict=True) if prior]
        return sum(
            (prior * self.communicator.dot([a], [a]) for prior, a in weighted),
            torch.zeros((), device=self.communicator.device),
        )


def trainable(groups: Sequence[Group]) -> list[Tensor]:
    """Return all parameters that carry tangents, in order."""
    return [p for group in groups for p in group.params if p.requires_grad]
