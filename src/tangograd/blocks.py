"""The `tangents` blocks of an optimizer: forward passes with tangents, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from tangograd.adjoint import DisagreementError
from tangograd.checks import (
    Version,
    check_materialized,
    check_model,
    check_supported,
    version,
)
from tangograd.curvature.observation import Observation, observe
from tangograd.curvature.refresh import request
from tangograd.engines import CannotRunError, NoFormulaError, Select, Site
from tangograd.engines.blame import check_not_reentrant, with_module_name
from tangograd.engines.mode import LayerCall
from tangograd.forward_mode import exclusive
from tangograd.parallel import Communicator, communicator_for
from tangograd.pending import PendingStep
from tangograd.recording import ForwardContext, Recording, without_autocast
from tangograd.session import TrainingPass, open_pass
from tangograd.state import State, move_with_model, velocities

T = TypeVar("T")


class Trained(NamedTuple):
    """The parameter groups and state of an optimizer, as a block needs them.

    Attributes:
        groups: the parameter groups, with rules and preconditioners as objects.
        state: the optimizer's state, which has the velocities.
        may_overflow: whether a GradScaler skips the step if a loss is not finite.
    """

    groups: Sequence[dict[str, Any]]
    state: State
    may_overflow: bool

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all groups."""
        return [p for group in self.groups for p in group["params"]]


class TangentBlocks:
    """Opens `tangents` blocks, and keeps what they leave until the step.

    Args:
        engine: computes the tangents of outputs.

    Attributes:
        pending: the blocks since the last step.
        names: the model's names of parameters, by identity, for messages.
        versions: of the parameters after the last block.
    """

    def __init__(self, engine: Select) -> None:
        self.engine = engine
        self.pending = PendingStep()
        self.names: dict[int, str] = {}
        self.versions: dict[Tensor, Version] = {}

    @contextmanager
    def open(self, model: nn.Module | None, trained: Trained) -> Iterator[None]:
        """Run the forward pass in this block with tangents ``(1-δt_{k-1}) v``, and measure it."""
        with exclusive(), self._communicating(model, trained), self._block(Site(model), trained):
            yield

    def evaluate(self, model: nn.Module | None, closure: Callable[[], T], trained: Trained) -> T:
        """Return ``closure()``, run in a block; if the chosen engine cannot run it, in others."""
        site = Site(model, closure)
        with exclusive(), self._communicating(model, trained):
            self.pending.communicator.require_whole_parameters(
                "`evaluate`",
                "call the model and the likelihood in a `with optimizer.tangents(model):` block",
            )
            context = ForwardContext(model)
            try:
                with self._block(site, trained):
                    loss = closure()
            except Exception as error:
                unable = isinstance(error, NoFormulaError | CheckpointError)
                if self.engine.verified and not unable:
                    raise
                self.engine.reset(site)  # all are tried
                context.restore()
                try:
                    with self._block(site, trained):
                        loss = closure()
                except CannotRunError:
                    if unable:
                        raise
                    raise error from None
            self.engine.verified = True
            return loss

    def named_gradients(self, groups: Sequence[Mapping[str, Any]]) -> list[tuple[str, Tensor]]:
        """Return the gradients, with the names that the model gives their parameters."""
        return [
            (self.names.get(id(p), f"number {i} of group {k}"), p.grad)
            for k, group in enumerate(groups)
            for i, p in enumerate(group["params"])
            if p.requires_grad and p.grad is not None
        ]

    def _communicating(
        self, model: nn.Module | None, trained: Trained
    ) -> AbstractContextManager[None]:
        """Choose the communicator of the next block, and open the communicator's own block."""
        parameters = trained.parameters
        self.pending.communicator = communicator_for(model, parameters)
        return self.pending.communicator.block(parameters)

    @contextmanager
    def _block(self, site: Site, trained: Trained) -> Iterator[None]:
        """Open a forward pass with tangents, and measure it when it is closed."""
        rules = [group["gamma"] for group in trained.groups]
        Cs = [group["preconditioner"] for group in trained.groups]
        check_materialized(trained.parameters)
        if site.model is not None:
            self.names |= check_model(site.model, trained.parameters)
            check_supported(self.pending.communicator, rules, Cs)
        move_with_model(trained.groups, trained.state)
        if all(p.grad is None for p in trained.parameters):
            self.pending.clear(trained.parameters)  # as after model.zero_grad()
        wanted = request(trained.groups[0]["steps"], rules, Cs)
        layers: list[LayerCall] = []
        if "layers" in wanted.needs:
            site = site._replace(layers=layers)
        recording = Recording(self.engine, site)
        with (
            recording.record() if wanted.record else nullcontext(),
            training_pass(self.engine, site, trained, self.pending.communicator) as pass_,
        ):
            yield
        if not pass_.terms:
            raise RuntimeError(
                "no tangograd likelihood was evaluated inside the `tangents` block, so the "
                "gradient would be that of SGD: compute the loss with a likelihood (such as "
                "tangograd.Categorical) inside the block."
            )
        self.versions = {p: version(p) for p in pass_.parameters}
        if wanted.step == 0:
            check_not_reentrant([term.outputs for term in pass_.terms])
        recording.expect(pass_)
        try:
            with without_autocast():
                block = observe(pass_, layers, wanted, recording)
        except DisagreementError as error:
            if site.model is None or site.closure is not None:
                raise
            raise with_module_name(error, site.model, recording.calls, pass_.parameters) from None
        self.pending.add(block)


@contextmanager
def training_pass(
    engine: Select, site: Site, trained: Trained, communicator: Communicator
) -> Iterator[TrainingPass]:
    """Open a forward pass with tangents ``(1-δt_{k-1}) v``.

    The largest factor is left to the outputs, so that groups which have it need no copy of v.
    """
    scale = max(1 - group["previous_lr"] for group in trained.groups)
    parameters, tangents = [], []
    for group in trained.groups:
        own = 1 - group["previous_lr"]
        params = group["params"]
        for p, v in zip(params, velocities(params, trained.state), strict=True):
            if p.requires_grad:
                parameters.append(p)
                tangents.append(v if own == scale else v * (own / scale))
    pass_ = TrainingPass(
        parameters, tangents, scale, may_overflow=trained.may_overflow, communicator=communicator
    )
    with open_pass(engine, site, pass_, parameters, tangents):
        yield pass_


def velocity_versions(groups: Sequence[Mapping[str, Any]], state: State) -> list[Any]:
    """Return, for each group, what differs after each change of one of its velocities."""
    return [[(id(v), v._version) for v in velocities(group["params"], state)] for group in groups]


def notify_likelihoods(blocks: Sequence[Observation], communicator: Communicator) -> None:
    """Call the likelihoods that learn from the data, after the step has been taken."""
    totals: dict[Callable[[Tensor], None], Tensor] = {}
    for after_step, sums in (pair for block in blocks for pair in block.callbacks):
        totals[after_step] = totals.get(after_step, 0) + sums
    for after_step, total in totals.items():
        after_step(communicator.average(total))
