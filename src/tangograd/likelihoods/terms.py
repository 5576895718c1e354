"""The contribution of a likelihood to TANGO's bracket, in output space."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tangograd.estimates import ESTIMATES, rows
from tangograd.likelihoods.batch import Batch
from tangograd.session import Term

if TYPE_CHECKING:
    from tangograd.likelihoods.base import Likelihood


def build_term(likelihood: Likelihood, batch: Batch, t: Tensor) -> Term:
    """Return the term of a batch, without reading a number from the device.

    Args:
        likelihood: the family and its estimate of the Fisher matrix.
        batch: with the graph of its outputs.
        t: the tangents of its outputs, of the same shape.
    """
    plain = batch._replace(z=batch.z.detach())
    sums = likelihood._observe(plain)  # first, because it may set parameters of the family
    losses = likelihood._sample_losses(plain)
    loss = torch.dot(batch.weights, losses)
    z, y, w = plain.z, batch.y, batch.fisher_weights
    estimate, m = ESTIMATES[likelihood.fisher], batch.element_weights
    family = likelihood if m is None else _ElementWeighted(likelihood, m.sqrt())
    s = family.score(z, y)
    pseudo = _PseudoScores(lambda: estimate.pseudo_scores(family, z, s))

    def product(t: Tensor) -> Tensor:
        return estimate.product(family, z, t, lambda: pseudo.scores, w)

    def midpoint_product(t: Tensor, prior: float = 0.0) -> Tensor:
        return rows(w, z) * family.midpoint_product(z, y, t, prior=prior)

    def midpoint_sample(prior: float = 0.0) -> Tensor:
        return rows(w.sqrt(), z) * family.midpoint_sample(z, y, prior=prior)

    return Term(
        outputs=batch.z,
        tangents=t,
        gradient=rows(batch.weights, s) * (s if m is None else m.sqrt() * s),
        product=product(t),
        weights=batch.weights,
        fisher_weights=w,
        total_weight=batch.total_weight,
        rank_one=estimate.rank_one,
        closed_form=estimate.closed_form,
        draw=lambda position: estimate.factor(pseudo.scores, w, position),
        again=product,
        midpoint_product=midpoint_product,
        midpoint_sample=midpoint_sample,
        rows=batch.flatten,
        loss=loss,
        invalid=batch.invalid | ~loss.isfinite(),
        error=_Error(batch, losses),
        after_step=likelihood._after_step,
        sums=sums,
    )


class _PseudoScores:
    """Scores of pseudo-samples, drawn on first use and then the same for all products."""

    def __init__(self, draw: Callable[[], Tensor]) -> None:
        self._draw = draw

    @cached_property
    def scores(self) -> Tensor:
        """s̃, shaped like the outputs."""
        return self._draw()


class _Error:
    """What is wrong with a term; it keeps one row of the outputs.

    Args:
        batch: with the outputs.
        losses: of the rows.
    """

    def __init__(self, batch: Batch, losses: Tensor) -> None:
        self._invalid, self._explain = batch.invalid, batch.explain
        self._row = (~losses.isfinite()).int().argmax()
        self._outputs = batch.z.detach().index_select(0, self._row.reshape(1))
        self._loss = torch.dot(batch.weights, losses)

    def __call__(self) -> Exception:
        """Return the error; this reads from the device."""
        if bool(self._invalid):
            return ValueError(self._explain())
        reason = (
            "the outputs are finite but too large for the log-loss"
            if bool(self._outputs.isfinite().all())
            else f"the outputs are not finite, first at row {int(self._row)}"
        )
        return FloatingPointError(
            f"the loss is {float(self._loss)}: {reason}. The step is not taken and the state is "
            "untouched; check the inputs, or lower lr."
        )


class _ElementWeighted:
    """A family with weights m of the elements: scores ``√m s``, products ``√m H √m t``."""

    def __init__(self, family: Likelihood, root: Tensor) -> None:
        self.family = family
        self.root = root

    def score(self, z: Tensor, y: Tensor) -> Tensor:
        return self.root * self.family.score(z, y)

    def sample(self, z: Tensor) -> Tensor:
        return self.family.sample(z)

    def fisher_product(self, z: Tensor, t: Tensor) -> Tensor:
        return self.root * self.family.fisher_product(z, self.root * t)

    def midpoint_product(self, z: Tensor, y: Tensor, t: Tensor, *, prior: float) -> Tensor:
        return self.root * self.family.midpoint_product(z, y, self.root * t, prior=prior)

    def midpoint_sample(self, z: Tensor, y: Tensor, *, prior: float) -> Tensor:
        return self.root * self.family.midpoint_sample(z, y, prior=prior)
