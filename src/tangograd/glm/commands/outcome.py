"""What a fit says at its end, as text and as JSON."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tangograd.glm.commands.holdout import Evaluation
from tangograd.glm.commands.inference import Target
from tangograd.glm.commands.options import FitOptions
from tangograd.glm.commands.preparation import Counts
from tangograd.glm.fitted import Fitted
from tangograd.glm.reports.report import LABELS, PERCENT
from tangograd.glm.reports.summary import Summary
from tangograd.glm.reports.wording import UNKNOWN, effort, model_words, number, plural, printable

WIDTH = 80


@dataclass(frozen=True)
class Outcome:
    """A fit at its end.

    Attributes:
        options: what was asked for.
        source: the name of the data.
        target: and its family.
        fitted: the model.
        summary: of it.
        counts: of the rows.
        evaluation: on rows held out, if there are any.
        columns: of the table that explain the target.
        interrupted: by Ctrl-C.
        files: that were written, by what they are.
        remarks: what the user should know beside the model's own notes.
        failure: what could not be written.
    """

    options: FitOptions
    source: str
    target: Target
    fitted: Fitted
    summary: Summary
    counts: Counts
    evaluation: Evaluation | None
    columns: int
    interrupted: bool
    files: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    failure: str = ""

    @property
    def exit_code(self) -> int:
        """130 if interrupted, 1 if a file could not be written, else 0."""
        return 1 if self.failure else 130 if self.interrupted else 0

    def to_text(self) -> str:
        """In 80 columns."""
        parts = ["\n".join(map(_wrapped, self._headline())), str(self.summary)]
        if self.evaluation is not None:
            parts.append("\n".join(self._metrics(self.evaluation)))
        closing = [*map(_wrapped, self.remarks), *self._closing()]
        return "\n\n".join([*parts, "\n".join(closing)])

    def _headline(self) -> Iterator[str]:
        words, classes = model_words(self.fitted), self.fitted.classes
        told = ""
        if classes is not None:
            others = f"{classes[1]} against" if len(classes) == 2 else f"{len(classes)} classes,"
            told = f" ({others} the baseline {classes[0]})"
        yield (
            f"{words[0].upper()}{words[1:]} of {self.target.column}{told} on "
            f"{plural(self.columns, 'column')} of {self.source}."
        )
        if self.target.reason:
            yield f"The family {self.target.reason} (--family names another)."
        yield self._rows()

    def _rows(self) -> str:
        fitted, counts = self.fitted, self.counts
        held = f"{plural(counts.held, 'row')} held out (--holdout {self.options.holdout:g})"
        dropped = sum(counts.dropped.values())
        missing = f", {dropped:,} left out for missing values" if dropped else ""
        return (
            f"{'Interrupted: learned' if self.interrupted else 'Learned'} from "
            f"{plural(fitted.rows, 'row')} {effort(fitted)}; "
            f"{held if counts.held else 'none held out'}{missing}."
        )

    def _metrics(self, evaluation: Evaluation) -> Iterator[str]:
        metrics = evaluation.metrics
        sample, held = len(evaluation.held_out.y), self.counts.held
        yield f"On {plural(sample, 'row')}{f' of the {held:,}' if sample < held else ''} held out:"
        for name, value in metrics.items():
            if name == "n" or (name == "weight" and value == metrics["n"]):
                continue
            words = LABELS.get(name, name)
            if name == "mean_prediction" and "base_rate" in metrics:
                words = "mean probability"
            shown = UNKNOWN if value is None else number(value)
            if value is not None and name in PERCENT:
                shown = f"{value:.1%}"
            yield f"  {words:34}{shown:>12}"

    def _closing(self) -> Iterator[str]:
        for what, file in self.files.items():
            yield f"{what + ':':8}{file}"
        if "model" in self.files:
            model = shlex.quote(self.files["model"])
            yield f"{'next:':8}tangograd predict {model} NEW_DATA"
        elif not self.failure:
            yield "Nothing was written; -o model.json keeps the model, with a report beside it."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "data": self.source,
            "target": self.target.column,
            "family": self.fitted.family,
            "inferred": self.target.reason or None,
            "rows": {
                "read": self.counts.read,
                "learned": int(self.fitted.rows),
                "held_out": self.counts.held,
                "left_out": dict(self.counts.dropped),
            },
            "interrupted": self.interrupted,
            "held_out": None if self.evaluation is None else self.evaluation.metrics,
            "summary": self.summary.to_dict(),
            "files": self.files,
            "notes": [*self.fitted.notes, *self.remarks],
            "failure": self.failure or None,
        }


def _wrapped(text: str) -> str:
    return textwrap.fill(printable(text), WIDTH, break_long_words=False, break_on_hyphens=False)
