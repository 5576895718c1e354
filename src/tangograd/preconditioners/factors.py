"""Damped Kronecker factors ``M + d I``, dense or low-rank, with their inverses.

Sides of up to :data:`DENSE` are kept as a matrix and its inverse. Larger factors keep their leading
:data:`RANK` directions, and one number for all others, which damping makes alike anyway: two thin
products in place of a large one, and no inverse of a large matrix. The directions follow the factor
by subspace iteration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

#: The largest side that is kept as a dense matrix.
DENSE = 128
#: The number of directions kept of larger factors.
RANK = 64


class DampedFactor(ABC):
    """A symmetric positive definite matrix M that multiplies from the left or from the right."""

    @abstractmethod
    def multiply(self, X: Tensor) -> Tensor:
        """Return ``M X``."""

    @abstractmethod
    def solve(self, X: Tensor) -> Tensor:
        """Return ``M⁻¹ X``."""

    @abstractmethod
    def multiply_right(self, X: Tensor) -> Tensor:
        """Return ``X M``."""

    @abstractmethod
    def solve_right(self, X: Tensor) -> Tensor:
        """Return ``X M⁻¹``."""


class DenseFactor(DampedFactor):
    """A matrix and its inverse by Cholesky.

    >>> factor = DenseFactor(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> factor.solve(factor.multiply(torch.tensor([[1.0], [3.0]]))).round(decimals=4)
    tensor([[1.],
            [3.]])
    """

    def __init__(self, matrix: Tensor) -> None:
        wide = matrix.double()  # single precision is not enough for ill-conditioned factors
        self.matrix = matrix
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(wide).L).to(matrix.dtype)

    def multiply(self, X: Tensor) -> Tensor:
        """Return ``M X``."""
        return self.matrix @ X

    def solve(self, X: Tensor) -> Tensor:
        """Return ``M⁻¹ X``."""
        return self.inverse @ X

    def multiply_right(self, X: Tensor) -> Tensor:
        """Return ``X M``."""
        return X @ self.matrix

    def solve_right(self, X: Tensor) -> Tensor:
        """Return ``X M⁻¹``."""
        return X @ self.inverse


class LowRankFactor(DampedFactor):
    """``M = Q diag(values) Qᵀ + bulk (I - Q Qᵀ)``, Q having orthonormal columns.

    Args:
        Q: the leading eigenvectors, ``(n, r)``.
        values: the eigenvalues along them, ``(r,)``.
        bulk: the eigenvalue of all other directions, 0-d.
    """

    def __init__(self, Q: Tensor, values: Tensor, bulk: Tensor) -> None:
        self.Q, self.values, self.bulk = Q, values, bulk

    def multiply(self, X: Tensor) -> Tensor:
        """Return ``M X``."""
        return self.bulk * X + self.Q @ ((self.values - self.bulk).unsqueeze(1) * (self.Q.T @ X))

    def solve(self, X: Tensor) -> Tensor:
        """Return ``M⁻¹ X``."""
        bulk = self.bulk.reciprocal()
        return bulk * X + self.Q @ ((1 / self.values - bulk).unsqueeze(1) * (self.Q.T @ X))

    def multiply_right(self, X: Tensor) -> Tensor:
        """Return ``X M``."""
        return self.bulk * X + ((X @ self.Q) * (self.values - self.bulk)) @ self.Q.T

    def solve_right(self, X: Tensor) -> Tensor:
        """Return ``X M⁻¹``."""
        bulk = self.bulk.reciprocal()
        return bulk * X + ((X @ self.Q) * (1 / self.values - bulk)) @ self.Q.T


def damped_factor(matrix: Tensor, Q: Tensor, damping: Tensor, seen: Tensor) -> DampedFactor:
    """Return ``matrix + damping I``; the identity where ``seen`` is false.

    Args:
        matrix: symmetric positive semi-definite, ``(n, n)``.
        Q: its leading directions, from :func:`leading_directions`; without columns for a dense one.
        damping: 0-d.
        seen: 0-d, boolean.
    """
    if not Q.shape[1]:
        eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        return DenseFactor(torch.where(seen, matrix + damping * eye, eye))
    values, U = torch.linalg.eigh((Q.T @ matrix @ Q).double())
    values, U = values.clamp(min=0).to(matrix.dtype), U.to(matrix.dtype)
    bulk = ((matrix.trace() - values.sum()) / (len(matrix) - Q.shape[1])).clamp(min=0)
    return LowRankFactor(
        Q @ U, torch.where(seen, values + damping, 1.0), torch.where(seen, bulk + damping, 1.0)
    )


def directions_like(matrix: Tensor) -> Tensor:
    """Return zeros in the shape of the leading directions of a matrix: ``(n, RANK)``.

    There are no columns for a matrix that is kept dense.
    """
    n = len(matrix)
    return matrix.new_zeros(n, RANK if n > DENSE else 0)


def leading_directions(matrix: Tensor, previous: Tensor) -> Tensor:
    """Return orthonormal columns that span approximately the leading eigenvectors.

    Args:
        matrix: symmetric positive semi-definite.
        previous: the result of the previous update, from which the iteration starts, or zeros.
    """
    if not previous.shape[1]:
        return previous
    start = torch.Generator().manual_seed(0)
    random = torch.randn(previous.shape, generator=start, dtype=matrix.dtype).to(matrix.device)
    first = (previous == 0).all()  # then QR has nothing to start from
    return _subspace_iteration(matrix, torch.where(first, random, previous), 3)


def _subspace_iteration(matrix: Tensor, Q: Tensor, iterations: int) -> Tensor:
    scaled = matrix / matrix.trace().clamp(min=torch.finfo(matrix.dtype).tiny)
    for _ in range(iterations):
        Q = torch.linalg.qr(scaled @ Q).Q
    return Q
