"""CSV files as streams of batches, converted by pyarrow in several threads.

The text is cut into blocks of whole records here, not by pyarrow's own stream, for three reasons:
blocks are converted side by side, a block that fails is at hand to say where (also on standard
input), and line ends within quotes cost next to nothing.
"""

from __future__ import annotations

import csv
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import PurePath

import pyarrow as pa
import pyarrow.csv as pa_csv

from tangograd.glm.errors import DataError
from tangograd.glm.tables.byte_streams import ByteStream
from tangograd.glm.tables.csv_records import NEWLINE, Layout, count, records
from tangograd.glm.tables.tables import FLOAT, Batch, check_names

HEADER_BYTES = 1 << 20  # the longest header
LONGEST_RECORD = 1 << 24
THREADS = min(4, os.cpu_count() or 1)
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Header:
    """The first line of a CSV file: the layout that it tells, its bytes and its lines."""

    layout: Layout
    length: int
    lines: int


@dataclass(frozen=True)
class _Block:
    """Whole records, their lines and the first's number, and the bytes taken from the file."""

    text: bytes
    lines: int
    first_line: int
    bytes_taken: int


@dataclass(frozen=True)
class CsvPart:
    """A CSV file.

    Attributes:
        name: for messages.
        size: on the disk.
        open: the stream of its bytes, from the beginning.
        once: whether that stream is one and the same each time, and what is read of it gone.
        block_bytes: how much text is converted at once.
        sample_bytes: how much of the text is looked at for the types of the columns.
    """

    name: str
    size: int | None
    open: Callable[[], ByteStream]
    once: bool
    block_bytes: int
    sample_bytes: int

    @cached_property
    def header(self) -> Header:
        """The first line."""
        return header(self.name, self._peek(HEADER_BYTES))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return self.header.layout.names

    def types(self) -> dict[str, pa.DataType] | None:
        """Of the columns, as the first rows look; None if there are none."""
        sample, layout = self._sample(), self.header.layout
        if not sample.strip():
            return None
        infer = partial(_infer, layout)
        try:
            return infer(sample, None)
        except pa.ArrowInvalid as trouble:
            line = self.header.lines + 1
            raise layout.explain(sample, line, infer, trouble, lambda _: "") from trouble

    def read(self, schema: pa.Schema, *, threads: bool = True) -> Iterator[Batch]:
        """The rows, in order; by several threads in any case, for the text takes that long."""
        del threads
        row = 0
        for block, batch in self._converted(schema):
            simple = block.lines == batch.num_rows
            text = None if simple else block.text
            place = partial(_place, self.header.layout, text, block.first_line)
            if batch.num_rows:
                yield Batch(batch, self.name, row, block.bytes_taken, place)
            row += batch.num_rows

    def _converted(self, schema: pa.Schema) -> Iterator[tuple[_Block, pa.RecordBatch]]:
        layout = self.header.layout
        convert = partial(_convert, layout, schema)

        def finished(block: _Block, future: Future[pa.RecordBatch]) -> pa.RecordBatch:
            try:
                return future.result()
            except pa.ArrowInvalid as trouble:
                expected = partial(_expected, schema)
                raise layout.explain(
                    block.text, block.first_line, convert, trouble, expected
                ) from trouble

        with ThreadPoolExecutor(THREADS) as pool:
            pending: deque[tuple[_Block, Future[pa.RecordBatch]]] = deque()
            for block in self._blocks():
                pending.append((block, pool.submit(convert, block.text)))
                if len(pending) > THREADS:
                    yield pending[0][0], finished(*pending.popleft())
            while pending:
                yield pending[0][0], finished(*pending.popleft())

    def _blocks(self) -> Iterator[_Block]:
        layout, line = self.header.layout, self.header.lines + 1
        stream = self.open()
        try:
            stream.read(self.header.length)
            rest = b""
            while data := stream.read(self.block_bytes):
                rest += data
                cut = layout.whole(rest, line)
                if cut:
                    text, rest = rest[:cut], rest[cut:]
                    lines = count(text, NEWLINE)
                    yield _Block(text, lines, line, stream.bytes_taken)
                    line += lines
                _check_length(self.name, rest, line)
            if rest and not stream.interrupted:
                layout.check_end(rest, line)
                yield _Block(rest, count(rest, NEWLINE) + 1, line, stream.bytes_taken)
        finally:
            self._leave(stream)

    def _sample(self) -> bytes:
        layout, length, line = self.header.layout, self.header.length, self.header.lines + 1
        size = self.sample_bytes
        while True:
            text = self._peek(length + size)[length:]
            if len(text) < size and self.interrupted:
                return text[: layout.whole(text, line)]
            if len(text) < size:
                layout.check_end(text, line)
                return text
            sample = text[: layout.whole(text, line)]
            if sample.strip():
                return sample
            _check_length(self.name, text, line)
            size *= 2

    def _peek(self, size: int) -> bytes:
        stream = self.open()
        try:
            data = stream.read(size)
            stream.unread(data)
        finally:
            self._leave(stream)
        return data

    @property
    def interrupted(self) -> bool:
        """Ctrl-C ended a stream that is read once."""
        return self.once and self.open().interrupted

    def _leave(self, stream: ByteStream) -> None:
        if not self.once:
            stream.close()


def header(file: str, text: bytes) -> Header:
    r"""The header at the beginning of a text.

    >>> header("a.csv", b"\xef\xbb\xbfx, y\r\n1,2\r\n").layout.names
    ('x', 'y')

    Raises:
        DataError: the file is empty or not CSV, or columns have no names of their own.
    """
    if not text.strip(BOM + b"\r\n"):
        raise DataError(f"{file} is empty; a CSV file begins with a line of column names")
    if b"\0" in text:
        raise DataError(f"{file} holds binary data; CSV (gzip too) and Parquet files are read")
    body = text.removeprefix(BOM).lstrip(b"\r\n")
    before = len(text) - len(body)
    lines = count(text[:before], NEWLINE)
    delimiter = _delimiter(file, body.partition(b"\n")[0])
    unread = Layout(file, (), delimiter)
    try:
        first = next(records(body, delimiter))
    except csv.Error as error:
        raise unread.unreadable(lines + 1, error) from error
    if not first.closed or (first.end == len(body) and len(text) >= HEADER_BYTES):
        raise DataError(f"{file}: the first line, of column names, has no end: is it a CSV file?")
    try:
        names = tuple(name.encode("latin-1").decode().strip() for name in first.fields)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}, line {lines + 1}: the column names are not UTF-8; convert the file, such as "
            "with `iconv -f WINDOWS-1252 -t UTF-8`"
        ) from error
    if all(_is_number(name) for name in names):
        raise DataError(
            f"{file}: the first line holds numbers where column names are expected; add a line "
            "of names"
        )
    check_names(file, names)
    lines += count(body[: first.end], NEWLINE)
    return Header(Layout(file, names, delimiter), before + first.end, lines)


def _delimiter(file: str, line: bytes) -> str:
    if ".tsv" in PurePath(file).suffixes or (b"\t" in line and b"," not in line):
        return "\t"
    if b";" in line and b"," not in line:
        raise DataError(
            f"{file}: columns are separated by semicolons; save it with commas (and decimal points)"
        )
    return ","


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_length(file: str, text: bytes, line: int) -> None:
    if len(text) > LONGEST_RECORD:
        raise DataError(
            f"{file}, line {line}: no end of the record within {LONGEST_RECORD >> 20} MB: is it a "
            "CSV file, and are its quotes closed?"
        )


def _place(layout: Layout, text: bytes | None, first_line: int, index: int) -> str:
    return f"line {first_line + (index if text is None else layout.line(text, index))}"


def _expected(schema: pa.Schema, name: str) -> str:
    kind = schema.field(name).type
    word = "a number" if kind == FLOAT else f"of type {kind}"
    return (
        f"{word}, though the column was taken for such (from its first rows, or from the model); "
        "correct the value or leave it empty, or declare the levels (--levels) if these are "
        "categories"
    )


def _read(layout: Layout, text: bytes, options: pa_csv.ConvertOptions) -> pa.Table:
    # pyarrow takes a last line without an end apart, also where the line end before is in quotes
    ended = text if text.endswith(b"\n") else text + b"\n"
    return pa_csv.read_csv(
        pa.BufferReader(ended),
        read_options=pa_csv.ReadOptions(
            use_threads=False, block_size=len(ended) + 1, column_names=layout.names
        ),
        parse_options=pa_csv.ParseOptions(delimiter=layout.delimiter),
        convert_options=options,
    )


def _infer(layout: Layout, text: bytes, columns: Sequence[str] | None) -> dict[str, pa.DataType]:
    options = pa_csv.ConvertOptions(strings_can_be_null=True, include_columns=columns)
    found = _read(layout, text, options).schema
    for name, kind in zip(found.names, found.types, strict=True):
        if pa.types.is_binary(kind):
            raise pa.ArrowInvalid(f"column {name!r} is not UTF-8")
    return dict(zip(found.names, found.types, strict=True))


def _convert(
    layout: Layout, schema: pa.Schema, text: bytes, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    chosen = [field for field in schema if columns is None or field.name in columns]
    if not chosen:
        return pa.record_batch([], schema=pa.schema([]))
    options = pa_csv.ConvertOptions(
        strings_can_be_null=True,
        column_types={field.name: field.type for field in chosen},
        include_columns=[field.name for field in chosen],
    )
    found = _read(layout, text, options).combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=pa.schema(chosen))
