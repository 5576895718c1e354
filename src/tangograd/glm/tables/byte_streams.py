"""Bytes of files and pipes: gzip undone, what was taken counted, foreign formats refused."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from tangograd.glm.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP = b"\x1f\x8b"
PIECE = 1 << 20
PARQUET = b"PAR1"
FOREIGN = {
    b"PK\x03\x04": "an Excel or zip file: save its sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel file: save its sheet as CSV",
    b"BZh": "compressed with bzip2: of compressed files only gzip's are read",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: of compressed files only gzip's are read",
    b"\xfd7zXZ": "compressed with xz: of compressed files only gzip's are read",
    b"ARROW1": "an Arrow (Feather) file: save it as Parquet or CSV",
    b"SQLite": "an SQLite database: export its table as CSV",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"\x80\x04": "a Python pickle, which is never opened: save it as Parquet or CSV",
    b"\x80\x05": "a Python pickle, which is never opened: save it as Parquet or CSV",
    PARQUET: "a Parquet file, which cannot be read as a stream: save it to a file named .parquet",
}


class ByteStream:
    """The bytes of a file or a pipe, decompressed if they are gzip's.

    >>> import gzip
    >>> stream = ByteStream("a", io.BytesIO(gzip.compress(b"some text")))
    >>> stream.read(4), stream.read(100), stream.read(100)
    (b'some', b' text', b'')
    """

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self._name = name
        self._stream = stream
        self._raw = _Counted(stream)
        self._ahead = b""
        self.interrupted = False
        if self._raw.first.startswith(GZIP):
            self._text = pa.CompressedInputStream(pa.PythonFile(self._raw, mode="r"), "gzip")
        else:
            self._text = self._raw
        self._refuse_foreign()

    @property
    def bytes_taken(self) -> int:
        """From the file or the pipe, before decompression."""
        return self._raw.count

    def read(self, size: int) -> bytes:
        """The next bytes: fewer than ``size`` only at the end.

        Ctrl-C while it waits for more is the end, if there was anything before it; ``interrupted``
        tells.

        Raises:
            DataError: what was compressed is damaged or cut off.
            KeyboardInterrupt: Ctrl-C before the first byte.
        """
        pieces = [self._ahead[:size]]
        self._ahead = self._ahead[size:]
        left = size - len(pieces[0])
        try:
            while left and not self.interrupted:
                piece = self._read(min(left, PIECE))
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
        except KeyboardInterrupt:
            if not any(pieces):
                raise
            self.interrupted = True
        return b"".join(pieces)

    def unread(self, data: bytes) -> None:
        """Give bytes back, to be read again."""
        self._ahead = data + self._ahead

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._text.read(size) or b""
        except OSError as error:
            if error.errno is not None:  # the disk's, not the decompressor's
                raise
            raise DataError(
                f"{self._name}: the gzip data are damaged or cut off ({error}): copy or compress "
                "them again"
            ) from error
        return data

    def _refuse_foreign(self) -> None:
        first = self.read(8)
        self.unread(first)
        for magic, what in FOREIGN.items():
            if first.startswith(magic):
                raise DataError(f"{self._name} is {what}")


class _Counted(io.RawIOBase):
    """A stream whose first bytes are known and whose bytes are counted; left open by its end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._some = getattr(stream, "read1", stream.read)  # what is there, without waiting for all
        self.first = self._ahead = stream.read(8)
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._ahead[: len(view)] or self._some(len(view))
        self._ahead = self._ahead[len(view) :]
        view[: len(data)] = data
        self.count += len(data)
        return len(data)
