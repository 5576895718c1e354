"""Sums over rows that a fit reports but does not learn from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.numerics.jit import compiled
from tangograd.glm.one_pass.working_rows import WorkingRows

Array = NDArray[np.float64]

_SUMS = (
    "rows", "weight", "loss", "pearson", "target", "variation", "saturated", "normalizer",
    "pairs", "neighbours",
)  # fmt: skip


@dataclass
class RunningTotals:
    """Sums over rows.

    Attributes:
        rows: how many rows.
        weight: Σ w.
        loss: Σ w loss where the path met each row.
        pearson: Σ w s²/f there; 0 for several classes.
        target: Σ w y.
        variation: Σ w (y - mean)².
        saturated: Σ w (least loss at y).
        normalizer: Σ w (part of the log-likelihood that depends on y alone).
        pairs: neighbouring rows.
        neighbours: Σ (y - y')² over them.
        classes: Σ w of each class; empty for a target that is a number.
        last: the last target; NaN before the first row.
    """

    rows: int = 0
    weight: float = 0.0
    loss: float = 0.0
    pearson: float = 0.0
    target: float = 0.0
    variation: float = 0.0
    saturated: float = 0.0
    normalizer: float = 0.0
    pairs: int = 0
    neighbours: float = 0.0
    classes: Array = field(default_factory=lambda: np.zeros(0))
    last: float = float("nan")

    def add(self, family: Family, rows: WorkingRows, loss: float, pearson: float) -> None:
        """Add rows with their Σ w loss and Σ w s²/f on the path."""
        w, y = rows.weights, rows.y
        weight, total, variation, neighbours = target_sums(y, w, self.last)
        classes: Array = np.zeros(0)
        if family.outputs > 1:
            counts = np.bincount(y.astype(np.int64), w, family.outputs + 1)
            classes = counts.astype(np.float64)
        self.merge(
            RunningTotals(
                rows=len(y),
                weight=weight,
                loss=loss,
                pearson=pearson,
                target=total,
                variation=variation,
                saturated=float(w @ family.saturated_loss(y)),
                normalizer=float(w @ family.log_normalizer(y)),
                pairs=len(y) - bool(np.isnan(self.last)),
                neighbours=neighbours,
                classes=classes,
                last=float(y[-1]),
            )
        )

    def merge(self, other: RunningTotals) -> None:
        """Add the sums over other rows, which follow these."""
        if self.weight > 0 and other.weight > 0:
            apart = self.target / self.weight - other.target / other.weight
            both = self.weight + other.weight
            self.variation += self.weight * (other.weight / both) * apart**2
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.classes = self.classes + other.classes if len(self.classes) else other.classes
        self.last = other.last if other.rows else self.last

    @property
    def mean(self) -> float:
        """The weighted mean of the target."""
        return self.target / self.weight

    @property
    def neighbour_correlation(self) -> float:
        """The correlation of each target with the one before it, about."""
        if self.pairs == 0 or not self.variation > 0:
            return 0.0
        variance = self.variation / self.weight
        return 1 - 0.5 * self.neighbours / self.pairs / variance

    def null_loss(self, family: Family) -> float:
        """Σ w loss of the model with an intercept alone and no offset."""
        if len(self.classes):
            seen = self.classes[self.classes > 0]
            return float(-(seen * np.log(seen / self.weight)).sum())
        return float(family.constant_loss(self.mean, self.weight, self.variation))


@compiled
def target_sums(y: Array, w: Array, last: float) -> tuple[float, float, float, float]:
    """Return Σ w, Σ w y, Σ w (y - mean)² and Σ (y - y')² over neighbours, ``last`` the first."""
    weight, total, neighbours = 0.0, 0.0, 0.0
    before = y[0] if math.isnan(last) else last
    for i in range(len(y)):
        weight += w[i]
        total += w[i] * y[i]
        neighbours += (y[i] - before) ** 2
        before = y[i]
    mean, variation = total / weight, 0.0
    for i in range(len(y)):
        variation += w[i] * (y[i] - mean) ** 2
    return weight, total, variation, neighbours
