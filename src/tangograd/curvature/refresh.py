"""Refresh steps: C learns, and γ "auto" is measured on the batch run again.

They come at every twentieth step, more often at the very beginning, and right after the guard of
:class:`tangograd.curvature.Auto` stepped in. Only what the chosen γ and C use is measured.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tangograd.curvature.auto import Auto
from tangograd.curvature.operator import BatchFisher, trainable
from tangograd.curvature.pseudo_gradients import Pulled, combine, probe
from tangograd.curvature.rules import GammaRule
from tangograd.parallel import Communicator
from tangograd.preconditioners import Preconditioner
from tangograd.session import CannotReplayError
from tangograd.state import Group, State, auto_rules

if TYPE_CHECKING:
    from tangograd.curvature.observation import Observation
    from tangograd.curvature.signals import Signals

#: Steps between refreshes.
EVERY = 20
#: Refreshes in the first steps, where F changes fast: about a third of the steps so far apart.
EARLY = (0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30, 37, 45)
#: In the first steps, what a refresh finds acts at once; later, from the next step on.
AT_ONCE = 10
#: Power iterations in the first step; later, refreshes with one alternate with line searches.
FIRST_POWER = 5


class Request(NamedTuple):
    """What the next `tangents` block is to record.

    Attributes:
        step: the number of the step.
        refresh: whether it is a refresh step.
        needs: what γ and C want pulled back, of ``"probe"``, ``"fisher_diagonal"``, ``"gradient"``
            and ``"layers"``.
        draws: the number of pseudo-gradients to pull back.
        check: whether to check that tangents and gradients agree.
        sample: whether a γ rule wants the pseudo-gradient of one sample.
        replay: whether the block will be run again.
    """

    step: int
    refresh: bool
    needs: frozenset[str]
    draws: int
    check: bool
    sample: bool
    replay: bool

    @property
    def record(self) -> bool:
        """Whether calls of the model are recorded, to run them again or to find one at fault."""
        return self.refresh or (self.sample and self.check)


def request(step: int, rules: Sequence[GammaRule], Cs: Sequence[Preconditioner]) -> Request:
    """Return what the block of this step is to record."""
    due = is_due(step, rules, Cs)
    return Request(
        step=step,
        refresh=due,
        needs=needs(step, rules, Cs) if due else frozenset(),
        draws=1 if step else max(C.first_draws for C in Cs),
        check=step < 16 or step % 100 == 0,
        sample=any(rule.needs_pseudo_gradients for rule in rules),
        replay=due and bool(auto_rules(rules)),
    )


def is_due(step: int, rules: Sequence[GammaRule], Cs: Iterable[Preconditioner]) -> bool:
    """Return whether this step is a refresh step."""
    autos = auto_rules(rules)
    if not autos and not any(C.needs for C in Cs):
        return False
    return _number(step) is not None or any(rule.due for rule in autos)


def needs(step: int, rules: Sequence[GammaRule], Cs: Iterable[Preconditioner]) -> frozenset[str]:
    """Return what γ and C want pulled back on a refresh step."""
    autos = auto_rules(rules)
    if _searches_only(step, autos):
        return frozenset()
    wanted: frozenset[str] = frozenset().union(*(C.needs for C in Cs))
    return wanted | {"probe"} if autos else wanted


def _number(step: int) -> int | None:
    """Return which refresh this step is, from 0; ``None`` for an ordinary step."""
    if step <= EARLY[-1]:
        return EARLY.index(step) if step in EARLY else None
    since = step // EVERY - EARLY[-1] // EVERY - 1
    return len(EARLY) + since if step % EVERY == 0 else None


def _searches_only(step: int, autos: Sequence[Auto]) -> bool:
    """Return whether this refresh is a line search and nothing else: every second one is."""
    if not autos or step <= EARLY[-1] or any(rule.due for rule in autos):
        return False
    return (_number(step) or 0) % 2 == 1


def refresh(
    blocks: Sequence[Observation],
    groups: Sequence[Group],
    state: State,
    signals: Signals,
    *,
    step: int,
    stopped: Container[int],
    communicator: Communicator,
) -> CannotReplayError | None:
    """Update C, and measure "auto" γ.

    Args:
        blocks: of this step.
        groups: all groups.
        state: the optimizer's; the power iteration keeps its vector there, as ``leading``.
        signals: of this step.
        step: the number of this step.
        stopped: identities of rules whose guard stepped in: the next step measures.
        communicator: the processes that refresh together.

    Returns:
        Why a batch could not be run again, if it could not.
    """
    pulled = [piece for block in blocks for piece in block.pulled]
    for group in groups:
        if pulled and group.C.needs:
            group.C.update(combine(pulled, group.params, signals.samples, communicator))
    failure = None
    for rule in auto_rules(group.rule for group in groups):
        measurement = _Measurement(rule, blocks, groups, pulled, communicator)
        if id(rule) not in stopped:
            failure = measurement.run(state, signals, step) or failure
        elif pulled:
            measurement.rescale(measurement.descent(), signals)
    return failure


class _Measurement:
    """The measurement of one "auto" γ in a refresh step.

    Vectors have a tensor for each trainable parameter, and are 0 outside the rule's groups.
    """

    def __init__(
        self,
        rule: Auto,
        blocks: Sequence[Observation],
        groups: Sequence[Group],
        pulled: Sequence[Pulled],
        communicator: Communicator,
    ) -> None:
        self.rule = rule
        self.groups = groups
        self.pulled = pulled
        self.communicator = communicator
        self.fisher = BatchFisher(
            [block.recording for block in blocks if block.recording is not None],
            groups,
            communicator,
        )
        own = [group for group in groups if group.rule is rule]
        self.own = {id(p) for p in trainable(own)}

    def run(self, state: State, signals: Signals, step: int) -> CannotReplayError | None:
        """Run the batch again, for a line search or for a power iteration; both where it starts."""
        parameters, rule = self.fisher.parameters, self.rule
        starting = not all("leading" in state[p] for p in parameters if id(p) in self.own)
        both, number = starting or rule.due, _number(step) or 0
        bracket = self.bracket()
        direction = self.precondition(bracket)
        numbers = {"descent": self.communicator.dot(bracket, direction)}
        Ch: list[Tensor] = []
        if self.pulled:
            h = probe(self.pulled, parameters, self.communicator)
            Ch = self.precondition(h)
            numbers["trace"] = self.communicator.dot(h, Ch)
        if both or number % 2:
            numbers["along"] = self.fisher.quadratic(direction)
        leading: list[Tensor] | None = None
        if Ch if starting else both or number % 2 == 0:
            if starting:
                leading = Ch
            else:
                leading = [
                    state[p]["leading"] if id(p) in self.own else torch.zeros_like(p)
                    for p in parameters
                ]
            leading, numbers["cap"] = self._power_iteration(leading, FIRST_POWER if starting else 1)
        numbers["failed"] = torch.tensor(float(self.fisher.failure is not None))
        read = self.communicator.read(numbers)
        descent = read["descent"]
        if self.pulled and step:
            self.rescale(descent, signals)
        if read["failed"]:
            if self.pulled:
                rule.unmeasured(read["trace"])
            return self.fisher.failure or CannotReplayError("another process could not")
        cap = read.get("cap", math.nan)
        if leading is not None and math.isfinite(cap):
            for p, x in zip(parameters, leading, strict=True):
                if id(p) in self.own:
                    state[p]["leading"] = x
        along = read.get("along")
        if not 0 < descent < math.inf or (along is not None and not 0 <= along < math.inf):
            return None
        rule.measured(
            None if along is None else along / descent,
            cap if math.isfinite(cap) else None,
            descent,
            signals.loss,
            self._noise(read.get("trace"), signals.samples),
            samples=signals.samples,
            early=step <= EARLY[-1],
        )
        return None

    def rescale(self, descent: float, signals: Signals) -> None:
        """Express the memory of γ in the metric of the new C, by ``⟨r, C r⟩`` with both."""
        pairs = zip(signals.descents, self.groups, strict=True)
        before = sum(d for d, group in pairs if group.rule is self.rule)
        if 0 < before < math.inf and 0 < descent < math.inf:
            self.rule.rescale(descent / before)

    def descent(self) -> float:
        """Return ``⟨r, C r⟩`` with the present C."""
        bracket = self.bracket()
        return self.communicator.read(
            {"descent": self.communicator.dot(bracket, self.precondition(bracket))}
        )["descent"]

    def bracket(self) -> list[Tensor]:
        """Return r, for all trainable parameters."""
        return [
            r
            for group in self.groups
            for p, r in zip(group.params, group.bracket, strict=True)
            if p.requires_grad
        ]

    def _power_iteration(
        self, leading: list[Tensor], iterations: int
    ) -> tuple[list[Tensor], Tensor]:
        """Iterate ``w ← C F̂ w / ‖F̂w‖_C``.

        Returns:
            w, and ``‖F̂w‖² / ⟨w, F̂w⟩`` for the w before the last iteration (in the norm of C): the
            largest curvature, once w is a leading eigenvector of ``C F̂``; NaN if F̂ w was 0.
        """
        cap = torch.full((), math.nan, dtype=torch.float64)
        valid = torch.ones((), dtype=torch.bool)
        for _ in range(iterations):
            first, Fw = self.fisher.product(leading)
            CFw = self.precondition(Fw)
            both = torch.stack([first, self.communicator.dot(Fw, CFw)])
            first, second = self.communicator.average(both)
            valid = valid & (first > 0) & (second > 0) & both.isfinite().all()
            cap = torch.where(valid, second / first, cap)
            scale = second.clamp(min=torch.finfo(second.dtype).tiny).rsqrt()
            leading = [
                torch.where(valid, x * scale.to(x.dtype), w)
                for x, w in zip(CFw, leading, strict=True)
            ]
        return leading, cap

    def precondition(self, x: Sequence[Tensor]) -> list[Tensor]:
        """Return ``C x`` in the groups of the rule, and 0 in the others."""
        found, pieces = [], iter(x)
        for group in self.groups:
            own = [next(pieces) if p.requires_grad else torch.zeros_like(p) for p in group.params]
            if group.rule is self.rule:
                own = group.C.apply(own)
            else:
                own = [torch.zeros_like(x) for x in own]
            found += [y for p, y in zip(group.params, own, strict=True) if p.requires_grad]
        return found

    def _noise(self, trace: float | None, samples: float) -> float | None:
        """Return the loss that noise costs for each unit of γ, ``tr C F̂ / 4B`` at most.

        Near an optimum, a direction of curvature λ (in the metric of C) carries an excess loss of
        ``δt/4B · γλ/(γλ + δt)``, B being the samples in a batch. Their sum is at most
        ``γ tr C F / 4B``, and at most ``δt d / 4B``: negligible when δt is small.
        """
        if trace is None:
            return None
        dt = max(group.dt for group in self.groups)
        elements = sum(p.numel() for p in self.fisher.parameters)
        if dt * elements / (4 * samples) < self.rule.SHARE:
            return 0.0
        return trace / (4 * samples)
