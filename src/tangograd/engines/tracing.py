"""The lean dual pass as one compiled function.

Dynamo cannot follow dual numbers or modes through a whole model, but it can follow
``torch.func.jvp``, and guards all that the model depends on. Its graph is then run once more under
:class:`~tangograd.engines.lean.Lean`, for the compiler to trace: so the tangents compiled are those
of the rules, attention's gradients are those of the fused kernel, and what is saved for the
backward pass is what an ordinary forward pass saves.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import config as dynamo
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config as functorch
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from tangograd.engines.calls import Body
from tangograd.engines.lean import Lean

#: for how many sizes of batches, or other conditions, a model is compiled
SHAPES = 64

#: functions of functorch by which a graph opens its level, and closes it
OF_LEVELS = frozenset(
    {
        "_jvp_increment_nesting",
        "_enter_dual_level",
        "_unwrap_for_grad",
        "_exit_dual_level",
        "_jvp_decrement_nesting",
    }
)

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def compiled_jvp(model: nn.Module, compiler: str) -> Callable[..., Any]:
    """``(trained, moving, rest, buffers, run, args, kwargs) -> z, t, buffers after``, compiled.

    Args:
        model: of which ``run`` is a function; it has the trained parameters, which move, and the
            rest of them.
        compiler: the name of a backend of ``torch.compile``.
    """
    compiled = torch.compile(
        _jvp(model), fullgraph=True, dynamic=False, backend=partial(_trace_leanly, compiler)
    )

    def run(*args: Any) -> Any:
        # Dynamo runs PyTorch's formulas on shapes; fused attention has none. It would split the
        # graph at the buckets of a DistributedDataParallel, through the pass with tangents.
        limits = dynamo.patch(optimize_ddp=False, recompile_limit=SHAPES)
        try:
            with limits, sdpa_kernel(SDPBackend.MATH):
                return compiled(*args)
        except BackendCompilerFailed as error:
            raise error.inner_exception from None  # it is that which says what is wrong

    return run


def _jvp(model: nn.Module) -> Callable[..., Any]:
    """The function that is compiled."""
    body = Body(model)

    def both(
        trained: dict[str, Tensor],
        moving: dict[str, Tensor],
        rest: dict[str, Tensor],
        buffers: dict[str, Tensor],
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        def outputs(parameters: dict[str, Tensor]) -> Any:
            own = {name: buffer.clone() for name, buffer in buffers.items()}
            swaps = {f"inner.{name}": x for name, x in (parameters | rest | own).items()}
            z = functional_call(body, swaps, (run, args, kwargs), tie_weights=False)
            return z, own

        z, t, after = torch.func.jvp(  # type: ignore[misc]
            outputs, (trained,), (moving,), has_aux=True
        )
        return z, pytree.tree_map(Tensor.detach, t), after

    # Dynamo counts what it has compiled, and remembers sizes, by code and by its name
    name = f"{both.__name__}_{next(_numbers)}"
    code = both.__code__.replace(co_name=name, co_qualname=name)
    return FunctionType(code, both.__globals__, name, None, both.__closure__)


_numbers = count()


def _trace_leanly(compiler: str, graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A backend of ``torch.compile``: another one, that sees the graph run by the lean rules."""
    _plain_levels(graph)

    def run(*args: Any) -> Any:
        with forward_ad.dual_level(), Lean():
            return graph(*args)

    whole = fx.Graph()
    *nodes, output = graph.graph.nodes
    places = [whole.node_copy(node) for node in nodes if node.op == "placeholder"]
    results = whole.call_function(run, tuple(places))
    numbers = range(len(output.args[0]))
    whole.output(tuple(whole.call_function(operator.getitem, (results, i)) for i in numbers))
    # what tangents share with the backward pass, such as masks, need not be saved for it
    with sdpa_kernel(FUSED), functorch.patch(ban_recompute_materialized_backward=False):
        backend = torch._dynamo.lookup_backend(compiler)
        return backend(fx.GraphModule(graph, whole), inputs)


def _plain_levels(graph: fx.GraphModule) -> None:
    """Leave the dual level to :func:`_trace_leanly`, and tensors as they are.

    ``torch.func.jvp`` wraps its tensors, for transforms inside one another. Without that, functions
    with a backward of their own work; and a level that PyTorch opens is closed after an error too.
    """
    parts = [part for part in graph.modules() if isinstance(part, fx.GraphModule)]
    inside = [_functorch_name(node) for part in parts for node in part.graph.nodes]
    if sum(name.endswith("_increment_nesting") for name in inside) > 1:
        raise NotImplementedError(
            "transforms of torch.func, such as vmap, inside a model are not compiled with tangents"
        )
    for node in list(graph.graph.nodes):
        name = _functorch_name(node)
        if name == "_unwrap_for_grad":
            node.replace_all_uses_with(node.args[0])
        if name in OF_LEVELS:
            graph.graph.erase_node(node)
    graph.recompile()


def _functorch_name(node: fx.Node) -> str:
    """Of a function of functorch; nothing for others."""
    module = getattr(node.target, "__module__", None) or ""
    return getattr(node.target, "__name__", "") if module.startswith("torch._functorch") else ""
