"""How far a velocity is from the damped natural gradient: exactness that can be measured.

At frozen θ the mean of TANGO's velocity solves ``(1-δt) F v + (δt/γ) C⁻¹ v = g``. The relative
residual of this equation over data tells how exact the velocity is now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tangograd.curvature.operator import BatchFisher
from tangograd.engines import Engine, Site
from tangograd.likelihoods import Likelihood
from tangograd.parallel import Communicator
from tangograd.recording import ForwardContext
from tangograd.session import Term, TrainingPass, open_pass
from tangograd.state import Group
from tangograd.vectors import dot


class BatchOfData(NamedTuple):
    """A batch whose Fisher product can be computed: a source of :class:`BatchFisher`.

    Attributes:
        model: maps inputs to outputs.
        likelihood: of the targets.
        data: ``(inputs, targets)`` or ``(inputs, targets, weights)``.
        engine: computes the tangents of outputs.
        site: tells the engine of the model.
        terms: filled by :meth:`products` with the term of the batch.
    """

    model: Callable[[Any], Tensor]
    likelihood: Likelihood
    data: Sequence[Any]
    engine: Engine
    site: Site
    terms: list[Term]

    def products(
        self, parameters: Sequence[Tensor], x: Sequence[Tensor], *, graph: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return outputs z with their graph, ``t = J x`` and ``H t``."""
        del graph
        inputs, *targets = self.data
        pass_ = TrainingPass(parameters, x)
        with torch.enable_grad(), open_pass(self.engine, self.site, pass_, parameters, x):
            self.likelihood(self.model(inputs), *targets)
        (term,) = pass_.terms
        self.terms.append(term)
        return [(term.outputs, term.tangents, term.product)]


@torch.no_grad()
def relative_residual(
    groups: Sequence[Group],
    engine: Engine,
    communicator: Communicator,
    model: Callable[[Any], Tensor],
    likelihood: Likelihood,
    batches: Iterable[Sequence[Any]],
) -> float:
    """Return ``‖g - (1-δt) F v - (δt/γ) C⁻¹ v‖ / ‖g‖`` in the metric of C, over all batches.

    Args:
        groups: the parameter groups.
        engine: computes the tangents of outputs.
        communicator: of the model.
        model: maps inputs to outputs; the buffers of a module are restored.
        likelihood: used through a copy, so that its random state does not move.
        batches: tuples ``(inputs, targets)`` or ``(inputs, targets, weights)``.
    """
    likelihood = deepcopy(likelihood)
    site = Site(model if isinstance(model, torch.nn.Module) else None)
    trained = [[group.params[i] for i in group.trainable] for group in groups]
    v = [[group.v[i] for i in group.trainable] for group in groups]
    x = [group.keep * y for group, own in zip(groups, v, strict=True) for y in own]
    g = [torch.zeros_like(y) for y in x]
    Fx = [torch.zeros_like(y) for y in x]
    W = 0.0
    with ForwardContext(model).restored(), communicator.unwrapped():
        for data in batches:
            batch = BatchOfData(model, likelihood, data, engine, site, [])
            fisher = BatchFisher([batch], groups, communicator)
            _, product = fisher.product(x)
            (term,) = batch.terms
            weight = float(term.total_weight)
            W += weight
            gradient = communicator.pull_back([term.outputs], fisher.parameters, [term.gradient])
            for total, pieces in ((g, gradient), (Fx, product)):
                for sum_, piece in zip(total, pieces, strict=True):
                    sum_.add_(piece, alpha=weight)
    if W == 0:
        raise ValueError("the residual needs at least one batch")
    residual, size = 0.0, 0.0
    sums = zip(g, Fx, strict=True)
    for group, params in zip(groups, trained, strict=True):
        damping = (1 - group.keep) / group.rule.value
        C_inverse_v = [group.C.apply_inverse(group.v)[i] for i in group.trainable]
        gradients, residuals = [], []
        for p, C_inverse_w in zip(params, C_inverse_v, strict=True):
            gradient_sum, product_sum = next(sums)
            gradients.append(gradient_sum / W + group.prior * p)
            residuals.append(gradients[-1] - product_sum / W - damping * C_inverse_w)
        residual += _squared_norm(group, residuals)
        size += _squared_norm(group, gradients)
    return math.sqrt(residual / size) if size > 0 else math.inf


def _squared_norm(group: Group, x: Sequence[Tensor]) -> float:
    """Return ``xᵀ C x``, for x with a tensor for each trainable parameter of the group."""
    whole = [torch.zeros_like(p) for p in group.params]
    for i, piece in zip(group.trainable, x, strict=True):
        whole[i] = piece
    return dot(whole, group.C.apply(whole))
