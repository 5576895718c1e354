"""What a forward pass with tangents tells of the curvature: the raw material of γ and diagnostics.

A γ rule wants norms of per-sample pseudo-gradients ``g̃_i = J_iᵀ s̃_i`` in the metric of C, and the
necessary bound wants products of pairs of them. They are pulled back one at a time through the
graph of the forward pass, for one or two samples of the batch: exact for any architecture, any
preconditioner and samples that interact (batch normalisation), at the cost of a backward pass each.
Over the steps, the positions sweep the batch evenly.

Alternatives: norms from layers' activations and their cotangents give the whole batch for about
the same cost, but only for linear and convolution layers, and in no metric but a diagonal one;
``vmap`` over per-sample gradients needs to re-run the model sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tangograd.preconditioners import Preconditioner
from tangograd.tangents import Term
from tangograd.vectors import dot

Group = tuple[list[Tensor], Preconditioner]  # the parameters of a group, and its C

_GOLDEN, _SILVER = (5**0.5 - 1) / 2, 2**0.5 - 1  # multiples of both fill the unit square evenly


@dataclass
class Measurement:
    """What one `tangents` block leaves for the step.

    Attributes:
        curvature: ``ṽᵀ F̂ ṽ`` with ``ṽ = (1-δt_{k-1}) v``.
        weight: the samples' total weight.
        samples: the number of independent terms in F̂, where pseudo-gradients were drawn.
        grams: ``(groups, n, n)``, the products ``g̃_iᵀ C g̃_j`` of n pseudo-gradients.
        weights: ``(n,)``, their relative weights.
        sample: ``(n,)``, which of the looked-at samples each belongs to.
        after_step: callbacks of the likelihoods.
    """

    curvature: float
    weight: float
    samples: float
    grams: Tensor
    weights: Tensor
    sample: Tensor
    after_step: list[Callable[[], None]]


def measure(
    terms: Sequence[Term], groups: Sequence[Group], *, step: int, samples: int
) -> Measurement:
    """Measure a batch, with pseudo-gradients of ``samples`` of its samples: 0, 1 or 2.

    With two, all products are there that the necessary bound needs. Several terms in one block are
    independent outputs of one model: their curvatures and their pseudo-gradients add up.
    """
    outputs = [term.outputs for term in terms]
    if not all(z.requires_grad for z in outputs):
        samples = 0
    rows = min(1 if term.rank_one else len(term.weights) for term in terms)
    copies = 2 if samples == 2 and all(term.closed_form for term in terms) else 1
    samples = min(samples, rows)
    plan = [(i, copy) for i in range(samples) for copy in range(1 if i else copies)]
    parameters = [p for group, _ in groups for p in group]
    positions = _positions(step, rows)
    pulled, weights = [], []
    for i, copy in plan:
        drawn = [term.draw(positions[i], copy) for term in terms]
        pulled.append(pull_back(outputs, parameters, [cotangent for cotangent, _ in drawn]))
        weights.append(drawn[0][1])
    return Measurement(
        curvature=sum(float(term.curvature) for term in terms),
        weight=terms[0].total_weight,
        samples=_independent_terms(terms[0]) if samples else math.nan,
        grams=_grams(pulled, groups),
        weights=torch.tensor(weights, dtype=torch.float64),
        sample=torch.tensor([i for i, _ in plan]),
        after_step=[term.after_step for term in terms],
    )


def _independent_terms(term: Term) -> float:
    """``1 / Σ w_i²``: B for equal weights, 1 for a rank-one F̂."""
    return 1.0 if term.rank_one else 1 / float(torch.dot(term.weights, term.weights))


def _positions(step: int, rows: int) -> tuple[float, float]:
    """Two places in [0, 1), at different rows; over the steps they sweep all rows, and all pairs.

    >>> [[int(10 * position) for position in _positions(step, 10)] for step in range(4)]
    [[0, 1], [6, 0], [2, 0], [8, 1]]
    """
    first = step * _GOLDEN % 1
    apart = 1 + int(step * _SILVER % 1 * (rows - 1))
    return first, (first + apart / rows) % 1


def pull_back(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """``Jᵀ u``: the outputs' cotangents, pulled back to the parameters (0 for frozen ones)."""
    wanted = [p for p in parameters if p.requires_grad]
    found = torch.autograd.grad(outputs, wanted, cotangents, retain_graph=True, allow_unused=True)
    gradients = dict(zip(map(id, wanted), found, strict=True))
    pulled = [gradients.get(id(p)) for p in parameters]
    return [
        torch.zeros_like(p) if g is None else g for g, p in zip(pulled, parameters, strict=True)
    ]


def _grams(pulled: Sequence[list[Tensor]], groups: Sequence[Group]) -> Tensor:
    """``g̃_iᵀ C g̃_j`` for each group."""
    n = len(pulled)
    grams = torch.zeros(len(groups), n, n, dtype=torch.float64)
    start = 0
    for k, (parameters, C) in enumerate(groups):
        pieces = [g[start : start + len(parameters)] for g in pulled]
        start += len(parameters)
        for j, right in enumerate(pieces):
            preconditioned = C.apply(right)
            for i in range(j + 1):
                grams[k, i, j] = grams[k, j, i] = float(dot(pieces[i], preconditioned))
    return grams
