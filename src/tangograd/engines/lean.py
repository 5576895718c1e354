"""Dual numbers without the tangent's own graph.

PyTorch's forward mode records, beside the graph of the outputs, one of their tangents, for a
backward pass that never comes; and what the outputs' graph saves it saves with tangents. Here each
operation is run on plain numbers, so that its graph is that of an ordinary forward pass, and the
tangent is made by a rule without a graph (:mod:`tangograd.engines.rules`). Operations without a
rule go through PyTorch's formula, and their tangent is cut from the graph afterwards.

A derivative taken inside the pass (``autograd.grad``) is computed from what the graph saved, plain
numbers, and would lose its tangent: that is an error here, and such models are run without this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tangograd.engines.rules import LAYERS, RULES, cut
from tangograd.tangents import LayerCall

#: arguments that rules take by position
NAMED = frozenset({"input", "other", "mat2", "tensor", "weight", "indices"})


class DerivativeInsideError(NotImplementedError):
    """A derivative was taken inside a lean pass."""


class Recording(TorchFunctionMode):
    """Keeps the calls of layers whose weight is one of the parameters."""

    def __init__(self, calls: list[LayerCall] | None, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls = calls
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
                return _body(func)(*args, **kwargs)
        outputs = self.compute(func, args, kwargs)
        if self.calls is not None and func in LAYERS and not kwargs:
            self._note(func, outputs, *args)
        return outputs

    def compute(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the operation."""
        return func(*args, **kwargs)

    def _note(
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
        if self.calls is not None and id(weight) in self.parameters:
            x = forward_ad.unpack_dual(inputs).primal.detach()
            self.calls.append(LayerCall(func, x, weight, bias, options, outputs))


class Lean(Recording):
    """The mode under which dual numbers have no graph of their tangents.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with forward_ad.dual_level(), Lean():
        ...     z, t = forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones(2)) * x)
        >>> t, t.requires_grad, z.requires_grad
        (tensor([1., 2.]), False, True)
    """

    def __init__(
        self, calls: list[LayerCall] | None = None, parameters: Sequence[Tensor] = ()
    ) -> None:
        super().__init__(calls, parameters)

    def compute(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Outputs with their graph, and tangents without."""
        if func is torch.autograd.grad or func is Tensor.backward:
            raise DerivativeInsideError(
                "a derivative is taken inside the forward pass, whose tangent this engine loses"
            )
        rule = RULES.get(func)
        if rule is not None and not NAMED & kwargs.keys():
            outputs = rule(func, *args, **kwargs)
            if outputs is not NotImplemented:
                return outputs
        return cut(func(*args, **kwargs), args)


@cache
def _body(func: FunctionType) -> Callable[..., Any]:
    """A function of ``torch.nn.functional`` that is made of others: its code, to be run here.

    Such a function asks whether a mode is active and hands itself over whole, so that what it is
    made of would go unseen; the copy is told that none is. So are the functions between which it
    chooses, as ``max_pool2d`` does by whether indices are wanted.
    """
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    no = dict.fromkeys(asked, lambda *_: False)
    chosen_from = tuple(
        CellType(_body(cell.cell_contents)) if type(cell.cell_contents) is FunctionType else cell
        for cell in func.__closure__ or ()
    )
    copy = FunctionType(
        func.__code__, func.__globals__ | no, func.__name__, func.__defaults__, chosen_from or None
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
