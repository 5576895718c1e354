"""What a fit knows at its end: the one object that summaries, reports and saved models read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """A fitted generalised linear model.

    The coefficients come in one flat list: the intercept (if any) first, then the columns; for
    several classes, that list for the second class against the first, then for the third, ….

    Attributes:
        family: its name, such as ``"poisson"``.
        link: its name, such as ``"log"``.
        parameters: those of the family that are fixed, such as ``{"power": 1.5}``.
        names: of the coefficients of one outcome, the intercept's (``"intercept"``) first.
        estimates: shape (outcomes * len(names),).
        classes: the labels of a classifier, in order; ``None`` for a regression. The first is the
            baseline, against which the coefficients of the others are estimated.
        standard_errors: of the estimates under the model (from the Fisher matrix), the algorithm's
            own excess included; ``None`` if no covariance was asked for.
        robust_errors: the same from the sandwich covariance, right also where the model is not.
        covariance_kind: ``"full"``, ``"diagonal"`` (correlations between coefficients ignored) or
            ``"none"``.
        covariance: the matrix behind standard_errors, when it is full.
        excess: (variance of the estimates) / (that of maximum likelihood), on average; 1 for
            converged or polished fits.
        rows: how many were learned from.
        weight: the sum of their weights.
        dispersion: φ; 1 for binomial, multinomial, poisson and negative binomial.
        log_likelihood: of all rows.
        deviance: of all rows.
        null_deviance: of the model with an intercept alone.
        progressive: True if the three above are those of each row before it was learned from, at
            the parameters of that moment (one pass cannot go back), False if they are those of
            the final parameters.
        alpha: the penalty.
        passes: over the data, polishing included.
        converged: the estimates are those of (penalised) maximum likelihood, to 0.01 standard
            errors.
        notes: what the user should know, a sentence each.
        trace_rows: numbers of rows, increasing.
        trace_loss: the mean loss (half the unit deviance) a row between the previous number of rows
            and this.
    """

    family: str
    link: str
    names: tuple[str, ...]
    estimates: Array
    rows: int
    weight: float
    dispersion: float
    log_likelihood: float
    deviance: float
    null_deviance: float
    progressive: bool
    parameters: dict[str, float] = field(default_factory=dict)
    classes: tuple[str | int | float | bool, ...] | None = None
    standard_errors: Array | None = None
    robust_errors: Array | None = None
    covariance_kind: str = "none"
    covariance: Array | None = None
    excess: float = 1.0
    alpha: float = 0.0
    passes: int = 1
    converged: bool = False
    notes: tuple[str, ...] = ()
    trace_rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    trace_loss: Array = field(default_factory=lambda: np.empty(0))

    @property
    def outcomes(self) -> tuple[str | int | float | bool, ...]:
        """The classes that have coefficients; one nameless outcome for a regression."""
        if self.classes is None:
            return ("",)
        return self.classes[1:]

    @property
    def degrees_of_freedom(self) -> int:
        """Return the number of coefficients, without those of aliased columns."""
        if self.standard_errors is None:
            return len(self.estimates)
        return len(self.estimates) - int(np.isnan(self.standard_errors).sum())

    @property
    def residual_freedom(self) -> float:
        """Degrees of freedom left: of the rows, a row of weight 2 counting as two."""
        whole = self.weight if self.weight > self.degrees_of_freedom else self.rows
        return whole - self.degrees_of_freedom

    @property
    def estimates_dispersion(self) -> bool:
        """Return whether φ was estimated from the residuals."""
        return self.family in {"gaussian", "gamma", "tweedie"}

    @property
    def reference_freedom(self) -> float:
        """Degrees of freedom of the t distribution of ``estimate / error``.

        Those of the residuals where φ is estimated; infinite (the normal distribution) where it is
        known; NaN if there are no more rows than coefficients, for there is no reference then.
        """
        if self.residual_freedom <= 0:
            return np.nan
        return self.residual_freedom if self.estimates_dispersion else np.inf

    def quantile(self, level: float) -> float:
        """Return half the length of an interval of this level, in standard errors."""
        freedom, upper = self.reference_freedom, (1 + level) / 2
        return float(ndtri(upper) if np.isinf(freedom) else stdtrit(freedom, upper))

    def p_values(self, statistics: Array) -> Array:
        """Return the two-sided p-values of ``estimate / error``."""
        freedom, lower = self.reference_freedom, -np.abs(statistics)
        return np.asarray(2 * (ndtr(lower) if np.isinf(freedom) else stdtr(freedom, lower)))

    @property
    def aic(self) -> float:
        """Akaike's criterion, ``-2 log L + 2 p``, p with the dispersion where it is estimated."""
        free = self.degrees_of_freedom + self.estimates_dispersion
        return -2 * self.log_likelihood + 2 * free

    @property
    def d2(self) -> float:
        """The share of the deviance explained, ``1 - deviance / null deviance``."""
        return 1 - self.deviance / self.null_deviance if self.null_deviance > 0 else 0.0
