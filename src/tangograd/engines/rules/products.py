"""Products of tangents, which need no graph, by the quicker of the libraries that torch has.

``functional.linear`` in single precision is MKL's, which uses half the width of the vector units of
processors that are not Intel's; on these, oneDNN is up to twice as quick. torch brings it, too, and
its compiler calls it for models whose weights are constant. The operation by which it does has no
gradient and wants such weights; so there is one of our own around it, which the compiler leaves
alone.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch.nn import functional

from tangograd.shards import is_shard

#: multiplications below which calling oneDNN takes longer than the product
FEW = 1 << 20
AVAILABLE = (
    torch.backends.mkldnn.is_available()
    and platform.machine().lower() in ("x86_64", "amd64")
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)

_library = torch.library.Library("tangograd", "FRAGMENT")
_library.define("product(Tensor x, Tensor W, Tensor? b) -> Tensor")


@torch.library.impl(_library, "product", "CPU")
def _by_onednn(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, W, b, "none", [], "")  # type: ignore[no-any-return]


def _shaped(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    del b
    return x.new_empty(len(x), len(W))


torch.library.register_fake("tangograd::product", _shaped, lib=_library)


def product(x: Tensor, W: Tensor, b: Tensor | None = None, onto: Tensor | None = None) -> Tensor:
    """``x Wᵀ + b``, added to a matrix that may be overwritten, if there is one; x is a matrix too.

    Example:
        >>> product(torch.ones(1, 2), torch.eye(2), onto=torch.tensor([[1.0, 2.0]]))
        tensor([[2., 3.]])
    """
    if _is_for_onednn(x, W):
        found: Tensor = torch.ops.tangograd.product(x, W, b)
        return found if onto is None else onto.add_(found)
    if onto is None:
        return functional.linear(x, W, b)
    if b is None and W.dim() == 2 and onto.dtype == x.dtype == W.dtype:
        return onto.addmm_(x, W.t())  # without autocast, or where it has nothing to do
    return onto.add_(functional.linear(x, W, b))


def _is_for_onednn(x: Tensor, W: Tensor) -> bool:
    """Whether it has this product, and is worth its call."""
    return (
        AVAILABLE
        and x.dtype == W.dtype == torch.float32
        and x.device.type == "cpu"
        and W.dim() == 2
        and x.numel() * len(W) >= FEW
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not any(_is_special(y) for y in (x, W))
    )


def _is_special(x: Tensor) -> bool:
    """Inside a transform such as vmap, or spread over processes."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x) or is_shard(x)
