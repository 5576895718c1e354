"""What TANGO refuses, with the rule that is broken and the way out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from tangograd.gamma import GammaRule
from tangograd.groups import Group
from tangograd.measurement import Measurement
from tangograd.preconditioners import Preconditioner
from tangograd.shards import all_finite, local, over_shards
from tangograd.vectors import dot


def check_state(groups: list[dict[str, Any]], state_dict: dict[str, Any]) -> None:
    """A saved state must come from the same kinds of rules and preconditioners, and fit."""
    for group, saved in zip(groups, state_dict.get("param_groups", []), strict=False):
        if "gamma" not in saved or "preconditioner" not in saved:
            raise ValueError("this is not the state_dict of a TANGO optimizer")
        for name in ("gamma", "preconditioner"):
            part, statistics = group[name], group[name].state_dict().keys()
            if statistics != saved[name].keys():
                raise ValueError(
                    f"the saved {name} has statistics {sorted(saved[name])}, but this optimizer's "
                    f"{type(part).__name__} has {sorted(statistics)}: construct it with the same "
                    f"kind of {name} before loading"
                )
        trial = deepcopy(group["preconditioner"])
        trial.load_state_dict(saved["preconditioner"])
        trial.check(group["params"])


def rate(group: dict[str, Any]) -> float:
    """δt, with the rounding errors of schedulers taken off."""
    return min(max(float(group["lr"]), 0.0), 1.0)


def check_options(group: dict[str, Any]) -> None:
    """The rules for a group's numbers."""
    if not -1e-6 <= float(group["lr"]) <= 1 + 1e-6:
        raise ValueError(
            f"lr is δt, a fraction of the velocity, and must lie between 0 and 1; got {group['lr']}"
        )
    if not 0 <= group["weight_decay"] < math.inf:
        raise ValueError(
            f"weight_decay is the precision of a prior and cannot be negative; "
            f"got {group['weight_decay']}"
        )


def check_parameters(parameters: list[Tensor]) -> None:
    """TANGO works on real numbers."""
    for p in parameters:
        if not p.is_floating_point():
            raise TypeError(
                f"TANGO needs real floating-point parameters; got {p.dtype}. Store a complex "
                "parameter as its real view (torch.view_as_real)."
            )


def check_factors(blocks: list[Measurement]) -> None:
    """A likelihood's Fisher matrix enters with its factor in the loss."""
    factors = [share.factor for block in blocks for share in block.shares]
    if min(factors) < 0:
        raise ValueError(
            f"a likelihood entered the loss with the factor {min(factors)}: a log-loss is "
            "minimised, so factors must be positive"
        )


def check_sharded(rules: list[GammaRule], Cs: list[Preconditioner]) -> None:
    """Parameters spread over processes have no gradients of single samples, nor whole matrices."""
    for rule in rules:
        if rule.needs_pseudo_gradients:
            raise NotImplementedError(
                f"{type(rule).__name__} measures gradients of single samples, which there are none "
                'of for parameters sharded by fully_shard: use gamma="auto" or a number'
            )
    for C in Cs:
        if not C.elementwise:
            raise NotImplementedError(
                f"{type(C).__name__} multiplies whole tensors, and parameters sharded by "
                'fully_shard are there in parts: use preconditioner="auto", "rmsprop" or None'
            )


#: A factor of the loss from here on may be the scale of a GradScaler.
SCALE = 1024.0


def check_scale(blocks: list[Measurement], groups: list[Group]) -> None:
    """A GradScaler that the optimizer was not told of is found out in the second step.

    ``⟨bracket, ṽ⟩`` is known twice: from the outputs with the factors of backward, and from the
    gradients. When these are smaller by just that factor, it has been taken out of them.
    """
    factor = sum(block.factor for block in blocks)
    if factor < SCALE:
        return
    expected = sum(block.slope - block.curvature for block in blocks)
    found = sum(
        group.keep * dot([p.grad], [v])
        for group in groups
        for p, v in zip(group.params, group.v, strict=True)
        if p.requires_grad and p.grad is not None
    )
    if expected and abs(factor * found / expected - 1) < 0.01:
        raise RuntimeError(
            f"the loss was multiplied by {factor:g} for backward, and the gradients were divided "
            "by it again, as a GradScaler does; γ and the preconditioner must know of it: set "
            "optimizer.scaler = scaler after constructing both."
        )


def check_gradients(named: list[tuple[str, Tensor]]) -> None:
    """Gradients must be there, dense and finite."""
    if not named:
        raise RuntimeError("no parameter has a gradient: call loss.backward() before step()")
    for name, grad in named:
        if grad.is_sparse:
            raise RuntimeError(
                f"the gradient of parameter {name!r} is sparse, but TANGO's velocity is dense: "
                "use sparse=False in the embedding"
            )
    # One number shows whether anything is wrong; only then is it worth looking where.
    grads = [grad for _, grad in named]
    if math.isfinite(over_shards([float(local(grad).sum()) for grad in grads], grads)):
        return
    for name, grad in named:
        if not all_finite([grad]):
            raise FloatingPointError(
                f"the gradient of parameter {name!r} is not finite. The step is not taken and the "
                "state is untouched; check the batch, or lower gamma or lr."
            )


Version = tuple[int, torch.dtype, torch.device]


def version(p: Tensor) -> Version:
    """Another one after each change of a parameter."""
    return p._version, p.dtype, p.device


def check_unchanged(versions: Mapping[Tensor, Version], names: Mapping[int, str]) -> None:
    """The step is for the parameters of the forward pass: they must not have changed since."""
    for p, before in versions.items():
        if version(p) != before:
            name = names.get(id(p), f"of shape {tuple(p.shape)}")
            raise RuntimeError(
                f"the parameter {name!r} was changed between the `tangents` block and the step, so "
                "the bracket in p.grad is that of other values. Change parameters after the step "
                "(projections, clipping, loading, moving), and run the block again; nothing was "
                "changed."
            )
