"""The rows of a batch as a matrix, or as numbers and levels apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.designs.columns import finite
from tangograd.glm.designs.layout import Block, Layout
from tangograd.glm.designs.matrix import csr, dense, fill
from tangograd.glm.designs.reading import Reading
from tangograd.glm.errors import DataError
from tangograd.glm.matrices import Categorical


def product(reading: Reading, block: Block) -> NDArray[Any] | None:
    """The product of a term's numbers in the rows that can be used; ``None`` if it has none."""
    values = [reading.value(expression) for expression in block.term.numbers]
    if len(values) < 2:
        return values[0] if values else None
    found = np.ones(len(values[0]))
    with np.errstate(over="ignore"):
        for each in values:
            found *= each
    if not finite(found) and reading.faults.row is None:
        name = ":".join(expression.name for expression in block.term.numbers)
        raise DataError(f"the interaction {name} is too large for a number: rescale its columns")
    return found


def matrix(
    layout: Layout, reading: Reading, products: Sequence[NDArray[Any] | None], sparse: bool
) -> Any:
    """Dense or CSR."""
    whole: list[tuple[int, NDArray[Any]]] = []
    levels: list[tuple[NDArray[np.int64], NDArray[Any] | None]] = []
    for block, values in zip(layout.blocks, products, strict=True):
        if block.term.categories:
            levels.append((_cells(block, reading), values))
        elif values is not None:
            whole.append((int(block.table), values))
    levels += [(columns, None) for columns in _indicated(layout, reading)]
    build = csr if sparse else dense
    return build(len(reading.kept), len(layout.names), whole, levels)


def categorical(
    layout: Layout, reading: Reading, products: Sequence[NDArray[Any] | None], sparse: bool
) -> Categorical:
    """Numbers and levels apart; terms without a product are columns of the batch."""
    del sparse
    whole: list[tuple[int, NDArray[Any]]] = []
    only = reading.only if reading.whole else None
    rows = len(reading.kept) if only is None else len(only)
    for block, values in zip(layout.blocks, products, strict=True):
        if block.term.categories:
            continue
        if values is None and block.term.column is not None:
            values = reading.numbers[block.term.column].values
            values = values if only is None else values[only]
        if values is not None:
            whole.append((int(block.table), values))
    numbers = np.empty((rows, len(whole)))
    fill(numbers, [(slot, values) for slot, (_, values) in enumerate(whole)])
    blocks = [block for block in layout.blocks if block.term.categories]
    indicated = _indicated(layout, reading)
    codes = np.empty((rows, len(blocks) + len(indicated)), np.int32)
    for own, block in zip(codes.T, blocks, strict=False):
        if len(block.term.categories) == 1:
            reading.write_codes(block.term.categories[0][0], block.table, own)
        else:
            own[:] = _cells(block, reading)
    for own, columns in zip(codes.T[len(blocks) :], indicated, strict=True):
        own[:] = columns
    places = np.array([place for place, _ in whole], np.int64)
    return Categorical(numbers, places, codes, len(layout.names))


def _indicated(layout: Layout, reading: Reading) -> list[NDArray[np.int64]]:
    """The columns of missing values, -1 where they are not."""
    return [
        np.where(reading.of_kept(missing), column, -1)
        for name, column in layout.indicators.items()
        if (missing := reading.numbers[name].missing) is not None
    ]


def _cells(block: Block, reading: Reading) -> NDArray[np.int64]:
    """The columns of a term's levels, -1 for none."""
    first, *others = (name for name, _ in block.term.categories)
    if not others:
        return reading.codes(first, block.table)
    found: NDArray[np.int64] = block.table[tuple(map(reading.codes, (first, *others)))]
    return found
