"""What the optimizer keeps of each parameter: its velocity, and γ "auto"'s leading direction."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tangograd.vectors import moved

State = MutableMapping[Tensor, dict[str, Any]]


def velocities(parameters: Sequence[Tensor], state: State) -> list[Tensor]:
    """The velocity of each parameter; frozen ones are constants, with velocity 0."""
    found = []
    for p in parameters:
        if not p.requires_grad:
            found.append(torch.zeros_like(p))
            continue
        if "velocity" not in state[p]:
            state[p]["velocity"] = torch.zeros_like(p)
        found.append(state[p]["velocity"])
    return found


def follow_model(groups: Sequence[Mapping[str, Any]], state: State) -> None:
    """Velocities, and what γ and C have learned, go where the model was moved."""
    for group in groups:
        group["preconditioner"].follow(group["params"])
        for p in group["params"]:
            for name in {"velocity", "leading"} & state.get(p, {}).keys():
                state[p][name] = moved(state[p][name], p)
