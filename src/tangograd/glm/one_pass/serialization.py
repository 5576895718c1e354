"""Named arrays with a JSON header as bytes: no pickle, and every damage is noticed."""

from __future__ import annotations

import io
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.errors import DataError

MAGIC = b"tangograd one-pass state 1\n"
_LENGTH = 8
_CHECK = 4


def pack(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return a header and arrays as bytes.

    That is ``MAGIC``, a CRC-32 of what follows, the length of the header, the header (JSON) and the
    arrays in NumPy's own format, in the order of their names in the header.
    """
    text = json.dumps({"header": header, "arrays": list(arrays)}, allow_nan=False).encode()
    body = io.BytesIO()
    body.write(len(text).to_bytes(_LENGTH, "little"))
    body.write(text)
    for array in arrays.values():
        np.lib.format.write_array(body, np.asarray(array, order="C"), allow_pickle=False)
    content = body.getvalue()
    return MAGIC + zlib.crc32(content).to_bytes(_CHECK, "little") + content


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what `pack` was given.

    Raises:
        DataError: if the bytes are not those of `pack`, or were changed.
    """
    if not data.startswith(MAGIC):
        raise DataError("this is not a stored one-pass state of this version")
    check, content = data[len(MAGIC) : len(MAGIC) + _CHECK], data[len(MAGIC) + _CHECK :]
    if zlib.crc32(content).to_bytes(_CHECK, "little") != check:
        raise DataError("the stored state is damaged: its checksum is wrong; store it again")
    try:
        return _read(content)
    except (ValueError, KeyError, TypeError, EOFError, OSError, RecursionError) as error:
        raise DataError(f"the stored state is damaged: {error}") from error


def _read(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    length = int.from_bytes(content[:_LENGTH], "little")
    stored = json.loads(content[_LENGTH : _LENGTH + length])
    body = io.BytesIO(content[_LENGTH + length :])
    arrays = {}
    for name in stored["arrays"]:
        arrays[name] = np.lib.format.read_array(body, allow_pickle=False)
    if body.read(1):
        raise ValueError("there are bytes after the last array")
    return dict(stored["header"]), arrays


class Fields:
    """Checked access to the parts of a stored state; every fault is a `DataError`."""

    def __init__(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.header, self.arrays = header, arrays

    def value(self, name: str, kind: type) -> Any:
        """Return a part of the header, of the type given (whole numbers are floats, too)."""
        found = self.header.get(name)
        if kind is float and type(found) is int:
            found = float(found)
        if type(found) is not kind:
            raise DataError(f"the stored state is damaged: {name} is {found!r}")
        return found

    def count(self, name: str, least: int = 0) -> int:
        """Return a whole number of at least this."""
        found: int = self.value(name, int)
        if found < least:
            raise DataError(f"the stored state is damaged: {name} is {found}")
        return found

    def array(
        self, name: str, shape: tuple[int | None, ...], dtype: type = np.float64
    ) -> NDArray[Any]:
        """Return an array of this shape (None for any length) with finite elements."""
        found = self.arrays.get(name)
        if found is None:
            raise DataError(f"the stored state is damaged: {name} is missing")
        fits = len(found.shape) == len(shape) and all(
            want is None or have == want for have, want in zip(found.shape, shape, strict=True)
        )
        if not fits or found.dtype != dtype:
            raise DataError(
                f"the stored state is damaged: {name} has shape {found.shape} and type "
                f"{found.dtype}"
            )
        if not np.isfinite(found).all():
            raise DataError(f"the stored state is damaged: {name} is not finite")
        return found
