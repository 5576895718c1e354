"""The update of TANGO as one function, and the optimizer around it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.utils.checkpoint import CheckpointError

from tangograd import distributed, guard, preconditioners, refresh
from tangograd import gamma as gammas
from tangograd.adjoint import DisagreementError
from tangograd.checks import (
    Version,
    check_factors,
    check_gradients,
    check_options,
    check_parameters,
    check_scale,
    check_sharded,
    check_state,
    check_unchanged,
    rate,
    version,
)
from tangograd.engines import CannotRunError, NoFormulaError, Select, Site, resolve
from tangograd.engines.blame import check_not_reentrant, with_module_name
from tangograd.engines.mode import LayerCall
from tangograd.forward_mode import exclusive
from tangograd.gamma import Auto, GammaRule, NecessaryBound
from tangograd.groups import Group, autos
from tangograd.likelihoods import Likelihood
from tangograd.measurement import Measurement, learn, measure, unscale
from tangograd.open_step import OpenStep
from tangograd.preconditioners import Preconditioner
from tangograd.recording import ForwardContext, Recording, without_autocast
from tangograd.report import describe
from tangograd.residual import Equation, relative_residual
from tangograd.session import CannotReplayError, TrainingPass, open_pass
from tangograd.shards import local
from tangograd.state import follow_model, velocities
from tangograd.statistics import collect
from tangograd.vectors import dot

T = TypeVar("T")


def tango_update(
    theta: list[Tensor],
    v: list[Tensor],
    preconditioned: list[Tensor],
    *,
    gamma: float,
    dt: float,
    dt_previous: float,
    accelerated: bool = False,
) -> None:
    """Definition 1 of the paper, preconditioned, in place on ``theta`` and ``v`` alone.

    ``v_k = (1-δt_{k-1}) v_{k-1} + γ C [g_k - (1-δt_{k-1}) F̂_k v_{k-1}]``
    ``θ_k = θ_{k-1} - δt_k v_k``  (``θ_k = θ_{k-1} - v_k`` when accelerated)

    Args:
        theta: ``θ_{k-1}``, a list of tensors; becomes ``θ_k``.
        v: ``v_{k-1}``; becomes ``v_k``.
        preconditioned: ``C`` times the bracket.
        gamma: γ.
        dt: ``δt_k``.
        dt_previous: ``δt_{k-1}``, of the last step taken.
        accelerated: move by the whole velocity.
    """
    if not theta:  # torch wants at least one tensor
        return
    torch._foreach_mul_(v, 1 - dt_previous)
    torch._foreach_add_(v, preconditioned, alpha=gamma)
    torch._foreach_sub_(theta, v, alpha=1.0 if accelerated else dt)


class TANGO(Optimizer):
    r"""True Asymptotic Natural Gradient Optimization (Ollivier 2017).

    A velocity v solves ``F v = E g`` by stochastic steps of rate γ, while θ moves along it::

        v_k = (1-δt_{k-1}) v_{k-1} + γ C [g_k - (1-δt_{k-1}) F̂_k v_{k-1}]
        θ_k = θ_{k-1} - δt_k v_k

    The bracket is what ``loss.backward()`` leaves in ``p.grad``, because inside
    :meth:`tangents` a likelihood's backward sends the cotangent of ``g - (1-δt) F̂ v``. As δt falls,
    θ follows the exact natural gradient flow ``dθ/dt = -F⁻¹ E g``; at δt = 1 this is SGD with rate
    γ. In between, ``δt/γ`` acts as damping: at frozen θ the mean of v is
    ``((1-δt) F + (δt/γ) C⁻¹)⁻¹ g``.

    Differences from the paper's Definition 1: F̂ is by default the closed-form mean over a batch
    rather than one outer product (``fisher="sampled"`` with batches of one sample is Definition 1);
    a preconditioner; and a Gaussian prior.

    Args:
        params: parameters or groups, as for any optimizer. Groups may have their own ``lr``,
            ``gamma``, ``preconditioner``, ``weight_decay`` and ``accelerated``.
        lr: δt, from 0 to 1; any scheduler may drive it (the cyclic ones with
            ``cycle_momentum=False``). At 0, θ rests and v settles (unless ``accelerated``).
        gamma: γ: ``"auto"`` (a line search on the batch run again, about every twentieth step;
            nothing to tune); ``"max"`` (the paper's safe rule ``1/max ‖g̃‖²``) or ``"gaussian"``;
            a rule of :mod:`tangograd.gamma`; or a number, which is then in the metric of C: with
            ``preconditioner=None`` it is the paper's γ. Groups that name the same rule share one γ,
            computed over all their parameters.
        preconditioner: C: ``"auto"`` (the inverse diagonal Fisher), ``"rmsprop"``, ``"kronecker"``
            (for linear and convolution layers; fewer steps, each costlier), ``None``, or an object
            of :mod:`tangograd.preconditioners`.
        weight_decay: λ of a Gaussian prior: adds ``λ θ`` to g and ``λ`` to F.
        accelerated: ``θ_k = θ_{k-1} - v_k``; on a quadratic this is Nesterov's method with momentum
            ``1-δt_{k-1}`` and step γ.
        engine: how outputs get their tangents ``J v``: ``"auto"`` tries ``"dual"``, ``"two-pass"``,
            ``"double-backward"`` and ``"finite-difference"`` on the first batch and keeps the first
            that is right (logged at INFO level by the logger ``tangograd``); or one by name, or
            ``"compiled"``. See :mod:`tangograd.engines`.

    With a ``torch.amp.GradScaler``, set the attribute ``scaler`` to it.

    torch's flags ``maximize``, ``foreach``, ``fused``, ``capturable`` and ``differentiable`` are
    absent: the log-loss is minimised by definition, there is one code path for the update, and the
    step reads numbers on the host.

    Example:
        >>> from tangograd import TANGO, Categorical
        >>> _ = torch.manual_seed(0)
        >>> model, likelihood = nn.Linear(3, 2), Categorical()
        >>> optimizer = TANGO(model.parameters(), lr=0.1, gamma=0.5)
        >>> x, y = torch.randn(64, 3), torch.arange(64) % 2
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     with optimizer.tangents(model):
        ...         loss = likelihood(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        >>> optimizer.diagnostics()["damping"]
        0.2
    """

    #: Set it to the GradScaler that scales the loss, if there is one: γ and C must know its scale.
    scaler: torch.amp.GradScaler | None
    _engine: Select
    _open: OpenStep
    _names: dict[int, str]  # names of the model's parameters, for messages
    _versions: dict[Tensor, Version]  # of the parameters after the last block
    _quotient: float
    _bound: NecessaryBound
    _said_blind: bool
    _warned: float  # the excess over the bound that was last warned of

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        gamma: float | str | GammaRule = "auto",
        *,
        preconditioner: str | Preconditioner | None = "auto",
        weight_decay: float = 0.0,
        accelerated: bool = False,
        engine: str = "auto",
    ) -> None:
        options = {
            "lr": lr,
            "gamma": gamma,
            "preconditioner": preconditioner,
            "weight_decay": weight_decay,
            "accelerated": accelerated,
        }
        self._engine = resolve(engine)
        self._forget()
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where given; they start with velocity 0."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group is a dict; got {type(param_group).__name__}")
        options = self.defaults | param_group
        options["gamma"] = self._rule(options["gamma"])
        options["preconditioner"] = preconditioners.resolve(options["preconditioner"])
        check_options(options)
        options |= {"previous_lr": rate(options), "steps": 0}
        super().add_param_group(options)
        group = self.param_groups[-1]
        for rule in autos(self._rules()):
            rule.due = True
        try:
            check_parameters(group["params"])
            group["preconditioner"].check(group["params"])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        if not any(p.is_meta for p in group["params"]):
            group["preconditioner"].start(group["params"])
            velocities(group["params"], self.state)

    def _rule(self, gamma: float | str | GammaRule) -> GammaRule:
        """The rule meant; a name means the same rule, with one γ, in all groups."""
        rule = gammas.resolve(gamma)
        used = (group["gamma"] for group in self.param_groups)
        same = (other for other in used if type(other) is type(rule) and other.by_name)
        return next(same, rule) if isinstance(gamma, str) else rule

    def _gamma(self, group: dict[str, Any]) -> GammaRule:
        """The group's rule; users may have set another number or name."""
        if not isinstance(group["gamma"], GammaRule):
            group["gamma"] = self._rule(group["gamma"])
        return group["gamma"]  # type: ignore[no-any-return]

    def _rules(self) -> list[GammaRule]:
        """Of all groups."""
        return [self._gamma(group) for group in self.param_groups]

    # ------------------------------------------------------------------ one forward pass

    @contextmanager
    def tangents(self, model: nn.Module | None = None) -> Iterator[None]:
        """Run the forward pass and the likelihood in this block; it is the one line that is new.

        All trainable parameters of the optimizer are dual numbers inside, with tangents
        ``(1-δt_{k-1}) v``; afterwards the model is exactly as it was, also after an exception.

        Several blocks before a step accumulate: weight each loss by its share of the samples. For
        ``"expected"`` and ``"empirical"`` the sum then equals one large batch to rounding (for
        ``"sampled"`` given the same pseudo-samples). For ``"minibatch"`` it is unbiased only: a
        product of means over micro-batches is not that over their union.

        Args:
            model: the module that is run inside, to check that the optimizer has all its trainable
                parameters; omit it for raw parameters.
        """
        with exclusive(), self._with_peers(model), self._block(Site(model)):
            yield

    def evaluate(self, model: nn.Module | None, closure: Callable[[], T]) -> T:
        """``closure()`` under :meth:`tangents`: for losses with more than one call of the model.

        On refresh steps ``gamma="auto"`` runs the closure again (once or twice, in the first step
        six times); it should have no effects besides its result.

        Example:
            >>> from tangograd import TANGO, Gaussian
            >>> theta = torch.zeros(2, requires_grad=True)
            >>> optimizer, likelihood = TANGO([theta], gamma=0.1), Gaussian()
            >>> y = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
            >>> loss = optimizer.evaluate(None, lambda: likelihood(theta.expand(2, 2), y))
            >>> loss.backward()
            >>> optimizer.step()
        """
        site = Site(model, closure)
        with exclusive(), self._with_peers(model):
            if self._open.peers.sharded:
                raise NotImplementedError(
                    "`evaluate` does not run models sharded by fully_shard: call the model and the "
                    "likelihood in a `with optimizer.tangents(model):` block"
                )
            context = ForwardContext(model)
            try:
                with self._block(site):
                    loss = closure()
            except Exception as error:
                unable = isinstance(error, NoFormulaError | CheckpointError)
                if self._engine.verified and not unable:
                    raise
                self._engine.reset(site)  # all are tried
                context.restore()
                try:
                    with self._block(site):
                        loss = closure()
                except CannotRunError:
                    if unable:
                        raise
                    raise error from None
            self._engine.verified = True
            return loss

    def _with_peers(self, model: nn.Module | None) -> AbstractContextManager[None]:
        """A block that knows the processes that train the model."""
        trained = self._trained()
        self._open.peers = distributed.peers(model, trained)
        return distributed.among(self._open.peers, trained)

    def _trained(self) -> list[Tensor]:
        """The parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

    @contextmanager
    def _block(self, site: Site) -> Iterator[None]:
        """Open a forward pass with tangents, and measure it when it is closed."""
        self._check_model(site.model)
        follow_model(self.param_groups, self.state)
        if all(p.grad is None for p in self._trained()):
            self._open.discard(self._trained())  # as after model.zero_grad()
        step = self.param_groups[0]["steps"]
        rules, Cs = self._rules(), [group["preconditioner"] for group in self.param_groups]
        due = refresh.is_due(step, rules, Cs)
        needs = refresh.needs(step, rules, Cs) if due else frozenset()
        samples = self._looks(step)
        layers: list[LayerCall] = []
        if "layers" in needs:
            site = site._replace(layers=layers)
        recording = Recording(self._engine, site)
        with (
            recording.record() if due or samples == 2 else nullcontext(),
            self._training_pass(site) as session,
        ):
            yield
        if self._overflowed(session):
            return
        if not session.terms:
            raise RuntimeError(
                "no tangograd likelihood was evaluated inside the `tangents` block, so the "
                "gradient would be that of SGD: compute the loss with a likelihood (such as "
                "tangograd.Categorical) inside the block."
            )
        self._versions = {p: version(p) for p in session.parameters}
        if step == 0:
            check_not_reentrant([term.outputs for term in session.terms])
        recording.expect(session)
        draws = 1 if step else max(C.first_draws for C in Cs)
        try:
            with without_autocast():
                block = measure(
                    session,
                    [(group["params"], group["preconditioner"]) for group in self.param_groups],
                    step=step,
                    samples=samples,
                    pulled=collect(
                        session, layers, needs, draws, check=step < 16 or step % 100 == 0
                    ),
                    replay=recording if due and autos(rules) else None,
                )
        except DisagreementError as error:
            if site.model is None or site.closure is not None:
                raise
            raise with_module_name(error, site.model, recording.calls, session.parameters) from None
        self._open.add(block, session.parameters)

    def _overflowed(self, session: TrainingPass) -> bool:
        """Whether the block is for a step that the scaler will skip: there is nothing to learn."""
        peers = self._open.peers
        if session.may_overflow and peers.sharded:  # where they pull back together
            return any(peers.mean([float(session.overflowed)]))
        return session.overflowed

    def _check_model(self, model: nn.Module | None) -> None:
        if model is None:
            return
        ours = {id(p) for p in self._trained()}
        for name, p in model.named_parameters():
            if p.requires_grad and id(p) not in ours:
                raise ValueError(
                    f"the model's parameter {name!r} is trainable but not in the optimizer, so its "
                    "part of F̂v would be missing: add it (add_param_group), or freeze it with "
                    "requires_grad_(False)."
                )
            self._names[id(p)] = name
        if self._open.peers.sharded:
            check_sharded(self._rules(), [group["preconditioner"] for group in self.param_groups])

    @contextmanager
    def _training_pass(self, site: Site) -> Iterator[TrainingPass]:
        """Open a pass with tangents ``(1-δt_{k-1}) v``.

        The largest factor is left to the outputs, so that groups which have it need no copy of v.
        """
        scale = max(1 - group["previous_lr"] for group in self.param_groups)
        parameters, tangents = [], []
        for group in self.param_groups:
            own = 1 - group["previous_lr"]
            params = group["params"]
            for p, v in zip(params, velocities(params, self.state), strict=True):
                if p.requires_grad:
                    parameters.append(p)
                    tangents.append(v if own == scale else v * (own / scale))
        may_overflow = self.scaler is not None and self.scaler.is_enabled()
        session = TrainingPass(parameters, tangents, scale, may_overflow=may_overflow)
        with open_pass(self._engine, site, session, parameters, tangents):
            yield session

    def _looks(self, step: int) -> int:
        """Of how many samples to look at pseudo-gradients in this step.

        Two, for the necessary bound, in the first steps and then at powers of two; otherwise one
        when a γ rule asks for it, and none when γ is a number. "auto" measures by itself. Sharded
        parameters have no gradients of single samples.
        """
        if self._open.peers.sharded:
            return 0
        if all(isinstance(self._gamma(group), Auto) for group in self.param_groups):
            return 0
        if step < NecessaryBound.ENOUGH or step & (step - 1) == 0:
            return 2
        return int(any(self._gamma(group).needs_pseudo_gradients for group in self.param_groups))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; blocks whose gradients are thereby discarded no longer count."""
        super().zero_grad(set_to_none)
        self._open.discard(self._trained())

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the bracket that ``backward`` left in ``p.grad``.

        Args:
            closure: re-evaluates the loss (with :meth:`tangents` inside) and calls ``backward``.

        Raises:
            RuntimeError: there was no `tangents` block, or no backward, since the last step.
            FloatingPointError: a gradient is not finite; nothing has been changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        blocks = self._open.used
        if not blocks:
            raise RuntimeError(
                "step() needs a loss from inside `with optimizer.tangents(model):` (or "
                "`optimizer.evaluate`), and its backward, since the last step; without them this "
                "would silently be SGD."
            )
        self._open.check_single()
        check_factors(blocks)
        check_unchanged(self._versions, self._names)
        for group in self.param_groups:
            check_options(group)
            self._gamma(group)
        self._open.blocks = []
        check_gradients(list(self._named_gradients()))
        groups = [self._as_group(group) for group in self.param_groups]
        if self.scaler is not None:
            unscale(blocks, self.scaler.get_scale())
        elif self._open.peers.size == 1:
            check_scale(blocks, groups)
        self._update_gamma(blocks)
        # What a batch teaches acts from the next step on, except where little is known yet.
        at_once = any(rule.due for rule in autos(self._rules())) or any(
            group["steps"] < refresh.LITTLE_KNOWN for group in self.param_groups
        )
        self._quotient, stopped = guard.look(blocks, groups, self._open.peers)
        planned, C_brackets = self._plan(blocks, groups, stopped, at_once=at_once)
        for group, now, C_bracket in zip(self.param_groups, groups, C_brackets, strict=True):
            if id(now.rule) in stopped:
                moving = 1.0 if group["accelerated"] else rate(group)
                guard.shorten(now, stopped[id(now.rule)], moving)
            else:
                tango_update(
                    [local(now.params[i]) for i in now.trainable],
                    [local(now.v[i]) for i in now.trainable],
                    [local(C_bracket[i]) for i in now.trainable],
                    gamma=planned[id(now.rule)],
                    dt=rate(group),
                    dt_previous=group["previous_lr"],
                    accelerated=group["accelerated"],
                )
            group["previous_lr"] = rate(group)
            group["steps"] += 1
        observed: dict[Callable[[list[Any]], None], list[Any]] = {}
        for callback, observation in (pair for block in blocks for pair in block.observations):
            observed.setdefault(callback, []).append(observation)
        for callback, observations in observed.items():
            if any(observation is not None for observation in observations):
                everyone = self._open.peers.gather(observations)
                observations = [observation for theirs in everyone for observation in theirs]
            callback(observations)
        return loss

    def _plan(
        self,
        blocks: list[Measurement],
        groups: list[Group],
        stopped: Container[int],
        *,
        at_once: bool,
    ) -> tuple[dict[int, float], list[list[Tensor]]]:
        """γ of each rule and ``C`` times each bracket for this step; and the refresh, if due."""
        refreshing = any(block.pulled or block.replay for block in blocks)

        def plan() -> tuple[dict[int, float], list[list[Tensor]]]:
            C_brackets = [group.C.apply(group.bracket) for group in groups]
            return guard.limited_gammas(blocks, groups, C_brackets, self._open.peers), C_brackets

        planned = None if refreshing and at_once else plan()
        if refreshing:
            failure = refresh.refresh(
                blocks,
                groups,
                self.state,
                step=self.param_groups[0]["steps"],
                dt=max(rate(group) for group in self.param_groups),
                stopped=stopped,
                peers=self._open.peers,
            )
            if failure is not None:
                self._say_blind(failure)
        return planned or plan()

    def _as_group(self, group: dict[str, Any]) -> Group:
        """A group in this step, with its bracket: the prior adds ``λ (θ - (1-δt_{k-1}) v)``."""
        v = velocities(group["params"], self.state)
        keep, prior = 1 - group["previous_lr"], group["weight_decay"]
        bracket = [
            p.grad if p.requires_grad and p.grad is not None else torch.zeros_like(p)
            for p in group["params"]
        ]
        if prior:
            for i, p in enumerate(group["params"]):
                if p.requires_grad:
                    bracket[i] = bracket[i] + prior * (p - keep * v[i])
        return Group(
            params=group["params"],
            v=v,
            bracket=bracket,
            C=group["preconditioner"],
            rule=group["gamma"],
            keep=keep,
            moved=1.0 if group["accelerated"] else group["previous_lr"],
            prior=prior,
        )

    def _say_blind(self, error: CannotReplayError) -> None:
        """Once."""
        if self._said_blind:
            return
        self._said_blind = True
        warnings.warn(
            f'gamma="auto" could not run the batch again ({error}), so it follows the curvature '
            "along the velocity alone, which is slower. Pass the model to `tangents(model)` with "
            "nothing between it and the likelihood, or give the whole loss as a function: "
            "`loss = optimizer.evaluate(model, lambda: likelihood(f(x), y))`.",
            RuntimeWarning,
            stacklevel=6,
        )

    def _named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The gradients that there are, with the names that the model gives their parameters."""
        for k, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.requires_grad and p.grad is not None:
                    yield self._names.get(id(p), f"number {i} of group {k}"), p.grad

    def _update_gamma(self, blocks: list[Measurement]) -> None:
        """Let the rules learn, and warn past the necessary bound, and again when it doubles."""
        rules = [group["gamma"] for group in self.param_groups]
        learn(blocks, rules, self._bound, self._open.peers)
        if self._bound.excess > max(1.0, 2 * self._warned):
            self._warned = self._bound.excess
            warnings.warn(
                f"at this point of training gamma is about {self._bound.excess:.2f} times the "
                "bound that is necessary for TANGO to be proved convergent (past twice the bound "
                'the velocity diverges): lower gamma, or use gamma="max".',
                RuntimeWarning,
                stacklevel=5,
            )

    # ------------------------------------------------------------------ what it knows of itself

    def diagnostics(self) -> dict[str, float]:
        """How the last step went.

        Returns:
            ``gamma``: γ; ``damping``: δt/γ, to compare with the eigenvalues of ``C^½ F C^½``;
            ``fisher_quotient``: ``vᵀF̂v / vᵀC⁻¹v``, the curvature along the velocity, which times
            γ should stay below 2. Values are NaN before the first step, and for the quotient as
            long as v is 0. ``guards``: how often the guard of ``gamma="auto"`` stepped in. Further
            groups have their number appended, as in ``gamma_1``.
        """
        known: dict[str, float] = {}
        for k, group in enumerate(self.param_groups):
            suffix = f"_{k}" if k else ""
            gamma = self._gamma(group).value if group["steps"] else math.nan
            known[f"gamma{suffix}"] = gamma
            known[f"damping{suffix}"] = group["previous_lr"] / gamma if gamma else math.inf
        known["fisher_quotient"] = self._quotient
        if autos(self._rules()):
            known["guards"] = sum(rule.guards for rule in autos(self._rules()))
        return known

    def report(self) -> None:
        """Print γ, damping, quotient and guard events, and what they mean, in a few lines."""
        print(describe(self._rules(), self.diagnostics(), self.param_groups[0]["steps"]))

    def residual(
        self,
        model: Callable[[Any], Tensor],
        likelihood: Likelihood,
        batches: Iterable[Sequence[Any]],
    ) -> float:
        """How far the velocity is from the damped natural gradient at the current parameters.

        The relative residual ``‖g - (1-δt) F v - (δt/γ) C⁻¹ v‖ / ‖g‖`` in the metric of C, with g
        and F averaged over the batches: 0 when v solves the equation that it settles at, 1 for
        v = 0. Near an optimum g vanishes, and the noise that v carries from its last batches makes
        the residual exceed 1. Use several batches: on one, its own noise dominates. The model runs
        in the mode that it is in (train or eval). Nothing is changed: a module's buffers, the
        random state and the likelihood are left as they were. Of several processes, each gets the
        residual over its own batches.

        Args:
            model: maps the inputs of a batch to outputs.
            likelihood: the likelihood trained with; its own F̂ is used, so ``"expected"`` adds no
                sampling noise.
            batches: tuples ``(inputs, targets)`` or ``(inputs, targets, weights)``.
        """
        if not all(group["steps"] and self._gamma(group).value for group in self.param_groups):
            raise RuntimeError("residual() needs a velocity and γ > 0: take a step first")
        follow_model(self.param_groups, self.state)
        equations = [
            Equation(
                params=group["params"],
                v=velocities(group["params"], self.state),
                C=group["preconditioner"],
                keep=1 - group["previous_lr"],
                damping=group["previous_lr"] / self._gamma(group).value,
                prior=group["weight_decay"],
            )
            for group in self.param_groups
        ]
        peers = distributed.peers(model if isinstance(model, nn.Module) else None)
        if peers.sharded:
            raise NotImplementedError(
                "residual() does not run models sharded by fully_shard: load a checkpoint of the "
                "run into a whole model in one process"
            )
        site = Site(model if isinstance(model, nn.Module) else None)
        with peers.inside():
            return relative_residual(
                equations, lambda: self._training_pass(site), model, likelihood, batches
            )

    # ------------------------------------------------------------------ saving, loading, copying

    def state_dict(self) -> dict[str, Any]:
        """As torch's: the rule's and the preconditioner's statistics stand in their group."""
        kept = [(group, self._gamma(group), group["preconditioner"]) for group in self.param_groups]
        without = self._without_leading()
        for group, gamma, C in kept:  # so that hooks, too, see tensors and plain numbers
            group |= {"gamma": gamma.state_dict(), "preconditioner": C.state_dict()}
        for p in without:  # the same keys at all times, for distributed checkpoints
            self.state[p]["leading"] = torch.zeros_like(p)
        try:
            return super().state_dict()
        finally:
            for group, gamma, C in kept:
                group |= {"gamma": gamma, "preconditioner": C}
            for p in without:
                self.state[p] = {k: x for k, x in self.state[p].items() if k != "leading"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a saved run; the γ rules and preconditioners must be of the kinds saved."""
        kept = [(self._gamma(group), group["preconditioner"]) for group in self.param_groups]
        check_state(self.param_groups, state_dict)
        super().load_state_dict(state_dict)
        for (gamma, C), group in zip(kept, self.param_groups, strict=True):
            gamma.load_state_dict(group["gamma"])
            C.load_state_dict(group["preconditioner"])
            group |= {"gamma": gamma, "preconditioner": C}
        known = [state for state in self.state.values() if "leading" in state]
        leading = [state["leading"] for state in known]
        if not dot(leading, leading):
            for state in known:
                del state["leading"]

    def _without_leading(self) -> list[Tensor]:
        """Parameters whose "auto" γ has not iterated for a leading eigenvector yet."""
        return [
            p
            for group in self.param_groups
            if isinstance(self._gamma(group), Auto)
            for p in group["params"]
            if p in self.state and "leading" not in self.state[p]
        ]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": self._engine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def _forget(self) -> None:
        """What is not part of the state: the open step, names, and what was last reported."""
        self.scaler = None
        self._open = OpenStep()
        self._names = {}
        self._versions = {}
        self._quotient = math.nan
        self._bound = NecessaryBound()
        self._warned = 0.0
        self._said_blind = False
