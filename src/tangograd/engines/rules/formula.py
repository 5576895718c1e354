"""Functions that are run twice: as they are, and by PyTorch's forward formula without a graph.

When PyTorch applies its formula to dual numbers, what the graph of the outputs saves is saved with
tangents; and outputs that a later graph saves keep their tangents alive. This takes up to twice the
memory of an ordinary pass. For cheap functions it costs less to run the function once more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tangograd.engines.rules.duals import Rule, make_dual, tangent_of, unpack


def by_formula(func: Rule, *args: Any, **kwargs: Any) -> Any:
    """Apply a function that returns new tensors and has no effects."""
    pairs = [unpack(x) for x in args]
    if all(t is None for _, t in pairs) or any(isinstance(x, Tensor) for x in kwargs.values()):
        return NotImplemented
    return make_dual(func(*[x for x, _ in pairs], **kwargs), _tangent(func, pairs, **kwargs))


def batch_norm(
    func: Rule,
    input: Tensor,  # noqa: A002 - torch's name
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    *options: Any,
) -> Any:
    """Apply batch normalization, and PyTorch's formula without updating the averages again."""
    pairs = [unpack(x) for x in (input, weight, bias)]
    if all(t is None for _, t in pairs):
        return NotImplemented
    z = func(*[x for x, _ in pairs], running_mean, running_var, training, *options)
    given = (None, None) if training else (running_mean, running_var)
    return make_dual(z, _tangent(func, pairs, *given, training, *options))


def _tangent(
    func: Rule, pairs: list[tuple[Any, Tensor | None]], *args: Any, **kwargs: Any
) -> Tensor | None:
    """Return the tangent of ``func(*pairs, *args, **kwargs)``, the pairs being dual numbers."""
    with torch.no_grad():
        duals = [x if t is None else make_dual(x.detach(), t) for x, t in pairs]
        return tangent_of(func(*duals, *args, **kwargs))
