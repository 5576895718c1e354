"""The exact path: Newton steps on "quadratic so far + this block".

Each block of rows is replaced by its second-order expansion at the running solution, which is the
online natural gradient with the exact Fisher matrix: an extended Kalman filter, iterated block by
block. (TANGO's path has O(p) numbers instead of the matrix and makes one step a row.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.expansion import BlockSums, expand, expand_at, sum_expansions
from tangograd.glm.one_pass.linear_algebra import IndefiniteError, solve
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.start import PRIOR, GrowingArrays, Start
from tangograd.glm.one_pass.working_rows import WorkingRows

Array = NDArray[np.float64]

#: rows of a block; p/BLOCK_GROWTH times as many where p coefficients are more
BLOCK_ROWS = 1024
BLOCK_GROWTH = 125
#: a block is solved again until no informative row's η moves by more
SHORT_STEP = 0.3
REPETITIONS = 8
SHORTEST = 1e-3


def block_rows(coefficients: int) -> int:
    """Return the rows of a block: the p³ of its solve is shared by more rows where p is large."""
    return BLOCK_ROWS * max(1, coefficients // BLOCK_GROWTH)


@dataclass
class Step:
    """What a block adds: its sums, where its rows were expanded, and how large they are."""

    sums: BlockSums
    eta: Array
    score: Array
    loss: Array
    fisher: Array
    key: Array


@dataclass
class ExactPath:
    """The running solution, and what holds it beside the rows that were read.

    Attributes:
        theta: the solution, shape (outputs, columns).
        J: curvature of the prior (and of rows of a start); it guides the path and is in no result.
        z: its linear part.
        unit: of each column for the prior and the key; 0 while it has been constant.
        frozen: the solution stays where it is; for a further reading next to the result.
    """

    theta: Array
    J: Array
    z: Array
    unit: Array
    frozen: bool = False

    @classmethod
    def begin(cls, start: Start) -> ExactPath:
        """Return a path at its start."""
        return cls(start.theta.copy(), start.J.copy(), start.z.copy(), start.unit.copy())

    def move(
        self, family: Family, rows: WorkingRows, quadratic: QuadraticModel, penalty: Array
    ) -> Step:
        """Solve path + quadratic + block, and return the block's last expansion.

        Args:
            family: the family.
            rows: the block.
            quadratic: the sums of the rows before.
            penalty: second derivative of the penalty so far.
        """
        self._notice_columns(rows.Z)
        A, z = self.J, self.z
        if not self.frozen:
            A = quadratic.J
            A += self.J
            A += penalty
            z = quadratic.z + self.z
        shape, b = self.theta.shape, self.theta.ravel()
        size = np.zeros(len(rows))
        for _ in range(REPETITIONS):
            eta = rows.predictor(b.reshape(shape)) + rows.offset[:, None]
            expansion = expand(family, eta, rows.y)
            sums = sum_expansions(rows, expansion)
            here = expansion.size
            size = np.maximum(size, here)
            if self.frozen:
                break
            try:
                step = solve(A + sums.J, z + sums.z) - b
            except IndefiniteError:
                break
            moved = np.abs(rows.predictor(step.reshape(shape))).max(axis=1)
            if (moved * np.minimum(1.0, here)).max() <= SHORT_STEP:
                b = b + step
                break
            b = b + self._length(family, rows, A, z, b, step) * step
        self.theta = b.reshape(shape)
        scaled = rows.Z / np.where(self.unit > 0, self.unit, 1.0)
        key = rows.weights * size * np.sqrt(np.einsum("ij,ij->i", scaled, scaled)) + 1e-300
        return Step(sums, expansion.eta, expansion.score, expansion.loss, expansion.fisher, key)

    def grow(self, places: NDArray[np.intp], columns: int) -> None:
        """Move the columns to these places of more columns."""
        grown = GrowingArrays(self.theta, self.J, self.z, self.unit).grown(places, columns)
        self.theta, self.J, self.z, self.unit = grown

    def _length(
        self, family: Family, rows: WorkingRows, A: Array, z: Array, b: Array, step: Array
    ) -> float:
        """Return the step's length, halved until the sum of losses does not rise."""
        shape = self.theta.shape

        def value(at: Array) -> float:
            eta = rows.predictor(at.reshape(shape)) + rows.offset[:, None]
            loss = rows.weights @ expand_at(family, eta, rows.y).loss
            return float(at @ (A @ at) / 2 - z @ at + loss)

        before, length = value(b), 1.0
        while length > SHORTEST and not value(b + length * step) <= before:
            length /= 2
        return length

    def _notice_columns(self, Z: Array) -> None:
        """Give a prior to the columns that were constant until now."""
        outputs, q = self.theta.shape
        silent = self.unit == 0
        if not silent.any():
            return
        for j in np.flatnonzero(silent & (Z != 0).any(axis=0)):
            column = Z[:, j]
            self.unit[j] = np.median(np.abs(column[column != 0]))
            for k in range(outputs):
                self.J[k * q + j, k * q + j] += PRIOR * self.unit[j] ** 2
