"""From the columns of a table to the rows of a design matrix, the same for every batch of a stream.

A design is planned once (``plan``), turns record batches into numbers while a model is fitted
(``Design.rows``), is saved with the model (``to_dict``), and does the same again at prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tangograd.glm.designs.assembly import categorical, matrix, product
from tangograd.glm.designs.blueprint import Blueprint, Policy, blueprint
from tangograd.glm.designs.columns import ARROW
from tangograd.glm.designs.labels import MISSING, label
from tangograd.glm.designs.layout import Category, Layout
from tangograd.glm.designs.reading import Reading, Unseen
from tangograd.glm.designs.survey import survey, to_survey
from tangograd.glm.errors import DataError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Rows of a design matrix and what belongs to them.

    Attributes:
        X: shape (rows kept, columns); a C-contiguous float64 array, a SciPy CSR array, or numbers
            and levels apart, where these were asked for.
        y: the target: float64, bool, or an object array of texts; ``None`` if it was not read.
        weights: ``None`` if there are none.
        offset: the offset column plus the logarithm of the exposure; ``None`` without both.
        kept: which rows of the batch these are, increasing.
        dropped: how many rows were not kept since a column is missing, by column.
        unseen: how many rows have a level that the model does not know, by column and level.
    """

    X: Any
    y: NDArray[Any] | None
    weights: Array | None
    offset: Array | None
    kept: NDArray[np.int64]
    dropped: dict[str, int] = field(default_factory=dict)
    unseen: dict[str, dict[str, int]] = field(default_factory=dict)


class Design:
    """How a table becomes a design matrix. Made by ``plan``, or by ``Design.from_dict``.

    Attributes:
        blueprint: the parts of the columns: target, weights, exposure, offset, formula, ….
        layout: the columns of the matrix.
        complete: whether all levels and missing values are known beforehand. If not, new ones get
            columns at the end as they come.
        classes: the labels of a text or boolean target, in order; ``None`` for numbers, and for
            texts that are not known beforehand.
        surveyed_rows: that a fit will use; ``None`` if that is not known beforehand.
        sparse: whether matrices are CSR. ``None``: if wide and mostly zeros (a design that grows
            changes from dense to CSR at most once).
    """

    def __init__(
        self,
        plan: Blueprint,
        categories: Mapping[str, Category],
        *,
        indicators: Sequence[str] = (),
        complete: bool = False,
        classes: Sequence[str | bool] | None = None,
        surveyed_rows: int | None = None,
        sparse: bool | None = None,
    ) -> None:
        self.blueprint = plan
        self.layout = Layout(plan.terms, categories, indicators)
        self.complete = complete
        self.classes = None if classes is None else tuple(classes)
        self.surveyed_rows = surveyed_rows
        self.sparse = sparse

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients, without the intercept."""
        return tuple(self.layout.names)

    @property
    def entries(self) -> int:
        """The numbers that a row is made of, as it is kept: levels count once where they can."""
        whole = self.layout.mixed and not self.layout.sparse
        return len(self.names) if whole else len(self.layout.blocks)

    @property
    def separable(self) -> bool:
        """Whether rows are numbers and levels, which can be kept apart."""
        return bool(self.categories) and not self.layout.mixed

    @property
    def intercept(self) -> bool:
        """Whether the model has one; it is not among the columns."""
        return self.blueprint.intercept

    @property
    def categories(self) -> Mapping[str, Category]:
        """The categorical columns and their levels."""
        return self.layout.categories

    @property
    def notes(self) -> list[str]:
        """What the user should know, a sentence each."""
        notes = [category.note for category in self.categories.values()]
        if self.blueprint.na == "drop":
            notes.append("rows with missing values are dropped")
        return notes + [
            f"{name}: missing values count as 0 and have a coefficient of their own"
            for name in self.layout.indicators
        ]

    def reads(self, *, training: bool = True) -> tuple[str, ...]:
        """The columns that ``rows`` needs; others need not be read."""
        plan = self.blueprint
        roles = [plan.offset, plan.exposure]
        if training:
            roles += [plan.target, plan.weights]
        return tuple(dict.fromkeys((*plan.columns, *(name for name in roles if name is not None))))

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Of the columns: a reader that must guess types should be told these."""
        plan = self.blueprint
        numbers = (plan.weights, plan.exposure, plan.offset)
        return {
            **{name: ARROW["number"] for name in numbers if name is not None},
            **{name: ARROW[kind] for name, kind in plan.kinds.items() if name in plan.columns},
            plan.target: ARROW[plan.target_kind],
        }

    @property
    def to_survey(self) -> tuple[str, ...]:
        """The columns that a survey should read beforehand; empty if there is no need for one."""
        return () if self.complete else to_survey(self.blueprint, self._to_be_found)

    @property
    def _to_be_found(self) -> list[str]:
        target = [self.blueprint.target] if self.blueprint.target_kind == "text" else []
        return [name for name, category in self.categories.items() if category.open] + target

    def surveyed(self, batches: Iterable[pa.RecordBatch]) -> Design:
        """The design with all levels and missing values of a table, read once for that.

        Raises:
            DataError: a column has too many levels, or not the baseline that was stated.
        """
        if not self.to_survey:
            return self
        plan = self.blueprint
        found = survey(plan, self._to_be_found, batches)
        categories = {}
        for name, old in self.categories.items():
            new = Category(name, old.origin, old.baseline if old.stated else None, old.stated)
            if old.open:
                new.origin, new.seen, new.counts = "sorted", True, dict(found.counts[name])
                new.add(found.levels(name, plan.kinds[name]))
                new.check_baseline()
            else:
                new.add(old.labels)
            new.add([MISSING] if name in found.missing else [])
            categories[name] = new
        texts = plan.target_kind == "text"
        return Design(
            plan,
            categories,
            indicators=[name for name in plan.numeric_columns if name in found.missing],
            complete=True,
            classes=found.levels(plan.target, "text") if texts else self.classes,
            surveyed_rows=found.rows,
            sparse=self.sparse,
        )

    def rows(
        self,
        batch: pa.RecordBatch,
        *,
        where: Callable[[int], str],
        training: bool = True,
        target: bool | None = None,
        unseen: Unseen = "missing",
        apart: bool = False,
        only: NDArray[np.bool_] | None = None,
        checked: bool = True,
    ) -> Rows:
        """The rows of a batch that can be used.

        While training, missing values follow the design's policy, and levels that it does not have
        are opened or, in a complete design, refused. Otherwise, nothing is opened, and a row with a
        missing value or an unknown level is left out rather than ending a long run; its
        prediction should be empty, and ``dropped`` and ``unseen`` say how many there are. To
        predict it as the baseline level would be wrong with nobody told. Infinite values, exposures
        that are not positive and terms without a value are always errors.

        Args:
            batch: columns by name; others may be there too.
            where: from the index of a row in the batch to its place, for errors.
            training: whether a model is fitted to the rows.
            target: whether target and weights are read; by default when training. Rows held out
                for a test need them without training.
            unseen: without training, rows with unknown levels are left out (``"missing"``),
                get the ``"baseline"`` or are an ``"error"``, as are then missing values.
            apart: keep numbers and levels apart, in a
                :class:`~tangograd.glm.matrices.Categorical`, unless there are products of both.
            only: which rows of the batch there are; the others are not looked at.
            checked: look for NaN and infinity in all columns. If not, they may be in columns of the
                matrix that are columns of the batch, where these are kept apart: whoever uses them
                will notice, and then has to ask for the same rows again, checked, for the error.

        Raises:
            DataError: for the first row in which something is wrong.

        >>> table = pa.record_batch({"y": [1.0, 2.0], "x": [3.0, 4.0], "sex": ["f", "m"]})
        >>> design = plan(table.schema, target="y", scan=[table])
        >>> design.names, design.rows(table, where=str).X
        (('x', 'sex[m]'), array([[3., 0.],
               [4., 1.]]))
        """
        with_target, place = training if target is None else target, where
        read = None if only is None or only.all() else np.flatnonzero(only)
        if read is not None:
            where = _through(where, read)
        reading = Reading(
            batch,
            self.blueprint,
            self.layout,
            where,
            training=training,
            complete=self.complete,
            unseen=unseen,
            only=read,
            unchecked=() if checked or not apart else self._columns_as_they_are,
        )
        y = reading.target() if with_target else None
        weights = reading.weights() if with_target else None
        offset = reading.offset()
        reading.settle_levels()
        apart = apart and self.separable
        untouched = apart and reading.whole
        if reading.unchecked and (not untouched or reading.faults.row is not None):
            return self.rows(
                batch,
                where=place,
                training=training,
                target=target,
                unseen=unseen,
                apart=True,
                only=only,
            )
        products = [
            None if untouched and block.term.column is not None else product(reading, block)
            for block in self.layout.blocks
        ]
        reading.faults.complain(where)
        for name, level in reading.openings():
            self.layout.open(name, level)
        if training and not reading.gone.all():
            self._look_for_baselines(reading)
        return Rows(
            X=(categorical if apart else matrix)(self.layout, reading, products, self._is_sparse),
            y=None if y is None else reading.of_kept(y),
            weights=None if weights is None else reading.of_kept(weights),
            offset=None if offset is None else reading.of_kept(offset),
            kept=reading.kept if read is None else reading.of_kept(read),
            dropped=reading.dropped,
            unseen=reading.unknown,
        )

    @cached_property
    def _columns_as_they_are(self) -> frozenset[str]:
        """Those of numbers that are columns of the matrix and nothing else, where none is missing.

        If missing values may be there, NaN is one of them.
        """
        if self.blueprint.na is not None or not self.separable:
            return frozenset()
        terms = self.blueprint.terms
        used = Counter(name for term in terms for name in term.columns)
        plain = [term.column for term in terms if term.column is not None]
        return frozenset(name for name in plain if used[name] == 1)

    def _look_for_baselines(self, reading: Reading) -> None:
        for name, category in self.categories.items():
            if not category.seen:
                category.seen = category.baseline in reading.levels[name].labels

    @property
    def _is_sparse(self) -> bool:
        return self.layout.sparse if self.sparse is None else self.sparse

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON, from which ``from_dict`` makes a design that does the same."""
        from tangograd.glm.designs.stored_design import to_dict

        return to_dict(self)

    @staticmethod
    def from_dict(plain: Any) -> Design:
        """The design that ``to_dict`` described; its formula goes through the grammar again.

        Raises:
            DataError: the description is not one, or hostile.
        """
        from tangograd.glm.designs.stored_design import from_dict

        return from_dict(plain)


def plan(
    schema: pa.Schema,
    *,
    target: str | None = None,
    formula: str | None = None,
    exposure: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exclude: Collection[str] = (),
    na: Policy | None = None,
    levels: Mapping[str, Sequence[object]] | None = None,
    scan: Iterable[pa.RecordBatch] | None = None,
) -> Design:
    """Plan how a table becomes a design matrix.

    Without a formula every column is used that has no other part to play: texts and booleans as
    categories, numbers as they are.

    Args:
        schema: of the table.
        target: the column to be explained; may be left to the formula.
        formula: such as ``y ~ x + C(region)``, in the grammar of ``designs.formula``.
        exposure: a column whose logarithm is added to the linear predictor.
        weights: a column of weights.
        offset: a column that is added to the linear predictor.
        exclude: columns to be left out.
        na: missing values are an error (``None``), their rows are dropped (``"drop"``), or they
            count as 0 and have a column of their own (``"indicator"``; rows without a target,
            exposure or offset are dropped).
        levels: of categorical columns, the baseline first. They also make a column of numbers
            categorical.
        scan: the table, to be read once for levels and missing values if these are needed
            (``Design.to_survey`` says which columns would be enough). ``None``: they get columns
            as they come, at the end; the baseline is then the first level that is seen.

    Raises:
        DataError: something does not fit the table.
    """
    given = {name: _given(name, values) for name, values in (levels or {}).items()}
    parts = blueprint(
        schema,
        target=target,
        formula=formula,
        exposure=exposure,
        weights=weights,
        offset=offset,
        exclude=exclude,
        na=na,
        levelled=given,
    )
    categories = {name: _category(name, parts, given.get(name)) for name in parts.level_columns}
    boolean = parts.target_kind == "boolean"
    design = Design(parts, categories, classes=(False, True) if boolean else None)
    design.complete = not design.to_survey
    return design if scan is None else design.surveyed(scan)


def _given(name: str, values: Sequence[object]) -> list[str]:
    labels = [label(value) for value in values if isinstance(value, str | int | float)]
    known = [each for each in labels if each is not None]
    if not known or len(set(known)) < len(values):
        raise DataError(
            f"the levels given for {name!r} must be different texts or numbers, at least one"
        )
    return known


def _category(name: str, parts: Blueprint, given: Sequence[str] | None) -> Category:
    baseline = parts.baselines.get(name)
    stated = baseline is not None
    if given is not None:
        category = Category(name, "given", baseline, stated)
        category.add(given)
    elif parts.kinds[name] == "boolean":
        category = Category(name, "sorted", baseline, stated)
        category.add(["false", "true"])
    else:
        category = Category(name, "first seen", baseline, stated)
        category.add([] if baseline is None else [baseline])
    category.check_baseline()
    return category


def _through(where: Callable[[int], str], rows: NDArray[np.int64]) -> Callable[[int], str]:
    """The place of a row by its number among some."""
    return lambda row: where(int(rows[row]))
