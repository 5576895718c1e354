"""Ctrl-C as a wish to finish early, not to lose what was learned."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed; what is called then."""

    def __init__(self) -> None:
        self.pressed = False
        self.then: list[Callable[[], None]] = []

    def press(self) -> None:
        """What the first Ctrl-C does."""
        self.pressed = True
        for call in self.then:
            call()

    @contextmanager
    def caught(self, then: Callable[[], None]) -> Iterator[None]:
        """In this block the first Ctrl-C calls ``then``; the second one raises as usual.

        Only the main thread is told of signals; in others nothing is caught.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.then.append(then)
        before = signal.getsignal(signal.SIGINT)

        def first(number: int, frame: FrameType | None) -> None:
            del number, frame
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.press()

        signal.signal(signal.SIGINT, first)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self.then.remove(then)
