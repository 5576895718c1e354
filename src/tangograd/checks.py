"""Checks of options, parameters and gradients; errors name the rule that is broken."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tangograd.curvature import GammaRule
from tangograd.curvature.observation import Observation
from tangograd.curvature.signals import Signals
from tangograd.parallel import Communicator
from tangograd.parallel.shards import all_finite
from tangograd.preconditioners import Preconditioner

#: Options of other optimizers, and what stands in their place here.
ELSEWHERE = {
    "momentum": "the velocity plays the part of momentum, with 1 - lr as its decay",
    "nesterov": "use accelerated=True",
    "betas": "the velocity decays by 1 - lr, and the preconditioner has averages of its own",
    "eps": "the preconditioner is damped by itself",
    "alpha": "the preconditioner is damped by itself",
    "maximize": "the log-loss is minimized by definition",
    "amsgrad": "leave it out",
    "foreach": "there is one code path for the update",
    "fused": "there is one code path for the update",
    "capturable": "the step reads numbers on the host",
    "differentiable": "the step reads numbers on the host",
    "damping": "the damping is lr/gamma",
}


def check_unknown(options: Mapping[str, Any]) -> None:
    """Raise an error for options that TANGO does not have, with what to use instead."""
    if options:
        name = next(iter(options))
        advice = ELSEWHERE.get(name, "see help(tangograd.TANGO)")
        raise TypeError(f"TANGO has no option {name!r}: {advice}")


class Defaults(dict[str, Any]):
    """The default options, which explain themselves to schedulers that look for momentum."""

    def __contains__(self, key: object) -> bool:
        caller = sys._getframe(1).f_globals.get("__name__")
        if key == "momentum" and caller == "torch.optim.lr_scheduler":
            raise ValueError(
                "TANGO has no momentum option that a cyclic scheduler could change: pass "
                "cycle_momentum=False to OneCycleLR or CyclicLR (with max_lr up to 1; lr is δt)"
            )
        return super().__contains__(key)


_mentioned: set[str] = set()


def mention_once(key: str, message: str, *, stacklevel: int) -> None:
    """Warn of something once in a process."""
    if key not in _mentioned:
        _mentioned.add(key)
        warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)


def check_habits(lr: float) -> None:
    """Mention, once in a process, that a learning rate of other optimizers was given."""
    if 0 < lr <= 1e-3:
        mention_once(
            "lr",
            f"lr={lr:g} is a usual learning rate of other optimizers. TANGO's lr is δt, the "
            "fraction of the velocity by which parameters move in a step: the default is 0.1, and "
            "the step size γ is found automatically. Training with a small lr is slow but valid.",
            stacklevel=3,
        )


def check_options(group: Mapping[str, Any]) -> None:
    """Check the numbers of a parameter group."""
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
    """Check that parameters are real numbers."""
    for p in parameters:
        if not p.is_floating_point():
            raise TypeError(
                f"TANGO needs real floating-point parameters; got {p.dtype}. Store a complex "
                "parameter as its real view (torch.view_as_real)."
            )


def check_materialized(parameters: Iterable[Tensor]) -> None:
    """Check that no parameter is on the meta device."""
    if any(p.is_meta for p in parameters):
        raise RuntimeError(
            "a parameter is on the meta device and has no values: allocate the model first "
            '(model.to_empty(device="cpu"), then initialize or load its weights)'
        )


def check_model(model: nn.Module, parameters: Iterable[Tensor]) -> dict[int, str]:
    """Check that the optimizer has all trainable parameters of a model that it can train.

    Returns:
        The names of the parameters, by identity.
    """
    names, ours = {}, {id(p) for p in parameters}
    for name, p in model.named_parameters():
        if p.requires_grad and id(p) not in ours:
            raise ValueError(
                f"the model's parameter {name!r} is trainable but not in the optimizer, so its "
                "part of F̂v would be missing: add it (add_param_group), or freeze it with "
                "requires_grad_(False)."
            )
        names[id(p)] = name
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True and isinstance(
            module, nn.Embedding | nn.EmbeddingBag
        ):
            raise ValueError(
                f"the embedding {name!r} has sparse gradients, but TANGO's velocity is dense: "
                "use sparse=False"
            )
    return names


def check_factor(smallest: float) -> None:
    """Check that likelihoods enter the loss with positive factors, as their Fisher matrices do."""
    if smallest < 0:
        raise ValueError(
            f"a likelihood entered the loss with the factor {smallest}: a log-loss is "
            "minimised, so factors must be positive"
        )


def check_supported(
    communicator: Communicator, rules: Iterable[GammaRule], Cs: Iterable[Preconditioner]
) -> None:
    """Check that γ and C can act on the parameters as they are divided among processes."""
    for rule in rules:
        if rule.needs_pseudo_gradients:
            communicator.require_whole_parameters(
                f"{type(rule).__name__} (gradients of single samples)",
                'use gamma="auto" or a number',
            )
    for C in Cs:
        if not C.elementwise:
            communicator.require_whole_parameters(
                f"{type(C).__name__} (products with whole tensors)",
                'use preconditioner="auto", "rmsprop" or None',
            )


#: A factor of the loss from here on may be the scale of a GradScaler.
SCALE = 1024.0


def check_signals(
    signals: Signals,
    blocks: Sequence[Observation],
    named_gradients: Sequence[tuple[str, Tensor]],
    *,
    given: bool,
) -> None:
    """Raise an error if the numbers of a step are not valid; nothing has been changed yet.

    Args:
        signals: the numbers of the step.
        blocks: its blocks.
        named_gradients: the gradients, with the names of their parameters.
        given: whether γ was chosen by the user.
    """
    if signals.invalid:
        elsewhere = FloatingPointError("the batch of another process is invalid: see its error")
        raise next((block.error() for block in blocks if bool(block.invalid)), elsewhere)
    check_factor(signals.factor_min)
    if not signals.finite:
        advice = "check the batch and lr" + (", or lower gamma" if given else "")
        check_finite(named_gradients, advice)


def check_scale(signals: Signals) -> None:
    """Detect, in the second step, a GradScaler that the optimizer was not told of.

    The bracket along the velocity is known from the outputs, with the factors of backward, and from
    the gradients. If the latter is smaller by just the factor of the loss, a scaler has taken this
    out of the gradients.
    """
    factor, expected = signals.factor, signals.bracket_of_outputs
    found = signals.bracket_of_gradients
    if factor >= SCALE and expected and abs(factor * found / expected - 1) < 0.01:
        raise RuntimeError(
            f"the loss was multiplied by {factor:g} for backward, and the gradients were divided "
            "by it again, as a GradScaler does; γ and the preconditioner must know of it: set "
            "optimizer.scaler = scaler after constructing both."
        )


def check_gradients(named: Sequence[tuple[str, Tensor]]) -> None:
    """Check that there are gradients, and that they are dense."""
    if not named:
        raise RuntimeError("no parameter has a gradient: call loss.backward() before step()")
    for name, grad in named:
        if grad.is_sparse:
            raise RuntimeError(
                f"the gradient of parameter {name!r} is sparse, but TANGO's velocity is dense: "
                "use sparse=False in the embedding"
            )


def check_finite(named: Sequence[tuple[str, Tensor]], advice: str) -> None:
    """Raise an error that names the first gradient that is not finite.

    It reads a number for each gradient: for steps that are known to have something wrong.
    """
    for name, grad in named:
        if not all_finite(grad):
            raise FloatingPointError(
                f"the gradient of parameter {name!r} is not finite. The step is not taken and the "
                f"state is untouched; {advice}."
            )


Version = tuple[int, torch.dtype, torch.device]


def version(p: Tensor) -> Version:
    """Return what differs after each change of a parameter."""
    return p._version, p.dtype, p.device


def check_unchanged(versions: Mapping[Tensor, Version], names: Mapping[int, str]) -> None:
    """Check that parameters have not changed since the forward pass that the step is for."""
    for p, before in versions.items():
        if version(p) != before:
            name = names.get(id(p), f"of shape {tuple(p.shape)}")
            raise RuntimeError(
                f"the parameter {name!r} was changed between the `tangents` block and the step, so "
                "the bracket in p.grad is that of other values. Change parameters after the step "
                "(projections, clipping, loading, moving), and run the block again; nothing was "
                "changed."
            )
