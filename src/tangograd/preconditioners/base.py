"""The interface of a preconditioner, and the identity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from tangograd.curvature.statistics import Statistics


class Preconditioner(ABC):
    """A symmetric positive definite C for one parameter group. Subclass it to bring your own."""

    #: What :meth:`update` uses of ``"fisher_diagonal"``, ``"gradient"`` and ``"layers"``.
    needs: ClassVar[frozenset[str]] = frozenset()
    #: Whether C multiplies each element separately, so that it can act on shards of parameters.
    elementwise: ClassVar[bool] = False
    #: The number of pseudo-gradients drawn for the first update; later ones have one.
    first_draws: ClassVar[int] = 1

    @abstractmethod
    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``C x``, for x in the shapes of the group's parameters; x is not changed."""

    @abstractmethod
    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``C⁻¹ x``."""

    def update(self, statistics: Statistics) -> None:  # noqa: B027 - nothing to learn
        """Update C from a refresh step, without reading a number on the host."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def check(self, parameters: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to check
        """Raise ``ValueError`` when this C cannot act on a group of such parameters."""

    def init(self, parameters: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to prepare
        """Allocate what :meth:`state_dict` will hold for a group of such parameters.

        Distributed checkpoints are loaded into existing tensors, before any step.
        """

    def to_(self, parameters: Sequence[Tensor]) -> None:  # noqa: B027 - nothing to move
        """Move what C has learned to the dtype and the device of the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a saved run needs to continue: tensors and plain numbers."""
        return {}

    def from_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> Self:
        """Return a preconditioner of the same kind with a saved state; this one is not changed.

        Raises:
            ValueError: the state is not that of this kind, or does not fit the parameters.
        """
        del parameters
        check_entries(self, state, set())
        return self


class Identity(Preconditioner):
    """No preconditioning, the paper's plain TANGO: ``preconditioner=None``."""

    elementwise: ClassVar[bool] = True

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors unchanged."""
        return tensors

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors unchanged."""
        return tensors


def check_entries(C: Preconditioner, state: object, names: set[str]) -> None:
    """Raise ``ValueError`` if a saved state does not have exactly these entries."""
    if not isinstance(state, Mapping) or set(state) != names:
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(
            f"the saved preconditioner has statistics {found}, but this optimizer's "
            f"{type(C).__name__} has {sorted(names)}: construct it with the same kind of "
            "preconditioner before loading"
        )


def saved_tensors(
    C: Preconditioner, name: str, saved: object, parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Return copies of saved tensors, one for each parameter and of its shape.

    Raises:
        ValueError: they are no tensors, or have other shapes.
    """
    if not isinstance(saved, list | tuple) or not all(isinstance(x, Tensor) for x in saved):
        raise ValueError(f"the saved {name!r} of {type(C).__name__} is not a list of tensors")
    ours, theirs = [tuple(x.shape) for x in saved], [tuple(p.shape) for p in parameters]
    if ours != theirs:
        raise ValueError(
            f"the saved {name!r} of {type(C).__name__} has tensors of shapes {ours}, but the "
            f"group's parameters have shapes {theirs}"
        )
    return [x.clone() for x in saved]


def saved_count(C: Preconditioner, name: str, saved: object) -> int:
    """Return a saved number of updates, or raise ``ValueError``."""
    if not isinstance(saved, int) or saved < 0:
        raise ValueError(f"the saved {name!r} of {type(C).__name__} is not a count; got {saved!r}")
    return saved
