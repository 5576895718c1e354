"""The dual pass as one compiled function.

Dynamo cannot follow dual numbers or modes through a whole model, but it can follow
``torch.func.jvp``, and guards all that the model depends on. Its graph is then run once more under
:class:`~tangograd.engines.mode.GraphFreeTangents`, for the compiler to trace: so the tangents
compiled are those of the rules, attention's gradients are those of the fused kernel, and what is
saved for the backward pass is what an ordinary forward pass saves.

Nothing imports this module until the engine is asked for by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from tangograd.engines.base import (
    CallEngine,
    CannotRunError,
    DualOutputs,
    Site,
    TangentSource,
    Tensors,
    outside_dual_level,
)
from tangograd.engines.intercept import (
    FunctionalBody,
    ModuleCall,
    intercepted,
    positions_by_name,
)
from tangograd.engines.mode import GraphFreeTangents, LayerCall, recorded
from tangograd.engines.trees import attach_tangents, leaves_of

#: The number of batch sizes, or other conditions, for which a model is compiled.
SHAPES = 64

#: Functions of functorch by which a graph opens and closes its level.
LEVEL_FUNCTIONS = frozenset(
    {
        "_jvp_increment_nesting",
        "_enter_dual_level",
        "_unwrap_for_grad",
        "_exit_dual_level",
        "_jvp_decrement_nesting",
    }
)

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Compiled(CallEngine):
    """One pass with dual parameters, compiled.

    Attributes:
        backend: the name of a backend of ``torch.compile``.
    """

    name = "compiled"
    backend = "inductor"

    def __init__(self) -> None:
        self._compiled: dict[int, Callable[..., Any]] = {}

    @contextmanager
    def enter(self, site: Site, parameters: Tensors, tangents: Tensors) -> Iterator[TangentSource]:
        """Run one call of the model; a second one would lose the tangents of the first."""
        if site.closure is not None:
            raise CannotRunError('engine="compiled" runs a model: use `tangents(model)`')
        if site.model is None:
            raise ValueError(
                "engine='compiled' runs a model, and not a closure or raw parameters: use "
                "`tangents(model)`, or another engine for `evaluate`"
            )
        calls = 0

        def handle(call: ModuleCall) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise RuntimeError(
                    'engine="compiled" runs a model once in a `tangents` block: put its inputs '
                    'together in one batch, or use engine="auto"'
                )
            return self.run(call, parameters, tangents, site.layers)

        with (
            forward_ad.dual_level(),
            recorded(site.layers, parameters),
            intercepted(site.model, handle),
        ):
            yield DualOutputs()

    def run(
        self,
        call: ModuleCall,
        parameters: Tensors,
        tangents: Tensors,
        layers: list[LayerCall] | None = None,
    ) -> Any:
        """Make the call compiled; hooks, and what a wrapper does around the model, are not."""
        del layers  # those inside a compiled model are not seen
        moved: list[Any] = []

        def handle(own: ModuleCall) -> Any:
            if own.run is own.inner:  # a call of the module, with its hooks
                with intercepted(own.inner, handle):
                    return own.inner(*own.args, **own.kwargs)
            z, t = self._pass(own, parameters, tangents)
            moved[:] = leaves_of(t)
            return z

        if call.wrapper is None:
            return attach_tangents(handle(call), moved)
        with intercepted(call.wrapper.module, handle):
            outputs = call.wrapper.forward(*call.args, **call.kwargs)
        return attach_tangents(outputs, moved)

    def _pass(self, call: ModuleCall, parameters: Tensors, tangents: Tensors) -> tuple[Any, Any]:
        """Run the compiled function; buffers go in as copies, and their new values are kept."""
        names = positions_by_name(call.inner, parameters)
        trained = {name: parameters[i] for name, i in names.items()}
        moving = {name: tangents[i] for name, i in names.items()}
        rest = {n: p for n, p in call.inner.named_parameters() if n not in trained}
        buffers = dict(call.inner.named_buffers())
        if id(call.inner) not in self._compiled:
            self._compiled[id(call.inner)] = compiled_jvp(call.inner, self.backend)
        with outside_dual_level():
            z, t, after = self._compiled[id(call.inner)](
                trained, moving, rest, buffers, call.run, call.args, call.kwargs
            )
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(after[name])
        return z, t


def compiled_jvp(model: nn.Module, compiler: str) -> Callable[..., Any]:
    """Return the compiled ``(trained, moving, rest, buffers, run, args, kwargs) -> z, t, buffers``.

    Args:
        model: has the trained parameters, which move, and the rest of them; ``run`` is a function
            of it.
        compiler: the name of a backend of ``torch.compile``.
    """
    compiled = torch.compile(
        _jvp(model), fullgraph=True, dynamic=False, backend=partial(_trace_graph_free, compiler)
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
    """Return the function that is compiled."""
    body = FunctionalBody(model)

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


def _trace_graph_free(
    compiler: str, graph: fx.GraphModule, inputs: list[Any]
) -> Callable[..., Any]:
    """Compile a graph as it is run by the rules (a backend of ``torch.compile``)."""
    _plain_levels(graph)

    def run(*args: Any) -> Any:
        with forward_ad.dual_level(), GraphFreeTangents():
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
    """Leave the dual level to :func:`_trace_graph_free`, and tensors as they are.

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
        if name in LEVEL_FUNCTIONS:
            graph.graph.erase_node(node)
    graph.recompile()


def _functorch_name(node: fx.Node) -> str:
    """Return the name of a function of functorch, and an empty string for others."""
    module = getattr(node.target, "__module__", None) or ""
    return getattr(node.target, "__name__", "") if module.startswith("torch._functorch") else ""
