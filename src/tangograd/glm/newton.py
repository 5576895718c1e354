"""Maximum likelihood on rows in memory, by Fisher scoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.coordinates import Coordinates
from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, evaluate
from tangograd.glm.matrices import Block
from tangograd.glm.numerics.linear_solve import solve
from tangograd.glm.one_pass.linear_algebra import independent_columns
from tangograd.glm.one_pass.tango_path import LOG_TWO
from tangograd.glm.sums import Sums
from tangograd.glm.tally import Tally

Array = NDArray[np.float64]

#: a ridge, so that separated or dependent columns have a solution: this share of the information
#: that the rows have of each coefficient in the model with an intercept alone
RIDGE = 1e-13
#: the ridge decides where its part of the loss is larger, or that of a coefficient's information
OF_LOSS = 0.1
OF_INFORMATION = 0.01
#: times the ridge where it alone chooses between many perfect fits
STRONGER = 1e5
#: the share of the null deviance that a perfect fit leaves, rounding included
PERFECT = 1e-6
#: least eigenvalue of the scaled Fisher matrix that stands out from rounding
ILL_CONDITIONED = 1e-11
#: and that from which one step removes the ridge's bias but for a millionth
WELL_CONDITIONED = 1e-7
#: steps that remove the ridge's bias from a linear model, at most
REFINEMENTS = 20
#: beyond so many coefficients the Fisher matrix is not formed, and L-BFGS is used
DENSE = 1500


class Solution(NamedTuple):
    """Where Fisher scoring ended.

    Attributes:
        theta: shape (outputs, d + 1), for centred columns, the intercept last.
        loss: Σ w loss.
        pearson: Σ w s²/f.
        sums: at theta; without matrices where there are too many coefficients.
        converged: the last step was negligible.
        at: the coordinates.
        streamed: this is where a stream is, and loss and sums are those of each row in its turn.
        separated: classes are told apart so well that only the ridge keeps θ finite.
        undetermined: the columns whose coefficients are the ridge's choice rather than the data's.
        aliased: the columns that were left out: they depend linearly on those before them.
    """

    theta: Array
    loss: float
    pearson: float
    sums: Sums
    converged: bool
    at: Coordinates
    streamed: bool = False
    separated: bool = False
    undetermined: tuple[int, ...] = ()
    aliased: tuple[int, ...] = ()


class Objective:
    """The penalised loss of some rows, its gradient and Fisher matrix.

    Args:
        family: the family.
        blocks: the rows.
        m: what the columns are centred at, shape (d,).
        outputs: linear predictors.
        intercept: there is one.
        alpha: the penalty on the mean loss, α/2 ‖θ‖² without intercepts.
        prior: the precision of a normal prior on what a typical deviation of a column (of a rare
            0/1 column, a 1) does to η.
    """

    def __init__(
        self,
        family: Family,
        blocks: Sequence[Block],
        m: Array,
        outputs: int,
        intercept: bool,
        alpha: float,
        prior: float = 0.0,
    ) -> None:
        self.family, self.blocks, self.m = family, blocks, m
        self.outputs, self.intercept, self.alpha = outputs, intercept, alpha
        self.size = len(m) + 1
        self.weight = float(sum(block.weights.sum() for block in blocks))
        spread = self.moments(2)
        if not np.isfinite(spread).all():
            raise DataError("there are extreme values in the features: their squares overflow")
        self.ridge = RIDGE * null_weight(family, blocks, outputs) * spread
        if prior > 0:
            # not Σ x⁴/Σ x², which a few rows of a heavy-tailed column would decide
            self.ridge += 2 * prior * (spread / np.maximum(self.moments(1), 1e-300)) ** 2
        self.ridge[-1] = 0.0
        self.left_out: NDArray[np.intp] = np.zeros(0, np.intp)  # in the flat θ

    def leave_out(self, columns: Sequence[int]) -> None:
        """Keep the coefficients of these columns as they are: 0."""
        places = np.arange(self.outputs)[:, None] * self.size + np.asarray(columns, np.intp)
        self.left_out = places.ravel()

    def moments(self, power: int) -> Array:
        """Σ w |x - m|^power of each column, shape (d + 1,)."""
        result = np.zeros(self.size)
        for block in self.blocks:
            result[:-1] += block.X.weighted_powers(block.weights, self.m, power)
            result[-1] += block.weights.sum()
        return result

    @property
    def rounding(self) -> float:
        """Of a decrement, where residuals may be nothing else: in linear models."""
        if not self.family.quadratic:
            return 0.0
        return 1e-26 * sum(float(block.weights @ block.y**2) for block in self.blocks)

    def predictors(self, block: Block, theta: Array) -> Array:
        """η, shape (n, outputs)."""
        base = theta[:, -1] - theta[:, :-1] @ self.m if self.intercept else 0.0
        return block.X.dot(theta[:, :-1].T) + base + block.offset[:, None]

    def pull(self, theta: Array) -> Array:
        """The gradient of the penalty and the ridge, shape of θ."""
        result = penalty_gradient(self.family, theta, self.alpha * self.weight)
        return np.asarray(result + self.ridge * theta)

    def value(self, theta: Array) -> float:
        """The penalised loss."""
        total = 0.5 * float(np.sum(theta * self.pull(theta)))
        for block in self.blocks:
            rows = evaluate(self.family, self.predictors(block, theta), block.y)
            total += float(block.weights @ rows.loss)
        return total

    def sums(self, theta: Array, full: bool, meat: bool = False) -> tuple[float, float, Sums]:
        """Σ w loss, Σ w s²/f (0 for several outputs) and the sums, all without the penalty."""
        sums = Sums(self.m, self.outputs, self.intercept, full)
        total, pearson = 0.0, 0.0
        for block in self.blocks:
            loss, s, f, _ = evaluate(self.family, self.predictors(block, theta), block.y)
            total += float(block.weights @ loss)
            sums.mistakes += int(np.count_nonzero(loss >= LOG_TWO))
            if self.outputs == 1:
                ok = f[:, 0, 0] > 0
                pearson += float(block.weights[ok] @ (s[ok, 0] ** 2 / f[ok, 0, 0]))
            w = block.weights[:, None]
            sums.add(block.X, w * s, w[:, :, None] * f, meat)
        return total, pearson, sums

    def penalised(self, fisher: Array) -> Array:
        """The Fisher matrix with the penalty's part."""
        strength = self.alpha * self.weight
        return np.asarray(fisher + penalty_matrix(self.family, self.outputs, self.size, strength))

    def curvature(self, fisher: Array) -> Array:
        """The same with the ridge's."""
        H = self.penalised(fisher) + np.diag(np.tile(self.ridge, self.outputs))
        H[self.left_out] = H[:, self.left_out] = 0.0
        return np.asarray(H)


def null_weight(family: Family, blocks: Sequence[Block], outputs: int) -> float:
    """A row's Fisher weight f at the mean of y, of the rarest class for several; 1 at borders."""
    weight = sum(float(block.weights.sum()) for block in blocks)
    if family.centers_penalty:
        counts = np.zeros(outputs + 1)
        for block in blocks:
            counts += np.bincount(block.y.astype(np.int64), block.weights, len(counts))
        shares = counts / weight
        inside = shares[(shares > 0) & (shares < 1)]
        return float(np.min(inside * (1 - inside), initial=1.0))
    mean = sum(float(block.weights @ block.y) for block in blocks) / weight
    if not family.support.is_interior(mean):
        return 1.0
    eta = family.linear_predictor(np.array([mean]))
    return float(evaluate(family, eta, np.array([mean])).fisher[0])


def penalty_gradient(family: Family, theta: Array, strength: float) -> Array:
    """Of half the squared coefficients; of several classes, of all of them, centred."""
    result = strength * theta
    if family.centers_penalty:
        result = result - strength * theta.sum(axis=0) / (len(theta) + 1)
    result[:, -1] = 0.0
    return result


def penalty_matrix(family: Family, outputs: int, size: int, strength: float) -> Array:
    """The second derivative of the same, for flat coefficients."""
    mixing = np.eye(outputs) - (1 / (outputs + 1) if family.centers_penalty else 0.0)
    columns = np.r_[np.full(size - 1, strength), 0.0]
    return np.asarray(np.kron(mixing, np.diag(columns)))


def means(blocks: Sequence[Block], width: int) -> Array:
    """The weighted mean of each column; exactly its value where that is constant."""
    total, weight = np.zeros(width), 0.0
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for block in blocks:
        d = block.X.shape[1]
        total[:d] += block.X.transpose_dot(block.weights)
        weight += float(block.weights.sum())
        least, most = block.X.extremes()
        low[:d], high[:d] = np.minimum(low[:d], least), np.maximum(high[:d], most)
        low[d:], high[d:] = np.minimum(low[d:], 0.0), np.maximum(high[d:], 0.0)
    return np.where(low == high, low, total / weight if weight > 0 else total)


def converge(
    objective: Objective,
    theta: Array,
    tolerance: float = 1e-16,
    iterations: int = 100,
    meat: bool = True,
) -> Solution:
    """Fisher scoring with halved steps, until a step is worth less than ``tolerance``.

    That is the Newton decrement gᵀH⁻¹g over φ: the sum of the step's squares in standard errors.
    The sums of the result include the sandwich's only if ``meat``.
    """
    theta = theta.copy()
    if theta.size > DENSE:
        return _descend(objective, theta)
    value, rounding = objective.value(theta), objective.rounding
    converged, previous = False, np.inf
    for _ in range(iterations):
        loss, pearson, sums = objective.sums(theta, full=True)
        g = sums.gradient + objective.pull(theta).ravel()
        step = solve(objective.curvature(sums.fisher), g)
        decrement = float(g @ step)
        dispersion = pearson / objective.weight if objective.family.estimates_dispersion else 1.0
        if decrement <= tolerance * dispersion + rounding:
            converged = True
            break
        length, trial, trial_value = 1.0, theta, np.inf
        while length > 1e-6 and not trial_value <= value:
            trial = theta - length * step.reshape(theta.shape)
            trial_value = objective.value(trial)
            length /= 2
        if not trial_value < value:  # rounding is all that is left
            converged = decrement <= 1e-9 * abs(value) + 1e-6 * dispersion
            if not converged or decrement >= previous:
                break
            trial, trial_value = theta - step.reshape(theta.shape), value
        theta, value, previous = trial, trial_value, decrement
    else:
        # scoring is slow where a model with curved loss is wrong, but right in the end
        converged = decrement <= 1e-8 * dispersion
        meat = True  # the sums are those before the last step
    if meat:
        loss, pearson, sums = objective.sums(theta, full=True, meat=True)
    return Solution(theta, loss, pearson, sums, converged, Coordinates(objective.m))


def maximum_likelihood(objective: Objective, theta: Array) -> Solution:
    """Converge, without columns that depend linearly on those before them.

    Where there are any, the first solution, in which the ridge chose between them, is only the
    start of another. A penalty makes all columns count.
    """
    refine = objective.family.quadratic and objective.alpha == 0
    found = converge(objective, theta, meat=not refine)
    if objective.alpha > 0 or not found.sums.full:
        return found
    size = objective.size
    blocks = found.sums.fisher.reshape(objective.outputs, size, objective.outputs, size)
    gram = np.einsum("kikj->ij", blocks)
    present = np.flatnonzero(np.diag(gram) > 0)
    kept = independent_columns(gram, size - 1 if objective.intercept else None)
    aliased = tuple(int(j) for j in np.setdiff1d(present, kept))
    if not aliased:
        return _refined(objective, found) if refine else found
    if _interpolates(objective, found):  # columns cannot be told apart: the least coefficients
        objective.ridge *= STRONGER
        return converge(objective, theta)
    objective.leave_out(aliased)
    theta = found.theta.copy()
    theta[:, list(aliased)] = 0.0
    found = converge(objective, theta, meat=not refine)._replace(aliased=aliased)
    return _refined(objective, found) if refine else found


def _refined(objective: Objective, found: Solution) -> Solution:
    """Return the least-squares solution of a linear model, without the ridge's bias.

    That is iterative refinement: steps with the ridge's curvature and the gradient without it, as
    long as they become shorter. The ridge stays where the columns are so nearly dependent that
    rounding has changed the Fisher matrix, which `examined` reports, and in other families, in
    which separated classes have no solution without it.
    """
    smallest = _smallest_eigenvalue(found.sums.fisher, objective.left_out)
    if smallest < ILL_CONDITIONED:
        return found._replace(sums=objective.sums(found.theta, full=True, meat=True)[2])
    H = objective.curvature(found.sums.fisher)
    theta, last = found.theta, np.inf
    for _ in range(1 if smallest > WELL_CONDITIONED else REFINEMENTS):
        sums = objective.sums(theta, full=False)[2]
        sums.gradient[objective.left_out] = 0.0
        step = solve(H, sums.gradient)
        size = float(sums.gradient @ step)
        if not size < last:  # rounding is all that is left
            break
        theta, last = theta - step.reshape(theta.shape), size
    objective.ridge = np.zeros_like(objective.ridge)
    loss, pearson, sums = objective.sums(theta, full=True, meat=True)
    return found._replace(theta=theta, loss=loss, pearson=pearson, sums=sums)


def _smallest_eigenvalue(H: Array, left_out: NDArray[np.intp]) -> float:
    """Return that of a matrix scaled to diagonal 1, without some coefficients."""
    diagonal = np.diag(H).copy()
    diagonal[left_out] = 0.0
    here = np.flatnonzero(diagonal > 0)
    scale = 1 / np.sqrt(diagonal[here])
    R = H[np.ix_(here, here)] * scale[:, None] * scale
    return float(np.linalg.eigvalsh(R)[0]) if len(here) else 1.0


def _interpolates(objective: Objective, found: Solution) -> bool:
    """Return whether the fit is perfect: there are as many coefficients as different rows."""
    tally = Tally(objective.family, objective.outputs + 1)
    tally.add(objective.blocks, 0.0, 0.0)
    left, whole = found.loss - tally.saturated, tally.null_loss() - tally.saturated
    return left <= PERFECT * whole


def examined(objective: Objective, found: Solution) -> Solution:
    """The same, with what the ridge has done.

    At the minimum ``ridge · θ²`` is how fast the loss still falls as θ grows along itself: of the
    order of the loss for separated classes, 1e-8 of it for others. The ridge's part of a
    coefficient's information is its part of 1/(H⁻¹)_jj.
    """
    if objective.alpha > 0:
        return found
    pulled = float(np.sum(objective.ridge * found.theta**2))
    separated = objective.family.classes and (
        found.sums.mistakes == 0 or pulled > OF_LOSS * found.loss
    )
    if not found.sums.full or separated:
        return found._replace(separated=separated)
    H, ridge = objective.curvature(found.sums.fisher), np.tile(objective.ridge, objective.outputs)
    here = np.flatnonzero(np.diag(H) > 0)
    scale = 1 / np.sqrt(np.diag(H)[here])
    inverse = np.linalg.pinv(H[np.ix_(here, here)] * scale[:, None] * scale, hermitian=True)
    share = np.zeros(len(ridge))
    share[here] = ridge[here] * scale**2 * np.diag(inverse)
    weak = np.flatnonzero(share > OF_INFORMATION) % objective.size
    weak = np.setdiff1d(weak, found.aliased)
    return found._replace(undetermined=tuple(int(j) for j in np.unique(weak)))


def _descend(objective: Objective, theta: Array) -> Solution:
    """Many coefficients: L-BFGS, in units of the inverse root of the Fisher diagonal."""
    shape = theta.shape
    _, _, sums = objective.sums(theta, full=False)
    diagonal = (
        sums.fisher
        + objective.alpha * objective.weight
        + np.tile(objective.ridge, objective.outputs)
    )
    scale = np.where(diagonal > 0, 1 / np.sqrt(np.maximum(diagonal, 1e-300)), 0.0)

    def value_and_gradient(z: Array) -> tuple[float, Array]:
        at = (scale * z).reshape(shape)
        pull = objective.pull(at)
        loss, _, sums = objective.sums(at, full=False)
        return loss + 0.5 * float(np.sum(at * pull)), scale * (sums.gradient + pull.ravel())

    start = np.where(scale > 0, theta.ravel() / np.where(scale > 0, scale, 1.0), 0.0)
    from scipy.optimize import minimize  # seldom needed, and slow to load

    found = minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}
    )
    theta = (scale * found.x).reshape(shape)
    sums_there = objective.sums(theta, full=False, meat=True)
    return Solution(theta, *sums_there, bool(found.success), Coordinates(objective.m))
