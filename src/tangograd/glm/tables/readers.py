"""Opens tables: CSV (gzip too), Parquet, folders of either, standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from tangograd.glm.errors import DataError
from tangograd.glm.tables.byte_streams import PARQUET, ByteStream
from tangograd.glm.tables.csv_files import CsvPart
from tangograd.glm.tables.parquet_files import ParquetPart, check_types
from tangograd.glm.tables.tables import Batch, Table, table, where

__all__ = ["Batch", "Table", "open_table", "where"]

CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
PARQUET_ENDINGS = (".parquet", ".pq")
PARQUET_SHARE = 24  # a batch of Parquet, in blocks of CSV: decoding takes much less time


def open_table(
    source: str | Path | BinaryIO,
    *,
    types: Mapping[str, pa.DataType] | None = None,
    block_bytes: int = 1 << 20,
    sample_bytes: int = 1 << 23,
) -> Table:
    r"""Open a table, to be read as a stream.

    >>> import io
    >>> rows = open_table(io.BytesIO(b"x,place,y\n1,Rome,2.5\n2,Oslo,\n"))
    >>> [str(kind) for kind in rows.schema.types], sorted(rows.looks_integer)
    (['double', 'string', 'double'], ['x'])
    >>> [batch.records.to_pylist() for batch in rows.batches(["y", "x"])]
    [[{'y': 2.5, 'x': 1.0}, {'y': None, 'x': 2.0}]]

    Args:
        source: a file, a folder whose files have the same columns (taken in the order of their
            names), or ``"-"``: standard input. Or a binary stream.
        types: of some columns, whatever they look like. Those of the others are those of the first
            file's first rows (CSV), or of the first file (Parquet).
        block_bytes: how much CSV text is converted at once. Blocks that fit the processor's cache
            are fastest.
        sample_bytes: how much of the first CSV file is looked at for the types.

    Raises:
        DataError: there is no such file, it is of another kind, or its columns or first rows are
            wrong.
    """
    declared = types or {}
    if isinstance(source, str | Path) and str(source) != "-":
        path = Path(source)
        paths = _files(path) if path.is_dir() else [_existing(path)]
        if _is_parquet(paths[0]):
            files = [ParquetPart(path, PARQUET_SHARE * block_bytes) for path in paths]
            check_types(files, declared)
            return table(files, declared, rereadable=True)
        return table(
            [_csv(path, block_bytes, sample_bytes) for path in paths], declared, rereadable=True
        )
    stream = sys.stdin.buffer if isinstance(source, str | Path) else source
    name = "standard input"
    once = ByteStream(name, stream)
    part = CsvPart(name, None, lambda: once, True, block_bytes, sample_bytes)
    return table([part], declared, rereadable=False)


def _csv(path: Path, block_bytes: int, sample_bytes: int) -> CsvPart:
    def opened() -> ByteStream:
        file = path.open("rb", buffering=0)
        try:
            return ByteStream(path.name, file)
        except BaseException:
            file.close()
            raise

    return CsvPart(path.name, path.stat().st_size, opened, False, block_bytes, sample_bytes)


def _existing(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}")
    return path


def _is_parquet(path: Path) -> bool:
    if path.name.lower().endswith(PARQUET_ENDINGS):
        return True
    with path.open("rb") as file:
        return file.read(len(PARQUET)) == PARQUET


def _files(folder: Path) -> list[Path]:
    """The data files of a folder, of one kind."""
    found = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    if not found:
        raise DataError(f"the folder {str(folder)!r} holds no data files")
    kinds = [_kind(path) for path in found]
    if len(set(kinds)) > 1:
        other = next(path for path, kind in zip(found, kinds, strict=True) if kind != kinds[0])
        raise DataError(
            f"the folder {str(folder)!r} holds both {found[0].name} and {other.name}; its files "
            "must be all CSV or all Parquet"
        )
    return found


def _kind(path: Path) -> str:
    name = path.name.lower()
    if path.is_file() and name.endswith(CSV_ENDINGS):
        return "CSV"
    if path.is_file() and name.endswith(PARQUET_ENDINGS):
        return "Parquet"
    what = "is a folder" if path.is_dir() else "is neither CSV nor Parquet by its name"
    raise DataError(
        f"in the folder {str(path.parent)!r}, {path.name!r} {what}; move it elsewhere, or begin "
        "its name with '_' to have it ignored"
    )
