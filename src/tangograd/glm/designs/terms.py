"""The terms of a model: products of numbers and levels, from a formula or one for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tangograd.glm.designs.expressions import Expression
from tangograd.glm.designs.formula import Factor, Formula


@dataclass(frozen=True)
class Part:
    """A factor of a term.

    Attributes:
        factor: the numbers or the column.
        full: whether the baseline has a column too.
    """

    factor: Factor
    full: bool = False


@dataclass(frozen=True)
class Term:
    """A product: of numbers, of indicators of levels, or of both.

    >>> x, region = Expression(column="x"), Expression(column="region")
    >>> Term((Part(Factor(x)), Part(Factor(region, categorical=True)))).name({"region": "north"})
    'x:region[north]'
    """

    parts: tuple[Part, ...]

    @cached_property
    def numbers(self) -> tuple[Expression, ...]:
        """Its numeric factors."""
        return tuple(part.factor.expression for part in self.parts if not part.factor.categorical)

    @cached_property
    def column(self) -> str | None:
        """The column of numbers that it is, if it is one."""
        numbers = self.numbers
        return numbers[0].column if len(self.parts) == len(numbers) == 1 else None

    @cached_property
    def categories(self) -> tuple[tuple[str, bool], ...]:
        """Its categorical columns, and whether each has all levels."""
        return tuple(
            (part.factor.expression.name, part.full)
            for part in self.parts
            if part.factor.categorical
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the data, in order."""
        names = (name for part in self.parts for name in part.factor.expression.columns)
        return tuple(dict.fromkeys(names))

    def name(self, levels: Mapping[str, str]) -> str:
        """Of the coefficient at those levels."""
        return ":".join(
            f"{part.factor.expression.name}[{levels[part.factor.expression.name]}]"
            if part.factor.categorical
            else part.factor.expression.name
            for part in self.parts
        )


def main_effects(columns: Mapping[str, bool]) -> tuple[Term, ...]:
    """A term for each column (and whether it is categorical): the model without a formula.

    >>> [term.columns for term in main_effects({"x": False, "region": True})]
    [('x',), ('region',)]
    """
    return tuple(
        Term((Part(Factor(Expression(column=name), categorical)),))
        for name, categorical in columns.items()
    )


def expand(formula: Formula) -> tuple[Term, ...]:
    """The terms of a formula without the intercept, levels coded such that no column is redundant.

    formulaic does it, on a table of two rows and with names of ours in place of the factors: it
    sees nothing that the user wrote. A categorical factor has all its levels where no lower term
    spans them: in ``y ~ x:C(region)``, but not in ``y ~ x*C(region)``.

    >>> from tangograd.glm.designs.formula import parse
    >>> [term.columns for term in expand(parse("a * b - b"))]
    [('a',), ('a', 'b')]
    """
    if not formula.algebra:
        return ()
    import pandas as pd
    from formulaic import model_matrix

    factors = {f"f{number:05d}": factor for number, factor in enumerate(formula.factors)}
    table = pd.DataFrame(
        {
            name: pd.Categorical(["a", "b"]) if factor.categorical else [0.0, 1.0]
            for name, factor in factors.items()
        }
    )
    intercept = "1" if formula.intercept else "0"
    matrix = model_matrix(f"{intercept} + {formula.algebra}", table, context={}, output="numpy")
    return tuple(
        Term(tuple(_part(factors[part.factor.expr], part.reduced) for part in scoped.factors))
        for term in matrix.model_spec.structure
        for scoped in term.scoped_terms
        if scoped.factors
    )


def _part(factor: Factor, reduced: bool) -> Part:
    return Part(factor, full=factor.categorical and not reduced)
