"""The update of TANGO as one function, and the optimizer around it."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.utils.checkpoint import CheckpointError

from tangograd import checkpoint, curvature, preconditioners
from tangograd.adjoint import DisagreementError
from tangograd.checks import (
    Version,
    check_factor,
    check_finite,
    check_gradients,
    check_options,
    check_parameters,
    check_scale,
    check_supported,
    check_unchanged,
    version,
)
from tangograd.curvature import GammaRule
from tangograd.curvature.observation import Observation, observe
from tangograd.curvature.planning import Plan, guard, plan, update_rules
from tangograd.curvature.refresh import AT_ONCE, refresh, request
from tangograd.curvature.signals import read_sample_norms, read_signals
from tangograd.diagnostics import describe
from tangograd.engines import CannotRunError, NoFormulaError, Select, Site, resolve
from tangograd.engines.blame import check_not_reentrant, with_module_name
from tangograd.engines.mode import LayerCall
from tangograd.forward_mode import exclusive
from tangograd.likelihoods import Likelihood
from tangograd.parallel import LOCAL, Communicator, communicator_for
from tangograd.parallel.shards import local
from tangograd.pending import PendingStep
from tangograd.preconditioners import Preconditioner
from tangograd.recording import ForwardContext, Recording, without_autocast
from tangograd.session import CannotReplayError, TrainingPass, open_pass
from tangograd.solve import Equation, relative_residual
from tangograd.state import auto_rules, group_in_step, learning_rate, move_with_model, velocities

T = TypeVar("T")


def tango_update(theta: list[Tensor], v: list[Tensor], C_bracket: list[Tensor], plan: Plan) -> None:
    """Take the step of Definition 1 of the paper, preconditioned, in place on ``theta`` and ``v``.

    ``v_k = (1-δt_{k-1}) v_{k-1} + γ C [g_k - (1-δt_{k-1}) F̂_k v_{k-1}]``
    ``θ_k = θ_{k-1} - δt_k v_k``  (``θ_k = θ_{k-1} - v_k`` when accelerated)

    Args:
        theta: ``θ_{k-1}``, a list of tensors; becomes ``θ_k``.
        v: ``v_{k-1}``; becomes ``v_k``.
        C_bracket: ``C`` times the bracket.
        plan: γ, ``keep = 1-δt_{k-1}`` and ``move = δt_k``; ``undo``, when the guard takes the last
            step back.
    """
    if not theta:  # torch wants at least one tensor
        return
    if plan.undo:
        torch._foreach_add_(theta, v, alpha=plan.undo)
    torch._foreach_mul_(v, plan.keep)
    if plan.gamma:
        torch._foreach_add_(v, C_bracket, alpha=plan.gamma)
    if plan.move:
        torch._foreach_sub_(theta, v, alpha=plan.move)


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
            a rule of :mod:`tangograd.curvature`; or a number, which is then in the metric of C:
            with ``preconditioner=None`` it is the paper's γ. Groups that name the same rule share
            one γ, computed over all their parameters.
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
    _pending: PendingStep
    _names: dict[int, str]  # names of the model's parameters, for messages
    _versions: dict[Tensor, Version]  # of the parameters after the last block
    _velocity_versions: dict[int, list[tuple[int, int]]]  # of each group, after the last step
    _quotient: float
    _unstable: deque[bool]  # of the last ten steps: whether γ was too large for the curvature
    _warned_no_replay: bool
    _warned_unstable: bool

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
        self._reset()
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where given; they start with velocity 0."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group is a dict; got {type(param_group).__name__}")
        options = self.defaults | param_group
        options["gamma"] = self._rule(options["gamma"])
        options["preconditioner"] = preconditioners.resolve(options["preconditioner"])
        check_options(options)
        options |= {"previous_lr": learning_rate(options), "steps": 0, "velocity_norm": math.nan}
        super().add_param_group(options)
        group = self.param_groups[-1]
        for rule in auto_rules(self._rules()):
            rule.due = True
        try:
            check_parameters(group["params"])
            group["preconditioner"].check(group["params"])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        if not any(p.is_meta for p in group["params"]):
            group["preconditioner"].init(group["params"])
            velocities(group["params"], self.state)

    def _rule(self, gamma: float | str | GammaRule) -> GammaRule:
        """Return the rule for an option; a name means the same rule, with one γ, in all groups."""
        rule = curvature.resolve(gamma)
        used = (group["gamma"] for group in self.param_groups)
        same = (other for other in used if type(other) is type(rule) and other.by_name)
        return next(same, rule) if isinstance(gamma, str) else rule

    def _rules(self) -> list[GammaRule]:
        """Return the γ rule of each group; users may have set another number or name."""
        for group in self.param_groups:
            if not isinstance(group["gamma"], GammaRule):
                group["gamma"] = self._rule(group["gamma"])
        return [group["gamma"] for group in self.param_groups]

    def _parameters(self) -> list[Tensor]:
        """Return the parameters of all groups."""
        return [p for group in self.param_groups for p in group["params"]]

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
        with exclusive(), self._communicating(model), self._block(Site(model)):
            yield

    def evaluate(self, model: nn.Module | None, closure: Callable[[], T]) -> T:
        """Return ``closure()`` under :meth:`tangents`: for losses with several calls of the model.

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
        with exclusive(), self._communicating(model):
            self._pending.communicator.require_whole_parameters(
                "`evaluate`",
                "call the model and the likelihood in a `with optimizer.tangents(model):` block",
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

    def _communicating(self, model: nn.Module | None) -> AbstractContextManager[None]:
        """Choose the communicator of the next block, and open the communicator's own block."""
        trained = self._parameters()
        self._pending.communicator = communicator_for(model, trained)
        return self._pending.communicator.block(trained)

    @contextmanager
    def _block(self, site: Site) -> Iterator[None]:
        """Open a forward pass with tangents, and measure it when it is closed."""
        self._check_model(site.model)
        move_with_model(self.param_groups, self.state)
        if all(p.grad is None for p in self._parameters()):
            self._pending.clear(self._parameters())  # as after model.zero_grad()
        Cs = [group["preconditioner"] for group in self.param_groups]
        wanted = request(self.param_groups[0]["steps"], self._rules(), Cs)
        layers: list[LayerCall] = []
        if "layers" in wanted.needs:
            site = site._replace(layers=layers)
        recording = Recording(self._engine, site)
        with (
            recording.record() if wanted.record else nullcontext(),
            self._training_pass(site, self._pending.communicator) as pass_,
        ):
            yield
        if not pass_.terms:
            raise RuntimeError(
                "no tangograd likelihood was evaluated inside the `tangents` block, so the "
                "gradient would be that of SGD: compute the loss with a likelihood (such as "
                "tangograd.Categorical) inside the block."
            )
        self._versions = {p: version(p) for p in pass_.parameters}
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
        self._pending.add(block)

    def _check_model(self, model: nn.Module | None) -> None:
        if model is None:
            return
        ours = {id(p) for p in self._parameters()}
        for name, p in model.named_parameters():
            if p.requires_grad and id(p) not in ours:
                raise ValueError(
                    f"the model's parameter {name!r} is trainable but not in the optimizer, so its "
                    "part of F̂v would be missing: add it (add_param_group), or freeze it with "
                    "requires_grad_(False)."
                )
            self._names[id(p)] = name
        Cs = [group["preconditioner"] for group in self.param_groups]
        check_supported(self._pending.communicator, self._rules(), Cs)

    @contextmanager
    def _training_pass(
        self, site: Site, communicator: Communicator = LOCAL
    ) -> Iterator[TrainingPass]:
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
        pass_ = TrainingPass(
            parameters, tangents, scale, may_overflow=may_overflow, communicator=communicator
        )
        with open_pass(self._engine, site, pass_, parameters, tangents):
            yield pass_

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients; blocks whose gradients are thereby discarded no longer count."""
        super().zero_grad(set_to_none)
        self._pending.clear(self._parameters())

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
        blocks, communicator, rules = (
            self._pending.take(),
            self._pending.communicator,
            self._rules(),
        )
        check_unchanged(self._versions, self._names)
        for options in self.param_groups:
            check_options(options)
        check_gradients(list(self._named_gradients()))
        if self.scaler is not None:
            for factor in (factor for block in blocks for factor in block.factors):
                factor.factor = factor.factor / self.scaler.get_scale()
        self._forget_changed_velocities()
        groups = [group_in_step(options, self.state) for options in self.param_groups]
        C_brackets = [group.C.apply(group.bracket) for group in groups]
        signals = read_signals(blocks, groups, C_brackets, communicator)
        if signals.invalid:
            raise next((block.error() for block in blocks if bool(block.invalid)), _elsewhere())
        check_factor(signals.factor_min)
        if not signals.finite:
            check_finite(list(self._named_gradients()), "check the batch, or lower gamma or lr")
        if self.scaler is None and communicator.size == 1:
            check_scale(signals.factor, signals.bracket_of_outputs, signals.bracket_of_gradients)
        if any(rule.needs_pseudo_gradients for rule in rules):
            update_rules(read_sample_norms(blocks, groups, communicator), rules)
        steps = self.param_groups[0]["steps"]
        # What a batch teaches acts from the next step on, except where little is known yet.
        at_once = any(rule.due for rule in auto_rules(rules)) or any(
            options["steps"] < AT_ONCE for options in self.param_groups
        )
        stopped = guard(signals, groups)
        plans = plan(signals, groups, signals.descents, stopped)
        refreshing = any(block.pulled or block.recording for block in blocks)
        if refreshing:
            failure = refresh(
                blocks,
                groups,
                self.state,
                signals,
                step=steps,
                stopped=stopped,
                communicator=communicator,
            )
            if failure is not None:
                self._warn_no_replay(failure)
            if at_once:
                C_brackets = [group.C.apply(group.bracket) for group in groups]
                pairs = zip(groups, C_brackets, strict=True)
                descents = communicator.read(
                    {str(k): communicator.dot(g.bracket, Cr) for k, (g, Cr) in enumerate(pairs)}
                )
                plans = plan(signals, groups, list(descents.values()), stopped)
        for k, (options, group, C_bracket, own) in enumerate(
            zip(self.param_groups, groups, C_brackets, plans, strict=True)
        ):
            tango_update(
                [local(group.params[i]) for i in group.trainable],
                [local(group.v[i]) for i in group.trainable],
                [local(C_bracket[i]) for i in group.trainable],
                own,
            )
            options["previous_lr"] = learning_rate(options)
            options["steps"] += 1
            options["velocity_norm"] = (
                math.nan
                if refreshing
                else own.velocity_norm(
                    signals.velocity_norms[k], signals.slopes[k], signals.descents[k]
                )
            )
            self._velocity_versions[k] = _versions(group.v)
        self._quotient = signals.quotient
        self._warn_if_unstable(plans)
        self._notify_likelihoods(blocks, communicator)
        return loss

    def _notify_likelihoods(
        self, blocks: Sequence[Observation], communicator: Communicator
    ) -> None:
        """Let likelihoods that learn from the data know that the step has been taken."""
        totals: dict[Callable[[Tensor], None], Tensor] = {}
        for after_step, sums in (pair for block in blocks for pair in block.callbacks):
            totals[after_step] = totals.get(after_step, 0) + sums
        for after_step, total in totals.items():
            after_step(communicator.average(total))

    def _forget_changed_velocities(self) -> None:
        """Have ``vᵀC⁻¹v`` computed anew where v was changed by others since the last step."""
        for k, options in enumerate(self.param_groups):
            v = velocities(options["params"], self.state)
            if self._velocity_versions.get(k, _versions(v)) != _versions(v):
                options["velocity_norm"] = math.nan

    def _warn_if_unstable(self, plans: Sequence[Plan]) -> None:
        """Warn, once, when a given γ is too large for the curvature along v."""
        gamma = min(plan.gamma for plan in plans)
        self._unstable.append(gamma * self._quotient > 2)
        if self._unstable.count(True) >= 3 and not self._warned_unstable:
            self._warned_unstable = True
            warnings.warn(
                f"gamma times the curvature along the velocity is {gamma * self._quotient:.2g}, "
                "and was above 2 in three of the last ten steps: the velocity grows without limit. "
                'Use gamma="auto", or lower gamma.',
                RuntimeWarning,
                stacklevel=5,
            )

    def _warn_no_replay(self, error: CannotReplayError) -> None:
        """Warn, once, that the batch could not be replayed."""
        if self._warned_no_replay:
            return
        self._warned_no_replay = True
        warnings.warn(
            f'gamma="auto" could not replay the batch ({error}) and falls back to the curvature '
            "along the velocity alone, which adapts more slowly. Pass the model to "
            "`tangents(model)` with nothing between it and the likelihood, or give the whole loss "
            "as a function: `loss = optimizer.evaluate(model, lambda: likelihood(f(x), y))`.",
            RuntimeWarning,
            stacklevel=5,
        )

    def _named_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the gradients, with the names that the model gives their parameters."""
        for k, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.requires_grad and p.grad is not None:
                    yield self._names.get(id(p), f"number {i} of group {k}"), p.grad

    # ------------------------------------------------------------------ diagnostics

    def diagnostics(self) -> dict[str, float]:
        """Return how the last step went.

        Returns:
            ``gamma``: γ; ``damping``: δt/γ, to compare with the eigenvalues of ``C^½ F C^½``;
            ``fisher_quotient``: ``vᵀF̂v / vᵀC⁻¹v``, the curvature along the velocity, which times
            γ should stay below 2. Values are NaN before the first step, and for the quotient as
            long as v is 0. ``guards``: how often the guard of ``gamma="auto"`` stepped in. Further
            groups have their number appended, as in ``gamma_1``.
        """
        known: dict[str, float] = {}
        for k, (group, rule) in enumerate(zip(self.param_groups, self._rules(), strict=True)):
            suffix = f"_{k}" if k else ""
            gamma = rule.value if group["steps"] else math.nan
            known[f"gamma{suffix}"] = gamma
            known[f"damping{suffix}"] = group["previous_lr"] / gamma if gamma else math.inf
        known["fisher_quotient"] = self._quotient
        autos = auto_rules(self._rules())
        if autos:
            known["guards"] = sum(rule.guards for rule in autos)
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
        """Return how far the velocity is from the damped natural gradient at the current θ.

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
        rules = self._rules()
        if not all(g["steps"] and r.value for g, r in zip(self.param_groups, rules, strict=True)):
            raise RuntimeError("residual() needs a velocity and γ > 0: take a step first")
        move_with_model(self.param_groups, self.state)
        equations = [
            Equation(
                params=group["params"],
                v=velocities(group["params"], self.state),
                C=group["preconditioner"],
                keep=1 - group["previous_lr"],
                damping=group["previous_lr"] / rule.value,
                prior=group["weight_decay"],
            )
            for group, rule in zip(self.param_groups, rules, strict=True)
        ]
        site = Site(model if isinstance(model, nn.Module) else None)
        communicator = communicator_for(site.model)
        communicator.require_whole_parameters(
            "residual()", "load a checkpoint of the run into a whole model in one process"
        )
        with communicator.unwrapped():
            return relative_residual(
                equations, lambda: self._training_pass(site), model, likelihood, batches
            )

    # ------------------------------------------------------------------ saving, loading, copying

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the statistics of γ and C in their groups as plain values."""
        self._rules()
        handle = self.register_state_dict_post_hook(checkpoint.to_plain_values, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a saved run; γ rules and preconditioners must be of the kinds saved.

        Raises:
            ValueError: the state is damaged, or that of another optimizer; nothing was changed.
        """
        self._rules()
        handle = self.register_load_state_dict_pre_hook(checkpoint.check_structure)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_engine": self._engine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = checkpoint.to_objects(getattr(self, "param_groups", ()), state)
        super().__setstate__(state)
        self._reset()

    def _reset(self) -> None:
        """Reset what is not saved: the open step, names, and what was last reported."""
        self.scaler = None
        self._pending = PendingStep()
        self._names = {}
        self._versions = {}
        self._velocity_versions = {}
        self._quotient = math.nan
        self._unstable = deque(maxlen=10)
        self._warned_no_replay = False
        self._warned_unstable = False


def _elsewhere() -> Exception:
    return FloatingPointError("the batch of another process is invalid: see its error")


def _versions(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return what differs after each change of one of the tensors."""
    return [(id(x), x._version) for x in tensors]
