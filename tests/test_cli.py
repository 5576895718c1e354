"""The commands' help, and what importing them costs."""

import pytest
from typer.testing import CliRunner

from tangograd.cli import app


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ((), ("fit", "predict", "demo", "reproduce")),
        (
            ("fit",),
            ("--example fair", "--target", "--holdout", "negative_binomial", "breast_cancer"),
        ),
        (("predict",), ("--interval", "--keep-all", "standard output")),
    ],
)
def test_help_teaches(command, parts, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    text = " ".join(done.output.replace("│", " ").split())
    assert all(part in text for part in parts)
    assert max(map(len, done.output.splitlines())) <= 80


def test_wrong_usage():
    for arguments in (["fit", "--passes", "x"], ["predict"], ["fit", "--nothing"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2
