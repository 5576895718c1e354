"""Matrix products of tangents, which need no graph, by oneDNN where that is faster.

``functional.linear`` in single precision calls MKL, which uses half the width of the vector units
of processors that are not Intel's; oneDNN is up to twice as fast on these. PyTorch has an operation
for it, without a gradient, which its compiler uses for models with constant weights.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch.nn import functional

#: The number of multiplications below which calling oneDNN takes longer than the product.
FEW_PRODUCTS = 1 << 20
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def product(x: Tensor, W: Tensor, b: Tensor | None = None, onto: Tensor | None = None) -> Tensor:
    """Return ``x Wᵀ + b``, or add it to ``onto``, which may be overwritten; x is a matrix, too.

    Example:
        >>> product(torch.ones(1, 2), torch.eye(2), onto=torch.tensor([[1.0, 2.0]]))
        tensor([[2., 3.]])
    """
    if _is_for_onednn(x, W, b):
        b = None if b is None else b.contiguous()  # whose strides it does not look at
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, W, b, "none", [], "")
        return found if onto is None else onto.add_(found)
    if onto is None:
        return functional.linear(x, W, b)
    if b is None and W.dim() == 2 and onto.dtype == x.dtype == W.dtype:
        return onto.addmm_(x, W.t())  # without autocast, or where it has nothing to do
    return onto.add_(functional.linear(x, W, b))


def _is_for_onednn(x: Tensor, W: Tensor, b: Tensor | None) -> bool:
    """Return whether oneDNN has this product and is faster."""
    return (
        AVAILABLE
        and x.device.type == "cpu"
        and W.dim() == 2
        and (b is None or b.shape == W.shape[:1])  # it does not broadcast
        and x.numel() * len(W) >= FEW_PRODUCTS
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and all(_is_plain(y) for y in (x, W, b) if y is not None)
    )


def _is_plain(x: Tensor) -> bool:
    """Return whether a tensor is dense, not inside a transform such as vmap, and of no subclass."""
    return (
        x.dtype == torch.float32
        and x.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and type(x).__torch_dispatch__ is Tensor.__torch_dispatch__
    )
