"""``tangograd predict``: a table goes in, CSV comes out, batch by batch."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from tangograd.files import replacing, writable_folder
from tangograd.glm.commands.ahead import Ahead
from tangograd.glm.commands.options import UsageError
from tangograd.glm.commands.predicting import Model, Predictions
from tangograd.glm.commands.progress import Progress
from tangograd.glm.commands.sources import source
from tangograd.glm.designs.columns import decoded
from tangograd.glm.designs.labels import label as label_text
from tangograd.glm.errors import DataError
from tangograd.glm.numerics.blas_threads import single_thread
from tangograd.glm.reports.wording import plural, printable, shorten
from tangograd.glm.tables.readers import Batch, Table, open_table, where

PIECE_ROWS = 8192


@dataclass
class Tally:
    """Of predicted rows.

    Attributes:
        rows: all of them.
        empty: those without a prediction.
        missing: of them, by the column that is missing.
        unseen: of them, by column and level.
    """

    rows: int = 0
    empty: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    unseen: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, rows: int, found: Predictions) -> None:
        """Those of further rows."""
        self.rows += rows
        self.empty += rows - len(found.kept)
        self.missing.update(found.dropped)
        for column, levels in found.unseen.items():
            self.unseen.setdefault(column, Counter()).update(levels)

    def sentences(self) -> Iterator[str]:
        """How many rows were predicted, and why others were not."""
        yield f"{plural(self.rows - self.empty, 'row')} predicted"
        if self.empty:
            yield f"{plural(self.empty, 'row')} without a prediction, left empty:"
        for name, count in self.missing.most_common(10):
            yield f"  column {name!r} is missing in {count:,}"
        for name, levels in self.unseen.items():
            few = ", ".join(repr(level) for level, _ in levels.most_common(5))
            more = f" and {len(levels) - 5:,} more" if len(levels) > 5 else ""
            yield (
                f"  column {name!r} has a level that was not learned from in "
                f"{sum(levels.values()):,}: {shorten(printable(few), 200)}{more}"
            )


def predict_to(
    output: Path | None,
    model: Path,
    data: str,
    *,
    interval: float | None = None,
    keep: Sequence[str] = (),
    keep_all: bool = False,
    progress: Progress,
) -> Tally:
    """Predict to a file, which is written whole or not at all, or to standard output.

    Args:
        output: the file; ``None`` for standard output.
        model: its file.
        data: a file, a folder, or ``"-"``.
        interval: the level of intervals.
        keep: columns to be written in front of the predictions.
        keep_all: keep all.
        progress: shown on the way.

    Raises:
        UsageError: the options do not go together.
        DataError: the model or the data break a rule.
        OSError: the file cannot be written; one that was there is kept.
    """
    if interval is not None and not 0 < interval < 1:
        raise UsageError(f"--interval is between 0 and 1, such as 0.95; got {interval:g}")
    work = partial(
        predict,
        Model.load(model),
        interval=interval,
        keep=keep,
        keep_all=keep_all,
        progress=progress,
    )
    if output is None:
        return _to_standard_output(lambda write: work(source(data), write))
    if output.resolve() in (model.resolve(), Path(data).resolve()):
        raise UsageError(f"{output} is what is read, and would be lost: write to another file")
    writable_folder(output.parent)
    with replacing(output) as draft, draft.open("wb") as file:
        return work(source(data), file.write)


def _to_standard_output(work: Callable[[Callable[[bytes], object]], Tally]) -> Tally:
    try:
        tally = work(sys.stdout.buffer.write)
        sys.stdout.flush()
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Tally()
    return tally


def predict(
    model: Model,
    rows: Any,
    write: Callable[[bytes], object],
    *,
    interval: float | None = None,
    keep: Sequence[str] = (),
    keep_all: bool = False,
    progress: Progress,
) -> Tally:
    """Write the predictions for all rows of a table as CSV.

    The columns: those that are kept, as they are; ``prediction``, the mean or the likeliest class;
    for classes ``probability_…`` of each; with an interval ``low`` and ``high`` of the mean, or of
    each probability. Rows with a missing value or an unknown level are empty.

    Args:
        model: the model.
        rows: as for ``open_table``.
        write: takes the CSV, piece by piece.
        interval: the level of intervals.
        keep: columns to be written in front of the predictions.
        keep_all: keep all.
        progress: shown on the way.

    Raises:
        DataError: the data break a rule, or the model has no covariance.
    """
    table = _opened(model, rows, keep, keep_all)
    kept = tuple(table.schema.names) if keep_all else tuple(keep)
    read = tuple(dict.fromkeys((*kept, *model.reads)))
    made = names(model, interval is not None)
    twice = [name for name in kept if name in made]
    if twice:
        raise DataError(
            f"column {twice[0]!r} would be there twice, as what is kept and as what is predicted: "
            "rename it in the data, or do not keep it"
        )
    batches = table.batches(read)
    write(_line([*kept, *made]))
    tally = Tally()
    work = partial(_pieces, model, interval, kept)
    with (
        single_thread(),
        progress.stage("predicting", table.total_bytes) as stage,
    ):
        for text, count, found, bytes_read in Ahead(batches, work):
            write(text)
            tally.add(count, found)
            stage.update(count, bytes_read)
    return tally


def names(model: Model, interval: bool) -> list[str]:
    """The columns that are predicted.

    >>> from tangograd.glm.fitted import Fitted
    >>> fitted = Fitted(
    ...     "gaussian", "identity", ("x",), np.ones(1), rows=9, weight=9.0, dispersion=1.0,
    ...     log_likelihood=-9.0, deviance=9.0, null_deviance=9.0, progressive=False
    ... )
    >>> names(Model(fitted), True)
    ['prediction', 'low', 'high']
    """
    classes = model.fitted.classes
    if classes is None:
        return ["prediction", *(["low", "high"] if interval else [])]
    ends = [f"{end}_{label_text(label)}" for label in classes for end in ("low", "high")]
    shares = [f"probability_{label_text(label)}" for label in classes]
    return ["prediction", *shares, *(ends if interval else [])]


def _opened(model: Model, rows: Any, keep: Sequence[str], keep_all: bool) -> Table:
    """The table, with what is only kept as text, so that it stays as it is."""
    texts = dict.fromkeys(keep, pa.string())
    try:
        return open_table(rows, types=_OrText(model.types) if keep_all else texts | model.types)
    except OSError as error:
        raise DataError(f"cannot read {rows}: {error.strerror or error}") from error


class _OrText(UserDict[str, pa.DataType]):
    """Types of some columns; all others are text."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> pa.DataType:
        return pa.string()


def _pieces(
    model: Model, interval: float | None, kept: Sequence[str], batch: Batch
) -> Iterator[tuple[bytes, int, Predictions, int]]:
    for start in range(0, batch.records.num_rows, PIECE_ROWS):
        records = batch.records.slice(start, PIECE_ROWS)
        found = model.predict(records, interval=interval, where=partial(_place, batch, start))
        columns = [decoded(records.column(name)) for name in kept]
        text = _csv([*columns, *_columns(model, found, records.num_rows)])
        yield text, records.num_rows, found, batch.bytes_read


def _csv(columns: Sequence[pa.Array]) -> bytes:
    """Lines of CSV; texts are in quotes only if one of them needs it."""
    records = pa.record_batch(columns, names=[f"c{i}" for i in range(len(columns))])
    text = io.BytesIO()
    try:
        pa_csv.write_csv(
            records, text, pa_csv.WriteOptions(include_header=False, quoting_style="none")
        )
    except pa.ArrowInvalid:
        text = io.BytesIO()
        pa_csv.write_csv(records, text, pa_csv.WriteOptions(include_header=False))
    lines = text.getvalue()
    if len(columns) == 1:  # many readers skip empty lines
        lines = b"\n".join(line or b'""' for line in lines[:-1].split(b"\n")) + b"\n"
    return lines


def _place(batch: Batch, start: int, index: int) -> str:
    return where(batch, start + index)


def _columns(model: Model, found: Predictions, rows: int) -> list[pa.Array]:
    spread = partial(_spread, rows, found.kept)
    classes = model.fitted.classes
    ends = None if found.low is None or found.high is None else (found.low, found.high)
    if classes is None:
        return [spread(values) for values in (found.mean, *(ends or ()))]
    likeliest = spread(found.mean.argmax(axis=1))
    parts = [pa.array(classes).take(likeliest)]
    parts += [spread(found.mean[:, k]) for k in range(len(classes))]
    if ends is not None:
        parts += [spread(end[:, k]) for k in range(len(classes)) for end in ends]
    return parts


def _spread(rows: int, kept: NDArray[np.int64], values: NDArray[Any]) -> pa.Array:
    """The values in the rows that have them, nothing in the others."""
    whole, absent = np.zeros(rows, values.dtype), np.ones(rows, dtype=bool)
    whole[kept], absent[kept] = values, False
    return pa.array(whole, mask=absent)


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
