"""A given C: diagonal or dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from tangograd.preconditioners.base import Preconditioner
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
        """``c ⊙ x``."""
        return [c * x for c, x in zip(self.diagonal, tensors, strict=True)]

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """``x / c``."""
        return [x / c for c, x in zip(self.diagonal, tensors, strict=True)]

    def check(self, parameters: Sequence[Tensor]) -> None:
        """Shapes must match one to one."""
        ours = [tuple(c.shape) for c in self.diagonal]
        theirs = [tuple(p.shape) for p in parameters]
        if ours != theirs:
            raise ValueError(
                f"Diagonal has tensors of shapes {ours} for a group of parameters of shapes "
                f"{theirs}; give each group its own"
            )

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """The diagonal."""
        self.diagonal = [moved(c, p) for c, p in zip(self.diagonal, parameters, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """The diagonal."""
        return {"diagonal": self.diagonal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved diagonal."""
        self.diagonal = [
            saved.to(c) for saved, c in zip(state["diagonal"], self.diagonal, strict=True)
        ]


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
        self._set(matrix.detach().clone())

    def _set(self, matrix: Tensor) -> None:
        if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a dense preconditioner is square; got shape {tuple(matrix.shape)}")
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed) or not torch.allclose(matrix, matrix.T):
            raise ValueError("a preconditioner must be symmetric and positive definite")
        self.matrix = matrix
        self._factor = factor

    def apply(self, tensors: list[Tensor]) -> list[Tensor]:
        """``C x``."""
        return unflatten(self.matrix @ flatten(tensors), tensors)

    def apply_inverse(self, tensors: list[Tensor]) -> list[Tensor]:
        """``C⁻¹ x``, by the Cholesky factor."""
        x = flatten(tensors).unsqueeze(1)
        return unflatten(torch.cholesky_solve(x, self._factor).squeeze(1), tensors)

    def check(self, parameters: Sequence[Tensor]) -> None:
        """The side of the matrix is the number of elements."""
        elements = sum(p.numel() for p in parameters)
        if elements != len(self.matrix):
            raise ValueError(
                f"Dense has side {len(self.matrix)} for a group of {elements} elements; "
                "give each group its own"
            )

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """The matrix."""
        like = flatten([p.new_empty(0) for p in parameters])
        self.matrix, self._factor = moved(self.matrix, like), moved(self._factor, like)

    def state_dict(self) -> dict[str, Any]:
        """The matrix."""
        return {"matrix": self.matrix}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved matrix."""
        self._set(state["matrix"].to(self.matrix))
