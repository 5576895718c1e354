"""What the optimizer keeps of each parameter and group, and how a step sees a group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tangograd.curvature import Auto, GammaRule
from tangograd.preconditioners import Preconditioner
from tangograd.vectors import moved

State = MutableMapping[Tensor, dict[str, Any]]


class Group(NamedTuple):
    """A parameter group in one step.

    Attributes:
        params: θ.
        v: the velocity, zero for frozen parameters.
        bracket: ``r = g - (1-δt_{k-1}) F̂ v`` with the prior in it, zero for frozen parameters.
        C: the preconditioner.
        rule: the γ rule.
        keep: ``1-δt_{k-1}``.
        last_move: the length of the last step in θ, over v: ``δt_{k-1}`` (1 when accelerated).
        move: the length of this step in θ, over v: ``δt_k`` (1 when accelerated).
        dt: ``δt_k``.
        prior: λ of the Gaussian prior.
        velocity_norm: ``vᵀ C⁻¹ v``, or NaN if it has to be computed.
        steps: the number of steps taken.
    """

    params: list[Tensor]
    v: list[Tensor]
    bracket: list[Tensor]
    C: Preconditioner
    rule: GammaRule
    keep: float
    last_move: float
    move: float
    dt: float
    prior: float
    velocity_norm: float
    steps: int

    @property
    def trainable(self) -> list[int]:
        """The positions of parameters that are not frozen."""
        return [i for i, p in enumerate(self.params) if p.requires_grad]


def group_in_step(options: Mapping[str, Any], state: State) -> Group:
    """Return a parameter group as this step sees it.

    The bracket is what backward left in ``p.grad``, to which the prior adds
    ``λ (θ - (1-δt_{k-1}) v)``.
    """
    params = options["params"]
    v = velocities(params, state)
    keep, prior = 1 - options["previous_lr"], options["weight_decay"]
    bracket = [
        p.grad if p.requires_grad and p.grad is not None else torch.zeros_like(p) for p in params
    ]
    if prior:
        for i, p in enumerate(params):
            if p.requires_grad:
                bracket[i] = bracket[i] + prior * (p - keep * v[i])
    accelerated = options["accelerated"]
    return Group(
        params=params,
        v=v,
        bracket=bracket,
        C=options["preconditioner"],
        rule=options["gamma"],
        keep=keep,
        last_move=1.0 if accelerated else options["previous_lr"],
        move=1.0 if accelerated else learning_rate(options),
        dt=learning_rate(options),
        prior=prior,
        velocity_norm=options["velocity_norm"],
        steps=options["steps"],
    )


def learning_rate(options: Mapping[str, Any]) -> float:
    """Return δt of a group, without the rounding errors of schedulers."""
    return min(max(float(options["lr"]), 0.0), 1.0)


def auto_rules(rules: Iterable[GammaRule]) -> list[Auto]:
    """Return the distinct "auto" rules among these."""
    return list({id(rule): rule for rule in rules if isinstance(rule, Auto)}.values())


def velocities(parameters: Sequence[Tensor], state: State) -> list[Tensor]:
    """Return the velocity of each parameter; that of frozen parameters is 0."""
    found = []
    for p in parameters:
        if not p.requires_grad:
            found.append(torch.zeros_like(p))
            continue
        if "velocity" not in state[p]:
            state[p]["velocity"] = torch.zeros_like(p)
        found.append(state[p]["velocity"])
    return found


def move_with_model(groups: Sequence[MutableMapping[str, Any]], state: State) -> None:
    """Move velocities, and what γ and C have learned, to where the parameters are now."""
    for group in groups:
        group["preconditioner"].to_(group["params"])
        for p in group["params"]:
            for name in {"velocity", "leading"} & state.get(p, {}).keys():
                there = moved(state[p][name], p)
                if there is not state[p][name]:
                    state[p][name] = there
                    group["velocity_norm"] = math.nan
