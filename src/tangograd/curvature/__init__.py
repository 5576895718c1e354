"""Curvature: what batches show of the Fisher matrix, and the step sizes that follow from it.

In each step:

1. :func:`~tangograd.curvature.refresh.request` says what the next block is to record;
2. :func:`~tangograd.curvature.observation.observe` measures a block when it closes, with device
   work only;
3. :meth:`~tangograd.curvature.signals.Signals.read` reads all numbers of the step at once;
4. :func:`~tangograd.curvature.planning.plan` turns them into γ, limits and the guard's decisions,
   in plain Python floats;
5. :func:`~tangograd.curvature.refresh.refresh`, on refresh steps, lets C learn and measures γ.

The γ rules are in :mod:`~tangograd.curvature.rules` and :mod:`~tangograd.curvature.auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tangograd.curvature.auto import Auto
from tangograd.curvature.rules import Constant, FourthMoment, GammaRule, Kurtosis, RunningMax

__all__ = [
    "RULES",
    "Auto",
    "Constant",
    "FourthMoment",
    "GammaRule",
    "Kurtosis",
    "RunningMax",
    "resolve",
]

RULES: dict[str, Callable[[], GammaRule]] = {
    "auto": Auto,
    "max": RunningMax,
    "gaussian": Kurtosis,
}


def resolve(gamma: float | str | GammaRule, used: Sequence[GammaRule] = ()) -> GammaRule:
    """Return the rule for a user's ``gamma=``: a number, a name of :data:`RULES`, or a rule.

    Args:
        gamma: the option.
        used: the rules of other groups. A name means the same rule, with one γ, in all groups.

    >>> resolve(0.5).value
    0.5
    """
    if isinstance(gamma, GammaRule):
        return gamma
    if isinstance(gamma, str) and gamma in RULES:
        rule = RULES[gamma]()
        rule.by_name = True
        return next((x for x in used if type(x) is type(rule) and x.by_name), rule)
    if isinstance(gamma, str) or not isinstance(gamma, int | float):
        raise ValueError(
            f"gamma is a positive number, a rule, or one of {sorted(RULES)}; got {gamma!r}"
        )
    return Constant(gamma)
