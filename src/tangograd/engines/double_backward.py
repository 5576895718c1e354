"""Double backward: ``J v = ∂/∂u ⟨Jᵀu, v⟩``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tangograd.engines.base import Engine, Site, Tensors
from tangograd.engines.mode import recorded
from tangograd.engines.rules import unpack


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
        """Compute the derivative of the outputs' vector-Jacobian product in its vector."""
        z, t = unpack(outputs)
        if t is None and z.requires_grad:
            t = tangent_from_graph(z, self.parameters, self.tangents)
        return z, t


class DoubleBackward(Engine):
    """The ordinary pass and two backward passes, exact; it needs no forward formulas."""

    name = "double-backward"
    single_pass = True

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[FromGraph]:
        """Run everything as it is; the graph is differentiated when a likelihood has it."""
        with recorded(site.layers, parameters):
            yield FromGraph(parameters, tangents)


def tangent_from_graph(z: Tensor, parameters: Tensors, tangents: Tensors) -> Tensor | None:
    """Return ``J v`` of outputs that have a graph; ``None`` if no parameter is in it.

    Example:
        >>> theta = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> tangent_from_graph(theta.square(), [theta], [torch.tensor([1.0, 0.5])])
        tensor([2., 2.])
    """
    with torch.enable_grad():
        u = torch.zeros_like(z, requires_grad=True)
        pulled_back = torch.autograd.grad(
            z, list(parameters), u, create_graph=True, allow_unused=True, materialize_grads=True
        )
    used = [
        (g, v.to(g.dtype)) for g, v in zip(pulled_back, tangents, strict=True) if g.requires_grad
    ]
    if not used:
        return None
    g, v = zip(*used, strict=True)
    (t,) = torch.autograd.grad(g, u, v, allow_unused=True)
    return torch.zeros_like(z) if t is None else t
