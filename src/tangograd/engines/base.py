"""What engines have in common: sites, sources of tangents, and the engine interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tangograd.engines.intercept import ModuleCall, intercepted
from tangograd.engines.mode import LayerCall, recorded
from tangograd.engines.rules import make_dual, unpack
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
    """

    model: nn.Module | None = None
    closure: Callable[[], object] | None = None
    layers: list[LayerCall] | None = None


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
        """Take a dual number apart."""
        return unpack(outputs)


@dataclass
class OutputsInTurn:
    """Outputs get what an earlier pass found, in the order in which likelihoods are evaluated.

    Attributes:
        found: for each output, what ``convert`` makes a tangent of.
        convert: ``(z, found) -> t``.
        exact: whether the tangents are derivatives.
    """

    found: Iterator[Tensor | None]
    convert: Callable[[Tensor, Tensor], Tensor]
    exact: bool

    def tangent(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the tangent made of what was found for them."""
        found = next(self.found, outputs.new_empty(0))
        if found is None:
            return outputs, None
        if found.shape != outputs.shape:
            raise RuntimeError(
                "the loss evaluated other likelihoods when it was run again: the function given "
                "to `evaluate` must do the same each time"
            )
        return outputs, self.convert(outputs, found)


class Engine(ABC):
    """One way to compute the tangents of outputs.

    Attributes:
        name: the name by which users ask for it.
        exact: whether its tangents are derivatives and not finite differences.
    """

    name: str
    exact: ClassVar[bool] = True

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


class CallEngine(Engine):
    """An engine that also runs single calls of a model, so that it can be tried on one.

    Attributes:
        single_pass: whether it needs no further forward pass, so that raw parameters and parts of a
            model may be used.
        runs_compiled: whether compiled parts of a model run compiled.
    """

    single_pass: ClassVar[bool] = False
    runs_compiled: ClassVar[bool] = True

    @abstractmethod
    def run(
        self,
        call: ModuleCall,
        parameters: Tensors,
        tangents: Tensors,
        layers: list[LayerCall] | None = None,
    ) -> Any:
        """Return the outputs of one call as dual numbers, in an open dual level.

        Args:
            call: a call of a model.
            parameters: leaf tensors.
            tangents: their tangents v.
            layers: a list for the calls of layers, if they are wanted.
        """


class RepeatingEngine(CallEngine):
    """An engine that runs calls of a model, or a whole closure, once more."""

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[TangentSource]:
        """Run the closure once more now, or each call of the model when it is made."""
        with ExitStack() as stack:
            if site.closure is not None:
                source = self.run_closure(site, parameters, tangents)
                stack.enter_context(recorded(site.layers, parameters))
                yield source
            elif site.model is not None:
                stack.enter_context(forward_ad.dual_level())
                stack.enter_context(
                    intercepted(
                        site.model, lambda call: self.run(call, parameters, tangents, site.layers)
                    )
                )
                yield DualOutputs(self.exact)
            else:
                raise ValueError(
                    f"engine={self.name!r} runs the model again, so it needs one: use "
                    "`tangents(model)`, or give the loss as a function to `evaluate`"
                )

    @abstractmethod
    def run_closure(self, site: Site, parameters: Tensors, tangents: Tensors) -> TangentSource:
        """Run the site's closure for the tangents of the outputs that its likelihoods receive."""


def outputs_received(closure: Callable[[], object]) -> list[Tensor]:
    """Run a closure and return the outputs that its likelihoods receive, without communication."""
    trial = TrialPass(communicator())
    with activated(trial), trial.communicator.unwrapped():
        closure()
    return trial.outputs


@contextmanager
def outside_dual_level() -> Iterator[None]:
    """Close the dual level in a block; what carries a tangent loses it."""
    forward_ad.exit_dual_level()
    try:
        yield
    finally:
        forward_ad.enter_dual_level()


def make_parameters_dual(parameters: Tensors, tangents: Tensors) -> None:
    """Give each parameter its tangent, in place, until the dual level ends.

    Values and version counters stay as they are; closing the level removes every tangent.
    """
    torch.clear_autocast_cache()  # it may hold weights with the tangents of another pass
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
        for p, v in zip(parameters, tangents, strict=True):
            p.copy_(make_dual(p.detach(), v))
