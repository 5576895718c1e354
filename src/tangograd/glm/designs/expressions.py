"""Arithmetic on the columns of a table: a small tree that NumPy evaluates; no Python is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ATOM = 5
PLAIN_NAME = re.compile(r"(?!__)[^\W\d]\w*")


@dataclass(frozen=True)
class Operator:
    """What a formula may do with numbers, row by row.

    Attributes:
        symbol: as it is written.
        apply: to the arrays of its arguments.
        precedence: how tightly it binds; ``ATOM`` for functions.
        domain: the rule that its arguments may break.
    """

    symbol: str
    apply: Callable[..., Any]
    precedence: int = ATOM
    domain: str = ""


BINARY = {
    operator.symbol: operator
    for operator in (
        Operator("+", np.add, 1),
        Operator("-", np.subtract, 1),
        Operator("*", np.multiply, 2),
        Operator("/", np.true_divide, 2, "nothing can be divided by 0"),
        Operator("**", np.power, 4, "0 has no negative, a negative number no fractional power"),
    )
}
NEGATIVE = Operator("-", np.negative, 3)
FUNCTIONS = {
    operator.symbol: operator
    for operator in (
        Operator("log", np.log, domain="log needs values above 0"),
        Operator("log1p", np.log1p, domain="log1p needs values above -1"),
        Operator("exp", np.exp, domain="exp overflows above 709"),
        Operator("sqrt", np.sqrt, domain="sqrt needs values of at least 0"),
        Operator("abs", np.abs),
        Operator("I", np.positive),
    )
}


@dataclass(frozen=True)
class Expression:
    """One number a row: a column, a constant, or an operator and its arguments.

    >>> x = Expression(column="x")
    >>> ratio = Expression(BINARY["/"], (x, Expression(BINARY["+"], (x, Expression(constant=1.0)))))
    >>> ratio.text, ratio.value({"x": np.array([3.0])})
    ('x / (x + 1)', array([0.75]))
    """

    operator: Operator | None = None
    arguments: tuple[Expression, ...] = ()
    column: str | None = None
    constant: float = 0.0

    def value(self, data: Mapping[str, NDArray[Any]]) -> Any:
        """Its values from those of its columns; what has none becomes NaN or infinite."""
        if self.operator:
            return self.operator.apply(*(argument.value(data) for argument in self.arguments))
        return data[self.column] if self.column is not None else np.float64(self.constant)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it reads, each once, in order."""
        own = () if self.column is None else (self.column,)
        below = (name for argument in self.arguments for name in argument.columns)
        return tuple(dict.fromkeys((*own, *below)))

    @property
    def domains(self) -> tuple[str, ...]:
        """The rules that values may break."""
        own = (self.operator.domain,) if self.operator and self.operator.domain else ()
        below = (rule for argument in self.arguments for rule in argument.domains)
        return tuple(dict.fromkeys((*below, *own)))

    @property
    def name(self) -> str:
        """Of its coefficient: the column's own name, or the text."""
        return self.text if self.column is None else self.column

    @property
    def text(self) -> str:
        """As a formula writes it, with the brackets that are needed."""
        if self.column is not None:
            return quoted(self.column)
        if not self.operator:
            whole = self.constant.is_integer() and abs(self.constant) < 1e15
            return str(int(self.constant)) if whole else repr(self.constant)
        symbol, binding = self.operator.symbol, self.operator.precedence
        if binding == ATOM:
            return f"{symbol}({self.arguments[0].text})"
        if len(self.arguments) == 1:
            return f"{symbol}{self.arguments[0]._within(binding)}"
        # Chains group to the left, but those of ** to the right, where a minus needs no brackets.
        left, right = (ATOM, NEGATIVE.precedence) if symbol == "**" else (binding, binding + 1)
        return f"{self.arguments[0]._within(left)} {symbol} {self.arguments[1]._within(right)}"

    def _within(self, binding: int) -> str:
        own = self.operator.precedence if self.operator else ATOM
        return self.text if own >= binding else f"({self.text})"


def quoted(column: str) -> str:
    """A column's name as a formula writes it.

    >>> quoted("age"), quoted("odd name")
    ('age', '`odd name`')
    """
    if PLAIN_NAME.fullmatch(column):
        return column
    return f"`{column}`" if "`" not in column else f'Q("{column}")'
