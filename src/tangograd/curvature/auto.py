"""The γ rule that needs no tuning."""

from __future__ import annotations

import math

from tangograd.curvature.rules import GammaRule, inverse


class Auto(GammaRule):
    """γ from the quadratic model that the update of v descends: nothing to tune.

    On refresh steps a batch is run again, and with the bracket r and ``Δ = C r``

    * a **line search** gives ``1/γ = ⟨Δ, F̂Δ⟩ / ⟨r, Δ⟩``, the step along Δ that is best for this r;
    * a **cap** keeps γ below ``1.5 ⟨w, F̂w⟩ / ‖F̂w‖²``, w being a leading eigenvector of ``C F̂`` (a
      power iteration over the refreshes) and the norm that of C. For a noiseless F̂ this is
      ``1.5/λ_max``; w does not know the batch, so that with noise it counts what a batch adds to F,
      as R² does. The mean square of v along w grows from 2 in place of 1.5 on;
    * a **noise** limit keeps what noise costs to a tenth of the loss (or of 1, if more): near an
      optimum this is at most ``γ tr(C F̂) / 4B``. It matters for small batches.

    These are averaged over refreshes. Every step shows the quotient ``q = vᵀF̂v / vᵀC⁻¹v`` for free,
    whose recent maximum caps γ too, at once: v does not grow along itself.

    A batch whose step would promise to lower the loss by more than twice what there is of it (or 2,
    if more) is an outlier, and is taken with a smaller γ.

    A **guard** steps in when the last step was too long for the quadratic model, for F or g changed
    on the way. There are two kinds of evidence:

    * q has jumped to twice its recent maximum (in the first steps: to twice what the line search
      found), or the slope ``⟨g, v⟩`` has turned to more than twice its recent maximum; the loss
      changes noticeably along the last step in θ; and the loss of the batch is above its running
      mean by a standard deviation, or q has jumped to four times its maximum;
    * the running mean of the loss is above the lowest that it had at a refresh by five standard
      errors, whatever slope and curvature are: a piecewise-linear loss shows a step that is too
      long in no other way.

    If the loss still falls along v, the guard shortens v to its best multiple on the quadratic
    model, at most to half. If not, it takes the step back, drops v and halves γ, which then
    recovers by a few percent a step. Either way γ is measured anew in the next step that the guard
    leaves alone.

    Without a way to run the batch again, γ follows the quotient alone, from a safe start, and rises
    by at most a tenth a step.

    What a refresh measures acts from the next step on, so that γ does not depend on the batch it is
    used for, and the fixed point of v stays unbiased. Only the quotient, the limit for outliers
    and the guard look at the batch itself.

    Example:
        >>> rule = Auto()
        >>> rule.measured(search=4.0, cap=2.0)
        >>> rule.value
        0.25
        >>> rule.unstable(quotient=3.0, slope=1.0, loss=1.0)
        False
        >>> rule.unstable(quotient=9.0, slope=1.0, loss=2.0)
        True
        >>> rule.value, rule.guards
        (0.125, 1)
    """

    statistics = (
        "search",
        "cap",
        "noise",
        "recent_quotient",
        "recent_slope",
        "trust",
        "value",
        "guards",
        "due",
        "blind",
    )
    needs_pseudo_gradients = False
    value = 0.0

    AVERAGING = 0.9  # of what refreshes measure
    SHARE = 0.1  # of the loss (or of 1, if more) that noise may cost
    PROMISE = 2.0  # of the loss (or of 1, if more): no step may promise to lower it by more
    HARM = 0.001  # to the loss (or to 1, if more), by one step, that calls the guard
    MARGIN = 1.5  # over 1/λ; 2 is the limit of stability
    FADING = 0.99  # of recent maxima, a step
    JUMP, NOTICEABLE = 2.0, 0.1  # of the quotient over its maximum, where γ q is at least that
    LARGE_JUMP = 4.0  # of the quotient, which calls the guard whatever the loss is
    RECOVERY = 1.03  # of γ after a guard, a step
    RISE = 1.1  # of γ in a step, when it follows the quotient alone

    def __init__(self) -> None:
        super().__init__()
        self.search = 0.0  # 1/γ of the line search
        self.cap = 0.0  # λ, noise included
        self.noise = 0.0  # 1/γ at which noise takes its share of the loss
        self.recent_quotient = 0.0
        self.recent_slope = 0.0
        self.trust = 1.0  # γ over what the refreshes found
        self.value = 0.0
        self.guards = 0
        self.due = True  # a refresh is wanted, and starts the averages anew
        self.blind = False

    def describe(self) -> str:
        """Return which of the limits sets γ, in words."""
        if self.blind:
            return "auto, following the quotient alone: the batch could not be run again"
        limits = {
            "set by the line search": self.search,
            "capped by the largest curvature, noise of the batch included: larger batches allow "
            "more": self.cap / self.MARGIN,
            "capped by what noise may cost: larger batches, or a lower lr, allow more": self.noise,
            "capped by the recent maximum of the quotient": self.recent_quotient,
        }
        return "auto, " + max(limits, key=lambda name: limits[name])

    def measured(
        self,
        search: float | None = None,
        cap: float | None = None,
        descent: float = 0.0,
        loss: float = math.inf,
        noise: float | None = None,
        *,
        samples: float = math.inf,
        early: bool = False,
    ) -> None:
        """Take what a refresh found.

        Args:
            search: the line search's ``1/γ``, when there was one.
            cap: ``‖F̂w‖² / ⟨w, F̂w⟩``, when there was a power iteration.
            descent: ``⟨r, Δ⟩``, which tells the slope to expect after the first step.
            loss: of the batch. Where outputs are saturated F̂ says nothing: a step is not to
                promise to lower the loss by more than twice what there is of it (or 2, if more).
            noise: ``tr C F̂ / 4B``, when it was measured: the loss that noise costs for each unit
                of γ, at most.
            samples: in the batch. After a guard averages start anew, but a few samples are not
                trusted to lower a curvature.
            early: in the first steps F changes fast, and a larger curvature counts at once.
        """
        early = early or self.due
        keep = 4 / (4 + samples) if self.due else self.AVERAGING
        if noise is not None:
            noise /= self.SHARE * max(abs(loss), 1.0)
            self.noise = max(noise, keep * self.noise + (1 - keep) * noise)
        if search is not None:
            search = max(search, descent / (self.PROMISE * max(abs(loss), 1.0)))
            averaged = _between(search, self.search, keep)
            self.search = max(search, averaged) if early else averaged
        if cap is not None:
            averaged = _between(cap, self.cap, keep)
            self.cap = max(cap, averaged) if early else averaged
        self.due = self.blind = False
        self.losses.mark()
        self._set()
        self.recent_slope = self.recent_slope or self.value * descent

    def rescale(self, ratio: float) -> None:
        """Express what was measured in the metric of a new C.

        Args:
            ratio: ``⟨r, C_new r⟩ / ⟨r, C_old r⟩``.
        """
        self.search *= ratio
        self.cap *= ratio
        self.noise *= ratio
        self.recent_quotient *= ratio
        self.value /= ratio

    def unmeasured(self, safe: float) -> None:
        """Start at ``γ = 1/safe``, unless there is a γ, as the batch cannot be run again."""
        self.due, self.blind = False, True
        self.value = self.value or inverse(safe)

    def unstable(
        self, quotient: float, slope: float, loss: float, change: float = math.inf
    ) -> bool:
        """Return whether the guard steps in, given what a step shows.

        Args:
            quotient: ``vᵀF̂v / vᵀC⁻¹v``; NaN for v = 0.
            slope: ``⟨g, v⟩``.
            loss: of the batch.
            change: of the loss, by the slope or the curvature along the last step in θ, over the
                loss (or 1, if more). Where it is small there is no harm to guard against.
        """
        high = self.losses.is_high(loss)
        self.losses.add(loss)
        if not (math.isfinite(quotient) and math.isfinite(slope)):
            return False
        jump = quotient / (self.recent_quotient or self.search or math.inf)
        jumped = jump > self.JUMP and self.value * quotient > self.NOTICEABLE
        turned = -slope > self.JUMP * self.recent_slope > 0
        overshot = (high and (jumped or turned)) or (jumped and jump > self.LARGE_JUMP)
        if change > self.HARM and (overshot or self.losses.has_risen()):
            self.guards += 1
            self.trust /= 1 if slope > 0 else 2
            self.value /= 2
            self.losses.mark(anew=True)
            self.due = not self.blind
            return True
        self.recent_quotient = max(self.FADING * self.recent_quotient, quotient)
        # downhill slopes alone raise it: a run that goes uphill must not get used to it
        level = slope if slope > 0 else min(-slope, self.recent_slope)
        self.recent_slope = max(self.FADING * self.recent_slope, level)
        self.trust = min(1.0, self.RECOVERY * self.trust)
        if self.blind:
            self.value = min(inverse(self.recent_quotient), self.RISE * self.value)
        elif not self.due:
            self._set()
        return False

    def _set(self) -> None:
        steepest = max(self.search, self.cap / self.MARGIN, self.noise, self.recent_quotient)
        self.value = self.trust * inverse(steepest)


def _between(new: float, old: float, keep: float) -> float:
    """An average of logarithms: scales that are off by powers of ten are forgotten soon."""
    return new ** (1 - keep) * old**keep if old else new
