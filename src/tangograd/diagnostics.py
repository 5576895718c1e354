"""The report of an optimizer: what its diagnostics mean, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tangograd.curvature import Auto, GammaRule


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
