"""Where the command line reads from."""

from __future__ import annotations

import io
import sys
from typing import BinaryIO


def source(data: str) -> str | BinaryIO:
    """What to read: standard input without a buffer, which a thread may be left waiting for."""
    if data != "-":
        return data
    if sys.stdin.isatty():
        print("reading from the terminal; end with Ctrl-D", file=sys.stderr)
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except (OSError, io.UnsupportedOperation):
        return sys.stdin.buffer
