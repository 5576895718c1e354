"""Work that is done in the background, a few items ahead of their use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Source = TypeVar("Source")
Item = TypeVar("Item")
WAIT = 0.05  # seconds, between looks at whether to stop
AHEAD = 2


class Ahead(Generic[Source, Item]):
    """The items that ``work`` makes of what ``source`` gives, in order, made in a thread.

    Both may wait in it: for a disk, a pipe, or a library that lets other threads run. What they
    raise is raised by the iteration here.

    >>> list(Ahead(iter([1, 2]), lambda number: [number, -number]))
    [1, -1, 2, -2]

    Args:
        source: read in the thread.
        work: makes any number of items of one of the source's.
        size: so many items wait at most.
    """

    def __init__(
        self,
        source: Iterator[Source],
        work: Callable[[Source], Iterable[Item]],
        size: int = AHEAD,
    ) -> None:
        self._source, self._work = source, work
        self._queue: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(size)
        self._waiting = False  # for the source
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __iter__(self) -> Iterator[Item]:
        """The items; after ``stop``, those that are made already."""
        self._thread.start()
        try:
            while True:
                try:
                    made = self._queue.get(timeout=WAIT)
                except queue.Empty:
                    if self._stopped and (self._waiting or not self._thread.is_alive()):
                        return
                    continue
                if made is None:
                    return
                if isinstance(made, BaseException):
                    raise made
                yield made[0]
        finally:
            self._abandon()

    def stop(self) -> None:
        """Take nothing more from the source; it need not return from where it waits."""
        self._stopped = True

    def _abandon(self) -> None:
        """Let the thread end, whatever it is at; it is not waited for if the source may block."""
        self._stopped = True
        while self._thread.is_alive() and not self._waiting:
            try:
                self._queue.get(timeout=WAIT)
            except queue.Empty:
                continue

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                for made in self._work(item[0]):
                    self._queue.put((made,))
            self._queue.put(None)
        except BaseException as error:  # of all kinds: it is raised where the items are used
            self._queue.put(error)

    def _next(self) -> tuple[Source] | None:
        if self._stopped:
            return None
        self._waiting = True
        item = next(self._source, None)
        self._waiting = False
        # whoever stopped this while it waited may have gone on without it
        return None if item is None or self._stopped else (item,)
