"""Several processes that train one model: what they agree on, and when they talk.

Data-parallel training averages gradients over the processes, so a step's loss is the mean of
theirs, and the blocks of all processes are micro-batches of one step. ``p.grad`` comes agreed from
the backward pass. What TANGO measures besides (norms of pseudo-gradients for γ, squares for C,
curvatures for the guard) is pulled back apart from it and is each process's own: its mean over the
processes is taken here, so that all of them hold the same γ, C, v and θ, to the last bit.

With a number for γ and ``preconditioner=None`` there is nothing to agree on, and the processes
exchange what they would exchange for SGD.

Which processes belong together is told by the model: that given to ``tangents`` is wrapped in
``DistributedDataParallel`` or made of ``fully_shard``, or the block is inside the wrapper's own
forward pass, as a ``training_step`` of Lightning is. A plain model trains alone, whether
``torch.distributed`` is initialised or not; a wrapper that runs in its block is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from tangograd.adjoint import vjp
from tangograd.fsdp import fsdp_tangent_pass, groups, is_sharded, is_unit, pull_back_to_shards
from tangograd.shards import is_shard, local

__all__ = [
    "ALONE",
    "Peers",
    "among",
    "batch_factor",
    "fsdp_tangent_pass",
    "here",
    "is_sharded",
    "peers",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Peers:
    """The processes that train one model together; by default there is one.

    Attributes:
        group: theirs; ``None`` for one process.
        device: where tensors that they exchange live.
        wrapper: the module that averages their gradients.

    Example:
        >>> alone = Peers()
        >>> alone.size, alone.mean([1.0, 2.0]), alone.gather("a")
        (1, [1.0, 2.0], ['a'])
    """

    group: dist.ProcessGroup | None = None
    device: torch.device | str = "cpu"
    wrapper: nn.Module | None = None

    @property
    def size(self) -> int:
        """How many they are."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """Which of them this one is."""
        return 0 if self.group is None else self.group.rank()

    def mean(self, numbers: Sequence[float]) -> list[float]:
        """The mean of each number over the processes."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=self.group)
        return [float(x) for x in total / self.size]

    def dot(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Return this process's part of ``⟨a, b⟩``: its mean over the processes is the whole.

        >>> Peers().dot([torch.ones(2), torch.tensor(2.0)], [torch.ones(2), torch.tensor(5.0)])
        tensor(12., dtype=torch.float64)
        """
        pairs = [(local(x).reshape(-1), local(y).reshape(-1)) for x, y in zip(a, b, strict=True)]
        if not pairs:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        whole = torch.stack([torch.dot(x, y).double() for x, y in pairs]).sum()
        return whole * self.size if self.sharded else whole

    def average(self, numbers: Tensor) -> Tensor:
        """Return the mean of each number over the processes, on the device."""
        if self.size == 1:
            return numbers
        total = numbers.double()
        dist.all_reduce(total, group=self.group)
        return total / self.size

    def read(self, numbers: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the means of 0-d tensors over the processes, in one exchange and one host read.

        >>> Peers().read({"a": torch.tensor(1.0), "b": torch.tensor(2)})
        {'a': 1.0, 'b': 2.0}
        """
        values = torch.stack([torch.as_tensor(x).double() for x in numbers.values()])
        return dict(zip(numbers, self.average(values).tolist(), strict=True))

    def mean_of_tensors(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The mean of each tensor, of equal shapes everywhere, in one exchange a type."""
        found = list(tensors)
        if self.size == 1:
            return found
        own = [i for i, x in enumerate(tensors) if not is_shard(x)]  # shards are agreed on
        for dtype in dict.fromkeys(tensors[i].dtype for i in own):
            places = [i for i in own if tensors[i].dtype == dtype]
            total = torch.cat([found[i].reshape(-1) for i in places])
            dist.all_reduce(total, group=self.group)
            pieces = total.div_(self.size).split([found[i].numel() for i in places])
            for i, piece in zip(places, pieces, strict=True):
                found[i] = piece.reshape(found[i].shape)
        return found

    def gather(self, item: T) -> list[T]:
        """What each process has, a small object, in the order of their ranks."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items

    @property
    def sharded(self) -> bool:
        """Whether each has a part of the parameters."""
        return self.wrapper is not None and not isinstance(self.wrapper, DistributedDataParallel)

    def pull_back(
        self, outputs: Sequence[Tensor], parameters: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """``Jᵀ u`` of this process's outputs; for sharded parameters, its mean over processes."""
        if self.sharded:
            self._check_synchronised()
            return pull_back_to_shards(outputs, parameters, cotangents)
        return vjp(outputs, parameters, cotangents)

    def _check_synchronised(self) -> None:
        units = [module for module in self.wrapper.modules() if is_unit(module)]  # type: ignore[union-attr]
        if not all(group.reduce_grads for unit in units for group in groups(unit)):
            raise RuntimeError(
                "set_requires_gradient_sync(False) leaves gradients of micro-batches on each "
                "process, where what γ and C measure would be mixed with them: synchronise every "
                "micro-batch, or use a number for gamma and preconditioner=None"
            )

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Tangents pass by the wrapper, and what is pulled back is not taken for the backward pass.

        With ``find_unused_parameters`` or ``static_graph``, DistributedDataParallel puts a node
        behind the outputs that knows nothing of tangents; and the first time that a derivative
        comes through it, it reduces gradients, unless the flag says that this was done.
        """
        wrapper = self.wrapper
        if not isinstance(wrapper, DistributedDataParallel) or not (
            wrapper.static_graph or wrapper.find_unused_parameters
        ):
            yield
            return
        behind, first = wrapper._post_forward, _first_reduction_is_due(wrapper)

        def post_forward(outputs: Any) -> Any:
            leaves, tree = pytree.tree_flatten(outputs)
            pairs = [_split(leaf) for leaf in leaves]
            _set_first_reduction(wrapper, first)
            outputs = behind(pytree.tree_unflatten([z for z, _ in pairs], tree))
            _set_first_reduction(wrapper, False)
            leaves = pytree.tree_leaves(outputs)
            tangents = [t for _, t in pairs]
            joined = [
                z if t is None else forward_ad.make_dual(z, t)
                for z, t in zip(leaves, tangents, strict=True)
            ]
            return pytree.tree_unflatten(joined, tree)

        vars(wrapper)["_post_forward"] = post_forward
        _set_first_reduction(wrapper, False)
        try:
            yield
        finally:
            del vars(wrapper)["_post_forward"]
            _set_first_reduction(wrapper, first)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Calls of the wrapper run the module inside it, in the block: without its exchanges.

        A pass that no backward pass follows must not start DistributedDataParallel's reductions.
        """
        wrapper = self.wrapper
        if not isinstance(wrapper, DistributedDataParallel):
            yield
            return
        vars(wrapper)["forward"] = wrapper.module
        try:
            yield
        finally:
            del vars(wrapper)["forward"]


def _split(leaf: Any) -> tuple[Any, Tensor | None]:
    """A value and its tangent."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf, None
    z, t = forward_ad.unpack_dual(leaf)
    return (leaf, None) if t is None else (z, t.detach())


def _first_reduction_is_due(wrapper: DistributedDataParallel) -> bool:
    return wrapper.static_graph and not wrapper._static_graph_delay_allreduce_enqueued


def _set_first_reduction(wrapper: DistributedDataParallel, due: bool) -> None:
    if wrapper.static_graph:
        wrapper._static_graph_delay_allreduce_enqueued = not due


ALONE = Peers()


def peers(model: nn.Module | None, parameters: Iterable[Tensor] | None = None) -> Peers:
    """Those with which a model is trained, as its wrapper tells, or the one that runs it now.

    Args:
        model: if there is one.
        parameters: that are trained; those of the model by default.
    """
    while model is not None and isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner  # torch.compile
    if isinstance(model, DistributedDataParallel):
        return _peers_of(model)
    if model is not None and is_sharded(model):
        for unit in model.modules():
            if is_unit(unit):
                unit.reshard()  # type: ignore[operator]  # after an evaluation, a root is not
        for name, p in model.named_parameters():
            if p.requires_grad and not is_shard(p):
                raise ValueError(
                    f"the parameter {name!r} is not sharded as others of the model are, so its "
                    "gradient is not averaged: call fully_shard on the model itself, too"
                )
        mesh: Any = next(model.parameters()).device_mesh  # type: ignore[attr-defined]
        if mesh.ndim > 1:
            raise NotImplementedError(
                "TANGO knows models sharded over a mesh of one dimension; this one has the "
                f"dimensions {mesh.mesh_dim_names or mesh.ndim}: use fully_shard with a mesh of "
                "one dimension"
            )
        return Peers(mesh.get_group(), torch.device(mesh.device_type), model)
    if parameters is None:
        parameters = () if model is None else model.parameters()
    return _peers_around(parameters)


def _peers_of(wrapper: DistributedDataParallel) -> Peers:
    return Peers(wrapper.process_group, next(wrapper.parameters()).device, wrapper)


def _peers_around(parameters: Iterable[Tensor]) -> Peers:
    """Those of the wrapper whose forward pass is under way, if it averages these gradients."""
    wrapper: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()
    if wrapper is None:
        return ALONE
    averaged = {id(p) for p in wrapper.parameters()}
    ours = [id(p) in averaged for p in parameters if p.requires_grad]
    if any(ours) and not all(ours):
        raise ValueError(
            "the DistributedDataParallel that is running has some of the optimizer's parameters "
            "and not the others, so only part of the gradient is averaged over processes: wrap "
            "one module that has them all"
        )
    return _peers_of(wrapper) if any(ours) else ALONE


_here = ALONE


def here() -> Peers:
    """Those of the `tangents` block that is open now."""
    return _here


@contextmanager
def among(those: Peers, parameters: Iterable[Tensor]) -> Iterator[None]:
    """A block in which likelihoods know with whom the model's parameters are trained."""
    global _here
    before, _here = _here, those
    try:
        with _without_other_wrappers(those, parameters), those.undisturbed():
            yield
    finally:
        _here = before


@contextmanager
def _without_other_wrappers(those: Peers, parameters: Iterable[Tensor]) -> Iterator[None]:
    """Refuse a wrapper that averages these gradients and is not the one known."""
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    plain, ours = DistributedDataParallel.forward, {id(p) for p in parameters}

    def forward(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if wrapper is not those.wrapper and any(id(p) in ours for p in wrapper.parameters()):
            raise RuntimeError(
                "a DistributedDataParallel runs in this block and was not given to it, so that "
                "each process would find a γ and a preconditioner of its own, and the models would "
                "drift apart: give `tangents` (or `evaluate`) the wrapper, not the module inside "
                "it or around it"
            )
        return plain(wrapper, *args, **kwargs)

    DistributedDataParallel.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        DistributedDataParallel.forward = plain  # type: ignore[method-assign]


def batch_factor(samples: float, model: nn.Module) -> float:
    """What to multiply the loss by when processes have batches of different sizes.

    Gradients are averaged over the processes, each counting alike, as the wrapper does. With
    this factor, ``n·size/N`` for n of N samples, each sample counts alike instead, and the step is
    that of one process on the union of the batches::

        factor = batch_factor(len(x), model)
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        (factor * loss).backward()

    All processes must call it, for they exchange their numbers.

    Args:
        samples: in this process's batch (the sum of their weights, if they have weights).
        model: wrapped in DistributedDataParallel, or made of ``fully_shard``.
    """
    (mean,) = peers(model).mean([float(samples)])
    return samples / mean
