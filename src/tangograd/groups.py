"""What matters of a parameter group in one step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from tangograd.gamma import Auto, GammaRule
from tangograd.preconditioners import Preconditioner


class Group(NamedTuple):
    """A parameter group, and where it stands.

    Attributes:
        params: its parameters.
        v: the velocity, zero for frozen parameters.
        bracket: ``g - (1-δt_{k-1}) F̂ v`` with the prior in it, zero for frozen parameters.
        C: its preconditioner.
        rule: its γ rule.
        keep: ``1-δt_{k-1}``.
        moved: the length of the last step in θ, over v: ``δt_{k-1}`` (1 when accelerated).
        prior: λ of its Gaussian prior.
    """

    params: list[Tensor]
    v: list[Tensor]
    bracket: list[Tensor]
    C: Preconditioner
    rule: GammaRule
    keep: float
    moved: float
    prior: float

    @property
    def trainable(self) -> list[int]:
        """The positions of parameters that are not frozen."""
        return [i for i, p in enumerate(self.params) if p.requires_grad]


def autos(rules: Iterable[GammaRule]) -> list[Auto]:
    """The "auto" rules among these, each once."""
    return list({id(rule): rule for rule in rules if isinstance(rule, Auto)}.values())
