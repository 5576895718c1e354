"""How far a velocity is from the damped natural gradient: exactness that can be measured.

At frozen θ the mean of TANGO's velocity solves ``(1-δt) F v + (δt/γ) C⁻¹ v = g``. The relative
residual of this equation over data tells how exact the velocity is now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tangograd.adjoint import vjp
from tangograd.likelihoods import Likelihood
from tangograd.preconditioners import Preconditioner
from tangograd.recording import ForwardContext
from tangograd.session import TrainingPass
from tangograd.vectors import dot


class Equation(NamedTuple):
    """The equation of one parameter group.

    Attributes:
        params: θ.
        v: the velocity.
        C: the preconditioner.
        keep: ``1-δt``.
        damping: ``δt/γ``.
        prior: λ of the Gaussian prior.
    """

    params: list[Tensor]
    v: list[Tensor]
    C: Preconditioner
    keep: float
    damping: float
    prior: float


def relative_residual(
    equations: Sequence[Equation],
    open_block: Callable[[], AbstractContextManager[TrainingPass]],
    model: Callable[[Any], Tensor],
    likelihood: Likelihood,
    batches: Iterable[Sequence[Any]],
) -> float:
    """``‖g - (1-δt) F v - (δt/γ) C⁻¹ v‖ / ‖g‖`` in the metric of C, over all batches.

    Args:
        equations: one a parameter group.
        open_block: opens a forward pass whose tangents are ``(1-δt) v``.
        model: maps inputs to outputs; the buffers of a module are restored.
        likelihood: used through a copy, so that its random state does not move.
        batches: tuples ``(inputs, targets)`` or ``(inputs, targets, weights)``.
    """
    likelihood = deepcopy(likelihood)
    params = [p for equation in equations for p in equation.params]
    g = {p: torch.zeros_like(p) for p in params}
    Fv = {p: torch.zeros_like(p) for p in params}
    W = 0.0
    with ForwardContext(model).restored(), torch.enable_grad():
        for inputs, *targets in batches:
            with open_block() as forward:
                likelihood(model(inputs), *targets)
            (term,) = forward.terms
            weight = float(term.total_weight)
            W += weight
            for total, cotangent in ((g, term.gradient), (Fv, term.product)):
                pulled = vjp([term.outputs], forward.parameters, [cotangent])
                for p, piece in zip(forward.parameters, pulled, strict=True):
                    total[p].add_(piece, alpha=weight)
    if W == 0:
        raise ValueError("the residual needs at least one batch")
    residual, gradient = 0.0, 0.0
    with torch.no_grad():
        for equation in equations:
            rCr, gCg = _squared_norms(
                equation, [g[p] / W for p in equation.params], [Fv[p] / W for p in equation.params]
            )
            residual, gradient = residual + rCr, gradient + gCg
    return math.sqrt(residual / gradient) if gradient > 0 else math.inf


def _squared_norms(equation: Equation, g: list[Tensor], Fv: list[Tensor]) -> tuple[float, float]:
    """``rᵀCr`` and ``gᵀCg`` of one group; ``Fv`` already has the factor 1-δt."""
    params, v, C, keep, damping, prior = equation
    g = [x + prior * p if p.requires_grad else x for x, p in zip(g, params, strict=True)]
    r = [
        x - y - prior * keep * w - damping * z
        for x, y, w, z in zip(g, Fv, v, C.apply_inverse(v), strict=True)
    ]
    return dot(r, C.apply(r)), dot(g, C.apply(g))
