"""The decisions of one step: γ rules, limits, the guard and, now and then, a refresh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tangograd.curvature.observation import Observation
from tangograd.curvature.planning import Plan, guard, plan, update_rules
from tangograd.curvature.refresh import AT_ONCE, refresh
from tangograd.curvature.signals import Signals, read_sample_norms
from tangograd.parallel import Communicator
from tangograd.session import CannotReplayError
from tangograd.state import Group, State, auto_rules


class Decision(NamedTuple):
    """The updates of one step.

    Attributes:
        plans: the update of each group.
        C_brackets: ``C r`` of each group.
        refreshed: whether C or γ were refreshed.
        failure: why a batch could not be run again, if one could not.
    """

    plans: list[Plan]
    C_brackets: list[list[Tensor]]
    refreshed: bool
    failure: CannotReplayError | None


def decide(
    blocks: Sequence[Observation],
    groups: Sequence[Group],
    C_brackets: list[list[Tensor]],
    signals: Signals,
    state: State,
    communicator: Communicator,
) -> Decision:
    """Return the update of each group, after a refresh where one is due.

    What a batch teaches acts from the next step on, so that γ and C do not depend on the batch
    that they are used for; except in the first steps, where little is known yet, and after the
    guard.

    Args:
        blocks: the blocks of the step.
        groups: the parameter groups.
        C_brackets: ``C r`` of each group, before a refresh.
        signals: the numbers of the step.
        state: the optimizer's state.
        communicator: the processes that train together.
    """
    rules = [group.rule for group in groups]
    if any(rule.needs_pseudo_gradients for rule in rules):
        update_rules(read_sample_norms(blocks, groups, communicator), rules)
    at_once = any(rule.due for rule in auto_rules(rules)) or min(g.steps for g in groups) < AT_ONCE
    stopped = guard(signals, groups)
    plans = plan(signals, groups, signals.descents, stopped)
    if not any(block.pulled or block.recording for block in blocks):
        return Decision(plans, C_brackets, refreshed=False, failure=None)
    failure = refresh(
        blocks,
        groups,
        state,
        signals,
        step=groups[0].steps,
        stopped=stopped,
        communicator=communicator,
    )
    if at_once:
        C_brackets = [group.C.apply(group.bracket) for group in groups]
        pairs = zip(groups, C_brackets, strict=True)
        descents = communicator.read(
            {str(k): communicator.dot(g.bracket, Cr) for k, (g, Cr) in enumerate(pairs)}
        )
        plans = plan(signals, groups, list(descents.values()), stopped)
    return Decision(plans, C_brackets, refreshed=True, failure=failure)
