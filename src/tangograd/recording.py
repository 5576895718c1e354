"""Running a batch again under the same conditions: the same outputs, with other tangents.

A line search along ``Δ = C r`` needs ``F̂ Δ``, and r is known only after the backward pass. On
refresh steps a `tangents` block therefore keeps what the model was called with (or the closure),
and the random state, buffers and autocast that it found. A recording repeats the calls under these
conditions with tangents Δ, and leaves everything as it was. It counts only if the outputs are those
that the likelihoods received before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.utils import _pytree as pytree

from tangograd.forward_mode import exclusive, without_cached_weights
from tangograd.parallel import LOCAL, Communicator
from tangograd.session import CannotReplayError, Match, ReplayPass, TrainingPass, open_pass

if TYPE_CHECKING:
    from tangograd.engines import Engine, Site


class ForwardContext:
    """Random state, buffers and autocast of a forward pass, to run it again identically.

    Example: the same random numbers, twice.

        >>> context = ForwardContext(None)
        >>> first = torch.rand(2)
        >>> with context.restored():
        ...     again = torch.rand(2)
        >>> bool((first == again).all())
        True
    """

    def __init__(self, model: object) -> None:
        self.model = model
        self.buffers = _buffers(model)
        self.random = torch.get_rng_state()
        self.cuda_random = torch.cuda.get_rng_state_all() if "cuda" in _devices() else []
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in _devices()
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the context in a block; afterwards everything is as it was before the block."""
        now = _buffers(self.model)
        with ExitStack() as stack:
            stack.enter_context(exclusive())
            stack.enter_context(torch.random.fork_rng())
            for kind, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            stack.enter_context(without_cached_weights())
            self.restore()
            try:
                yield
            finally:
                _write(now)

    def restore(self) -> None:
        """Restore the random state and the buffers for good."""
        torch.set_rng_state(self.random)
        if self.cuda_random:
            torch.cuda.set_rng_state_all(self.cuda_random)
        _write(self.buffers)


class RecordedCall(NamedTuple):
    """A call of a model, and the context in which it was made."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: ForwardContext


class Recording:
    """The body of a `tangents` block, which can be run again with other tangents.

    Args:
        engine: computes the tangents.
        site: what the block runs.

    Attributes:
        calls: the calls of the model; of a closure, or without a model, one without arguments.
    """

    def __init__(self, engine: Engine, site: Site) -> None:
        self.engine = engine
        self.site = site._replace(layers=None)
        self._expected: list[Any] = []
        self._communicator: Communicator = LOCAL
        self.calls: list[RecordedCall] = []
        self._chained = False

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the calls of the model made in the block."""
        model = self.site.model
        if self.site.closure is not None or model is None:
            self.calls.append(RecordedCall((), {}, ForwardContext(model)))
            yield
            return
        hook = model.register_forward_pre_hook(self._note, with_kwargs=True, prepend=True)
        try:
            yield
        finally:
            hook.remove()

    def expect(self, pass_: TrainingPass) -> None:
        """Set the terms and outputs that a replay must reproduce."""
        self._expected = list(zip(pass_.terms, pass_.outputs, strict=True))
        self._communicator = pass_.communicator

    def run(
        self, parameters: Sequence[Tensor], tangents: Sequence[Tensor], *, graph: bool
    ) -> list[Match]:
        """Run the block again with other tangents.

        Args:
            parameters: leaf tensors.
            tangents: one for each.
            graph: whether the outputs must have their graph. Without it a replay is faster; models
                that differentiate or register hooks inside are then run with a graph all the same.

        Returns:
            A tuple ``(term, outputs, tangents)`` for each term of the block.

        Raises:
            CannotReplayError: the outputs differ from those that the likelihood received.
        """
        if not graph:
            try:
                return self._run(parameters, tangents, graph=False)
            except CannotReplayError:
                pass
        return self._run(parameters, tangents, graph=True)

    def products(
        self, parameters: Sequence[Tensor], x: Sequence[Tensor], *, graph: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return, for each term, outputs z with their graph, ``t = J x`` and ``H t``."""
        found = []
        for term, z, t in self.run(parameters, x, graph=graph):
            with torch.no_grad():
                Ht = term.midpoint_product(t, term.prior) if term.closed_form else term.again(t)
                found.append((z, t, Ht * term.share.factor))
        return found

    def _note(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves = pytree.tree_leaves((args, kwargs))
        self._chained |= any(isinstance(x, Tensor) and x.grad_fn is not None for x in leaves)
        self.calls.append(RecordedCall(args, dict(kwargs), ForwardContext(model)))

    def _run(
        self, parameters: Sequence[Tensor], tangents: Sequence[Tensor], *, graph: bool
    ) -> list[Match]:
        replay = ReplayPass(self._expected, self._communicator)
        closure = self.site.closure
        context = nullcontext() if closure is None else self.calls[0].context.restored()
        try:
            with (
                torch.set_grad_enabled(graph),
                context,
                open_pass(self.engine, self.site, replay, parameters, tangents),
            ):
                if closure is None:
                    self._repeat_calls(replay)
                else:
                    closure()
        except CannotReplayError:
            raise
        except Exception as error:
            raise CannotReplayError(f"running it again raised {error!r}") from error
        if len(replay.matches) != len(self._expected):
            raise CannotReplayError("a likelihood was not evaluated again")
        return replay.matches

    def _repeat_calls(self, replay: ReplayPass) -> None:
        if self.site.model is None:
            raise CannotReplayError("the block does not say which model it runs")
        if self._chained:
            raise CannotReplayError("the model was called with outputs of its own, or of another")
        outputs: list[Tensor] = []
        for call in self.calls:
            with call.context.restored():
                found = self.site.model(*call.args, **call.kwargs)
            outputs += [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, Tensor)]
        for _, received in self._expected:
            replay.match(_with_values_of(received, outputs))


def _with_values_of(received: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """Return the output that the likelihood was given, in the shape that it had then."""
    for output in outputs:
        if output.numel() == received.numel() and output.dtype == received.dtype:
            candidate = output.reshape(received.shape)
            primal = forward_ad.unpack_dual(candidate).primal
            if len(outputs) == 1 or torch.allclose(primal, received):
                return candidate
    raise CannotReplayError("the likelihood was not given what the model returned")


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch autocast off in a block."""
    with ExitStack() as stack:
        for kind in _devices():
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _devices() -> list[str]:
    """Return the device types in use."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()
    return ["cpu", "cuda"] if used else ["cpu"]


class _Slot(NamedTuple):
    """A place for a buffer, the tensor that is in it, and its value."""

    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor


def _buffers(model: object) -> list[_Slot]:
    if not isinstance(model, nn.Module):
        return []
    return [
        _Slot(module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _write(slots: Sequence[_Slot]) -> None:
    """Put back tensors, which a model may have replaced, and values, which it may have changed."""
    buffers = tuple(slot.buffer for slot in slots)
    with torch.no_grad(), _unsafe_preserve_version_counter(buffers):
        for module, name, buffer, value in slots:
            module._buffers[name] = buffer
            buffer.copy_(value)
