"""What a preconditioner is, and the one that does nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from tangograd.statistics import Statistics
from tangograd.vectors import dot


class Preconditioner(ABC):
    """A symmetric positive definite C for one parameter group. Subclass it to bring your own."""

    #: What :meth:`update` wants of ``"fisher_diagonal"``, ``"gradient"`` and ``"layers"``.
    needs: ClassVar[frozenset[str]] = frozenset()
    #: Whether it multiplies each element apart, so that it can act on shards of parameters.
    elementwise: ClassVar[bool] = False
    #: Pseudo-gradients drawn for the first update; later ones have one.
    first_draws: ClassVar[int] = 1

    @abstractmethod
    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """``C x``, for x in the shapes of the group's parameters; the input is not changed."""

    @abstractmethod
    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """``C⁻¹ x``."""

    def squared_norm(self, tensors: list[Tensor]) -> float:
        """``xᵀ C⁻¹ x``, wanted in every step."""
        return dot(tensors, self.apply_inverse(tensors))

    def update(self, statistics: Statistics) -> None:  # noqa: B027 - nothing to learn
        """Learn from a refresh step; the new C acts from the next step on."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def check(self, parameters: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to check
        """Raise ``ValueError`` when this C cannot act on a group of such parameters."""

    def start(self, parameters: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to prepare
        """Make what :meth:`state_dict` will hold for a group of such parameters.

        Distributed checkpoints are loaded into tensors that must be there, before any step.
        """

    def follow(self, parameters: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to move
        """Take what C has learned to the precision and the device that the parameters have now."""

    def state_dict(self) -> dict[str, Any]:
        """What a saved run needs to go on: tensors and plain numbers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing to load
        """Take over a saved state."""


class Identity(Preconditioner):
    """No preconditioning, the paper's plain TANGO: ``preconditioner=None``."""

    elementwise: ClassVar[bool] = True

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """``x``."""
        return tensors

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """``x``."""
        return tensors
