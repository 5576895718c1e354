"""Double backward: ``J v = ∂/∂u ⟨Jᵀu, v⟩``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tangograd.engines.base import CallEngine, Site, Tensors
from tangograd.engines.intercept import ModuleCall
from tangograd.engines.mode import LayerCall, recorded
from tangograd.engines.rules import unpack
from tangograd.engines.trees import attach_tangents, leaves_of, primals


@dataclass
class FromGraph:
    """Outputs get their tangents from their graph, unless they carry one.

    Attributes:
        parameters: leaf tensors.
        tangents: their tangents v.
        exact: whether the tangents that outputs carry are derivatives.
    """

    parameters: Tensors
    tangents: Tensors
    exact: bool = True

    def tangent(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Differentiate the graph of the outputs twice."""
        z, t = unpack(outputs)
        if t is None and z.requires_grad:
            (t,) = tangents_of([z], self.parameters, self.tangents)
        return z, t


class DoubleBackward(CallEngine):
    """The ordinary pass and two backward passes, exact; it needs no forward formulas."""

    name = "double-backward"
    single_pass = True

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[FromGraph]:
        """Run everything as it is; the graph is differentiated when a likelihood has it."""
        with recorded(site.layers, parameters):
            yield FromGraph(parameters, tangents)

    def run(
        self,
        call: ModuleCall,
        parameters: Tensors,
        tangents: Tensors,
        layers: list[LayerCall] | None = None,
    ) -> Any:
        """Make the ordinary call, and find the tangents from its graph."""
        with_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            with recorded(layers, parameters):
                outputs = call.forward(*primals(call.args), **primals(call.kwargs))
            found = tangents_of(leaves_of(outputs), parameters, tangents)
        if not with_graph:
            outputs = pytree.tree_map_only(Tensor, Tensor.detach, outputs)
        return attach_tangents(outputs, found)


def tangents_of(
    leaves: Sequence[Any], parameters: Tensors, tangents: Tensors
) -> list[Tensor | None]:
    """Return ``J v`` of the leaves that have a graph, and ``None`` for the others.

    Example:
        >>> theta = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> tangents_of([theta.square()], [theta], [torch.tensor([1.0, 0.5])])
        [tensor([2., 2.])]
    """
    positions = [i for i, z in enumerate(leaves) if isinstance(z, Tensor) and z.requires_grad]
    found: list[Tensor | None] = [None] * len(leaves)
    with torch.enable_grad():
        z = [leaves[i] for i in positions]
        u = [torch.zeros_like(x, requires_grad=True) for x in z]
        pulled_back = torch.autograd.grad(
            z, list(parameters), u, create_graph=True, allow_unused=True, materialize_grads=True
        )
        used = [(g, v) for g, v in zip(pulled_back, tangents, strict=True) if g.requires_grad]
    if used:
        g, v = zip(*used, strict=True)
        derivatives = torch.autograd.grad(
            g, u, [x.to(y.dtype) for x, y in zip(v, g, strict=True)], allow_unused=True
        )
        for i, t, x in zip(positions, derivatives, z, strict=True):
            found[i] = torch.zeros_like(x) if t is None else t
    return found
