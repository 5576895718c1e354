"""Readings of a table that a model learns from: prepared in the background, stopped by Ctrl-C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tangograd.glm import design as designs
from tangograd.glm.ahead import Ahead
from tangograd.glm.design import Design
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.fitted import Array
from tangograd.glm.holdout import Draw, Reservoir
from tangograd.glm.inference import Target
from tangograd.glm.interrupts import Interrupt
from tangograd.glm.memory import give_back
from tangograd.glm.progress import Progress
from tangograd.glm.rows import Rows
from tangograd.glm.tables import Batch, Table, where

PIECE_BYTES = 1 << 22
PIECES_TO_TIDY = 64


@dataclass
class Counts:
    """Of the rows of a table.

    Attributes:
        read: so far.
        held: of them, held out.
        dropped: of the others, left out since a column is missing, by column.
        unseen: of those held out, with a level that was never learned from, by column.
    """

    read: int = 0
    held: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        """Those of further rows."""
        self.read += other.read
        self.held += other.held
        self.dropped.update(other.dropped)
        self.unseen.update(other.unseen)


@dataclass(frozen=True)
class Piece:
    """Rows on their way to the model, and those that are kept from it with their numbers."""

    rows: Rows
    held: Rows | None
    keys: Array
    counts: Counts
    bytes_read: int


class Preparation:
    """From the batches of a table to pieces of numbers.

    Args:
        design: from tables to matrices.
        target: from its values to numbers.
        share: of the rows that are held out.
        seed: of the draw which.
        reservoir: that the rows held out go to; ``None`` if they are known already.
    """

    def __init__(
        self,
        design: Design,
        target: Target,
        share: float,
        seed: int,
        reservoir: Reservoir | None = None,
    ) -> None:
        self.design, self.target, self.share = design, target, share
        self.reservoir = reservoir
        self.draw = Draw(seed)

    def __call__(self, batch: Batch) -> Iterator[Piece]:
        """The pieces of a batch, none of them large."""
        total = batch.records.num_rows
        most = max(1024, PIECE_BYTES // (8 * (len(self.design.names) + 1)))
        for start in range(0, total, most):
            yield self._piece(batch, start, most)

    def _piece(self, batch: Batch, start: int, most: int) -> Piece:
        part = _Part(batch, batch.records.slice(start, most), start)
        try:
            return self._split(part)
        except DataError:
            # the first that is wrong of all rows, be they held out or not
            self._numbers(self._tested(part), part)
            raise

    def _split(self, part: _Part) -> Piece:
        counts = Counts(read=len(part.numbers))
        draws = self.draw.next(counts.read) if self.share else np.ones(counts.read)
        learned = part.chosen(draws >= self.share)
        counts.held = counts.read - len(learned.numbers)
        rows = self.design.rows(learned.records, where=learned.place)
        counts.dropped.update(rows.dropped)
        numbers, held, keys = self._numbers(rows, learned), None, np.empty(0)
        if self.reservoir is not None and draws.min() < self.reservoir.limit:
            drawn = draws < self.reservoir.limit
            found = self._held(part.chosen(drawn), counts)
            held, keys = found[0], draws[drawn][found[1]]
        return Piece(numbers, held, keys, counts, part.batch.bytes_read)

    def _held(self, part: _Part, counts: Counts) -> tuple[Rows, NDArray[np.int64]]:
        """Rows that were held out, and which of them can be used."""
        rows = self._tested(part)
        for name, levels in rows.unseen.items():
            counts.unseen[name] += sum(levels.values())
        return self._numbers(rows, part), rows.kept

    def _tested(self, part: _Part) -> designs.Rows:
        """Rows as those of a test: nothing new is opened, but missing values are as wrong."""
        rows = self.design.rows(part.records, where=part.place, training=False, target=True)
        if rows.dropped and self.design.blueprint.na is None:
            raise part.missing(rows.dropped)
        return rows

    def _numbers(self, rows: designs.Rows, part: _Part) -> Rows:
        kept = part.numbers[rows.kept]
        y = self.target.numbers(np.asarray(rows.y), lambda i: where(part.batch, int(kept[i])))
        n = len(y)
        return Rows(
            rows.X,
            y,
            np.ones(n) if rows.weights is None else rows.weights,
            np.zeros(n) if rows.offset is None else rows.offset,
        )


@dataclass(frozen=True)
class _Part:
    """Some rows of a batch, and their numbers in it, or the first of them."""

    batch: Batch
    records: pa.RecordBatch
    first: int | NDArray[np.int64]

    @property
    def numbers(self) -> NDArray[np.int64]:
        if isinstance(self.first, int):
            return np.arange(self.first, self.first + self.records.num_rows)
        return self.first

    def chosen(self, which: NDArray[np.bool_]) -> _Part:
        """Some of them."""
        if which.all():
            return self
        return _Part(self.batch, self.records.filter(pa.array(which)), self.numbers[which])

    def place(self, index: int) -> str:
        """Of a row, for errors."""
        return where(self.batch, int(self.numbers[index]))

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


class Learner:
    """Has a model learn from the rows of a table.

    Args:
        table: the rows.
        design: from tables to matrices.
        target: from its values to numbers.
        engine: the model.
        share: of the rows that are held out.
        seed: of the draw which.
        progress: shown on the way.
        interrupt: by which the user ends a reading early.

    Attributes:
        counts: of the rows of the first reading, up to where it was ended.
        reservoir: a sample of those held out.
        stage: what was going on when it was interrupted.
    """

    def __init__(
        self,
        table: Table,
        design: Design,
        target: Target,
        engine: OnePass,
        *,
        share: float,
        seed: int,
        progress: Progress,
        interrupt: Interrupt,
    ) -> None:
        self.table, self.design, self.target, self.engine = table, design, target, engine
        self.share, self.seed = share, seed
        self.progress, self.interrupt = progress, interrupt
        self.counts = Counts()
        self.reservoir = Reservoir(share)
        self.stage = ""

    def first_pass(self, head: Sequence[Batch], rest: Iterator[Batch]) -> None:
        """Learn from all rows but those held out.

        Args:
            head: batches that were read already; learned from in any case.
            rest: those after them.
        """
        reservoir = self.reservoir if self.share else None
        batches = iter(head) if self.interrupt.pressed else chain(head, rest)
        with closing(self._pieces("learning", batches, reservoir)) as pieces:
            for piece in pieces:
                self._feed(piece.rows)
                self.counts.add(piece.counts)
                if piece.held is not None:
                    self.reservoir.add(piece.held, piece.keys)

    def another_pass(self, number: int) -> None:
        """Learn from the same rows again."""
        self.engine.rewind()
        batches = self.table.batches(self.design.reads())
        with closing(self._pieces(f"learning, pass {number}", batches)) as pieces:
            for piece in pieces:
                self._feed(piece.rows)

    def polish(self) -> None:
        """Newton steps, each on a whole reading; an interrupted one is not made."""
        try:
            self.engine.polish(self._again)
        except _InterruptedError:
            self.engine.passes -= 1

    def _again(self) -> Iterator[Rows]:
        batches = self.table.batches(self.design.reads())
        for piece in self._pieces("polishing", batches):
            yield piece.rows
        if self.interrupt.pressed:
            raise _InterruptedError

    def _feed(self, rows: Rows) -> None:
        self.engine.grow(rows.X.shape[1])
        self.engine.feed_rows(rows)

    def _pieces(
        self, what: str, batches: Iterator[Batch], reservoir: Reservoir | None = None
    ) -> Generator[Piece]:
        """The pieces of a reading, with its progress; until Ctrl-C."""
        self.stage = what
        prepare = Preparation(self.design, self.target, self.share, self.seed, reservoir)
        pieces = Ahead(batches, prepare)
        total = self.table.total_bytes
        # BLAS's own threads would fight with those that read, at a cost of ten times its work
        with (
            self.interrupt.caught(pieces.stop),
            threadpool_limits(1, user_api="blas"),
            self.progress.stage(what, total) as stage,
        ):
            for number, piece in enumerate(pieces, 1):
                yield piece
                stage.update(piece.counts.read, piece.bytes_read, self._loss())
                if number % PIECES_TO_TIDY == 0:
                    give_back()

    def _loss(self) -> float | None:
        """The mean of half the deviance of the rows seen; ``None`` before the first step."""
        tally = self.engine.tally
        return (tally.loss - tally.saturated) / tally.weight if tally.weight > 0 else None


class _InterruptedError(Exception):
    """Ctrl-C in the middle of a reading that counts only as a whole."""
