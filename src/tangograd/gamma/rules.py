"""A given γ, and the paper's rules."""

from __future__ import annotations

import math

from torch import Tensor

from tangograd.gamma.base import GammaRule, average, inverse


class Constant(GammaRule):
    """A γ given as a number."""

    statistics = ("value",)
    needs_pseudo_gradients = False
    value = 0.0

    def __init__(self, value: float) -> None:
        if not 0 < value < math.inf:
            raise ValueError(f"gamma must be positive and finite; got {value}")
        self.value = float(value)

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Stay."""


class RunningMax(GammaRule):
    """``γ = 1 / max ‖g̃‖²`` over all pseudo-gradients seen: the paper's safe choice.

    The optimizer shows it one sample of each batch, another one in every step.

    Example:
        >>> import torch
        >>> rule = RunningMax()
        >>> rule.update(torch.tensor([2.0, 4.0]), torch.ones(2))
        >>> rule.value
        0.25
    """

    statistics = ("largest",)

    def __init__(self) -> None:
        self.largest = 0.0

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Keep the largest."""
        del weights
        self.largest = max(self.largest, float(squared_norms.max()))

    @property
    def value(self) -> float:
        """``1 / max ‖g̃‖²``."""
        return inverse(self.largest)


class Kurtosis(GammaRule):
    """``γ = 1 / (κ E‖g̃‖²)``: safe when g̃ has kurtosis at most κ in every direction.

    Args:
        kappa: κ; 3 for a Gaussian g̃ of any covariance.

    Example:
        >>> import torch
        >>> rule = Kurtosis(kappa=5.0)
        >>> rule.update(torch.tensor([1.0, 3.0]), torch.ones(2))
        >>> rule.value
        0.1
    """

    statistics = ("mean_squared_norm", "weight")

    def __init__(self, kappa: float = 3.0) -> None:
        if not 1 <= kappa < math.inf:
            raise ValueError(f"a kurtosis is at least 1; got kappa={kappa}")
        self.kappa = kappa
        self.mean_squared_norm = 0.0
        self.weight = 0.0

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Average."""
        self.mean_squared_norm, self.weight = average(
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
        >>> import torch
        >>> rule = FourthMoment(smallest_eigenvalue=0.5)
        >>> rule.update(torch.tensor([1.0, 3.0]), torch.ones(2))
        >>> rule.value
        0.1
    """

    statistics = ("mean_fourth_power", "weight")

    def __init__(self, smallest_eigenvalue: float) -> None:
        if not 0 < smallest_eigenvalue < math.inf:
            raise ValueError(
                f"smallest_eigenvalue must be positive and finite; got {smallest_eigenvalue}"
            )
        self.smallest_eigenvalue = smallest_eigenvalue
        self.mean_fourth_power = 0.0
        self.weight = 0.0

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Average."""
        self.mean_fourth_power, self.weight = average(
            self.mean_fourth_power, self.weight, squared_norms.square(), weights
        )

    @property
    def value(self) -> float:
        """``λ / E‖g̃‖⁴``."""
        return self.smallest_eigenvalue * inverse(self.mean_fourth_power)
