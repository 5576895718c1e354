"""Models at a fixed θ, with the exact law of their gradients and runs of TANGO's velocity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tangograd.reproduction.base import Array
from tangograd.reproduction.exact import (
    Law,
    Regression,
    coin_law,
    finite,
    gaussian_law,
    logistic_law,
)
from tangograd.reproduction.models import COIN, GAUSSIAN, LINEAR, LOGISTIC, chosen
from tangograd.stream import Run, tango
from tangograd.stream.tango import Gradients

SCALES, OFFSET = (1.0, 0.5), (1.0, 1.0)


@dataclass(frozen=True)
class Example:
    """A model at a fixed θ.

    Attributes:
        title: name for tables and pictures.
        law: distribution of its gradients.
        theta: θ.
        constants: constants of the model.
        model: the compiled model.
    """

    title: str
    law: Law
    theta: tuple[float, ...]
    constants: tuple[float, ...]
    model: Gradients = chosen

    def run(
        self,
        gamma: float,
        steps: int,
        rng: np.random.Generator,
        *,
        dt: float = 0.0,
        C: Array | None = None,
        v: ArrayLike | None = None,
        records: int = 1,
    ) -> Run:
        """Run TANGO at the fixed θ; infinite velocities are replaced by finite, huge ones."""
        run = tango(
            self.model, self.theta, gamma=gamma, dt=dt, steps=steps, rng=rng,
            constants=self.constants, v=v, C=C, batch=self.law.batch,
            rank_one=self.law.rank_one, frozen=True, records=records,
        )  # fmt: skip
        return run._replace(v=finite(run.v), largest=float(finite(run.largest)))


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
