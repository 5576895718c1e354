"""Models at a fixed θ, with the exact law of their gradients and runs of TANGO's velocity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tangograd.reproduction.exact import Law, Regression, coin_law, gaussian_law, logistic_law
from tangograd.reproduction.models import COIN, GAUSSIAN, LINEAR, LOGISTIC, chosen
from tangograd.stream import Run, tango
from tangograd.stream.tango import Gradients

SCALES, OFFSET, HUGE = (1.0, 0.5), (1.0, 1.0), 1e9


@dataclass(frozen=True)
class Example:
    """A model at a fixed θ: its name, the law of its gradients, θ, and the compiled model."""

    title: str
    law: Law
    theta: ArrayLike
    constants: tuple[float, ...]
    model: Gradients = chosen

    def run(self, gamma: float, steps: int, rng: np.random.Generator, **options: Any) -> Run:
        """Run TANGO at the fixed θ; what is not finite or huge becomes ±1e9, beyond any bound."""
        options = {"dt": 0.0, "batch": self.law.batch, "rank_one": self.law.rank_one} | options
        options |= {"steps": steps, "rng": rng, "constants": self.constants}
        run = tango(self.model, self.theta, gamma=gamma, frozen=True, **options)
        v, largest = (
            np.clip(np.nan_to_num(x, nan=HUGE), -HUGE, HUGE) for x in (run.v, run.largest)
        )
        return run._replace(v=v, largest=float(largest))


def gaussian() -> Example:
    """Return a Gaussian in (μ, ln σ), at N(0, 1), on data from N(1, 1)."""
    return Example("Gaussian (μ, ln σ)", gaussian_law(1.0), (0.0, 0.0), (GAUSSIAN, 1.0, 1.0))


def linear() -> Example:
    """Return a linear regression on Gaussian features, at :data:`OFFSET` from the truth."""
    law = Regression.gaussian(np.square(SCALES)).law(OFFSET)
    return Example("linear regression", law, OFFSET, (LINEAR, 1.0, 1.0, *SCALES, 0.0, 0.0))


def logistic() -> Example:
    """Return a logistic regression on Gaussian features, at θ = 0."""
    law = logistic_law(SCALES, OFFSET)
    return Example("logistic regression", law, (0.0, 0.0), (LOGISTIC, *SCALES, *OFFSET))


def rare_event(p: float) -> Example:
    """Return an event that has the probability p in the model and never happens in the data."""
    return Example("rare event", coin_law(p, 0.0), (math.log(p / (1 - p)),), (COIN, 0.0))
