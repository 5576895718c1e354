"""A `tangents` block: which parts of it an engine runs, and how."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from tangograd.conditions import Conditions, without_cached_weights
from tangograd.distributed import here, is_sharded
from tangograd.engines import choice
from tangograd.engines.calls import Call, inside, intercepted
from tangograd.engines.lean import DerivativeInsideError, Lean, Recording
from tangograd.engines.passes import (
    Compiled,
    DoubleBackward,
    Dual,
    Engine,
    TwoPass,
    apart,
    candidates,
    difference,
    eagerly,
    has_compiled,
    make_dual_,
    outside_the_level,
    refuse_low_precision,
)
from tangograd.tangents import DisagreementError, Session, activated, load_formulas


class NoFormulaError(NotImplementedError):
    """The engine cannot differentiate something; another may."""


class Engines:
    """The engine asked for, and those that were chosen for the models met.

    Args:
        name: one of ``engines.NAMES``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.candidates = candidates(name)
        self._chosen: weakref.WeakKeyDictionary[nn.Module, Engine] = weakref.WeakKeyDictionary()
        #: whether the engine for closures has run one
        self.proved = False
        #: closures are run as they come, with dual numbers; and tried, once that has failed
        self._for_closures = self.candidates[0] if self.candidates[0].whole_block else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Engines:
        return Engines(self.name)

    def __reduce__(self) -> Any:
        return Engines, (self.name,)

    def of(self, model: nn.Module | None, closure: object) -> Engine | None:
        """The one chosen, if it has been."""
        if closure is not None:
            return self._for_closures
        if model is None:
            return self.candidates[0]
        return self._chosen.get(model)

    def settle(self, model: nn.Module | None, closure: object, engine: Engine) -> Engine:
        """It is this from now on."""
        if closure is not None:
            self._for_closures = engine
        elif model is not None:
            self._chosen[model] = engine
        return engine

    def forget(self, model: nn.Module | None, closure: object) -> None:
        """Choose again at the next batch."""
        if closure is not None:
            self._for_closures = None
        elif model is not None:
            self._chosen.pop(model, None)


@contextmanager
def tangent_block(
    engines: Engines,
    model: nn.Module | None,
    closure: Callable[[], object] | None,
    session: Session,
) -> Iterator[Session]:
    """A block in which outputs carry the tangents of the session's parameters.

    Args:
        engines: the engine.
        model: the module called in the block, if any.
        closure: the whole body of the block, if it is known.
        session: what is open in the block.
    """
    load_formulas()
    engine = engines.of(model, closure)
    with activated(session), without_cached_weights(), ExitStack() as stack:
        try:
            if closure is not None:
                if engine is None:
                    engine = engines.settle(
                        model, closure, _choose_for_closure(engines, model, closure, session)
                    )
                if not engine.whole_block:
                    conditions = Conditions(None if model is None else inside(model))
                    session.supply = _first_pass(
                        engine, model, conditions, closure, session, session.tangents
                    )
            stack.enter_context(forward_ad.dual_level())
            _enter(stack, engines, engine, model, closure, session)
            yield session
            if engine is None and model is not None and engines.of(model, closure) is None:
                # parts of the model were called, not the model: dual numbers, or what was named
                engines.settle(model, closure, engines.candidates[0])
        except NotImplementedError as error:
            operation = _operation_without_formula(error)
            if operation is None:
                raise
            engines.forget(model, closure)
            raise NoFormulaError(
                f"{operation} has no forward-mode derivative here. Call the model that is given to "
                "`tangents(model)` as a whole, or give the loss as a function to "
                "`optimizer.evaluate`, and another engine is found; or ask for "
                'engine="double-backward".'
            ) from error


def _enter(
    stack: ExitStack,
    engines: Engines,
    engine: Engine | None,
    model: nn.Module | None,
    closure: object,
    session: Session,
) -> None:
    """Open what the engine needs around the block."""
    parameters, tangents = session.parameters, session.tangents
    session.exact = engine is None or engine.exact
    if engine is None:
        assert model is not None
        if any(each.whole_block or isinstance(each, DoubleBackward) for each in engines.candidates):
            session.supply = _from_graph(parameters, tangents)  # parts of the model may be called
        stack.enter_context(intercepted(model, _choosing(engines, model, session)))
        if session.layers is not None:
            stack.enter_context(Recording(session.layers, parameters))
    elif engine.whole_block:
        make_dual_(parameters, tangents)
        stack.enter_context(eagerly(model))
        if engine.lean:
            stack.enter_context(Lean(session.layers, parameters))
        elif session.layers is not None:
            stack.enter_context(Recording(session.layers, parameters))
    else:
        if isinstance(engine, DoubleBackward):
            session.supply = _from_graph(parameters, tangents)
        elif closure is None and model is None:
            raise ValueError(
                f"engine={engine.name!r} runs the model again, so it needs one: use "
                "`tangents(model)`, or give the loss as a function to `evaluate`"
            )
        elif closure is None and model is not None:
            stack.enter_context(
                intercepted(
                    model,
                    _once(engine, session)
                    if isinstance(engine, Compiled)
                    else lambda call: engine.run(call, parameters, tangents),
                )
            )
        if session.layers is not None:
            stack.enter_context(Recording(session.layers, parameters))


def _once(engine: Compiled, session: Session) -> Callable[[Call], Any]:
    """Compiled passes need the dual level closed, which ends the tangents there are."""
    calls = 0

    def handle(call: Call) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError(
                'engine="compiled" runs a model once in a `tangents` block: put its inputs '
                'together in one batch, or use engine="auto"'
            )
        return engine.run(call, session.parameters, session.tangents)

    return handle


def _choosing(engines: Engines, model: nn.Module, session: Session) -> Callable[[Call], Any]:
    """The first call of a model chooses the engine; it and later ones in the block run by it."""

    def handle(call: Call) -> Any:
        engine = engines.of(model, None)
        if engine is None and not torch.is_grad_enabled():
            return Dual().run(call, session.parameters, session.tangents)
        if engine is None:
            engine = engines.settle(model, None, _choose_for_call(engines, model, call, session))
            session.exact = engine.exact
            if engine.whole_block:
                make_dual_(session.parameters, session.tangents)
        if not engine.whole_block:
            return engine.run(call, session.parameters, session.tangents)
        lean = Lean(session.layers, session.parameters) if engine.lean else nullcontext()
        with eagerly(model), lean:
            return call.plain(*call.args, **call.kwargs)

    return handle


def _choose_for_call(engines: Engines, model: nn.Module, call: Call, session: Session) -> Engine:
    if is_sharded(call.inner):
        if not any(isinstance(engine, TwoPass) for engine in engines.candidates):
            raise choice.CannotRunError(
                f'engine={engines.name!r} cannot run sharded parameters: use "two-pass" or "auto"'
            )
        return TwoPass()
    conditions, trial = Conditions(call.inner), call._replace(plain=call.run, wrapper=None)
    allowed = engines.candidates
    if has_compiled(model):  # let an ordinary pass go through that
        allowed = tuple(engine for engine in allowed if not engine.whole_block) or allowed
    tried: list[Engine] = []

    def run(engine: Engine, v: Sequence[Tensor]) -> list[choice.Pair]:
        tried.append(engine)
        with forward_ad.dual_level():  # closed before anything is pulled back
            outputs = engine.run(apart(trial), session.parameters, v)
            pairs = choice.pairs_of(outputs)
        if not pairs and not engine.whole_block:
            raise TypeError(f"it finds no tensors in outputs of type {type(outputs).__name__}")
        return pairs

    what = type(call.inner).__name__
    try:
        with outside_the_level():
            return choice.choose(allowed, session.parameters, conditions, run, what)
    except DisagreementError as error:
        raise choice.blamed(error, trial, tried[-1], session.parameters, conditions) from None
    except choice.CannotRunError:
        with conditions.restored():
            own = apart(call)
            own.run(*own.args, **own.kwargs)  # the user's own error, if it is one
        raise


def _choose_for_closure(
    engines: Engines,
    model: nn.Module | None,
    closure: Callable[[], object],
    session: Session,
) -> Engine:
    conditions = Conditions(None if model is None else inside(model))
    allowed = tuple(x for x in engines.candidates if not isinstance(x, Compiled))
    if not allowed:
        raise ValueError('engine="compiled" runs a model: use `tangents(model)`')

    def run(engine: Engine, v: Sequence[Tensor]) -> list[choice.Pair]:
        if engine.whole_block:
            with forward_ad.dual_level(), engine.mode():
                make_dual_(session.parameters, v)
                return choice.pairs_of(_received(closure, session))
        supply = _first_pass(engine, model, conditions, closure, session, v)
        return [(z, supply(z)) for z in _received(closure, session)]

    return choice.choose(allowed, session.parameters, conditions, run, "the loss")


def _first_pass(
    engine: Engine,
    model: nn.Module | None,
    conditions: Conditions,
    closure: Callable[[], object],
    session: Session,
    tangents: Sequence[Tensor],
) -> Callable[[Tensor], Tensor | None]:
    """What an engine that is not dual does before the closure is run, so that outputs get t."""
    if isinstance(engine, DoubleBackward):
        return _from_graph(session.parameters, tangents)
    epsilon = difference(session.parameters, tangents)
    with conditions.restored(), eagerly(model):
        if isinstance(engine, TwoPass):
            with (
                forward_ad.dual_level(),
                torch.set_grad_enabled(not engine.lean),
                engine.mode(),
            ):
                make_dual_(session.parameters, tangents)
                found = [t for _, t in choice.pairs_of(_received(closure, session))]
        else:
            refuse_low_precision(session.parameters)
            with _moved(session.parameters, tangents, epsilon):
                found = [z.detach().clone() for z in _received(closure, session)]
    waiting = iter(found)

    def supply(z: Tensor) -> Tensor | None:
        there = next(waiting, z.new_empty(0))
        if there is None:
            return None
        if there.shape != z.shape:
            raise RuntimeError(
                "the loss evaluated other likelihoods when it was run again: the function given "
                "to `evaluate` must do the same each time"
            )
        return there if isinstance(engine, TwoPass) else (there - z.detach()) / epsilon

    return supply


def _received(closure: Callable[[], object], session: Session) -> list[Tensor]:
    """Run a closure for what its likelihoods are given."""
    session.received = []
    try:
        with here().inside():
            closure()
        return session.received
    finally:
        session.received = None


@contextmanager
def _moved(parameters: Sequence[Tensor], v: Sequence[Tensor], epsilon: float) -> Iterator[None]:
    """``θ + εv`` in the place of θ."""
    values = [p.detach().clone() for p in parameters]
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
        for p, v_p in zip(parameters, v, strict=True):
            p.add_(v_p, alpha=epsilon)
    try:
        yield
    finally:
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)


def _from_graph(
    parameters: Sequence[Tensor], tangents: Sequence[Tensor]
) -> Callable[[Tensor], Tensor | None]:
    """Tangents of any outputs by double backward."""

    def supply(z: Tensor) -> Tensor | None:
        if not z.requires_grad:
            return None
        return DoubleBackward.tangents_of([z], parameters, tangents)[0]

    return supply


def _operation_without_formula(error: NotImplementedError) -> str | None:
    """The operation that PyTorch's forward-AD error complains of, if it is one."""
    if isinstance(error, DerivativeInsideError):
        return "a derivative taken between the model and the likelihood"
    found = re.search(r"forward AD with (\S+)", str(error))
    if found:
        return found[1]
    return "a custom autograd.Function without `jvp`" if "jvp" in str(error) else None
