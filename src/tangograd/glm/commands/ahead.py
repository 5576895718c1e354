"""A source that is read in the background, a few items ahead of their use."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Source = TypeVar("Source")
Item = TypeVar("Item")
WAIT = 0.05  # seconds, between looks at whether to stop
AHEAD = 2


class Ahead(Generic[Source, Item]):
    """The items that ``work`` makes of what ``source`` gives, in order.

    The source is read in a thread; it may wait there, for a disk, a pipe, or a library that lets
    other threads run. The work is done by whoever has time: the thread, when it has read enough, or
    the one that uses the items, when none is ready. What either raises is raised by the iteration.

    >>> list(Ahead(iter([1, 2]), lambda number: [number, -number]))
    [1, -1, 2, -2]

    Args:
        source: read in the thread.
        work: makes any number of items of one of the source's; it is never run twice at once.
        size: so many of the source's wait at most, and so many items.
    """

    def __init__(
        self,
        source: Iterator[Source],
        work: Callable[[Source], Iterable[Item]],
        size: int = AHEAD,
    ) -> None:
        self._source, self._work, self._size = source, work, size
        self._read: deque[Source] = deque()  # and not worked on yet
        self._current: Iterator[Item] = iter(())  # what is made of the last that was
        self._made: deque[tuple[Item] | BaseException] = deque()
        self._changed = threading.Condition()  # anything here has
        self._working = threading.Lock()  # on the next item
        self._failure: BaseException | None = None  # of the source, after all that it gave
        self._waiting = False  # for the source
        self._ended = False  # nothing more comes from the thread
        self._hungry = False  # whoever uses the items waits for one
        self._stopped = self._abandoned = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __iter__(self) -> Iterator[Item]:
        """The items; after ``stop``, those of what has been read already."""
        self._thread.start()
        try:
            while (made := self._next()) is not None:
                if isinstance(made, BaseException):
                    raise made
                yield made[0]
        finally:
            self._abandon()

    def stop(self) -> None:
        """Take nothing more from the source; it need not return from where it waits."""
        self._stopped = True  # without the lock: this may be called by a signal, at any time

    def _next(self) -> tuple[Item] | BaseException | None:
        """The next item, or what was raised in its place; ``None`` at the end."""
        while True:
            # the thread may do no more than wait for its source
            last = self._ended or (self._stopped and self._waiting)
            with self._working:
                made = self._made.popleft() if self._made else self._make()
            with self._changed:
                self._changed.notify()
                if made is not None or last:
                    return made or self._failure
                if not (self._read or self._made or self._ended):
                    self._hungry = True
                    self._changed.wait(WAIT)
                    self._hungry = False

    def _make(self) -> tuple[Item] | None:
        """The next item, unless there is nothing to make it of; only by whoever has the lock."""
        while True:
            for item in self._current:
                return (item,)
            if not self._read:
                return None
            self._current = iter(self._work(self._read.popleft()))

    def _abandon(self) -> None:
        """Let the thread end, whatever it is at; it is not waited for if the source may block."""
        self._stopped = self._abandoned = True
        while self._thread.is_alive() and not self._waiting:
            with self._changed:
                self._changed.notify()
            self._thread.join(WAIT)

    # --- in the thread

    def _run(self) -> None:
        try:
            while (item := self._from_source()) is not None:
                with self._changed:
                    self._read.append(item[0])
                    self._changed.notify()
                # whoever is hungry makes it, and there may be one more
                while len(self._read) >= self._size + self._hungry and not self._abandoned:
                    self._help()
        except BaseException as error:  # of all kinds: it is raised where the items are used
            self._failure = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _from_source(self) -> tuple[Source] | None:
        if self._stopped:
            return None
        self._waiting = True
        found = next(((item,) for item in self._source), None)
        self._waiting = False
        # whoever stopped this while it waited may have gone on without it
        return None if self._stopped else found

    def _help(self) -> None:
        """Make an item, or wait for some to be used."""
        made: tuple[Item] | BaseException | None
        if len(self._made) < self._size:
            with self._working:
                try:
                    made = self._make()
                except BaseException as error:  # as above
                    made, self._stopped = error, True
                if made is not None:
                    self._made.append(made)
            with self._changed:
                self._changed.notify()
            return
        with self._changed:
            if len(self._made) >= self._size:
                self._changed.wait(WAIT)
