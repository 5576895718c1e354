"""The second-order expansion of each row's loss, and the sums of such expansions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family, evaluate, expansion_points
from tangograd.glm.one_pass.working_rows import WorkingRows, apply, gram, weighted_sum

Array = NDArray[np.float64]


class Expansion(NamedTuple):
    """Rows' losses expanded at ``eta``: ``ℓ + sᵀδ + δᵀHδ/2`` with δ the distance to η.

    Attributes:
        eta: points of expansion, offset included, shape (n, outputs).
        loss: ℓ there, shape (n,).
        score: s, the first derivative, shape (n, outputs).
        curvature: H, the second derivative, shape (n, outputs, outputs); the Fisher information
            where that is not positive.
        fisher: the expected second derivative, of the same shape.
    """

    eta: Array
    loss: Array
    score: Array
    curvature: Array
    fisher: Array

    @property
    def size(self) -> Array:
        """How much a row says: ``‖s‖ + max f``, shape (n,)."""
        if self.score.shape[1] == 1:
            return np.asarray(np.abs(self.score[:, 0]) + self.fisher[:, 0, 0])
        largest = np.einsum("nkk->nk", self.fisher).max(axis=1)
        return np.asarray(np.linalg.norm(self.score, axis=1) + largest)

    def at(self, eta: Array) -> Array:
        """Return the expanded losses at other points."""
        delta = eta - self.eta
        return np.asarray(
            self.loss + ((self.score + 0.5 * apply(self.curvature, delta)) * delta).sum(axis=1)
        )

    def score_at(self, eta: Array) -> Array:
        """Return the derivatives of the expanded losses at other points."""
        return self.score + apply(self.curvature, eta - self.eta)


def expand_at(family: Family, eta: Array, y: Array) -> Expansion:
    """Expand the losses at given points, shape (n, outputs)."""
    loss, score, fisher, observed = evaluate(family, eta, y)
    if not family.canonical:
        observed = np.where(observed > 0, observed, fisher)
    return Expansion(eta, loss, score, observed, fisher)


def expand(family: Family, eta: Array, y: Array) -> Expansion:
    """Expand the losses at these points, each moved to where its target does not contradict it."""
    if family.outputs == 1:
        eta = expansion_points(family, eta[:, 0], y)[:, None]
    return expand_at(family, eta, y)


class BlockSums(NamedTuple):
    """``c0 - zᵀθ + θᵀJθ/2``: the sum of the weighted expansions of some rows."""

    J: Array
    z: Array
    c0: float


def sum_expansions(rows: WorkingRows, expansion: Expansion) -> BlockSums:
    """Sum the weighted expansions as a function of θ."""
    x = expansion.eta - rows.offset[:, None]
    w = rows.weights[:, None]
    pull = apply(expansion.curvature, x)
    J = gram(rows, w[:, :, None] * expansion.curvature)
    z = weighted_sum(rows, w * (pull - expansion.score))
    c0 = rows.weights @ (expansion.loss + ((0.5 * pull - expansion.score) * x).sum(axis=1))
    return BlockSums(J, z, float(c0))
