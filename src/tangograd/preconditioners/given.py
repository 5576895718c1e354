"""A given C: diagonal or dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tangograd.preconditioners.base import Preconditioner, check_entries
from tangograd.vectors import flatten, moved, unflatten


class Diagonal(Preconditioner):
    """A given diagonal C.

    Args:
        diagonal: one tensor of positive numbers for each parameter of the group, of its shape.

    Example:
        >>> C = Diagonal([torch.tensor([2.0, 4.0])])
        >>> C.apply([torch.tensor([1.0, 1.0])])
        [tensor([2., 4.])]
    """

    elementwise: ClassVar[bool] = True

    def __init__(self, diagonal: Sequence[Tensor]) -> None:
        self.diagonal = [entry.detach().clone() for entry in diagonal]
        if not all(bool(((c > 0) & c.isfinite()).all()) for c in self.diagonal):
            raise ValueError("a preconditioner is positive definite: its diagonal must be > 0")

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``c ⊙ x``."""
        return [c * x for c, x in zip(self.diagonal, tensors, strict=True)]

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``x / c``."""
        return [x / c for c, x in zip(self.diagonal, tensors, strict=True)]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Check that shapes match one to one."""
        ours = [tuple(c.shape) for c in self.diagonal]
        theirs = [tuple(p.shape) for p in parameters]
        if ours != theirs:
            raise ValueError(
                f"Diagonal has tensors of shapes {ours} for a group of parameters of shapes "
                f"{theirs}; give each group its own"
            )

    def to_(self, parameters: Sequence[Tensor]) -> None:
        """Move the diagonal."""
        self.diagonal = [moved(c, p) for c, p in zip(self.diagonal, parameters, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Return the diagonal."""
        return {"diagonal": self.diagonal}

    def from_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> Self:
        """Return one with the saved diagonal."""
        check_entries(self, state, {"diagonal"})
        loaded = type(self)(_tensors(state["diagonal"]))
        loaded.check(parameters)
        loaded.to_(parameters)
        return loaded


class Dense(Preconditioner):
    """A given dense C over all elements of the group, in the order of its parameters.

    Args:
        matrix: symmetric positive definite, ``(d, d)`` with d the number of elements.

    Example:
        >>> C = Dense(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> C.apply([torch.tensor([1.0]), torch.tensor([0.0])])
        [tensor([2.]), tensor([1.])]
    """

    def __init__(self, matrix: Tensor) -> None:
        matrix = matrix.detach().clone()
        if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a dense preconditioner is square; got shape {tuple(matrix.shape)}")
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed) or not torch.allclose(matrix, matrix.T):
            raise ValueError("a preconditioner must be symmetric and positive definite")
        self.matrix = matrix
        self._factor = factor

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``C x``."""
        return unflatten(self.matrix @ flatten(tensors), tensors)

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return ``C⁻¹ x``, by the Cholesky factor."""
        x = flatten(tensors).unsqueeze(1)
        return unflatten(torch.cholesky_solve(x, self._factor).squeeze(1), tensors)

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Check that the side of the matrix is the number of elements."""
        elements = sum(p.numel() for p in parameters)
        if elements != len(self.matrix):
            raise ValueError(
                f"Dense has side {len(self.matrix)} for a group of {elements} elements; "
                "give each group its own"
            )

    def to_(self, parameters: Sequence[Tensor]) -> None:
        """Move the matrix."""
        like = flatten([p.new_empty(0) for p in parameters])
        self.matrix, self._factor = moved(self.matrix, like), moved(self._factor, like)

    def state_dict(self) -> dict[str, Any]:
        """Return the matrix."""
        return {"matrix": self.matrix}

    def from_state(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> Self:
        """Return one with the saved matrix."""
        check_entries(self, state, {"matrix"})
        loaded = type(self)(*_tensors([state["matrix"]]))
        loaded.check(parameters)
        loaded.to_(parameters)
        return loaded


def _tensors(saved: object) -> list[Tensor]:
    if not isinstance(saved, list | tuple) or not all(isinstance(x, Tensor) for x in saved):
        raise ValueError("the saved preconditioner has entries that are not tensors")
    return list(saved)
