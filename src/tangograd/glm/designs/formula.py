r"""Formulas such as ``y ~ x1 + C(region) + log(x2)``, read by a grammar of a few lines.

Whatever the grammar does not know is refused; what it knows becomes data (``Factor``) for NumPy and
for formulaic's algebra of terms. No part of a formula is ever run as Python. ::

    formula  = [column "~"] sum
    sum      = ["+" | "-"] part (("+" | "-") part)*       0 or - 1: no intercept
    part     = product ("*" product)*                     a*b = a + b + a:b
    product  = power (":" power)*                         the interaction
    power    = factor [("^" | "**") whole]                (a + b)^2 = a + b + a:b; x^2 = I(x**2)
    factor   = "(" sum ")" | "." | column | category | function "(" numbers ")"
    category = "C(" column ["," "baseline" "=" level] ")"
    level    = text | number | True | False
    column   = name | "`" odd name "`" | "Q(" text ")"
    function = log | log1p | exp | sqrt | abs | I
    numbers  = arithmetic on columns, constants and functions: + - * / ** and brackets

``.`` is every column that has no other part to play. ``x^2`` is the square of a column, as it looks
(to R and formulaic it is ``x`` itself); ``a/b``, a ratio to some and nesting to others, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tangograd.glm.designs.expressions import BINARY, FUNCTIONS, NEGATIVE, Expression, quoted
from tangograd.glm.designs.labels import label, unknown_column
from tangograd.glm.designs.tokens import Cursor
from tangograd.glm.errors import DataError

MAX_OPERATIONS = 50
MAX_TERMS = 3_000
MAX_DEGREE = 6
STATEFUL = frozenset(
    ("scale", "center", "standardize", "poly", "bs", "cs", "cc", "cr", "te", "ns", "hashed", "lag")
)
CONTRASTS = frozenset(("Treatment", "contr", "Sum", "Poly", "Helmert", "Diff", "Custom"))


@dataclass(frozen=True)
class Factor:
    """What terms are products of: numbers, or the levels of a column."""

    expression: Expression
    categorical: bool = False


@dataclass(frozen=True)
class Formula:
    """A formula that the grammar accepts.

    Attributes:
        text: as it was written.
        target: the column to the left of ``~``, if any.
        intercept: whether there is one.
        factors: each once, in order of appearance.
        algebra: the right-hand side for formulaic, with ``f00000``, … in place of the factors;
            empty if there are none.
        baselines: of categorical columns, where stated.
        everything: whether a ``.`` is in it.
    """

    text: str
    target: str | None
    intercept: bool
    factors: tuple[Factor, ...]
    algebra: str
    baselines: Mapping[str, str]
    everything: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Those on the right-hand side, each once, in order."""
        names = (name for factor in self.factors for name in factor.expression.columns)
        return tuple(dict.fromkeys(names))


def parse(
    text: str, columns: Mapping[str, bool] | None = None, others: Sequence[str] = ()
) -> Formula:
    """Read a formula.

    Args:
        text: the formula.
        columns: those that may be named, and whether each is categorical. ``None`` checks the
            grammar alone: any name is that of a column of numbers.
        others: those that ``.`` stands for.

    Raises:
        DataError: the grammar refuses it, or it names a column that is not in the data.

    >>> formula = parse("y ~ x + C(region) - 1", {"x": False, "region": True})
    >>> formula.target, formula.intercept, formula.algebra
    ('y', False, '(f00000 + f00001)')
    """
    return _Parser(text, columns, others).formula()


class _Piece(NamedTuple):
    """A part of the algebra, empty where ``.`` stands for nothing."""

    algebra: str
    terms: int  # that it may expand to
    degree: int  # factors in one of them
    factor: Factor | None = None  # if it is a single one


NOTHING = _Piece("", 0, 0)


class _Parser(Cursor):
    """Recursive descent, a method for each rule of the grammar."""

    def __init__(
        self, text: str, columns: Mapping[str, bool] | None, others: Sequence[str]
    ) -> None:
        super().__init__(text)
        self.columns, self.others = columns, others
        self.names: dict[Factor, str] = {}
        self.baselines: dict[str, str] = {}
        self.target: str | None = None
        self.intercept, self.everything = True, False
        self.operations = 0

    def formula(self) -> Formula:
        if any(token.is_sign("~") for token in self.tokens):
            self._left_side()
        whole = self._sum()
        if self.next.kind != "end":
            self.refuse(self._misplaced())
        empty = not whole.algebra and not self.everything
        if not self.intercept and empty:
            raise DataError(f"the formula {self.text!r} has neither columns nor an intercept")
        return Formula(
            self.text,
            self.target,
            self.intercept,
            tuple(self.names),
            whole.algebra,
            self.baselines,
            self.everything,
        )

    def _left_side(self) -> None:
        if self.take("sign", "~"):
            return
        if self._calls():
            self.refuse(
                "the target must be a column itself; its transformation changes what is modelled. "
                "For the logarithm of a mean use a family with a log link (--family poisson, "
                "gamma or tweedie), or write a column of the transformed target into the data"
            )
        self.target = self._column(known=False)
        if self.take("sign", "~") is None:
            self.refuse("the left-hand side is one column, the target")

    def _sum(self) -> _Piece:
        parts: list[_Piece] = []
        signs: list[str] = []
        sign = self.take("sign", "+", "-")
        while True:
            if not self._constant(sign or "+"):
                part = self._crossed("*")
                if part.algebra and (parts or sign != "-"):  # from nothing, nothing can be taken
                    parts.append(part)
                    signs.append(sign or "+")
            sign = self.take("sign", "+", "-")
            if sign is None:
                break
        if len(parts) < 2:
            return parts[0] if parts else NOTHING
        tail = (f" {sign} {part.algebra}" for sign, part in zip(signs[1:], parts[1:], strict=True))
        return self._bounded(
            f"({parts[0].algebra}{''.join(tail)})",
            sum(part.terms for part in parts),
            max(part.degree for part in parts),
        )

    def _constant(self, sign: str) -> bool:
        """Whether 0 or 1 comes next, which is for the intercept and outside of brackets."""
        if self.depth or self.next.kind != "number" or self.next.text not in ("0", "1"):
            return False
        self.intercept = (self.next.text == "1") == (sign == "+")
        self.at += 1
        return True

    def _crossed(self, operator: str) -> _Piece:
        piece = self._crossed(":") if operator == "*" else self._power()
        while self.take("sign", operator):
            other = self._crossed(":") if operator == "*" else self._power()
            terms = piece.terms * other.terms
            if operator == "*":
                terms += piece.terms + other.terms
            algebra = f"({piece.algebra} {operator} {other.algebra})"
            both = piece.algebra and other.algebra
            piece = self._bounded(algebra, terms, piece.degree + other.degree) if both else NOTHING
        return piece

    def _bounded(self, algebra: str, terms: int, degree: int) -> _Piece:
        if terms > MAX_TERMS:
            self.refuse(f"this makes {terms} terms, more than {MAX_TERMS}")
        if degree > MAX_DEGREE:
            self.refuse(f"an interaction of {degree} factors, more than {MAX_DEGREE}")
        return _Piece(algebra, terms, degree)

    def _power(self) -> _Piece:
        base = self._factor()
        if self.take("sign", "^", "**") is None:
            return base
        exponent = self.take("number", *map(str, range(1, 10)))
        if exponent is None:
            self.refuse("outside of I(...) a power is a whole number from 1 to 9")
        if base.factor is None:
            times = int(exponent)
            algebra = f"({base.algebra} ** {exponent})"
            return (
                self._bounded(algebra, base.terms**times, min(base.degree * times, base.terms))
                if base.algebra
                else NOTHING
            )
        if base.factor.categorical:
            self.refuse(f"{base.factor.expression.text} is categorical and has no powers")
        power = (base.factor.expression, Expression(constant=float(exponent)))
        return self._named(Factor(Expression(FUNCTIONS["I"], (Expression(BINARY["**"], power),))))

    def _factor(self) -> _Piece:
        if self.take("sign", "("):
            self.deeper()
            inner = self._sum()
            self.expect(")")
            self.depth -= 1
            return inner
        if self.take("sign", "."):
            self.everything = True
            names = [self._named(self._bare(name)).algebra for name in self.others]
            return self._bounded(f"({' + '.join(names)})", len(names), 1) if names else NOTHING
        if self.next.kind == "number":
            self.refuse(
                "outside of I(...) numbers are 0 or 1, for the intercept, and not in brackets"
            )
        if self._calls():
            return self._named(self._call())
        return self._named(self._bare(self._column()))

    def _named(self, factor: Factor) -> _Piece:
        name = self.names.setdefault(factor, f"f{len(self.names):05d}")
        return _Piece(name, 1, 1, factor)

    def _bare(self, column: str) -> Factor:
        return Factor(Expression(column=column), bool(self.columns and self.columns[column]))

    def _calls(self) -> bool:
        return self.next.kind == "name" and self.next.text != "Q" and self.after.is_sign("(")

    def _call(self) -> Factor:
        if self.next.text == "C":
            return self._category()
        self.operations = 0
        start = self.next.position
        expression = self._function()
        if not expression.columns:
            self.refuse(f"{expression.text} has no column in it", start)
        return Factor(expression)

    def _category(self) -> Factor:
        self.at += 1
        self.expect("(")
        column = self._column()
        if self.take("sign", ","):
            if self.take("name", "baseline") is None or self.take("sign", "=") is None:
                self.refuse('the only option of C is its baseline: C(column, baseline="level")')
            baseline = self._level()
            if self.baselines.setdefault(column, baseline) != baseline:
                self.refuse(f"{quoted(column)} is given two baselines")
        self.expect(")")
        return Factor(Expression(column=column), categorical=True)

    def _level(self) -> str:
        text = self.take("text")
        if text is not None:
            return text
        truth = self.take("name", "True", "False")
        if truth is not None:
            return str(label(truth == "True"))
        sign = -1 if self.take("sign", "-") else 1
        if self.next.kind != "number":
            self.refuse("a baseline is a text in quotes, a number, True or False")
        return str(label(sign * self._number().constant))

    def _column(self, known: bool = True) -> str:
        position = self.next.position
        name = self.take("odd") or self.take("name")
        if name is None:
            self.refuse(self._misplaced())
        if name == "Q" and self.tokens[self.at - 1].kind == "name" and self.take("sign", "("):
            name = self.take("text")
            if name is None:
                self.refuse('Q takes the name of a column in quotes: Q("odd name")')
            self.expect(")")
        if self.next.kind in ("sign", "number") and self.next.text.startswith("."):
            self.refuse("a column whose name has a dot is back-quoted, as in `a.b`")
        if known and name == self.target:
            self.refuse(f"the target {name!r} cannot explain itself", position)
        if known and self.columns is not None and name not in self.columns:
            raise unknown_column(name, self.columns, "in the formula")
        return name

    def _misplaced(self) -> str:
        if self.next.kind == "end":
            return "it ends too early"
        if self.next.text == "/":
            return "a/b is ambiguous: write I(a / b) for the ratio, a + a:b for b within a"
        return f"{self.next.text!r} is out of place"

    # Arithmetic, inside of functions.

    def _function(self) -> Expression:
        name = self.next.text
        if name in STATEFUL:
            self.refuse(
                f"{name}() learns from the data, and on a stream its state would be that of the "
                "first chunk alone. Write the transformed column into the data; scaling and "
                "centring are not needed, and powers are I(x**2)"
            )
        if name not in FUNCTIONS:
            coding = '; levels are compared with a baseline: C(column, baseline="level")'
            self.refuse(f"the function {name} is not allowed" + coding * (name in CONTRASTS))
        self.at += 1
        self.expect("(")
        self.deeper()
        inner = self._operations(("+", "-"))
        self.expect(")")
        self.depth -= 1
        return Expression(FUNCTIONS[name], (inner,))

    def _counted(self, operator: str, *arguments: Expression) -> Expression:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            self.refuse(f"more than {MAX_OPERATIONS} operations in one function")
        return Expression(BINARY[operator], arguments)

    def _operations(self, operators: tuple[str, ...]) -> Expression:
        below = self._signed if "*" in operators else lambda: self._operations(("*", "/"))
        result = below()
        while operator := self.take("sign", *operators):
            result = self._counted(operator, result, below())
        return result

    def _signed(self) -> Expression:
        self.deeper()
        if self.take("sign", "-"):
            result = Expression(NEGATIVE, (self._signed(),))
        elif self.take("sign", "+"):
            result = self._signed()
        else:
            result = self._atom()
            if self.take("sign", "**", "^"):
                result = self._counted("**", result, self._exponent())
        self.depth -= 1
        return result

    def _exponent(self) -> Expression:
        negative = self.take("sign", "-")
        if self.next.kind != "number":
            self.refuse("a power is a number, as in I(x**2)")
        constant = self._number()
        return Expression(NEGATIVE, (constant,)) if negative else constant

    def _number(self) -> Expression:
        value = float(self.next.text)
        if not math.isfinite(value):
            self.refuse("this number is too large")
        self.at += 1
        return Expression(constant=value)

    def _atom(self) -> Expression:
        if self.next.kind == "number":
            return self._number()
        if self.take("sign", "("):
            inner = self._operations(("+", "-"))
            self.expect(")")
            return inner
        if self._calls():
            return self._function()
        column = self._column()
        if self.columns is not None and self.columns[column]:
            self.refuse(f"{quoted(column)} is categorical; arithmetic needs numbers")
        return Expression(column=column)
