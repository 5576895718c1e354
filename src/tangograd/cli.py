"""The command line: thin, no logic of its own.

Results go to standard output and progress to standard error. Exit codes: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import json as json_format
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import tangograd
from tangograd.files import replacing, writable_folder

if TYPE_CHECKING:
    from tangograd.reproduction.base import Claim

app = typer.Typer(
    help="Natural-gradient optimisation with no Fisher matrix: TANGO (Ollivier 2017).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
stderr = Console(stderr=True, soft_wrap=True, markup=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tangograd {tangograd.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the picture and the figures.")] = Path(
        "demo"
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 1300 training digits.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the split, the weights and the batches.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a classifier of handwritten digits with TANGO beside SGD and Adam.

    Writes digits.png (loss curves, and TANGO's diagnostics) and digits.json.

    Example: tangograd demo --output demo
    """
    with _failures(output):
        writable_folder(output)
        from tangograd import demo as digits

        with _progress("training", epochs * len(digits.OPTIMIZERS), quiet) as advance:
            runs = digits.train_all(epochs, seed, advance)
        figures = digits.figures(runs, seed)
        digits.draw(runs, output / "digits.png")
        with replacing(output / "digits.json") as draft:
            draft.write_text(json_format.dumps(figures, indent=1) + "\n")
    if json:
        typer.echo(json_format.dumps(figures))
        return
    table = Table(title=f"Handwritten digits after {epochs} epochs, seed {seed}")
    table.add_column("optimizer")
    for column in ("training loss", "test loss", "test accuracy"):
        table.add_column(column, justify="right")
    for run in runs:
        table.add_row(
            run.optimizer,
            f"{run.train_loss[-1]:.3f}",
            f"{run.test_loss[-1]:.3f}",
            f"{run.test_accuracy[-1]:.1%}",
        )
    Console().print(table)
    typer.echo(f"picture: {output / 'digits.png'}\nfigures: {output / 'digits.json'}")


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims, as listed by --list; all by default.")
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder for index.html, pictures and raw results.")
    ] = Path("reproduction"),
    seed: Annotated[int, typer.Option(min=0, help="Of all random numbers.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer samples and wider intervals; 40 seconds.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the claims.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure the claims of the TANGO paper, with pictures.

    Prints a verdict for each claim, with what was expected and measured, and writes a page to look
    at (index.html) beside a picture and the raw results of each claim. Exit code 1 if a claim does
    not hold.

    Example: tangograd reproduce --quick, or: tangograd reproduce figure-1 --seed 7
    """
    finished: list[str] = []
    with _failures(
        output, lambda: f"finished and kept: {', '.join(finished) or 'nothing'}", extras="plot"
    ):
        from tangograd.reproduction import claims

        chosen = _chosen(names or [], claims())
        if listing:
            _list(chosen)
            return
        writable_folder(output)
        from tangograd.reproduction.page import measured
        from tangograd.reproduction.run import finite
        from tangograd.reproduction.run import reproduce as measure

        table = Table("claim, where in the paper, quantity", "expected", "measured", "n", "verdict")
        verdicts = []
        with _shares("measuring", len(chosen), quiet) as advance:
            for outcome in measure(
                chosen, output, seed=seed, quick=quick, known=claims(), advance=advance
            ):
                finished.append(outcome.claim.name)
                claim, holds = outcome.claim, outcome.result.holds
                head = f"[bold]{claim.name}[/] ({escape(claim.where)})"
                table.add_row(head, "", "", "", _word(holds), style="bold" if not holds else None)
                for v in outcome.result.verdicts:
                    table.add_row(
                        f"  {escape(v.what)}", v.expected, measured(v), str(v.n), _word(v.holds)
                    )
                    verdicts.append({"claim": claim.name, "where": claim.where, **asdict(v)})
                table.add_section()
    failed = sorted({str(v["claim"]) for v in verdicts if not v["holds"]})
    if json:
        typer.echo(json_format.dumps(finite(verdicts)))
    else:
        Console().print(table)
        typer.echo(
            f"{len(finished) - len(failed)} of {len(finished)} claims hold"
            + (f"; not: {', '.join(failed)}" if failed else "")
        )
        typer.echo(f"page: {output / 'index.html'}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def fit(
    data: Annotated[
        str | None,
        typer.Argument(help="CSV (gzip too), Parquet, a folder of either, or - for standard input."),
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
    link: Annotated[
        str | None, typer.Option(help="Of binomial: logit, probit or cloglog.")
    ] = None,
    power: Annotated[float | None, typer.Option(help="Of tweedie, between 1 and 2.")] = None,
    dispersion: Annotated[float | None, typer.Option(help="Of negative_binomial.")] = None,
    formula: Annotated[
        str | None,
        typer.Option(help="Such as 'y ~ age + C(region) + log(income)'; all columns by default."),
    ] = None,
    exposure: Annotated[
        str | None, typer.Option(help="Column that multiplies the mean (log links).")
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
        bool,
        typer.Option("--polish", help="Up to 3 more passes, to maximum likelihood itself."),
    ] = False,
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

    Prints a table of coefficients and how good the model is on rows held out; with -o writes the
    model (JSON) and a report with pictures (HTML). Memory does not grow with the data. Ctrl-C ends
    the reading, and what was learned until then is kept.

    Try it: tangograd fit --example fair

    A file: tangograd fit claims.csv --target count --exposure years -o model.json

    A stream: zcat *.gz | tangograd fit - --target y --family binomial -o model.json
    """
    with _failures(output):
        from tangograd.glm.command import fit as run
        from tangograd.glm.options import FitOptions
        from tangograd.glm.progress import Progress as Lines

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
    _print(json_format.dumps(outcome.to_dict()) if json else outcome.to_text())
    if outcome.failure:
        stderr.print(outcome.failure)
    elif outcome.interrupted:
        where = f"; kept in {output}" if output else ""
        stderr.print(f"interrupted after {outcome.counts.read:,} rows{where}")
    raise typer.Exit(outcome.exit_code)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Written by tangograd fit -o.")],
    data: Annotated[
        str,
        typer.Argument(help="CSV (gzip too), Parquet, a folder of either, or - for standard input."),
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

    A mean for each row, or the likeliest class and the probability of each. Rows with missing
    values, or with categories that the model has not learned from, are left empty and counted.

    Example: tangograd predict model.json new.csv --keep id -o predictions.csv

    With intervals: tangograd predict model.json new.parquet --interval 0.95 | head
    """
    with _failures(output):
        from tangograd.glm.predictions import predict_to
        from tangograd.glm.progress import Progress as Lines

        tally = predict_to(
            output,
            model,
            data,
            interval=interval,
            keep=keep or (),
            keep_all=keep_all,
            progress=Lines(stderr, quiet),
        )
    if not quiet or tally.empty:
        stderr.print("\n".join(tally.sentences()))


def _list(claims: list[Claim]) -> None:
    _print("\n".join(f"{claim.name:18} {claim.title} ({claim.where})" for claim in claims))


def _print(text: str) -> None:
    try:
        typer.echo(text)
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _word(holds: bool) -> str:
    return "[green]holds" if holds else "[bold red]FAILS"


def _chosen(names: list[str], claims: list[Claim]) -> list[Claim]:
    """The claims of these names, in the order of the paper; all if there are none."""
    known = {claim.name for claim in claims}
    for name in names:
        if name not in known:
            stderr.print(f"no claim is called {name!r}; known are: {', '.join(sorted(known))}")
            raise typer.Exit(2)
    return [claim for claim in claims if claim.name in names or not names]


@contextmanager
def _failures(
    output: Path | None,
    kept: Callable[[], str] = lambda: "nothing was written",
    extras: str = "torch,plot",
) -> Iterator[None]:
    """Turn what can go wrong outside the program into a sentence and an exit code."""
    try:
        yield
    except ModuleNotFoundError as error:
        stderr.print(f"this needs {error.name}: run pip install 'tangograd[{extras}]'")
        raise typer.Exit(1) from error
    except OSError as error:
        stderr.print(f"{_trouble(error, output)}: {error.strerror or error}")
        raise typer.Exit(1) from error
    except ValueError as error:
        if not isinstance(error, tangograd.glm.errors.DataError
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        stderr.print(f"interrupted; {f'in {output}, ' if output else ''}{kept()}")
        raise typer.Exit(130) from error


@contextmanager
def _progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; call what it yields for each piece of work done."""
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, disable=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda name: bar.update(task, advance=1, description=name)
        bar.update(task, description=what)


@contextmanager
def _shares(what: str, total: int, quiet: bool) -> Iterator[Callable[[Claim, float], None]]:
    """A bar on standard error, moved by fractions of a claim."""
    columns = (TextColumn("{task.description:>18}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=stderr, disable=quiet) as bar:
        task = bar.add_task(what, total=total)
        yield lambda claim, share: bar.update(task, advance=share, description=claim.name)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
