"""What engines have in common: sites, sources of tangents, and the engine interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tangograd.engines.intercept import ModuleCall, intercepted, uncompiled, unwrap
from tangograd.engines.mode import LayerCall, recorded
from tangograd.engines.rules import make_dual, unpack
from tangograd.engines.trees import attach_tangents, detached_copy, leaves_of, primals
from tangograd.recording import ForwardContext
from tangograd.session import TrialPass, activated, communicator

Tensors = Sequence[Tensor]


class CannotRunError(RuntimeError):
    """No engine that was allowed can run the model."""


class NoFormulaError(NotImplementedError):
    """The engine cannot differentiate an operation; another engine may."""


class Site(NamedTuple):
    """What is run in a pass.

    Attributes:
        model: the module that is called, if there is one; without it, raw parameters are used.
        closure: the whole body of the pass, if it is known.
        layers: a list for the calls of linear and convolution layers, if they are wanted.
        level_is_open: whether the engine is entered in a dual level and leaves it open.
    """

    model: nn.Module | None = None
    closure: Callable[[], object] | None = None
    layers: list[LayerCall] | None = None
    level_is_open: bool = False

    def dual_level(self) -> AbstractContextManager[Any]:
        """Open a dual level in a block, if there is none."""
        return nullcontext() if self.level_is_open else forward_ad.dual_level()

    def context(self) -> ForwardContext:
        """Return the random state, buffers and autocast that a pass finds now."""
        return ForwardContext(None if self.model is None else unwrap(self.model))


class TangentSource(Protocol):
    """Tells the tangents of outputs while a pass is open.

    Attributes:
        exact: whether the tangents are derivatives and not finite differences.
    """

    exact: bool

    def tangent(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs with their graph, and ``J v``; ``None`` where it is unknown."""


@dataclass
class DualOutputs:
    """Outputs are dual numbers and carry their tangents."""

    exact: bool = True

    def tangent(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the two parts of a dual number."""
        return unpack(outputs)


class Engine(ABC):
    """One way to compute the tangents of outputs.

    Attributes:
        name: the name by which users ask for it.
        exact: whether its tangents are derivatives and not finite differences.
        single_pass: whether it needs no further forward pass, so that raw parameters and parts of a
            model may be used.
        runs_compiled: whether compiled parts of a model run compiled.
    """

    name: str
    exact: ClassVar[bool] = True
    single_pass: ClassVar[bool] = False
    runs_compiled: ClassVar[bool] = True

    @abstractmethod
    def enter(
        self, site: Site, parameters: Tensors, tangents: Tensors
    ) -> AbstractContextManager[TangentSource]:
        """Compute tangents in a block; everything is restored at its end.

        Args:
            site: what is run in the block.
            parameters: leaf tensors.
            tangents: their tangents v.
        """


@dataclass
class FirstPass:
    """Tangents of outputs, computed by a pass before the ordinary one.

    Attributes:
        found: for each output, what ``convert`` makes a tangent of; ``None`` if there is none.
        convert: ``(z, found) -> t``; what was found is the tangent by default.
        exact: whether the tangents are derivatives.
    """

    found: list[Any]
    convert: Callable[[Tensor, Tensor], Tensor] = lambda _, found: found
    exact: bool = True

    def tangent(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the tangent of the next ones of the first pass."""
        found = self.found.pop(0) if self.found else outputs.new_empty(0)
        if found is None:
            return outputs, None
        if found.shape != outputs.shape:
            raise RuntimeError(
                "the loss evaluated other likelihoods when it was run again: the function given "
                "to `evaluate` must do the same each time"
            )
        return outputs, self.convert(outputs, found)

    def attach(self, outputs: Any) -> Any:
        """Return nested outputs as dual numbers, with the tangents of the same ones."""
        pairs = zip(leaves_of(outputs), self.found, strict=True)
        tangents = [None if found is None else self.convert(z, found) for z, found in pairs]
        return attach_tangents(outputs, tangents)


class RepeatingEngine(Engine):
    """An engine that runs calls of a model, or a whole closure, once more, before they are made."""

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[TangentSource]:
        """Run the closure once more now, or each call of the model when it is made."""

        def handle(call: ModuleCall) -> Any:
            context = ForwardContext(call.inner)
            with context.restored():
                first = self.run_call(detached_copy(call), parameters, tangents)
            with recorded(site.layers, parameters):
                args, kwargs = primals((call.args, call.kwargs))
                outputs = call.forward(*args, **kwargs)
            return communicator().returnable(first.attach(outputs))

        if site.closure is not None:
            with site.context().restored(), uncompiled(site.model):
                first = self.run_closure(site.closure, parameters, tangents)
            with recorded(site.layers, parameters):
                yield first
        elif site.model is not None:
            with site.dual_level(), intercepted(site.model, handle):
                yield DualOutputs(self.exact)
        else:
            raise ValueError(
                f"engine={self.name!r} runs the model again, so it needs one: use "
                "`tangents(model)`, or give the loss as a function to `evaluate`"
            )

    @abstractmethod
    def run_call(self, call: ModuleCall, parameters: Tensors, tangents: Tensors) -> FirstPass:
        """Make a call for the tangents of the leaves of its outputs, in an open dual level."""

    @abstractmethod
    def run_closure(
        self, closure: Callable[[], object], parameters: Tensors, tangents: Tensors
    ) -> FirstPass:
        """Run a closure for the tangents of the outputs that its likelihoods receive."""


def outputs_received(closure: Callable[[], object]) -> list[Tensor]:
    """Run a closure and return the outputs that its likelihoods receive, without communication."""
    trial = TrialPass(communicator())
    with activated(trial), trial.communicator.unwrapped():
        closure()
    return trial.outputs


def make_parameters_dual(parameters: Tensors, tangents: Tensors) -> None:
    """Set the tangent of each parameter, in place, until the dual level ends.

    Values and version counters stay as they are; closing the level removes every tangent.
    """
    torch.clear_autocast_cache()  # it may hold weights with the tangents of another pass
    write(parameters, (make_dual(p.detach(), v) for p, v in zip(parameters, tangents, strict=True)))


def write(parameters: Tensors, values: Iterable[Tensor]) -> None:
    """Set the parameters' values in place; their version counters stay as they are."""
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)
