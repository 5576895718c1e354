"""How columns and levels are called, in coefficients and in errors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

from tangograd.glm.errors import DataError
from tangograd.glm.tables.tables import shortened

MISSING = "(missing)"


def label(value: object) -> str | None:
    """The level of a value: one text whether it was read as an integer or as a float.

    >>> label(3), label(3.0), label(2.5), label(True), label("north"), label(float("nan"))
    ('3', '3', '2.5', 'true', 'north', None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    return None if value is None else str(value)


def told(text: str | None) -> str:
    """A level in a message: the beginning of a long one, in quotation marks.

    >>> told("north")
    "'north'"
    """
    return repr(None if text is None else shortened(text))


def unknown_column(name: str, columns: Iterable[str], role: str = "") -> DataError:
    """The error for a column that is not there, with the names that are close.

    >>> print(unknown_column("agee", ["age", "sex"]))
    column 'agee' is not in the data; its columns are: age, sex. Did you mean 'age'?
    """
    known = list(columns)
    shown = ", ".join(known[:20]) + (f", … ({len(known)} in all)" if len(known) > 20 else "")
    text = f"column {name!r}{role and f' ({role})'} is not in the data; its columns are: {shown}."
    return DataError(text + did_you_mean(name, known))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the closest, if any is close.

    >>> did_you_mean("nort", ["north", "south"])
    " Did you mean 'north'?"
    """
    close = get_close_matches(name, list(known), n=1)
    return f" Did you mean {told(close[0])}?" if close else ""
