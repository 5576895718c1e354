"""Finite differences: ``(z(θ + εv) - z(θ))/ε``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tangograd.engines.base import FirstPass, RepeatingEngine, Tensors, outputs_received, write
from tangograd.engines.intercept import ModuleCall
from tangograd.engines.trees import leaves_of
from tangograd.vectors import dot


class FiniteDifference(RepeatingEngine):
    """One more pass, at ``θ + εv``, with ``ε‖v‖`` about ``√eps ‖θ‖``: errors of about √eps.

    It needs no formulas, and is the only engine for kernels whose backward pass cannot be
    differentiated.
    """

    name = "finite-difference"
    exact = False

    def run_call(self, call: ModuleCall, parameters: Tensors, tangents: Tensors) -> FirstPass:
        """Make the call at ``θ + εv``, without a graph."""
        with torch.no_grad(), _moved(parameters, tangents) as quotient:
            leaves = leaves_of(call.run(*call.args, **call.kwargs))
            moved = [
                z.clone() if isinstance(z, Tensor) and z.is_floating_point() else None
                for z in leaves
            ]
        return FirstPass(moved, quotient, exact=False)

    def run_closure(
        self, closure: Callable[[], object], parameters: Tensors, tangents: Tensors
    ) -> FirstPass:
        """Run the closure at ``θ + εv``."""
        with _moved(parameters, tangents) as quotient:
            moved = [z.detach().clone() for z in outputs_received(closure)]
        return FirstPass(moved, quotient, exact=False)


def step_size(parameters: Tensors, tangents: Tensors) -> float:
    """Return ε of the finite difference.

    Example:
        >>> theta, v = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
        >>> round(step_size([theta], [v]) / torch.finfo(torch.float32).eps ** 0.5, 3)
        2.5
    """
    values = [p.detach() for p in parameters]
    size, speed = math.sqrt(dot(values, values)), math.sqrt(dot(tangents, tangents))
    precision = max((torch.finfo(p.dtype).eps for p in parameters), default=1.0)
    return math.sqrt(precision) * (size or 1.0) / (speed or 1.0)


@contextmanager
def _moved(parameters: Tensors, v: Tensors) -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
    """Set the parameters to ``θ + εv`` in a block, and return the quotient for outputs."""
    _check_precision(parameters)
    epsilon = step_size(parameters, v)
    values = [p.detach().clone() for p in parameters]
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
        torch._foreach_add_(list(parameters), list(v), alpha=epsilon)
    try:
        # infinite logits stay where they are
        yield lambda z, z_moved: torch.where(z.isfinite(), (z_moved - z.detach()) / epsilon, 0.0)
    finally:
        write(parameters, values)


def _check_precision(parameters: Tensors) -> None:
    """Check that nothing is in 16 bits: a finite difference in bfloat16 is wrong by a fifth."""
    device = parameters[0].device.type if parameters else "cpu"
    low = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device).itemsize < 4
    if low or any(p.dtype.itemsize < 4 for p in parameters):
        raise RuntimeError(
            "the finite-difference engine has no digits left in 16-bit arithmetic (autocast or "
            'half-precision parameters): use float32, or engine="dual" or "two-pass"'
        )
