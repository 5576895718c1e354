"""One batch on its way to a design matrix: its values, and which of its rows can be used."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tangograd.glm.designs.blueprint import Blueprint
from tangograd.glm.designs.columns import (
    Faults,
    Kind,
    Levels,
    Mask,
    Numbers,
    complete,
    decoded,
    encode,
    finite,
    numbers,
    numbers_of_rows,
    take_column,
)
from tangograd.glm.designs.expressions import Expression
from tangograd.glm.designs.labels import MISSING, did_you_mean, told
from tangograd.glm.designs.layout import Category, Layout, shown
from tangograd.glm.errors import DataError

Array = NDArray[np.float64]
Unseen = Literal["missing", "baseline", "error"]
UNSEEN: tuple[Unseen, ...] = ("missing", "baseline", "error")


class Reading:
    """The values of a batch under the rules of a design.

    Args:
        batch: the rows.
        plan: the parts of the columns.
        layout: of the design matrix.
        where: from the index of a row to its place, for errors.
        training: whether a model is fitted to them.
        complete: whether nothing new may be opened.
        unseen: what becomes of rows with unknown levels when no model is fitted.
        only: the numbers of the batch's rows that are read; ``None`` for all. From then on these
            are the rows, counted from 0.
        unchecked: columns of numbers in which NaN and infinity are not looked for.

    Attributes:
        faults: what is wrong in the batch.
        gone: the rows that cannot be used.
        dropped: how many of them, by the column that is missing.
        unknown: rows with unknown levels, by column and level.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        plan: Blueprint,
        layout: Layout,
        where: Callable[[int], str],
        *,
        training: bool,
        complete: bool,
        unseen: Unseen,
        only: NDArray[np.int64] | None = None,
        unchecked: Collection[str] = (),
    ) -> None:
        if unseen not in UNSEEN:
            raise DataError(f"unseen is one of {', '.join(UNSEEN)}, not {unseen!r}")
        self.batch, self.plan, self.layout, self.only = batch, plan, layout, only
        self.unchecked = unchecked
        rows = batch.num_rows if only is None else len(only)
        self.place = where(0) if rows else ""
        self.unseen = unseen
        self.training = training
        self.grows = training and not complete
        self.strict = training or unseen == "error"
        self.faults = Faults()
        self.gone: Mask = np.zeros(rows, dtype=bool)
        self.dropped: dict[str, int] = {}
        self.unknown: dict[str, dict[str, int]] = {}
        self.numbers = {name: self._numbers(name) for name in plan.numeric_columns}
        self.levels = {
            name: encode(take_column(batch, name, plan.kinds[name], place=self.place), only)
            for name in plan.level_columns
        }
        for name, column in self.numbers.items():
            self._without(name, column, indicated=self.grows or name in layout.indicators)
        for name, levels in self.levels.items():
            self._refuse_infinite(name, levels)
            known = MISSING in layout.categories[name].codes
            self._without(name, levels, indicated=self.grows or known)

    def _array(self, name: str, kind: Kind, role: str = "") -> pa.Array:
        array = take_column(self.batch, name, kind, role=role, place=self.place)
        return array if self.only is None else array.take(numbers_of_rows(self.only))

    def _numbers(self, name: str, role: str = "") -> Numbers:
        if self.only is not None:
            whole = take_column(self.batch, name, "number", role=role, place=self.place)
            found = complete(whole, self.only, checked=name not in self.unchecked)
            if found is not None:
                return found
        return numbers(name, self._array(name, "number", role), self.faults)

    def _refuse_infinite(self, name: str, levels: Levels) -> None:
        if self.plan.kinds[name] == "number":
            for label in {"inf", "-inf"}.intersection(levels.labels):
                self.faults.note(
                    levels.codes == levels.labels.index(label),
                    lambda row: f"column {name!r} is infinite ({levels.labels[levels.codes[row]]})",
                )

    def _without(
        self, name: str, column: Numbers | Levels, *, indicated: bool = False, role: str = ""
    ) -> None:
        """Settle what becomes of the rows where a column is missing."""
        missing = column.missing
        indicate = self.plan.na == "indicator" and not role
        if missing is None or (indicate and indicated):
            return
        if self.strict and (self.plan.na is None or indicate):
            called = f"column {name!r}" + (role and f" ({role})")
            way_out = (
                "but was nowhere so when the model was planned"
                if indicate
                else "drop such rows (--na drop), give missing values columns of their own "
                "(--na indicator), or fill them in"
            )
            self.faults.note(missing, lambda _: f"{called} is missing; {way_out}")
            return
        self.dropped[name] = int(missing.sum())
        self.gone |= missing

    def target(self) -> NDArray[Any]:
        """The target of all rows: numbers, truth values or texts."""
        name, kind, role = self.plan.target, self.plan.target_kind, "the target"
        if kind == "number":
            column = self._numbers(name, role)
            self._without(name, column, role=role)
            return column.own.astype(np.float64, copy=False)
        array = decoded(self._array(name, kind, role))
        if array.null_count:
            missing = array.is_null().to_numpy(zero_copy_only=False)
            self._without(name, Numbers(missing, missing), role=role)
        if kind == "boolean":
            return np.asarray(pc.fill_null(array, False).to_numpy(zero_copy_only=False))
        return np.asarray(array.cast(pa.string()).to_numpy(zero_copy_only=False))

    def weights(self) -> Array | None:
        """The weights of all rows, if there are any."""
        name = self.plan.weights
        if name is None:
            return None
        values = self._numbers(name, "the weights").own.astype(np.float64, copy=False)
        self.faults.note(
            ~(values >= 0),
            lambda row: f"the weight {name!r} is {values[row]:g}; weights are numbers from 0",
        )
        return values

    def offset(self) -> Array | None:
        """What is added to the linear predictor of all rows, if anything."""
        total: Array | None = None
        if self.plan.offset is not None:
            total = self._numbers(self.plan.offset, "the offset").own.astype(np.float64)
            self._without(self.plan.offset, Numbers(total, _nan(total)), role="the offset")
        name = self.plan.exposure
        if name is None:
            return total
        values = self._numbers(name, "the exposure").own.astype(np.float64)
        self._without(name, Numbers(values, _nan(values)), role="the exposure")
        self.faults.note(
            values <= 0,
            lambda row: f"the exposure {name!r} is {values[row]:g}; exposures are above 0",
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            logarithm: Array = np.log(values)
        return logarithm if total is None else total + logarithm

    def settle_levels(self) -> None:
        """Settle what becomes of rows with levels that the design does not have."""
        for name, levels in self.levels.items():
            category = self.layout.categories[name]
            fresh = np.array([label not in category.codes for label in levels.labels] + [False])
            if not fresh.any() or (self.grows and category.open):
                continue
            rows = fresh[levels.codes] & ~self.gone
            if self.strict:
                self.faults.note(rows, self._stranger(category, levels))
            else:
                tally = np.bincount(levels.codes[rows], minlength=len(levels.labels)).tolist()
                self.unknown[name] = {
                    label: count for label, count in zip(levels.labels, tally, strict=True) if count
                }
                if self.unseen == "missing" or category.baseline is None:
                    self.gone |= rows

    def _stranger(self, category: Category, levels: Levels) -> Callable[[int], str]:
        way_out = (
            "add it to the levels (--levels), or read the table again"
            if self.training
            else "predict such rows as missing or as the baseline instead"
        )

        def text(row: int) -> str:
            label = levels.labels[levels.codes[row]]
            return (
                f"{told(label)} is not a level of column {category.column!r}, whose levels are "
                f"{shown(category.labels)}: {way_out}.{did_you_mean(label, category.codes)}"
            )

        return text

    def openings(self) -> list[tuple[str, str | None]]:
        """The levels and indicators of missing values that usable rows ask for, as they come."""
        if not self.grows:
            return []
        backwards = np.flatnonzero(~self.gone)[::-1]
        found: list[tuple[int, int, str, str | None]] = []
        for order, name in enumerate(self.plan.columns):
            column = self.numbers.get(name)
            if column and column.missing is not None and name not in self.layout.indicators:
                rows = np.flatnonzero(column.missing & ~self.gone)
                found += [(int(row), order, name, None) for row in rows[:1]]
            if name in self.levels:
                levels, codes = self.levels[name], self.layout.categories[name].codes
                if levels.missing is None and all(label in codes for label in levels.labels):
                    continue
                labels = [*levels.labels, MISSING]  # whose code is -1
                first = np.full(len(labels), -1)
                first[levels.codes[backwards]] = backwards  # the last that is written stays
                found += [
                    (int(row), order, name, label)
                    for row, label in zip(first, labels, strict=True)
                    if row >= 0 and label not in codes
                ]
        found.sort(key=lambda each: (each[0], each[1], each[3] is not None))
        return [(name, label) for _, _, name, label in found]

    @property
    def whole(self) -> bool:
        """All rows that are read can be used, and are in the batch's columns as they are."""
        found = self.numbers.values()
        clean = all(each.missing is None and each.rows is self.only for each in found)
        return clean and not self.gone.any()

    @property
    def kept(self) -> NDArray[np.int64]:
        """The rows that can be used."""
        return np.flatnonzero(~self.gone)

    def of_kept(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of the rows that can be used."""
        return values[~self.gone] if self.gone.any() else values

    def codes(self, name: str, table: NDArray[Any] | None = None) -> NDArray[Any]:
        """The codes of a column's levels in the rows that can be used; what a table has at them."""
        found: NDArray[Any] = self._at_entries(name, table)[self.of_kept(self.levels[name].entries)]
        return found

    def write_codes(self, name: str, table: NDArray[Any], codes: NDArray[np.int32]) -> None:
        """The same into an array."""
        if self.gone.any():
            codes[:] = self.codes(name, table)
        else:
            self.levels[name].write(self._at_entries(name, table), codes)

    def _at_entries(self, name: str, table: NDArray[Any] | None) -> NDArray[Any]:
        """The code of each entry of a column's dictionary; what a table has at it."""
        category, levels = self.layout.categories[name], self.levels[name]
        instead = category.codes.get(str(category.baseline), -1)
        recode = [category.codes.get(label, instead) for label in levels.labels]
        recode.append(category.codes.get(MISSING, -1))
        each = np.array(recode)[levels.recode]
        if table is not None:
            each = table[each] if len(table) else np.full_like(each, -1)  # no level is open yet
        return each

    def value(self, expression: Expression) -> NDArray[Any]:
        """An expression's values in the rows that can be used; 0 where a column is missing."""
        columns = {name: self.numbers[name] for name in expression.columns}
        if expression.column is not None:
            values = self.of_kept(columns[expression.column].own)
        else:
            data = {
                name: self.of_kept(column.own).astype(np.float64, copy=False)
                for name, column in columns.items()
            }
            with np.errstate(all="ignore"):
                values = expression.value(data)
        for column in columns.values():
            if column.missing is not None and self.plan.na == "indicator":
                values = np.where(self.of_kept(column.missing), 0.0, values)
        if expression.column is None and not finite(values):
            self._note_domain(expression, values)
        return values

    def _note_domain(self, expression: Expression, values: NDArray[Any]) -> None:
        wrong = np.zeros(len(self.gone), dtype=bool)
        wrong[self.kept[~np.isfinite(values)]] = True

        def text(row: int) -> str:
            held = ", ".join(
                f"{name} = {self.numbers[name].own[row]:g}" for name in expression.columns
            )
            rules = "; ".join(expression.domains)
            return f"the term {expression.text} has no value at {held}" + (rules and f": {rules}")

        self.faults.note(wrong, text)


def _nan(values: Array) -> Mask | None:
    missing = np.isnan(values)
    return missing if missing.any() else None
