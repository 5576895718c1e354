"""Refresh steps: preconditioners learn, and γ "auto" is measured on the batch run again.

They come at every tenth step, more often at the very beginning, and right after the guard of
:class:`tangograd.gamma.Auto` stepped in. What is measured is what the chosen γ and C use, and
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tangograd.gamma import Auto, GammaRule
from tangograd.measurement import Measurement
from tangograd.preconditioners import Preconditioner
from tangograd.statistics import combine, probe
from tangograd.tangents import CannotReplayError, pull_back
from tangograd.vectors import dot

EVERY = 10
#: Further refreshes in the first steps, where F changes fast.
EARLY = (1, 2, 3, 4, 6, 8, 13, 16, 25, 35, 45)
POWER_EVERY, FIRST_POWER = 20, 5  # power iterations: these many steps apart; and in the first step


class Group(NamedTuple):
    """What matters of a parameter group.

    Attributes:
        params: its parameters.
        C: its preconditioner.
        rule: its γ rule.
        prior: λ of its Gaussian prior.
        bracket: ``g - (1-δt) F̂ v`` with the prior in it, zero for frozen parameters.
    """

    params: list[Tensor]
    C: Preconditioner
    rule: GammaRule
    prior: float
    bracket: list[Tensor]


def is_due(step: int, rules: Iterable[GammaRule], Cs: Iterable[Preconditioner]) -> bool:
    """Whether this step is a refresh step."""
    autos = [rule for rule in rules if isinstance(rule, Auto)]
    if not autos and not any(C.needs for C in Cs):
        return False
    return step % EVERY == 0 or step in EARLY or any(rule.due for rule in autos)


def learn_preconditioners(blocks: Sequence[Measurement], groups: Sequence[Group]) -> None:
    """Show each C what the blocks of a refresh step have collected."""
    pulled = [piece for block in blocks for piece in block.pulled]
    for group in groups:
        if pulled and group.C.needs:
            group.C.update(combine(pulled, group.params))


def measure_gamma(
    rule: Auto,
    blocks: Sequence[Measurement],
    groups: Sequence[Group],
    leading: list[Tensor] | None,
    step: int,
    dt: float,
) -> list[Tensor] | None:
    """Run the batch again for a line search, and for a power iteration when it is time.

    Args:
        rule: learns from it.
        blocks: of this step.
        groups: all groups; those with this rule are searched along.
        leading: the power iteration's vector, over all trainable parameters.
        step: the number of this step.
        dt: δt.

    Returns:
        The next vector of the power iteration.

    Raises:
        CannotReplayError: a block cannot be run again.
    """
    starting = leading is None
    if leading is None:
        leading = _precondition(rule, groups, _probe(blocks, groups))
    bracket = [
        b
        for group in groups
        for p, b in zip(group.params, group.bracket, strict=True)
        if p.requires_grad
    ]
    direction = _precondition(rule, groups, bracket)
    descent = dot(bracket, direction)
    if not 0 < descent < math.inf:
        return None if starting else leading
    along = _fisher(blocks, groups, direction)[0]
    cap = None
    iterations = (
        FIRST_POWER if starting else int(rule.due or step in EARLY or step % POWER_EVERY == 0)
    )
    for _ in range(iterations if leading else 0):
        first, Fw = _fisher(blocks, groups, leading, with_product=True)
        CFw = _precondition(rule, groups, Fw)
        second = dot(Fw, CFw)
        if not (0 < first < math.inf and 0 < second < math.inf):
            break
        cap = second / first
        leading = [x / math.sqrt(second) for x in CFw]
    if math.isfinite(along) and along >= 0:
        loss = sum(block.loss for block in blocks)
        noise = _noise(rule, blocks, groups, dt)
        rule.measured(along / descent, cap, descent, loss, noise, early=step <= EARLY[-1])
    return leading


def _noise(rule: Auto, blocks: Sequence[Measurement], groups: Sequence[Group], dt: float) -> float:
    """The loss that noise costs for each unit of γ: ``tr C F̂ / 4B`` at most.

    Near an optimum, a direction of curvature λ (in the metric of C) carries an excess loss of
    ``δt/4B · γλ/(γλ + δt)``, B being the samples in a batch. Summed up this is at most
    ``γ tr C F / 4B``, and at most ``δt d / 4B``: nothing to mind when δt is small.
    """
    samples = sum(b.factor for b in blocks) ** 2 / sum(b.factor**2 / b.weight for b in blocks)
    elements = sum(p.numel() for p in trainable(groups))
    if dt * elements / (4 * samples) < rule.SHARE:
        return 0.0
    return safe_curvature(rule, blocks, groups) / (4 * samples)


def safe_curvature(rule: Auto, blocks: Sequence[Measurement], groups: Sequence[Group]) -> float:
    """``hᵀ C h``: about the trace of ``C F̂``, above its largest eigenvalue."""
    h = _probe(blocks, groups)
    return dot(h, _precondition(rule, groups, h))


def trainable(groups: Sequence[Group]) -> list[Tensor]:
    """All parameters that carry tangents, in order."""
    return [p for group in groups for p in group.params if p.requires_grad]


def _probe(blocks: Sequence[Measurement], groups: Sequence[Group]) -> list[Tensor]:
    """A random vector with second moments F̂; 0 if none was drawn."""
    parameters = trainable(groups)
    h = probe([piece for block in blocks for piece in block.pulled], parameters)
    return h or [torch.zeros_like(p) for p in parameters]


def _fisher(
    blocks: Sequence[Measurement],
    groups: Sequence[Group],
    x: list[Tensor],
    *,
    with_product: bool = False,
) -> tuple[float, list[Tensor]]:
    """``xᵀ F̂ x``, and ``F̂ x`` when it is wanted, with the prior in F̂."""
    parameters = trainable(groups)
    priors = [group.prior for group in groups for p in group.params if p.requires_grad]
    quadratic = sum(prior * dot([a], [a]) for prior, a in zip(priors, x, strict=True) if prior)
    product = [prior * a for prior, a in zip(priors, x, strict=True)] if with_product else []
    for block in blocks:
        outputs, cotangents = [], []
        if block.replay is None:
            raise CannotReplayError("it was not recorded")
        for term, z, t in block.replay.run(parameters, x):
            with torch.no_grad():
                Ht = term.again(t) * term.share.factor
                quadratic += float((t * Ht).sum())
            outputs.append(z)
            cotangents.append(Ht)
        if with_product:
            pulled = pull_back(outputs, parameters, cotangents)
            product = [total + piece for total, piece in zip(product, pulled, strict=True)]
    return quadratic, product


def _precondition(rule: GammaRule, groups: Sequence[Group], x: list[Tensor]) -> list[Tensor]:
    """``C x`` in the groups of this rule, 0 in the others; over the trainable parameters."""
    found, pieces = [], iter(x)
    for group in groups:
        own = [next(pieces) if p.requires_grad else torch.zeros_like(p) for p in group.params]
        done = group.C.apply(own) if group.rule is rule else [torch.zeros_like(p) for p in own]
        found += [y for p, y in zip(group.params, done, strict=True) if p.requires_grad]
    return found
