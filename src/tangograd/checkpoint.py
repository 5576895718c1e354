"""Saved states of the optimizer: plain values, and rules and preconditioners built from them.

A state is checked and built completely before anything of the live optimizer is replaced, so that a
damaged one changes nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tangograd.checks import check_options
from tangograd.curvature import Auto, GammaRule
from tangograd.parallel.shards import sums
from tangograd.preconditioners import Preconditioner

#: The numbers of a saved group.
_NUMBERS = ("lr", "weight_decay", "previous_lr", "steps", "velocity_norm")


def to_plain_values(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the state dict with γ and C of each group as numbers and tensors.

    It is a hook of :meth:`torch.optim.Optimizer.state_dict`.

    Parameters of a group with "auto" γ always have the entry ``leading``, so that a distributed
    checkpoint has the same keys at all times.
    """
    del optimizer
    state = dict(state_dict["state"])
    groups = []
    for group in state_dict["param_groups"]:
        plain = {
            "gamma": group["gamma"].state_dict(),
            "preconditioner": group["preconditioner"].state_dict(),
        }
        groups.append(group | plain)
        if isinstance(group["gamma"], Auto):
            for key in group["params"]:
                if key in state and "leading" not in state[key]:
                    zeros = torch.zeros_like(state[key]["velocity"])
                    state[key] = state[key] | {"leading": zeros}
    return state_dict | {"state": state, "param_groups": groups}


def check_structure(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Check a state dict before PyTorch takes it apart.

    Raises:
        ValueError: it is not the state of a TANGO optimizer with such parameter groups.
    """
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        raise ValueError("this is not the state_dict of an optimizer")
    state, groups = state_dict["state"], state_dict["param_groups"]
    if not isinstance(state, Mapping) or not isinstance(groups, list | tuple):
        raise ValueError("the saved state is damaged: it has no list of parameter groups")
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"the saved state has {len(groups)} parameter groups, but this optimizer has "
            f"{len(optimizer.param_groups)}"
        )
    seen: list[Any] = []
    for number, (saved, group) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        if not isinstance(saved, Mapping) or not {"gamma", "preconditioner"} <= set(saved):
            raise ValueError("this is not the state_dict of a TANGO optimizer")
        keys = saved.get("params")
        if not isinstance(keys, list | tuple) or len(keys) != len(group["params"]):
            raise ValueError(
                f"the saved parameter group {number} does not have {len(group['params'])} "
                "parameters as this optimizer's has"
            )
        for name in _NUMBERS:
            value = saved.get(name)
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if not isinstance(value, int | float):
                raise ValueError(f"the saved parameter group {number} has no number {name!r}")
            if math.isnan(value) and name != "velocity_norm":
                raise ValueError(f"the saved parameter group {number} has NaN for {name!r}")
        check_options(saved)
        if not isinstance(saved.get("accelerated"), bool):
            raise ValueError(f"the saved parameter group {number} has no flag 'accelerated'")
        for key, p in zip(keys, group["params"], strict=True):
            _check_parameter(key, state, p)
        seen += keys
    if len({repr(key) for key in seen}) != len(seen):
        raise ValueError("the saved state has the same parameter in two places")


def _check_parameter(key: object, state: Mapping[Any, Any], p: Tensor) -> None:
    if not isinstance(key, int | str):
        raise ValueError(f"the saved state names a parameter {key!r}, which is not a key")
    saved = state.get(key)
    if saved is None:
        if p.requires_grad:
            raise ValueError(f"the saved state has no velocity of parameter {key!r}")
        return
    if not isinstance(saved, Mapping) or ("velocity" not in saved and p.requires_grad):
        raise ValueError(f"the saved state has no velocity of parameter {key!r}")
    for name in (name for name in ("velocity", "leading") if name in saved):
        tensor = saved[name]
        if not isinstance(tensor, Tensor) or tensor.shape != p.shape:
            shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(
                f"the saved {name} of parameter {key!r} is {shape}, and the parameter has the "
                f"shape {tuple(p.shape)}"
            )


def to_objects(live: Sequence[Mapping[str, Any]], state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with new rules and preconditioners built from plain values.

    Args:
        live: the optimizer's present parameter groups, which say of what kinds they are.
        state: ``state`` and ``param_groups``, as PyTorch hands them to ``__setstate__``; in a copy
            or a pickle the groups have objects, which are kept.

    Raises:
        ValueError: a saved state is not that of the kind that this optimizer has.
    """
    groups = state.get("param_groups", [])
    if not any(isinstance(group["gamma"], Mapping) for group in groups):
        return state
    built: dict[int, GammaRule] = {}
    loaded = []
    for group, kind in zip(groups, live, strict=True):
        rule, C = kind["gamma"], kind["preconditioner"]
        assert isinstance(rule, GammaRule)
        assert isinstance(C, Preconditioner)
        if id(rule) not in built:
            built[id(rule)] = rule.from_state(group["gamma"])
        objects = {
            "gamma": built[id(rule)],
            "preconditioner": C.from_state(group["preconditioner"], group["params"]),
        }
        loaded.append(group | objects)
    kept = dict(state["state"])
    for key, own in kept.items():
        if not isinstance(own, Mapping) or "leading" not in own:
            continue
        (size,) = sums([own["leading"].abs()])  # of all shards: processes must find the same
        if not size:
            kept[key] = {name: value for name, value in own.items() if name != "leading"}
    return state | {"param_groups": loaded, "state": defaultdict(dict, kept)}
