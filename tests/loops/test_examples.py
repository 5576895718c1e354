"""The examples run, and their losses fall."""

import runpy
from pathlib import Path
from statistics import mean

import pytest
import torch

from .warned import lightnings_own

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = lightnings_own


@pytest.mark.parametrize(
    "name",
    [
        "accelerate_loop",
        "hugging_face_trainer",
        "lightning_automatic",
        "lightning_manual",
        "skorch_classifier",
    ],
)
def test_the_loss_falls(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)  # as users have it
    losses = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    quarter = max(len(losses) // 4, 1)
    assert mean(losses[-quarter:]) < 0.8 * mean(losses[:quarter])
    assert f"loss {losses[0]:.3f} -> {losses[-1]:.3f}" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())  # and nothing is left behind
