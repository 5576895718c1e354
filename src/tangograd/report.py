"""Diagnostics in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tangograd.gamma import Auto, GammaRule


def describe(rules: Sequence[GammaRule], known: dict[str, float], steps: int) -> str:
    """What the diagnostics of an optimizer mean, in a few lines.

    Args:
        rules: the γ rules of the groups.
        known: ``optimizer.diagnostics()``.
        steps: how many steps were taken.

    Example:
        >>> from tangograd.gamma import Constant
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
        how = _limit(rule) if isinstance(rule, Auto) else _name(rule)
        lines.append(f"γ{group} = {gamma:.3g}, {how}")
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
    lines += [f"- {text}" for rule in dict.fromkeys(rules) for text in _guards(rule, steps)]
    return "\n".join(lines)


def _name(rule: GammaRule) -> str:
    return "given" if not rule.needs_pseudo_gradients else f"by {type(rule).__name__}"


def _limit(rule: Auto) -> str:
    """Which of its limits sets γ."""
    if rule.blind:
        return "auto, following the quotient alone: the batch could not be run again"
    limits = {
        "set by the line search": rule.search,
        "capped by the largest curvature, noise of the batch included: larger batches allow more": (
            rule.cap / rule.MARGIN
        ),
        "capped by what noise may cost: larger batches, or a lower lr, allow more": rule.noise,
        "capped by the recent maximum of the quotient": rule.recent_quotient,
    }
    return "auto, " + max(limits, key=lambda name: limits[name])


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


def _guards(rule: GammaRule, steps: int) -> list[str]:
    if not isinstance(rule, Auto):
        return []
    if not rule.guards:
        return ["the guard has not stepped in"]
    text = f"the guard stepped in {rule.guards} times in {steps} steps"
    if rule.guards > 0.1 * steps + 10:
        text += (
            ", which is often: F changes much from batch to batch (too small a batch) or within a "
            "step (too large an lr)"
        )
    if rule.trust < 1:
        text += f"; γ is at {rule.trust:.0%} and recovering"
    return [text]
