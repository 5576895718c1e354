"""The update of TANGO as one function, and the optimizer around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from tangograd import checkpoint, checks, curvature, preconditioners
from tangograd.blocks import TangentBlocks, Trained, notify_likelihoods, velocity_versions
from tangograd.curvature import GammaRule
from tangograd.curvature.observation import Observation
from tangograd.curvature.planning import Plan
from tangograd.curvature.signals import read_signals
from tangograd.curvature.step import decide
from tangograd.diagnostics import Warner, describe, numbers
from tangograd.engines import resolve
from tangograd.likelihoods import Likelihood
from tangograd.parallel import communicator_for
from tangograd.parallel.shards import is_shard, local
from tangograd.preconditioners import Preconditioner
from tangograd.solve import relative_residual
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
        preconditioner: C: ``"auto"`` (Kronecker factors of linear and convolution layers, and the
            inverse diagonal of the Fisher matrix elsewhere; parameters sharded by ``fully_shard``
            have the diagonal), ``"diagonal"`` (cheaper steps, less memory), ``"rmsprop"``,
            ``None``, or an object of :mod:`tangograd.preconditioners`.
        weight_decay: λ of a Gaussian prior: adds ``λ θ`` to g and ``λ`` to F.
        accelerated: ``θ_k = θ_{k-1} - v_k``; on a quadratic this is Nesterov's method with momentum
            ``1-δt_{k-1}`` and step γ.
        engine: how outputs get their tangents ``J v``: ``"auto"`` tries ``"dual"``, ``"two-pass"``,
            ``"double-backward"`` and ``"finite-difference"`` on the first batch and keeps the first
            that is right (logged at INFO level by the logger ``tangograd``); or one by name. See
            :mod:`tangograd.engines`.

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
    _blocks: TangentBlocks
    _velocity_versions: list[Any]  # of each group, after the last step
    _quotient: float
    _warner: Warner

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
        **unknown: Any,
    ) -> None:
        checks.check_unknown(unknown)
        checks.check_habits(lr)
        options = {
            "lr": lr,
            "gamma": gamma,
            "preconditioner": preconditioner,
            "weight_decay": weight_decay,
            "accelerated": accelerated,
        }
        self._blocks = TangentBlocks(resolve(engine))
        self._reset()
        super().__init__(params, checks.Defaults(options))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where given; they start with velocity 0."""
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group is a dict; got {type(param_group).__name__}")
        unknown = param_group.keys() - self.defaults.keys() - {"params", "param_names"}
        checks.check_unknown(dict.fromkeys(sorted(unknown)))
        options = dict(self.defaults) | param_group
        options["gamma"] = curvature.resolve(options["gamma"], self._rules())
        checks.check_options(options)
        super().add_param_group(
            options | {"previous_lr": learning_rate(options), "steps": 0, "velocity_norm": math.nan}
        )
        group = self.param_groups[-1]
        for rule in auto_rules(self._rules()):
            rule.due = True
        try:
            params = group["params"]
            checks.check_parameters(params)
            sharded = any(is_shard(p) for p in params)
            group["preconditioner"] = preconditioners.resolve(
                group["preconditioner"], sharded=sharded
            )
            group["preconditioner"].check(params)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        if not any(p.is_meta for p in params):
            group["preconditioner"].init(params)
            velocities(params, self.state)

    def _rules(self) -> list[GammaRule]:
        """Return the γ rule of each group; users may have set another number or name."""
        for group in self.param_groups:
            if not isinstance(group["gamma"], GammaRule):
                used = [g["gamma"] for g in self.param_groups if isinstance(g["gamma"], GammaRule)]
                group["gamma"] = curvature.resolve(group["gamma"], used)
        return [group["gamma"] for group in self.param_groups]

    def _trained(self) -> Trained:
        """Return what a block needs to know of the groups, their state and the scaler."""
        self._rules()
        may_overflow = self.scaler is not None and self.scaler.is_enabled()
        return Trained(self.param_groups, self.state, may_overflow)

    # ------------------------------------------------------------------ one forward pass

    def tangents(self, model: nn.Module | None = None) -> AbstractContextManager[None]:
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
        return self._blocks.open(model, self._trained())

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
        return self._blocks.evaluate(model, closure, self._trained())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients; blocks whose gradients are thereby discarded no longer count."""
        super().zero_grad(set_to_none)
        self._blocks.pending.clear(p for group in self.param_groups for p in group["params"])

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
        pending, rules = self._blocks.pending, self._rules()
        blocks, communicator = pending.take(), pending.communicator
        self._check(blocks)
        self._forget_changed_velocities()
        groups = [group_in_step(options, self.state) for options in self.param_groups]
        C_brackets = [group.C.apply(group.bracket) for group in groups]
        signals = read_signals(blocks, groups, C_brackets, communicator)
        named_gradients = self._blocks.named_gradients(self.param_groups)
        checks.check_signals(signals, blocks, named_gradients, given=not auto_rules(rules))
        if self.scaler is None and communicator.size == 1:
            checks.check_scale(signals)
        plans, C_brackets, refreshed, failure = decide(
            blocks, groups, C_brackets, signals, self.state, communicator
        )
        for k, (options, group, own) in enumerate(
            zip(self.param_groups, groups, plans, strict=True)
        ):
            tango_update(
                [local(group.params[i]) for i in group.trainable],
                [local(group.v[i]) for i in group.trainable],
                [local(C_brackets[k][i]) for i in group.trainable],
                own,
            )
            norm = own.velocity_norm(
                signals.velocity_norms[k], signals.slopes[k], signals.descents[k]
            )
            options["previous_lr"] = learning_rate(options)
            options["steps"] += 1
            partly_frozen = len(group.trainable) < len(group.params) and not group.C.elementwise
            options["velocity_norm"] = math.nan if refreshed or partly_frozen else norm
        self._velocity_versions = velocity_versions(self.param_groups, self.state)
        self._quotient = signals.quotient
        if failure is not None:
            self._warner.no_replay(failure)
        if not auto_rules(rules):
            self._warner.unstable(min(plan.gamma for plan in plans), self._quotient)
        notify_likelihoods(blocks, communicator)
        return loss

    def _check(self, blocks: Sequence[Observation]) -> None:
        """Check what can be checked without reading a number, and tell blocks the loss's scale."""
        checks.check_unchanged(self._blocks.versions, self._blocks.names)
        for options in self.param_groups:
            checks.check_options(options)
        checks.check_gradients(self._blocks.named_gradients(self.param_groups))
        if self.scaler is not None:
            for factor in (factor for block in blocks for factor in block.factors):
                factor.factor = factor.factor / self.scaler.get_scale()

    def _forget_changed_velocities(self) -> None:
        """Mark ``vᵀC⁻¹v`` to be computed anew where v was changed by others since the last step."""
        now = velocity_versions(self.param_groups, self.state)
        for k, options in enumerate(self.param_groups):
            if self._velocity_versions[k : k + 1] not in ([], now[k : k + 1]):
                options["velocity_norm"] = math.nan

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
        return numbers(self.param_groups, self._rules(), self._quotient)

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
        communicator = communicator_for(model if isinstance(model, nn.Module) else None)
        communicator.require_whole_parameters(
            "residual()", "load a checkpoint of the run into a whole model in one process"
        )
        groups = [group_in_step(options, self.state) for options in self.param_groups]
        engine = self._blocks.engine
        return relative_residual(groups, engine, communicator, model, likelihood, batches)

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
        """Load the state of a saved run; γ rules and preconditioners must be of the kinds saved.

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
        return super().__getstate__() | {"_blocks": TangentBlocks(self._blocks.engine)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = checkpoint.to_objects(getattr(self, "param_groups", ()), state)
        super().__setstate__(state)
        self._reset()

    def _reset(self) -> None:
        """Reset what is not saved: the open step, names, and what was last reported."""
        self.scaler = None
        self._blocks = TangentBlocks(self._blocks.engine)
        self._velocity_versions = []
        self._quotient = math.nan
        self._warner = Warner()
