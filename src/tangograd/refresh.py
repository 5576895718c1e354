"""Refresh steps: preconditioners learn, and γ "auto" is measured on the batch run again.

They come at every twentieth step, more often at the very beginning, and right after the guard of
:class:`tangograd.gamma.Auto` stepped in. What is measured is what the chosen γ and C use, and
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tangograd.distributed import ALONE, Peers
from tangograd.gamma import Auto, GammaRule
from tangograd.groups import Group, autos
from tangograd.measurement import Measurement
from tangograd.preconditioners import Preconditioner
from tangograd.session import CannotReplayError
from tangograd.statistics import combine, probe
from tangograd.vectors import dot

EVERY = 20
#: Refreshes in the first steps, where F changes fast: about a third of the steps so far apart.
EARLY = (0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30, 37, 45)
#: What a refresh finds acts at once in so many first steps, and from the next step on later.
LITTLE_KNOWN = 10
#: Power iterations in the first step. Later ones come by turns with line searches; past the first
#: steps C learns with them.
FIRST_POWER = 5


class _Batch(NamedTuple):
    """What a step was taken with.

    Attributes:
        blocks: of this process.
        groups: all groups.
        peers: the processes that run their blocks again together.
    """

    blocks: Sequence[Measurement]
    groups: Sequence[Group]
    peers: Peers


def is_due(step: int, rules: Sequence[GammaRule], Cs: Iterable[Preconditioner]) -> bool:
    """Whether this step is a refresh step."""
    asking = autos(rules)
    if not asking and not any(C.needs for C in Cs):
        return False
    return _number(step) is not None or any(rule.due for rule in asking)


def needs(step: int, rules: Sequence[GammaRule], Cs: Iterable[Preconditioner]) -> frozenset[str]:
    """What γ and C want pulled back on a refresh step."""
    asking = autos(rules)
    if _searches_only(step, asking):
        return frozenset()
    wanted: frozenset[str] = frozenset().union(*(C.needs for C in Cs))
    return wanted | {"probe"} if asking else wanted


def _number(step: int) -> int | None:
    """Which refresh this step is, from 0; ``None`` for one that is none."""
    if step <= EARLY[-1]:
        return EARLY.index(step) if step in EARLY else None
    since = step // EVERY - EARLY[-1] // EVERY - 1
    return len(EARLY) + since if step % EVERY == 0 else None


def _searches_only(step: int, asking: Sequence[Auto]) -> bool:
    """Whether this refresh is for a line search and nothing else: every second one is."""
    if not asking or step <= EARLY[-1] or any(rule.due for rule in asking):
        return False
    return (_number(step) or 0) % 2 == 1


def refresh(
    blocks: Sequence[Measurement],
    groups: Sequence[Group],
    state: Mapping[Tensor, dict[str, Any]],
    *,
    step: int,
    dt: float,
    stopped: Container[int],
    peers: Peers = ALONE,
) -> CannotReplayError | None:
    """On a refresh step, let C learn and measure "auto" γ.

    Args:
        blocks: of this step.
        groups: all groups.
        state: the optimizer's; the power iteration keeps its vector there, as ``leading``.
        step: the number of this step.
        dt: δt.
        stopped: identities of rules whose guard stepped in: the next step measures.
        peers: the processes that refresh together.

    Returns:
        Why a batch could not be run again, if it could not.
    """
    pulled = [piece for block in blocks for piece in block.pulled]
    for group in groups:
        if pulled and group.C.needs:
            group.C.update(combine(pulled, group.params, peers))
    parameters, failure = trainable(groups), None
    batch = _Batch(blocks, groups, peers)
    for rule in autos([group.rule for group in groups]):
        if id(rule) in stopped:
            continue
        own = {
            id(p) for group in groups if group.rule is rule for p in group.params if p.requires_grad
        }
        known = all("leading" in state[p] for p in parameters if id(p) in own)
        leading = (
            [state[p]["leading"] if id(p) in own else torch.zeros_like(p) for p in parameters]
            if known
            else None
        )
        try:
            leading = _measure_gamma(rule, batch, leading, step, dt)
        except CannotReplayError as error:
            if pulled:
                rule.unmeasured(safe_curvature(rule, batch))
            failure = error
            continue
        for p, x in zip(parameters, leading or [], strict=False):
            if id(p) in own:
                state[p]["leading"] = x
    return failure


def _measure_gamma(
    rule: Auto,
    batch: _Batch,
    leading: list[Tensor] | None,
    step: int,
    dt: float,
) -> list[Tensor] | None:
    """Run the batch again: for a line search, or for a power iteration.

    They come by turns; both in the first step and where the rule asks for a refresh.

    Args:
        rule: learns from it.
        batch: of this step; groups with this rule are searched along.
        leading: the power iteration's vector, over all trainable parameters.
        step: the number of this step.
        dt: δt.

    Returns:
        The next vector of the power iteration.

    Raises:
        CannotReplayError: a block cannot be run again.
    """
    blocks, groups, peers = batch
    starting = leading is None
    if leading is None:
        leading = _precondition(rule, groups, _probe(batch))
    bracket = [
        b
        for group in groups
        for p, b in zip(group.params, group.bracket, strict=True)
        if p.requires_grad
    ]
    direction = _precondition(rule, groups, bracket)
    (descent,) = peers.mean([dot(bracket, direction)])
    if not 0 < descent < math.inf:
        return None if starting else leading
    both, number = starting or rule.due, _number(step) or 0
    along = cap = None
    if both or number % 2:
        along = _fisher(batch, direction)[0]
    iterations = FIRST_POWER if starting else int(both or number % 2 == 0)
    for _ in range(iterations if leading else 0):
        first, Fw = _fisher(batch, leading, with_product=True)
        CFw = _precondition(rule, groups, Fw)
        (second,) = peers.mean([dot(Fw, CFw)])
        if not (0 < first < math.inf and 0 < second < math.inf):
            break
        cap = second / first
        leading = [x / math.sqrt(second) for x in CFw]
    if along is None or 0 <= along < math.inf:
        loss, first, second = peers.mean(
            [
                sum(block.loss for block in blocks),
                sum(block.factor for block in blocks),
                sum(block.factor**2 / block.weight for block in blocks),
            ]
        )
        samples = peers.size * first**2 / second
        rule.measured(
            None if along is None else along / descent,
            cap,
            descent,
            loss,
            _noise(rule, batch, samples, dt),
            samples=samples,
            early=step <= EARLY[-1],
        )
    return None if starting and cap is None else leading  # if F̂ was 0, it starts anew


def _noise(
    rule: Auto,
    batch: _Batch,
    samples: float,
    dt: float,
) -> float | None:
    """The loss that noise costs for each unit of γ: ``tr C F̂ / 4B`` at most, if it is known.

    Near an optimum, a direction of curvature λ (in the metric of C) carries an excess loss of
    ``δt/4B · γλ/(γλ + δt)``, B being the samples in a batch. Summed up this is at most
    ``γ tr C F / 4B``, and at most ``δt d / 4B``: nothing to mind when δt is small.
    """
    if not any(block.pulled for block in batch.blocks):
        return None
    elements = sum(p.numel() for p in trainable(batch.groups))
    if dt * elements / (4 * samples) < rule.SHARE:
        return 0.0
    return safe_curvature(rule, batch) / (4 * samples)


def safe_curvature(rule: Auto, batch: _Batch) -> float:
    """``hᵀ C h``: about the trace of ``C F̂``, above its largest eigenvalue."""
    h = _probe(batch)
    (found,) = batch.peers.mean([dot(h, _precondition(rule, batch.groups, h))])
    return found


def trainable(groups: Sequence[Group]) -> list[Tensor]:
    """All parameters that carry tangents, in order."""
    return [p for group in groups for p in group.params if p.requires_grad]


def _probe(batch: _Batch) -> list[Tensor]:
    """A random vector with second moments F̂; 0 if none was drawn."""
    parameters = trainable(batch.groups)
    pulled = [piece for block in batch.blocks for piece in block.pulled]
    h = probe(pulled, parameters, batch.peers)
    return h or [torch.zeros_like(p) for p in parameters]


def _fisher(
    batch: _Batch, x: list[Tensor], *, with_product: bool = False
) -> tuple[float, list[Tensor]]:
    """``xᵀ F̂ x``, and ``F̂ x`` when it is wanted, with the prior in F̂.

    Raises:
        CannotReplayError: a block, of any process, cannot be run again.
    """
    groups, peers = batch.groups, batch.peers
    priors = [group.prior for group in groups for p in group.params if p.requires_grad]
    failure: CannotReplayError | None = None
    quadratic = 0.0
    product: list[Tensor] = []
    try:
        with peers.inside():
            quadratic, product = _own_fisher(batch, x, with_product=with_product)
    except CannotReplayError as error:
        failure = error
    failed, quadratic = peers.mean([float(failure is not None), quadratic])
    if failed:
        raise failure or CannotReplayError("another process could not")
    quadratic += sum(prior * dot([a], [a]) for prior, a in zip(priors, x, strict=True) if prior)
    pieces = zip(peers.mean_of_tensors(product), priors, x, strict=False)
    return quadratic, [piece + prior * a if prior else piece for piece, prior, a in pieces]


def _own_fisher(
    batch: _Batch, x: list[Tensor], *, with_product: bool
) -> tuple[float, list[Tensor]]:
    """The same, of this process's data alone, without the prior."""
    parameters = trainable(batch.groups)
    quadratic, product = 0.0, [torch.zeros_like(p) for p in parameters] if with_product else []
    for block in batch.blocks:
        outputs, cotangents = [], []
        if block.replay is None:
            raise CannotReplayError("it was not recorded")
        for term, z, t in block.replay.run(parameters, x, graph=with_product):
            with torch.no_grad():
                Ht = term.again(t) * term.share.factor
                quadratic += float((t * Ht).sum())
            outputs.append(z)
            cotangents.append(Ht)
        if with_product:
            pulled = batch.peers.pull_back(outputs, parameters, cotangents)
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
