"""From the batches of a table to rows of numbers, those held out apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tangograd.glm.commands.holdout import Draw, Reservoir
from tangograd.glm.commands.inference import Target
from tangograd.glm.designs import design as designs
from tangograd.glm.designs.columns import Mask, numbers_of_rows
from tangograd.glm.designs.design import Design
from tangograd.glm.errors import DataError
from tangograd.glm.fitted import Array
from tangograd.glm.matrices import Block, as_matrix
from tangograd.glm.tables.tables import Batch, at

PIECE_BYTES = 1 << 22
#: rows held out are so few in a piece that it pays to wait for more of them
HELD_ROWS = 2048
#: but not for long: a CSV file's may keep its text, for their lines in it
HELD_PIECES = 16


@dataclass
class Counts:
    """Of the rows of a table.

    Attributes:
        read: so far.
        held: of them, held out.
        dropped: of the others, left out since a column is missing, by column.
    """

    read: int = 0
    held: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Those of further rows."""
        self.read += other.read
        self.held += other.held
        self.dropped.update(other.dropped)


@dataclass(frozen=True)
class Held:
    """Rows held out, with their numbers of the draw.

    Attributes:
        rows: that can be used.
        keys: their numbers.
        unseen: others, with a level that was never learned from, by column.
    """

    rows: Block
    keys: Array
    unseen: Counter[str]


@dataclass(frozen=True)
class Piece:
    """Rows on their way to the model, and some of those that are kept from it.

    Attributes:
        rows: to learn from.
        held: rows held out.
        counts: of all.
        bytes_read: up to here.
        refuse: for rows that were not checked, raises the error for what is wrong, if anything is.
    """

    rows: Block
    held: Held | None
    counts: Counts
    bytes_read: int
    refuse: Callable[[], None] | None


class Preparation:
    """Makes pieces of batches.

    Args:
        design: from tables to matrices.
        target: from its values to numbers.
        share: of the rows that are held out.
        seed: of the draw which.
        reservoir: that the rows held out go to; ``None`` if they are known already.
        checked: says whether to look for NaN and infinity; a model that streams notices them by
            itself, after a block of rows and for nothing.
    """

    def __init__(
        self,
        design: Design,
        target: Target,
        share: float,
        seed: int,
        reservoir: Reservoir | None = None,
        checked: Callable[[], bool] = lambda: True,
    ) -> None:
        self.checked = checked
        self.design, self.target, self.share = design, target, share
        self.reservoir = reservoir
        self.draw = Draw(seed)
        self._waiting: list[tuple[_Part, Array]] = []

    def __call__(self, batch: Batch) -> Iterator[Piece]:
        """The pieces of a batch: of rows that are copied to a matrix, none is large."""
        most = max(1024, PIECE_BYTES // (8 * (self.design.entries + 1)))
        if self.design.separable:  # these are not copied
            most = max(batch.records.num_rows, 1)
        for start in range(0, batch.records.num_rows, most):
            # the place alone: rows held out, which wait for others, are not to keep the batch
            place = partial(_place, batch.file, batch.place, start)
            part = _Part(batch.records.slice(start, most), place)
            try:
                piece = self._piece(part, batch.bytes_read)
            except DataError:
                self.rest()  # which is before these rows, and may be wrong as well
                raise
            yield piece

    def rest(self) -> Held | None:
        """The rows held out that are in no piece yet, at the end."""
        if not self._waiting:
            return None
        parts, keys = zip(*self._waiting, strict=True)
        self._waiting = []
        part = _together(parts)
        with _first_fault(part, self._tested):
            rows, numbers = self._tested(part)
        unseen = Counter({name: sum(levels.values()) for name, levels in rows.unseen.items()})
        return Held(numbers, np.concatenate(keys)[rows.kept], unseen)

    def _piece(self, part: _Part, bytes_read: int) -> Piece:
        counts = Counts(read=part.records.num_rows)
        held = learned = None
        if self.share:
            draws = self.draw.next(counts.read)
            learned = draws >= self.share
            counts.held = counts.read - int(learned.sum())
        checked = self.checked()
        with _first_fault(part, partial(self._check, learned)):
            rows = self._rows(part, learned, checked)
            unnoticed = not len(rows.kept) or not (rows.weights is None or rows.weights.all())
            if not checked and unnoticed:  # of rows that a model leaves out it notices nothing
                checked = True
                rows = self._rows(part, learned, checked)
            numbers = self._numbers(rows, part)
        counts.dropped.update(rows.dropped)
        if self.share and self.reservoir is not None:
            drawn = draws < self.reservoir.limit
            if drawn.any():
                self._waiting.append((part.chosen(drawn), draws[drawn]))
            waiting = sum(len(keys) for _, keys in self._waiting)
            if waiting >= HELD_ROWS or len(self._waiting) >= HELD_PIECES:
                held = self.rest()
        refuse = None if checked else partial(self._refuse, part, learned)
        return Piece(numbers, held, counts, bytes_read, refuse)

    def _rows(self, part: _Part, learned: Mask | None, checked: bool) -> designs.Rows:
        return self.design.rows(
            part.records, where=part.place, apart=True, only=learned, checked=checked
        )

    def _refuse(self, part: _Part, learned: Mask | None) -> None:
        with _first_fault(part, partial(self._check, learned)):
            self._rows(part, learned, checked=True)

    def _check(self, learned: Mask | None, part: _Part) -> None:
        """Look whether anything is wrong in rows, be they held out or not."""
        own = None if learned is None else learned[: part.records.num_rows]
        self._numbers(self._rows(part, own, checked=True), part)
        self._tested(part)

    def _tested(self, part: _Part) -> tuple[designs.Rows, Block]:
        """Rows as those of a test: nothing new is opened, but missing values are as wrong."""
        rows = self.design.rows(
            part.records, where=part.place, training=False, target=True, apart=True
        )
        if rows.dropped and self.design.blueprint.na is None:
            raise part.missing(rows.dropped)
        return rows, self._numbers(rows, part)

    def _numbers(self, rows: designs.Rows, part: _Part) -> Block:
        y = self.target.numbers(np.asarray(rows.y), lambda i: part.place(int(rows.kept[i])))
        n = len(y)
        return Block(
            as_matrix(rows.X),
            y,
            np.ones(n) if rows.weights is None else rows.weights,
            np.zeros(n) if rows.offset is None else rows.offset,
        )


@dataclass(frozen=True)
class _Part:
    """Some rows, and the place of each by its index, for errors."""

    records: pa.RecordBatch
    place: Callable[[int], str]

    def chosen(self, which: NDArray[np.bool_]) -> _Part:
        """Some of them."""
        rows, place = np.flatnonzero(which), self.place
        records = self.records.take(numbers_of_rows(rows))
        return _Part(records, lambda i: place(int(rows[i])))  # not self: the others may go

    def first(self, number: int) -> _Part:
        """The first rows."""
        return _Part(self.records.slice(0, number), self.place)

    def missing(self, names: Iterable[str]) -> DataError:
        """The error for the first missing value of some columns."""
        first, name = min((self._first_missing(name), name) for name in names)
        return DataError(
            f"{self.place(first)}: column {name!r} is missing; drop such rows (--na drop), give "
            "missing values columns of their own (--na indicator), or fill them in"
        )

    def _first_missing(self, name: str) -> int:
        absent = self.records.column(name).is_null(nan_is_null=True)
        return int(np.argmax(absent.to_numpy(zero_copy_only=False)))


@contextmanager
def _first_fault(part: _Part, check: Callable[[_Part], object]) -> Iterator[None]:
    """An error is that of the first row in which something is wrong.

    Columns are looked at one after another, so what is found first need not be. Of the first so
    many rows, the fewest in which anything is wrong have nothing wrong before the last of them.

    Args:
        part: the rows.
        check: raises the error for some rows, if there is one.
    """
    try:
        yield
    except DataError as error:
        right, wrong, first = 0, part.records.num_rows + 1, error
        while right + 1 < wrong:
            middle = (right + wrong) // 2
            try:
                check(part.first(middle))
                right = middle
            except DataError as found:
                wrong, first = middle, found
        # of the same row, that of all rows may say how many others there are
        raise error if str(error).startswith(str(first)) else first from None


def _place(file: str, place: Callable[[int], str], start: int, index: int) -> str:
    return at(file, place, start + index)


def _together(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([part.records.num_rows for part in parts])
    (records,) = (
        pa.Table.from_batches([part.records for part in parts]).combine_chunks().to_batches()
    )

    def place(index: int) -> str:
        number = int(np.searchsorted(ends, index, side="right"))
        before = int(ends[number - 1]) if number else 0
        return parts[number].place(index - before)

    return _Part(records, place)
