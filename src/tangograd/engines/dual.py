"""Dual numbers: one pass in which the parameters carry their tangents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.autograd import forward_ad

from tangograd.engines.base import CallEngine, DualOutputs, Site, Tensors, make_parameters_dual
from tangograd.engines.intercept import ModuleCall, uncompiled
from tangograd.engines.mode import GraphFreeTangents, LayerCall, recorded


class Dual(CallEngine):
    """One pass, exact: every parameter is a dual number ``θ + ε v`` for the whole block.

    Args:
        graph_free: compute tangents without a graph (:class:`GraphFreeTangents`). PyTorch's own
            forward mode is for models that take derivatives inside.
    """

    name = "dual"
    single_pass = True
    runs_compiled = False

    def __init__(self, *, graph_free: bool = True) -> None:
        self.graph_free = graph_free

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[DualOutputs]:
        """Make the parameters dual in a block."""
        with forward_ad.dual_level():
            make_parameters_dual(parameters, tangents)
            with uncompiled(site.model), self._mode(site.layers, parameters):
                yield DualOutputs()

    def run(
        self,
        call: ModuleCall,
        parameters: Tensors,
        tangents: Tensors,
        layers: list[LayerCall] | None = None,
    ) -> Any:
        """Make the call with dual parameters, which they stay until the level ends."""
        make_parameters_dual(parameters, tangents)
        with uncompiled(call.model), self._mode(layers, parameters):
            return call.forward(*call.args, **call.kwargs)

    def _mode(
        self, layers: list[LayerCall] | None, parameters: Tensors
    ) -> AbstractContextManager[Any]:
        mode = GraphFreeTangents if self.graph_free else recorded
        return mode(layers, parameters)
