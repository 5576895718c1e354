"""The natural gradient in continuous time: the path that TANGO converges to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from tangograd.likelihoods import Likelihood
from tangograd.reference.dense import natural_gradient
from tangograd.vectors import flatten, unflatten


def natural_gradient_flow(
    likelihood: Likelihood,
    forward: Callable[[], Tensor],
    targets: Tensor,
    parameters: Iterable[Tensor],
    times: Sequence[float],
    *,
    weights: Tensor | None = None,
    damping: float = 0.0,
    tolerance: float = 1e-9,
) -> Tensor:
    """Solve ``dθ/dt = -F(θ)⁻¹ E g(θ)`` from the current parameters.

    Args:
        likelihood: the output family.
        forward: recomputes the outputs of the whole data set from the parameters.
        targets: the whole data set's targets.
        parameters: θ; they are restored afterwards.
        times: increasing, from 0 on, at which to report θ.
        weights: of the samples; all 1 by default.
        damping: added to the diagonal of F.
        tolerance: relative and absolute error of the integrator.

    Returns:
        θ flattened, shape ``(len(times), d)``.

    Example: a Gaussian mean goes straight to the data's, at rate 1.

        >>> from tangograd import Gaussian
        >>> mu = torch.zeros(1, requires_grad=True, dtype=torch.float64)
        >>> y = torch.tensor([[9.0], [11.0]], dtype=torch.float64)
        >>> natural_gradient_flow(Gaussian(), lambda: mu.expand(2, 1), y, [mu], [0.0, 1.0])
        tensor([[0.0000],
                [6.3212]], dtype=torch.float64)
    """
    theta = list(parameters)
    start = flatten(theta).detach()

    def place(values: Tensor) -> None:
        with torch.no_grad():
            for p, value in zip(theta, unflatten(values, theta), strict=True):
                p.copy_(value)

    def velocity(_: float, values: np.ndarray) -> np.ndarray:
        place(torch.from_numpy(values).to(start))
        direction = natural_gradient(
            likelihood, forward(), targets, theta, weights=weights, damping=damping
        )
        return -flatten(direction).detach().double().cpu().numpy()

    try:
        solution = solve_ivp(
            velocity,
            (0.0, float(times[-1])),
            start.double().cpu().numpy(),
            t_eval=np.asarray(times, dtype=float),
            method="DOP853",
            rtol=tolerance,
            atol=tolerance,
        )
    finally:
        place(start)
    if not solution.success:
        raise RuntimeError(f"the natural gradient flow could not be followed: {solution.message}")
    return torch.from_numpy(solution.y.T.copy()).to(start)
