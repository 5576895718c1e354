"""The commands about models of data: ``tangograd fit`` and ``tangograd predict``."""

from __future__ import annotations

import json as json_format
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tangograd.console import echo, failures, stderr

DATA = "CSV (gzip too), Parquet, a folder of either, or - for standard input."


def fit(
    data: Annotated[
        str | None,
        typer.Argument(help=DATA),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to be explained.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File for the model, such as model.json.")
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            help="Data to try it on: diabetes, breast_cancer, wine (of scikit-learn); fair, "
            "randhie, star98 (of statsmodels)."
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="gaussian, binomial, multinomial, poisson, gamma, negative_binomial or tweedie; "
            "inferred from the target by default, and said."
        ),
    ] = None,
    link: Annotated[str | None, typer.Option(help="Of binomial: logit, probit or cloglog.")] = None,
    power: Annotated[float | None, typer.Option(help="Of tweedie, between 1 and 2.")] = None,
    dispersion: Annotated[float | None, typer.Option(help="Of negative_binomial.")] = None,
    formula: Annotated[
        str | None,
        typer.Option(help="Such as 'y ~ age + C(region) + log(income)'; all columns by default."),
    ] = None,
    exposure: Annotated[
        str | None,
        typer.Option(help="Column that multiplies the mean (log links) or the hazard (cloglog)."),
    ] = None,
    offset: Annotated[
        str | None, typer.Option(help="Column that is added to the linear predictor.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Column of the rows' weights.")] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Column to leave out; may be repeated.")
    ] = None,
    na: Annotated[
        str | None,
        typer.Option(
            help="Missing values: drop such rows, or give them an indicator; an error by default."
        ),
    ] = None,
    levels: Annotated[
        Path | None,
        typer.Option(help="JSON file of columns' levels, the baseline first; spares a reading."),
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of the rows that the model is tested on.")
    ] = 0.1,
    passes: Annotated[int, typer.Option(min=1, help="Over the data.")] = 1,
    polish: Annotated[
        bool | None,
        typer.Option(
            "--polish/--no-polish",
            help="Read the data up to three more times, to maximum likelihood itself. By default "
            "once more, if the measured excess variance is above 2%.",
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Penalty of mean loss + alpha/2 |coefficients|².")
    ] = None,
    no_intercept: Annotated[
        bool, typer.Option("--no-intercept", help="Without a constant term.")
    ] = False,
    fisher: Annotated[
        str, typer.Option(help="expected, or sampled: the paper's pseudo-samples.")
    ] = "expected",
    robust: Annotated[
        bool, typer.Option("--robust", help="Standard errors of the sandwich covariance.")
    ] = False,
    level: Annotated[float, typer.Option(help="Of the confidence intervals.")] = 0.95,
    report: Annotated[
        Path | None, typer.Option(help="File for the report; beside the model by default.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no report.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the rows that are held out.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fit a generalised linear model to data of any size, in one pass.

    Prints the coefficients and how good the model is on rows held out; with
    -o writes the model (JSON) and a report with pictures (HTML). Memory does
    not grow with the data. Ctrl-C ends the reading; what was learned is kept.

    Try it: tangograd fit --example fair

    A file: tangograd fit claims.csv --target count --exposure years -o m.json

    A stream: curl -s URL | tangograd fit - --target y -o m.json
    """
    with _trouble(output):
        from tangograd.glm.commands.command import fit as run
        from tangograd.glm.commands.options import FitOptions
        from tangograd.glm.commands.progress import Progress as Lines

        options = FitOptions(
            data=data,
            example=example,
            target=target,
            family=family,
            link=link,
            power=power,
            dispersion=dispersion,
            formula=formula,
            exposure=exposure,
            offset=offset,
            weights=weights,
            exclude=tuple(exclude or ()),
            holdout=holdout,
            passes=passes,
            polish=polish,
            na=na,
            levels=levels,
            alpha=alpha,
            no_intercept=no_intercept,
            fisher=fisher,
            robust=robust,
            level=level,
            output=output,
            report=report,
            no_report=no_report,
            seed=seed,
            command=shlex.join(["tangograd", *sys.argv[1:]]),
        )
        outcome = run(options, Lines(stderr, quiet))
    echo(json_format.dumps(outcome.to_dict()) if json else outcome.to_text())
    if outcome.failure:
        stderr.print(outcome.failure)
    elif outcome.interrupted:
        where = f"; kept in {output}" if output else ""
        stderr.print(f"interrupted after {outcome.counts.read:,} rows{where}")
    raise typer.Exit(outcome.exit_code)


def predict(
    model: Annotated[Path, typer.Argument(help="Written by tangograd fit -o.")],
    data: Annotated[
        str,
        typer.Argument(help=DATA),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="CSV file; standard output by default.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help="Level of intervals for the mean, such as 0.95.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Column to copy in front of the predictions; may be repeated."),
    ] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Copy all columns.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Predict the rows of new data with a fitted model; writes CSV.

    A mean for each row, or the likeliest class and the probability of each.
    Rows with missing values, or with categories that the model has not learned
    from, are left empty and counted.

    Example: tangograd predict model.json new.csv --keep id -o predictions.csv

    A look: tangograd predict model.json new.csv --interval 0.95 | head
    """
    with _trouble(output, "nothing was written" if output else "the rest was not written"):
        from tangograd.glm.commands.predictions import predict_to
        from tangograd.glm.commands.progress import Progress as Lines

        tally = predict_to(
            output,
            model,
            data,
            interval=interval,
            keep=keep or (),
            keep_all=keep_all,
            progress=Lines(stderr, quiet),
        )
    if tally.rows and (tally.empty or not quiet):
        stderr.print("\n".join(tally.sentences()))


@contextmanager
def _trouble(output: Path | None, kept: str = "nothing was written") -> Iterator[None]:
    """Turn what is wrong with data, options or files into a sentence and an exit code."""
    # Arrow's usual allocator keeps what other threads free, and grows with the data
    jemalloc = platform.libc_ver()[0] == "glibc"
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc" if jemalloc else "system")
    with failures(output or Path("standard output"), lambda: kept, extras="plot"):
        from tangograd.glm.commands.options import UsageError
        from tangograd.glm.errors import DataError

        try:
            yield
        except (DataError, UsageError) as error:
            stderr.print(str(error))
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
