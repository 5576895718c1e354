"""Two passes: one for the tangents, without a graph, then the ordinary one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

from tangograd.engines.base import (
    FirstPass,
    RepeatingEngine,
    Tensors,
    make_parameters_dual,
    outputs_received,
)
from tangograd.engines.intercept import ModuleCall, call_with_values, uncompiled
from tangograd.engines.mode import GraphFreeTangents
from tangograd.engines.rules import tangent_of
from tangograd.engines.trees import leaves_of
from tangograd.session import communicator


class TwoPass(RepeatingEngine):
    """A pass for the tangents, and the ordinary one under the same conditions, exact.

    It is for what an ordinary pass does that dual numbers cannot: fused or compiled kernels,
    checkpoints, and sharded parameters.

    Args:
        graph_free: compute tangents without a graph, as :class:`Dual` does.
    """

    name = "two-pass"

    def __init__(self, *, graph_free: bool = True) -> None:
        self.graph_free = graph_free

    def run_call(self, call: ModuleCall, parameters: Tensors, tangents: Tensors) -> FirstPass:
        """Make the call with dual parameters in the place of the model's."""

        def with_whole_parameters() -> Any:
            duals = [
                forward_ad.make_dual(p.detach() if self.graph_free else p, v)
                for p, v in zip(parameters, tangents, strict=True)
            ]
            return call_with_values(call, parameters, duals)

        with uncompiled(call.inner), self._mode():
            outputs = communicator().tangent_pass(call, parameters, tangents, with_whole_parameters)
        return FirstPass([tangent_of(x) for x in leaves_of(outputs)])

    def run_closure(
        self, closure: Callable[[], object], parameters: Tensors, tangents: Tensors
    ) -> FirstPass:
        """Run the closure with parameters that are dual, in place."""
        with forward_ad.dual_level():
            make_parameters_dual(parameters, tangents)
            with self._mode():
                return FirstPass([tangent_of(z) for z in outputs_received(closure)])

    @contextmanager
    def _mode(self) -> Iterator[None]:
        mode = GraphFreeTangents() if self.graph_free else nullcontext()
        with torch.set_grad_enabled(not self.graph_free), mode:
            yield
