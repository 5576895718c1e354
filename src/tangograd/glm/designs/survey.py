"""A look at a table before the fit: its levels, and which columns have missing values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tangograd.glm.designs.blueprint import Blueprint
from tangograd.glm.designs.columns import (
    Faults,
    Kind,
    Levels,
    Numbers,
    encode,
    numbers,
    take_column,
)
from tangograd.glm.designs.layout import MAX_LEVELS, too_many_levels


@dataclass
class Survey:
    """What was found.

    Attributes:
        rows: that a fit will use.
        counts: how many of them have each level, for each categorical column and the target.
        missing: columns with missing values that are to be indicated.
    """

    rows: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def levels(self, column: str, kind: Kind) -> list[str]:
        """The levels of a column in sorted order (numbers by size)."""
        found = self.counts[column]
        return sorted(found, key=float) if kind == "number" else sorted(found)


def survey(plan: Blueprint, levels_of: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Survey:
    """Read a table for its levels and missing values, in memory that its rows do not matter to.

    Args:
        plan: the parts of the columns.
        levels_of: the columns whose levels are wanted (the target may be among them).
        batches: the table; of the columns, those of ``to_survey`` are enough.

    Raises:
        DataError: a column has too many levels.
    """
    found = Survey(counts={name: Counter() for name in levels_of})
    kinds = {**plan.kinds, plan.target: plan.target_kind}
    wanted = to_survey(plan, levels_of)
    levelled = {*plan.level_columns, *levels_of}
    for batch in batches:
        absent = np.zeros(batch.num_rows, dtype=bool)
        encoded: dict[str, Levels] = {}
        for name in wanted:
            array = take_column(batch, name, kinds[name])
            column: Levels | Numbers
            if name in levelled:
                column = encoded[name] = encode(array)
            else:
                column = numbers(name, array, Faults())
            if column.missing is None:
                continue
            if plan.na == "indicator" and name != plan.target:
                found.missing.add(name)
            else:
                absent |= column.missing
        found.rows += batch.num_rows - int(absent.sum())
        for name, counter in found.counts.items():
            levels = encoded[name]
            codes = levels.codes[(levels.codes >= 0) & ~absent]
            tally = np.bincount(codes, minlength=len(levels.labels)).tolist()
            counter.update({k: n for k, n in zip(levels.labels, tally, strict=True) if n})
            if len(counter) > MAX_LEVELS:
                raise too_many_levels(name)
    return found


def to_survey(plan: Blueprint, levels_of: Sequence[str]) -> tuple[str, ...]:
    """The columns that a survey must read: all if missing values matter, none if nothing does."""
    if plan.na is None:
        return tuple(levels_of)
    if plan.na == "drop" and not levels_of:
        return ()
    return (*plan.columns, plan.target)
