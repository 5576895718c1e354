"""The guard of γ "auto": what every step shows for free, and what to do when it looks wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tangograd.distributed import ALONE, Peers
from tangograd.groups import Group, autos
from tangograd.measurement import Measurement
from tangograd.shards import local
from tangograd.vectors import dot


def along_velocity(blocks: Sequence[Measurement], groups: Sequence[Group]) -> tuple[float, float]:
    """``ṽᵀF̂ṽ`` and ``ṽᵀC⁻¹ṽ`` with ``ṽ = (1-δt_{k-1}) v`` and the prior in F̂."""
    along, size = sum(block.curvature for block in blocks), 0.0
    for group in groups:
        size += group.keep**2 * group.C.squared_norm(group.v)
        if group.prior:
            along += group.prior * group.keep**2 * dot(group.v, group.v)
    return along, size


def look(
    blocks: Sequence[Measurement], groups: Sequence[Group], peers: Peers = ALONE
) -> tuple[float, dict[int, float]]:
    """The quotient ``vᵀF̂v / vᵀC⁻¹v``; and where the guard of a rule steps in, how far to go.

    That is the slope over the curvature along v, the multiple of v that is best on the quadratic
    model; negative past the optimum. The keys are the identities of the rules. Without a rule that
    has a guard, the quotient is that of this process's batch.
    """
    along, size = along_velocity(blocks, groups)
    rules = autos([group.rule for group in groups])
    if not rules:
        return along / size if size > 0 else math.nan, {}
    # ⟨g, ṽ⟩, g being the bracket plus F̂ṽ
    slope = sum(group.keep * dot(group.bracket, group.v) for group in groups)
    loss = sum(block.loss for block in blocks)
    along, size, slope, loss = peers.mean([along, size, slope, loss])
    quotient, slope = along / size if size > 0 else math.nan, along + slope
    moved = max((group.moved / group.keep for group in groups if group.keep > 0), default=0.0)
    scale = max(abs(loss), 1.0)
    change = max(moved * abs(slope), moved**2 * along) / scale  # along the last step, δt v
    unstable = [rule for rule in rules if rule.unstable(quotient, slope, change)]
    return quotient, {id(rule): slope / along if along > 0 else -math.inf for rule in unstable}


def limited_gammas(
    blocks: Sequence[Measurement],
    groups: Sequence[Group],
    C_brackets: Sequence[list[Tensor]],
    peers: Peers = ALONE,
) -> dict[int, float]:
    """γ of each rule, by its identity; for "auto", no batch may promise too much.

    A step along ``Δ = C r`` promises to lower the loss by ``γ ⟨r, Δ⟩``. More than twice the loss
    (or 2, if more) is not to be had: such an r is an outlier, and would throw v off.
    """
    gammas = {id(group.rule): group.rule.value for group in groups}
    loss = sum(block.loss for block in blocks)
    for rule in autos([group.rule for group in groups]):
        pairs = zip(groups, C_brackets, strict=True)
        promise = sum(dot(group.bracket, Cr) for group, Cr in pairs if group.rule is rule)
        scale, promise = peers.mean([loss, promise])
        scale = max(abs(scale), 1.0)
        if rule.value * promise > rule.PROMISE * scale:
            gammas[id(rule)] = rule.PROMISE * scale / promise
    return gammas


def shorten(group: Group, best: float, moving: float) -> None:
    """In place of a step, shorten v to its best multiple, at most a half.

    Past the optimum that is 0, and the last step in θ is taken back, which is exact. The bracket
    belongs to the v that is given up, so v takes no step.

    Args:
        group: its params and v are changed.
        best: the multiple of v that is best on the quadratic model.
        moving: the length of this step in θ, over v: δt (1 when accelerated).
    """
    if best <= 0:
        for i in group.trainable:
            local(group.params[i]).add_(local(group.v[i]), alpha=group.moved)
            group.v[i].zero_()
        return
    for i in group.trainable:
        local(group.v[i]).mul_(min(best, 0.5))
        local(group.params[i]).sub_(local(group.v[i]), alpha=moving)
