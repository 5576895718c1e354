"""One forward pass with tangents, as likelihoods and the optimizer see it.

An engine (:mod:`tangograd.engines`) sees to it that the model's outputs carry, for each sample, the
derivative ``t = J v`` of the model along the velocity: as the tangent of a dual number, which
PyTorch's forward mode carries on through whatever is done to them.

A :class:`Session` is one such pass. Likelihoods find it with :func:`active`, read the tangent of
their outputs, and leave a :class:`Term` in it: what their backward will send, and what the
optimizer wants to know of the curvature.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tangograd.vectors import dot

#: tangents and gradients may disagree by so many units of rounding
ROUNDING = 1e4
#: and by this much where the model may run in 16 bits
ROUNDING_16_BITS = 0.02


class DisagreementError(RuntimeError):
    """Tangents and gradients are of different functions."""


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
        draw: ``(position, copy) -> (cotangent, weight)`` of a pseudo-gradient, for a position in
            [0, 1) along the batch; ``E g̃g̃ᵀ`` over draws is the mean of F̂.
        probe: draws the cotangent of a random vector h over the whole batch, ``E h hᵀ = F̂``.
        again: ``t -> `` the product for another tangent, with the same pseudo-samples.
        midpoint_product: ``(t, prior) -> `` the cotangent ``w^F_i H⁺_i t_i``, with the midpoint
            Fisher information H⁺ (:meth:`tangograd.likelihoods.Likelihood.midpoint_product`).
        midpoint_sample: ``prior -> `` the cotangent ``√w^F_i b_i`` of a random vector h over the
            batch, ``E h hᵀ = Σ w^F_i J_iᵀ H⁺_i J_i``.
        rows: ``(*samples, *event) -> (B, *event)``; rows that do not count repeat one that does.
        received: the outputs as the likelihood got them, without their graph.
        loss: the value of the loss.
        after_step: called with the observations of a step, once it has been taken.
        observation: what the likelihood wants to remember of this batch.
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
    draw: Callable[[float, int], tuple[Tensor, Tensor]]
    probe: Callable[[], Tensor]
    again: Callable[[Tensor], Tensor]
    midpoint_product: Callable[[Tensor, float], Tensor]
    midpoint_sample: Callable[[float], Tensor]
    rows: Callable[[Tensor], Tensor]
    received: Tensor
    loss: Tensor
    after_step: Callable[[list[Any]], None]
    observation: Any
    share: Share = field(default_factory=Share)

    @property
    def effective_samples(self) -> Tensor:
        """The effective number of samples in F̂, ``(Σ w^F)² / Σ (w^F)²``, a 0-d tensor."""
        return self.fisher_weights.sum().square() / self.fisher_weights.square().sum()


class LayerCall(NamedTuple):
    """One use of a linear or convolution layer with a trainable weight.

    Attributes:
        function: ``functional.linear``, ``torch.conv2d``, …
        inputs: what it was applied to, without graph and tangent.
        weight: the parameter.
        bias: the other parameter, if there is one.
        options: of a convolution, in the order stride, padding, dilation, groups.
        outputs: with their graph.
    """

    function: Callable[..., Tensor]
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    options: tuple[Any, ...]
    outputs: Tensor


class Again(NamedTuple):
    """A term of a replay: the same outputs, with other tangents."""

    term: Term
    outputs: Tensor
    tangents: Tensor


class CannotReplayError(RuntimeError):
    """A batch could not be run again with the same outcome."""


@dataclass
class Session:
    """One forward pass with dual parameters.

    Attributes:
        parameters: those that carry a tangent.
        tangents: theirs, up to ``scale``.
        scale: a common factor, applied to the outputs' tangents.
        terms: what the likelihoods evaluated inside have left.
        layers: the calls of layers, where they are wanted.
        exact: the tangents are derivatives, not differences.
        may_overflow: a GradScaler skips the step if a loss is not finite.
        overflowed: one was not.
        supply: ``z -> t`` for outputs that carry none, where the engine has another way.
        received: what likelihoods are given, where nothing else is wanted of a pass.
        originals: in a replay, the terms of the pass that is run again.
        replayed: in a replay, those that were met again.
    """

    parameters: Sequence[Tensor]
    tangents: Sequence[Tensor]
    scale: float
    terms: list[Term] = field(default_factory=list)
    layers: list[LayerCall] | None = None
    exact: bool = True
    may_overflow: bool = False
    overflowed: bool = False
    supply: Callable[[Tensor], Tensor | None] | None = None
    received: list[Tensor] | None = None
    originals: Sequence[Term] | None = None
    replayed: list[Again] = field(default_factory=list)

    def dress(self, outputs: Tensor) -> Tensor:
        """Outputs with a tangent, by the engine's other way if they carry none."""
        if self.supply is None or forward_ad.unpack_dual(outputs).tangent is not None:
            return outputs
        t = self.supply(outputs)
        return outputs if t is None else forward_ad.make_dual(outputs, t.detach())

    def unpack(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split dual outputs into ``z`` and ``t = (1-δt_{k-1}) J v``, or say why there is no t."""
        z, t = forward_ad.unpack_dual(outputs)
        if t is None:
            raise RuntimeError(
                "the outputs carry no tangent, so F̂v is unknown and the step would be plain SGD. "
                "Compute them from the optimizer's parameters inside the `tangents` block, with "
                "nothing in between that cuts derivatives (detach, .data, NumPy, no parameter "
                "used at all)."
            )
        with torch.no_grad():
            return z, t * self.scale

    def meet_again(self, outputs: Tensor) -> Tensor:
        """Take outputs as those of the next original term, and return its loss.

        Raises:
            CannotReplayError: they are not the same outputs.
        """
        originals = self.originals or ()
        if len(self.replayed) == len(originals):
            raise CannotReplayError("the likelihood was evaluated more often than before")
        term = originals[len(self.replayed)]
        if outputs.shape != term.received.shape:
            raise CannotReplayError("the outputs have another shape than before")
        z, t = self.unpack(term.rows(outputs))
        if not _equal_to_rounding(z.detach(), term.outputs.detach()):
            raise CannotReplayError("the outputs are not the same as before")
        self.replayed.append(Again(term, z, t))
        return term.loss


#: A block in which torch functions run without the product rule below (and its cost in Python).
plain_torch = torch._C.DisableTorchFunction

_active: Session | None = None


def active() -> Session | None:
    """The session that is open now, or ``None`` outside ``optimizer.tangents``."""
    return _active


@contextmanager
def activated(session: Session) -> Iterator[None]:
    """Likelihoods find this session in the block."""
    global _active
    if _active is not None:
        raise RuntimeError(
            "`tangents` blocks cannot be nested: leave the first one before entering another "
            "(for several losses, evaluate them in one block and add them)."
        )
    _active = session
    try:
        yield
    finally:
        _active = None


def pull_back(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    """``Jᵀ u``: the outputs' cotangents, pulled back to trainable parameters."""
    found = torch.autograd.grad(
        outputs, parameters, cotangents, retain_graph=True, allow_unused=True
    )
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


def check_adjoint(
    u: Sequence[Tensor],
    t: Sequence[Tensor],
    gradient: Sequence[Tensor],
    v: Sequence[Tensor],
    *,
    outputs: Sequence[Tensor] = (),
    exact: bool = True,
    random: bool = False,
) -> None:
    """``⟨u, J v⟩ = ⟨Jᵀu, v⟩``: forward and backward derivatives must be of the same function.

    Args:
        u: cotangents of outputs.
        t: their tangents, which should be ``J v``.
        gradient: ``Jᵀu``.
        v: tangents of parameters.
        outputs: with their graph, which shows whether parts of the model change the precision.
        exact: t is a derivative, not a difference.
        random: u and v are random, of elements like one another's: then both sides are sums of
            random signs, small beside the product of the norms, and so is their rounding.
    """
    # parts of the model may run in 16 bits, with or without autocast
    coarse = any(x.dtype.itemsize < 8 for x in (*u, *gradient))
    precision = max((torch.finfo(x.dtype) for x in u), key=lambda kind: kind.eps)
    u, t, gradient, v = ([x.detach().double() for x in vector] for vector in (u, t, gradient, v))
    forward, backward = dot(u, t), dot(gradient, v)
    if random:
        size = _spread(u, t) + _spread(v, gradient)
    else:
        size = math.sqrt(dot(u, u) * dot(t, t)) + math.sqrt(dot(gradient, gradient) * dot(v, v))
    too_small_to_tell = size < precision.smallest_normal**0.5
    allowed = ROUNDING * precision.eps if exact else max(math.sqrt(precision.eps) * 1e2, 1e-6)
    if coarse:
        allowed = max(allowed, ROUNDING_16_BITS)
    difference = 0.0 if too_small_to_tell else abs(forward - backward)
    if difference > allowed * size and any("ToCopy" in node.name() for node in graph(outputs)):
        allowed = max(allowed, ROUNDING * torch.finfo(torch.float32).eps)
    if difference > allowed * size:
        raise DisagreementError(
            f"tangents and gradients disagree ({forward:.6g} against {backward:.6g}) in the model, "
            "so F̂v would be wrong. Something in it cuts one and not the other: a part that "
            "depends on parameters under torch.no_grad() (use .detach() instead, which cuts "
            "both), parameters used outside the model's call, or a custom operation whose "
            "backward is not its derivative."
        )


def graph(outputs: Sequence[Tensor]) -> Iterator[torch.autograd.graph.Node]:
    """The operations that made outputs."""
    waiting, seen = [z.grad_fn for z in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [other for other, _ in node.next_functions]


def _spread(numbers: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The standard deviation of ``⟨numbers, others⟩``, the numbers being independent."""
    pairs = zip(numbers, others, strict=True)
    return math.sqrt(
        sum(float(x.square().mean() * y.square().sum()) for x, y in pairs if y.numel())
    )


def check_term(session: Session, term: Term, cotangent: Tensor, gradient: Sequence[Tensor]) -> None:
    """The same for the outputs that a likelihood was given, and the gradient of a cotangent."""
    v = [session.scale * v.double() for v in session.tangents]
    t, outputs = [term.tangents], [term.outputs]
    check_adjoint([cotangent], t, gradient, v, outputs=outputs, exact=session.exact)


def _equal_to_rounding(a: Tensor, b: Tensor) -> bool:
    """Threads may add numbers up in another order; anything else changes more than that."""
    if a.shape != b.shape:
        return False
    differ = a != b  # masked logits are infinite in both
    if not bool(differ.any()):
        return True
    a, b = a[differ], b[differ]
    size = float(torch.maximum(a.abs().max(), b.abs().max()))
    return float((a - b).abs().max()) <= 1e3 * torch.finfo(a.dtype).eps * size


@cache
def load_formulas() -> None:
    """Load torch's forward-mode formulas; a deprecation warning of theirs is not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with forward_ad.dual_level():
            forward_ad.make_dual(torch.zeros(()), torch.zeros(()))
