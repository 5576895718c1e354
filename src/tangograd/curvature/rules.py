"""γ rules: how the rate γ of the velocity is chosen.

The update of v is stochastic gradient descent with rate γ on ``F v = g``. It converges in mean
square when ``E Â² ≼ R² E Â`` and ``γ ≤ 1/R²`` (Theorem 5 of the paper), where Â is the estimate of
the Fisher matrix. For an outer product ``Â = g̃g̃ᵀ``, each of these is such an R², all in the metric
of the preconditioner, ``‖g̃‖² = g̃ᵀCg̃``:

=====================  ======================  ====================================================
rule                   γ                       valid when
=====================  ======================  ====================================================
:class:`RunningMax`    ``1 / max ‖g̃‖²``        pseudo-gradients are bounded; always safe for those
                                               seen so far, the current one included
:class:`Kurtosis`      ``1 / (κ E‖g̃‖²)``       the kurtosis of g̃ is at most κ in every direction;
                                               κ = 3 for a Gaussian g̃ (``"gaussian"``)
:class:`FourthMoment`  ``λ / E‖g̃‖⁴``           λ is at most the smallest eigenvalue of F
=====================  ======================  ====================================================

A mean over B samples is less noisy than one outer product, for which these rules are safe but slow.
:class:`~tangograd.curvature.auto.Auto` (``"auto"``, the default) measures the batch's own F̂
instead. :func:`tangograd.reference.necessary_gamma` is the bound past which no R² exists.

All rules move slowly: a γ that follows the current batch would bias the fixed point of v.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from tangograd.curvature.losses import LossHistory

#: The rate at which means forget, once they have seen more pseudo-gradients than its inverse.
FORGETTING = 1e-3


class GammaRule(ABC):
    """Base class of the γ rules. Groups that share a rule share its γ."""

    #: Names of the attributes, plain numbers, that a saved run needs to continue.
    statistics: ClassVar[tuple[str, ...]]
    #: Whether :meth:`update` needs the norm of a pseudo-gradient in every step.
    needs_pseudo_gradients: ClassVar[bool] = True
    #: Whether the rule was requested by name, and is shared by all groups that use this name.
    by_name = False

    def __init__(self) -> None:
        self.losses = LossHistory()

    def update(self, squared_norms: Sequence[float], weights: Sequence[float]) -> None:  # noqa: B027
        """Take the ``‖g̃‖²`` (in the metric of C) of pseudo-gradients, with relative weights."""

    @property
    @abstractmethod
    def value(self) -> float:
        """γ; 0 while every pseudo-gradient seen was zero."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value:.3g})"

    def describe(self) -> str:
        """Return how γ was chosen, in words."""
        return f"by {type(self).__name__}"

    def state_dict(self) -> dict[str, float]:
        """Return the statistics as plain numbers."""
        own = {name: getattr(self, name) for name in self.statistics}
        return own | {f"loss_{name}": x for name, x in self.losses.state_dict().items()}

    def from_state(self, state: Mapping[str, Any]) -> Self:
        """Return a rule of the same kind with saved statistics.

        Raises:
            ValueError: the statistics are not those of this kind of rule.
        """
        expected = self.state_dict().keys()
        if not isinstance(state, Mapping) or set(state) != expected:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"the saved gamma has statistics {found}, but this optimizer's "
                f"{type(self).__name__} has {sorted(expected)}: construct it with the same "
                "kind of gamma before loading"
            )
        for name, number in state.items():
            if not isinstance(number, int | float):
                raise ValueError(
                    f"the saved statistic {name!r} of gamma is not a number but a "
                    f"{type(number).__name__}"
                )
        loaded = copy.copy(self)
        vars(loaded).update({name: state[name] for name in self.statistics})
        losses = {name: state[f"loss_{name}"] for name in self.losses.state_dict()}
        loaded.losses = LossHistory(**losses)
        return loaded


class Constant(GammaRule):
    """A γ given as a number.

    >>> Constant(0.5).value
    0.5
    """

    statistics = ("value",)
    needs_pseudo_gradients = False
    value = 0.0

    def __init__(self, value: float) -> None:
        if not 0 < value < math.inf:
            raise ValueError(f"gamma must be positive and finite; got {value}")
        super().__init__()
        self.value = float(value)

    def describe(self) -> str:
        """Return that γ is a given number."""
        return "given"


class RunningMax(GammaRule):
    """``γ = 1 / max ‖g̃‖²`` over all pseudo-gradients seen: the paper's safe choice.

    The optimizer shows it one sample of each batch, another one in every step.

    Example:
        >>> rule = RunningMax()
        >>> rule.update([2.0, 4.0], [1.0, 1.0])
        >>> rule.value
        0.25
    """

    statistics = ("largest",)

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0.0

    def update(self, squared_norms: Sequence[float], weights: Sequence[float]) -> None:
        """Keep the largest norm."""
        del weights
        self.largest = max(self.largest, *squared_norms)

    @property
    def value(self) -> float:
        """``1 / max ‖g̃‖²``."""
        return inverse(self.largest)


class Kurtosis(GammaRule):
    """``γ = 1 / (κ E‖g̃‖²)``: safe when g̃ has kurtosis at most κ in every direction.

    Args:
        kappa: κ; 3 for a Gaussian g̃ of any covariance.

    Example:
        >>> rule = Kurtosis(kappa=5.0)
        >>> rule.update([1.0, 3.0], [1.0, 1.0])
        >>> rule.value
        0.1
    """

    statistics = ("mean_squared_norm", "weight")

    def __init__(self, kappa: float = 3.0) -> None:
        if not 1 <= kappa < math.inf:
            raise ValueError(f"a kurtosis is at least 1; got kappa={kappa}")
        super().__init__()
        self.kappa = kappa
        self.mean_squared_norm = 0.0
        self.weight = 0.0

    def update(self, squared_norms: Sequence[float], weights: Sequence[float]) -> None:
        """Update the mean of ``‖g̃‖²``."""
        self.mean_squared_norm, self.weight = updated_mean(
            self.mean_squared_norm, self.weight, squared_norms, weights
        )

    @property
    def value(self) -> float:
        """``1 / (κ E‖g̃‖²)``."""
        return inverse(self.kappa * self.mean_squared_norm)


class FourthMoment(GammaRule):
    """``γ = λ / E‖g̃‖⁴``: safe for any g̃ when λ is at most the smallest eigenvalue of F.

    Args:
        smallest_eigenvalue: λ, of ``C^½ F C^½`` when there is a preconditioner.

    Example:
        >>> rule = FourthMoment(smallest_eigenvalue=0.5)
        >>> rule.update([1.0, 3.0], [1.0, 1.0])
        >>> rule.value
        0.1
    """

    statistics = ("mean_fourth_power", "weight")

    def __init__(self, smallest_eigenvalue: float) -> None:
        if not 0 < smallest_eigenvalue < math.inf:
            raise ValueError(
                f"smallest_eigenvalue must be positive and finite; got {smallest_eigenvalue}"
            )
        super().__init__()
        self.smallest_eigenvalue = smallest_eigenvalue
        self.mean_fourth_power = 0.0
        self.weight = 0.0

    def update(self, squared_norms: Sequence[float], weights: Sequence[float]) -> None:
        """Update the mean of ``‖g̃‖⁴``."""
        self.mean_fourth_power, self.weight = updated_mean(
            self.mean_fourth_power, self.weight, [x * x for x in squared_norms], weights
        )

    @property
    def value(self) -> float:
        """``λ / E‖g̃‖⁴``."""
        return self.smallest_eigenvalue * inverse(self.mean_fourth_power)


def inverse(x: float) -> float:
    """Return ``1/x``, and 0 for 0.

    >>> inverse(4.0), inverse(0.0)
    (0.25, 0.0)
    """
    return 1 / x if x > 0 else 0.0


def updated_mean(
    mean: float, weight: float, values: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Update a weighted mean with new values: first a plain mean, then an exponential one.

    >>> updated_mean(1.0, 1.0, [3.0], [1.0])
    (2.0, 2.0)
    """
    new = sum(weights)
    if new == 0:
        return mean, weight
    weight = min(weight + new, 1 / FORGETTING)
    rate = min(new / weight, 1.0)
    average = sum(w * x for w, x in zip(weights, values, strict=True)) / new
    return mean + rate * (average - mean), weight
