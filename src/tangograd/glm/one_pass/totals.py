"""Sums over rows that a fit reports but does not learn from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.one_pass.working_rows import WorkingRows

Array = NDArray[np.float64]


@dataclass
class RunningTotals:
    """Sums over rows; all but the last may be added for two parts of a table.

    Attributes:
        rows: how many rows.
        weight: Σ w.
        loss: Σ w loss where the path met each row.
        pearson: Σ w s²/f there; 0 for several classes.
        target: Σ w y.
        variation: Σ w (y - mean)².
        saturated: Σ w (least loss at y).
        normalizer: Σ w (part of the log-likelihood that depends on y alone).
    """

    rows: int = 0
    weight: float = 0.0
    loss: float = 0.0
    pearson: float = 0.0
    target: float = 0.0
    variation: float = 0.0
    saturated: float = 0.0
    normalizer: float = 0.0

    def add(self, family: Any, rows: WorkingRows, loss: Array, pearson: Array) -> None:
        """Add rows with their loss and ``s²/f`` on the path."""
        w, y = rows.weights, rows.y
        weight = float(w.sum())
        mean = float(w @ y) / weight
        self.merge(
            RunningTotals(
                rows=len(y),
                weight=weight,
                loss=float(w @ loss),
                pearson=float(w @ pearson),
                target=mean * weight,
                variation=float(w @ (y - mean) ** 2),
                saturated=float(w @ family.saturated_loss(y)),
                normalizer=float(w @ family.log_normalizer(y)),
            )
        )

    def merge(self, other: RunningTotals) -> None:
        """Add the sums over other rows."""
        if self.weight > 0 and other.weight > 0:
            apart = self.target / self.weight - other.target / other.weight
            both = self.weight + other.weight
            self.variation += self.weight * (other.weight / both) * apart**2
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def mean(self) -> float:
        """The weighted mean of the target."""
        return self.target / self.weight
