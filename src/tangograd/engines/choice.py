"""Which engine is right for a model: tried once, on the first batch, and checked.

An engine is right if it runs, and if its tangents and the backward pass are derivatives of the same
function: ``⟨u, J v⟩ = ⟨Jᵀu, v⟩`` for random u and v (the velocity is 0 at first, and would tell
nothing). An engine that cannot run gives way to the next; one that runs and fails the check is an
error that names the module, because then the model itself means two things.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from tangograd.conditions import Conditions
from tangograd.engines.calls import Call
from tangograd.engines.passes import Dual, Engine, apart, leaves_of
from tangograd.engines.rules import plain, tangent_of
from tangograd.tangents import DisagreementError, check_adjoint, graph, plain_torch

Pair = tuple[Tensor, Tensor | None]  # outputs and their tangent

logger = logging.getLogger("tangograd")


class CannotRunError(RuntimeError):
    """No engine that was allowed can run the model."""


def choose(
    engines: Sequence[Engine],
    parameters: Sequence[Tensor],
    conditions: Conditions,
    run: Callable[[Engine, Sequence[Tensor]], list[Pair]],
    what: str,
) -> Engine:
    """The first engine that is right.

    Args:
        engines: best first.
        parameters: trainable ones.
        conditions: under which each is tried.
        run: ``(engine, tangents) ->`` outputs with their graph, and their tangents.
        what: of which it is said at INFO level which engine it gets.

    Raises:
        CannotRunError: none can; the message has each one's reason.
        DisagreementError: one can, but its tangents are not those of the gradients' function.
    """
    v = _direction(parameters)
    reasons = []
    for engine in engines:
        try:
            with conditions.restored(), torch.enable_grad():
                check_outputs(run(engine, v), parameters, v, exact=engine.exact)
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
    raise CannotRunError(
        f"no engine that was allowed can compute the tangents of {what} ({said}). "
        + _ways_out([engine.name for engine in engines])
    ) from reasons[0][1]


def _ways_out(tried: Sequence[str]) -> str:
    if "double-backward" in tried:
        return (
            "Give operations of your own a backward that can itself be differentiated, and "
            "checkpoint with use_reentrant=False."
        )
    return 'Leave the choice to engine="auto", or ask for "two-pass" or "double-backward".'


def pairs_of(outputs: Any) -> list[Pair]:
    """The tensors in outputs, each with its graph, and its tangent."""
    return [(plain(x), tangent_of(x)) for x in leaves_of(outputs) if isinstance(x, Tensor)]


def refuse_reentrant(outputs: Sequence[Tensor]) -> None:
    """Reentrant checkpoints hide parameters from forward mode, and from gradients but p.grad."""
    if any(node.name() == "CheckpointFunctionBackward" for node in graph(outputs)):
        raise CannotRunError(
            "the model has a checkpoint with use_reentrant=True, whose inside no engine can "
            "see: use use_reentrant=False"
        )


def check_outputs(
    pairs: Sequence[Pair],
    parameters: Sequence[Tensor],
    v: Sequence[Tensor],
    *,
    exact: bool = True,
) -> None:
    """``⟨u, t⟩ = ⟨Jᵀu, v⟩`` for random u, over all outputs that have a graph."""
    pairs = [(z, t) for z, t in pairs if z.requires_grad and z.is_floating_point()]
    if not pairs:
        return
    z = [z for z, _ in pairs]
    refuse_reentrant(z)
    u = _direction(z, seed=1)
    pulled = torch.autograd.grad(
        z, list(parameters), u, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    t = [torch.zeros_like(z) if t is None else t for z, t in pairs]
    check_adjoint(u, t, pulled, v, outputs=z, exact=exact, random=True)


def blamed(
    error: DisagreementError,
    call: Call,
    engine: Engine,
    parameters: Sequence[Tensor],
    conditions: Conditions,
) -> DisagreementError:
    """The error with the name of the module at fault, if it is found."""
    where = _blame(call, engine, parameters, conditions)
    if where is None:
        return error
    return DisagreementError(str(error).replace("the model", where, 1))


def _blame(
    call: Call, engine: Engine, parameters: Sequence[Tensor], conditions: Conditions
) -> str | None:
    """The innermost module whose own tangents and gradients disagree.

    Each module is looked at in a pass of its own, in which its inputs are cut from the graph, so
    that only what happens inside it counts. Other engines have no tangents inside the model, so
    that the passes are with dual numbers.
    """
    engine = engine if engine.whole_block else Dual()
    v = _direction(parameters)
    modules = [(name, module) for name, module in call.inner.named_modules() if name]
    modules.sort(key=lambda pair: -pair[0].count("."))
    for name, module in modules:
        try:
            with conditions.restored(), torch.enable_grad(), _looking(module, parameters, v):
                engine.run(apart(call), parameters, v)
        except DisagreementError:
            return f"{name} ({type(module).__name__})"
        except Exception:
            continue
    return None


@contextmanager
def _looking(
    module: nn.Module, parameters: Sequence[Tensor], v: Sequence[Tensor]
) -> Iterator[None]:
    """Check the module at each of its calls."""
    cut: list[tuple[Tensor, Tensor]] = []  # inputs, and their tangents

    def fresh(x: Tensor) -> Tensor:
        z, t = forward_ad.unpack_dual(x)
        if not z.is_floating_point():
            return x
        z = z.detach().requires_grad_()
        cut.append((z, torch.zeros_like(z) if t is None else t))
        dual: Tensor = z if t is None else forward_ad.make_dual(z, t)
        return dual

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        del module
        cut.clear()
        with plain_torch():
            return pytree.tree_map_only(Tensor, fresh, (args, kwargs))

    def after(module: nn.Module, args: Any, outputs: Any) -> None:
        del module, args
        with plain_torch():
            inputs, moved = [z for z, _ in cut], [t for _, t in cut]
            check_outputs(pairs_of(outputs), [*inputs, *parameters], [*moved, *v])

    hooks = (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _direction(like: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """Random numbers of the sizes of tensors, the same each time, from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for x in like:
        numbers = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        size = float(x.detach().double().square().mean().sqrt()) if seed == 0 and x.numel() else 1.0
        found.append((numbers * (size or 1.0)).to(x))
    return found


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
