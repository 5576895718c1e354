"""Where the records of a CSV text begin and end, and which of them is wrong.

The fast way through a CSV file is pyarrow's and does not say where it failed. This is the slow
way, taken over the one block of text in question.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.errors import DataError
from tangograd.glm.tables.tables import shortened

QUOTE, NEWLINE = b'"', b"\n"


def count(text: bytes, byte: bytes) -> int:
    r"""How often a byte occurs, faster than ``text.count``.

    >>> count(b"one\ntwo\n", NEWLINE)
    2
    """
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(byte)))


@dataclass(frozen=True)
class Record:
    """One record of a block of CSV text.

    Attributes:
        line: the number of its first line in the block, from 0.
        start: the byte that it begins at.
        end: the byte after its last.
        fields: their values, bytes as Latin-1; none for an empty line.
        closed: False if the block ends within a quoted field.
    """

    line: int
    start: int
    end: int
    fields: list[str]
    closed: bool


def records(block: bytes, delimiter: str) -> Iterator[Record]:
    r"""The records of a block that begins with one.

    >>> [(r.line, r.fields, r.closed) for r in records(b'1,"a\nb"\n2,"c\n', ",")]
    [(0, ['1', 'a\nb'], True), (2, ['2', 'c\n'], False)]

    Raises:
        csv.Error: a carriage return without a line feed, or a field of more than 128 kB.
    """
    lines = io.BytesIO(block)
    ended = False

    def texts() -> Iterator[str]:
        nonlocal ended
        for line in lines:
            yield line.decode("latin-1")
        ended = True

    reader = csv.reader(texts(), delimiter=delimiter)
    line = start = 0
    for fields in reader:
        # The reader asks for lines beyond the last only when it is within quotes.
        yield Record(line, start, lines.tell(), fields, not ended)
        line, start = reader.line_num, lines.tell()


@dataclass(frozen=True)
class Layout:
    """What is known of a CSV file: its name, its columns' names and what separates them."""

    file: str
    names: tuple[str, ...]
    delimiter: str

    def whole(self, block: bytes, first_line: int) -> int:
        r"""The length of the records of a block that are whole.

        A line end is a record's if an even number of quotes is before it, provided that quotes are
        only where fields begin and end. Otherwise a quote may be just a character, and the records
        are gone through.

        >>> layout = Layout("a.csv", ("a", "b"), ",")
        >>> layout.whole(b'1,"a\nb"\n2,"c\nd', 1), layout.whole(b'1,5" wide\n2,', 1)
        (8, 10)
        """
        cut = block.rfind(NEWLINE) + 1
        if QUOTE not in block:
            return cut
        quotes = np.flatnonzero(np.frombuffer(block, np.uint8) == ord(QUOTE))
        if self._only_around_fields(block, quotes):
            while (before := np.searchsorted(quotes, cut)) % 2:
                cut = block.rfind(NEWLINE, 0, quotes[before - 1]) + 1
            return cut
        end = 0
        try:
            for record in records(block[:cut], self.delimiter):
                if record.closed:
                    end = record.end
        except csv.Error as error:
            raise self.unreadable(first_line + count(block[:end], NEWLINE), error) from error
        return end

    def check_end(self, block: bytes, first_line: int) -> None:
        """Make sure that the last block of a file does not end within quotes.

        Raises:
            DataError: it does.
        """
        if QUOTE not in block:
            return
        end = 0
        try:
            for record in records(block, self.delimiter):
                if not record.closed:
                    raise DataError(
                        f"{self.file}, line {first_line + record.line}: a quote is opened and not "
                        "closed before the end: the file may be cut off"
                    )
                end = record.end
        except csv.Error as error:
            raise self.unreadable(first_line + count(block[:end], NEWLINE), error) from error

    def _only_around_fields(self, block: bytes, quotes: NDArray[np.intp]) -> bool:
        """Whether quotes open where a field begins, close where it ends, or come in pairs."""
        text = np.frombuffer(NEWLINE + block + NEWLINE, np.uint8)
        beside = np.frombuffer(QUOTE + NEWLINE + b"\r" + self.delimiter.encode(), np.uint8)
        before, after = text[quotes[::2]], text[quotes[1::2] + 2]
        return bool(np.isin(before, beside).all() and np.isin(after, beside).all())

    def line(self, block: bytes, row: int) -> int:
        """The line of a row in a block, from 0, where empty lines and quoted ones are about."""
        rows = (record.line for record in records(block, self.delimiter) if record.fields)
        return next(line for index, line in enumerate(rows) if index == row)

    def unreadable(self, line: int, error: csv.Error) -> DataError:
        """The error for text that is not CSV, in the record that begins at a line."""
        if "field limit" in str(error):
            return DataError(
                f"{self.file}, line {line}: a field of more than 128 kB: is a quote opened and not "
                "closed?"
            )
        return DataError(
            f"{self.file}, line {line}: a carriage return without a line feed; convert the file "
            "to line ends of one kind"
        )

    def explain(
        self,
        block: bytes,
        first_line: int,
        convert: Callable[[bytes, Sequence[str] | None], object],
        trouble: Exception,
        expected: Callable[[str], str],
    ) -> DataError:
        """What is wrong with a block that cannot be converted, and where.

        Args:
            block: whole records.
            first_line: the number of its first line in the file, from 1.
            convert: raises what it raised for the block; of some columns only, if they are given.
            trouble: what it raised.
            expected: words for what the values of a column should be.
        """
        found: list[Record] = []
        try:
            found.extend(record for record in records(block, self.delimiter) if record.fields)
        except csv.Error as error:
            end = found[-1].end if found else 0
            return self.unreadable(first_line + count(block[:end], NEWLINE), error)

        def fails(text: bytes, columns: Sequence[str] | None = None) -> bool:
            try:
                convert(text, columns)
            except type(trouble):
                return True
            return False

        low, high = 0, len(found)  # the first `low` records convert, the first `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            if fails(block[: found[middle - 1].end]):
                high = middle
            else:
                low = middle
        bad = found[high - 1]
        text = block[bad.start : bad.end]
        place = f"{self.file}, line {first_line + bad.line}"
        if len(bad.fields) != len(self.names):
            return DataError(self._miscounted(place, bad, text))
        for name, value in zip(self.names, bad.fields, strict=True):
            if fails(text, [name]):
                return DataError(self._misfit(place, name, value.encode("latin-1"), expected(name)))
        return DataError(f"{place}: cannot be read: {trouble}")

    def _miscounted(self, place: str, bad: Record, text: bytes) -> str:
        shown = shortened(text.decode("utf-8", "replace").rstrip("\r\n"))
        fields = "1 field" if len(bad.fields) == 1 else f"{len(bad.fields)} fields"
        if not text.endswith(b"\n"):
            hint = "the file ends here and may be cut off"
        elif QUOTE in text:
            hint = "is a quote missing?"
        else:
            hint = "correct or delete the line; values that hold a separator need quotes"
        return f"{place}: {fields} where the header has {len(self.names)}: {shown!r}; {hint}"

    def _misfit(self, place: str, name: str, value: bytes, expected: str) -> str:
        try:
            shown = shortened(value.decode())
        except UnicodeDecodeError:
            shown = shortened(value.decode("latin-1"))
            return (
                f"{place}, column {name!r}: the text is not UTF-8 (as Latin-1 it would be "
                f"{shown!r}); convert the file, such as with "
                "`iconv -f WINDOWS-1252 -t UTF-8`"
            )
        return f"{place}, column {name!r}: {shown!r} is not {expected}"
