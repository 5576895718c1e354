"""γ: the rate at which the velocity approaches the natural gradient.

The update of v is a stochastic gradient descent with rate γ on ``F v = g``. It converges in mean
square when ``E Â² ≼ R² E Â`` and ``γ ≤ 1/R²`` (Theorem 5 of the paper), where Â is the estimate of
the Fisher matrix. For an outer product ``Â = g̃g̃ᵀ`` each of these is an R², all in the metric of
the preconditioner, ``‖g̃‖² = g̃ᵀCg̃``:

=====================  ======================  ====================================================
rule                   γ                       holds when
=====================  ======================  ====================================================
:class:`RunningMax`    ``1 / max ‖g̃‖²``        pseudo-gradients are bounded; always safe for those
                                               seen so far (the current one included)
:class:`Kurtosis`      ``1 / (κ E‖g̃‖²)``       the kurtosis of g̃ is at most κ in every direction;
                                               κ = 3 for a Gaussian g̃ (``"gaussian"``)
:class:`FourthMoment`  ``λ / E‖g̃‖⁴``           λ is at most the smallest eigenvalue of F
=====================  ======================  ====================================================

A mean over B samples has less noise than one outer product, and these rules stay safe for it: they
are slow on networks. :class:`Auto` (``"auto"``, the default) measures the batch's own F̂ instead.
:class:`NecessaryBound` is the other side: past it no R² can hold.

A γ that follows the current batch closely would bias the fixed point of v: these rules move slowly.
"""

from __future__ import annotations

from collections.abc import Callable

from tangograd.gamma.auto import Auto
from tangograd.gamma.base import FORGETTING, GammaRule
from tangograd.gamma.bound import NecessaryBound
from tangograd.gamma.rules import Constant, FourthMoment, Kurtosis, RunningMax

__all__ = [
    "FORGETTING",
    "RULES",
    "Auto",
    "Constant",
    "FourthMoment",
    "GammaRule",
    "Kurtosis",
    "NecessaryBound",
    "RunningMax",
    "resolve",
]

RULES: dict[str, Callable[[], GammaRule]] = {
    "auto": Auto,
    "max": RunningMax,
    "gaussian": Kurtosis,
}


def resolve(gamma: float | str | GammaRule) -> GammaRule:
    """The rule that a user's ``gamma=`` means: a number, a name of :data:`RULES`, or a rule.

    >>> resolve(0.5).value
    0.5
    """
    if isinstance(gamma, GammaRule):
        return gamma
    if isinstance(gamma, str):
        if gamma not in RULES:
            raise ValueError(
                f"gamma is a positive number, a rule, or one of {sorted(RULES)}; got {gamma!r}"
            )
        rule = RULES[gamma]()
        rule.by_name = True
        return rule
    if not isinstance(gamma, int | float):
        raise ValueError(f"gamma is a positive number, a rule, or one of {sorted(RULES)}")
    return Constant(gamma)
