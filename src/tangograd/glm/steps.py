"""Blocks of rows on their way through the compiled kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tangograd.glm.coded import Coded
from tangograd.glm.rows import Rows, blocks, is_sparse
from tangograd.glm.sums import NO_PARTS
from tangograd.stream import glm as kernel
from tangograd.stream.glm_coded import coded_rows
from tangograd.stream.glm_sparse import sparse_rows
from tangograd.stream.vectors import padded, zeros

if TYPE_CHECKING:
    from tangograd.glm.engine import OnePass


def step(model: OnePass, block: Rows) -> None:
    """Learn from a block by the compiled kernel that suits it, and add up its sums."""
    if isinstance(block.X, Coded):
        _coded(model, block)
        return
    if is_sparse(block.X) or model.family.code == kernel.MULTINOMIAL:
        _several(model, block)
        return
    sums = model.sums
    strip = len(block) if sums is None else sums.strip
    z = zeros(0 if sums is None else min(strip, len(block)), padded(model.columns + 1))
    for rows in blocks(block, strip):
        weights = np.empty((2, 0 if sums is None else len(rows)))
        X, family, given, state, rest = _arguments(model, rows)
        own = (part[0] for part in state)
        cast(Any, kernel).single_rows(*family, X, *given, *own, *rest, z, weights)
        if sums is not None:
            sums.add_single(z[: len(rows)], weights)


def _several(model: OnePass, block: Rows) -> None:
    """The same for several outputs, and for sparse rows."""
    n, k = (0 if model.sums is None else len(block)), model.outputs
    scores, fishers = np.empty((n, k)), np.empty((n, k, k))
    X, family, given, state, rest = _arguments(model, block)
    rest = (*given, *state, *rest, scores, fishers)
    if is_sparse(X):
        cast(Any, sparse_rows)(*family, X.data, X.indices, X.indptr, *rest)
    else:
        cast(Any, kernel).dense_rows(*family, X, *rest)
    if model.sums is not None:
        model.sums.add(block.solid(), model.at.rest, scores, fishers, model.intercept)


def _coded(model: OnePass, block: Rows) -> None:
    """The same for rows of numbers and levels."""
    X, sums, m = block.X, model.sums, model.at.m
    diagonal = sums is not None and not sums.full
    weights = np.empty((2, len(block) if diagonal else 0))
    parts = NO_PARTS if sums is None else sums.coded_parts(X, m, model.intercept)
    dense = np.append(X.places, model.columns)
    levels = X.levels(model.columns)
    cast(Any, coded_rows)(
        model.family.code,
        model.family.parameter,
        X.numbers,
        X.codes,
        dense,
        levels,
        block.y,
        block.w,
        block.offset,
        m,
        *(part[0] for part in (model.theta, model.v, model.C, model.S)),
        model.scalars,
        model.alpha,
        model.sampled,
        model.rng,
        weights,
        *parts,
    )
    if sums is not None and diagonal:
        sums.add_coded(X, m, weights, model.intercept)


def _arguments(model: OnePass, block: Rows) -> tuple[Any, ...]:
    """Of the kernels: X, and then the others in groups."""
    X, order = block.X, np.arange(len(block)) if block.order is None else block.order
    if not is_sparse(X) and X.shape[1] < model.columns:
        X = np.pad(X, ((0, 0), (0, model.columns - X.shape[1])))
    return (
        X,
        (model.family.code, model.family.parameter),
        (block.y, block.w, block.offset, order, model.at.rest),
        (model.theta, model.v, model.C, model.S),
        (model.scalars, model.alpha, model.sampled, model.rng),
    )
