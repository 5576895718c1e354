"""Two baselines as optimizers: exact natural gradient descent, and averaged SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from tangograd.likelihoods import Likelihood
from tangograd.reference.dense import natural_gradient


class NaturalGradient(Optimizer):
    """``θ_k = θ_{k-1} - δt (F + damping·I)⁻¹ g`` with the dense Fisher matrix of the batch.

    Args:
        params: θ.
        likelihood: the output family.
        lr: δt.
        damping: added to the diagonal of F.

    Example:
        >>> from tangograd import Bernoulli
        >>> logit = torch.zeros(1, requires_grad=True)
        >>> optimizer = NaturalGradient([logit], Bernoulli(), lr=1.0)
        >>> y = torch.tensor([[1.0], [1.0], [1.0], [0.0]])
        >>> for _ in range(5):
        ...     loss = optimizer.step(logit.expand(4, 1), y)
        >>> bool(abs(logit.sigmoid() - 0.75) < 1e-6)
        True
    """

    def __init__(
        self, params: ParamsT, likelihood: Likelihood, lr: float = 1.0, damping: float = 0.0
    ) -> None:
        if lr < 0 or damping < 0:
            raise ValueError(f"lr and damping cannot be negative; got {lr} and {damping}")
        super().__init__(params, {"lr": lr, "damping": damping})
        if len(self.param_groups) > 1:
            raise ValueError("NaturalGradient has one Fisher matrix, so one parameter group")
        self.likelihood = likelihood

    def step(  # type: ignore[override]
        self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Move along the natural gradient of this batch; returns the loss before the step."""
        (group,) = self.param_groups
        theta = [p for p in group["params"] if p.requires_grad]
        direction = natural_gradient(
            self.likelihood, outputs, targets, theta, weights=weights, damping=group["damping"]
        )
        with torch.no_grad():
            loss: Tensor = self.likelihood(outputs, targets, weights)
            torch._foreach_add_(theta, direction, alpha=-float(group["lr"]))
        return loss


class AveragedSGD(Optimizer):
    """A fast SGD of constant rate γ, and the moving average of its path.

    ``θfast_k = θfast_{k-1} - γ g(θfast_{k-1})`` and ``θ_k = (1-δt_k) θ_{k-1} + δt_k θfast_k``. The
    parameters hold the fast ones, where gradients are taken; evaluate with the averages inside
    :meth:`averaged`. On quadratic losses TANGO is this algorithm with additional noise.

    Args:
        params: parameters or groups.
        lr: δt, from 0 to 1: the weight of the newest point in the average.
        gamma: γ, the rate of the fast descent.

    Example:
        >>> theta = torch.tensor([1.0], requires_grad=True)
        >>> optimizer = AveragedSGD([theta], lr=0.5, gamma=0.1)
        >>> (theta**2).sum().backward()
        >>> optimizer.step()
        >>> with optimizer.averaged():
        ...     print(round(theta.item(), 6))
        0.9
        >>> round(theta.item(), 6)
        0.8
    """

    def __init__(self, params: ParamsT, lr: float = 0.01, gamma: float = 0.01) -> None:
        if not 0 <= lr <= 1:
            raise ValueError(f"lr is the weight of an average and lies between 0 and 1; got {lr}")
        if not gamma > 0:
            raise ValueError(f"gamma must be positive; got {gamma}")
        super().__init__(params, {"lr": lr, "gamma": gamma})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the fast descent and of the average."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                average = state.setdefault("average", p.detach().clone())
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["gamma"])
                average.lerp_(p, float(group["lr"]))
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averages θ in place of the fast parameters for the length of the block."""
        held = [(p, p.detach().clone()) for g in self.param_groups for p in g["params"]]
        with torch.no_grad():
            for p, _ in held:
                p.copy_(self.state[p].get("average", p))
        try:
            yield
        finally:
            with torch.no_grad():
                for p, fast in held:
                    p.copy_(fast)
