"""The passes over the rows of a block, compiled: expansion, sums, and the key of the sample."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.families import Family
from tangograd.glm.numerics.jit import compiled
from tangograd.glm.one_pass.expansion import BlockSums
from tangograd.glm.one_pass.working_rows import WorkingRows, gram

Array = NDArray[np.float64]


class Linearized(NamedTuple):
    """A block at a θ.

    Attributes:
        sums: the sum of its rows' expansions.
        eta: where the rows were expanded, shape (n, outputs).
        score: there, of the same shape.
        size: how much each row says, ``‖s‖ + max f``, shape (n,).
        loss: Σ w loss.
        pearson: Σ w s²/f of the first output.
    """

    sums: BlockSums
    eta: Array
    score: Array
    size: Array
    loss: float
    pearson: float


def linearize(family: Family, rows: WorkingRows, theta: Array) -> Linearized:
    """Expand the losses of rows at θ, each where its target does not contradict it.

    Args:
        family: the family.
        rows: the rows.
        theta: shape (outputs, columns).
    """
    outputs, q = theta.shape
    n = len(rows)
    eta, score, h = np.empty((n, outputs)), np.empty((n, outputs)), np.empty((n, outputs, outputs))
    size, z = np.empty(n), np.zeros((outputs, q))
    totals = np.zeros(3)
    data = rows.room, rows.y, rows.weights, rows.offset
    _expand(family, data, theta, (eta, score, h, size), (z, totals))
    sums = BlockSums(gram(rows, h), z.ravel(), float(totals[0]))
    return Linearized(sums, eta, score, size, float(totals[1]), float(totals[2]))


@compiled
def _expand(
    family: Family,
    data: tuple[Array, Array, Array, Array],
    theta: Array,
    rows: tuple[Array, Array, Array, Array],
    sums: tuple[Array, Array],
) -> None:
    """Fill what is known of each row (its curvature h with the weight), and add up the sums."""
    outputs, q = theta.shape
    Z, y, weights, offset = data
    eta, score, h, size = rows
    z, totals = sums
    F, s = np.empty((outputs, outputs)), np.empty(outputs)
    for n in range(len(y)):
        for k in range(outputs):
            at = 0.0
            for i in range(q):
                at += Z[n, i] * theta[k, i]
            eta[n, k] = at + offset[n]
        if outputs == 1:
            eta[n, 0] = family.expansion_point(eta[n, 0], y[n])
        loss = family.derivatives(eta[n], y[n], s, F, h[n])
        if outputs == 1 and not h[n, 0, 0] > 0:
            h[n, 0, 0] = F[0, 0]
        w, norm, largest = weights[n], 0.0, 0.0
        for k in range(outputs):
            score[n, k] = s[k]
            norm += s[k] * s[k]
            largest = max(largest, F[k, k])
        size[n] = math.sqrt(norm) + largest
        c = loss
        for k in range(outputs):
            pull = 0.0
            for j in range(outputs):
                pull += h[n, k, j] * (eta[n, j] - offset[n])
            c += (0.5 * pull - s[k]) * (eta[n, k] - offset[n])
            a = w * (pull - s[k])
            for i in range(q):
                z[k, i] += a * Z[n, i]
        for k in range(outputs):
            for j in range(outputs):
                h[n, k, j] *= w
        totals[0] += w * c
        totals[1] += w * loss
        if F[0, 0] > 0:
            totals[2] += w * s[0] * s[0] / F[0, 0]


@compiled
def fill_rows(X: NDArray[np.floating], centre: Array, scale: Array, last: float, Z: Array) -> None:
    """Write rows in working coordinates, ``((x - centre)/scale, last)``, to the first columns of Z.

    Columns that X lacks are 0 in it.
    """
    d = len(centre)
    for n in range(len(X)):
        for i in range(X.shape[1]):
            Z[n, i] = (X[n, i] - centre[i]) / scale[i]
        for i in range(X.shape[1], d):
            Z[n, i] = -centre[i] / scale[i]
        if last != 0:
            Z[n, d] = last


@compiled
def largest_move(Z: Array, step: Array, size: Array) -> float:
    """Return the largest move of η, at most in the size of its row; step: (outputs, columns)."""
    largest = 0.0
    for n in range(len(Z)):
        for k in range(len(step)):
            move = 0.0
            for i in range(step.shape[1]):
                move += Z[n, i] * step[k, i]
            largest = max(largest, abs(move) * min(1.0, size[n]))
    return largest


@compiled
def sample_keys(Z: Array, weights: Array, size: Array, unit: Array, key: Array) -> None:
    """Write the key of each row, ``w size ‖z/unit‖``; columns without a unit count as they are."""
    factor = np.ones(len(unit))
    for i in range(len(unit)):
        if unit[i] > 0:
            factor[i] = 1 / unit[i]
    for n in range(len(Z)):
        norm = 0.0
        for i in range(len(unit)):
            norm += (Z[n, i] * factor[i]) ** 2
        key[n] = weights[n] * size[n] * math.sqrt(norm) + 1e-300
