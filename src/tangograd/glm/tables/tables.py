"""A table as a stream: what every kind of source gives, and how its columns are typed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from tangograd.glm.errors import DataError

FLOAT = pa.float64()


@dataclass(frozen=True)
class Batch:
    """Some successive rows of a file.

    Attributes:
        records: the rows; texts may be dictionaries.
        file: the name of the file they are from.
        first_row: the number of the first of them among the file's rows, from 0.
        bytes_read: of all files so far, as they are on the disk.
        place: from a row's index in the batch to words such as ``"line 1042"``.
    """

    records: pa.RecordBatch
    file: str
    first_row: int
    bytes_read: int
    place: Callable[[int], str] = field(repr=False)


def where(batch: Batch, index: int) -> str:
    """The place of a row, for messages.

    >>> where(Batch(pa.record_batch({"a": [1.0]}), "a.csv", 0, 9, lambda i: f"line {i + 2}"), 0)
    'a.csv, line 2'
    """
    return at(batch.file, batch.place, index)


def at(file: str, place: Callable[[int], str], index: int) -> str:
    """The same without the batch."""
    return f"{file}, {place(index)}"


class Part(Protocol):
    """One file of a table."""

    @property
    def name(self) -> str:
        """Of the file."""

    @property
    def size(self) -> int | None:
        """In bytes on the disk; None if it is not known."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its columns."""

    @property
    def interrupted(self) -> bool:
        """Ctrl-C has ended it, before its rows were asked for."""

    def types(self) -> dict[str, pa.DataType] | None:
        """Of its columns, as they look; None if it has no rows."""

    def read(self, schema: pa.Schema, *, threads: bool) -> Iterator[Batch]:
        """The columns of the schema in its order, ``bytes_read`` counted in this file alone.

        Args:
            schema: the columns.
            threads: use several, and read ahead.
        """


@dataclass(frozen=True)
class Table:
    """Rows that are read a batch at a time, so that memory does not grow with the data.

    Numbers of all kinds are float64, so that integers may be followed by decimals. So are columns
    that have been empty so far.

    Attributes:
        schema: names and types of the columns.
        looks_integer: the columns of float64 that looked like integers.
        rereadable: whether ``batches`` may be called more than once.
    """

    parts: tuple[Part, ...]
    schema: pa.Schema
    looks_integer: frozenset[str]
    rereadable: bool
    _begun: list[bool] = field(default_factory=list, repr=False)

    @property
    def total_bytes(self) -> int | None:
        """Of all files on the disk; None if it is not known."""
        sizes = [part.size for part in self.parts]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def interrupted(self) -> bool:
        """Ctrl-C has ended a stream: what had come by then is the table."""
        return any(part.interrupted for part in self.parts)

    def batches(
        self, columns: Sequence[str] | None = None, *, threads: bool = True
    ) -> Iterator[Batch]:
        """The rows, file after file, in order.

        Args:
            columns: only these, in this order: faster. None is all, and none at all is the first,
                since the rows of a table without columns cannot be counted.
            threads: read with several, as fast as can be; otherwise what can be read by one is,
                for others to have the rest of the processor.

        Raises:
            DataError: a column is not there, or the data are damaged; or it is a stream that has
                been read.
        """
        names = list(self.schema.names if columns is None else columns) or self.schema.names[:1]
        for name in names:
            self._check_column(name)
        if self._begun and not self.rereadable:
            raise DataError(
                f"{self.parts[0].name} can be read only once: save it to a file for further passes"
            )
        self._begun.append(True)
        return self._batches(pa.schema([self.schema.field(name) for name in names]), threads)

    def _batches(self, schema: pa.Schema, threads: bool) -> Iterator[Batch]:
        before = 0
        for part in self.parts:
            for batch in part.read(schema, threads=threads):
                yield replace(batch, bytes_read=before + batch.bytes_read)
            before += part.size or 0

    def _check_column(self, name: str) -> None:
        if name in self.schema.names:
            return
        close = difflib.get_close_matches(name, self.schema.names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(
            f"column {name!r} is not in the data; its columns are: "
            f"{shortened(', '.join(self.schema.names), 500)}.{hint}"
        )


def table(parts: Sequence[Part], types: Mapping[str, pa.DataType], *, rereadable: bool) -> Table:
    """One table of files that have the same columns.

    Raises:
        DataError: their columns differ, or there are no rows.
    """
    first = parts[0]
    for part in parts[1:]:
        _check_same(first, part)
    looks = next((found for part in parts if (found := part.types()) is not None), None)
    if looks is None:
        of = first.name if len(parts) == 1 else f"the {len(parts)} files from {first.name} on"
        raise DataError(f"{of}: there are column names but no rows")
    schema = pa.schema([(name, types.get(name) or normal(looks[name])) for name in first.names])
    integers = {
        name for name in first.names if is_whole(looks[name]) and schema.field(name).type == FLOAT
    }
    return Table(tuple(parts), schema, frozenset(integers), rereadable)


def normal(kind: pa.DataType) -> pa.DataType:
    """The type that a column is given in tables.

    >>> normal(pa.int32()), normal(pa.decimal128(9, 2)), normal(pa.null())
    (DataType(double), DataType(double), DataType(double))
    >>> normal(pa.dictionary(pa.int8(), pa.int64()))  # categories, whatever they look like
    DataType(string)
    >>> normal(pa.bool_()), normal(pa.date32())
    (DataType(bool), DataType(date32[day]))
    """
    is_ = pa.types
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind) or is_.is_null(kind):
        return FLOAT
    if is_.is_dictionary(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    return kind


def is_whole(kind: pa.DataType) -> bool:
    """Whether all values of the type are integers.

    >>> is_whole(pa.uint8()), is_whole(pa.decimal128(9, 0)), is_whole(pa.float32())
    (True, True, False)
    """
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def check_names(file: str, names: Sequence[str]) -> None:
    """Make sure that every column has a name of its own.

    Raises:
        DataError: two share one, or one has none.
    """
    if "" in names:
        raise DataError(
            f"{file}: column {names.index('') + 1} has no name; name it in the header "
            "(pandas writes its index so: use to_csv(index=False))"
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise DataError(
            f"{file}: more than one column is named {twice[0]!r}; give each a name of its own"
        )


def shortened(text: str, length: int = 80) -> str:
    """The beginning of a long text.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def _check_same(first: Part, other: Part) -> None:
    for name in first.names:
        if name not in other.names:
            raise DataError(f"{other.name} lacks column {name!r}, which {first.name} has")
    for name in other.names:
        if name not in first.names:
            raise DataError(f"{other.name} has column {name!r}, which {first.name} lacks")
