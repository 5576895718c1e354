"""What the target is: its family where none is named, its classes, its values as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tangograd.glm.designs.columns import Kind
from tangograd.glm.designs.labels import did_you_mean, label
from tangograd.glm.designs.layout import shown
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, by_name
from tangograd.glm.fitted import Array

Label = str | int | float | bool
#: texts of more classes than this are taken for something else than a target
MOST_CLASSES = 20
#: a multinomial model that is asked for by name may have more
MOST_CLASSES_NAMED = 1000


@dataclass(frozen=True)
class Target:
    """How the values of the target become those that a family takes.

    Attributes:
        column: its name.
        family: of the model.
        classes: their labels, the baseline first; ``None`` for a regression.
        reason: why this family; empty if it was asked for.
        complete: whether the classes are all that there can be, not those of the first rows.
    """

    column: str
    family: Family
    classes: tuple[Label, ...] | None = None
    reason: str = ""
    complete: bool = True

    def numbers(self, values: NDArray[Any], where: Callable[[int], str]) -> Array:
        """The numbers of the classes, or the values themselves, all in the family's domain.

        Raises:
            DataError: for the first that is not; it names the place.
        """
        if self.classes is None:
            result = np.asarray(values, dtype=np.float64)
            try:
                self.family.check(result, where)
            except DataError as error:
                raise DataError(f"{error}{self._doubt()}") from error
            return result
        binary = values.dtype == np.float64 and self.classes == (0, 1)
        if binary and not ((values != 0) & (values != 1)).any():  # most frequent, and quick
            return values
        codes = _codes(values, self.classes)
        unknown = np.flatnonzero(codes < 0)
        if len(unknown):
            raise self._stranger(values[unknown[0]], where(int(unknown[0])))
        return codes.astype(np.float64)

    def _doubt(self) -> str:
        return f"; {self.reason}: name another with --family" if self.reason else ""

    def _stranger(self, value: Any, place: str) -> DataError:
        classes = self.classes or ()
        called = _plain(value)
        text = f"{place}: the target {self.column!r} is {called!r}, and its classes are "
        text += shown([str(each) for each in classes])
        if isinstance(called, str):
            return DataError(
                f"{text}{'' if self.complete else ' (found in the first rows)'}: name all classes "
                f"(--levels), or correct the value."
                f"{did_you_mean(called, [str(each) for each in classes])}"
            )
        if self.reason:
            return DataError(f"{text}{self._doubt()}")
        return DataError(f"{text}: correct the value, or name the classes (--levels)")


def infer(
    column: str,
    kind: Kind,
    values: Sequence[Any],
    *,
    name: str | None = None,
    link: str | None = None,
    parameters: dict[str, float] | None = None,
    given: Sequence[object] | None = None,
    complete: bool = False,
) -> Target:
    """The family and classes of a target.

    Args:
        column: its name.
        kind: what it holds.
        values: the different ones of (at least) the first rows.
        name: of the family, if the user named one.
        link: its link, if the user named one.
        parameters: of the family, if the user gave any.
        given: the classes in order, if the user gave them.
        complete: the values are those of all rows.

    Raises:
        DataError: the target does not fit the family, or no family fits it.
        ValueError: the family, its link and its parameters do not fit each other.

    >>> target = infer("visits", "number", [0.0, 1.0, 5.0])
    >>> target.family.name, target.reason
    ('poisson', "poisson was inferred, as 'visits' holds whole numbers from 0")
    >>> infer("fruit", "text", ["pear", "apple"]).classes
    ('apple', 'pear')
    """
    options = parameters or {}
    labels = None if given is None else [_label(value, kind) for value in given]
    found = labels or sorted(_plain(value) for value in values)
    by_value = name in (None, "binomial", "multinomial")
    if by_value and not found:
        raise DataError(f"the target {column!r} has no values where it was looked at")
    if kind == "number" and set(found) <= {0, 1}:
        found = labels or [0, 1]
    inferred = name is None
    if name is None:
        name, why = _inferred(column, kind, found, named=labels is not None)
        reason = f"{name} was inferred, as {column!r} {why}"
    if name == "multinomial":
        if link not in (None, "logit") or options:
            raise ValueError("multinomial has the link logit and no parameters")
        options = {"count": max(len(found), 2)}
    chosen = by_name(name, link, **options)
    target = Target(column, chosen, reason=reason if inferred else "")
    if name not in ("binomial", "multinomial"):
        if kind == "text":
            raise DataError(
                f"the target {column!r} holds text, and {name} models numbers; text is modelled as "
                "classes (binomial, multinomial)"
            )
        return target
    if name == "binomial" and kind == "number" and not (inferred or labels) and _shares(found):
        return target
    _check_count(column, name, found)
    certain = complete or labels is not None or kind == "boolean"
    return replace(target, classes=tuple(found), complete=certain)


def _inferred(column: str, kind: Kind, found: Sequence[Any], *, named: bool) -> tuple[str, str]:
    """A family and why."""
    if kind == "boolean":
        return "binomial", "holds true and false"
    if kind == "text" or named:
        if not named:
            check_few(column, found)
        several = len(found) > 2
        held = f"{len(found)} classes" if several else "two classes"
        return "multinomial" if several else "binomial", f"has {held}"
    if list(found) == [0, 1]:
        return "binomial", "holds 0 and 1"
    if len(found) == 2:
        return "binomial", f"holds two values, {found[0]} and {found[1]}"
    if all(isinstance(value, int) and value >= 0 for value in found):
        return "poisson", "holds whole numbers from 0"
    return "gaussian", "holds numbers"


def check_few(column: str, found: Sequence[Any]) -> None:
    """Make sure that texts are classes, not numbers with one odd value or names of the rows.

    Raises:
        DataError: there are too many of them.
    """
    if len(found) > MOST_CLASSES:
        raise DataError(
            f"the target {column!r} holds text of more than {MOST_CLASSES} different values "
            f"({shown(sorted(str(x) for x in found), 3)}): if it should be numbers, look for what "
            "is not one; if these are classes, say so with --family multinomial"
        )


def _shares(found: Sequence[Any]) -> bool:
    """Whether numbers are shares rather than two classes."""
    return len(found) != 2 or any(0 < value < 1 for value in found)


def _check_count(column: str, name: str, found: Sequence[Any]) -> None:
    listed = shown([str(each) for each in found], 5)
    if len(found) < 2:
        raise DataError(
            f"the target {column!r} has one class only ({listed}) where it was looked at: there is "
            "nothing to tell apart; shuffle the rows, or name the classes (--levels)"
        )
    if name == "binomial" and len(found) > 2:
        raise DataError(
            f"the target {column!r} has {len(found)} classes ({listed}), and binomial has two: use "
            "--family multinomial"
        )
    if len(found) > MOST_CLASSES_NAMED:
        raise DataError(
            f"the target {column!r} has {len(found)} classes, more than {MOST_CLASSES_NAMED}: "
            "group them"
        )


def _plain(value: Any) -> Any:
    """Without NumPy's type; whole numbers as such."""
    plain = value.item() if isinstance(value, np.generic) else value
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _label(value: object, kind: Kind) -> Any:
    """A label as the user gave it, as the target holds it.

    Raises:
        DataError: it holds nothing of that kind.
    """
    text = str(label(value))
    if kind == "text":
        return text
    try:
        return (
            {"true": True, "false": False}[text.lower()]
            if kind == "boolean"
            else _plain(float(text))
        )
    except (KeyError, ValueError) as error:
        held = "true or false" if kind == "boolean" else "numbers"
        raise DataError(
            f"the level {text!r} is given for the target, which holds {held}"
        ) from error


def _codes(values: NDArray[Any], classes: Sequence[Label]) -> NDArray[np.int64]:
    """The numbers of the classes; -1 where there is none."""
    number = {_key(each): code for code, each in enumerate(classes)}
    encoded = pa.array(values).dictionary_encode()
    recode = np.array([number.get(_key(each), -1) for each in encoded.dictionary.to_pylist()])
    return np.asarray(recode[encoded.indices.to_numpy()], dtype=np.int64)


def _key(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)
