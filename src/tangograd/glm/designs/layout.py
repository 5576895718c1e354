"""Which column of the design matrix belongs to which level, also while new levels appear."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.designs.labels import MISSING, did_you_mean, told
from tangograd.glm.designs.terms import Term
from tangograd.glm.errors import DataError

MAX_LEVELS = 10_000
MAX_COLUMNS = 100_000
DENSE_WIDTH = 64
DENSE_SHARE = 0.25


@dataclass
class Category:
    """The levels of a categorical column, in order.

    Attributes:
        column: its name.
        origin: of the levels: ``"sorted"`` (found in the data beforehand), ``"given"`` or
            ``"first seen"`` (opened as they come).
        baseline: the level without a coefficient; the first that is not missing, unless stated.
        stated: whether the baseline was.
        codes: from each level to its number.
        counts: rows of each level, where they were counted beforehand.
        seen: whether any row has the baseline; ``None`` before it was looked.
    """

    column: str
    origin: str
    baseline: str | None = None
    stated: bool = False
    codes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    seen: bool | None = None

    @property
    def labels(self) -> list[str]:
        """The levels in order."""
        return list(self.codes)

    @property
    def open(self) -> bool:
        """Whether new levels may come."""
        return self.origin == "first seen"

    def add(self, labels: Iterable[str]) -> None:
        """Append levels.

        Raises:
            DataError: they are too many.
        """
        for label in labels:
            self.codes.setdefault(label, len(self.codes))
            if self.baseline is None and label != MISSING:
                self.baseline = label
        if len(self.codes) > MAX_LEVELS:
            raise too_many_levels(self.column)

    def check_baseline(self) -> None:
        """Make sure that a stated baseline is a level.

        Raises:
            DataError: it is not.
        """
        if self.baseline is not None and self.baseline not in self.codes:
            raise DataError(
                f"the baseline {told(self.baseline)} is not a level of {self.column!r}; its "
                f"levels are: {shown(self.labels)}.{did_you_mean(self.baseline, self.codes)}"
            )

    @property
    def note(self) -> str:
        """A sentence for the user.

        >>> category = Category("region", "sorted")
        >>> category.add(["east", "north"])
        >>> category.note
        "region: 2 levels, baseline 'east' (first in sorted order)"
        """
        if len(self.codes) < 2:
            held = f"one level only, {told(self.labels[0])}" if self.codes else "no levels"
            return f"{self.column}: {held}"
        words = {"sorted": "first in sorted order", "given": "first of the levels given"}
        reason = "as stated in the formula" if self.stated else words.get(self.origin, self.origin)
        absent = ", which no row has" if self.seen is False else ""
        number = len(self.codes)
        baseline = told(self.baseline)
        return f"{self.column}: {number} levels, baseline {baseline} ({reason}){absent}"


def shown(labels: Sequence[str], most: int = 10) -> str:
    """A list for a message, cut where it is long.

    >>> shown(["a", "b", "c"], 2)
    "'a', 'b', … (3 in all)"
    """
    listed = ", ".join(map(told, labels[:most]))
    return listed + (f", … ({len(labels)} in all)" if len(labels) > most else "")


def too_many_levels(column: str) -> DataError:
    """The error for a column that is rather a name of each row than a category."""
    return DataError(
        f"column {column!r} has more than {MAX_LEVELS} levels: leave it out (--exclude {column}) "
        "or group its values"
    )


@dataclass
class Block:
    """The columns of a term: ``table[codes of its levels]``, -1 where all is the baseline's."""

    term: Term
    table: NDArray[np.int64]


class Layout:
    """The columns of the design matrix: those of the terms, then indicators of missing values.

    What is opened later is appended at the end, so that earlier columns keep their places.

    Args:
        terms: in order.
        categories: of all categorical columns of the terms, by name; ``open`` extends them.
        indicators: numeric columns with an indicator of missing values.

    Attributes:
        names: of the columns, without the intercept.
        blocks: the columns of each term.
        indicators: the column for the missing values of each numeric column that has one.
        opened: what was opened after the beginning, in order.

    >>> from tangograd.glm.designs.terms import main_effects
    >>> region = Category("region", "first seen")
    >>> region.add(["north"])
    >>> layout = Layout(main_effects({"region": True, "x": False}), {"region": region}, ())
    >>> layout.open("region", "south")
    >>> layout.names
    ['x', 'region[south]']
    """

    def __init__(
        self,
        terms: Sequence[Term],
        categories: Mapping[str, Category],
        indicators: Sequence[str],
    ) -> None:
        self.categories = categories
        self.names: list[str] = []
        self.indicators: dict[str, int] = {}
        self.opened: list[tuple[str, str | None]] = []
        self._known: set[str] = set()
        self.blocks = [
            Block(term, np.full((0,) * len(term.categories), -1, dtype=np.int64)) for term in terms
        ]
        for block in self.blocks:
            self._extend(block, {})
        for column in indicators:
            self._indicate(column)

    def open(self, column: str, label: str | None) -> None:
        """Append the columns of a new level, or of missing numbers (``None``)."""
        self.opened.append((column, label))
        if label is None:
            self._indicate(column)
            return
        category = self.categories[column]
        category.add([label])
        for block in self.blocks:
            if any(name == column for name, _ in block.term.categories):
                self._extend(block, {column: [label]})

    @cached_property
    def mixed(self) -> bool:
        """Whether there are products of numbers and levels."""
        return any(block.term.numbers and block.term.categories for block in self.blocks)

    @property
    def sparse(self) -> bool:
        """Whether the matrix is better kept as CSR: wide, and mostly zeros."""
        width, entries = len(self.names), len(self.blocks)
        return width > DENSE_WIDTH and entries <= DENSE_SHARE * width

    def _extend(self, block: Block, only: Mapping[str, list[str]]) -> None:
        """Give columns to the combinations of levels, or to those of some levels alone."""
        axes = [(self.categories[name], full) for name, full in block.term.categories]
        block.table = _enlarged(block, [len(category.codes) for category, _ in axes])
        choices = [
            [
                level
                for level in only.get(category.column, category.labels)
                if full or level != category.baseline
            ]
            for category, full in axes
        ]
        for backwards in itertools.product(*reversed(choices)):  # the first varies fastest
            levels = backwards[::-1]
            cell = tuple(
                category.codes[level] for (category, _), level in zip(axes, levels, strict=True)
            )
            by_column = {
                category.column: level for (category, _), level in zip(axes, levels, strict=True)
            }
            block.table[cell] = self._append(block.term.name(by_column))

    def _indicate(self, column: str) -> None:
        self.indicators[column] = self._append(f"{column}[missing]")

    def _append(self, name: str) -> int:
        if len(self.names) >= MAX_COLUMNS:
            raise DataError(
                f"the design has more than {MAX_COLUMNS} columns (at {name!r}): leave out "
                "interactions or columns of many levels"
            )
        if name in self._known:
            raise DataError(
                f"two coefficients would be called {name!r}: rename the column of that name"
            )
        self._known.add(name)
        self.names.append(name)
        return len(self.names) - 1


def _enlarged(block: Block, sizes: Sequence[int]) -> NDArray[np.int64]:
    old = block.table
    if all(size <= held for size, held in zip(sizes, old.shape, strict=True)):
        return old
    if math.prod(sizes) > 2 * MAX_COLUMNS:
        raise DataError(
            f"the interaction {':'.join(block.term.columns)} has {math.prod(sizes)} combinations "
            "of levels: leave it out, or group the levels"
        )
    shape = [
        held if size <= held else max(size, 2 * held)
        for size, held in zip(sizes, old.shape, strict=True)
    ]
    table = np.full(shape, -1, dtype=np.int64)
    table[tuple(slice(held) for held in old.shape)] = old
    return table
