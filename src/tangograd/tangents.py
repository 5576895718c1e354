"""Tangents: how the outputs come to carry ``t = J v``.

The parameters become dual numbers ``θ + ε v`` for one forward pass; the outputs then carry, for
each sample, the derivative of the model along the velocity. A parameter is given its tangent *in
place*, under a forward-AD level, so that nothing in the model is swapped or wrapped: closing the
level removes every tangent, whatever happened in between. Values, version counters and gradients
stay as they were.

A :class:`Session` is one such forward pass. Likelihoods find it with :func:`active`, read the
tangent of their outputs, and leave a :class:`Term` in it: what their backward will send, and what
the optimizer wants to know of the curvature.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tangograd.vectors import dot


@dataclass
class Share:
    """How much of a term has gone into the gradient: the factor its backward was called with."""

    factor: float = 0.0


@dataclass
class Term:
    """What one evaluation of a likelihood contributes to the bracket ``g - F̂ v``.

    All tensors live in output space, one row a sample.

    Attributes:
        outputs: ``z``, shape ``(B, *event)``, with its autograd graph.
        tangents: ``t = (1-δt_{k-1}) J v``.
        gradient: cotangent of the loss, ``w_i s_i``; its pull-back is ``g``.
        product: cotangent of ``F̂ v``; its pull-back is ``F̂ v``.
        weights: ``w``, shape ``(B,)``, summing to 1.
        total_weight: ``W``, the sum that they had (the number of samples without weights).
        rank_one: F̂ is one outer product for the whole batch.
        closed_form: F̂ averages over ỹ, so a sample has many independent pseudo-gradients.
        draw: ``(position, copy) -> (cotangent, weight)`` of a pseudo-gradient, for a position in
            [0, 1) along the batch; ``E g̃g̃ᵀ`` over draws is the mean of F̂.
        probe: draws the cotangent of a random vector h over the whole batch, ``E h hᵀ = F̂``.
        again: ``t -> `` the product for another tangent, with the same pseudo-samples.
        rows: ``(*samples, *event) -> (B, *event)``, the samples that count.
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
    total_weight: float
    rank_one: bool
    closed_form: bool
    draw: Callable[[float, int], tuple[Tensor, float]]
    probe: Callable[[], Tensor]
    again: Callable[[Tensor], Tensor]
    rows: Callable[[Tensor], Tensor]
    received: Tensor
    loss: Tensor
    after_step: Callable[[list[Any]], None]
    observation: Any
    share: Share = field(default_factory=Share)


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
        originals: in a replay, the terms of the pass that is run again.
        replayed: in a replay, those that were met again.
    """

    parameters: Sequence[Tensor]
    tangents: Sequence[Tensor]
    scale: float
    terms: list[Term] = field(default_factory=list)
    layers: list[LayerCall] | None = None
    originals: Sequence[Term] | None = None
    replayed: list[Again] = field(default_factory=list)

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
def dual_parameters(
    parameters: Sequence[Tensor],
    tangents: Sequence[Tensor],
    scale: float,
    *,
    record_layers: bool = False,
    originals: Sequence[Term] | None = None,
) -> Iterator[Session]:
    """Give each parameter its tangent for the length of the block.

    Args:
        parameters: leaf tensors; they are left exactly as they were, also after an exception.
        tangents: one tensor a parameter, of its shape; ``scale`` times it is the tangent meant.
        scale: a factor common to all, applied to the outputs' tangents instead.
        record_layers: keep the calls of layers in the session.
        originals: run these terms again rather than make new ones.

    Example:
        >>> import torch
        >>> p = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with dual_parameters([p], [torch.tensor([3.0, 4.0])], scale=0.5) as session:
        ...     z, t = session.unpack(p**2)
        >>> t
        tensor([3., 8.])
    """
    global _active
    if _active is not None:
        raise RuntimeError(
            "`tangents` blocks cannot be nested: leave the first one before entering another "
            "(for several losses, evaluate them in one block and add them)."
        )
    _load_formulas()
    with forward_ad.dual_level():
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
            for p, v in zip(parameters, tangents, strict=True):
                p.copy_(forward_ad.make_dual(p.detach(), v))
        _active = session = Session(
            parameters, tangents, scale, layers=[] if record_layers else None, originals=originals
        )
        try:
            with _ProductRule(session.layers):
                yield session
        except NotImplementedError as error:
            operation = _operation_without_formula(error)
            if operation is None:
                raise
            raise NotImplementedError(
                f"{operation} has no forward-mode derivative in this PyTorch, and TANGO needs one "
                "to carry its tangents. Ways out: for attention, run the model under "
                "torch.nn.attention.sdpa_kernel(SDPBackend.MATH); for a float32 LSTM, under "
                "torch.backends.mkldnn.flags(enabled=False); for a custom autograd.Function, "
                "give it a `jvp`; otherwise write the operation with differentiable ones."
            ) from error
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
    session: Session, term: Term, cotangent: Tensor, gradient: Sequence[Tensor]
) -> None:
    """``⟨u, J v⟩ = ⟨Jᵀu, v⟩``: forward and backward derivatives must be of the same function."""
    u, t = cotangent.double(), term.tangents.double()
    gradient = [g.double() for g in gradient]
    v = [session.scale * v.double() for v in session.tangents]
    forward, backward = float((u * t).sum()), dot(gradient, v)
    size = float(u.norm() * t.norm()) + math.sqrt(dot(gradient, gradient) * dot(v, v))
    precision = torch.finfo(cotangent.dtype)
    too_small_to_tell = size < precision.smallest_normal**0.5
    if not too_small_to_tell and abs(forward - backward) > 1e4 * precision.eps * size:
        raise RuntimeError(
            f"the model's tangents and gradients disagree ({forward:.6g} against {backward:.6g}), "
            "so F̂v would be wrong. Something in it cuts one and not the other: a part that "
            "depends on parameters under torch.no_grad() (use .detach() instead, which cuts "
            "both), or a custom operation whose backward is not its derivative."
        )


class _ProductRule(TorchFunctionMode):
    """Linear and convolution layers by hand: ``d(x W) = dx W + x dW``.

    Where x has no tangent, as in a first layer, PyTorch's own formula multiplies by zeros; and it
    records the tangent's graph for a backward pass that never comes. Both are saved here
    (``benchmarks/step_cost.py`` measures steps with and without).
    """

    LAYERS = frozenset({functional.linear, torch.conv1d, torch.conv2d, torch.conv3d})

    def __init__(self, calls: list[LayerCall] | None) -> None:
        super().__init__()
        self.calls = calls

    def __torch_function__(
        self,
        func: Callable[..., Tensor],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func not in self.LAYERS:
            return func(*args, **kwargs)
        return _product_rule(self.calls, func, *args, **kwargs)


def _product_rule(
    calls: list[LayerCall] | None,
    layer: Callable[..., Tensor],
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    x, dx = forward_ad.unpack_dual(input)
    W, dW = forward_ad.unpack_dual(weight)
    b, db = (None, None) if bias is None else forward_ad.unpack_dual(bias)
    if dW is None:  # a frozen weight: nothing to save
        return layer(input, weight, bias, *args, **kwargs)
    with torch.no_grad():
        t = layer(x, dW, db, *args, **kwargs)
        if dx is not None:
            t += layer(dx, W, None, *args, **kwargs)
    dual: Tensor = forward_ad.make_dual(layer(x, W, b, *args, **kwargs), t)
    if calls is not None and not kwargs:
        calls.append(LayerCall(layer, x.detach(), weight, bias, args, dual))
    return dual


def _equal_to_rounding(a: Tensor, b: Tensor) -> bool:
    """Threads may add numbers up in another order; anything else changes more than that."""
    if a.shape != b.shape:
        return False
    size = float(torch.maximum(a.abs().max(), b.abs().max()))
    return float((a - b).abs().max()) <= 1e3 * torch.finfo(a.dtype).eps * size


@cache
def _load_formulas() -> None:
    """Load torch's forward-mode formulas; a deprecation warning of theirs is not the user's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with forward_ad.dual_level():
            forward_ad.make_dual(torch.zeros(()), torch.zeros(()))


def _operation_without_formula(error: NotImplementedError) -> str | None:
    """The operation that PyTorch's forward-AD error complains of, if it is one."""
    found = re.search(r"forward AD with (\S+)", str(error))
    if found:
        return found[1]
    return "a custom autograd.Function without `jvp`" if "jvp" in str(error) else None
