"""The engines: ways to run a model so that its outputs carry ``J v``.

Each makes, of one call of a model, its outputs as dual numbers, whose tangents have no graph. They
are tried in the order of ``ENGINES``:

* **dual**: one pass with dual parameters, exact;
* **two-pass**: a pass with dual parameters and without a graph, then the ordinary forward pass,
  untouched, exact; for what an ordinary pass does that dual numbers cannot (fused or compiled
  kernels, checkpoints, sharded parameters);
* **double-backward**: ``J v`` is the derivative of ``Jᵀu`` in u; exact, needs no formula but the
  backward's;
* **finite-difference**: ``(z(θ + εv) - z(θ))/ε``; needs no formula, and is not exact;
* **compiled**: the dual pass, compiled; only by name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.func import functional_call
from torch.utils import _pytree as pytree

from tangograd.conditions import Conditions
from tangograd.distributed import fsdp_tangent_pass, is_sharded
from tangograd.engines.calls import Body, Call, intercepted
from tangograd.engines.lean import Lean
from tangograd.engines.rules import dual, plain, tangent_of
from tangograd.engines.tracing import compiled_jvp
from tangograd.vectors import dot

Tensors = Sequence[Tensor]


class Engine(ABC):
    """One way to run a model with tangents; it has no state but what it has compiled."""

    name: str
    #: all parameters are dual numbers in the whole block, not only in calls of the model
    whole_block = False
    #: dual numbers are computed without a graph of their tangents
    lean = True
    #: the tangents are derivatives, not differences
    exact = True

    @abstractmethod
    def run(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        """The outputs of the call as dual numbers, in an open dual level."""

    def mode(self) -> AbstractContextManager[Any]:
        """Under which dual numbers are computed."""
        return Lean() if self.lean else nullcontext()


class Dual(Engine):
    """One pass; ``lean=False`` is PyTorch's own forward mode, for derivatives inside the model."""

    name = "dual"
    whole_block = True

    def __init__(self, lean: bool = True) -> None:
        self.lean = lean

    def run(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        """With dual parameters, until the level ends."""
        make_dual_(parameters, tangents)
        with eagerly(call.inner), self.mode():
            return call.plain(*call.args, **call.kwargs)


class TwoPass(Engine):
    """A pass for the tangents, under the same conditions, and the ordinary one."""

    name = "two-pass"

    def __init__(self, lean: bool = True) -> None:
        self.lean = lean

    def run(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        """First the tangents, then the outputs."""
        conditions = Conditions(call.inner)
        with conditions.restored(), eagerly(call.inner), torch.set_grad_enabled(not self.lean):
            duals = self._pass(apart(call), parameters, tangents)
        moved = [tangent_of(x) for x in leaves_of(duals)]
        outputs = attach(call.plain(*plain_tree(call.args), **plain_tree(call.kwargs)), moved)
        if is_sharded(call.inner):  # fully_shard warns of views, and a dual is one of its value
            return pytree.tree_map_only(Tensor, Tensor.clone, outputs)
        return outputs

    def _pass(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        if is_sharded(call.inner):
            with self.mode():
                return fsdp_tangent_pass(call.inner, parameters, tangents, call.args, call.kwargs)
        duals = [
            forward_ad.make_dual(p if not self.lean else p.detach(), v)
            for p, v in zip(parameters, tangents, strict=True)
        ]
        with self.mode():
            return swapped(call, parameters, duals)


class DoubleBackward(Engine):
    """``J v = ∂/∂u ⟨Jᵀu, v⟩``: the ordinary pass, and two backward passes."""

    name = "double-backward"

    def run(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        """The ordinary pass gets its tangents from its graph."""
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            outputs = call.plain(*plain_tree(call.args), **plain_tree(call.kwargs))
            moved = self.tangents_of(leaves_of(outputs), parameters, tangents)
        if not wanted:
            outputs = pytree.tree_map_only(Tensor, Tensor.detach, outputs)
        return attach(outputs, moved)

    @staticmethod
    def tangents_of(
        leaves: Sequence[Any], parameters: Tensors, tangents: Tensors
    ) -> list[Tensor | None]:
        """``J v`` of outputs with their graph; ``None`` where there is none."""
        place = [i for i, z in enumerate(leaves) if isinstance(z, Tensor) and z.requires_grad]
        moved: list[Tensor | None] = [None] * len(leaves)
        with torch.enable_grad():
            z = [leaves[i] for i in place]
            u = [torch.zeros_like(x, requires_grad=True) for x in z]
            pulled = torch.autograd.grad(
                z, list(parameters), u, create_graph=True, allow_unused=True, materialize_grads=True
            )
            used = [(g, v) for g, v in zip(pulled, tangents, strict=True) if g.requires_grad]
        if used:
            g, v = zip(*used, strict=True)
            found = torch.autograd.grad(
                g, u, [x.to(y.dtype) for x, y in zip(v, g, strict=True)], allow_unused=True
            )
            for i, t, x in zip(place, found, z, strict=True):
                moved[i] = torch.zeros_like(x) if t is None else t
        return moved


class FiniteDifference(Engine):
    """``(z(θ + εv) - z(θ))/ε`` with ``ε‖v‖`` about ``√eps ‖θ‖``: relative errors of about √eps."""

    name = "finite-difference"
    exact = False

    def run(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        """One more pass, without a graph."""
        refuse_low_precision(parameters)
        conditions = Conditions(call.inner)
        epsilon = difference(parameters, tangents)
        with conditions.restored(), torch.no_grad():
            there = [p + epsilon * v for p, v in zip(parameters, tangents, strict=True)]
            moved = leaves_of(swapped(apart(call), parameters, there))
        outputs = call.plain(*plain_tree(call.args), **plain_tree(call.kwargs))

        def quotient(z: Any, z_there: Any) -> Tensor | None:
            if not isinstance(z, Tensor) or not z.is_floating_point():
                return None
            change = torch.sub(z_there, z.detach()) / epsilon
            return torch.where(z.isfinite(), change, 0.0)  # infinite logits stay where they are

        return attach(
            outputs, [quotient(*both) for both in zip(leaves_of(outputs), moved, strict=True)]
        )


class Compiled(Engine):
    """One pass with dual parameters, compiled."""

    name = "compiled"
    backend = "inductor"

    def __init__(self) -> None:
        self._compiled: dict[int, Callable[..., Any]] = {}

    def run(self, call: Call, parameters: Tensors, tangents: Tensors) -> Any:
        """Hooks, and what a wrapper does around the model, run as they were written."""
        moved: list[Any] = []

        def handle(own: Call) -> Any:
            if own.run is own.inner:  # a call of the module, with its hooks
                with intercepted(own.inner, handle):
                    return own.inner(*own.args, **own.kwargs)
            z, t = self._pass(own, parameters, tangents)
            moved[:] = leaves_of(t)
            return z

        if call.wrapper is None:
            return attach(handle(call), moved)
        with intercepted(call.wrapper.module, handle):
            outputs = call.wrapper.forward(*call.args, **call.kwargs)
        return attach(outputs, moved)

    def _pass(self, call: Call, parameters: Tensors, tangents: Tensors) -> tuple[Any, Any]:
        """Buffers go in as copies and come out as they are afterwards."""
        names = named(call.inner, parameters)
        trained = {name: parameters[i] for name, i in names.items()}
        moving = {name: tangents[i] for name, i in names.items()}
        rest = {n: p for n, p in call.inner.named_parameters() if n not in trained}
        buffers = dict(call.inner.named_buffers())
        if id(call.inner) not in self._compiled:
            self._compiled[id(call.inner)] = compiled_jvp(call.inner, self.backend)
        with outside_the_level():
            z, t, after = self._compiled[id(call.inner)](
                trained, moving, rest, buffers, call.run, call.args, call.kwargs
            )
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(after[name])
        return z, t


#: in the order in which "auto" tries them
ENGINES: tuple[Engine, ...] = (
    Dual(),
    Dual(lean=False),
    TwoPass(),
    TwoPass(lean=False),
    DoubleBackward(),
    FiniteDifference(),
)
NAMES = ("auto", *dict.fromkeys(engine.name for engine in ENGINES), Compiled.name)


def candidates(name: str) -> tuple[Engine, ...]:
    """The engines that a name stands for, best first.

    Example:
        >>> [type(engine).__name__ for engine in candidates("two-pass")]
        ['TwoPass', 'TwoPass']
    """
    if name not in NAMES:
        raise ValueError(f"engine must be one of {', '.join(NAMES)}; got {name!r}")
    if name == Compiled.name:
        return (Compiled(),)
    return ENGINES if name == "auto" else tuple(x for x in ENGINES if x.name == name)


def named(model: nn.Module, parameters: Tensors) -> dict[str, int]:
    """The names of parameters in a model, and their places in the list."""
    place = {id(p): i for i, p in enumerate(parameters)}
    return {
        f"{prefix}.{name}" if prefix else name: place[id(p)]
        for prefix, module in model.named_modules()  # a module that is there twice, once
        for name, p in module._parameters.items()
        if p is not None and id(p) in place
    }


def swapped(call: Call, parameters: Tensors, values: Tensors) -> Any:
    """The call with other values in the place of the parameters."""
    swaps = {f"inner.{n}": values[i] for n, i in named(call.inner, parameters).items()}
    # tied weights are all named; torch's own way of tying swaps a shared module twice
    return functional_call(
        Body(call.inner), swaps, (call.run, call.args, call.kwargs), tie_weights=False
    )


def eagerly(model: nn.Module | None) -> AbstractContextManager[Any]:
    """Compiled parts of a model run as they were written."""
    return torch.compiler.set_stance("force_eager") if has_compiled(model) else nullcontext()


def has_compiled(model: nn.Module | None) -> bool:
    """Whether parts of a model, or all of it, were given to ``torch.compile`` or scripted."""
    return model is not None and any(
        isinstance(part, torch.jit.ScriptModule)
        or "_orig_mod" in part._modules
        or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


@contextmanager
def outside_the_level() -> Iterator[None]:
    """Close the dual level for a while; what carries a tangent loses it."""
    forward_ad.exit_dual_level()
    try:
        yield
    finally:
        forward_ad.enter_dual_level()


def plain_tree(tree: Any) -> Any:
    """Without tangents."""
    return pytree.tree_map_only(Tensor, plain, tree)


def apart(call: Call) -> Call:
    """The call with inputs of its own: a model may change them, or take things out of them."""

    def own(x: Tensor) -> Tensor:
        z, t = forward_ad.unpack_dual(x)
        z = z.detach().clone().requires_grad_(x.requires_grad)
        return z if t is None else forward_ad.make_dual(z, t)  # type: ignore[no-any-return]

    args, kwargs = pytree.tree_map_only(Tensor, own, (call.args, call.kwargs))
    return call._replace(args=args, kwargs=kwargs)


def leaves_of(outputs: Any) -> list[Any]:
    """What outputs are made of; a dataclass that torch does not know, of its fields."""
    if is_dataclass(outputs) and not isinstance(outputs, type):
        known = pytree.tree_leaves(outputs)
        if len(known) == 1 and known[0] is outputs:
            return pytree.tree_leaves({f.name: getattr(outputs, f.name) for f in fields(outputs)})
    return pytree.tree_leaves(outputs)


def attach(outputs: Any, tangents: Sequence[Tensor | None]) -> Any:
    """Give outputs their tangents, in the order of their leaves, where there are some."""

    def dual(z: Any, t: Any) -> Any:
        if not isinstance(z, Tensor) or t is None:
            return z
        if z.shape != t.shape:
            raise RuntimeError(
                f"the model gave outputs of shape {tuple(z.shape)}, and of {tuple(t.shape)} when "
                "run again: its forward pass must depend on its inputs and torch's random state "
                "alone"
            )
        return forward_ad.make_dual(z, t.detach().to(z.dtype))

    found = [dual(*both) for both in zip(leaves_of(outputs), tangents, strict=True)]
    leaves, tree = pytree.tree_flatten(outputs)
    if len(leaves) == 1 and leaves[0] is outputs and is_dataclass(outputs):
        inner = {f.name: getattr(outputs, f.name) for f in fields(outputs)}
        _, tree = pytree.tree_flatten(inner)
        return replace(outputs, **pytree.tree_unflatten(found, tree))  # type: ignore[type-var]
    return pytree.tree_unflatten(found, tree)


def make_dual_(parameters: Tensors, tangents: Tensors) -> None:
    """Give each parameter its tangent, in place, until the dual level ends.

    Values and version counters stay as they are; closing the level removes every tangent.
    """
    torch.clear_autocast_cache()  # it may hold weights with the tangents of another pass
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(parameters)):
        for p, v in zip(parameters, tangents, strict=True):
            p.copy_(dual(p.detach(), v))


def refuse_low_precision(parameters: Tensors) -> None:
    """A finite difference in bfloat16 is off by a fifth."""
    kind = parameters[0].device.type if parameters else "cpu"
    low = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind).itemsize < 4
    if low or any(p.dtype.itemsize < 4 for p in parameters):
        raise RuntimeError(
            "the finite-difference engine has no digits left in 16-bit arithmetic (autocast or "
            'half-precision parameters): use float32, or engine="dual" or "two-pass"'
        )


def difference(parameters: Tensors, tangents: Tensors) -> float:
    """ε of the finite difference."""
    values = [p.detach() for p in parameters]
    size, speed = math.sqrt(dot(values, values)), math.sqrt(dot(tangents, tangents))
    precision = max((torch.finfo(p.dtype).eps for p in parameters), default=1.0)
    return math.sqrt(precision) * (size or 1.0) / (speed or 1.0)
