"""The words of a formula, and a cursor that walks along them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from tangograd.glm.errors import DataError

MAX_LENGTH = 20_000
MAX_DEPTH = 40
ALLOWED = (
    "A formula may hold column names (odd ones as `odd name`), + - : * ( ) . and ^ with a whole "
    'number, 0 or 1 for the intercept, C(column), C(column, baseline="level"), log, log1p, exp, '
    "sqrt and abs of numbers, and I(...) of arithmetic with + - * / **"
)
PATTERN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?!\w))"
    r"|(?P<name>[^\W\d]\w*)|`(?P<odd>[^`\n]+)`|\"(?P<text>[^\"\\\n]*)\"|'(?P<quote>[^'\\\n]*)'"
    r"|(?P<sign>\*\*|[-+*:^/~().,=])"
)


class Token(NamedTuple):
    """A word: its kind is a group of ``PATTERN``, or ``"end"``."""

    kind: str
    text: str
    position: int

    def is_sign(self, *signs: str) -> bool:
        """Whether it is one of these signs (a back-quoted name never is)."""
        return self.kind == "sign" and self.text in signs


class Cursor:
    """Walks along the words of a formula of bounded length.

    >>> cursor = Cursor("x + 1")
    >>> cursor.take("name"), cursor.take("number"), cursor.take("sign", "+")
    ('x', None, '+')

    Raises:
        DataError: a character is of no word.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise DataError(
                f"the formula has {len(text)} characters; at most {MAX_LENGTH} are read. "
                "'.' stands for all columns, and --exclude leaves some out"
            )
        self.text = text
        self.depth = self.at = 0
        self.tokens = list(self._split())

    def _split(self) -> Iterator[Token]:
        position = 0
        while position < len(self.text):
            match = PATTERN.match(self.text, position)
            if match is None:
                self.refuse(f"{self.text[position]!r} is not allowed", position)
            kind = str(match.lastgroup)
            if kind == "name" and match[kind].startswith("__"):
                self.refuse("names do not start with '__' unless back-quoted", position)
            if kind != "space":
                yield Token("text" if kind == "quote" else kind, match[kind], position)
            position = match.end()
        yield Token("end", "", position)

    def refuse(self, problem: str, position: int | None = None) -> NoReturn:
        """Raise the error for the formula at that character, by default the next word's."""
        at = self.next.position if position is None else position
        near = self.text[max(0, at - 15) : at + 15].strip()
        raise DataError(f"formula, character {at + 1}, near {near!r}: {problem}. {ALLOWED}.")

    @property
    def next(self) -> Token:
        """The word to be taken next."""
        return self.tokens[self.at]

    @property
    def after(self) -> Token:
        """The word after the next."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def take(self, kind: str, *texts: str) -> str | None:
        """The next word, if it is of that kind and one of these texts (any if there are none)."""
        token = self.next
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self.at += 1
        return token.text

    def expect(self, sign: str) -> None:
        """Take that sign, or refuse the formula."""
        if self.take("sign", sign) is None:
            self.refuse(f"{sign!r} is missing")

    def deeper(self) -> None:
        """Go one level down, if there are not too many already."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.refuse(f"brackets and signs are nested more than {MAX_DEPTH} deep")
