"""The exact path: Newton steps on "quadratic so far + this block".

Each block of rows is replaced by its second-order expansion at the running solution, which is the
online natural gradient with the exact Fisher matrix: an extended Kalman filter, iterated block by
block. (TANGO's path has O(p) numbers instead of the matrix and makes one step a row.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.one_pass.expansion import expand_at
from tangograd.glm.one_pass.linear_algebra import IndefiniteError, solve
from tangograd.glm.one_pass.linearize import Linearized, largest_move, linearize, sample_keys
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.start import PRIOR, GrowingArrays, Start
from tangograd.glm.one_pass.working_rows import WorkingRows

Array = NDArray[np.float64]

#: rows of a block; p/BLOCK_GROWTH times as many where p coefficients are more. Results are as good
#: with 256 as with 4096
BLOCK_ROWS = 2048
BLOCK_GROWTH = 250
#: a block is solved again until no informative row's η moves by more
SHORT_STEP = 0.3
REPETITIONS = 8
SHORTEST = 1e-3


def block_rows(coefficients: int) -> int:
    """Return the rows of a block: the p³ of its solve is shared by more rows where p is large."""
    return BLOCK_ROWS * max(1, coefficients // BLOCK_GROWTH)


class Step(NamedTuple):
    """What a block adds: its last linearization, and the key of each row in the sample."""

    last: Linearized
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
        self, family: Family, rows: WorkingRows, quadratic: QuadraticModel, penalty: Array | None
    ) -> Step:
        """Solve path + quadratic + block, and return the block's last expansion.

        Args:
            family: the family.
            rows: the block.
            quadratic: the sums of the rows before.
            penalty: second derivative of the penalty so far, if there is one.
        """
        self._notice_columns(rows.Z)
        A, z = self.J, self.z
        if not self.frozen:
            A = quadratic.J
            A += self.J
            if penalty is not None:
                A += penalty
            z = quadratic.z + self.z
        theta, size = self.theta, np.zeros(len(rows))
        for _ in range(REPETITIONS):
            last = linearize(family, rows, theta)
            size = np.maximum(size, last.size)
            if self.frozen:
                break
            try:
                found = solve(A + last.sums.J, z + last.sums.z)
            except IndefiniteError:
                break
            step = found.reshape(theta.shape) - theta
            if largest_move(rows.room, step, last.size) <= SHORT_STEP:
                theta = theta + step
                break
            theta = theta + self._length(family, rows, A, z, theta, step) * step
        self.theta = theta
        key = np.empty(len(rows))
        sample_keys(rows.room, rows.weights, size, self.unit, key)
        return Step(last, key)

    def grow(self, places: NDArray[np.intp], columns: int) -> None:
        """Move the columns to these places of more columns."""
        grown = GrowingArrays(self.theta, self.J, self.z, self.unit).grown(places, columns)
        self.theta, self.J, self.z, self.unit = grown

    def _length(
        self, family: Family, rows: WorkingRows, A: Array, z: Array, theta: Array, step: Array
    ) -> float:
        """Return the step's length, halved until the sum of losses does not rise."""

        def value(at: Array) -> float:
            eta = rows.predictor(at) + rows.offset[:, None]
            flat = at.ravel()
            loss = rows.weights @ expand_at(family, eta, rows.y).loss
            return float(flat @ (A @ flat) / 2 - z @ flat + loss)

        before, length = value(theta), 1.0
        while length > SHORTEST and not value(theta + length * step) <= before:
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
