"""The recursion of :mod:`tangograd.stream.glm` over rows of numbers and of levels of categories.

Such a row has p numbers and, of each category, one column that is 1 (none at the baseline). Its
numbers and the intercept are as in dense rows. Its levels are as in sparse rows
(:mod:`tangograd.stream.glm_sparse`): ``v = s u`` and ``θ = φ - b u``, and a row touches only the u
and φ of its own levels. There is one output.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tangograd.stream.families import GAUSSIAN, point
from tangograd.stream.glm import (
    APART,
    DT,
    FREE,
    LAG,
    PENALTY,
    RENEWAL,
    ROWS,
    SCALE,
    SUMS,
    penalise,
    pseudo_fisher,
    rate,
    renew,
)
from tangograd.stream.glm_sparse import centre, fold
from tangograd.stream.outer import STRIP, add_products, spread
from tangograd.stream.vectors import zeros


@njit(cache=True, error_model="numpy", nogil=True)
def _taken(whole, places, more):  # type: ignore[no-untyped-def]
    """A copy of some elements with ``more`` zeros after them, far from others in memory."""
    size = len(places) + more
    part = np.zeros(size + 2 * APART)[APART : APART + size]
    for i in range(len(places)):
        part[i] = whole[places[i]]
    return part


@njit(cache=True, error_model="numpy", nogil=True)
def _put(part, places, whole):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        whole[places[i]] = part[i]


@njit(cache=True, error_model="numpy", fastmath=SUMS, nogil=True)
def coded_rows(  # type: ignore[no-untyped-def]
    family,
    parameter,
    numbers,
    codes,
    dense,
    levels,
    y,
    w,
    offset,
    m,
    theta,
    v,
    C,
    S,
    scalars,
    alpha,
    sampled,
    rng,
    weights,
):
    """``dense_rows`` of one output, at a cost of a row's numbers and of its levels.

    Args:
        family: its number.
        parameter: the family's.
        numbers: shape (n, p).
        codes: of the levels: columns that are 1, -1 for none; shape (n, categories).
        dense: the columns of the numbers, and that of the intercept.
        levels: all other columns.
        y: responses.
        w: weights.
        offset: added to every η.
        m: what the columns are centred at.
        theta: θ, shape (d + 1,), the intercept last.
        v: the velocity.
        C: the diagonal of C.
        S: the sum of the rows' Fisher diagonals.
        scalars: the rest of the state.
        alpha: the penalty.
        sampled: F̂ from pseudo-samples.
        rng: draws them.
        weights: gets w f and (w s)² of each row, shape (2, n), unless empty.
    """
    level_of = np.full(len(theta), -1)
    for own in range(len(levels)):
        level_of[levels[own]] = own
    p, n_codes = numbers.shape[1], codes.shape[1]
    keeping, free = weights.shape[1] > 0, family in FREE
    n = 0
    while n < len(y):  # up to a renewal or a penalty, for which all must be whole
        # after the levels a coefficient is in the place of the intercept of ``fold``; it is 0
        theta_x, v_x = _taken(theta, dense, 0), _taken(v, dense, 0)
        C_x, S_x, m_x = _taken(C, dense, 0), _taken(S, dense, 0), _taken(m, dense[:p], 0)
        x = _taken(m, dense[:p], 1)
        x[p] = 1.0
        theta_l, v_l, C_l = _taken(theta, levels, 1), _taken(v, levels, 1), _taken(C, levels, 1)
        S_l, m_l = _taken(S, levels, 1), _taken(m, levels, 0)
        theta_2, v_2, C_2, S_2 = (
            theta_l.reshape(1, -1),
            v_l.reshape(1, -1),
            C_l.reshape(1, -1),
            S_l.reshape(1, -1),
        )
        Cm, mCm = np.empty((1, len(levels))), np.empty(1)
        centred, f_sum = np.zeros((1, 4)), np.zeros(1)
        centre(C_2, m_l, Cm, mCm)
        scalars[SCALE], scalars[LAG] = 1.0, 0.0
        fold(theta_2, v_2, S_2, Cm, centred, f_sum, m_l, scalars)
        r, rho, mu, mphi = 0.0, 0.0, centred[0, 2], centred[0, 3]
        whole = False
        while n < len(y) and not whole:
            k = scalars[ROWS] + 1
            scalars[ROWS] = k
            keep, dt = 1 - scalars[DT], 1 / k
            scale, lag = scalars[SCALE] * keep, scalars[LAG]
            eta, t, q = theta_x[p] + offset[n], v_x[p], C_x[p]
            for j in range(p):
                x_j = numbers[n, j] - m_x[j]
                x[j] = x_j
                eta += x_j * theta_x[j]
                t += x_j * v_x[j]
                q += C_x[j] * x_j * x_j
            xu, xphi, xCm, xCx = 0.0, 0.0, 0.0, 0.0
            for e in range(n_codes):
                if codes[n, e] >= 0:
                    own = level_of[codes[n, e]]
                    xu += v_l[own]
                    xphi += theta_l[own]
                    xCm += Cm[0, own]
                    xCx += C_l[own]
            along_u = xu - r * xCm - (mu - r * mCm[0])
            eta += xphi - rho * xCm - (mphi - rho * mCm[0]) - lag * along_u
            t = keep * t + scale * along_u
            q += max(0.0, xCx - 2 * xCm + mCm[0])
            loss, s, f = point(family, parameter, eta, y[n])
            weight = w[n]
            f_hat = pseudo_fisher(family, parameter, eta, scalars, rng) if sampled else f
            a = weight * (s - f_hat * t)
            fq = weight * f_hat * q
            pearson = s * s / f if free and f > 0 else 0.0
            moved = 0.0 if family == GAUSSIAN else abs(a) * q
            a *= rate(scalars, weight, loss, fq, fq * fq, pearson, moved)
            f *= weight
            for j in range(p + 1):
                v_j = keep * v_x[j] + a * C_x[j] * x[j]
                v_x[j] = v_j
                theta_x[j] -= dt * v_j
                S_x[j] += f * x[j] * x[j]
            gain, along = a / scale, 0.0
            for e in range(n_codes):
                if codes[n, e] >= 0:
                    own = level_of[codes[n, e]]
                    v_l[own] += gain * C_l[own]
                    theta_l[own] += lag * gain * C_l[own]
                    S_l[own] += f * (1 - 2 * m_l[own])
                    along += Cm[0, own]
            f_sum[0] += f
            r += gain
            rho += lag * gain
            mu += gain * along
            mphi += lag * gain * along
            scalars[SCALE], scalars[LAG], scalars[DT] = scale, lag + dt * scale, dt
            if keeping:
                weights[0, n], weights[1, n] = f, (weight * s) ** 2
            n += 1
            whole = k >= scalars[RENEWAL] or (alpha > 0 and k >= scalars[PENALTY])
        centred[0, 0], centred[0, 1], S_l[len(levels)] = r, rho, S_x[p]
        fold(theta_2, v_2, S_2, Cm, centred, f_sum, m_l, scalars)
        _put(theta_x, dense, theta)
        _put(v_x, dense, v)
        _put(S_x, dense, S)
        _put(theta_l, levels, theta)
        _put(v_l, levels, v)
        _put(S_l, levels, S)
        if alpha > 0 and scalars[ROWS] >= scalars[PENALTY]:
            penalise(
                scalars, theta.reshape(1, -1), v.reshape(1, -1), C.reshape(1, -1), alpha, family
            )
        if scalars[ROWS] >= scalars[RENEWAL]:
            renew(scalars, S.reshape(1, -1), C.reshape(1, -1), alpha)


@njit(cache=True, error_model="numpy", nogil=True)
def coded_products(  # type: ignore[no-untyped-def]
    numbers, codes, levels, m, weights, products, cross, pairs
):
    """What the sums of the Fisher matrices and of the scores' outer products are made of.

    With ``z = [numbers - m, 1]``, and zeros up to a width that :mod:`tangograd.stream.outer` likes.

    Args:
        numbers: shape (n, p).
        codes: of the levels, shape (n, categories).
        levels: the columns that are levels.
        m: what the numbers are centred at.
        weights: a of each row, for each of the sums, shape (kinds, n).
        products: to it is added ``Σ a z zᵀ``, on and above the diagonal, shape (kinds, size, size).
        cross: to ``cross[k, l]`` is added ``Σ a z`` over the rows of level l, shape (kinds, levels
            + 1, size); the last is for rows without a level.
        pairs: to ``pairs[k, l, h]`` is added ``Σ a`` over the rows of levels l and h, each pair in
            one of its two places; shape (kinds, levels + 1, levels + 1).
    """
    p, size, none = numbers.shape[1], products.shape[1], len(levels)
    level_of = np.full((levels.max() if none else -1) + 2, none)  # of a code plus 1
    for level in range(none):
        level_of[levels[level] + 1] = level
    own = np.empty((STRIP, codes.shape[1]), np.int64)
    z, a_z = zeros(STRIP, size), zeros(STRIP, size)
    z[:, p] = 1.0
    for start in range(0, len(numbers), STRIP):
        rows = min(STRIP, len(numbers) - start)
        for n in range(rows):
            for e in range(codes.shape[1]):
                own[n, e] = level_of[codes[start + n, e] + 1]
            for j in range(p):
                z[n, j] = numbers[start + n, j] - m[j]
        for k in range(len(weights)):
            a = weights[k, start : start + rows]
            spread(a, z, a_z, cross[k], own)
            for n in range(rows):  # outermost: a level may be in another column in later rows
                for e in range(1, codes.shape[1]):
                    line = pairs[k, own[n, e]]
                    for before in range(e):
                        line[own[n, before]] += a[n]
            add_products(a_z, z, rows, products[k])
