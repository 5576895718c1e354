"""The dense Fisher matrix and the exact natural gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tangograd.likelihoods import Likelihood
from tangograd.vectors import flatten, unflatten


def fisher_matrix(
    likelihood: Likelihood,
    outputs: Tensor,
    parameters: Iterable[Tensor],
    weights: Tensor | None = None,
    *,
    targets: Tensor | None = None,
) -> Tensor:
    """Return the exact Fisher matrix ``F = Σ w_i J_iᵀ H_i J_i / Σ w_i``.

    It is the expectation over the output distribution, without sampling. The Jacobian is built by
    one backward pass for each element of the outputs; the cost is O(elements) backward passes and
    O(d²) memory.

    Args:
        likelihood: gives H through its ``fisher_product``.
        outputs: z, shape ``(*samples, *event)``, computed from the parameters.
        parameters: θ, d elements in all.
        weights: w, shape ``(*samples)``, not negative; all 1 by default.
        targets: y; needed if the likelihood has class weights, label smoothing or a ``pos_weight``,
            or ignores some targets, since these change the weights.

    Returns:
        F, shape ``(d, d)``, in the order of the flattened parameters.

    Example: the mean of N(θ, σ²) has Fisher information 1/σ².

        >>> from tangograd import Gaussian
        >>> theta = torch.zeros(1, requires_grad=True)
        >>> fisher_matrix(Gaussian(variance=4.0), theta.expand(3, 1), [theta])
        tensor([[0.2500]])
    """
    theta = list(parameters)
    if targets is None:
        events = likelihood.event_dimensions(outputs)
        z = outputs.reshape(-1, *outputs.shape[outputs.dim() - events :])
        w = torch.ones(len(z)).to(z) if weights is None else weights.reshape(-1).to(z)
        w, m = w / w.sum(), None
    else:
        batch = likelihood.batch(outputs, targets, weights)
        batch.raise_if_invalid()
        z, w, m = batch.z, batch.fisher_weights, batch.element_weights
    J = _jacobian(z, theta)
    H = _output_fisher(likelihood, z.detach())
    if m is not None:
        root = m.reshape(len(m), -1).sqrt()
        H = root[:, :, None] * H * root[:, None, :]
    return torch.einsum("b,bki,bkl,blj->ij", w, J, H, J)


def natural_gradient(
    likelihood: Likelihood,
    outputs: Tensor,
    targets: Tensor,
    parameters: Iterable[Tensor],
    *,
    weights: Tensor | None = None,
    fisher_weights: Tensor | None = None,
    damping: float = 0.0,
) -> list[Tensor]:
    """Return ``(F + damping·I)⁻¹ g``, in the shapes of the parameters.

    Args:
        likelihood: the output family.
        outputs: z, computed from the parameters.
        targets: y.
        parameters: θ.
        weights: w; all 1 by default.
        fisher_weights: weights of F, by default w; see :meth:`tangograd.Likelihood.forward`.
        damping: added to the diagonal of F.

    Example: one natural-gradient step of length 1 fits the mean of a Gaussian.

        >>> from tangograd import Gaussian
        >>> theta = torch.zeros(1, requires_grad=True)
        >>> y = torch.tensor([[1.0], [3.0]])
        >>> natural_gradient(Gaussian(variance=4.0), theta.expand(2, 1), y, [theta])
        [tensor([-2.])]
    """
    theta = list(parameters)
    loss = likelihood(outputs, targets, weights, fisher_weights)
    g = torch.autograd.grad(loss, theta, retain_graph=True, allow_unused=True)
    gradient = flatten([_or_zeros(x, p) for x, p in zip(g, theta, strict=True)])
    w = weights if fisher_weights is None else fisher_weights
    F = fisher_matrix(likelihood, outputs, theta, w, targets=targets)
    F = F + damping * torch.eye(len(F), dtype=F.dtype, device=F.device)
    solution, failed = torch.linalg.solve_ex(F, gradient)
    if bool(failed):
        raise ValueError(
            "the Fisher matrix is singular, so the natural gradient is not unique: "
            "use damping > 0, or remove redundant parameters"
        )
    return unflatten(solution, theta)


def _jacobian(z: Tensor, theta: Sequence[Tensor]) -> Tensor:
    """Return ``∂z/∂θ``, shape ``(B, K, d)`` with K the elements of one sample's outputs."""
    flat = z.reshape(-1)
    jacobian = []
    for i in range(len(flat)):
        row = torch.autograd.grad(flat[i], theta, retain_graph=True, allow_unused=True)
        jacobian.append(flatten([_or_zeros(x, p) for x, p in zip(row, theta, strict=True)]))
    return torch.stack(jacobian).reshape(len(z), -1, sum(p.numel() for p in theta))


def _output_fisher(likelihood: Likelihood, z: Tensor) -> Tensor:
    """Return H of each sample, shape ``(B, K, K)``."""
    K = z[0].numel()
    columns = []
    for k in range(K):
        e = torch.zeros(K).to(z)
        e[k] = 1
        product = likelihood.fisher_product(z, e.reshape(z[0].shape).expand_as(z))
        columns.append(product.reshape(len(z), K))
    return torch.stack(columns, -1)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient
