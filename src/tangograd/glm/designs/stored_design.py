"""Designs as plain data, for the JSON of saved models."""

from __future__ import annotations

from typing import Any

from tangograd.glm.designs.blueprint import DAMAGED, Blueprint
from tangograd.glm.designs.design import Design
from tangograd.glm.designs.layout import Category
from tangograd.glm.errors import DataError

KEYS = frozenset(
    (
        "columns",
        "categories",
        "indicators",
        "opened",
        "complete",
        "classes",
        "surveyed_rows",
        "sparse",
        "names",
    )
)
CATEGORY_KEYS = frozenset(("column", "origin", "baseline", "levels", "counts", "seen"))
ORIGINS = ("sorted", "given", "first seen")


def to_dict(design: Design) -> dict[str, Any]:
    """A design as lists, dictionaries, texts and numbers.

    Levels that were opened on the way are kept in that order, since their columns are.
    """
    opened = design.layout.opened
    later = set(opened)
    return {
        "columns": design.blueprint.to_dict(),
        "categories": [
            {
                "column": name,
                "origin": category.origin,
                "baseline": category.baseline if category.stated else None,
                "levels": [level for level in category.labels if (name, level) not in later],
                "counts": dict(category.counts),
                "seen": category.seen,
            }
            for name, category in design.categories.items()
        ],
        "indicators": [name for name in design.layout.indicators if (name, None) not in later],
        "opened": [list(each) for each in opened],
        "complete": design.complete,
        "classes": None if design.classes is None else list(design.classes),
        "surveyed_rows": design.surveyed_rows,
        "sparse": design.sparse,
        "names": list(design.names),
    }


def from_dict(plain: Any) -> Design:
    """The design of such a dictionary.

    Raises:
        DataError: something in it is not as ``to_dict`` writes it, or its formula is refused.
    """
    _check(isinstance(plain, dict) and set(plain) == KEYS, "it has other entries")
    parts = Blueprint.from_dict(plain["columns"])
    _check_types(plain)
    categories = {each["column"]: _category(each) for each in plain["categories"]}
    _check(
        tuple(categories) == parts.level_columns
        and len(categories) == len(plain["categories"])
        and set(plain["indicators"]) <= set(parts.numeric_columns),
        "its categories are not those of its columns",
    )
    design = Design(
        parts,
        categories,
        indicators=plain["indicators"],
        complete=plain["complete"],
        classes=plain["classes"],
        surveyed_rows=plain["surveyed_rows"],
        sparse=plain["sparse"],
    )
    for name, level in plain["opened"]:
        _check(_is_new(design, name, level), "a level was opened twice, or in no column")
        design.layout.open(name, level)
    _check(list(design.names) == plain["names"], "its coefficients are not those of its columns")
    return design


def _is_new(design: Design, name: str, level: str | None) -> bool:
    if level is None:
        return name in design.blueprint.numeric_columns and name not in design.layout.indicators
    return name in design.categories and level not in design.categories[name].codes


def _check(sound: bool, problem: str) -> None:
    if not sound:
        raise DataError(f"{DAMAGED}: {problem}")


def _check_types(plain: dict[str, Any]) -> None:
    rows, classes = plain["surveyed_rows"], plain["classes"]
    _check(
        isinstance(plain["categories"], list)
        and all(_is_category(each) for each in plain["categories"])
        and _are_texts(plain["indicators"])
        and isinstance(plain["opened"], list)
        and all(isinstance(each, list) and len(each) == 2 for each in plain["opened"])
        and all(
            isinstance(name, str) and isinstance(level, str | None)
            for name, level in plain["opened"]
        )
        and isinstance(plain["complete"], bool)
        and (classes is None or classes == [False, True] or _are_texts(classes))
        and (rows is None or _is_count(rows))
        and isinstance(plain["sparse"], bool | None)
        and _are_texts(plain["names"]),
        "an entry has the wrong type",
    )


def _is_category(each: Any) -> bool:
    return (
        isinstance(each, dict)
        and set(each) == CATEGORY_KEYS
        and isinstance(each["column"], str)
        and each["origin"] in ORIGINS
        and isinstance(each["baseline"], str | None)
        and _are_texts(each["levels"])
        and isinstance(each["seen"], bool | None)
        and isinstance(each["counts"], dict)
        and all(isinstance(level, str) and _is_count(n) for level, n in each["counts"].items())
    )


def _are_texts(values: Any) -> bool:
    """Whether it is a list of different texts."""
    return (
        isinstance(values, list)
        and all(isinstance(value, str) for value in values)
        and len(set(values)) == len(values)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _category(each: dict[str, Any]) -> Category:
    baseline = each["baseline"]
    category = Category(
        each["column"],
        each["origin"],
        baseline,
        baseline is not None,
        counts=each["counts"],
        seen=each["seen"],
    )
    category.add(each["levels"])
    category.check_baseline()
    return category
