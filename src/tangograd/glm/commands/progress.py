"""How far the reading has come, as a line on standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text


class _TimeLeft(TimeRemainingColumn):
    """The time left, called so; at the end the time it took."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        return text if task.finished else text + " left"


class Stage:
    """One reading of a table."""

    def __init__(self, bar: Bar, task: TaskID, rows: int = 0) -> None:
        self._bar, self._task = bar, task
        self._start = time.perf_counter()
        self.rows = rows

    def update(self, rows: int, bytes_read: int, loss: float | None = None) -> None:
        """So many more rows; so many bytes in all."""
        self.rows += rows
        speed = self.rows / max(time.perf_counter() - self._start, 1e-6)
        figures = f"{self.rows:,} rows {short(speed):>5}/s"
        if loss is not None:
            figures += f" loss {loss:#.4g}"
        self._bar.update(self._task, completed=bytes_read, figures=figures)


class Progress:
    """Lines on standard error, one for each reading.

    Args:
        console: where to.
        quiet: show nothing.
    """

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet

    @contextmanager
    def stage(self, what: str, total: int | None) -> Iterator[Stage]:
        """A reading of so many bytes (``None``: not known), done at the end of the block."""
        columns = (
            TextColumn("{task.description:16}"),
            BarColumn(bar_width=12),
            _TimeLeft(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[figures]}"),
        )
        with Bar(*columns, console=self.console, disable=self.quiet) as bar:
            task = bar.add_task(what, total=total, figures="")
            yield Stage(bar, task)
            if total is None:
                bar.update(task, total=bar.tasks[0].completed)


def short(number: float) -> str:
    """A number in five characters or so.

    >>> short(950), short(12_345), short(1_234_567)
    ('950', '12k', '1.2M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.{0 if number >= 10 * size else 1}f}{unit}"
    return f"{number:.0f}"
