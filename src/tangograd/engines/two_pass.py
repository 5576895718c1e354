"""Two passes: one for the tangents, without a graph, then the ordinary one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad

from tangograd.engines.base import (
    OutputsInTurn,
    RepeatingEngine,
    Site,
    Tensors,
    make_parameters_dual,
    outputs_received,
)
from tangograd.engines.intercept import ModuleCall, call_with_values, uncompiled, unwrap
from tangograd.engines.mode import GraphFreeTangents, LayerCall, recorded
from tangograd.engines.rules import tangent_of
from tangograd.engines.trees import attach_tangents, detached_copy, leaves_of, primals
from tangograd.recording import ForwardContext
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

    def run(
        self,
        call: ModuleCall,
        parameters: Tensors,
        tangents: Tensors,
        layers: list[LayerCall] | None = None,
    ) -> Any:
        """Compute first the tangents, then the outputs."""
        context = ForwardContext(call.inner)
        with context.restored(), uncompiled(call.inner), self._grad_mode(), self._mode():
            duals = self._tangent_pass(detached_copy(call), parameters, tangents)
        found = [tangent_of(x) for x in leaves_of(duals)]
        with recorded(layers, parameters):
            outputs = call.forward(*primals(call.args), **primals(call.kwargs))
        return communicator().returnable(attach_tangents(outputs, found))

    def run_closure(self, site: Site, parameters: Tensors, tangents: Tensors) -> OutputsInTurn:
        """Run the closure with dual parameters."""
        assert site.closure is not None
        context = ForwardContext(None if site.model is None else unwrap(site.model))
        with (
            context.restored(),
            uncompiled(site.model),
            forward_ad.dual_level(),
            self._grad_mode(),
            self._mode(),
        ):
            make_parameters_dual(parameters, tangents)
            found = [tangent_of(z) for z in outputs_received(site.closure)]
        return OutputsInTurn(iter(found), lambda _, t: t, exact=True)

    def _tangent_pass(self, call: ModuleCall, parameters: Tensors, tangents: Tensors) -> Any:
        def with_whole_parameters() -> Any:
            duals = [
                forward_ad.make_dual(p.detach() if self.graph_free else p, v)
                for p, v in zip(parameters, tangents, strict=True)
            ]
            return call_with_values(call, parameters, duals)

        return communicator().tangent_pass(call, parameters, tangents, with_whole_parameters)

    def _grad_mode(self) -> AbstractContextManager[Any]:
        return torch.set_grad_enabled(not self.graph_free)

    def _mode(self) -> AbstractContextManager[Any]:
        return GraphFreeTangents() if self.graph_free else nullcontext()
