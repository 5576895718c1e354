"""Readings of a table that a model learns from: prepared in the background, stopped by Ctrl-C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain

from tangograd.glm.commands.ahead import Ahead
from tangograd.glm.commands.holdout import Reservoir
from tangograd.glm.commands.inference import Target
from tangograd.glm.commands.interrupts import Interrupt
from tangograd.glm.commands.memory import return_large_blocks
from tangograd.glm.commands.preparation import Counts, Held, Piece, Preparation
from tangograd.glm.commands.progress import Progress
from tangograd.glm.designs.design import Design
from tangograd.glm.engine import BLOCK_ROWS, OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.matrices import Block
from tangograd.glm.numerics.blas_threads import single_thread
from tangograd.glm.tables.tables import Batch, Table


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
        unseen: of those, rows with a level that was never learned from, by column.
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
        self.unseen: Counter[str] = Counter()
        self.stage = ""
        self._last: list[Piece] = []  # of the block that is learned from, those not checked

    def first_pass(self, head: Sequence[Batch], rest: Iterator[Batch]) -> None:
        """Learn from all rows but those held out.

        Args:
            head: batches that were read already; learned from in any case.
            rest: those after them.
        """
        reservoir = self.reservoir if self.share else None
        batches = iter(head) if self.interrupt.pressed else chain(head, rest)
        prepare = self._preparation(reservoir)
        with self._explained():
            with closing(self._pieces("learning", batches, prepare)) as pieces:
                for piece in pieces:
                    self._feed(piece)
                    self.counts.add(piece.counts)
                    self._hold(piece.held)
            self.engine.settle()
        self._hold(prepare.rest())

    def another_pass(self, number: int) -> None:
        """Learn from the same rows again."""
        self.engine.rewind()
        batches, prepare = (
            self.table.batches(self.design.reads(), threads=False),
            self._preparation(),
        )
        with self._explained():
            with closing(self._pieces(f"learning, pass {number}", batches, prepare)) as pieces:
                for piece in pieces:
                    self._feed(piece)
            self.engine.settle()

    def polish(self, *, only_if_needed: bool) -> None:
        """Read the table again, as a whole; a reading that is interrupted has no effect."""
        try:
            self.engine.polish(self._again, only_if_needed=only_if_needed)
        except _InterruptedError:
            self.engine.passes -= 1

    def _again(self) -> Iterator[Block]:
        batches = self.table.batches(self.design.reads(), threads=False)
        prepare = Preparation(self.design, self.target, self.share, self.seed)
        for piece in self._pieces("polishing", batches, prepare):
            yield piece.rows
        if self.interrupt.pressed:
            raise _InterruptedError

    def _feed(self, piece: Piece) -> None:
        if piece.refuse is not None:
            self._last.append(piece)
            while sum(len(each.rows) for each in self._last[1:]) >= BLOCK_ROWS:
                self._last.pop(0)
        self.engine.grow(piece.rows.X.shape[1])
        self.engine.feed_rows(piece.rows)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """If learning fails, say what is wrong in the rows of the last block, if anything is.

        NaN and infinity make coefficients infinite, and only then they are looked for. Whatever
        else is wrong was found later, or comes later in the table.
        """
        try:
            yield
        except DataError:
            for each in self._last:
                if each.refuse is not None:
                    each.refuse()
            raise
        finally:
            self._last = []

    def _hold(self, held: Held | None) -> None:
        if held is not None:
            self.reservoir.add(held.rows, held.keys)
            self.unseen.update(held.unseen)

    def _preparation(self, reservoir: Reservoir | None = None) -> Preparation:
        return Preparation(
            self.design,
            self.target,
            self.share,
            self.seed,
            reservoir,
            checked=lambda: not self.engine.streaming,
        )

    def _pieces(
        self, what: str, batches: Iterator[Batch], prepare: Preparation
    ) -> Generator[Piece]:
        """The pieces of a reading, with its progress; until Ctrl-C."""
        self.stage = what
        return_large_blocks()
        pieces = Ahead(batches, prepare)
        total = self.table.total_bytes
        # BLAS's own threads would fight with those that read, at a cost of ten times its work
        with (
            self.interrupt.caught(pieces.stop),
            single_thread(),
            self.progress.stage(what, total) as stage,
        ):
            for piece in pieces:
                yield piece
                stage.update(piece.counts.read, piece.bytes_read, self._loss())

    def _loss(self) -> float | None:
        """The mean of half the deviance of the rows seen; ``None`` before the first step."""
        tally = self.engine.tally
        return (tally.loss - tally.saturated) / tally.weight if tally.weight > 0 else None


class _InterruptedError(Exception):
    """Ctrl-C in the middle of a reading that counts only as a whole."""
