"""Forward passes with tangents: the current pass, what it leaves, and who may open one.

An engine (:mod:`tangograd.engines`) sees to it that each output z of the model comes with its
derivative ``t = J v`` along the velocity. A likelihood that is evaluated while a pass is open hands
its arguments to that pass, which it finds in the context variable :data:`current`; what is made of
them depends on the kind of pass:

* :class:`TrainingPass`, a `tangents` block of the optimizer: the likelihood builds a :class:`Term`,
  and the loss that is returned sends the cotangent of ``g - F̂ v`` in its backward pass;
* :class:`ReplayPass`: the outputs are matched with the terms of an earlier pass, to obtain other
  tangents of the same outputs;
* :class:`TrialPass`: only the outputs are collected.

A pass holds the process-wide lock of :mod:`tangograd.forward_mode` while it is open.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tangograd.forward_mode import exclusive, load_formulas, plain_torch, without_cached_weights
from tangograd.parallel import LOCAL, Communicator

if TYPE_CHECKING:
    from tangograd.engines.base import Engine, Site, TangentSource
    from tangograd.likelihoods import Likelihood


class CannotReplayError(RuntimeError):
    """A batch could not be run again with the same outcome."""


@dataclass
class Share:
    """The factor of a term in the step's loss: the sum of what its backward was called with."""

    factor: Tensor = field(default_factory=lambda: torch.zeros(()))
    used: bool = False

    def add(self, factor: Tensor) -> None:
        """Take the gradient of the step's loss with respect to the term, on its device."""
        self.factor = factor.detach() + (self.factor if self.used else 0)
        self.used = True


@dataclass
class Term:
    """What one evaluation of a likelihood contributes to the bracket ``g - F̂ v``.

    All tensors live in output space, one row a sample.

    Attributes:
        outputs: ``z``, shape ``(B, *event)``, with its autograd graph.
        tangents: ``t = (1-δt_{k-1}) J v``.
        gradient: cotangent of the loss, ``w_i s_i``; its pull-back is ``g``.
        product: cotangent of ``F̂ v``; its pull-back is ``F̂ v``.
        weights: ``w``, weights of the loss, shape ``(B,)``; of any sign if ``fisher_weights`` were
            given.
        fisher_weights: ``w^F``, weights of F̂, shape ``(B,)``, not negative.
        total_weight: ``W``, a 0-d tensor: what both were divided by, so that they are means (the
            number of samples without weights).
        rank_one: F̂ is one outer product for the whole batch.
        closed_form: F̂ averages over ỹ, so a sample has many independent pseudo-gradients.
        draw: ``position -> (cotangent, weight)`` of a pseudo-gradient, for a position in [0, 1)
            along the batch; ``E g̃g̃ᵀ`` over draws is the mean of F̂.
        again: ``t -> `` the product for another tangent, with the same pseudo-samples.
        midpoint_product: ``(t, prior) -> `` the cotangent ``w^F_i H⁺_i t_i``, with the midpoint
            Fisher information H⁺ (:meth:`tangograd.likelihoods.Likelihood.midpoint_product`).
        midpoint_sample: ``prior -> `` the cotangent ``√w^F_i b_i`` of a random vector h over the
            batch, ``E h hᵀ = Σ w^F_i J_iᵀ H⁺_i J_i``.
        rows: ``(*samples, *event) -> (B, *event)``; rows that do not count repeat one that does.
        loss: the value of the loss, a 0-d tensor.
        invalid: whether targets are outside the domain or the loss is not finite, a 0-d tensor.
        error: returns the error of an invalid term; it reads from the device.
        after_step: called once a step has been taken, with the sum of its batches' ``sums``.
        sums: from which the likelihood learns; ``None`` if it learns nothing.
        share: filled by the backward pass.
    """

    outputs: Tensor
    tangents: Tensor
    gradient: Tensor
    product: Tensor
    weights: Tensor
    fisher_weights: Tensor
    total_weight: Tensor
    rank_one: bool
    closed_form: bool
    draw: Callable[[float], tuple[Tensor, Tensor]]
    again: Callable[[Tensor], Tensor]
    midpoint_product: Callable[[Tensor, float], Tensor]
    midpoint_sample: Callable[[float], Tensor]
    rows: Callable[[Tensor], Tensor]
    loss: Tensor
    invalid: Tensor
    error: Callable[[], Exception]
    after_step: Callable[[Tensor], None]
    sums: Tensor | None
    share: Share = field(default_factory=Share)

    @property
    def prior(self) -> float:
        """The weight of an uninformed prediction in the midpoint Fisher information.

        Over the batch it is a twentieth of an observation: a first batch of predictions that are
        confident and right then does not make C infinite.
        """
        return 1 / (20 * len(self.outputs))

    @property
    def effective_samples(self) -> Tensor:
        """The effective number of samples in F̂, ``(Σ w^F)² / Σ (w^F)²``, a 0-d tensor."""
        return self.fisher_weights.sum().square() / self.fisher_weights.square().sum()


class Pass(ABC):
    """A forward pass with tangents; likelihoods contribute to it while it is open.

    Args:
        communicator: the processes that train the model.

    Attributes:
        source: tells the tangents of outputs; set when the pass is opened.
        status: tells the backward passes of its losses whether the pass is still open.
    """

    source: TangentSource

    def __init__(self, communicator: Communicator = LOCAL) -> None:
        self.communicator = communicator
        self.status = PassStatus()

    @abstractmethod
    def contribute(self, likelihood: Likelihood, outputs: Tensor, *data: Any) -> Tensor:
        """Return the loss of one likelihood call, as this kind of pass defines it.

        Args:
            likelihood: the likelihood that was called.
            outputs: the outputs of the model, as the likelihood received them.
            *data: its other arguments: targets, and weights.
        """


@dataclass
class PassStatus:
    """Whether a pass is open; kept apart so that a loss does not keep the whole pass alive."""

    open: bool = False


class TrainingPass(Pass):
    """What a `tangents` block opens: each likelihood call leaves a term.

    Args:
        parameters: the parameters that carry a tangent.
        tangents: their tangents, up to ``scale``.
        scale: a common factor, applied to the outputs' tangents.
        may_overflow: whether a GradScaler skips the step if a loss is not finite.
        communicator: the processes that train the model.

    Attributes:
        terms: one for each likelihood call.
        outputs: the outputs that each term's likelihood received, without their graph.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        tangents: Sequence[Tensor],
        scale: float = 1.0,
        *,
        may_overflow: bool = False,
        communicator: Communicator = LOCAL,
    ) -> None:
        super().__init__(communicator)
        self.parameters = parameters
        self.tangents = tangents
        self.scale = scale
        self.may_overflow = may_overflow
        self.terms: list[Term] = []
        self.outputs: list[Tensor] = []

    def contribute(self, likelihood: Likelihood, outputs: Tensor, *data: Any) -> Tensor:
        """Record a term, and return the loss whose backward sends the cotangent of the bracket."""
        with plain_torch():
            z, t = self.source.tangent(outputs)
            batch = likelihood.batch(z, *data)
            if t is None:
                raise _no_tangent()
            with torch.no_grad():
                term = likelihood.term(batch, batch.flatten(t) * self.scale)
                cotangent = term.gradient - term.product
                if self.may_overflow:  # for the scaler to find
                    cotangent = cotangent.where(term.loss.isfinite(), math.nan)
            self.terms.append(term)
            self.outputs.append(z.detach())
            return _loss(batch.z, term.loss, cotangent, term.share, self.status)


class Match(NamedTuple):
    """A term that was met again in a replay: the same outputs, with other tangents."""

    term: Term
    outputs: Tensor
    tangents: Tensor


class ReplayPass(Pass):
    """A pass that is run again: its outputs must be those of the expected terms.

    Args:
        expected: the terms of the first pass, each with the outputs that its likelihood received.
        communicator: that of the first pass.

    Attributes:
        matches: the terms met so far, in order.
    """

    def __init__(
        self, expected: Sequence[tuple[Term, Tensor]], communicator: Communicator = LOCAL
    ) -> None:
        super().__init__(communicator)
        self.expected = expected
        self.matches: list[Match] = []

    def contribute(self, likelihood: Likelihood, outputs: Tensor, *data: Any) -> Tensor:
        """Match the outputs with the next expected term, and return its loss."""
        del likelihood, data
        with plain_torch():
            return self.match(outputs)

    def match(self, outputs: Tensor) -> Tensor:
        """Record the tangents of the next expected term, and return its loss.

        Raises:
            CannotReplayError: the outputs are not those of the first pass.
        """
        if len(self.matches) == len(self.expected):
            raise CannotReplayError("the likelihood was evaluated more often than before")
        term, received = self.expected[len(self.matches)]
        if outputs.shape != received.shape:
            raise CannotReplayError("the outputs have another shape than before")
        z, t = self.source.tangent(outputs)
        if t is None:
            raise _no_tangent()
        z = term.rows(z)
        if not _equal_to_rounding(z.detach(), term.outputs.detach()):
            raise CannotReplayError("the outputs are not the same as before")
        self.matches.append(Match(term, z, term.rows(t.detach())))
        return term.loss


class TrialPass(Pass):
    """A pass that collects the outputs that likelihoods receive, and nothing else.

    Args:
        communicator: that of the pass in which it is run.

    Attributes:
        outputs: with their graph and, if they carry one, their tangent.
    """

    def __init__(self, communicator: Communicator = LOCAL) -> None:
        super().__init__(communicator)
        self.outputs: list[Tensor] = []

    def contribute(self, likelihood: Likelihood, outputs: Tensor, *data: Any) -> Tensor:
        """Collect the outputs and return 0."""
        del likelihood, data
        with plain_torch():
            self.outputs.append(outputs)
            return outputs.new_zeros(())


#: The pass that is open in this thread or task; ``None`` outside of passes.
current: ContextVar[Pass | None] = ContextVar("tangograd_pass", default=None)


def communicator() -> Communicator:
    """Return the communicator of the open pass, or that of one process outside of passes."""
    pass_ = current.get()
    return LOCAL if pass_ is None else pass_.communicator


@contextmanager
def activated(pass_: Pass) -> Iterator[None]:
    """Make a pass the current one in a block, without tangents."""
    before = current.get()
    current.set(pass_)
    pass_.status.open = True
    try:
        yield
    finally:
        pass_.status.open = False
        current.set(before)


@contextmanager
def open_pass(
    engine: Engine,
    site: Site,
    pass_: Pass,
    parameters: Sequence[Tensor],
    tangents: Sequence[Tensor],
) -> Iterator[None]:
    """Open a pass in a block, in which outputs carry the tangents that an engine computes.

    Args:
        engine: computes the tangents of outputs.
        site: what is run in the block.
        pass_: the pass to which likelihoods contribute.
        parameters: leaf tensors.
        tangents: their tangents v.
    """
    if current.get() is not None:
        raise RuntimeError(
            "`tangents` blocks cannot be nested: leave the first one before entering another "
            "(for several losses, evaluate them in one block and add them)."
        )
    with exclusive():
        load_formulas()
        with (
            without_cached_weights(),
            activated(pass_),
            engine.enter(site, parameters, tangents) as source,
        ):
            pass_.source = source
            yield


class _LossWithCotangent(torch.autograd.Function):
    """A loss of the given value whose backward sends the given cotangent to the outputs."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, loss: Tensor, cotangent: Tensor, share: Share, status: PassStatus
    ) -> Tensor:
        del z
        ctx.save_for_backward(cotangent)
        ctx.share, ctx.status = share, status
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None]:
        # Context variables are not set in autograd's device threads: the status is asked, too.
        if ctx.status.open or current.get() is not None:
            raise RuntimeError(
                "call loss.backward() after the `tangents` block, not inside it: there the "
                "parameters are dual numbers, and torch would differentiate their tangents too"
            )
        (cotangent,) = ctx.saved_tensors
        ctx.share.add(grad_outputs[0])
        return grad_outputs[0] * cotangent, None, None, None, None


def _loss(z: Tensor, loss: Tensor, cotangent: Tensor, share: Share, status: PassStatus) -> Tensor:
    found: Tensor = _LossWithCotangent.apply(z, loss, cotangent, share, status)
    return found


def _no_tangent() -> RuntimeError:
    return RuntimeError(
        "the outputs carry no tangent, so F̂v is unknown and the step would be plain SGD. "
        "Compute them from the optimizer's parameters inside the `tangents` block, with "
        "nothing in between that cuts derivatives (detach, .data, NumPy, no parameter "
        "used at all)."
    )


def _equal_to_rounding(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors are equal up to the order in which threads add numbers."""
    if a.shape != b.shape:
        return False
    differ = a != b  # masked logits are infinite in both
    if not bool(differ.any()):
        return True
    a, b = a[differ], b[differ]
    size = float(torch.maximum(a.abs().max(), b.abs().max()))
    return float((a - b).abs().max()) <= 1e3 * torch.finfo(a.dtype).eps * size
