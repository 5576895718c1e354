"""What a γ rule is, and the averages that rules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

#: Means forget at this rate, once they have seen more than its inverse of pseudo-gradients.
FORGETTING = 1e-3


class GammaRule(ABC):
    """Sets γ from the pseudo-gradients seen so far. Groups that share a rule share its γ."""

    #: The attributes, plain numbers, that a saved run needs to go on.
    statistics: ClassVar[tuple[str, ...]]
    #: Whether :meth:`update` is to see a pseudo-gradient in every step.
    needs_pseudo_gradients: ClassVar[bool] = True
    #: Whether it was asked for by name, and so belongs to all groups that say this name.
    by_name = False

    @abstractmethod
    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """See the ``‖g̃‖²`` of some pseudo-gradients (C metric), with relative weights."""

    @property
    @abstractmethod
    def value(self) -> float:
        """γ now; 0 as long as every pseudo-gradient seen was zero."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value:.3g})"

    def state_dict(self) -> dict[str, float]:
        """The statistics, as plain numbers."""
        return {name: getattr(self, name) for name in self.statistics}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over saved statistics."""
        for name in self.statistics:
            setattr(self, name, state[name])


def inverse(x: float) -> float:
    """``1/x``, and 0 for 0."""
    return 1 / x if x > 0 else 0.0


def average(mean: float, weight: float, values: Tensor, weights: Tensor) -> tuple[float, float]:
    """Move a weighted mean towards new values: a plain mean first, then a slowly forgetting one."""
    new = float(weights.sum())
    if new == 0:
        return mean, weight
    weight = min(weight + new, 1 / FORGETTING)
    rate = min(new / weight, 1.0)
    return mean + rate * (float((weights * values).sum()) / new - mean), weight
