"""Parquet files as streams of batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tangograd.glm.errors import DataError
from tangograd.glm.tables.tables import Batch, check_names, normal

#: for each batch the columns' dictionaries have to come to the processor's cache again, so of fewer
#: rows each takes longer; of more there is not room for several
MOST_ROWS = 1 << 17
PAGE_BUFFER = 1 << 15  # without it whole columns of a row group are held, however large it is
#: one thread waits for the disk at every page, unless the system was told so many bytes before
TOLD = 1 << 25
TOLD_AT_ONCE = 1 << 20  # of more it may take no notice

T = TypeVar("T")


@dataclass(frozen=True)
class ParquetPart:
    """A Parquet file.

    Attributes:
        path: of the file.
        batch_bytes: how much is decoded at once, about.
        interrupted: never, here.
    """

    path: Path
    batch_bytes: int
    interrupted: bool = False

    @property
    def name(self) -> str:
        """Of the file."""
        return self.path.name

    @property
    def size(self) -> int:
        """In bytes."""
        return self.path.stat().st_size

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(self._schema.names)

    @cached_property
    def _rows_and_schema(self) -> tuple[int, pa.Schema]:
        with self._open() as file:
            schema = file.schema_arrow
            check_names(self.name, schema.names)
            return file.metadata.num_rows, schema

    @property
    def _schema(self) -> pa.Schema:
        return self._rows_and_schema[1]

    def types(self) -> dict[str, pa.DataType] | None:
        """Of the columns, in the file; None if there are no rows."""
        rows, schema = self._rows_and_schema
        return dict(zip(schema.names, schema.types, strict=True)) if rows else None

    def read(self, schema: pa.Schema, *, threads: bool = True) -> Iterator[Batch]:
        """The rows, in order."""
        batches = self._batches(schema, threads)
        if threads:
            return _ahead(batches)
        most = 2 * len(schema.names) > len(self.names)
        return self._announced(batches) if most and hasattr(os, "posix_fadvise") else batches

    def _announced(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Have the system read the file, in time."""
        with self.path.open("rb") as file:
            told, read, size = 0, 0, self.size
            while True:
                with suppress(OSError):  # a system that takes no advice
                    for start in range(told, min(read + TOLD, size), TOLD_AT_ONCE):
                        told = start + TOLD_AT_ONCE
                        os.posix_fadvise(file.fileno(), start, TOLD_AT_ONCE, os.POSIX_FADV_WILLNEED)
                batch = next(batches, None)
                if batch is None:
                    return
                read = batch.bytes_read
                yield batch

    def _batches(self, schema: pa.Schema, threads: bool) -> Iterator[Batch]:
        row, rows, size = 0, self._rows_and_schema[0], self.size
        if not rows:
            return
        at_once = max(1, min(MOST_ROWS, self.batch_bytes // (8 * len(schema.names))))
        texts = [field.name for field in schema if field.type == pa.string()]
        with self._open(texts) as file:
            if texts:
                groups = range(file.metadata.num_row_groups)
                largest = max(file.metadata.row_group(group).num_rows for group in groups)
                at_once = _even(largest, at_once)
            found = file.iter_batches(at_once, columns=schema.names, use_threads=threads)
            while True:
                try:
                    batch = next(found, None)
                except (pa.ArrowException, OSError) as error:
                    raise self._damaged(error, f" after row {row}") from error
                if batch is None:
                    return
                first, row = row, row + batch.num_rows
                taken = size * row // rows
                yield Batch(
                    self._cast(batch, schema, first), self.name, first, taken, _Place(first)
                )

    def _cast(self, batch: pa.RecordBatch, schema: pa.Schema, first: int) -> pa.RecordBatch:
        columns = []
        for field in schema:
            column = batch.column(field.name)
            if column.type == field.type:
                columns.append(column)
                continue
            if pa.types.is_dictionary(column.type):
                if column.type.value_type == field.type:
                    columns.append(column)
                    continue
                column = column.dictionary_decode()
            try:
                # safe would refuse integers above 2**53
                columns.append(column.cast(field.type, safe=False))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise DataError(
                    f"{self.name}, rows {first + 1} to {first + batch.num_rows}, column "
                    f"{field.name!r}: not all are of type {field.type}: {error}"
                ) from error
        return pa.record_batch(columns, names=schema.names)

    def _open(self, texts: Sequence[str] = ()) -> pq.ParquetFile:
        """With columns of texts whose dictionaries are left as they are: half the work."""
        try:
            return pq.ParquetFile(
                self.path,
                read_dictionary=list(texts),
                pre_buffer=False,
                buffer_size=PAGE_BUFFER,
                page_checksum_verification=True,
            )
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise self._damaged(error, "") from error

    def _damaged(self, error: Exception, place: str) -> DataError:
        return DataError(
            f"{self.name}: not a Parquet file, or damaged or cut off{place}: copy or write it "
            f"again ({str(error).splitlines()[0]})"
        )


def check_types(parts: list[ParquetPart], declared: Mapping[str, pa.DataType]) -> None:
    """Make sure that the columns are of the same types in all files.

    Args:
        parts: of which only those that have rows matter.
        declared: columns whose types are said from outside, to which all are converted.

    Raises:
        DataError: one is not.
    """
    seen: dict[str, tuple[str, pa.DataType]] = {}
    for part in parts:
        for name, kind in (part.types() or {}).items():
            if pa.types.is_null(kind) or name in declared:
                continue
            file, before = seen.setdefault(name, (part.name, kind))
            if normal(before) != normal(kind):
                raise DataError(
                    f"column {name!r} is of type {before} in {file} and of type {kind} in "
                    f"{part.name}; write the files with one type"
                )


@dataclass(frozen=True)
class _Place:
    first: int

    def __call__(self, index: int) -> str:
        return f"row {self.first + index + 1}"


def _even(total: int, most: int) -> int:
    """The size of about equal parts of so many rows, or ``most`` if there are no more.

    Batches are cut where a group of rows ends and a new dictionary of texts begins: a rest of each
    group would cost as much to prepare as any other batch.

    >>> _even(250_000, 65_536), _even(7, 3), _even(5, 10)
    (62500, 3, 10)
    """
    return -(-total // -(-total // most)) if total > most else most


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, the next made while one is in use."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item
