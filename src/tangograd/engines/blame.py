"""The adjoint test of outputs, and the search for the module that fails it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tangograd.adjoint import DisagreementError, check_adjoint, graph
from tangograd.engines.base import CannotRunError, Site, Tensors
from tangograd.engines.dual import Dual
from tangograd.engines.intercept import ModuleCall, call_of
from tangograd.engines.rules import make_dual, unpack
from tangograd.engines.trees import detached_copy, tensors_of
from tangograd.forward_mode import plain_torch
from tangograd.recording import ForwardContext, RecordedCall


def check_outputs(
    pairs: Sequence[tuple[Tensor, Tensor | None]],
    parameters: Tensors,
    v: Tensors,
    *,
    exact: bool = True,
) -> None:
    """Check ``⟨u, t⟩ = ⟨Jᵀu, v⟩`` for random u, over all outputs that have a graph.

    Args:
        pairs: outputs, and their tangents t.
        parameters: trainable parameters.
        v: their tangents.
        exact: whether t is a derivative and not a finite difference.
    """
    pairs = [(z, t) for z, t in pairs if z.requires_grad and z.is_floating_point()]
    if not pairs:
        return
    z = [z for z, _ in pairs]
    check_not_reentrant(z)
    u = random_like(z, seed=1)
    pulled_back = torch.autograd.grad(
        z, list(parameters), u, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    t = [torch.zeros_like(z) if t is None else t for z, t in pairs]
    check_adjoint(u, t, pulled_back, v, outputs=z, exact=exact, random=True)


def check_not_reentrant(outputs: Tensors) -> None:
    """Check that there are no reentrant checkpoints, which hide parameters from all engines.

    Raises:
        CannotRunError: there is one in the graph of the outputs.
    """
    if any(node.name() == "CheckpointFunctionBackward" for node in graph(outputs)):
        raise CannotRunError(
            "the model has a checkpoint with use_reentrant=True, whose inside no engine can "
            "see: use use_reentrant=False"
        )


def random_like(tensors: Tensors, seed: int = 0) -> list[Tensor]:
    """Return random tensors of the same shapes; with seed 0, of the same sizes of elements."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for x in tensors:
        numbers = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        size = float(x.detach().double().square().mean().sqrt()) if seed == 0 and x.numel() else 1.0
        found.append((numbers * (size or 1.0)).to(x))
    return found


def with_module_name(
    error: DisagreementError, model: nn.Module, calls: Sequence[RecordedCall], parameters: Tensors
) -> DisagreementError:
    """Return the error with the name of the module at fault, if it can be found.

    Args:
        error: its message says "the model".
        model: the model whose tangents and gradients disagree.
        calls: the calls of the model.
        parameters: trainable parameters.
    """
    for args, kwargs, context in calls:
        where = _faulty_module(call_of(model, args, kwargs), parameters, context)
        if where is not None:
            return DisagreementError(str(error).replace("the model", where, 1))
    return error


def _faulty_module(call: ModuleCall, parameters: Tensors, context: ForwardContext) -> str | None:
    """Return the name of the innermost module whose own tangents and gradients disagree.

    Each module is examined in a pass of its own with dual numbers, in which its inputs are cut from
    the graph, so that only what happens inside it counts.
    """
    v = random_like(parameters)
    modules = [(name, module) for name, module in call.inner.named_modules() if name]
    modules.sort(key=lambda pair: -pair[0].count("."))
    for engine in (Dual(), Dual(graph_free=False)):
        for name, module in modules:
            try:
                with (
                    context.restored(),
                    torch.enable_grad(),
                    engine.enter(Site(call.inner), parameters, v),
                    _examined(module, parameters, v),
                ):
                    own = detached_copy(call)
                    own.run(*own.args, **own.kwargs)
            except DisagreementError:
                return f"{name} ({type(module).__name__})"
            except Exception:
                continue
    return None


@contextmanager
def _examined(module: nn.Module, parameters: Tensors, v: Tensors) -> Iterator[None]:
    """Test the module at each of its calls in a block."""
    inputs: list[Tensor] = []
    tangents: list[Tensor] = []

    def cut(x: Tensor) -> Tensor:
        z, t = unpack(x)
        if not z.is_floating_point():
            return x
        z = z.detach().requires_grad_()
        inputs.append(z)
        tangents.append(torch.zeros_like(z) if t is None else t)
        return make_dual(z, t)

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        del module
        inputs.clear()
        tangents.clear()
        with plain_torch():
            return pytree.tree_map_only(Tensor, cut, (args, kwargs))

    def after(module: nn.Module, args: Any, outputs: Any) -> None:
        del module, args
        with plain_torch():
            pairs = [unpack(x) for x in tensors_of(outputs)]
            check_outputs(pairs, [*inputs, *parameters], [*tangents, *v])

    with (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after),
    ):
        yield
