"""What of a design is fixed before any row is read: the part that each column plays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from tangograd.glm.designs.columns import WORDS, Kind, kind_of
from tangograd.glm.designs.formula import Formula, parse
from tangograd.glm.designs.labels import unknown_column
from tangograd.glm.designs.terms import Term, expand, main_effects
from tangograd.glm.errors import DataError

Policy = Literal["drop", "indicator"]
POLICIES: tuple[Policy | None, ...] = (None, "drop", "indicator")
DAMAGED = "the model's design is damaged"


@dataclass(frozen=True)
class Blueprint:
    """The parts that columns play.

    Attributes:
        target: the column to be explained.
        target_kind: what it holds.
        kinds: what the columns hold that explain it, in the order of the data.
        categorical: those of them that have levels.
        others: those that a ``.`` in the formula stands for.
        formula: ``None`` for all columns as they are.
        weights: the column of weights, if any.
        exposure: the column of exposures, if any; its logarithm is added to the predictor.
        offset: the column that is added to the predictor, if any.
        na: what is done with missing values: ``None`` refuses them.
    """

    target: str
    target_kind: Kind
    kinds: Mapping[str, Kind]
    categorical: tuple[str, ...]
    others: tuple[str, ...] = ()
    formula: str | None = None
    weights: str | None = None
    exposure: str | None = None
    offset: str | None = None
    na: Policy | None = None

    @cached_property
    def parsed(self) -> Formula | None:
        """The formula, accepted by the grammar."""
        return None if self.formula is None else parse(self.formula, self._levelled, self.others)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """Of the model, without the intercept."""
        return expand(self.parsed) if self.parsed else main_effects(self._levelled)

    @property
    def intercept(self) -> bool:
        """Whether there is one."""
        return self.parsed is None or self.parsed.intercept

    @property
    def baselines(self) -> Mapping[str, str]:
        """Those that the formula states."""
        return self.parsed.baselines if self.parsed else {}

    @cached_property
    def numeric_columns(self) -> tuple[str, ...]:
        """Whose numbers the terms need."""
        numbers = (part for term in self.terms for part in term.numbers)
        return tuple(dict.fromkeys(name for part in numbers for name in part.columns))

    @cached_property
    def level_columns(self) -> tuple[str, ...]:
        """Whose levels the terms need."""
        return tuple(dict.fromkeys(name for term in self.terms for name, _ in term.categories))

    @property
    def columns(self) -> tuple[str, ...]:
        """That explain the target, in the order of the data."""
        used = {*self.numeric_columns, *self.level_columns}
        return tuple(name for name in self.kinds if name in used)

    @property
    def _levelled(self) -> dict[str, bool]:
        return {name: name in self.categorical for name in self.kinds}

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain = asdict(self)
        return plain | {
            "kinds": [[name, kind] for name, kind in self.kinds.items()],
            "categorical": list(self.categorical),
            "others": list(self.others),
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Blueprint:
        """From what ``to_dict`` gave; the formula goes through the grammar again.

        Raises:
            DataError: it is something else.
        """
        if not isinstance(plain, dict) or set(plain) != {each.name for each in fields(cls)}:
            raise DataError(f"{DAMAGED}: the parts of the columns are not those of a design")
        pairs = plain["kinds"]
        lists = (plain["categorical"], plain["others"])
        optional = ("formula", "weights", "exposure", "offset")
        sound = (
            isinstance(pairs, list)
            and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
            and all(isinstance(name, str) and _is_kind(kind) for name, kind in pairs)
            and all(isinstance(names, list) for names in lists)
            and all(isinstance(name, str) for names in lists for name in names)
            and isinstance(plain["target"], str)
            and _is_kind(plain["target_kind"])
            and all(isinstance(plain[key], str | None) for key in optional)
            and plain["na"] in POLICIES
        )
        kinds = dict(pairs) if sound else {}
        if (
            not sound
            or len(kinds) != len(pairs)
            or plain["target"] in kinds
            or not {*lists[0], *lists[1]} <= set(kinds)
            or any(kind != "number" and name not in lists[0] for name, kind in kinds.items())
        ):
            raise DataError(f"{DAMAGED}: a part of a column has the wrong type or value")
        sequences = {"kinds": kinds, "categorical": tuple(lists[0]), "others": tuple(lists[1])}
        result = cls(**plain | sequences)
        if result.parsed and result.parsed.target not in (None, result.target):
            raise DataError(f"{DAMAGED}: the formula has another target")
        return result


def blueprint(
    schema: pa.Schema,
    *,
    target: str | None,
    formula: str | None = None,
    exposure: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exclude: Collection[str] = (),
    na: Policy | None = None,
    levelled: Collection[str] = (),
) -> Blueprint:
    """Give each column of a table its part.

    Args:
        schema: of the table.
        target: may be left to the formula.
        formula: such as ``y ~ x + C(region)``.
        exposure: a column of positive numbers.
        weights: a column of numbers from 0.
        offset: a column of numbers.
        exclude: columns to be left out.
        na: what is done with missing values.
        levelled: columns that are categorical though they may hold numbers.

    Raises:
        DataError: they do not fit the table or each other.
    """
    if na not in POLICIES:
        raise DataError(f"missing values are dropped or indicated (drop, indicator), not {na!r}")
    names = schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two columns are called {twice!r}: rename one of them")
    types = dict(zip(names, schema.types, strict=True))
    grammatical = parse(formula) if formula is not None else None
    chosen = _target(target, grammatical)
    roles = {"target": chosen, "weights": weights, "exposure": exposure, "offset": offset}
    _check_roles(roles, types, exclude)
    for name in levelled:
        if name not in types:
            raise unknown_column(name, names, "for which levels are given")
    others = [name for name in names if name not in {*roles.values(), *exclude}]
    categorical = {
        name: name in levelled
        or pa.types.is_dictionary(types[name])
        or kind_of(types[name]) in ("text", "boolean")
        for name in names
    }
    used = others
    if formula is not None:
        parsed = parse(formula, categorical, others)
        used = [name for name in names if name in parsed.columns]
        others = others if parsed.everything else []
        _check_named(used, chosen, exclude)
    elif not used:
        raise DataError(f"there is no column besides {chosen!r} to explain it by")
    kinds = {name: _usable(name, types[name]) for name in used}
    return Blueprint(
        target=chosen,
        target_kind=_usable(chosen, types[chosen]),
        kinds=kinds,
        categorical=tuple(name for name in used if categorical[name]),
        others=tuple(others),
        formula=formula,
        weights=weights,
        exposure=exposure,
        offset=offset,
        na=na,
    )


def _check_roles(
    roles: Mapping[str, str | None], types: Mapping[str, pa.DataType], exclude: Collection[str]
) -> None:
    for left_out in exclude:
        if left_out not in types:
            raise unknown_column(left_out, types, "to be excluded")
    for role, name in roles.items():
        if name is None:
            continue
        if name not in types:
            raise unknown_column(name, types, f"the {role}")
        if name in exclude:
            raise DataError(f"column {name!r} is the {role} and excluded: which one is meant?")
        if role != "target" and name == roles["target"]:
            raise DataError(f"column {name!r} is both the target and the {role}")
        if role != "target" and kind_of(types[name]) != "number":
            raise DataError(f"column {name!r}, the {role}, is of type {types[name]}, not numbers")


def _check_named(used: Collection[str], target: str, exclude: Collection[str]) -> None:
    if target in used:
        raise DataError(f"the target {target!r} is in the formula too, and cannot explain itself")
    for name in used:
        if name in exclude:
            raise DataError(f"column {name!r} is in the formula and excluded: which one is meant?")


def _is_kind(value: Any) -> bool:
    return isinstance(value, str) and value in WORDS


def _usable(name: str, type_: pa.DataType) -> Kind:
    kind = kind_of(type_)
    if kind is None:
        raise DataError(
            f"column {name!r} is of type {type_}, which is neither numbers nor categories: leave "
            f"it out (--exclude {name}), or turn it into numbers or text"
        )
    return kind


def _target(given: str | None, formula: Formula | None) -> str:
    stated = formula.target if formula else None
    if given is not None and stated is not None and given != stated:
        raise DataError(f"the target is {given!r} (--target) but {stated!r} in the formula")
    chosen = given if given is not None else stated
    if chosen is None:
        raise DataError("no target: name it (--target y) or begin the formula with it (y ~ …)")
    return chosen
