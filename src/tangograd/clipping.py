"""A limit on the length of a step that leaves the velocity's equation as it is."""

from __future__ import annotations

import math

import torch
from torch.optim import Optimizer

from tangograd.vectors import dot


@torch.no_grad()
def clip_move_(optimizer: Optimizer, max_norm: float) -> float:
    """Shorten the step that TANGO has just taken to ``‖θ_k - θ_{k-1}‖ ≤ max_norm``.

    Call it after ``step``, where others call ``torch.nn.utils.clip_grad_norm_`` before it. It does
    what a smaller δt would have done in this step: θ goes back along v, and the next step knows
    that δt. So v still solves ``((1-δt) F + (δt/γ) C⁻¹) v = E g``, with less damping than before.

    Clipping ``p.grad`` instead multiplies the bracket by some ``c ≤ 1`` that depends on the batch.
    Then v settles where ``E c·bracket`` vanishes: nearer to a median of the batches' gradients
    than to their mean, and with damping ``δt/cγ``.

    Args:
        optimizer: a :class:`tangograd.TANGO`, or a framework's wrapper of one.
        max_norm: the limit, in the Euclidean norm over all parameters.

    Returns:
        The length of the step before.

    Example:
        >>> from tangograd import TANGO, Gaussian
        >>> theta = torch.zeros(1, requires_grad=True)
        >>> optimizer, likelihood = TANGO([theta], 0.5, 1.0, preconditioner=None), Gaussian()
        >>> loss = optimizer.evaluate(None, lambda: likelihood(theta[None], torch.tensor([[8.0]])))
        >>> loss.backward()
        >>> optimizer.step()
        >>> clip_move_(optimizer, max_norm=1.0)
        4.0
        >>> theta
        tensor([1.], requires_grad=True)
        >>> optimizer.state[theta]["velocity"], optimizer.diagnostics()["damping"]
        (tensor([-8.]), 0.125)
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is the length of a step and must be positive; got {max_norm}")
    groups = []
    for group in optimizer.param_groups:
        if group["accelerated"]:
            raise ValueError(
                "clip_move_ shortens δt, but an accelerated step moves by v whatever δt is: use "
                "it with accelerated=False"
            )
        params = [
            p for p in group["params"] if p.requires_grad and "velocity" in optimizer.state[p]
        ]
        groups.append((group, params, [optimizer.state[p]["velocity"] for p in params]))
    norm = math.sqrt(sum(group["previous_lr"] ** 2 * dot(v, v) for group, _, v in groups))
    if norm <= max_norm:
        return norm
    for group, params, velocities in groups:
        shorter = group["previous_lr"] * max_norm / norm
        for p, v in zip(params, velocities, strict=True):
            p.add_(v, alpha=group["previous_lr"] - shorter)
        group["previous_lr"] = shorter
    return norm
