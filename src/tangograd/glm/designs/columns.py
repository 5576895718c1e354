"""Columns of record batches as arrays: numbers, codes of levels, and which values are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tangograd.glm.designs.labels import label, unknown_column
from tangograd.glm.errors import DataError

Kind = Literal["number", "text", "boolean"]
Mask = NDArray[np.bool_]
ARROW: dict[Kind, pa.DataType] = {
    "number": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
}
WORDS: dict[Kind, str] = {"number": "numbers", "text": "text", "boolean": "true or false"}


def kind_of(type_: pa.DataType) -> Kind | None:
    """What a column holds, by its type; ``None`` if no model can use it.

    >>> kind_of(pa.int8()), kind_of(pa.dictionary(pa.int8(), pa.string())), kind_of(pa.date32())
    ('number', 'text', None)
    """
    held = type_.value_type if pa.types.is_dictionary(type_) else type_
    if pa.types.is_integer(held) or pa.types.is_floating(held) or pa.types.is_decimal(held):
        return "number"
    if pa.types.is_string(held) or pa.types.is_large_string(held) or pa.types.is_string_view(held):
        return "text"
    return "boolean" if pa.types.is_boolean(held) else None


@dataclass
class Faults:
    """Of all that is wrong in a batch, what comes first: the same however rows are batched."""

    row: int | None = None
    text: Callable[[int], str] | None = field(default=None, repr=False)

    def note(self, wrong: Mask, text: Callable[[int], str]) -> None:
        """Rows in which something is wrong, and the words for one of them."""
        if not wrong.any():
            return
        first = int(wrong.argmax())
        if self.row is None or first < self.row:
            self.row, self.text = first, text

    def complain(self, where: Callable[[int], str]) -> None:
        """Raise the error for the first of them, if there is any.

        Raises:
            DataError: there is.
        """
        if self.row is not None and self.text is not None:
            raise DataError(f"{where(self.row)}: {self.text(self.row)}")


@dataclass(frozen=True)
class Numbers:
    """A column of numbers; NaN where they are missing (``None`` if none is).

    Attributes:
        values: the numbers, those of other rows too if ``rows`` says which are meant.
        missing: of the rows that are meant.
        rows: their numbers; ``None`` for all.
    """

    values: NDArray[Any]
    missing: Mask | None
    rows: NDArray[np.int64] | None = None

    @property
    def own(self) -> NDArray[Any]:
        """The numbers of the rows that are meant."""
        return self.values if self.rows is None else self.values[self.rows]


@dataclass(frozen=True)
class Levels:
    """A column of levels.

    Attributes:
        labels: of the levels that occur, whose codes are their places here.
        all_entries: for each row of the column, a place in ``recode``.
        rows: the rows that are meant.
        recode: the code of an entry, -1 where it is missing.
        missing: which rows are; ``None`` if none is.
    """

    labels: list[str]
    all_entries: NDArray[np.int32]
    rows: NDArray[np.int64]
    recode: NDArray[np.int64]
    missing: Mask | None

    @cached_property
    def entries(self) -> NDArray[np.int32]:
        """Of the rows that are meant."""
        found: NDArray[np.int32] = self.all_entries[self.rows]
        return found

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """Of all rows that are meant."""
        found: NDArray[np.int64] = self.recode[self.entries]
        return found

    def write(self, table: NDArray[Any], codes: NDArray[np.int32]) -> None:
        """Write what a table has at each entry; of all rows that are meant."""
        codes[:] = table[self.entries]


def take_column(
    batch: pa.RecordBatch, name: str, kind: Kind, *, role: str = "", place: str = ""
) -> pa.Array:
    """A column of the kind that was planned.

    Args:
        batch: the rows.
        name: of the column.
        kind: what it should hold.
        role: of the column, for the error.
        place: of the first row, for the error.

    Raises:
        DataError: it is not there, or of another kind.
    """
    index = batch.schema.get_field_index(name)  # -1 also for a name that is there twice
    if index < 0 and name in batch.schema.names:
        raise DataError(f"two columns are called {name!r}: rename one of them")
    if index < 0:
        raise unknown_column(name, batch.schema.names, role)
    array = batch.column(index)
    if pa.types.is_null(array.type):
        return array.cast(ARROW[kind])
    if kind_of(array.type) != kind:
        raise DataError(
            f"{place and f'from {place} on: '}column {name!r} is of type {array.type} but was "
            f"planned to hold {WORDS[kind]}: give all data one type, or leave the column out "
            "(--exclude)"
        )
    return array


def numbers(name: str, array: pa.Array, faults: Faults) -> Numbers:
    """The values of a numeric column, without a copy where that is possible.

    >>> numbers("x", pa.array([1, None]), Faults())
    Numbers(values=array([ 1., nan]), missing=array([False,  True]), rows=None)
    """
    array = decoded(array)
    if array.null_count or not (
        pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    ):
        array = pc.fill_null(array.cast(pa.float64(), safe=False), np.nan)
    values = values_of(array)
    if values.dtype.kind in "iu" or finite(values):
        return Numbers(values, None)
    faults.note(np.isinf(values), lambda row: f"column {name!r} is infinite ({values[row]})")
    missing = np.isnan(values)
    return Numbers(values, missing if missing.any() else None)


def complete(array: pa.Array, rows: NDArray[np.int64], *, checked: bool = True) -> Numbers | None:
    """Some rows of a column without a copy of them, if none of the column is missing or infinite.

    Unless that is not to be checked: then NaN and infinity are taken as they are.

    >>> complete(pa.array([1.0, 2.0, 3.0]), np.array([0, 2])).own
    array([1., 3.])
    >>> complete(pa.array([1.0, None, 3.0]), np.array([0, 2]))
    """
    if array.null_count or not pa.types.is_float64(array.type):
        return None
    values = values_of(array)
    return Numbers(values, None, rows) if not checked or finite(values) else None


def finite(values: NDArray[Any]) -> bool:
    """Whether all values are, at the cost of a sum; the sum itself may overflow.

    >>> finite(np.array([1.0, np.nan])), finite(np.array([1e308, 1e308]))
    (False, True)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum(dtype=np.float64)
    return bool(np.isfinite(total) or np.isfinite(values).all())


def decoded(array: pa.Array) -> pa.Array:
    """Values in the place of a dictionary's indices."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _has_small_dictionary(array: pa.Array) -> bool:
    """Not one of the whole file, of which these rows have a few."""
    return pa.types.is_dictionary(array.type) and len(array.dictionary) <= len(array)


def encode(array: pa.Array, rows: NDArray[np.int64] | None = None) -> Levels:
    """The levels that occur in a categorical column, or in some of its rows.

    >>> found = encode(pa.array(["b", None, "a"]))
    >>> found.labels, found.codes, found.missing
    (['b', 'a'], array([ 0, -1,  1]), array([False,  True, False]))
    """
    encoded = array if _has_small_dictionary(array) else decoded(array).dictionary_encode()
    own = [label(value) for value in encoded.dictionary.to_pylist()]
    indices = encoded.indices
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), len(own))
    entries = values_of(indices).astype(np.int32, copy=False)
    rows = np.arange(len(entries)) if rows is None else rows
    # A dictionary may hold levels that do not occur, nulls, and different values with one label.
    used = np.zeros(len(own) + 1, bool)
    used[entries[rows]] = True
    labels = dict.fromkeys(text for text, occurs in zip(own, used[:-1], strict=True) if occurs)
    labels.pop(None, None)
    codes = {text: code for code, text in enumerate(labels)}
    each = np.array([codes.get(text, -1) for text in own] + [-1], dtype=np.int64)
    missing = each[entries[rows]] < 0 if (used & (each < 0)).any() else None
    return Levels([str(text) for text in labels], entries, rows, each, missing)


def values_of(array: pa.Array) -> NDArray[Any]:
    """The numbers of an array without nulls, where they are.

    Its own ``to_numpy`` imports pandas, at a fifth of a second, as does ``pyarrow.array``.

    >>> values_of(pa.array([1.5, 2.5]))
    array([1.5, 2.5])
    """
    return np.from_dlpack(array)


def numbers_of_rows(which: Mask | NDArray[np.int64]) -> pa.Array:
    """Rows, for Arrow to take: which of them, or their numbers.

    >>> numbers_of_rows(np.array([True, False, True])).to_pylist()
    [0, 2]
    """
    rows = np.flatnonzero(which) if which.dtype == bool else np.ascontiguousarray(which, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def class_codes(
    labels: NDArray[Any], classes: Sequence[Any], *, grow: bool = False
) -> tuple[NDArray[np.int64], tuple[Any, ...]]:
    """The numbers of labels in a list of classes, and the list, which may grow by new ones.

    >>> class_codes(np.array(["b", "a", "b"], dtype=object), ["a"], grow=True)
    (array([1, 0, 1]), ('a', 'b'))

    Raises:
        DataError: a label is new, and the list may not grow.
    """
    encoded = pa.array(labels).dictionary_encode()
    found = encoded.dictionary.to_pylist()
    extended = tuple(dict.fromkeys([*classes, *found]))
    if not grow and len(extended) > len(classes):
        raise DataError(
            f"the target has the class {extended[len(classes)]!r}, which is none of "
            f"{', '.join(map(repr, classes))}"
        )
    number = {each: code for code, each in enumerate(extended)}
    recode = np.array([number[each] for each in found], dtype=np.int64)
    return recode[encoded.indices.to_numpy()], extended
