"""The report of an optimizer: what its diagnostics mean, in words."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tangograd.curvature import Auto, GammaRule
from tangograd.session import CannotReplayError


class Warner:
    """Warnings of an optimizer, each given once."""

    def __init__(self) -> None:
        self._unstable: deque[bool] = deque(maxlen=10)
        self._given: set[str] = set()

    def unstable(self, gamma: float, quotient: float) -> None:
        """Warn when a given γ was too large for the curvature along v in three of ten steps."""
        self._unstable.append(gamma * quotient > 2)
        if self._unstable.count(True) >= 3:
            self._warn(
                "unstable",
                f"gamma times the curvature along the velocity is {gamma * quotient:.2g}, "
                "and was above 2 in three of the last ten steps: the velocity grows without limit. "
                'Use gamma="auto", or lower gamma.',
            )

    def no_replay(self, error: CannotReplayError) -> None:
        """Warn that the batch could not be replayed."""
        self._warn(
            "no replay",
            f'gamma="auto" could not replay the batch ({error}) and falls back to the curvature '
            "along the velocity alone, which adapts more slowly. Pass the model to "
            "`tangents(model)` with nothing between it and the likelihood, or give the whole loss "
            "as a function: `loss = optimizer.evaluate(model, lambda: likelihood(f(x), y))`.",
        )

    def _warn(self, key: str, message: str) -> None:
        if key not in self._given:
            self._given.add(key)
            warnings.warn(message, RuntimeWarning, stacklevel=6)


def numbers(
    groups: Sequence[Mapping[str, Any]], rules: Sequence[GammaRule], quotient: float
) -> dict[str, float]:
    """Return the diagnostics of the last step by name (:meth:`tangograd.TANGO.diagnostics`)."""
    known: dict[str, float] = {}
    for k, (group, rule) in enumerate(zip(groups, rules, strict=True)):
        suffix = f"_{k}" if k else ""
        gamma = rule.value if group["steps"] else math.nan
        known[f"gamma{suffix}"] = gamma
        known[f"damping{suffix}"] = group["previous_lr"] / gamma if gamma else math.inf
    known["fisher_quotient"] = quotient
    autos = {id(rule): rule.guards for rule in rules if isinstance(rule, Auto)}
    return known | ({"guards": sum(autos.values())} if autos else {})


def describe(rules: Sequence[GammaRule], known: dict[str, float], steps: int) -> str:
    """Return what the diagnostics of an optimizer mean, in a few lines.

    Args:
        rules: the γ rules of the groups.
        known: ``optimizer.diagnostics()``.
        steps: the number of steps taken.

    Example:
        >>> from tangograd.curvature import Constant
        >>> known = {"gamma": 0.5, "damping": 0.2, "fisher_quotient": 5.0}
        >>> print(describe([Constant(0.5)], known, steps=10))
        after 10 steps: γ = 0.5, given
        damping δt/γ = 0.2; curvature along v (quotient) = 5
        - γ times the quotient is 2.5, and above 2 v grows without end: lower gamma
        - v is close to the natural gradient along its own direction
    """
    if not steps:
        return "no step was taken yet"
    lines = []
    for k, rule in enumerate(rules):
        if k and rule is rules[k - 1]:
            continue
        group = f" of group {k}" if k else ""
        gamma = known[f"gamma_{k}" if k else "gamma"]
        lines.append(f"γ{group} = {gamma:.3g}, {rule.describe()}")
    lines[0] = f"after {steps} steps: {lines[0]}"
    gamma, damping, quotient = known["gamma"], known["damping"], known["fisher_quotient"]
    lines.append(f"damping δt/γ = {damping:.3g}; curvature along v (quotient) = {quotient:.3g}")
    if math.isfinite(quotient):
        if gamma * quotient > 2 and not isinstance(rules[0], Auto):
            lines.append(
                f"- γ times the quotient is {gamma * quotient:.2g}, and above 2 v grows without "
                "end: lower gamma"
            )
        lines.append("- " + _damping(damping, quotient))
    losses = rules[0].losses
    if losses.is_above_start():
        lines.append(
            f"- the loss has risen since the start, from {losses.first:.3g} to {losses.mean:.3g} "
            "(means over about ten steps): check data and targets, or lower lr"
        )
    autos = [rule for rule in dict.fromkeys(rules) if isinstance(rule, Auto)]
    return "\n".join([*lines, *(f"- {_guards(rule, steps)}" for rule in autos)])


def _damping(damping: float, quotient: float) -> str:
    ratio = damping / quotient if quotient > 0 else math.inf
    if ratio < 1:
        return "v is close to the natural gradient along its own direction"
    if ratio < 10:
        return "damping and curvature are alike along v: between SGD and the natural gradient"
    return (
        f"damping is {ratio:.2g} times the curvature along v, so that v is nearer to "
        "(preconditioned) SGD with momentum: δt is large for this γ; a lower lr or a larger batch "
        "brings it closer to the natural gradient"
    )


def _guards(rule: Auto, steps: int) -> str:
    if not rule.guards:
        return "the guard has not stepped in"
    text = f"the guard stepped in {rule.guards} times in {steps} steps"
    if rule.guards > 0.1 * steps + 10:
        text += (
            ", which is often: F changes much from batch to batch (too small a batch) or within a "
            "step (too large an lr)"
        )
    if rule.trust < 1:
        text += f"; γ is at {rule.trust:.0%} and recovering"
    return text
