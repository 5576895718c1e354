"""What the commands share: standard error, and what can go wrong outside of the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

stderr = Console(stderr=True, soft_wrap=True, markup=False)


def echo(text: str) -> None:
    """Print to standard output, as far as anybody reads it."""
    try:
        typer.echo(text)
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stderr.print(f"cannot write to standard output: {error.strerror or error}")
        raise typer.Exit(1) from error


@contextmanager
def failures(
    output: Path,
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
        stderr.print(f"cannot write to {output}: {error.strerror or error}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        stderr.print(f"interrupted; in {output}, {kept()}")
        raise typer.Exit(130) from error
