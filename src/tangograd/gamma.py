"""γ: the rate at which the velocity approaches the natural gradient.

The update of v is a stochastic gradient descent with rate γ on ``F v = g``. It converges in mean
square when ``E Â² ≼ R² E Â`` and ``γ ≤ 1/R²`` (Theorem 5 of the paper), where Â is the estimate of
the Fisher matrix. For an outer product ``Â = g̃g̃ᵀ`` each of these is an R², all in the metric of
the preconditioner, ``‖g̃‖² = g̃ᵀCg̃``:

=====================  ======================  ====================================================
rule                   γ                       holds when
=====================  ======================  ====================================================
:class:`RunningMax`    ``1 / max ‖g̃‖²``        pseudo-gradients are bounded; always safe for those
                                               seen so far (the current one included)
:class:`Kurtosis`      ``1 / (κ E‖g̃‖²)``       the kurtosis of g̃ is at most κ in every direction;
                                               κ = 3 for a Gaussian g̃ (``"gaussian"``)
:class:`FourthMoment`  ``λ / E‖g̃‖⁴``           λ is at most the smallest eigenvalue of F
=====================  ======================  ====================================================

A mean over B samples has less noise than one outer product, and these rules stay safe for it: they
are slow on networks. :class:`Auto` (``"auto"``, the default) measures the batch's own F̂ instead.
:class:`NecessaryBound` is the other side: past it no R² can hold.

A γ that follows the current batch closely would bias the fixed point of v: these rules move slowly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

#: Means forget at this rate, once they have seen more than its inverse of pseudo-gradients.
FORGETTING = 1e-3


class GammaRule(ABC):
    """Sets γ from the pseudo-gradients seen so far. Groups that share a rule share its γ."""

    #: The attributes, plain numbers, that a saved run needs to go on.
    statistics: ClassVar[tuple[str, ...]]
    #: Whether :meth:`update` is to see a pseudo-gradient in every step.
    needs_pseudo_gradients: ClassVar[bool] = True
    #: Whether it was asked for by name, and so belongs to all groups that say this name.
    by_name = False

    @abstractmethod
    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """See the ``‖g̃‖²`` of some pseudo-gradients (C metric), with relative weights."""

    @property
    @abstractmethod
    def value(self) -> float:
        """γ now; 0 as long as every pseudo-gradient seen was zero."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value:.3g})"

    def state_dict(self) -> dict[str, float]:
        """The statistics, as plain numbers."""
        return {name: getattr(self, name) for name in self.statistics}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over saved statistics."""
        for name in self.statistics:
            setattr(self, name, state[name])


class Constant(GammaRule):
    """A γ given as a number."""

    statistics = ("value",)
    needs_pseudo_gradients = False
    value = 0.0

    def __init__(self, value: float) -> None:
        if not 0 < value < math.inf:
            raise ValueError(f"gamma must be positive and finite; got {value}")
        self.value = float(value)

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Stay."""


class RunningMax(GammaRule):
    """``γ = 1 / max ‖g̃‖²`` over all pseudo-gradients seen: the paper's safe choice.

    The optimizer shows it one sample of each batch, another one in every step.

    Example:
        >>> rule = RunningMax()
        >>> rule.update(torch.tensor([2.0, 4.0]), torch.ones(2))
        >>> rule.value
        0.25
    """

    statistics = ("largest",)

    def __init__(self) -> None:
        self.largest = 0.0

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Keep the largest."""
        del weights
        self.largest = max(self.largest, float(squared_norms.max()))

    @property
    def value(self) -> float:
        """``1 / max ‖g̃‖²``."""
        return _inverse(self.largest)


class Kurtosis(GammaRule):
    """``γ = 1 / (κ E‖g̃‖²)``: safe when g̃ has kurtosis at most κ in every direction.

    Args:
        kappa: κ; 3 for a Gaussian g̃ of any covariance.

    Example:
        >>> rule = Kurtosis(kappa=5.0)
        >>> rule.update(torch.tensor([1.0, 3.0]), torch.ones(2))
        >>> rule.value
        0.1
    """

    statistics = ("mean_squared_norm", "weight")

    def __init__(self, kappa: float = 3.0) -> None:
        if not 1 <= kappa < math.inf:
            raise ValueError(f"a kurtosis is at least 1; got kappa={kappa}")
        self.kappa = kappa
        self.mean_squared_norm = 0.0
        self.weight = 0.0

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Average."""
        self.mean_squared_norm, self.weight = _average(
            self.mean_squared_norm, self.weight, squared_norms, weights
        )

    @property
    def value(self) -> float:
        """``1 / (κ E‖g̃‖²)``."""
        return _inverse(self.kappa * self.mean_squared_norm)


class FourthMoment(GammaRule):
    """``γ = λ / E‖g̃‖⁴``: safe for any g̃ when λ is at most the smallest eigenvalue of F.

    Args:
        smallest_eigenvalue: λ, of ``C^½ F C^½`` when there is a preconditioner.

    Example:
        >>> rule = FourthMoment(smallest_eigenvalue=0.5)
        >>> rule.update(torch.tensor([1.0, 3.0]), torch.ones(2))
        >>> rule.value
        0.1
    """

    statistics = ("mean_fourth_power", "weight")

    def __init__(self, smallest_eigenvalue: float) -> None:
        if not 0 < smallest_eigenvalue < math.inf:
            raise ValueError(
                f"smallest_eigenvalue must be positive and finite; got {smallest_eigenvalue}"
            )
        self.smallest_eigenvalue = smallest_eigenvalue
        self.mean_fourth_power = 0.0
        self.weight = 0.0

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Average."""
        self.mean_fourth_power, self.weight = _average(
            self.mean_fourth_power, self.weight, squared_norms.square(), weights
        )

    @property
    def value(self) -> float:
        """``λ / E‖g̃‖⁴``."""
        return self.smallest_eigenvalue * _inverse(self.mean_fourth_power)


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

    Both are averaged over refreshes. Every step shows the quotient ``q = vᵀF̂v / vᵀC⁻¹v`` for free,
    whose recent maximum caps γ too.

    A **guard** steps in when ``γ q > 2`` (v grows along itself); when q has jumped to twice its
    recent maximum; or when the slope ``⟨g, v⟩`` has turned round to more than twice its recent
    maximum. The last two say that the last step in θ was too long for the quadratic model: F or g
    changed on the way. The guard takes that step back, halves v and γ, and has γ measured anew; γ
    then recovers by a few percent a step.

    Without a way to run the batch again, γ follows the quotient alone, from a safe start, and rises
    by at most a tenth a step.

    What a step measures acts from the next one on, so that γ does not depend on the batch it is
    used for, and the fixed point of v stays unbiased. Only the guard looks at the batch itself.

    Example:
        >>> rule = Auto()
        >>> rule.measured(search=4.0, cap=2.0)
        >>> rule.value
        0.25
        >>> rule.unstable(quotient=9.0, slope=1.0)
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
    SHARE = 0.1  # of the loss (or of 1) that noise may cost
    MARGIN = 1.5  # over 1/λ; 2 is the limit of stability
    FADING = 0.99  # of recent maxima, a step
    JUMP, NOTICEABLE = 2.0, 0.1  # of the quotient over its maximum, where γ q is at least that
    RECOVERY = 1.03  # of γ after a guard, a step
    RISE = 1.1  # of γ in a step, when it follows the quotient alone

    def __init__(self) -> None:
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

    def update(self, squared_norms: Tensor, weights: Tensor) -> None:
        """Other rules' statistics say nothing here."""

    def measured(
        self,
        search: float,
        cap: float | None = None,
        descent: float = 0.0,
        loss: float = math.inf,
        noise: float = 0.0,
        *,
        early: bool = False,
    ) -> None:
        """Take what a refresh found.

        Args:
            search: the line search's ``1/γ``.
            cap: ``‖F̂w‖² / ⟨w, F̂w⟩``, when there was a power iteration.
            descent: ``⟨r, Δ⟩``, which tells the slope to expect after the first step.
            loss: of the batch. Where outputs are saturated F̂ says nothing: a step is not to
                promise to lower the loss by more than twice what there is of it (or 2, if more).
            noise: ``tr C F̂ / 4B``: the loss that noise costs for each unit of γ, at most.
            early: in the first steps F changes fast, and a larger curvature counts at once.
        """
        search = max(search, descent / (2 * max(abs(loss), 1.0)))
        keep = 0.0 if self.due or not self.search else self.AVERAGING
        noise /= self.SHARE * max(abs(loss), 1.0)
        self.noise = max(noise, keep * self.noise + (1 - keep) * noise)
        averaged = _between(search, self.search, keep)
        self.search = max(search, averaged) if early else averaged
        if cap is not None:
            averaged = _between(cap, self.cap, keep)
            self.cap = max(cap, averaged) if early else averaged
        self.due = self.blind = False
        self._set()
        self.recent_slope = self.recent_slope or self.value * descent

    def unmeasured(self, safe: float) -> None:
        """There is no replay: start at ``γ = 1/safe`` unless there is a γ already."""
        self.due, self.blind = False, True
        self.value = self.value or _inverse(safe)

    def unstable(self, quotient: float, slope: float) -> bool:
        """See the quotient and the slope ``⟨g, v⟩`` of a step; True when the guard steps in."""
        if not (math.isfinite(quotient) and math.isfinite(slope)):
            return False
        jumped = quotient > self.JUMP * self.recent_quotient > 0
        turned = -slope > self.JUMP * self.recent_slope > 0
        if (
            self.value * quotient > 2
            or (jumped and self.value * quotient > self.NOTICEABLE)
            or turned
        ):
            self.guards += 1
            self.trust /= 1 if slope > 0 else 2
            self.value /= 2
            self.due = not self.blind
            return True
        self.recent_quotient = max(self.FADING * self.recent_quotient, quotient)
        self.recent_slope = max(self.FADING * self.recent_slope, abs(slope))
        self.trust = min(1.0, self.RECOVERY * self.trust)
        if self.blind:
            self.value = min(_inverse(self.recent_quotient), self.RISE * self.value)
        elif not self.due:
            self._set()
        return False

    def _set(self) -> None:
        steepest = max(self.search, self.cap / self.MARGIN, self.noise, self.recent_quotient)
        self.value = self.trust * _inverse(steepest)


class NecessaryBound:
    """Watches the condition on γ that any R² implies.

    The trace of ``E Â² ≼ R² E Â`` gives ``γ ≤ 1/R² ≤ tr F / tr E Â²``, a necessary condition for
    the theorem. (Past twice this, ``E‖v‖²`` grows without bound at δt = 0: the map
    ``S ↦ E (I-γÂ) S (I-γÂ)`` is self-adjoint and increases the trace of I.) In the form that fits
    the estimate, with B the samples in a batch and all products in the metric of C:

    * one outer product: ``γ ≤ E‖g̃‖² / E‖g̃‖⁴``, the paper's;
    * a mean of B of them: ``γ ≤ tr F / (E‖g̃‖⁴/B + (1-1/B) tr F²)``;
    * a mean of B closed forms ``F_x``: the same with ``E tr F_x²`` in place of ``E‖g̃‖⁴``,

    where ``tr F² = E (g̃ᵀg̃')²`` over pairs of samples, and ``tr F_x² = E (g̃ᵀg̃')²`` over pairs of
    pseudo-samples for one x.

    Example: outer products of constant norm 1, at γ = 2.

        >>> bound = NecessaryBound()
        >>> for _ in range(16):
        ...     bound.update(2 * torch.eye(1), torch.ones(1), torch.zeros(1), batch=1.0)
        >>> bound.excess
        2.0
    """

    #: Pseudo-gradients to see before saying anything.
    ENOUGH = 16

    def __init__(self) -> None:
        self.seen = 0
        self._trace, self._within, self._between = (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)
        self._batch = 1.0

    def update(self, gram: Tensor, weights: Tensor, sample: Tensor, batch: float) -> None:
        """See n pseudo-gradients of one step.

        Args:
            gram: ``(n, n)``, the products ``γ g̃_iᵀ C g̃_j``.
            weights: ``(n,)``, relative weights of the samples.
            sample: ``(n,)``, which sample each belongs to: a sample that comes twice has two
                pseudo-samples, because F̂ averages over them.
            batch: B, the number of independent terms in that step's F̂.
        """
        n = len(weights)
        self.seen += n
        self._batch = batch
        self._trace = _average(*self._trace, gram.diagonal(), weights)
        i, j = torch.triu_indices(n, n, offset=1)
        same = sample[i] == sample[j]
        squares, pair_weights = gram[i, j].square(), weights[i] * weights[j]
        if bool(same.any()):
            self._within = _average(*self._within, squares[same], weights[i][same])
        else:
            self._within = _average(*self._within, gram.diagonal().square(), weights)
        self._between = _average(*self._between, squares[~same], pair_weights[~same])

    @property
    def excess(self) -> float:
        """γ over the necessary bound; 0 until :attr:`ENOUGH` has been seen."""
        if self.seen < self.ENOUGH or self._trace[0] == 0:
            return 0.0
        one = 1 / self._batch
        return (one * self._within[0] + (1 - one) * self._between[0]) / self._trace[0]


RULES: dict[str, Callable[[], GammaRule]] = {
    "auto": Auto,
    "max": RunningMax,
    "gaussian": Kurtosis,
}


def resolve(gamma: float | str | GammaRule) -> GammaRule:
    """The rule that a user's ``gamma=`` means: a number, a name of :data:`RULES`, or a rule.

    >>> resolve(0.5).value
    0.5
    """
    if isinstance(gamma, GammaRule):
        return gamma
    if isinstance(gamma, str):
        if gamma not in RULES:
            raise ValueError(
                f"gamma is a positive number, a rule, or one of {sorted(RULES)}; got {gamma!r}"
            )
        rule = RULES[gamma]()
        rule.by_name = True
        return rule
    if not isinstance(gamma, int | float):
        raise ValueError(f"gamma is a positive number, a rule, or one of {sorted(RULES)}")
    return Constant(gamma)


def _inverse(x: float) -> float:
    return 1 / x if x > 0 else 0.0


def _between(new: float, old: float, keep: float) -> float:
    """An average of logarithms: scales that are off by powers of ten are forgotten soon."""
    return new ** (1 - keep) * old**keep if old else new


def _average(mean: float, weight: float, values: Tensor, weights: Tensor) -> tuple[float, float]:
    """Move a weighted mean towards new values: a plain mean first, then a slowly forgetting one."""
    new = float(weights.sum())
    if new == 0:
        return mean, weight
    weight = min(weight + new, 1 / FORGETTING)
    rate = min(new / weight, 1.0)
    return mean + rate * (float((weights * values).sum()) / new - mean), weight
