"""Diagnostics in words: each state is told apart."""

import pytest
import torch

from tangograd import TANGO, Categorical
from tangograd.curvature import Auto, Constant, RunningMax
from tangograd.diagnostics import describe

from .cases import mlp


def auto(**attributes):
    rule = Auto()
    rule.measured(search=2.0, cap=1.0)
    for name, value in attributes.items():
        setattr(rule, name, value)
    return rule


@pytest.mark.parametrize(
    ("rule", "known", "expected"),
    [
        (auto(), {}, "set by the line search"),
        (auto(cap=90.0), {}, "larger batches allow more"),
        (auto(noise=90.0), {}, "noise"),
        (auto(recent_quotient=90.0), {}, "recent maximum of the quotient"),
        (auto(blind=True), {}, "could not be run again"),
        (auto(), {}, "guard has not stepped in"),
        (auto(guards=3), {}, "stepped in 3 times in 100 steps"),
        (auto(guards=60), {}, "too small a batch"),
        (auto(guards=1, trust=0.25), {}, "25% and recovering"),
        (Constant(0.5), {"fisher_quotient": 9.0}, "above 2 v grows without end: lower gamma"),
        (Constant(0.5), {"damping": 100.0}, "δt is large for this γ"),
        (Constant(0.5), {"damping": 3.0}, "between SGD and the natural gradient"),
        (Constant(0.5), {"damping": 0.1}, "close to the natural gradient"),
        (RunningMax(), {}, "by RunningMax"),
    ],
)
def test_what_is_said(rule, known, expected):
    diagnostics = {"gamma": 0.5, "damping": 0.2, "fisher_quotient": 1.0} | known
    assert expected in describe([rule], diagnostics, 100)


def test_report_prints(capsys):
    model, likelihood = mlp(), Categorical()
    optimizer = TANGO(model.parameters())
    optimizer.report()
    assert capsys.readouterr().out == "no step was taken yet\n"
    x, y = torch.randn(20, 3), torch.randint(4, (20,))
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()
    optimizer.report()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("after 3 steps: γ = ")
    assert lines[1].startswith("damping δt/γ = ")
    assert lines[-1] == "- the guard has not stepped in"
