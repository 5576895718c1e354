"""A batch as likelihoods see it: flat, checked, and with static shapes.

All samples stay in the batch, also those that do not count (weight 0, or a target that the family
ignores), so that shapes do not depend on data and nothing has to be read from the device. A row
that does not count has weight 0, and repeats the outputs and the target of the first row that
counts: a weight of 0 would not be enough, because ``0 · ∞`` and ``0 · NaN`` are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """A batch with one row for each of its B samples.

    Attributes:
        z: outputs, shape ``(B, *event)``, in at least single precision.
        y: targets as the formulas of the family use them, B rows.
        weights: weights of the loss, shape ``(B,)``; the mean loss is ``Σ w_i ℓ_i``.
        fisher_weights: weights of the Fisher matrix, shape ``(B,)``, not negative. They sum to 1,
            unless soft targets or label smoothing are combined with class weights.
        total_weight: the number W, a 0-d tensor, by which the weights have been divided.
        element_weights: ``m``, shaped like z, if the elements of a sample have weights of their
            own: the loss of a sample is then ``Σ_j m_j ℓ_j``. ``None`` means 1.
        invalid: 0-d bool tensor: whether a target that counts or a weight is outside its domain, or
            no sample counts. Losses and scores of an invalid batch mean nothing.
        explain: returns what is wrong with an invalid batch, with the position.
        flatten: brings a tensor of shape ``(*samples, *event)`` to the rows of this batch.
    """

    z: Tensor
    y: Tensor
    weights: Tensor
    fisher_weights: Tensor
    total_weight: Tensor
    element_weights: Tensor | None
    invalid: Tensor
    explain: Callable[[], str]
    flatten: Flatten

    def raise_if_invalid(self) -> None:
        """Raise a ValueError that says what is wrong. This reads one number from the device."""
        if bool(self.invalid):
            raise ValueError(self.explain())


@dataclass(frozen=True)
class Flatten:
    """The map from ``(*samples, *event)`` to ``(B, *event)``.

    Attributes:
        samples: the leading shape.
        counts: which samples count, shape ``(B,)``; ``None`` if all do.
        first: the first sample that counts, which rows that do not count repeat; shape ``(1,)``.
    """

    samples: torch.Size
    counts: Tensor | None
    first: Tensor | None

    @classmethod
    def of(cls, samples: torch.Size, counts: Tensor | None) -> Flatten:
        """Build the map from which samples count, shape ``(B,)``; ``None`` if all count."""
        if counts is None:
            return cls(samples, None, None)
        return cls(samples, counts, counts.int().argmax().reshape(1))

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the rows of a tensor, with its derivatives."""
        tensor = at_least_single(tensor)
        if len(self.samples) != 1:
            tensor = tensor.reshape(-1, *tensor.shape[len(self.samples) :])
        if self.counts is None or self.first is None:
            return tensor
        counts = self.counts.reshape(-1, *[1] * (tensor.dim() - 1))
        return tensor.where(counts, tensor.index_select(0, self.first))


class Encoded(NamedTuple):
    """What the options of a family (class weights, label smoothing) make of targets.

    The loss of a sample is ``m · ℓ(z, y)``, and its Fisher information ``m H(z)``.

    Attributes:
        y: targets as the formulas of the family use them.
        mass: m, shape ``(B,)``; ``None`` means 1.
        divisor: what a sample of weight 1 adds to the denominator of the mean, shape ``(B,)``;
            ``None`` means 1.
        element_weights: see :class:`Batch`.
    """

    y: Tensor
    mass: Tensor | None = None
    divisor: Tensor | None = None
    element_weights: Tensor | None = None


class Weights(NamedTuple):
    """Weights of the samples as the caller gave them, flat.

    Attributes:
        loss: shape ``(B,)``; ``None`` means 1.
        fisher: shape ``(B,)``; ``None`` means those of the loss.
    """

    loss: Tensor | None
    fisher: Tensor | None

    @classmethod
    def checked(
        cls, samples: torch.Size, weights: Tensor | None, fisher_weights: Tensor | None
    ) -> Weights:
        """Flatten weights that have one value for each sample.

        Raises:
            ValueError: they have another shape.
        """
        for name, given in (("weights", weights), ("fisher_weights", fisher_weights)):
            if given is not None and given.shape != samples:
                raise ValueError(
                    f"{name} need one value a sample, shape {tuple(samples)}; "
                    f"got {tuple(given.shape)}"
                )
        return cls(
            *(None if w is None else w.detach().reshape(-1) for w in (weights, fisher_weights))
        )

    def counts(self) -> Tensor | None:
        """Return which samples have a weight other than 0; ``None`` if all have weight 1."""
        if self.loss is None or self.fisher is None:
            return None if self.loss is None else self.loss != 0
        return (self.loss != 0) | (self.fisher != 0)

    def outside_domain(self) -> tuple[Tensor | None, str]:
        """Return whether any weight is outside its domain (``None``: no), and the rule."""
        if self.fisher is None:
            rule = (
                "weights must be finite and not negative; weights of any sign need fisher_weights, "
                "which are not negative"
            )
            return None if self.loss is None else _bad(self.loss), rule
        rule = "fisher_weights must be finite and not negative, and weights must be finite"
        bad = _bad(self.fisher)
        return bad if self.loss is None else bad | ~self.loss.isfinite().all(), rule

    def normalised(
        self, like: Tensor, counts: Tensor | None, encoded: Encoded
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights of the loss, the Fisher weights, and what both were divided by.

        Args:
            like: tells data type and device.
            counts: which samples count.
            encoded: the masses and counts of the targets.
        """
        uniform = like.new_ones(len(like)) if counts is None else counts.to(like.dtype)
        loss = uniform if self.loss is None else _where(counts, self.loss.to(like))
        fisher = loss if self.fisher is None else _where(counts, self.fisher.to(like))
        divisor = fisher if encoded.divisor is None else fisher * encoded.divisor
        W = divisor.sum(dtype=torch.float64)
        scale = W.reciprocal() if encoded.mass is None else encoded.mass / W
        weights = loss * scale
        return weights, weights if fisher is loss else fisher * scale, W


def _where(counts: Tensor | None, weights: Tensor) -> Tensor:
    """Return the weights of the samples that count, and 0 for the others."""
    return weights if counts is None else weights.where(counts, 0)


def _bad(weights: Tensor) -> Tensor:
    return ~((weights >= 0) & weights.isfinite()).all()


def at_least_single(tensor: Tensor) -> Tensor:
    """Convert 16-bit numbers to single precision, in which losses are computed, as by autocast."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def first_position(mask: Tensor) -> tuple[int, ...]:
    """Return the index of the first true element.

    >>> first_position(torch.tensor([[False, False], [True, True]]))
    (1, 0)
    """
    return tuple(int(i) for i in mask.nonzero()[0])
