"""How precise the estimates are: covariances, with what one pass costs, and what to tell the user.

In one pass TANGO's estimate differs from maximum likelihood's, and the difference has variance.
With R = C½FC½ the preconditioned Fisher matrix and λ its eigenvalues, relative to maximum
likelihood's variance in that direction, after K steps over n rows,

    e(λ) = (n/K) (noise of F̂ + late(λ) + start(λ)),

the noise of F̂ being half the mean of γ q²/q. The others are those of the mean of SGD's iterates at
the rate γ = g/√k from row m on, where an estimate from m rows is; with a = 2gλ,

    late = 2/K ∫ (e^(-a(√K-u)) (√K + 1/a) - 1/a)² du/u,  u from √m to √K,
    start = 4/mK (√m/a + 1/a² - e^(-a(√K-√m)) (√K/a + 1/a²))².

Of many rows they are 1/(2Kγλ), what the last 1/(γλ) rows have not yet taught, and what is left of
the start, (1 + 1/(a√m))²/(aK/2√K)²; of no curvature, together, K/m - 1. The covariance of the
estimates is ``φ/n C½ (1 + e(R)) R⁻¹ C½``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expi

from tangograd.glm.fitted import Fitted
from tangograd.glm.newton import RIDGE, Solution, penalty_matrix
from tangograd.glm.watch import SORTED

if TYPE_CHECKING:
    from tangograd.glm.engine import OnePass

Array = NDArray[np.float64]

#: |η| beyond which a fitted probability counts as 0 or 1
CERTAIN = 15.0
#: a model in which more than this share of the rows were bounded is told so
BOUNDED = 1e-3
#: informative rows (Σ f) for each coefficient below which curvature is not negligible
FEW = 100
TINY = 1e-12
#: correlation of neighbouring targets beyond which one pass is not that of a random order
GROUPED = 0.02
#: the share of the deviance that is left of a stream whose classes are all but separated
ALL_BUT = 0.03
#: how much worse than a constant a model may be before it is told so
HOPELESS = 3.0
#: eigenvalues of R of a stream below this are those of dependent columns
DEPENDENT = 1e-10
#: a√K that is no different from none, where rounding would matter
FLAT = 1e-3


class Precision:
    """The covariances of a fit.

    Args:
        model: after its last row.
        found: its estimates.
    """

    def __init__(self, model: OnePass, found: Solution) -> None:
        self.model, self.found = model, found
        self.tally = model.settled_tally(found)
        tally = self.tally
        columns = model.columns + model.intercept - len(found.aliased)
        p = model.outputs * (columns - len(model.watch.constant()) * model.intercept)
        self.exact = not found.streamed
        # rows in memory have the whole matrix wherever Fisher scoring formed it
        self.kind = "none" if model.kind == "none" else "full" if found.sums.full else "diagonal"
        self.dispersion = 1.0
        if model.family.estimates_dispersion and tally.weight > 0:
            # progressive residuals are those of rows not yet learned from: they lose no freedom
            lost = p if self.exact and tally.weight > p else 0
            self.dispersion = tally.pearson / (tally.weight - lost)

    def excess(self, values: Array) -> Array:
        """e(λ); 0 after convergence."""
        if self.exact:
            return np.zeros_like(values)
        model = self.model
        state, n = model.working_path.state, self.tally.rows
        if state.q == 0:  # nothing to learn
            return np.zeros_like(values)
        K, m = state.k, model.start_rows
        noise = 0.5 * state.noise / state.q
        late = _late(2 * state.gamma * math.sqrt(K) * values, m, K)
        start = _start(2 * model.start_gamma * math.sqrt(m) * values, m, K)
        return np.asarray(n / K * (noise + np.minimum(late + start, K / m)))

    def covariances(self) -> tuple[Array, Array, float]:
        """Under the model and the sandwich, in centred coordinates, and the mean of 1 + e."""
        sums = self.found.sums
        p = len(sums.gradient)
        diagonal = np.diag(sums.fisher) if sums.full else sums.fisher
        rounding = 0.0 if self.found.at.W is None else TINY**2 * diagonal.max()
        here = np.flatnonzero(diagonal > rounding)
        if found_out := self.found.aliased:
            here = here[~np.isin(here % sums.size, found_out)]
        if not sums.full:
            e = self.excess(np.ones(1))
            variance, robust = np.full(p, np.nan), np.full(p, np.nan)
            penalised = here % sums.size < sums.size - 1  # all but the intercepts
            curvature = diagonal[here] + self.model.alpha * self.tally.weight * penalised
            variance[here] = self.dispersion * (1 + e) / curvature
            robust[here] = sums.meat[here] / curvature**2 + self.dispersion * e / curvature
            return variance, robust, float(1 + e[0])
        H = sums.fisher + penalty_matrix(
            self.model.family, self.model.outputs, sums.size, self.model.alpha * self.tally.weight
        )
        scale = 1 / np.sqrt(np.diag(H)[here])
        R = H[np.ix_(here, here)] * scale[:, None] * scale
        values, vectors = np.linalg.eigh(R)
        least = RIDGE if self.exact else DEPENDENT
        values = np.maximum(values, least)
        e = self.excess(values)
        half = scale[:, None] * vectors
        covariance, robust = np.full((2, p, p), np.nan)
        inside = np.ix_(here, here)
        covariance[inside] = self.dispersion * (half * ((1 + e) / values)) @ half.T
        bread = (half / values) @ half.T
        sandwich = bread @ sums.meat[inside] @ bread
        inflation = np.trace(bread @ sums.meat[inside]) / max(len(here), 1)
        robust[inside] = sandwich + inflation * (half * (e / values)) @ half.T
        learned = values > least
        return covariance, robust, float(1 + e[learned].mean()) if learned.any() else 1.0

    def fitted(self, names: tuple[str, ...], labels: tuple[object, ...] | None) -> Fitted:
        """Everything, in the coordinates of the data and with the intercept first."""
        model, found, tally = self.model, self.found, self.tally
        family = model.family
        theta = found.at.outward(found.theta)
        errors = robust = covariance = None
        excess = float(1 + self.excess(np.ones(1))[0])
        if model.kind != "none":
            raw, raw_robust, excess = self.covariances()
            if raw.ndim == 2:
                covariance = _turned(model, found, raw)
                errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))  # rounding may go below
                robust = np.sqrt(np.maximum(np.diag(_turned(model, found, raw_robust)), 0.0))
            else:
                errors = np.sqrt(_turned_diagonal(model, found, raw))
                robust = np.sqrt(_turned_diagonal(model, found, raw_robust))
        likelihood = family.log_likelihood(
            tally.loss, tally.saturated, tally.normalizer, tally.weight, self.dispersion
        )
        return Fitted(
            family=family.name,
            link=family.link,
            parameters=family.parameters,
            names=(("intercept",) if model.intercept else ()) + names,
            estimates=theta.ravel()[_order(model)],
            classes=labels,  # type: ignore[arg-type]
            standard_errors=errors,
            robust_errors=robust,
            covariance_kind=self.kind,
            covariance=covariance,
            excess=excess,
            rows=tally.rows,
            weight=tally.weight,
            dispersion=self.dispersion,
            log_likelihood=likelihood,
            deviance=2 * max(tally.loss - tally.saturated, 0.0),
            null_deviance=2 * max(tally.null_loss() - tally.saturated, 0.0),
            progressive=not self.exact,
            alpha=model.alpha,
            passes=model.passes,
            converged=found.converged,
            notes=tuple(self.notes(names, excess)),
            trace_rows=np.asarray(tally.trace_rows, np.int64),
            trace_loss=np.asarray(tally.trace_loss, np.float64),
        )

    def notes(self, names: tuple[str, ...], excess: float) -> list[str]:
        """What the user should know; ``excess`` is the mean of 1 + e."""
        model, found, watch = self.model, self.found, self.model.watch
        notes = []
        constant = watch.constant()
        if constant:
            which = _listed([names[j] for j in constant])
            notes.append(
                f"constant: {which}; the intercept says the same, so the coefficient is 0"
                if model.intercept
                else f"constant: {which}"
            )
        if found.aliased:
            which = _listed([names[j] for j in found.aliased])
            notes.append(
                f"left out, since they depend linearly on the columns before them: {which}"
            )
        for known, twin in [] if found.aliased else watch.duplicates()[:10]:
            notes.append(
                f"{names[twin]} equals {names[known]} in every row: their effect is divided "
                "between them, and only its sum has a meaning"
            )
        if found.streamed:
            together = watch.neighbour_correlation()
            if together > GROUPED + 6 / math.sqrt(watch.rows):
                what = "sorted by the target" if together > SORTED else "grouped by the target"
                notes.append(
                    f"the rows seem to be {what} (neighbours correlate by {together:.2g}); one "
                    "pass learns from them in that order and takes the last for typical: shuffle "
                    "them, or use polish"
                )
            state = model.working_path.state
            bounded = state.limited / state.k
            if bounded > BOUNDED:
                notes.append(
                    f"{bounded:.1%} of the rows were so extreme that their effect was bounded; "
                    "polish removes what that changes"
                )
            each = self.tally.information() / found.theta.size
            if each < FEW and model.family.support.has_boundary:
                notes.append(
                    "events are too rare for one pass to be precise with so many coefficients "
                    f"(about {each:.0f} informative rows for each): use polish"
                )
            if excess > 1.5:
                notes.append(
                    f"the variances are {excess:.1f} times those of maximum likelihood: the "
                    "columns are too correlated, or some rows too extreme, for so few rows in one "
                    "pass; use polish, or more passes"
                )
        if self.hopeless():
            notes.append(
                "a few rows are so far from what the model says that they decide everything, and "
                "it explains less than a constant would: look for extreme values in features and "
                "target"
            )
        if self.separated():
            notes.append(
                "the classes are linearly separable, or all but, so the maximum-likelihood "
                "estimate does not exist; set alpha to choose one"
            )
        doubled = {twin for pair in watch.duplicates() for twin in pair}
        open_ = [names[j] for j in found.undetermined if j not in doubled]
        if open_:
            notes.append(
                f"the data do not determine the coefficients of {_listed(open_)}, and a very small "
                "penalty chooses them: columns depend on one another, or the target never varies "
                "where one is not 0; leave columns out, or set alpha"
            )
        if model.polished is not None and not found.converged:
            notes.append(
                "polishing ended after three passes, with a last step worth "
                f"{model.last_step:.2g} standard errors: the result is not maximum likelihood's"
            )
        elif not found.streamed and not found.converged:
            notes.append("Fisher scoring did not converge; set alpha, or look for extreme features")
        if self.kind == "diagonal":
            notes.append(
                f"with {found.theta.size} coefficients the covariance is diagonal: standard errors "
                "ignore correlations between columns, and are too small where there are any"
            )
        return notes

    def hopeless(self) -> bool:
        """The model is worse than its intercept alone, by what the rows are from it."""
        tally, family = self.tally, self.model.family
        if family.estimates_dispersion and not family.quadratic:
            return self.dispersion > HOPELESS * tally.null_dispersion()
        lost = tally.loss - tally.saturated
        return family.link == "log" and lost > HOPELESS * (tally.null_loss() - tally.saturated)

    def separated(self) -> bool:
        """The classes are told apart without an error, or only the ridge keeps θ finite."""
        if not self.model.family.classes or self.model.alpha > 0:
            return False
        if self.found.streamed:
            told_apart = self.tally.loss < ALL_BUT * self.tally.null_loss()
            return bool(self.model.working_path.state.mistakes == 0 or told_apart)
        return self.found.separated or self.found.sums.mistakes == 0


def _late(a: Array, m: float, K: float) -> Array:
    """late(λ) for a = 2gλ; its square multiplied out."""
    first, last = math.sqrt(m), math.sqrt(K)
    a = np.maximum(a, FLAT / last)
    both, one = _fading(2 * a, first, last), _fading(a, first, last)
    gain = last + 1 / a
    return np.asarray(2 / K * (gain**2 * both - 2 * gain * one / a + math.log(last / first) / a**2))


def _start(a: Array, m: float, K: float) -> Array:
    """start(λ)."""
    first, last = math.sqrt(m), math.sqrt(K)
    a = np.maximum(a, FLAT / last)
    left = first / a + 1 / a**2 - np.exp(-a * (last - first)) * (last / a + 1 / a**2)
    return np.asarray(4 / (m * K) * left**2)


def _fading(rate: Array, first: float, last: float) -> Array:
    """``∫ e^(-rate (last - u)) du/u`` from first to last."""
    before = np.exp(-rate * (last - first)) * _exponential(rate * first)
    return np.asarray(_exponential(rate * last) - before)


def _exponential(x: Array) -> Array:
    """``e^(-x) Ei(x)``, the exponential integral; of large x by its series."""
    large = np.maximum(x, 40.0)
    series = (1 + (1 + (2 + (6 + 24 / large) / large) / large) / large) / large
    small = np.minimum(x, 40.0)
    return np.asarray(np.where(x > 40, series, np.exp(-small) * expi(small)))


def _order(model: OnePass) -> NDArray[np.int64]:
    """Where each coefficient, intercept first, is in the flat θ."""
    size = model.columns + 1
    one = np.r_[[size - 1] if model.intercept else [], np.arange(size - 1)].astype(np.int64)
    return np.asarray((np.arange(model.outputs)[:, None] * size + one).ravel())


def _turn(model: OnePass, found: Solution) -> Array:
    """The matrix to the coordinates of the data, intercepts first."""
    return np.asarray(np.kron(np.eye(model.outputs), found.at.turn())[_order(model)])


def _turned(model: OnePass, found: Solution, covariance: Array) -> Array:
    """``T V Tᵀ``, where coefficients without curvature (NaN) touch no other."""
    lost = np.isnan(np.diag(covariance))[_order(model)]
    turn = _turn(model, found)
    result = turn @ np.where(np.isnan(covariance), 0.0, covariance) @ turn.T
    result[lost] = np.nan
    result[:, lost] = np.nan
    return np.asarray(result)


def _turned_diagonal(model: OnePass, found: Solution, variances: Array) -> Array:
    """Its diagonal for a diagonal V."""
    result = variances.reshape(model.outputs, -1).copy()
    if model.intercept:
        result[:, -1] += np.nan_to_num(result[:, :-1]) @ found.at.m**2
    return np.asarray(result.ravel()[_order(model)])


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
