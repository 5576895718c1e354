"""γ, limits and the guard: the decisions of one step, from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tangograd.curvature.auto import Auto
from tangograd.curvature.rules import GammaRule
from tangograd.curvature.signals import SampleNorms, Signals
from tangograd.state import Group, auto_rules


class Plan(NamedTuple):
    """One update: ``θ ← θ + undo·v``, ``v ← keep·v + γ C r``, ``θ ← θ - move·v``.

    Attributes:
        gamma: γ.
        keep: the factor of v, ``1-δt_{k-1}``.
        move: the length of the step over v, ``δt_k``.
        undo: the length of the last step over v, if the guard takes it back.
    """

    gamma: float
    keep: float
    move: float
    undo: float = 0.0

    def velocity_norm(self, norm: float, slope: float, descent: float) -> float:
        """Return ``vᵀ C⁻¹ v`` after the update.

        Args:
            norm: ``vᵀ C⁻¹ v`` before it.
            slope: ``⟨r, v⟩``.
            descent: ``⟨r, C r⟩``.

        Example: v = 2, C = 1 and r = 1.

            >>> Plan(gamma=0.5, keep=0.9, move=0.1).velocity_norm(4.0, 2.0, 1.0)
            5.29
        """
        keep, gamma = self.keep, self.gamma
        added = 2 * keep * gamma * slope + gamma**2 * descent if gamma else 0.0
        return max(keep**2 * norm + added, 0.0)


def update_rules(samples: Sequence[SampleNorms], rules: Sequence[GammaRule]) -> None:
    """Show the γ rules of the groups the norms of the step's pseudo-gradients.

    The norms are those of the step's whole loss ``Σ f ℓ``: a block with the share s of it counts
    with weight s and the norm over s.
    """
    samples = [sample for sample in samples if sample.factor > 0]
    total = sum(sample.factor for sample in samples)
    for sample in samples:
        share = sample.factor / total
        for rule in {id(rule): rule for rule in rules}.values():
            own = [x for other, x in zip(rules, sample.squared, strict=True) if other is rule]
            rule.update([sum(own) / share], [sample.weight * share])


def guard(signals: Signals, groups: Sequence[Group]) -> dict[int, float]:
    """Return, for each rule (by identity) whose guard steps in, the best multiple of v.

    That is the slope over the curvature along v, best on the quadratic model; negative past the
    optimum.
    """
    change = max((g.last_move / g.keep for g in groups if g.keep > 0), default=0.0)
    scale = max(abs(signals.loss), 1.0)
    along = max(change * abs(signals.slope), change**2 * signals.curvature) / scale
    best = signals.slope / signals.curvature if signals.curvature > 0 else -math.inf
    distinct = list({id(group.rule): group.rule for group in groups}.values())
    for rule in distinct:
        if not isinstance(rule, Auto):
            rule.losses.add(signals.loss)
    return {
        id(rule): best
        for rule in auto_rules(distinct)
        if rule.unstable(signals.quotient, signals.slope, signals.loss, along)
    }


def plan(
    signals: Signals,
    groups: Sequence[Group],
    descents: Sequence[float],
    stopped: dict[int, float],
) -> list[Plan]:
    """Return the update of each group.

    A step along ``Δ = C r`` promises to lower the loss by ``γ ⟨r, Δ⟩``. A batch that promises more
    than twice the loss (or 2, if more) is an outlier, and is taken with a smaller γ.

    Args:
        signals: of the step.
        groups: the parameter groups.
        descents: ``⟨r, C r⟩`` of each group.
        stopped: the rules whose guard stepped in: v is shortened to its best multiple, at most a
            half. Past the optimum that is 0, and the last step in θ is taken back.
    """
    plans = []
    scale = max(abs(signals.loss), 1.0)
    for group in groups:
        best = stopped.get(id(group.rule))
        if best is not None and best <= 0:
            plans.append(Plan(gamma=0.0, keep=0.0, move=0.0, undo=group.last_move))
        elif best is not None:
            plans.append(Plan(gamma=0.0, keep=min(best, 0.5), move=group.move))
        else:
            gamma = group.rule.value
            if isinstance(group.rule, Auto):
                promise = sum(
                    d for d, g in zip(descents, groups, strict=True) if g.rule is group.rule
                )
                if gamma * promise > Auto.PROMISE * scale:
                    gamma = Auto.PROMISE * scale / promise
            plans.append(Plan(gamma=gamma, keep=group.keep, move=group.move))
    return plans
