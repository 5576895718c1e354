"""Finite differences: ``(z(θ + εv) - z(θ))/ε``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tangograd.engines.base import (
    OutputsInTurn,
    RepeatingEngine,
    Site,
    Tensors,
    outputs_received,
)
from tangograd.engines.intercept import ModuleCall, call_with_values, uncompiled, unwrap
from tangograd.engines.mode import LayerCall, recorded
from tangograd.engines.trees import attach_tangents, detached_copy, leaves_of, primals
from tangograd.recording import ForwardContext
from tangograd.vectors import dot


class FiniteDifference(RepeatingEngine):
    """One more pass, at ``θ + εv``, with ``ε‖v‖`` about ``√eps ‖θ‖``: errors of about √eps.

    It needs no formulas, and is the only engine for kernels whose backward pass cannot be
    differentiated.
    """

    name = "finite-difference"
    exact = False

    def run(
        self,
        call: ModuleCall,
        parameters: Tensors,
        tangents: Tensors,
        layers: list[LayerCall] | None = None,
    ) -> Any:
        """Make the call at ``θ + εv`` without a graph, and the ordinary one."""
        _check_precision(parameters)
        context = ForwardContext(call.inner)
        epsilon = step_size(parameters, tangents)
        with context.restored(), torch.no_grad():
            values = [p + epsilon * v for p, v in zip(parameters, tangents, strict=True)]
            moved = leaves_of(call_with_values(detached_copy(call), parameters, values))
        with recorded(layers, parameters):
            outputs = call.forward(*primals(call.args), **primals(call.kwargs))

        def quotient(z: Any, z_moved: Any) -> Tensor | None:
            if not isinstance(z, Tensor) or not z.is_floating_point():
                return None
            change = torch.sub(z_moved, z.detach()) / epsilon
            return torch.where(z.isfinite(), change, 0.0)  # infinite logits stay where they are

        found = [quotient(*both) for both in zip(leaves_of(outputs), moved, strict=True)]
        return attach_tangents(outputs, found)

    def run_closure(self, site: Site, parameters: Tensors, tangents: Tensors) -> OutputsInTurn:
        """Run the closure at ``θ + εv``."""
        assert site.closure is not None
        _check_precision(parameters)
        epsilon = step_size(parameters, tangents)
        context = ForwardContext(None if site.model is None else unwrap(site.model))
        with context.restored(), uncompiled(site.model), _moved(parameters, tangents, epsilon):
            found = [z.detach().clone() for z in outputs_received(site.closure)]
        return OutputsInTurn(
            iter(found), lambda z, z_moved: (z_moved - z.detach()) / epsilon, exact=False
        )


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


def _check_precision(parameters: Tensors) -> None:
    """Refuse 16-bit arithmetic: a finite difference in bfloat16 is wrong by a fifth."""
    device = parameters[0].device.type if parameters else "cpu"
    low = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device).itemsize < 4
    if low or any(p.dtype.itemsize < 4 for p in parameters):
        raise RuntimeError(
            "the finite-difference engine has no digits left in 16-bit arithmetic (autocast or "
            'half-precision parameters): use float32, or engine="dual" or "two-pass"'
        )


@contextmanager
def _moved(parameters: Tensors, v: Tensors, epsilon: float) -> Iterator[None]:
    """Set the parameters to ``θ + εv`` in a block."""
    values = [p.detach().clone() for p in parameters]
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
        for p, v_p in zip(parameters, v, strict=True):
            p.add_(v_p, alpha=epsilon)
    try:
        yield
    finally:
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)
