"""Dual numbers: one pass in which the parameters carry their tangents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tangograd.engines.base import DualOutputs, Engine, Site, Tensors, make_parameters_dual
from tangograd.engines.intercept import uncompiled
from tangograd.engines.mode import GraphFreeTangents, recorded


class Dual(Engine):
    """One pass, exact: every parameter is a dual number ``θ + ε v`` until the dual level ends.

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
        mode = GraphFreeTangents if self.graph_free else recorded
        with site.dual_level():
            make_parameters_dual(parameters, tangents)
            with uncompiled(site.model), mode(site.layers, parameters):
                yield DualOutputs()
