"""The recursion of :mod:`tangograd.stream.glm` over rows of numbers and of levels of categories.

Such a row has p numbers and, of each category, one column that is 1 (none at the baseline). Its
numbers and the intercept are as in dense rows. Its levels are as in sparse rows
(:mod:`tangograd.stream.glm_sparse`): ``v = s u`` and ``θ = φ - b u``, and a row touches only the u
and φ of its own levels. There is one output.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numba.extending import register_jitable

from tangograd.stream.families import GAUSSIAN, is_mistake, parts
from tangograd.stream.glm import (
    DT,
    FREE,
    LAG,
    LOSS,
    PENALTY,
    RENEWAL,
    ROWS,
    SCALE,
    factored,
    penalise,
    pseudo_fisher,
    rate,
    renew,
)
from tangograd.stream.glm_sparse import centre, fold
from tangograd.stream.outer import STRIP, add_products, spread
from tangograd.stream.recursion import centre_of, learn, predict, put, taken
from tangograd.stream.vectors import zeros


@register_jitable
def _levels(whole, places):  # type: ignore[no-untyped-def]
    """A copy of some elements and a 0 after them, for rows without a level."""
    part = np.zeros(len(places) + 1)
    for i in range(len(places)):
        part[i] = whole[places[i]]
    return part


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
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
    products,
    cross,
    pairs,
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
        products: they are added to, with the next two, as ``add_strip`` does, unless empty.
        cross: the same.
        pairs: the same.
    """
    none = len(levels)
    level_of = np.full(len(theta), none)  # of a code plus 1
    for level in range(none):
        level_of[levels[level] + 1] = level
    p, free = numbers.shape[1], family in FREE
    keeping, summing = weights.shape[1] > 0, len(products) > 0
    m_x = centre_of(taken(m, dense[:p])[:p])
    if summing and (products.shape[1] != len(m_x) or cross.shape[1] <= none):
        raise ValueError("the sums are not of these numbers and levels")
    strip = STRIP if summing else 1
    z, a_z, a = zeros(strip, len(m_x)), zeros(strip, len(m_x)), np.empty((2, strip))
    own = np.empty((strip, codes.shape[1]), np.int64)
    product, common = 1.0, 1.0
    n = 0
    while n < len(y):  # up to a renewal or a penalty, for which all must be whole
        theta_x, v_x, C_x, S_x = (
            taken(theta, dense),
            taken(v, dense),
            taken(C, dense),
            taken(S, dense),
        )
        theta_l, v_l, C_l = _levels(theta, levels), _levels(v, levels), _levels(C, levels)
        S_l, m_l = _levels(S, levels), _levels(m, levels)
        # what is after the levels is in the place of the intercept of ``fold``; it is 0
        theta_2, v_2, C_2, S_2 = (
            theta_l.reshape(1, -1),
            v_l.reshape(1, -1),
            C_l.reshape(1, -1),
            S_l.reshape(1, -1),
        )
        Cm, mCm = np.zeros((1, none + 1)), np.empty(1)
        centred, f_sum = np.zeros((1, 4)), np.zeros(1)
        centre(C_2, m_l[:none], Cm, mCm)
        scalars[SCALE], scalars[LAG] = 1.0, 0.0
        fold(theta_2, v_2, S_2, Cm, centred, f_sum, m_l, scalars)
        r, rho, mu, mphi = 0.0, 0.0, centred[0, 2], centred[0, 3]
        whole = False
        while n < len(y) and not whole:
            i = n % strip
            k = scalars[ROWS] + 1
            scalars[ROWS] = k
            keep, dt, weight = 1 - scalars[DT], 1 / k, w[n]
            scale, lag = scalars[SCALE] * keep, scalars[LAG]
            eta, t, q = predict(numbers, n, m_x, theta_x, v_x, C_x, z, i)
            xu, xphi, xCm, xCx = 0.0, 0.0, 0.0, 0.0
            for e in range(codes.shape[1]):
                level = level_of[codes[n, e] + 1]
                own[i, e] = level
                xu += v_l[level]
                xphi += theta_l[level]
                xCm += Cm[0, level]
                xCx += C_l[level]
            along_u = xu - r * xCm - (mu - r * mCm[0])
            eta += offset[n] + xphi - rho * xCm - (mphi - rho * mCm[0]) - lag * along_u
            t = keep * t + scale * along_u
            q += max(0.0, xCx - 2 * xCm + mCm[0])
            rest, factor, s, f = parts(family, parameter, eta, y[n])
            product, common = factored(scalars, weight, factor, product, common)
            f_hat = pseudo_fisher(family, parameter, eta, scalars, rng) if sampled else f
            gain = weight * (s - f_hat * t)
            fq = weight * f_hat * q
            pearson = s * s / f if free and f > 0 else 0.0
            moved = 0.0 if family == GAUSSIAN else abs(gain) * q
            mistaken = is_mistake(rest, factor)
            gain *= rate(scalars, weight, rest, mistaken, fq, fq * fq, pearson, moved)
            f *= weight
            learn(z, i, keep, gain, dt, f, theta_x, v_x, C_x, S_x)
            gain /= scale
            along = 0.0
            for e in range(codes.shape[1]):
                level = own[i, e]
                v_l[level] += gain * C_l[level]
                theta_l[level] += lag * gain * C_l[level]
                S_l[level] += f * (1 - 2 * m_l[level])
                along += Cm[0, level]
            f_sum[0] += f
            r += gain
            rho += lag * gain
            mu += gain * along
            mphi += lag * gain * along
            scalars[SCALE], scalars[LAG], scalars[DT] = scale, lag + dt * scale, dt
            if keeping:
                weights[0, n], weights[1, n] = f, (weight * s) ** 2
            if summing:
                a[0, i], a[1, i] = f, (weight * s) ** 2
                if i == strip - 1 or n == len(y) - 1:
                    add_strip(z, a_z, own, a[:, : i + 1], products, cross, pairs)
            n += 1
            whole = k >= scalars[RENEWAL] or (alpha > 0 and k >= scalars[PENALTY])
        centred[0, 0], centred[0, 1], S_l[none] = r, rho, S_x[p]
        fold(theta_2, v_2, S_2, Cm, centred, f_sum, m_l, scalars)
        for part, all_of_it in ((theta_x, theta), (v_x, v), (S_x, S)):
            put(part, dense, all_of_it)
        for part, all_of_it in ((theta_l, theta), (v_l, v), (S_l, S)):
            put(part, levels, all_of_it)
        if alpha > 0 and scalars[ROWS] >= scalars[PENALTY]:
            penalise(
                scalars, theta.reshape(1, -1), v.reshape(1, -1), C.reshape(1, -1), alpha, family
            )
        if scalars[ROWS] >= scalars[RENEWAL]:
            renew(scalars, S.reshape(1, -1), C.reshape(1, -1), alpha)
    scalars[LOSS] += common * math.log(product)


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def add_strip(z, a_z, own, weights, products, cross, pairs):  # type: ignore[no-untyped-def]
    """What the sums of the Fisher matrices and of the scores' outer products are made of.

    Args:
        z: ``[numbers - m, 1]`` and zeros, shape (n or more, size), with size as ``vectors.padded``
            has it.
        a_z: of that shape; for a z.
        own: the levels of each row, by their place among the levels; their number for none. Shape
            (n or more, categories).
        weights: a of each row, for each of the sums, shape (kinds, n).
        products: to it is added ``Σ a z zᵀ``, on and above the diagonal, shape (kinds, size, size).
        cross: to ``cross[k, l]`` is added ``Σ a z`` over the rows of level l, shape (kinds, levels
            + 1, size); the last is for rows without a level.
        pairs: to ``pairs[k, l, h]`` is added ``Σ a`` over the rows of levels l and h, each pair in
            one of its two places; shape (kinds, levels + 1, levels + 1).
    """
    rows = weights.shape[1]
    for k in range(len(weights)):
        a = weights[k]
        spread(a, z, a_z, cross[k], own)
        for n in range(rows):  # outermost: a level may be in another column in later rows
            for e in range(1, own.shape[1]):
                line = pairs[k, own[n, e]]
                for before in range(e):
                    line[own[n, before]] += a[n]
        add_products(a_z, z, rows, products[k])
