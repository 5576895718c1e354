"""The files of a fit: the model, and a report beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

import tangograd
from tangograd.glm.commands.outcome import Outcome
from tangograd.glm.designs.design import Design
from tangograd.glm.reports.wording import model_words
from tangograd.glm.saved import fitted_to_dict, save


def written(outcome: Outcome, design: Design) -> Outcome:
    """The outcome with the files that it was written to, and what went wrong."""
    options, fitted = outcome.options, outcome.fitted
    if options.output is None:
        return outcome
    payload = {"fitted": fitted_to_dict(fitted), "design": design.to_dict()}
    try:
        save(options.output, payload)
    except OSError as error:
        old = ", where the old file is kept" if options.output.exists() else ""
        return replace(
            outcome, failure=f"cannot write to {options.output}{old}: {error.strerror or error}"
        )
    outcome = replace(outcome, files={"model": str(options.output)})
    report = options.report_file
    if report is None:
        return outcome
    try:
        _report(report, outcome)
    except ImportError:
        note = "no report: it needs matplotlib; run pip install 'tangograd[plot]'"
        return replace(outcome, remarks=(*outcome.remarks, note))
    except OSError as error:
        return replace(outcome, failure=f"cannot write to {report}: {error.strerror or error}")
    return replace(outcome, files=outcome.files | {"report": str(report)})


def _report(path: Path, outcome: Outcome) -> None:
    from tangograd.glm.reports.report import write_report

    options, evaluation = outcome.options, outcome.evaluation
    model, fitted = str(options.output), outcome.fitted
    if len(fitted.trace_rows) < 2:  # of rows in memory there is no stream to draw
        fitted = replace(fitted, trace_rows=np.empty(0, np.int64), trace_loss=np.empty(0))
    words = model_words(outcome.fitted)
    write_report(
        path,
        fitted,
        title=f"{words[0].upper()}{words[1:]} of {outcome.target.column}",
        held_out=None if evaluation is None else evaluation.held_out,
        metrics=None if evaluation is None else evaluation.metrics,
        level=options.level,
        source={
            "data": outcome.source,
            "target": outcome.target.column,
            "formula": options.formula or "",
            "command": options.command,
            "version": tangograd.__version__,
            "date": datetime.now().astimezone().isoformat(" ", "minutes"),
            "model": model,
            "python": (
                "import pyarrow as pa\nfrom tangograd.glm.commands.predicting import Model\n\n"
                f"model = Model.load({model!r})\n"
                "model.predict(pa.RecordBatch.from_pandas(frame)).mean"
            ),
        },
    )
