"""``tangograd fit``: from the options to a model, its files, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from tangograd.files import writable_folder
from tangograd.glm.commands.examples import EXAMPLES
from tangograd.glm.commands.holdout import evaluate
from tangograd.glm.commands.inference import MOST_CLASSES_NAMED, Target, check_few, infer
from tangograd.glm.commands.interrupts import Interrupt
from tangograd.glm.commands.learning import Learner
from tangograd.glm.commands.levels import Levels, are_texts, notes_on_levels, read_levels, settle
from tangograd.glm.commands.memory import without_old_garbage
from tangograd.glm.commands.options import FitOptions, UsageError
from tangograd.glm.commands.outcome import Outcome
from tangograd.glm.commands.progress import Progress
from tangograd.glm.commands.sources import source
from tangograd.glm.commands.writing import written
from tangograd.glm.designs.blueprint import Policy
from tangograd.glm.designs.design import Design, plan
from tangograd.glm.engine import OnePass
from tangograd.glm.errors import DataError
from tangograd.glm.families import by_name
from tangograd.glm.fitted import Fitted
from tangograd.glm.loaded import INTERCEPT
from tangograd.glm.reports.summary import Summary
from tangograd.glm.reports.wording import plural
from tangograd.glm.tables.readers import Batch, Table, open_table

#: the family is inferred from so many rows; so are the classes of standard input
FIRST_ROWS = 1 << 16
FIRST_BYTES = 1 << 25
#: deviance a degree of freedom beyond which a Poisson model is told so
OVERDISPERSED = 2.0
EXPOSED = ("log", "cloglog")


def fit(options: FitOptions, progress: Progress) -> Outcome:
    """Fit a model to a table, and write it if a file is named.

    Args:
        options: what the user asks for.
        progress: shown on the way.

    Raises:
        UsageError: the options do not go together.
        DataError: the data break a rule.
        OSError: the model's folder cannot be written to; said before the data are read.
        KeyboardInterrupt: Ctrl-C, before or after the rows are learned from.
    """
    with without_old_garbage():
        return _fit(options.checked(), progress)


def _fit(options: FitOptions, progress: Progress) -> Outcome:
    _check_family(options)
    for file in (options.output, options.report_file):
        if file is not None:
            writable_folder(file.parent)
    try:
        levels = read_levels(options.levels)
        table = _table(options, levels)
        design = _plan(options, table, levels)
        classes = levels.get(design.blueprint.target)
        outcome, design = _Fit(options, progress, table, design, classes).run()
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename or options.data}: {error.strerror or error}"
        ) from error
    return written(outcome, design)


class _Fit:
    """The steps of a fit."""

    def __init__(
        self,
        options: FitOptions,
        progress: Progress,
        table: Table,
        design: Design,
        classes: Sequence[object] | None,
    ) -> None:
        self.options, self.progress = options, progress
        self.table, self.design, self.classes = table, design, classes
        self.column, self.kind = design.blueprint.target, design.blueprint.target_kind
        self.interrupt = Interrupt()
        self.notes: list[str] = []
        self.needless = False  # further passes were asked for

    def run(self) -> tuple[Outcome, Design]:
        """All of them."""
        options = self.options
        head, rest = self._head()
        target = self._target(head)
        engine = OnePass(
            target.family,
            len(self.design.names),
            alpha=options.alpha or 0.0,
            intercept=self.design.intercept,
            fisher=options.fisher,
            seed=options.seed,
        )
        learner = Learner(
            self.table,
            self.design,
            target,
            engine,
            share=options.holdout,
            seed=options.seed,
            progress=self.progress,
            interrupt=self.interrupt,
        )
        learner.first_pass(head, rest)
        if self.table.interrupted:
            self.interrupt.press()
        settle(self.design, self.table)
        self._further_passes(learner)
        fitted = self._fitted(learner)
        rows = learner.reservoir.rows(engine.columns)
        evaluation = None if rows is None else evaluate(fitted, engine, rows)
        outcome = Outcome(
            options=options,
            source=self.table.parts[0].name if options.data in (None, "-") else str(options.data),
            target=target,
            fitted=fitted,
            summary=Summary(fitted, level=options.level, robust=options.robust),
            counts=learner.counts,
            evaluation=evaluation,
            columns=len(self.design.blueprint.columns),
            interrupted=self.interrupt.pressed,
        )
        return outcome, self.design

    # --- before the rows are learned from

    def _head(self) -> tuple[list[Batch], Iterator[Batch]]:
        """The first rows, if they are needed and can be read only once; and the others."""
        head: list[Batch] = []
        rest = self.table.batches(self.design.reads(), threads=False)
        if self.table.rereadable or not self._looks_at_values:
            return head, rest
        try:
            for batch in rest:
                head.append(batch)
                if _enough(head):
                    break
        except KeyboardInterrupt:
            if not head:
                raise
            self.interrupt.press()
        return head, rest

    @property
    def _looks_at_values(self) -> bool:
        """Whether the family or the classes are to be found in the data."""
        told = self.kind == "boolean" or self.classes is not None
        return not told and self.options.family in (None, "binomial", "multinomial")

    def _target(self, head: list[Batch]) -> Target:
        """The family and the classes; the levels too, which are read on the way."""
        name, complete = self.options.family, False
        values: Sequence[Any] = (False, True) if self.kind == "boolean" else ()
        if self.classes is None and self.kind == "text" and self.table.rereadable:
            if name is None:
                check_few(self.column, _values(self._first(), self.column))
            self._survey(classes=True)
            values, complete = self.design.classes or (), True
        elif self.classes is None and name == "multinomial" and self.table.rereadable:
            values, complete = self._all_values(), True
        elif self._looks_at_values:
            values = _values(head or self._first(), self.column)
        try:
            target = infer(
                self.column,
                self.kind,
                values,
                name=name,
                link=self.options.link,
                parameters=self.options.parameters,
                given=self.classes,
                complete=complete,
            )
        except DataError:
            raise
        except ValueError as error:
            raise UsageError(str(error)) from error
        if self.design.blueprint.exposure and target.family.link not in EXPOSED:
            raise DataError(
                "an exposure multiplies the mean, and needs a log link (--family poisson, gamma, "
                f"negative_binomial or tweedie), not the {target.family.link} link of "
                f"{target.family.name}; for a known part of the predictor use --offset"
            )
        self._survey()
        return target

    def _first(self) -> list[Batch]:
        """The first rows of the target alone."""
        head: list[Batch] = []
        for batch in self.table.batches([self.column]):
            head.append(batch)
            if _enough(head):
                break
        return head

    def _survey(self, *, classes: bool = False) -> None:
        """Read the levels beforehand, if the rows can be read twice."""
        if self.table.rereadable:
            share, seed = self.options.holdout, self.options.seed
            finder = Levels(self.table, share, seed, self.progress)
            self.design = finder.found(self.design, classes=classes)

    def _all_values(self) -> list[Any]:
        """All values of the target."""
        found: set[Any] = set()
        with self.progress.stage("reading classes", self.table.total_bytes) as stage:
            for batch in self.table.batches([self.column]):
                found.update(_values([batch], self.column))
                stage.update(batch.records.num_rows, batch.bytes_read)
                if len(found) > MOST_CLASSES_NAMED:
                    break
        return list(found)

    # --- afterwards

    def _further_passes(self, learner: Learner) -> None:
        options = self.options
        if (options.polish is False or not self.table.rereadable) and options.passes == 1:
            return
        learner.engine.settle()
        if not learner.engine.streaming:
            asked = options.passes > 1 or bool(options.polish)
            self.needless = asked and not self.interrupt.pressed
            return
        for number in range(2, options.passes + 1):
            if not self.interrupt.pressed:
                learner.another_pass(number)
        if options.polish is not False and not self.interrupt.pressed:
            learner.polish(only_if_needed=options.polish is None)

    def _fitted(self, learner: Learner) -> Fitted:
        target, counts = learner.target, learner.counts
        if self.interrupt.pressed:
            self.notes.insert(
                0, f"interrupted after {plural(counts.read, 'row')} ({learner.stage})"
            )
        for name, number in counts.dropped.items():
            self.notes.append(f"{plural(number, 'row')} left out: column {name!r} is missing")
        for name, number in learner.unseen.items():
            self.notes.append(
                f"not in the metrics: {plural(number, 'row')} held out, with a level of {name!r} "
                "that was never learned from"
            )
        try:
            fitted = learner.engine.fitted(self.design.names, target.classes)
        except DataError as error:
            left_out = "; ".join(self.notes)
            raise DataError(
                f"{error}: of {plural(counts.read, 'row')}, {counts.held:,} held out (--holdout)"
                + (left_out and f"; {left_out}")
            ) from error
        if self.needless:
            self.notes.append(
                "all rows fitted in memory and were fit to convergence, so further passes and "
                "polishing were not needed"
            )
        spread = fitted.deviance / max(fitted.rows - fitted.degrees_of_freedom, 1)
        if fitted.family == "poisson" and spread > OVERDISPERSED:
            self.notes.append(
                f"the counts vary more than a Poisson model says (deviance a degree of freedom "
                f"{spread:.1f}, not 1), so its standard errors are too small: use --robust, or "
                "--family negative_binomial"
            )
        if fitted.null_deviance <= 1e-12 * fitted.weight:
            self.notes.append(
                f"the target {target.column!r} is the same in all rows: there is nothing to explain"
            )
        self.notes += notes_on_levels(self.design, fitted.rows)
        return replace(fitted, notes=(*fitted.notes, *self.design.notes, *self.notes))


def _check_family(options: FitOptions) -> None:
    if options.family is None:
        if options.link or options.parameters:
            raise UsageError("--link, --power and --dispersion go with a --family")
    elif options.family != "multinomial":
        try:
            by_name(options.family, options.link, **options.parameters)
        except ValueError as error:
            raise UsageError(str(error)) from error


def _table(options: FitOptions, levels: Mapping[str, Sequence[object]]) -> Table:
    if options.example is not None:
        return EXAMPLES[options.example].table(options.example)
    texts = {name: pa.string() for name, values in levels.items() if are_texts(values)}
    return open_table(source(str(options.data)), types=texts)


def _plan(options: FitOptions, table: Table, levels: Mapping[str, Sequence[object]]) -> Design:
    formula = options.formula
    if options.no_intercept:
        formula = f"{formula or '.'} - 1"
    target = options.target
    features = {name: values for name, values in levels.items() if name != target}
    design = plan(
        table.schema,
        target=target,
        formula=formula,
        exposure=options.exposure,
        weights=options.weights,
        offset=options.offset,
        exclude=options.exclude,
        na=cast(Policy | None, options.na),
        levels=features,
    )
    if INTERCEPT in design.names:
        raise DataError(
            f"a column is called {INTERCEPT!r}, which is the constant's name: rename it, or leave "
            f"it out (--exclude {INTERCEPT})"
        )
    return design


def _values(batches: Sequence[Batch], column: str) -> list[Any]:
    """The different values of a column, missing ones apart."""
    found: set[Any] = set()
    for batch in batches:
        values = pc.unique(batch.records.column(column)).drop_null()
        found.update(value for value in values.to_pylist() if value == value)
    return list(found)


def _enough(head: Sequence[Batch]) -> bool:
    rows = sum(batch.records.num_rows for batch in head)
    return rows >= FIRST_ROWS or sum(int(batch.records.nbytes) for batch in head) >= FIRST_BYTES
