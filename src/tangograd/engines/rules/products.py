"""Matrix products of tangents, which need no graph, by oneDNN where that is faster.

``functional.linear`` in single precision calls MKL, which uses half the width of the vector units
of processors that are not Intel's; oneDNN is up to twice as fast on these. PyTorch has an operation
for it, which its compiler uses for models with constant weights. That operation has no gradient and
requires constant weights, so it is wrapped in a custom operation, which the compiler leaves alone.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn import functional

#: The number of multiplications below which calling oneDNN takes longer than the product.
FEW_PRODUCTS = 1 << 20
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)

_library = torch.library.Library("tangograd", "FRAGMENT")
_library.define("product(Tensor x, Tensor W, Tensor? b) -> Tensor")


@torch.library.impl(_library, "product", "CPU")
def _by_onednn(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    b = None if b is None else b.contiguous()  # whose strides it does not look at
    return torch.ops.mkldnn._linear_pointwise(x, W, b, "none", [], "")  # type: ignore[no-any-return]


def _shaped(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    del b
    return x.new_empty(len(x), len(W))


torch.library.register_fake("tangograd::product", _shaped, lib=_library)


def product(x: Tensor, W: Tensor, b: Tensor | None = None, onto: Tensor | None = None) -> Tensor:
    """Return ``x Wᵀ + b``, or add it to ``onto``, which may be overwritten; x is a matrix, too.

    Example:
        >>> product(torch.ones(1, 2), torch.eye(2), onto=torch.tensor([[1.0, 2.0]]))
        tensor([[2., 3.]])
    """
    if _is_for_onednn(x, W, b):
        found: Tensor = torch.ops.tangograd.product(x, W, b)
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
        and (
            type(x).__torch_dispatch__ is Tensor.__torch_dispatch__
            or isinstance(x, FakeTensor | FunctionalTensor)  # of the compiler
        )
    )
