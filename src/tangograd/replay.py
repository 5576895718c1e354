"""Running a batch again: the same outputs, with other tangents.

A line search along ``Δ = C r`` needs ``F̂ Δ``, and r is known only after the backward pass. So on
refresh steps a `tangents` block keeps references to what the model was called with (or to the
closure), and the random state and the buffers that it found; a replay makes the same calls under
the same conditions with dual parameters ``θ + ε Δ``, and leaves everything as it was. It counts
only if its outputs are those that the likelihood had received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from tangograd.conditions import Conditions
from tangograd.curvature.pseudo_gradients import prior
from tangograd.engines import choice
from tangograd.engines.block import Engines, tangent_block
from tangograd.engines.calls import Call, inside
from tangograd.tangents import Again, CannotReplayError, DisagreementError, Session, Term


class _Call(NamedTuple):
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    conditions: Conditions


class Replay:
    """How to run a `tangents` block again.

    Args:
        engines: what runs it.
        model: the module called in the block, if any.
        closure: the whole body of the block, if it is known.
    """

    def __init__(
        self, engines: Engines, model: nn.Module | None, closure: Callable[[], Any] | None
    ) -> None:
        self.engines = engines
        self.model = model
        self.closure = closure
        self.terms: Sequence[Term] = ()
        self._calls: list[_Call] = []
        self._chained = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note the calls made in the block."""
        if self.closure is not None or self.model is None:
            self._calls.append(_Call((), {}, Conditions(self.model)))
            yield
            return
        hook = self.model.register_forward_pre_hook(self._note, with_kwargs=True, prepend=True)
        try:
            yield
        finally:
            hook.remove()

    def _note(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # the engine's own call of the model
        leaves = pytree.tree_leaves((args, kwargs))
        self._chained |= any(isinstance(x, Tensor) and x.grad_fn is not None for x in leaves)
        self._calls.append(_Call(args, dict(kwargs), Conditions(model)))

    def products(
        self, parameters: Sequence[Tensor], x: Sequence[Tensor], *, graph: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return, for each term, outputs z with their graph, ``t = J x`` and ``H t``."""
        found = []
        for term, z, t in self.run(parameters, x, graph=graph):
            with torch.no_grad():
                Ht = term.midpoint_product(t, prior(term)) if term.closed_form else term.again(t)
                found.append((z, t, Ht * term.share.factor))
        return found

    def run(
        self, parameters: Sequence[Tensor], tangents: Sequence[Tensor], *, graph: bool
    ) -> list[Again]:
        """Run the block with other tangents.

        Args:
            parameters: leaf tensors.
            tangents: one for each.
            graph: whether the outputs must come with their graph. Without one it is quicker, but
                for models that differentiate or register hooks inside: they are run with it.

        Raises:
            CannotReplayError: the outputs differ from those that the likelihood received.
        """
        if not graph:
            try:
                return self._run(parameters, tangents, graph=False)
            except CannotReplayError:
                pass
        return self._run(parameters, tangents, graph=True)

    def blamed(self, error: DisagreementError, parameters: Sequence[Tensor]) -> DisagreementError:
        """The error with the name of the module at fault, if the model's calls are known."""
        engine = self.engines.of(self.model, self.closure)
        if self.closure is not None or self.model is None or engine is None:
            return error
        inner = inside(self.model)
        run = self.model.forward if inner is self.model else inner
        for args, kwargs, conditions in self._calls:
            with forward_ad.dual_level():
                call = Call(run, inner, run, args, kwargs)
                found = choice.blamed(error, call, engine, parameters, conditions)
            if found is not error:
                return found
        return error

    def _run(
        self, parameters: Sequence[Tensor], tangents: Sequence[Tensor], *, graph: bool
    ) -> list[Again]:
        session = Session(parameters, tangents, 1.0, originals=self.terms)
        again = self._calls[0].conditions.restored() if self.closure is not None else nullcontext()
        try:
            with (
                torch.set_grad_enabled(graph),
                again,
                tangent_block(self.engines, self.model, self.closure, session),
            ):
                self._repeat(session)
        except CannotReplayError:
            raise
        except Exception as error:
            raise CannotReplayError(f"running it again raised {error!r}") from error
        if len(session.replayed) != len(self.terms):
            raise CannotReplayError("a likelihood was not evaluated again")
        return session.replayed

    def _repeat(self, session: Session) -> None:
        if self.closure is not None:
            self.closure()
            return
        if self.model is None:
            raise CannotReplayError("the block does not say which model it runs")
        if self._chained:
            raise CannotReplayError("the model was called with outputs of its own, or of another")
        found: list[Tensor] = []
        for call in self._calls:
            with call.conditions.restored():
                outputs = self.model(*call.arguments, **call.keywords)
            found += [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
        for term in self.terms:
            session.meet_again(session.dress(_same_values(term.received, found)))


def _same_values(received: Tensor, found: Sequence[Tensor]) -> Tensor:
    """The output that the likelihood was given, in the shape that it had then."""
    for output in found:
        if output.numel() == received.numel() and output.dtype == received.dtype:
            candidate = output.reshape(received.shape)
            plain = forward_ad.unpack_dual(candidate).primal
            if len(found) == 1 or torch.allclose(plain, received):
                return candidate
    raise CannotReplayError("the likelihood was not given what the model returned")
