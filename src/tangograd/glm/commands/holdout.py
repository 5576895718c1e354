"""Rows that are never learned from, and how well the model does on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.commands.predicting import family_of, means, predictors
from tangograd.glm.engine import OnePass
from tangograd.glm.families import Family
from tangograd.glm.families import evaluate as evaluate_rows
from tangograd.glm.families import means as family_means
from tangograd.glm.fitted import Array, Fitted
from tangograd.glm.matrices import Block, concatenate
from tangograd.glm.reports.metrics import (
    HeldOut,
    Metrics,
    binary_metrics,
    multiclass_metrics,
    regression_metrics,
)

MOST_ROWS = 20_000
MOST_BYTES = 32_000_000


class Draw:
    """A number in [0, 1) for every row of a table, by the seed and its place in the table alone.

    Rows must come in order; the batches that they come in do not matter.

    >>> one, two = Draw(0), Draw(0)
    >>> bool((one.next(3) == [*two.next(1), *two.next(2)]).all())
    True
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0])

    def next(self, rows: int) -> Array:
        """Those of the next rows."""
        return self._rng.random(rows)


class Reservoir:
    """Of the rows held out, those with the least numbers: a sample of bounded size.

    Attributes:
        limit: rows with this number or more will not be taken.
    """

    def __init__(self, share: float, rows: int = MOST_ROWS, size: int = MOST_BYTES) -> None:
        self.limit = share
        self._most_rows, self._most_bytes = rows, size
        self._parts: list[Block] = []
        self._keys: list[Array] = []
        self._rows = self._bytes = 0

    def add(self, rows: Block, keys: Array) -> None:
        """Take in rows with their numbers."""
        if not len(rows):
            return
        self._parts.append(rows)
        self._keys.append(keys)
        self._rows, self._bytes = self._rows + len(rows), self._bytes + rows.X.nbytes
        if self._rows > 2 * self._most:
            self._settle()

    @property
    def _most(self) -> int:
        return max(1, min(self._most_rows, self._most_bytes * self._rows // max(self._bytes, 1)))

    def _settle(self) -> None:
        keys, most = np.concatenate(self._keys), self._most
        rows = concatenate(self._parts)
        if len(keys) > most:
            chosen = np.sort(np.argpartition(keys, most)[:most])
            rows, keys = rows.take(chosen), keys[chosen]
            self.limit = float(keys.max())
        self._parts, self._keys = [rows], [keys]
        self._rows, self._bytes = len(rows), rows.X.nbytes

    def rows(self, columns: int) -> Block | None:
        """The sample, in the order of the table, with so many columns; ``None`` if it is empty."""
        if not self._parts:
            return None
        self._settle()
        rows = self._parts[0]
        return rows._replace(X=rows.X.widened(columns))  # later columns are 0 in these rows


@dataclass(frozen=True)
class Evaluation:
    """How well a model does on rows that were held out.

    Attributes:
        metrics: by name.
        held_out: the rows, with what the model says of them.
    """

    metrics: Metrics
    held_out: HeldOut


def evaluate(fitted: Fitted, engine: OnePass, rows: Block) -> Evaluation:
    """Predict the rows, and compare with the model of an intercept alone.

    Args:
        fitted: the model.
        engine: that learned it, which knows the mean of what it learned from.
        rows: that it did not learn from.
    """
    eta = predictors(fitted, rows.X, rows.offset)
    mean = means(fitted, eta)
    tally = engine.settled().settled_tally()
    weights = None if bool((rows.weights == 1).all()) else rows.weights
    known = family_of(fitted)
    if known.name == "multinomial":
        found = multiclass_metrics(rows.y.astype(int), mean, weights)
        return Evaluation(found, HeldOut(rows.y, mean, None, weights))
    if fitted.classes is not None:
        share = float(tally.total / tally.weight)
        found = binary_metrics(rows.y, mean[:, 1], weights, null_probability=share)
        return Evaluation(found, HeldOut(rows.y, mean, eta[:, 0], weights))
    null = family_means(known, tally.null_predictor() + rows.offset)
    found = regression_metrics(
        rows.y,
        mean,
        lambda y, mu: known.unit_deviance(y, known.linear_predictor(mu)),
        null,
        weights,
    )
    pearson = _pearson(known, fitted.dispersion, rows, eta[:, 0])
    return Evaluation(found, HeldOut(rows.y, mean, eta[:, 0], weights, pearson))


def _pearson(known: Family, dispersion: float, rows: Block, eta: Array) -> Array:
    """``(y - μ) / √(φ V(μ) / w)``, which is -s/√f in terms of the score and Fisher weight in η."""
    _, score, fisher, _ = evaluate_rows(known, eta, rows.y)
    with np.errstate(divide="ignore", invalid="ignore"):
        residual: NDArray[np.float64] = (
            -score / np.sqrt(fisher) * np.sqrt(rows.weights / dispersion)
        )
    return residual
