"""The numbers of one step, read from the device together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from tangograd.curvature.observation import Observation
from tangograd.parallel import Communicator
from tangograd.state import Group


class Signals(NamedTuple):
    """What one step shows for free, averaged over processes; ``ṽ = (1-δt_{k-1}) v``.

    Attributes:
        invalid: whether a likelihood had targets outside its domain, or a loss is not finite.
        loss: the step's loss.
        curvature: ``ṽᵀ F̂ ṽ``, the prior included.
        slope: ``⟨g, ṽ⟩``, the prior included.
        size: ``ṽᵀ C⁻¹ ṽ``.
        samples: the effective number of samples in the step.
        factor: the sum of the blocks' factors in the step's loss: 1 for their mean.
        factor_min: the smallest factor of a likelihood in the loss.
        slopes: ``⟨r, v⟩`` of each group.
        descents: ``⟨r, C r⟩`` of each group.
        velocity_norms: ``vᵀ C⁻¹ v`` of each group.
        bracket_of_outputs: ``⟨g - F̂ṽ, ṽ⟩`` without the prior, from the outputs and the factors
            that backward was called with.
        bracket_of_gradients: the same from ``p.grad``: it differs if gradients were changed.
    """

    invalid: bool
    loss: float
    curvature: float
    slope: float
    size: float
    samples: float
    factor: float
    factor_min: float
    slopes: list[float]
    descents: list[float]
    velocity_norms: list[float]
    bracket_of_outputs: float
    bracket_of_gradients: float

    @property
    def quotient(self) -> float:
        """The curvature along the velocity, ``vᵀF̂v / vᵀC⁻¹v``; NaN for v = 0."""
        return self.curvature / self.size if self.size > 0 else math.nan

    @property
    def finite(self) -> bool:
        """Whether all brackets are finite (and their squared norms)."""
        return all(map(math.isfinite, (*self.slopes, *self.descents)))


def read_signals(
    blocks: Sequence[Observation],
    groups: Sequence[Group],
    C_brackets: Sequence[list[torch.Tensor]],
    communicator: Communicator,
) -> Signals:
    """Reduce a step to numbers and read them, with one host synchronization."""
    factors = [block.factor for block in blocks]
    numbers = {
        "invalid": torch.stack([block.invalid for block in blocks]).any(),
        "loss": torch.stack([block.weighted(block.losses) for block in blocks]).sum(),
        "curvature": torch.stack([block.weighted(block.curvatures) for block in blocks]).sum(),
        "slope": torch.stack([block.weighted(block.slopes) for block in blocks]).sum(),
        "factor": torch.stack(factors).sum(),
        "factor squares": torch.stack(
            [f * f * block.concentration for f, block in zip(factors, blocks, strict=True)]
        ).sum(),
        "factor min": torch.stack([s.factor for b in blocks for s in b.factors]).amin(),
    }
    for k, (group, C_bracket) in enumerate(zip(groups, C_brackets, strict=True)):
        numbers[f"slope {k}"] = communicator.dot(group.bracket, group.v)
        numbers[f"descent {k}"] = communicator.dot(group.bracket, C_bracket)
        if math.isnan(group.velocity_norm):
            numbers[f"velocity norm {k}"] = communicator.dot(
                group.v, group.C.apply_inverse(group.v)
            )
        if group.prior:
            numbers[f"square {k}"] = communicator.dot(group.v, group.v)
            numbers[f"theta {k}"] = communicator.dot(
                [group.params[i] for i in group.trainable], [group.v[i] for i in group.trainable]
            )
    read = communicator.read(numbers)
    count = range(len(groups))
    norms = [read.get(f"velocity norm {k}", groups[k].velocity_norm) for k in count]
    slopes = [read[f"slope {k}"] for k in count]
    keeps = [group.keep for group in groups]
    brackets = sum(keep * slope for keep, slope in zip(keeps, slopes, strict=True))
    priors = [(k, group.prior, group.keep) for k, group in enumerate(groups) if group.prior]
    squares = sum(prior * keep**2 * read[f"square {k}"] for k, prior, keep in priors)
    curvature = read["curvature"] + squares
    return Signals(
        invalid=read["invalid"] > 0,
        loss=read["loss"],
        curvature=curvature,
        slope=curvature + brackets,
        size=sum(keep**2 * norm for keep, norm in zip(keeps, norms, strict=True)),
        samples=communicator.size * read["factor"] ** 2 / read["factor squares"]
        if read["factor squares"]
        else 0.0,
        factor=read["factor"],
        factor_min=read["factor min"],
        slopes=slopes,
        descents=[read[f"descent {k}"] for k in count],
        velocity_norms=norms,
        bracket_of_outputs=read["slope"] - read["curvature"],
        bracket_of_gradients=brackets
        + squares
        - sum(prior * keep * read[f"theta {k}"] for k, prior, keep in priors),
    )


class SampleNorms(NamedTuple):
    """Squared norms of the pseudo-gradient of one sample of a block, in the metric of C.

    Attributes:
        factor: the factor of the block in the step's loss.
        weight: the weight of the sample, relative to the mean weight.
        squared: ``g̃ᵀ C g̃`` of each group.
    """

    factor: float
    weight: float
    squared: list[float]


def read_sample_norms(
    blocks: Sequence[Observation], groups: Sequence[Group], communicator: Communicator
) -> list[SampleNorms]:
    """Read the norms for the rules that are defined by them, of the blocks of all processes."""
    numbers = []
    for block in blocks:
        if block.sample is None:
            continue
        gradient = dict(zip(map(id, block.parameters), block.sample_gradient(), strict=True))
        own = [[gradient.get(id(p), torch.zeros_like(p)) for p in g.params] for g in groups]
        # the step's loss is a mean over processes: factors are smaller there, and norms with them
        factor = block.factor / communicator.size
        squared = [
            communicator.dot(x, g.C.apply(x)) / communicator.size
            for x, g in zip(own, groups, strict=True)
        ]
        numbers.append(torch.stack([factor, block.sample.weight, *squared]))
    read = torch.stack(numbers).tolist() if numbers else []
    everyone = [row for rows in communicator.gather(read) for row in rows]
    return [SampleNorms(factor, weight, squared) for factor, weight, *squared in everyone]
