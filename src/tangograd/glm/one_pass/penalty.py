"""The penalty on the squared coefficients, in working coordinates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.one_pass.coordinates import Coordinates

Array = NDArray[np.float64]


class Penalty(NamedTuple):
    """``α/2 · Σ w · ‖coefficients‖²`` without intercepts, in the units of the data.

    Several classes have K - 1 coefficients a column, those against the first class; the penalty is
    on all K coefficients centred at their mean, which does not depend on the class chosen.
    """

    alpha: float
    coordinates: Coordinates
    outputs: int

    def matrix(self, weight: float) -> Array:
        """Return its second derivative where the sum of the weights is this."""
        q = self.coordinates.columns
        columns = np.zeros(q)
        columns[: len(self.coordinates.scale)] = self.alpha * weight / self.coordinates.scale**2
        mixing = np.eye(self.outputs)
        if self.outputs > 1:
            mixing -= 1 / (self.outputs + 1)
        return np.asarray(np.kron(mixing, np.diag(columns)), dtype=np.float64)
