"""Sums over the rows seen that are not needed to learn, but to report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family, evaluate
from tangograd.glm.matrices import Block

Array = NDArray[np.float64]

#: the loss along the stream is noted whenever the rows have grown by so much
TRACE_GROWTH = 1.1


class Tally:
    """Rows, weights, likelihood and deviance.

    Args:
        family: the family.
        classes: how many, for a multinomial family.
    """

    def __init__(self, family: Family, classes: int) -> None:
        self.family = family
        self.rows, self.weight = 0, 0.0
        self.loss, self.pearson = 0.0, 0.0
        self.saturated, self.normalizer = 0.0, 0.0
        self.total, self.variation = 0.0, 0.0  # Σ w y, Σ w (y - mean)²
        self.has_offset = False
        # of the model with an intercept alone, once there is an offset: η, its Σ w f and Σ w loss
        self._null, self._null_fisher, self._null_loss = 0.0, 0.0, 0.0
        self.classes = np.zeros(classes)
        self.trace_rows: list[int] = []
        self.trace_loss: list[float] = []
        self._noted = (0, 0.0, 0.0)  # rows, weight and loss at the last note

    def add(self, blocks: Sequence[Block], loss: float, pearson: float) -> None:
        """Blocks of rows whose Σ w loss and Σ w s²/f are these."""
        if not self.family.centers_penalty:
            self._add_offsets(blocks)
        for block in blocks:
            before = self.weight
            self.rows += len(block)
            if self.family.centers_penalty:
                self.weight += float(block.weights.sum())
                self.classes += np.bincount(
                    block.y.astype(np.int64), block.weights, minlength=len(self.classes)
                )
                continue
            weight, total = float(block.weights.sum()), float(block.weights @ block.y)
            variation = float(block.weights @ (block.y - total / weight) ** 2)
            self.weight += weight
            self.variation += variation
            if before > 0:
                apart = total / weight - self.total / before
                self.variation += before * weight / self.weight * apart**2
            self.total += total
            self.saturated += float(block.weights @ self.family.saturated_loss(block.y))
            self.normalizer += float(block.weights @ self.family.log_normalizer(block.y))
        self.loss += loss
        self.pearson += pearson
        self.note()

    def _add_offsets(self, blocks: Sequence[Block]) -> None:
        """The intercept of the null model, which has no formula where there are offsets.

        It is converged on the first blocks; a scoring step on each later one follows its loss.
        """
        if not self.has_offset:
            if not any(block.offset.any() for block in blocks):
                return
            self.has_offset = True
            if self.rows:
                mean = self.total / self.weight
                self._null = self._predictor(mean)
                self._null_fisher = self.weight * self._fisher(self._null, mean)
                self._null_loss = self.family.constant_loss(mean, self.weight, self.variation)
            else:
                self._converge_null(blocks)
        loss, gradient, fisher = self._null_sums(blocks)
        self._null_loss += loss
        self._null_fisher += fisher
        if self._null_fisher > 0:
            self._null -= gradient / self._null_fisher

    def _converge_null(self, blocks: Sequence[Block]) -> None:
        weight = sum(float(block.weights.sum()) for block in blocks)
        mean = sum(float(block.weights @ block.y) for block in blocks) / weight
        shift = sum(float(block.weights @ block.offset) for block in blocks) / weight
        self._null = self._predictor(mean) - shift
        for _ in range(50):
            _, gradient, fisher = self._null_sums(blocks)
            if not fisher > 0 or abs(gradient) <= 1e-12 * fisher:
                return
            self._null -= max(-1.0, min(gradient / fisher, 1.0))

    def _null_sums(self, blocks: Sequence[Block]) -> tuple[float, float, float]:
        """Σ w loss, Σ w s and Σ w f of the null model."""
        sums = np.zeros(3)
        for block in blocks:
            rows = evaluate(self.family, self._null + block.offset, block.y)
            sums += [block.weights @ part for part in rows[:3]]
        return float(sums[0]), float(sums[1]), float(sums[2])

    def _predictor(self, mean: float) -> float:
        """η of a mean."""
        return float(self.family.linear_predictor(np.array([mean]))[0])

    def _fisher(self, eta: float, y: float) -> float:
        """Fisher information of a row of weight 1."""
        return float(evaluate(self.family, [eta], [y]).fisher[0])

    def set_null_predictor(self, eta: float) -> None:
        """Set the intercept of the null model of rows with offsets."""
        self.has_offset, self._null = True, eta

    def note(self) -> None:
        """Note the mean loss of the rows since the last note, if they are many."""
        rows, weight, loss = self._noted
        if self.rows < rows * TRACE_GROWTH:
            return
        now = self.loss - self.saturated
        self.trace_rows.append(self.rows)
        self.trace_loss.append((now - loss) / max(self.weight - weight, 1e-300))
        self._noted = (self.rows, self.weight, now)

    def information(self) -> float:
        """Σ f/φ at the mean of y, in rows of the mean weight; of the rarest class, for several."""
        if self.family.centers_penalty:
            shares = self.classes / self.weight
            return float(np.min(shares * (1 - shares))) * self.rows
        f = self._fisher(self._predictor(self.total / self.weight), 0.0)
        return f * self.rows / self.null_dispersion()

    def null_dispersion(self) -> float:
        """φ of the null model where y has a unit that f and φ share; 1 otherwise."""
        if self.family.quadratic or not self.family.estimates_dispersion:
            return 1.0
        mean = self.total / self.weight
        if not self.variation * mean > 0:
            return 1.0
        return self.variation / self.weight / float(self.family.variance(np.array([mean]))[0])

    def null_predictor(self) -> float:
        """η of the model with an intercept alone, without the offset."""
        return self._null if self.has_offset else self._predictor(self.total / self.weight)

    def null_loss(self) -> float:
        """Σ w loss of the model with an intercept alone."""
        if self.family.centers_penalty:
            seen = self.classes[self.classes > 0]
            return float(-(seen * np.log(seen / self.weight)).sum())
        if self.has_offset:
            return self._null_loss
        mean = self.total / self.weight
        return self.family.constant_loss(mean, self.weight, self.variation)
