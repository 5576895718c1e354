"""The levels of a table's columns, read before the rows are learned from; and the user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tangograd.glm.commands.holdout import Draw
from tangograd.glm.commands.progress import Progress
from tangograd.glm.designs.columns import numbers_of_rows
from tangograd.glm.designs.design import Design
from tangograd.glm.designs.labels import MISSING, label
from tangograd.glm.designs.layout import shown
from tangograd.glm.errors import DataError
from tangograd.glm.reports.wording import plural
from tangograd.glm.tables.tables import Table

#: of larger tables the levels of the beginning are enough, if all of them are frequent there; if
#: not in the shorter one, perhaps in the longer
LARGE_BYTES = 1 << 28
BEGINNINGS_BYTES = (1 << 24, 1 << 26)
FREQUENT = 50
#: numbers for one that is not, in a column that is told of it
ODD = 10


class Levels:
    """Finds the levels of a table, of the rows that are learned from alone.

    Of a large table they are those of its beginning, if each is frequent there; others are opened
    as they come.

    Args:
        table: that can be read more than once.
        share: of the rows that are held out.
        seed: of the draw which.
        progress: shown on the way.
    """

    def __init__(self, table: Table, share: float, seed: int, progress: Progress) -> None:
        self.table, self.share, self.seed, self.progress = table, share, seed, progress

    def found(self, design: Design, *, classes: bool) -> Design:
        """The design with its levels.

        Args:
            design: whose levels are open.
            classes: the target's levels are wanted as well, all of them.
        """
        if design.complete:
            return design
        openings = [name for name, category in design.categories.items() if category.open]
        if not openings and not classes and design.blueprint.na != "indicator":
            design.complete = True
            return design
        if not classes and self._large:
            for most in BEGINNINGS_BYTES:
                with suppress(DataError):  # a baseline that is not there yet
                    begun = self._surveyed(design, most)
                    counts = [begun.categories[name].counts.values() for name in openings]
                    if all(min(each, default=0) >= FREQUENT for each in counts):
                        return _reopened(begun, openings)
        return self._surveyed(design, None)

    @property
    def _large(self) -> bool:
        return (self.table.total_bytes or 0) > LARGE_BYTES

    def _surveyed(self, design: Design, most: int | None) -> Design:
        total = self.table.total_bytes if most is None else most
        with self.progress.stage("reading levels", total) as stage:

            def learned() -> Iterator[pa.RecordBatch]:
                draw = Draw(self.seed)
                for batch in self.table.batches(design.to_survey):
                    records = batch.records
                    if self.share:
                        which = draw.next(records.num_rows) >= self.share
                        records = records.take(numbers_of_rows(which))
                    yield records
                    stage.update(batch.records.num_rows, batch.bytes_read)
                    if most is not None and batch.bytes_read >= most:
                        return

            return design.surveyed(learned())


def _reopened(design: Design, openings: Sequence[str]) -> Design:
    """The design for further levels to come."""
    for name in openings:
        category = design.categories[name]
        category.origin, category.counts = "first seen", {}
    design.complete, design.surveyed_rows = False, None
    return design


def settle(design: Design, table: Table) -> None:
    """All rows have been seen: nothing else will come, and the first levels were in order."""
    if not table.rereadable or design.complete:
        return
    later = {name for name, _ in design.layout.opened}
    for name, category in design.categories.items():
        if category.open and name not in later:
            category.origin = "sorted"
    design.complete = True


def notes_on_levels(design: Design, rows: int) -> Iterator[str]:
    """Categories that may be meant as numbers, or that are names of the rows."""
    for name, category in design.categories.items():
        count = len(category.labels)
        if count > max(ODD, rows / 2):
            yield (
                f"{name} has {count:,} levels in {plural(rows, 'row')}, so it tells the rows apart "
                f"rather than explains them: leave it out (--exclude {name})"
            )
        odd = [level for level in category.labels if level != MISSING and not _is_number(level)]
        if odd and count >= ODD * len(odd):
            yield (
                f"{name} counts as categories since not all of it are numbers, such as "
                f"{shown(odd, 3)}: correct them or leave them empty if they should be"
            )


def read_levels(path: Path | None) -> dict[str, list[object]]:
    """The user's levels by column.

    Raises:
        DataError: the file is not as it should be.
    """
    if path is None:
        return {}
    rule = 'a JSON object of lists, such as {"region": ["north", "south"]}, the baseline first'
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"there is no file {str(path)!r} of levels") from error
    except ValueError as error:
        raise DataError(f"{path} is not {rule}: {error}") from error
    if not isinstance(found, dict) or not all(
        isinstance(values, list)
        and values
        and all(isinstance(value, str | int | float) for value in values)
        for values in found.values()
    ):
        raise DataError(f"{path} is not {rule}")
    return found


def are_texts(values: Sequence[object]) -> bool:
    """Whether levels are neither all numbers nor true and false, whatever the data look like.

    >>> are_texts(["north", "7"]), are_texts([7, "8"]), are_texts([True, "false"])
    (True, False, False)
    """
    texts = [str(label(value)).lower() for value in values]
    return not (all(map(_is_number, texts)) or set(texts) <= {"true", "false"})


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
