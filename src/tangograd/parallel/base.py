"""The interface to the processes that train one model, and the case of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tangograd import adjoint
from tangograd.parallel.shards import local

if TYPE_CHECKING:
    from tangograd.engines.intercept import ModuleCall
    from tangograd.session import Term, TrainingPass

T = TypeVar("T")
Tensors = Sequence[Tensor]


class Communicator:
    """The processes that train one model, and how its parameters are divided among them.

    Reductions of numbers are the same for all strategies. The other methods are written here for
    whole parameters of one process; strategies override those in which they differ.

    Attributes:
        group: the processes; ``None`` for one process.
        device: where tensors that they exchange live.
        wrapper: the DistributedDataParallel that averages gradients, if there is one.
        engine: the name of the only engine that runs the model; ``None`` if others may be tried.
    """

    group: dist.ProcessGroup | None = None
    device: torch.device | str = "cpu"
    wrapper: DistributedDataParallel | None = None
    engine: str | None = None

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return 0 if self.group is None else self.group.rank()

    def average(self, numbers: Tensor) -> Tensor:
        """Return the mean of each number over the processes, on the device."""
        if self.size == 1:
            return numbers
        total = numbers.double()
        dist.all_reduce(total, group=self.group)
        return total / self.size

    def read(self, numbers: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the means of 0-d tensors over the processes, in one exchange and one host read.

        >>> Local().read({"a": torch.tensor(1.0), "b": torch.tensor(2)})
        {'a': 1.0, 'b': 2.0}
        """
        values = torch.stack([torch.as_tensor(x).double() for x in numbers.values()])
        return dict(zip(numbers, self.average(values).tolist(), strict=True))

    def gather(self, item: T) -> list[T]:
        """Return the small objects of all processes, in the order of their ranks.

        >>> Local().gather("a")
        ['a']
        """
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items

    def dot(self, a: Tensors, b: Tensors) -> Tensor:
        """Return this process's share of ``⟨a, b⟩``: its mean over processes is the inner product.

        >>> Local().dot([torch.ones(2), torch.tensor(2.0)], [torch.ones(2), torch.tensor(5.0)])
        tensor(12., dtype=torch.float64)
        """
        pairs = [(local(x).reshape(-1), local(y).reshape(-1)) for x, y in zip(a, b, strict=True)]
        if not pairs:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        return torch.stack([torch.dot(x, y).double() for x, y in pairs]).sum()

    def pull_back(self, outputs: Tensors, parameters: Tensors, cotangents: Tensors) -> list[Tensor]:
        """Return the VJP ``Jᵀ u`` of this process's outputs."""
        return adjoint.vjp(outputs, parameters, cotangents)

    def mean_of_tensors(self, tensors: Tensors) -> list[Tensor]:
        """Return the mean over processes of what was pulled back."""
        return list(tensors)

    def probe(self, outputs: Tensor, parameters: Tensors, cotangent: Tensor) -> list[Tensor]:
        """Return the VJP h of a random cotangent, of mean 0 and independent between processes."""
        return self.pull_back([outputs], parameters, [cotangent])

    def mean_of_probes(self, tensors: Tensors) -> list[Tensor]:
        """Return a random vector whose ``E h hᵀ`` is the mean over processes, from their probes."""
        return list(tensors)

    def check_term(
        self, pass_: TrainingPass, term: Term, cotangent: Tensor, gradient: Tensors
    ) -> None:
        """Check the tangents of a term against a VJP (:func:`tangograd.adjoint.check_term`)."""
        adjoint.check_term(pass_, term, cotangent, gradient)

    def tangent_pass(
        self, call: ModuleCall, parameters: Tensors, tangents: Tensors, default: Callable[[], Any]
    ) -> Any:
        """Return the outputs of a call as dual numbers, in an open dual level.

        By default they are those of ``default()``, which makes the call with whole dual parameters.
        """
        del call, parameters, tangents
        return default()

    def returnable(self, outputs: Any) -> Any:
        """Return dual outputs of a call in a form that the model may return."""
        return outputs

    def require_whole_parameters(self, feature: str, advice: str) -> None:
        """Check that a feature can be used, if it needs whole parameters."""

    def unwrapped(self) -> AbstractContextManager[None]:
        """Make calls of the wrapper run the module inside, in a block, without its exchanges.

        Forward passes that no backward pass follows must not prepare the wrapper's reductions.
        """
        return nullcontext()

    def preserve_tangents(self) -> AbstractContextManager[None]:
        """Make tangents pass through what the wrapper does to outputs, in a block."""
        return nullcontext()

    @contextmanager
    def block(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Prepare the wrapper for a `tangents` block, and refuse others of these parameters."""
        with _refuse_other_wrappers(self.wrapper, parameters), self.preserve_tangents():
            yield


class Local(Communicator):
    """One process, which trains alone."""


#: The communicator of models that are not distributed.
LOCAL = Local()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of an object or a class in a block."""
    own = {name: vars(owner)[name]} if name in vars(owner) else {}
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)
        for before in own.values():
            setattr(owner, name, before)


def _refuse_other_wrappers(
    known: DistributedDataParallel | None, parameters: Iterable[Tensor]
) -> AbstractContextManager[None]:
    """Raise an error, in a block, if another wrapper of these parameters is called."""
    if not (dist.is_available() and dist.is_initialized()):
        return nullcontext()
    plain, ours = DistributedDataParallel.forward, {id(p) for p in parameters}

    def forward(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if wrapper is not known and any(id(p) in ours for p in wrapper.parameters()):
            raise RuntimeError(
                "a DistributedDataParallel runs in this block and was not given to it, so that "
                "each process would find a γ and a preconditioner of its own, and the models would "
                "drift apart: give `tangents` (or `evaluate`) the wrapper, not the module inside "
                "it or around it"
            )
        return plain(wrapper, *args, **kwargs)

    return replaced(DistributedDataParallel, "forward", forward)
