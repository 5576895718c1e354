"""A diagonal C learned while training: inverse diagonal Fisher, and RMSProp."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tangograd.preconditioners.base import Preconditioner
from tangograd.shards import all_finite, like, local, over_shards
from tangograd.statistics import Statistics
from tangograd.vectors import moved

#: Averages forget at this rate a refresh, once they have seen more than its inverse of draws.
FORGETTING = 0.05
#: The floor of the curvatures, over their mean in a tensor, for tensors of so many elements.
FLOOR, LARGE = 4.0, 1000
#: Curvatures of so many units of rounding, over the largest mean of a tensor, are nothing but that.
ROUNDING = 10.0


class LearnedDiagonal(Preconditioner):
    """``C = 1 / max(c, 4 mean c)``, c being a curvature learned for each element.

    The mean is over a tensor. Without a floor C would be huge where gradients are rare or zero so
    far: a first gradient would throw the model off, and what is rare in the data would be learned
    by heart. Small tensors, of less than :data:`LARGE` elements, have too few for that and the
    floor at their mean: C then makes up for features of different scales.

    A tensor that the outputs do not depend on (a bias before batch normalisation, or of the keys in
    attention) has gradients and curvatures of rounding errors: they are kept from being magnified.
    """

    elementwise: ClassVar[bool] = True

    def __init__(self) -> None:
        self.average: list[Tensor] = []
        self.draws = 0
        self._C: list[Tensor] = []

    @abstractmethod
    def _squares(self, statistics: Statistics) -> list[Tensor]:
        """What is averaged."""

    @abstractmethod
    def _curvature(self, average: Tensor) -> Tensor:
        """c, from the average."""

    def update(self, statistics: Statistics) -> None:
        """Average on: a plain mean first, then one that forgets."""
        squares = self._squares(statistics)
        if not squares or not all_finite(squares):
            return
        first = not self.draws
        self.draws += max(statistics.draws, 1)
        if first:
            self.average = [x.clone() for x in squares]
        else:
            rate = max(max(statistics.draws, 1) / self.draws, FORGETTING)
            for mean, x in zip(self.average, squares, strict=True):
                local(mean).lerp_(local(x), rate)
        self._set()

    def start(self, parameters: Sequence[Tensor]) -> None:
        """Averages of nothing yet."""
        self.average = self.average or [torch.zeros_like(p) for p in parameters]

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """The averages."""
        if not self.average:
            return
        there = [moved(x, p) for x, p in zip(self.average, parameters, strict=True)]
        if any(x is not y for x, y in zip(there, self.average, strict=True)):
            self.average = there
            self._set()

    def _set(self) -> None:
        if not self.draws:
            self._C = []
            return
        curvatures = [self._curvature(mean) for mean in self.average]
        means = [_mean(c) for c in curvatures]
        self._C = [
            _floored(c, mean, ROUNDING * torch.finfo(c.dtype).eps * max(means)).reciprocal()
            for c, mean in zip(curvatures, means, strict=True)
        ]

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """``C x``; x itself before the first refresh."""
        if not self._C:
            return tensors
        return [c * x for c, x in zip(self._C, tensors, strict=True)]

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """``C⁻¹ x``."""
        if not self._C:
            return tensors
        return [x / c for c, x in zip(self._C, tensors, strict=True)]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """A loaded average must fit the parameters."""
        ours = [tuple(x.shape) for x in self.average]
        theirs = [tuple(p.shape) for p in parameters]
        if ours and ours != theirs:
            raise ValueError(
                f"{type(self).__name__} has learned of tensors of shapes {ours}, but the group's "
                f"parameters have shapes {theirs}; give each group its own"
            )

    def state_dict(self) -> dict[str, Any]:
        """The averages."""
        return {"average": self.average, "draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved averages."""
        self.average = [x.clone() for x in state["average"]]
        self.draws = state["draws"]
        self._set()


def _mean(c: Tensor) -> float:
    return over_shards([float(local(c).sum())], [c]) / max(c.numel(), 1)


def _floored(c: Tensor, mean: float, rounding: float) -> Tensor:
    floor = max(mean * (FLOOR if c.numel() >= LARGE else 1.0), rounding)
    return like(local(c).clamp(min=floor), c) if mean > 0 else torch.ones_like(c)


class InverseDiagonal(LearnedDiagonal):
    """The inverse diagonal of the Fisher matrix, ``C = 1 / max(diag F, floor)``.

    The diagonal is estimated without bias from one pseudo-gradient of the batch a refresh.

    Example:
        >>> C = InverseDiagonal()
        >>> C.update(Statistics(1, [torch.tensor([1.0, 3.0, 8.0])], [], []))
        >>> C.apply([torch.tensor([4.0, 4.0, 4.0])])
        [tensor([1.0000, 1.0000, 0.5000])]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fisher_diagonal"})
    first_draws: ClassVar[int] = 8

    def _squares(self, statistics: Statistics) -> list[Tensor]:
        return statistics.fisher_diagonal

    def _curvature(self, average: Tensor) -> Tensor:
        return average


class RMSProp(LearnedDiagonal):
    """``C = 1 / max(√E g², floor)``, from gradients g of the loss on data.

    Example:
        >>> C = RMSProp()
        >>> C.update(Statistics(1, [], [torch.tensor([-1.0, 3.0])], []))
        >>> C.apply([torch.tensor([6.0, 6.0])])
        [tensor([3., 2.])]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def _squares(self, statistics: Statistics) -> list[Tensor]:
        return [g.square() for g in statistics.gradient]

    def _curvature(self, average: Tensor) -> Tensor:
        return average.sqrt()
