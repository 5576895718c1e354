"""Intervals miss the truth as seldom as they say, and verdicts follow from them."""

import numpy as np
import pytest

from tangograd.reproduction import verdicts
from tangograd.reproduction.verdicts import exact, frequency, mean, mean_square, number, quantile


@pytest.mark.parametrize(
    ("interval", "truth"),
    [
        (lambda x: mean(x), 0.0),
        (lambda x: mean_square(x), 1.0),
        (lambda x: quantile(x), 0.0),
        (lambda x: quantile(x, 0.6827), 0.4752),
        (lambda x: frequency(x > 1), 0.15866),
    ],
)
def test_how_often_intervals_miss(interval, truth, monkeypatch):
    """At a probability of 5% of a false alarm, 20 of 400 are expected, with an sd of 4.4."""
    monkeypatch.setattr(verdicts, "ALARM", 0.05)
    samples = np.random.default_rng(0).standard_normal((400, 60))
    missed = sum(not interval(x).near("it", truth).holds for x in samples)
    assert missed < 20 + 5 * 4.4


def test_verdicts_need_the_whole_interval_on_the_wrong_side():
    interval = verdicts.Interval(1.0, 0.8, 1.2, 10)
    assert interval.near("a", 1.15).holds
    assert not interval.near("a", 1.25).holds
    assert interval.near("a", 1.25, within=0.1).holds
    assert interval.at_most("a", 0.9).holds
    assert not interval.at_most("a", 0.7).holds
    assert interval.at_least("a", 1.1).holds
    assert not interval.at_least("a", 1.3).holds


def test_what_is_not_finite_does_not_hold():
    assert not number(float("nan")).near("a", 1.0).holds
    assert not number(float("inf")).at_least("a", 1.0).holds
    assert not mean([1.0, 2.0, float("nan")]).near("a", 1.0).holds
    assert not exact("a", float("nan"), 1.0).holds


def test_too_few_samples_for_a_quantile_are_refused():
    with pytest.raises(ValueError, match="too few"):
        quantile(range(20))
