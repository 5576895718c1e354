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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tangograd.adjoint import check_term
from tangograd.distributed import ALONE, Peers, here
from tangograd.gamma import GammaRule, NecessaryBound
from tangograd.preconditioners import Preconditioner
from tangograd.recording import Recording
from tangograd.session import Share, Term, TrainingPass
from tangograd.statistics import Pulled
from tangograd.vectors import dot

Group = tuple[list[Tensor], Preconditioner]  # the parameters of a group, and its C

_GOLDEN, _SILVER = (5**0.5 - 1) / 2, 2**0.5 - 1  # multiples of both fill the unit square evenly


_NOTHING = torch.zeros(0, dtype=torch.float64)  # where no pseudo-gradients were drawn


@dataclass
class Measurement:
    """What one `tangents` block leaves for the step; T terms, n pseudo-gradients of each.

    Several terms in one block are independent outputs of one model: with factors ``f_t`` in the
    loss, their curvatures add up to ``Σ f_t c_t`` and their pseudo-gradients to ``Σ √f_t g̃_t``. The
    factors are known only after the backward pass, so products are kept for all pairs.

    Attributes:
        shares: the factors.
        losses: of the terms.
        curvatures: ``ṽᵀ F̂_t ṽ`` with ``ṽ = (1-δt_{k-1}) v``.
        slopes: ``⟨g_t, ṽ⟩``.
        grams: ``(groups, T, n, T, n)``, the products ``g̃ᵀ C g̃'``.
        weights: ``(n,)``, relative weights of the samples drawn.
        sample: ``(n,)``, which of the samples drawn each pseudo-gradient belongs to.
        samples: the number of independent terms in F̂, where pseudo-gradients were drawn.
        for_bound: all products are there that the necessary bound needs.
        observations: ``(callback, observation)`` of each likelihood.
        weight: ``1/Σ w_i²``, the number of samples that count.
        pulled: what preconditioners learn from, on refresh steps.
        replay: how to run the block again, on refresh steps.
    """

    shares: list[Share]
    losses: list[float]
    curvatures: list[float]
    slopes: list[float]
    grams: Tensor
    weights: Tensor
    sample: Tensor
    samples: float
    for_bound: bool
    observations: list[tuple[Callable[[list[Any]], None], Any]]
    weight: float
    pulled: list[Pulled]
    replay: Recording | None

    @property
    def used(self) -> bool:
        """Whether the block's loss has been differentiated."""
        return any(share.factor for share in self.shares)

    @property
    def factor(self) -> float:
        """The block's weight in the step's loss."""
        return max(share.factor for share in self.shares)

    @property
    def curvature(self) -> float:
        """``ṽᵀ F̂ ṽ`` of the block, as it went into the gradient."""
        return sum(s.factor * c for s, c in zip(self.shares, self.curvatures, strict=True))

    @property
    def slope(self) -> float:
        """``⟨g, ṽ⟩`` of the block, as it went into the gradient."""
        return sum(s.factor * c for s, c in zip(self.shares, self.slopes, strict=True))

    @property
    def loss(self) -> float:
        """The block's part of the step's loss."""
        return sum(s.factor * x for s, x in zip(self.shares, self.losses, strict=True))

    def gram(self) -> Tensor:
        """``(groups, n, n)``, the products of the block's pseudo-gradients ``Σ √f_t g̃_t``."""
        root = torch.tensor([share.factor for share in self.shares], dtype=torch.float64).sqrt()
        return torch.einsum("t,gtiuj,u->gij", root, self.grams, root)


def measure(
    session: TrainingPass,
    groups: Sequence[Group],
    *,
    step: int,
    samples: int,
    pulled: list[Pulled],
    replay: Recording | None,
) -> Measurement:
    """Measure a batch, with pseudo-gradients of ``samples`` of its samples: 0, 1 or 2."""
    terms = session.terms
    if not all(term.outputs.requires_grad for term in terms):
        samples = 0
    rows = min(1 if term.rank_one else len(term.weights) for term in terms)
    closed_form = all(term.closed_form for term in terms)
    for_bound = samples == 2 or (samples == 1 and rows == 1 and not closed_form)
    copies = 2 if samples == 2 and closed_form else 1
    plan = [(i, copy) for i in range(min(samples, rows)) for copy in range(1 if i else copies)]
    positions = _positions(step, rows)
    gradients: list[list[Tensor]] = []
    weights = []
    for term in terms:
        for i, copy in plan:
            cotangent, weight = term.draw(positions[i], copy)
            gradient = here().pull_back([term.outputs], session.parameters, [cotangent])
            if samples == 2:
                check_term(session, term, cotangent, gradient)
            gradients.append(gradient)
            weights.append(weight)
    shape = (len(groups), len(terms), len(plan), len(terms), len(plan))
    return Measurement(
        shares=[term.share for term in terms],
        losses=[float(term.loss) for term in terms],
        curvatures=[dot([term.tangents], [term.product]) for term in terms],
        slopes=[dot([term.tangents], [term.gradient]) for term in terms],
        grams=_grams(gradients, session.parameters, groups).reshape(shape) if plan else _NOTHING,
        weights=torch.tensor(weights[: len(plan)], dtype=torch.float64) if plan else _NOTHING,
        sample=torch.tensor([i for i, _ in plan]) if plan else _NOTHING,
        samples=_independent_terms(terms[0]) if plan else math.nan,
        for_bound=for_bound,
        observations=[(term.after_step, term.observation) for term in terms],
        weight=1 / float(torch.dot(terms[0].weights, terms[0].weights)),
        pulled=pulled,
        replay=replay,
    )


def unscale(blocks: Sequence[Measurement], scale: float) -> None:
    """Take the scale of a GradScaler out of the factors, as it has been taken out of gradients."""
    for share in {id(share): share for block in blocks for share in block.shares}.values():
        share.factor /= scale


def learn(
    blocks: Sequence[Measurement],
    rules: Sequence[GammaRule],
    bound: NecessaryBound,
    peers: Peers = ALONE,
) -> None:
    """Show the γ rules, one a group, and the necessary bound what a step's blocks have measured.

    The pseudo-gradients shown are those of the step's whole loss ``Σ f ℓ``: with all factors 1 for
    one batch, and with shares of 1 for micro-batches, they are just g̃. Several processes show each
    other theirs where a rule wants them; with γ a number, each has the bound to itself.
    """
    blocks = [block for block in blocks if len(block.weights) and block.factor > 0]
    others = peers.size
    if any(rule.needs_pseudo_gradients for rule in rules):
        everyone = peers.gather([_as_part_of(block, peers) for block in blocks])
        blocks, others = [block for theirs in everyone for block in theirs], 1
    total = sum(block.factor for block in blocks)
    for block in blocks:
        share = block.factor / total
        gram, weights = block.gram() / share, block.weights * share
        squared = gram.diagonal(dim1=1, dim2=2)
        for rule in {id(rule): rule for rule in rules}.values():
            shared = torch.tensor([other is rule for other in rules])
            rule.update(squared[shared].sum(0), weights)
        if block.for_bound:
            values = torch.tensor([rule.value for rule in rules], dtype=torch.float64)
            samples = others * total**2 / sum(b.factor**2 / b.samples for b in blocks)
            bound.update((values[:, None, None] * gram).sum(0), weights, block.sample, samples)


def _as_part_of(block: Measurement, peers: Peers) -> Measurement:
    """The block with its share in the mean over processes, without what one alone can use."""
    shares = [Share(share.factor / peers.size) for share in block.shares]
    return replace(block, shares=shares, observations=[], pulled=[], replay=None)


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


def _grams(
    pulled: Sequence[list[Tensor]], parameters: Sequence[Tensor], groups: Sequence[Group]
) -> Tensor:
    """``g̃_iᵀ C g̃_j`` for each group; frozen parameters have gradient 0."""
    n = len(pulled)
    grams = torch.zeros(len(groups), n, n, dtype=torch.float64)
    position = {id(p): i for i, p in enumerate(parameters)}
    for k, (group, C) in enumerate(groups):
        places = [position.get(id(p)) for p in group]
        pieces = [
            [torch.zeros_like(p) if i is None else g[i] for i, p in zip(places, group, strict=True)]
            for g in pulled
        ]
        for j, right in enumerate(pieces):
            preconditioned = C.apply(right)
            for i in range(j + 1):
                grams[k, i, j] = grams[k, j, i] = dot(pieces[i], preconditioned)
    return grams
