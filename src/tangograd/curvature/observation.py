"""Measurements of one `tangents` block, made when it closes, without a host read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tangograd.adjoint import check_term
from tangograd.curvature.pseudo_gradients import Pulled, collect
from tangograd.curvature.refresh import Request
from tangograd.engines.mode import LayerCall
from tangograd.recording import Recording
from tangograd.session import Share, TrainingPass, activated

_GOLDEN = (5**0.5 - 1) / 2  # its multiples fill the unit interval evenly


class SampleGradient(NamedTuple):
    """The pseudo-gradient of one sample, for the γ rules that are defined by its norm.

    Attributes:
        gradients: for each term, ``g̃_t`` in the order of the block's parameters.
        weight: of the sample, relative to the mean weight.
    """

    gradients: list[list[Tensor]]
    weight: Tensor


@dataclass
class Observation:
    """What one `tangents` block leaves for the step, one entry a term in each list.

    The terms of a block enter the step's loss with factors that are known only after backward.
    All numbers are 0-d tensors on the device.

    Attributes:
        parameters: those that carried a tangent.
        factors: the factors of the terms in the step's loss, filled by backward.
        losses: the losses.
        curvatures: ``ṽᵀ F̂_t ṽ`` with ``ṽ = (1-δt_{k-1}) v``.
        slopes: ``⟨g_t, ṽ⟩``.
        concentration: ``Σ w_i²`` of the first term, 1 over the number of samples that count.
        invalid: whether a term is invalid.
        errors: for each term, what returns its error, and whether it is invalid.
        callbacks: ``(after_step, sums)`` of the likelihoods that learn.
        pulled: pseudo-gradients, on refresh steps.
        sample: the pseudo-gradient of one sample, for the rules that need it.
        recording: how to run the block again, on refresh steps.
    """

    parameters: Sequence[Tensor]
    factors: list[Share]
    losses: list[Tensor]
    curvatures: list[Tensor]
    slopes: list[Tensor]
    concentration: Tensor
    invalid: Tensor
    errors: list[tuple[Callable[[], Exception], Tensor]]
    callbacks: list[tuple[Callable[[Tensor], None], Tensor]]
    pulled: list[Pulled]
    sample: SampleGradient | None
    recording: Recording | None

    def error(self) -> Exception:
        """Return the error of an invalid block; this reads from the device."""
        return next(error() for error, bad in self.errors if bool(bad))

    @property
    def used(self) -> bool:
        """Whether the loss of the block has been differentiated."""
        return any(share.used for share in self.factors)

    @property
    def factor(self) -> Tensor:
        """The weight of the block in the step's loss."""
        return torch.stack([share.factor for share in self.factors]).amax()

    def weighted(self, numbers: Sequence[Tensor]) -> Tensor:
        """Return ``Σ_t factor_t · number_t``, for numbers of the terms."""
        return sum(
            (share.factor * x for share, x in zip(self.factors, numbers, strict=True)),
            torch.zeros(()),
        )

    def sample_gradient(self) -> list[Tensor]:
        """Return ``Σ_t √factor_t g̃_t``, the pseudo-gradient of a sample of the block."""
        assert self.sample is not None
        roots = [share.factor.sqrt() for share in self.factors]
        return [
            sum((root * g for root, g in zip(roots, gradients, strict=True)), torch.zeros(()))
            for gradients in zip(*self.sample.gradients, strict=True)
        ]


def observe(
    pass_: TrainingPass, layers: Sequence[LayerCall], request: Request, recording: Recording
) -> Observation:
    """Return the measurements of a block, whose graph must still be there.

    Args:
        pass_: the forward pass of the block.
        layers: the calls of layers in it, if they were requested.
        request: what is to be measured.
        recording: how to run the block again.
    """
    terms = pass_.terms
    with activated(pass_):  # likelihoods draw pseudo-samples of their process
        pulled = collect(pass_, layers, request.needs, request.draws, check=request.check)
        sample = _sample_gradient(pass_, request) if request.sample else None
    return Observation(
        parameters=pass_.parameters,
        factors=[term.share for term in terms],
        losses=[term.loss for term in terms],
        curvatures=[_dot(term.tangents, term.product) for term in terms],
        slopes=[_dot(term.tangents, term.gradient) for term in terms],
        concentration=torch.dot(terms[0].fisher_weights, terms[0].fisher_weights),
        invalid=torch.stack([term.invalid for term in terms]).any(),
        errors=[(term.error, term.invalid) for term in terms],
        callbacks=[(term.after_step, term.sums) for term in terms if term.sums is not None],
        pulled=pulled,
        sample=sample,
        recording=recording if request.replay else None,
    )


def _sample_gradient(pass_: TrainingPass, request: Request) -> SampleGradient | None:
    terms = pass_.terms
    if not all(term.outputs.requires_grad for term in terms):
        return None
    gradients, weight = [], torch.ones(())
    for term in terms:
        cotangent, weight = term.draw(request.step * _GOLDEN % 1)
        gradient = pass_.communicator.pull_back([term.outputs], pass_.parameters, [cotangent])
        if request.check:
            check_term(pass_, term, cotangent, gradient)
        gradients.append(gradient)
    return SampleGradient(gradients, weight)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.reshape(-1), b.reshape(-1))
