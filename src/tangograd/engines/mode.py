"""Modes that see every torch function of a pass: graph-free tangents, and calls of layers.

PyTorch's forward mode records, beside the graph of the outputs, one of their tangents, for a
backward pass that never comes; and what the outputs' graph saves it saves with tangents.
:class:`GraphFreeTangents` runs each operation on plain numbers, so that its graph is that of an
ordinary forward pass, and the tangent is computed by a rule without a graph
(:mod:`tangograd.engines.rules`). Operations without a rule go through PyTorch's formula, and their
tangent is detached from the graph afterwards.

A derivative taken inside the pass (``autograd.grad``) is computed from what the graph saved, plain
numbers, and would lose its tangent. That is an error here, and such models are run without this
mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tangograd.engines.rules import LAYERS, RULES, detach_tangent, primal

#: Arguments that rules take by position only.
POSITIONAL = frozenset({"input", "other", "mat2", "tensor", "weight", "indices"})


#: Functions of ``(table, indices, ...)`` whose calls are recorded beside those of layers.
EMBEDDINGS = frozenset({torch.embedding, torch.embedding_bag})


class DerivativeInsideError(NotImplementedError):
    """A derivative was taken inside a pass whose tangents have no graph."""


class LayerCall(NamedTuple):
    """One use of a linear layer, a convolution or an embedding with a trainable weight.

    Attributes:
        function: ``functional.linear``, ``torch.conv2d``, ``torch.embedding``, …
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


class LayerRecorder(TorchFunctionMode):
    """The mode that records the calls of layers whose weight is one of the parameters.

    Args:
        layers: the list to which calls are appended; ``None`` to record nothing.
        parameters: leaf tensors.
    """

    def __init__(
        self, layers: list[LayerCall] | None = None, parameters: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()
        self.layers = layers
        self.parameters = {id(p) for p in parameters}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if type(func) is FunctionType and func.__module__ == functional.__name__:
            with self:
                return _unguarded(func)(*args, **kwargs)
        outputs = self.compute(func, args, kwargs)
        if self.layers is not None and func in LAYERS and not kwargs:
            self._record(func, outputs, *args)
        elif self.layers is not None and func in EMBEDDINGS:
            self._record(func, outputs, args[1], args[0])
        return outputs

    def compute(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one operation."""
        return func(*args, **kwargs)

    def _record(
        self,
        func: Callable[..., Any],
        outputs: Tensor,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *options: Any,
    ) -> None:
        if torch._C._functorch.is_functorch_wrapped_tensor(inputs):
            return  # inside vmap, from where nothing can be taken out
        if self.layers is not None and id(weight) in self.parameters:
            x = primal(inputs).detach()
            self.layers.append(LayerCall(func, x, weight, bias, options, outputs))


class GraphFreeTangents(LayerRecorder):
    """The mode under which the tangents of dual numbers have no graph.

    Example:
        >>> from torch.autograd import forward_ad
        >>> from tangograd.forward_mode import load_formulas
        >>> load_formulas()
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with forward_ad.dual_level(), GraphFreeTangents():
        ...     z, t = forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones(2)) * x)
        >>> t, t.requires_grad, z.requires_grad
        (tensor([1., 2.]), False, True)
    """

    def compute(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one operation: outputs with their graph, tangents without."""
        if func is torch.autograd.grad or func is Tensor.backward:
            raise DerivativeInsideError(
                "a derivative is taken inside the forward pass, whose tangent this engine loses"
            )
        rule = RULES.get(func)
        if rule is not None and not POSITIONAL & kwargs.keys():
            outputs = rule(func, *args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        return detach_tangent(func(*args, **kwargs), args)


def recorded(
    layers: list[LayerCall] | None, parameters: Sequence[Tensor]
) -> AbstractContextManager[Any]:
    """Record the calls of layers in a block, if there is a list for them."""
    return nullcontext() if layers is None else LayerRecorder(layers, parameters)


@cache
def _unguarded(func: FunctionType) -> Callable[..., Any]:
    """Return a copy of a function of ``torch.nn.functional`` that runs its body under modes.

    Such a function asks whether a mode is active and hands itself over whole, so that the
    operations in it would go unseen; the copy is told that none is. So are the functions between
    which it chooses, as ``max_pool2d`` does by whether indices are wanted.
    """
    guards = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    no = dict.fromkeys(guards, lambda *_: False)
    chosen_from = tuple(
        CellType(_unguarded(cell.cell_contents))
        if type(cell.cell_contents) is FunctionType
        else cell
        for cell in func.__closure__ or ()
    )
    copy = FunctionType(
        func.__code__, func.__globals__ | no, func.__name__, func.__defaults__, chosen_from or None
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
