"""The quadratic model of the negative log-likelihood: a sum over rows, in two levels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.one_pass.expansion import BlockSums

Array = NDArray[np.float64]

#: blocks after which the recent sums are added to the others, which bounds rounding errors
FOLD_BLOCKS = 1024


@dataclass
class QuadraticModel:
    """``c0 - zᵀθ + θᵀJθ/2``, which approximates ``Σ w loss`` as a function of θ.

    Sums are kept in two levels: those of up to 1,024 blocks are added up before they join the
    total, so that the rounding error grows with the root of the rows or less (relative 1e-14 at
    10⁹ rows, where one level has 4e-12).

    Attributes:
        size: coefficients of all outputs.
        with_meat: sum the outer products of the scores too, for the sandwich covariance.
    """

    size: int
    with_meat: bool = False
    blocks: int = 0
    _total: BlockSums = field(init=False)
    _recent: BlockSums = field(init=False)
    _meat: tuple[Array, Array] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._total, self._recent = self._zeros(), self._zeros()
        if self.with_meat:
            self._meat = np.zeros((self.size, self.size)), np.zeros((self.size, self.size))

    def _zeros(self) -> BlockSums:
        return BlockSums(np.zeros((self.size, self.size)), np.zeros(self.size), 0.0)

    @property
    def J(self) -> Array:  # noqa: N802
        """The curvature."""
        return self._total.J + self._recent.J

    @property
    def z(self) -> Array:
        """The linear part."""
        return self._total.z + self._recent.z

    @property
    def c0(self) -> float:
        """The constant part."""
        return self._total.c0 + self._recent.c0

    @property
    def meat(self) -> Array | None:
        """The sum of ``w² (s ⊗ z)(s ⊗ z)ᵀ``, if it was asked for."""
        return None if self._meat is None else self._meat[0] + self._meat[1]

    def add(self, sums: BlockSums, meat: Array | None = None) -> None:
        """Add the sums of a block."""
        recent = self._recent
        recent.J.__iadd__(sums.J)
        recent.z.__iadd__(sums.z)
        self._recent = recent._replace(c0=recent.c0 + sums.c0)
        if self._meat is not None and meat is not None:
            self._meat[1].__iadd__(meat)
        self.blocks += 1
        if self.blocks % FOLD_BLOCKS == 0:
            self.fold()

    def fold(self) -> None:
        """Add the recent sums to the total."""
        self._total = BlockSums(self.J, self.z, self.c0)
        self._recent = self._zeros()
        if self._meat is not None:
            self._meat = self._meat[0] + self._meat[1], np.zeros_like(self._meat[1])

    def merge(self, other: QuadraticModel) -> None:
        """Add the sums of other rows, in the same coordinates."""
        self.fold()
        self._total = BlockSums(self.J + other.J, self.z + other.z, self.c0 + other.c0)
        if self._meat is not None:
            if other.meat is None:
                raise ValueError("both models must have the sum of outer products, or neither")
            self._meat = self._meat[0] + other.meat, self._meat[1]
        self.blocks += -(-other.blocks // FOLD_BLOCKS) * FOLD_BLOCKS - self.blocks % FOLD_BLOCKS

    def grow(self, kept: NDArray[np.intp], size: int) -> None:
        """Move the coefficients to the places ``kept`` of a larger model."""
        self._total, self._recent = (
            _grown(sums, kept, size) for sums in (self._total, self._recent)
        )
        if self._meat is not None:
            here, there = (_grown_matrix(part, kept, size) for part in self._meat)
            self._meat = here, there
        self.size = size

    def arrays(self) -> dict[str, Array]:
        """Return the sums by name, for storage."""
        self.fold()
        found = {"J": self._total.J, "z": self._total.z, "c0": np.array(self._total.c0)}
        if self._meat is not None:
            found["meat"] = self._meat[0]
        return found

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], blocks: int) -> QuadraticModel:
        """Return the model whose `arrays` these are."""
        model = cls(len(arrays["z"]), "meat" in arrays, blocks)
        model._total = BlockSums(arrays["J"].copy(), arrays["z"].copy(), float(arrays["c0"]))
        if model._meat is not None:
            model._meat = arrays["meat"].copy(), model._meat[1]
        return model


def _grown(sums: BlockSums, kept: NDArray[np.intp], size: int) -> BlockSums:
    z = np.zeros(size)
    z[kept] = sums.z
    return BlockSums(_grown_matrix(sums.J, kept, size), z, sums.c0)


def _grown_matrix(J: Array, kept: NDArray[np.intp], size: int) -> Array:
    result = np.zeros((size, size))
    result[np.ix_(kept, kept)] = J
    return result
