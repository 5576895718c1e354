"""The command line: thin, no logic of its own.

Results go to standard output and progress to standard error. Exit codes: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import gc
import json as json_format
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
from tangograd.console import echo, failures, stderr
from tangograd.files import replacing, writable_folder
from tangograd.model_commands import fit, predict

if TYPE_CHECKING:
    from tangograd.reproduction.base import Claim

#: objects between looks for garbage; with Python's own 700 there are many while modules load
GARBAGE = 50_000

app = typer.Typer(
    help="Natural-gradient optimisation with no Fisher matrix: TANGO (Ollivier 2017).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(fit)
app.command()(predict)


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
    with failures(output):
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
    with failures(
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
            for claim, result in measure(
                chosen, output, seed=seed, quick=quick, known=claims(), advance=advance
            ):
                finished.append(claim.name)
                head = f"[bold]{claim.name}[/] ({escape(claim.where)})"
                style = None if result.holds else "bold"
                table.add_row(head, "", "", "", _word(result.holds), style=style)
                for v in result.verdicts:
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


def _list(claims: list[Claim]) -> None:
    echo("\n".join(f"{claim.name:18} {claim.title} ({claim.where})" for claim in claims))


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
    gc.set_threshold(GARBAGE)
    try:
        app()
    finally:
        gc.freeze()  # or Python, when it ends, looks through all objects there are: 0.1 s


if __name__ == "__main__":
    main()
