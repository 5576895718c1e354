"""A diagonal C learned while training: inverse diagonal Fisher, and RMSProp."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tangograd.curvature.statistics import Statistics
from tangograd.parallel.shards import from_local, local, sums
from tangograd.preconditioners.base import (
    Preconditioner,
    check_entries,
    saved_count,
    saved_tensors,
)
from tangograd.vectors import moved

#: Averages forget at this rate a refresh, once they have seen more than its inverse of draws.
FORGETTING = 0.05
#: The floor of the curvatures, over their mean in a tensor, for tensors of so many elements.
FLOOR, LARGE = 4.0, 1000
#: Curvatures below so many units of rounding of the largest mean of a tensor are rounding errors.
ROUNDING = 10.0


class LearnedDiagonal(Preconditioner):
    """``C = 1 / max(c, 4 mean c)``, c being a curvature learned for each element.

    The mean is over a tensor. Without a floor, C is huge for rarely active parameters, which would
    then overfit, and for those that have had no gradient so far. Tensors of less than
    :data:`LARGE` elements have the floor at their mean: C then makes up for features of different
    scales.

    A tensor that the outputs do not depend on (a bias before batch normalization, or of the keys in
    attention) has gradients and curvatures of rounding errors: the floor at :data:`ROUNDING` units
    keeps C from magnifying them.
    """

    elementwise: ClassVar[bool] = True

    def __init__(self) -> None:
        self.average: list[Tensor] = []
        self.draws: list[int] = []  # of each tensor, while it was trainable
        self._C: list[Tensor] = []

    @abstractmethod
    def _squares(self, statistics: Statistics) -> list[Tensor]:
        """Return what is averaged."""

    @abstractmethod
    def _curvature(self, average: Tensor) -> Tensor:
        """Return c, from the average."""

    def update(self, statistics: Statistics) -> None:
        """Update the averages: first a plain mean, then one that forgets."""
        squares = self._squares(statistics)
        if not squares:
            return
        draws = max(statistics.draws, 1)
        if not self.average:
            self.average = [torch.zeros_like(x) for x in squares]
        self.draws = self.draws or [0] * len(squares)
        finite = torch.stack(sums(squares)).isfinite().all()
        for i, (mean, x) in enumerate(zip(self.average, squares, strict=True)):
            if statistics.used is not None and not statistics.used[i]:
                continue
            self.draws[i] += draws
            rate = 1.0 if self.draws[i] == draws else max(draws / self.draws[i], FORGETTING)
            step = torch.where(finite, local(x) - local(mean), 0.0)
            local(mean).add_(step, alpha=rate)
        self._set()

    def init(self, parameters: Sequence[Tensor]) -> None:
        """Allocate zero averages, so that a distributed checkpoint has tensors to load into."""
        self.average = self.average or [torch.zeros_like(p) for p in parameters]

    def to_(self, parameters: Sequence[Tensor]) -> None:
        """Move the averages."""
        if not self.average:
            return
        there = [moved(x, p) for x, p in zip(self.average, parameters, strict=True)]
        if any(x is not y for x, y in zip(there, self.average, strict=True)):
            self.average = there
            self._set()

    def _set(self) -> None:
        if not any(self.draws):
            self._C = []
            return
        curvatures = [self._curvature(mean) for mean in self.average]
        pairs = zip(sums(curvatures), curvatures, strict=True)
        means = [total / max(c.numel(), 1) for total, c in pairs]
        largest = torch.stack(means).amax()
        self._C = [
            _floored(c, mean, ROUNDING * torch.finfo(c.dtype).eps * largest).reciprocal()
            for c, mean in zip(curvatures, means, strict=True)
        ]

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``C x``; x itself before the first refresh."""
        if not self._C:
            return tensors
        return [c * x for c, x in zip(self._C, tensors, strict=True)]

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``C⁻¹ x``."""
        if not self._C:
            return tensors
        return [x / c for c, x in zip(self._C, tensors, strict=True)]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Check that the averages fit the parameters."""
        ours = [tuple(x.shape) for x in self.average]
        theirs = [tuple(p.shape) for p in parameters]
        if ours and ours != theirs:
            raise ValueError(
                f"{type(self).__name__} has averages for tensors of shapes {ours}, but the group's "
                f"parameters have shapes {theirs}; give each group its own"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return {"average": self.average, "draws": self.draws or [0] * len(self.average)}

    def from_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> Self:
        """Return one with saved averages."""
        check_entries(self, state, {"average", "draws"})
        loaded = copy.copy(self)
        average = state["average"]
        loaded.average = saved_tensors(self, "average", average, parameters if average else [])
        draws = state["draws"]
        if not isinstance(draws, list | tuple) or len(draws) != len(loaded.average):
            raise ValueError(f"the saved 'draws' of {type(self).__name__} is damaged")
        loaded.draws = [saved_count(self, "draws", count) for count in draws]
        loaded.to_(parameters)
        loaded._set()
        return loaded


def _floored(c: Tensor, mean: Tensor, rounding: Tensor) -> Tensor:
    """Return c with its floor; 1 where there was no curvature at all."""
    floor = torch.maximum(mean * (FLOOR if c.numel() >= LARGE else 1.0), rounding)
    part = local(c)
    return from_local(torch.where(mean > 0, part.clamp(min=floor.to(part.dtype)), 1.0), c)


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
