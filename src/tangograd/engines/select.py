"""The choice of an engine: the first that runs and passes the adjoint test on the first batch.

An engine is right if it runs, and if its tangents and the backward pass are derivatives of the same
function: ``⟨u, J v⟩ = ⟨Jᵀu, v⟩`` for random u and v (the velocity is 0 at first, and would tell
nothing). An engine that cannot run gives way to the next; one that runs and fails the test is an
error that names the module, because then the model itself means two things.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tangograd.adjoint import DisagreementError
from tangograd.engines.base import (
    CannotRunError,
    DualOutputs,
    Engine,
    NoFormulaError,
    Site,
    TangentSource,
    Tensors,
    outputs_received,
)
from tangograd.engines.blame import check_outputs, random_like, with_module_name
from tangograd.engines.double_backward import DoubleBackward, FromGraph
from tangograd.engines.dual import Dual
from tangograd.engines.finite_difference import FiniteDifference
from tangograd.engines.intercept import ModuleCall, has_compiled, intercepted
from tangograd.engines.mode import DerivativeInsideError, LayerRecorder
from tangograd.engines.trees import detached_copy, tensors_of
from tangograd.engines.two_pass import TwoPass
from tangograd.parallel.base import replaced
from tangograd.recording import ForwardContext, RecordedCall
from tangograd.session import communicator

logger = logging.getLogger("tangograd")

#: In the order in which "auto" tries them.
ENGINES: tuple[Engine, ...] = (
    Dual(),
    Dual(graph_free=False),
    TwoPass(),
    TwoPass(graph_free=False),
    DoubleBackward(),
    FiniteDifference(),
)
NAMES = ("auto", *dict.fromkeys(engine.name for engine in ENGINES))


def resolve(name: str) -> Select:
    """Return the engine of a name.

    Example:
        >>> [type(engine).__name__ for engine in resolve("two-pass").candidates]
        ['TwoPass', 'TwoPass']
    """
    if name not in NAMES:
        raise ValueError(f"engine must be one of {', '.join(NAMES)}; got {name!r}")
    return Select(name, [engine for engine in ENGINES if name in ("auto", engine.name)])


class Select(Engine):
    """An engine that tries others on the first batch, and is the chosen one from then on.

    Each model has a choice of its own; all closures share one. Closures are run by the first
    candidate without a trial if that needs no further pass: call :meth:`reset` when it fails.

    Args:
        name: the name that stands for the candidates.
        candidates: the engines that are allowed, best first.

    Attributes:
        verified: whether the engine for closures has run one.
    """

    def __init__(self, name: str, candidates: Sequence[Engine]) -> None:
        self.name = name
        self.candidates = tuple(candidates)
        self.verified = False
        #: by model; that of closures by this object
        self._choices: weakref.WeakKeyDictionary[object, Engine] = weakref.WeakKeyDictionary()
        if self.candidates[0].single_pass:
            self._choices[self] = self.candidates[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Select:
        return resolve(self.name)

    def __reduce__(self) -> Any:
        return resolve, (self.name,)

    def chosen(self, site: Site) -> Engine | None:
        """Return the engine chosen for a site, or ``None`` before the choice."""
        if site.closure is None and site.model is None:
            return self.candidates[0]
        return self._choices.get(self._key(site))

    def select(self, site: Site, engine: Engine) -> Engine:
        """Use an engine for a site from now on."""
        self._choices[self._key(site)] = engine
        return engine

    def reset(self, site: Site) -> None:
        """Remove the choice: engines are tried again on the next batch."""
        self._choices.pop(self._key(site), None)

    def _key(self, site: Site) -> object:
        return self if site.closure is not None or site.model is None else site.model

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[TangentSource]:
        """Run the chosen engine, after a trial of the closure or at the first call of the model.

        Raises:
            NoFormulaError: an operation in the block cannot be differentiated by the engine.
        """
        try:
            engine = self.chosen(site)
            if engine is None and site.closure is not None:
                engine = self.select(site, self._try_on_closure(site, parameters))
            run = self._choosing if engine is None else engine.enter
            with run(site, parameters, tangents) as source:
                yield source
        except NotImplementedError as error:
            operation = _operation_without_formula(error)
            if operation is None:
                raise
            self.reset(site)
            raise NoFormulaError(
                f"{operation} has no forward-mode derivative here. Call the model that is given to "
                "`tangents(model)` as a whole, or give the loss as a function to "
                "`optimizer.evaluate`, and another engine is found; or ask for "
                'engine="double-backward".'
            ) from error

    @contextmanager
    def _choosing(
        self, site: Site, parameters: Tensors, tangents: Tensors
    ) -> Iterator[TangentSource]:
        """Choose at the first call of the model; that call and later ones run by the choice.

        If only parts of the model are called, outputs get their tangents from their graph, where
        the candidates allow it.
        """
        assert site.model is not None
        by_parts = any(engine.single_pass for engine in self.candidates)
        source = FromGraph(parameters, tangents) if by_parts else DualOutputs()
        recorder = LayerRecorder(site.layers, parameters)

        def handle(call: ModuleCall) -> Any:
            with replaced(recorder, "layers", None):  # the engine records the call
                engine = self.chosen(site)
                if engine is None and torch.is_grad_enabled():
                    engine = self.select(site, self._try_on_call(call, parameters))
                engine = engine or self.candidates[0]  # without gradients there is nothing to test
                source.exact = engine.exact
                inside = site._replace(level_is_open=True)
                with engine.enter(inside, parameters, tangents):
                    return call.model.forward(*call.args, **call.kwargs)

        recording = nullcontext() if site.layers is None else recorder
        with forward_ad.dual_level(), intercepted(site.model, handle), recording:
            yield source
        if self.chosen(site) is None:
            self.select(site, self.candidates[0])

    def _try_on_call(self, call: ModuleCall, parameters: Tensors) -> Engine:
        """Return the first candidate that is right for a call, in an open dual level."""
        required = communicator().engine
        if required is not None:
            return self._candidate(required)
        inner = call.inner
        allowed: Sequence[Engine] = self.candidates
        if has_compiled(call.model):
            allowed = [engine for engine in allowed if engine.runs_compiled] or allowed

        def outputs() -> list[Tensor]:
            own = detached_copy(call)
            run = inner.forward if inner is call.model else inner  # whose hooks have not run
            return tensors_of(run(*own.args, **own.kwargs))

        forward_ad.exit_dual_level()  # trials have levels of their own, closed before pulling back
        try:
            return _first_correct(allowed, Site(inner), parameters, outputs)
        except DisagreementError as error:
            calls = [RecordedCall(call.args, call.kwargs, ForwardContext(inner))]
            raise with_module_name(error, call.model, calls, parameters) from None
        except CannotRunError:
            with ForwardContext(inner).restored():
                again = detached_copy(call)
                again.run(*again.args, **again.kwargs)  # raises the user's own error, if it is one
            raise
        finally:
            forward_ad.enter_dual_level()

    def _try_on_closure(self, site: Site, parameters: Tensors) -> Engine:
        """Return the first candidate that is right for a closure."""
        assert site.closure is not None
        outputs = partial(outputs_received, site.closure)
        return _first_correct(self.candidates, site._replace(layers=None), parameters, outputs)

    def _candidate(self, name: str) -> Engine:
        for engine in self.candidates:
            if engine.name == name:
                return engine
        raise CannotRunError(f'engine={self.name!r} cannot run this model: use {name!r} or "auto"')


def _first_correct(
    engines: Sequence[Engine],
    site: Site,
    parameters: Tensors,
    outputs: Callable[[], list[Tensor]],
) -> Engine:
    """Return the first engine that runs and passes the adjoint test.

    Args:
        engines: best first.
        site: what they are entered for.
        parameters: trainable parameters.
        outputs: runs the site and returns its outputs.

    Raises:
        CannotRunError: none can run; the message has each one's reason.
        DisagreementError: one can, but its tangents are not those of the gradients' function.
    """
    what = "the loss" if site.closure is not None else type(site.model).__name__
    context, v = site.context(), random_like(parameters)
    reasons = []
    for engine in engines:
        try:
            with context.restored(), torch.enable_grad():
                with engine.enter(site, parameters, v) as source:
                    pairs = [source.tangent(z) for z in outputs()]
                check_outputs(pairs, parameters, v, exact=engine.exact)
        except (DisagreementError, CannotRunError):
            raise
        except Exception as error:
            reasons.append((engine, error))
            logger.info("engine %r cannot run %s: %s", engine.name, what, _first_line(error))
            continue
        level = logging.INFO if engine.exact else logging.WARNING
        logger.log(level, "engine %r computes the tangents of %s", engine.name, what)
        return engine
    said = "; ".join(f"{engine.name}: {_first_line(error)}" for engine, error in reasons)
    advice = 'Leave the choice to engine="auto", or ask for "two-pass" or "double-backward".'
    if any(isinstance(engine, DoubleBackward) for engine in engines):
        advice = (
            "Give operations of your own a backward that can itself be differentiated, and "
            "checkpoint with use_reentrant=False."
        )
    raise CannotRunError(
        f"no engine that was allowed can compute the tangents of {what} ({said}). {advice}"
    ) from reasons[0][1]


def _operation_without_formula(error: NotImplementedError) -> str | None:
    """Return the operation that PyTorch's forward-AD error complains of, if it is such an error."""
    if isinstance(error, DerivativeInsideError):
        return "a derivative taken between the model and the likelihood"
    found = re.search(r"forward AD with (\S+)", str(error))
    if found:
        return found[1]
    return "a custom autograd.Function without `jvp`" if "jvp" in str(error) else None


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
