"""TANGO's recursion over the rows of a generalised linear model, compiled.

A row has features x, a response y and linear predictors ``η_l = x·θ_l``, one for each output l (one
in all but multinomial models). With s the gradient of its loss in η and F̂ its Fisher matrix there
(expected, or the outer product of a pseudo-sample's gradient), Definition 1 of the paper with a
diagonal C reads, t = (1-δt_{k-1}) x·v being the tangent,

    v_k = (1-δt_{k-1}) v_{k-1} + γ_k C (s - F̂ t) x,        θ_k = θ_{k-1} - δt_k v_k.

Three things are added, none of which moves the fixed point in the end:

- ``δt_k = 1/k`` and ``γ_k = c/√(A k)``, with ``A = E[q²]/2E[q]`` for ``q = tr F̂ · xᵀCx``: of the
  variance of the estimate, relative to maximum likelihood's, 2Aγ_k is due to the noise of F̂ and
  ``mean(1/λ)/2kγ_k`` to what the last rows have not yet taught (λ the eigenvalues of C F). Their
  sum is least at ``c² = mean(1/λ)/4``, for all k at once: no horizon is needed.
- a row's γ is at most 1/q (the rule 1/max, row by row), and, unless the model is linear, such that
  its η moves by at most ``BOUND``;
- x is centred at the means m of the first rows, so that features far from 0 do not resemble the
  intercept.

C is the inverse of the mean Fisher diagonal, renewed whenever k has grown by 5%.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tangograd.stream.families import GAMMA as GAMMA_FAMILY
from tangograd.stream.families import GAUSSIAN, LOG_TWO, TWEEDIE, draw, is_mistake, parts, point
from tangograd.stream.recursion import centre_of, learn, predict, widened
from tangograd.stream.vectors import fetch_row, zeros

#: the state's scalars, in one array
(
    ROWS,  # k
    RENEWAL,  # the row at which C and γ are renewed
    GAMMA,
    DT,  # δt_{k-1}
    Q,  # Σ q
    Q2,  # Σ q min(q, 1/γ)
    NOISE,  # Σ γ q²: what F̂'s noise costs
    CONSTANT,  # c
    PENALTY,  # the row at which the penalty is applied
    PENALTY_ROWS,  # for how many rows
    WEIGHT,  # Σ w
    LOSS,  # Σ w loss
    PEARSON,  # Σ w s²/f, an estimate of n φ where φ is free
    SCALE,  # s of v = s u
    LAG,  # b of θ = φ - b u
    LEVERAGE,  # rows whose γ was bounded
    INTERCEPT,  # 1 if there is one
    MISTAKES,  # rows whose class seemed less likely than not
) = range(18)
SCALARS = 18

MULTINOMIAL = -1
#: the families whose dispersion is estimated
FREE = (GAUSSIAN, GAMMA_FAMILY, TWEEDIE)
BOUND = 3.0
GROWTH = 1.05
#: γ ≤ LARGEST / A, half of what is stable in mean square
LARGEST = 0.5
#: the penalty is applied whenever γ times the rows since then reaches this
STRIDE = 0.05
#: a product of factors of the likelihood that is still a number, with another one too
LARGEST_PRODUCT = 1e300
#: rows between one that is learned from and one that is fetched from memory
FETCHED = 8
#: sums may be reordered, NaN and infinity stay what they are. Where sums may not, it is said, too:
#: numba gives a function that says nothing the flags of the first that has it compiled
SUMS = {"contract", "reassoc", "nsz", "arcp"}


@njit(cache=True, error_model="numpy", fastmath=False)
def pseudo_fisher(family, parameter, eta, scalars, rng):  # type: ignore[no-untyped-def]
    """The square of a pseudo-sample's score, an unbiased estimate of f."""
    dispersion = 1.0
    if family in (GAUSSIAN, GAMMA_FAMILY, TWEEDIE) and scalars[PEARSON] > 0:
        dispersion = scalars[PEARSON] / scalars[WEIGHT]
    pseudo = draw(family, parameter, eta, dispersion, rng)
    return point(family, parameter, eta, pseudo)[1] ** 2 / dispersion


@njit(cache=True, error_model="numpy", fastmath=False)
def rate(scalars, w, loss, mistaken, q, q2, pearson, moved):  # type: ignore[no-untyped-def]
    """γ of this row, which moves η by γ ``moved``; keeps the statistics."""
    gamma = scalars[GAMMA]
    if gamma * q > 1:
        gamma = 1 / q
        scalars[Q2] += q2 * gamma / scalars[GAMMA]
    else:
        scalars[Q2] += q2
    if gamma * moved > BOUND:
        gamma = BOUND / moved
    scalars[LEVERAGE] += gamma < scalars[GAMMA]
    scalars[Q] += q
    scalars[NOISE] += gamma * q2
    scalars[WEIGHT] += w
    scalars[LOSS] += w * loss
    scalars[MISTAKES] += mistaken
    scalars[PEARSON] += w * pearson
    return gamma


@njit(cache=True, error_model="numpy", fastmath=False)
def factored(scalars, w, factor, product, common):  # type: ignore[no-untyped-def]
    """Take in a factor of a row's likelihood, to the power w.

    A logarithm is slow; that of a product serves all rows of one weight whose factors are in it.

    Returns:
        the product of the factors that wait, and the weight of their rows.
    """
    if factor == 1:
        return product, common
    if w == common and product < LARGEST_PRODUCT:
        return product * factor, common
    scalars[LOSS] += common * math.log(product)
    return factor, w


@njit(cache=True, error_model="numpy", fastmath=False)
def step(family, parameter, eta, t, q, y, w, sampled, rng, scalars, s, H, a):  # type: ignore[no-untyped-def]
    """Fill s, the Fisher matrix H of the outputs, and a, the multiples of C x that v gains."""
    outputs = len(eta)
    if family != MULTINOMIAL:
        rest, factor, s[0], f = parts(family, parameter, eta[0], y)
        H[0, 0] = f
        pearson = s[0] * s[0] / f if family in FREE and f > 0 else 0.0
        if sampled:
            f = pseudo_fisher(family, parameter, eta[0], scalars, rng)
        a[0] = w * (s[0] - f * t[0])
        fq = w * f * q[0]
        moved = 0.0 if family == GAUSSIAN else abs(a[0]) * q[0]
        loss = rest if factor == 1 else rest + math.log(factor)
        mistaken = is_mistake(rest, factor)
        a[0] *= rate(scalars, w, loss, mistaken, fq, fq * fq, pearson, moved)
        return
    # several classes, η = 0 for the first; s holds the probabilities for now
    largest = 0.0
    for i in range(outputs):
        largest = max(largest, eta[i])
    total = math.exp(-largest)
    for i in range(outputs):
        s[i] = math.exp(eta[i] - largest)
        total += s[i]
    for i in range(outputs):
        s[i] /= total
    own = int(y) - 1
    loss = largest + math.log(total) - (eta[own] if own >= 0 else 0.0)
    for i in range(outputs):
        for j in range(outputs):
            H[i, j] = (s[i] if i == j else 0.0) - s[i] * s[j]
    fq, fq2 = 0.0, 0.0
    if sampled:
        pseudo = -1
        u = rng.random() - math.exp(-largest) / total
        for i in range(outputs):
            if u >= 0:
                u -= s[i]
                pseudo = i
        along = 0.0
        for i in range(outputs):
            g = s[i] - (1.0 if i == pseudo else 0.0)
            along += g * t[i]
            fq += w * g * g * q[i]
        for i in range(outputs):
            a[i] = -(s[i] - (1.0 if i == pseudo else 0.0)) * along
        fq2 = fq * fq
    else:
        for i in range(outputs):
            a[i] = 0.0
            fq += w * H[i, i] * q[i]
            for j in range(outputs):
                a[i] -= H[i, j] * t[j]
                fq2 += (w * H[i, j]) ** 2 * q[i] * q[j]
    if own >= 0:
        s[own] -= 1
    moved = 0.0
    for i in range(outputs):
        a[i] = w * (s[i] + a[i])
        moved = max(moved, abs(a[i]) * q[i])
    gamma = rate(scalars, w, loss, loss > LOG_TWO, fq, fq2, 0.0, moved)
    for i in range(outputs):
        a[i] *= gamma


@njit(cache=True, error_model="numpy", fastmath=False)
def renew(scalars, S, C, alpha):  # type: ignore[no-untyped-def]
    """C from the mean Fisher diagonal, and γ from its c/√(A k)."""
    k = scalars[ROWS]
    mean_weight = scalars[WEIGHT] / k
    outputs, size = S.shape
    for i in range(outputs):
        for j in range(size):
            curvature = S[i, j] / k + (alpha * mean_weight if j < size - 1 else 0.0)
            C[i, j] = 1 / curvature if S[i, j] > 0 else 0.0
        C[i, size - 1] *= scalars[INTERCEPT]
    scalars[RENEWAL] = math.ceil(k * GROWTH)
    if scalars[Q] > 0:
        A = 0.5 * scalars[Q2] / scalars[Q]
        scalars[GAMMA] = min(LARGEST / A, scalars[CONSTANT] / math.sqrt(A * k))
    if alpha > 0 and scalars[PENALTY] == 0:
        _schedule_penalty(scalars)


@njit(cache=True, error_model="numpy", fastmath=False)
def _schedule_penalty(scalars):  # type: ignore[no-untyped-def]
    """The next time; renewals in between leave it alone, or the rows before them had none."""
    scalars[PENALTY_ROWS] = max(1.0, math.floor(STRIDE / scalars[GAMMA]))
    scalars[PENALTY] = scalars[ROWS] + scalars[PENALTY_ROWS]


@njit(cache=True, error_model="numpy", fastmath=False)
def penalise(scalars, theta, v, C, alpha, family):  # type: ignore[no-untyped-def]
    """The gradient of the penalty α/2 ‖θ‖² and its part of F, for the rows since the last time.

    With several classes the penalty is that of the centred coefficients of all of them.
    """
    outputs, size = theta.shape
    rate = scalars[GAMMA] * scalars[PENALTY_ROWS] * alpha * scalars[WEIGHT] / scalars[ROWS]
    for j in range(size - 1):
        mean = 0.0
        if family == MULTINOMIAL:
            for i in range(outputs):
                mean += (theta[i, j] - v[i, j]) / (outputs + 1)
        for i in range(outputs):
            v[i, j] += rate * C[i, j] * (theta[i, j] - v[i, j] - mean)
    _schedule_penalty(scalars)


@njit(cache=True, error_model="numpy", fastmath=False)
def _flat(part, d):  # type: ignore[no-untyped-def]
    """The coefficients of one output, as ``renew`` and ``penalise`` want them."""
    return part[: d + 1].reshape(1, -1)


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def single_rows(  # type: ignore[no-untyped-def]
    family,
    parameter,
    X,
    y,
    w,
    offset,
    order,
    m,
    theta,
    v,
    C,
    S,
    scalars,
    alpha,
    sampled,
    rng,
    z,
    weights,
):
    """``dense_rows`` of one output, in vectors.

    Instead of scores and Fisher matrices it keeps what their sums over rows are made of, unless
    these are empty: ``z`` gets ``[x - m, 1]`` of each row and zeros, shape (n, padded(d + 1)), and
    ``weights`` gets w f and (w s)², shape (2, n).
    """
    d = len(theta) - 1
    theta_x, v_x, C_x, S_x = widened(theta), widened(v), widened(C), widened(S)
    m_x = centre_of(m)
    keeping, free = len(z) > 0, family in FREE
    if not keeping:
        z = zeros(1, len(theta_x))
    if z.shape[1] != len(theta_x):
        raise ValueError("z has not as many columns as padded coefficients")
    product, common = 1.0, 1.0
    for n in range(len(order)):
        row, here = order[n], n if keeping else 0
        fetch_row(X, order[min(n + FETCHED, len(order) - 1)])
        k = scalars[ROWS] + 1
        scalars[ROWS] = k
        keep, dt, weight = 1 - scalars[DT], 1 / k, w[n]
        eta, t, q = predict(X, row, m_x, theta_x, v_x, C_x, z, here)
        rest, factor, s, f = parts(family, parameter, eta + offset[n], y[n])
        product, common = factored(scalars, weight, factor, product, common)
        f_hat = f
        if sampled:
            f_hat = pseudo_fisher(family, parameter, eta + offset[n], scalars, rng)
        a = weight * (s - f_hat * keep * t)
        fq = weight * f_hat * q
        pearson = s * s / f if free and f > 0 else 0.0
        moved = 0.0 if family == GAUSSIAN else abs(a) * q
        mistaken = is_mistake(rest, factor)
        a *= rate(scalars, weight, rest, mistaken, fq, fq * fq, pearson, moved)
        learn(z, here, keep, a, dt, weight * f, theta_x, v_x, C_x, S_x)
        scalars[DT] = dt
        if keeping:
            weights[0, n], weights[1, n] = weight * f, (weight * s) ** 2
            z[n, d] = scalars[INTERCEPT]
        if alpha > 0 and k >= scalars[PENALTY]:
            penalise(scalars, _flat(theta_x, d), _flat(v_x, d), _flat(C_x, d), alpha, family)
        if k >= scalars[RENEWAL]:
            renew(scalars, _flat(S_x, d), _flat(C_x, d), alpha)
    scalars[LOSS] += common * math.log(product)
    for j in range(d + 1):
        theta[j], v[j], C[j], S[j] = theta_x[j], v_x[j], C_x[j], S_x[j]


@njit(cache=True, error_model="numpy", fastmath=SUMS, nogil=True)
def dense_rows(  # type: ignore[no-untyped-def]
    family,
    parameter,
    X,
    y,
    w,
    offset,
    order,
    m,
    theta,
    v,
    C,
    S,
    scalars,
    alpha,
    sampled,
    rng,
    scores,
    fishers,
):
    """Learn from the rows ``order`` of X, in that order.

    Args:
        family: its number.
        parameter: the family's.
        X: the rows; float64 or float32.
        y: responses, or the numbers of the classes.
        w: weights.
        offset: added to every η.
        order: which row of X each of them belongs to.
        m: what x is centred at, shape (d,).
        theta: θ, shape (outputs, d + 1), the last column the intercept (of the centred x).
        v: the velocity.
        C: the diagonal of C; 0 keeps a coefficient where it is.
        S: the sum of the rows' Fisher diagonals.
        scalars: the rest of the state.
        alpha: the penalty.
        sampled: F̂ from pseudo-samples.
        rng: draws them.
        scores: gets w s of each row, shape (n, outputs), unless empty.
        fishers: gets w F in output space, shape (n, outputs, outputs), unless empty.
    """
    outputs, d = theta.shape[0], X.shape[1]
    x = np.empty(d)
    eta, t, q = np.empty(outputs), np.empty(outputs), np.empty(outputs)
    s, a = np.empty(outputs), np.empty(outputs)
    H = np.empty((outputs, outputs))
    keeping = len(scores) > 0
    for n in range(len(order)):
        row = order[n]
        k = scalars[ROWS] + 1
        scalars[ROWS] = k
        keep, dt = 1 - scalars[DT], 1 / k
        for j in range(d):
            x[j] = X[row, j] - m[j]
        for i in range(outputs):
            eta_i, t_i, q_i = theta[i, d] + offset[n], v[i, d], C[i, d]
            for j in range(d):
                eta_i += x[j] * theta[i, j]
                t_i += x[j] * v[i, j]
                q_i += C[i, j] * x[j] * x[j]
            eta[i], t[i], q[i] = eta_i, keep * t_i, q_i
        step(family, parameter, eta, t, q, y[n], w[n], sampled, rng, scalars, s, H, a)
        for i in range(outputs):
            a_i, f = a[i], w[n] * H[i, i]
            for j in range(d):
                v_ij = keep * v[i, j] + a_i * C[i, j] * x[j]
                v[i, j] = v_ij
                theta[i, j] -= dt * v_ij
                S[i, j] += f * x[j] * x[j]
            v[i, d] = keep * v[i, d] + a_i * C[i, d]
            theta[i, d] -= dt * v[i, d]
            S[i, d] += f
        scalars[DT] = dt
        if keeping:
            for i in range(outputs):
                scores[n, i] = w[n] * s[i]
                for j in range(outputs):
                    fishers[n, i, j] = w[n] * H[i, j]
        if alpha > 0 and k >= scalars[PENALTY]:
            penalise(scalars, theta, v, C, alpha, family)
        if k >= scalars[RENEWAL]:
            renew(scalars, S, C, alpha)
