"""What the rules pick, against numbers worked out by hand, and wrong algorithms are refuted."""

import numpy as np
import pytest

from tangograd.reproduction import examples as runs
from tangograd.reproduction import gamma_rules
from tangograd.reproduction.base import Setting
from tangograd.reproduction.gamma_rules import (
    FOURTH,
    GAUSSIAN,
    KURTOSIS,
    examples,
    rules,
)  # fmt: skip


@pytest.fixture(scope="module")
def models():
    return examples()


def test_the_gaussian_at_sigma_one(models):
    """E‖g̃‖² = 3, E‖g̃‖⁴ = 83, R² = 35, κ = 15, λ = 1."""
    law = models[0].law
    expected = [1 / 9, 3 / 83, 1 / 35, 1 / 45, 1 / 83]
    assert list(rules(law).values()) == pytest.approx(expected)
    assert rules(law)[GAUSSIAN] > law.largest_gamma  # the trap


def test_regressions_with_scales_1_and_a_half(models):
    """With F = diag(1, ¼) and 2 tr F² + tr² F = E‖x‖⁴ = 59/16."""
    linear, logistic = models[1].law, models[2].law
    assert list(rules(linear).values()) == pytest.approx(
        [4 / 15, 5 / 4 / (3 * 59 / 16), 1 / (3 * 3.25), 4 / 45, 1 / 4 / (3 * 59 / 16)]
    )
    # g̃ = ±x/2: Gaussian, so that R² = tr F + 2 λ_max is at most 3 tr F.
    assert list(rules(logistic).values()) == pytest.approx(
        [16 / 15, 5 / 16 / (59 / 256), 1 / (13 / 16), 16 / 15, 1 / 16 / (59 / 256)]
    )


def test_safe_rules_are_safe_and_the_gaussian_one_where_it_may_be_used(models):
    for model in models:
        picked = rules(model.law)
        assert max(picked[KURTOSIS], picked[FOURTH]) * model.law.R2 <= 1
    assert [rules(model.law)[GAUSSIAN] < model.law.largest_gamma for model in models] == [
        False,
        False,
        True,
    ]


def test_running_maximum(models):
    z = np.random.default_rng(0).standard_normal((4000, 50))
    largest = (z**4 - z**2 + 1).max(1)
    below = np.mean(1 / largest < gamma_rules.median_of_running_max(50))
    assert abs(below - 0.5) < 5 * 0.5 / np.sqrt(4000)
    drawn = gamma_rules.running_max(np.random.default_rng(1), 50)
    z = np.random.default_rng(1).standard_normal(50)
    assert np.isclose(drawn, 1 / (z**4 - z**2 + 1).max())


def wrong(monkeypatch, change):
    """A quick run of which the kernel's arguments are changed, without the panels' many points."""
    kernel = runs.tango
    monkeypatch.setattr(gamma_rules, "GRID", (0.1,))
    monkeypatch.setattr(runs, "tango", lambda *a, **k: kernel(*a, **{**k, **change(k)}))
    return [v.holds for v in gamma_rules.measure(Setting("gamma-rules", quick=True)).verdicts]


def test_a_quarter_of_gamma_is_refuted(monkeypatch):
    """Noise grows with γ; at a quarter of the Gaussian rule's the second moment is finite."""
    assert wrong(monkeypatch, lambda k: {"gamma": k["gamma"] / 4})[:4] == [False] * 4


def test_batches_are_refuted(monkeypatch):
    """A mean over two samples has half of the noise."""
    assert wrong(monkeypatch, lambda k: {"batch": 2})[:3] == [False] * 3
