"""Verdicts: what a claim expects, what was measured, and whether it holds.

A verdict on random numbers is wrong for a true claim with probability :data:`ALARM`. Intervals of
medians and frequencies are exact without assumptions; those of means, from Student's t, for normal
samples, and up to twice as often wrong for averages over long runs and light-tailed samples.
``docs/reproduction.md`` says what that means for a whole reproduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

#: Probability of a false alarm of one verdict.
ALARM = 5e-7


@dataclass(frozen=True)
class Verdict:
    """One row of the table."""

    what: str  # the quantity, in a few words
    expected: str  # what the claim says
    measured: float
    low: float  # lower end of the interval; equal to ``measured`` where nothing is random
    high: float
    n: int  # number of independent samples; 1 where nothing is random
    holds: bool


@dataclass(frozen=True)
class Interval:
    """An estimate with an interval that misses the truth with probability :data:`ALARM`."""

    estimate: float
    low: float
    high: float
    n: int

    def near(self, what: str, expected: float, within: float = 0.0) -> Verdict:
        """Test equality with ``expected``, up to ``within`` (an error of the claim itself)."""
        holds = self.low <= expected + within and self.high >= expected - within
        text = f"{expected:.4g}" + (f" ± {within:.2g}" if within else "")
        return self._verdict(what, text, holds)

    def at_most(self, what: str, bound: float) -> Verdict:
        """Test an upper bound; it fails if the whole interval is above."""
        return self._verdict(what, f"≤ {bound:.4g}", self.low <= bound)

    def at_least(self, what: str, bound: float) -> Verdict:
        """Test a lower bound; it fails if the whole interval is below."""
        return self._verdict(what, f"≥ {bound:.4g}", self.high >= bound)

    def _verdict(self, what: str, expected: str, holds: bool) -> Verdict:
        finite = bool(np.isfinite([self.estimate, self.low, self.high]).all())
        return Verdict(what, expected, self.estimate, self.low, self.high, self.n, holds and finite)


def mean(samples: ArrayLike) -> Interval:
    """Estimate a mean, with Student's interval.

    >>> mean([0.9, 1.1, 1.0, 1.05, 0.95]).near("a length", 1.0).holds
    True
    """
    x = np.asarray(samples, dtype=np.float64)
    half = stats.t.isf(ALARM / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half), len(x))


def near_mean(samples: ArrayLike, what: str, expected: float) -> Verdict:
    """Test the mean of a skewed, heavy-tailed sample, such as averages of ‖v-m‖².

    Student's interval is unreliable for such samples. The interval of the median is exact, and for
    every distribution the median is within one standard deviation of the mean. Runs must be long
    enough for a standard deviation below a quarter of the mean; the tolerance is never larger.
    """
    x = np.asarray(samples, dtype=np.float64)
    return quantile(x).near(what, expected, within=min(float(x.std(ddof=1)), expected / 4))


def mean_square(samples: ArrayLike) -> Interval:
    """Estimate the mean square of centred normal samples, with its interval from χ².

    Squares are skewed: Student's interval would too often miss the truth.

    >>> mean_square([1.0, -1.0] * 50).near("a variance", 1.0).holds
    True
    """
    x = np.asarray(samples, dtype=np.float64)
    square = float((x**2).mean())
    low, high = (x.size * square / stats.chi2.isf(p, x.size) for p in (ALARM / 2, 1 - ALARM / 2))
    return Interval(square, float(low), float(high), x.size)


def number(x: float) -> Interval:
    """Return a number in which nothing is random, as an interval of length 0.

    >>> number(1.0004).near("a slope", 1.0, within=0.001).holds
    True
    """
    return Interval(x, x, x, 1)


def quantile(samples: ArrayLike, q: float = 0.5) -> Interval:
    """Estimate a quantile, by default the median, with an exact interval from order statistics.

    >>> interval = quantile(range(101))
    >>> interval.estimate, interval.low, interval.high
    (50.0, 25.0, 75.0)
    """
    x = np.sort(np.asarray(samples, dtype=np.float64))
    low = int(stats.binom.ppf(ALARM / 2, len(x), q)) - 1
    high = int(stats.binom.isf(ALARM / 2, len(x), q))
    if low < 0 or high >= len(x):
        raise ValueError(f"{len(x)} samples are too few for an interval of the {q} quantile")
    return Interval(float(np.quantile(x, q)), float(x[low]), float(x[high]), len(x))


def frequency(happened: Sequence[bool] | np.ndarray) -> Interval:
    """Estimate a probability, with the exact interval of Clopper and Pearson.

    >>> frequency([True] * 1000).at_least("successes", 0.99).holds
    True
    """
    n, hits = len(happened), int(np.sum(happened))
    exact = stats.binomtest(hits, n).proportion_ci(1 - ALARM)
    return Interval(hits / n, float(exact.low), float(exact.high), n)


def exact(what: str, error: float, limit: float) -> Verdict:
    """Test that an error is due to rounding; nothing is random.

    >>> exact("difference", 1e-15, 1e-12).holds
    True
    """
    return Verdict(what, f"≤ {limit:.1e}", error, error, error, 1, bool(error <= limit))
