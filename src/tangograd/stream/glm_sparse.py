"""The recursion of :mod:`tangograd.stream.glm` over sparse rows, at the cost of their non-zeros.

v and θ change in every coefficient with every row, but most of them by a common factor alone. With
``v = s u`` and ``θ = φ - b u`` the scalars s and b take that part, and a row touches only the u and
φ of its non-zeros.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tangograd.stream.glm import (
    DT,
    LAG,
    PENALTY,
    RENEWAL,
    ROWS,
    SCALE,
    penalise,
    renew,
    step,
)

#: of the square of a column's mean: smaller variances are rounding
CANCELLED = 1e-12


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def fold(theta, v, S, Cm, centred, f_sum, m, scalars):  # type: ignore[no-untyped-def]
    """Make θ, v and S whole again after lazy rows.

    ``centred`` holds, for each output, what is owed for centring: r and ρ, the multiples of C m
    that u and φ lack, and m·u and m·φ.
    """
    outputs, d = theta.shape[0], theta.shape[1] - 1
    scale, lag = scalars[SCALE], scalars[LAG]
    for i in range(outputs):
        r, rho = centred[i, 0], centred[i, 1]
        along_u, along_phi = 0.0, 0.0
        for j in range(d):
            u = v[i, j] - r * Cm[i, j]
            theta[i, j] -= rho * Cm[i, j] + lag * u
            v[i, j] = scale * u
            S[i, j] += f_sum[i] * m[j] * m[j]
            if S[i, j] < CANCELLED * S[i, d] * m[j] * m[j]:  # a constant column, but rounding
                S[i, j] = 0.0
            along_u += m[j] * v[i, j]
            along_phi += m[j] * theta[i, j]
        theta[i, d] -= lag * v[i, d]
        v[i, d] *= scale
        f_sum[i] = 0.0
        centred[i, 0], centred[i, 1], centred[i, 2], centred[i, 3] = 0.0, 0.0, along_u, along_phi
    scalars[SCALE], scalars[LAG] = 1.0, 0.0


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def centre(C, m, Cm, mCm):  # type: ignore[no-untyped-def]
    """Fill C m and mᵀ C m of each output."""
    for i in range(len(C)):
        mCm[i] = 0.0
        for j in range(len(m)):
            Cm[i, j] = C[i, j] * m[j]
            mCm[i] += Cm[i, j] * m[j]


@njit(cache=True, error_model="numpy", fastmath=False, nogil=True)
def sparse_rows(  # type: ignore[no-untyped-def]
    family,
    parameter,
    data,
    indices,
    indptr,
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
    """``dense_rows`` of a matrix in CSR form, at a cost of a row's non-zeros.

    Between two renewals ``v = s u`` and ``θ = φ - b u``, u and φ in the place of v and θ, lacking
    multiples of C m for the centring; a row touches only its non-zeros. Everything is made whole at
    the end, so dense and sparse rows may alternate.
    """
    outputs, d = theta.shape[0], theta.shape[1] - 1
    eta, t, q = np.empty(outputs), np.empty(outputs), np.empty(outputs)
    s, a = np.empty(outputs), np.empty(outputs)
    H = np.empty((outputs, outputs))
    Cm, mCm = np.empty((outputs, d)), np.empty(outputs)
    centred, f_sum = np.zeros((outputs, 4)), np.zeros(outputs)
    keeping = len(scores) > 0
    centre(C, m, Cm, mCm)
    scalars[SCALE], scalars[LAG] = 1.0, 0.0
    fold(theta, v, S, Cm, centred, f_sum, m, scalars)
    for n in range(len(order)):
        row = order[n]
        begin, end = indptr[row], indptr[row + 1]
        k = scalars[ROWS] + 1
        scalars[ROWS] = k
        keep, dt = 1 - scalars[DT], 1 / k
        scale, lag = scalars[SCALE] * keep, scalars[LAG]
        for i in range(outputs):
            r, rho = centred[i, 0], centred[i, 1]
            xu, xphi, xCm, xCx = 0.0, 0.0, 0.0, 0.0
            for e in range(begin, end):
                j, x = indices[e], np.float64(data[e])
                xu += x * v[i, j]
                xphi += x * theta[i, j]
                xCm += x * Cm[i, j]
                xCx += x * x * C[i, j]
            along_u = v[i, d] + xu - r * xCm - (centred[i, 2] - r * mCm[i])
            along_phi = theta[i, d] + xphi - rho * xCm - (centred[i, 3] - rho * mCm[i])
            eta[i] = offset[n] + along_phi - lag * along_u
            t[i] = scale * along_u
            q[i] = max(0.0, C[i, d] + xCx - 2 * xCm + mCm[i])
        step(family, parameter, eta, t, q, y[n], w[n], sampled, rng, scalars, s, H, a)
        for i in range(outputs):
            gain, f = a[i] / scale, w[n] * H[i, i]
            along = 0.0
            for e in range(begin, end):
                j, x = indices[e], np.float64(data[e])
                Cx = C[i, j] * x
                v[i, j] += gain * Cx
                theta[i, j] += lag * gain * Cx
                S[i, j] += f * x * (x - 2 * m[j])
                along += m[j] * Cx
            v[i, d] += gain * C[i, d]
            theta[i, d] += lag * gain * C[i, d]
            S[i, d] += f
            f_sum[i] += f
            centred[i, 0] += gain
            centred[i, 1] += lag * gain
            centred[i, 2] += gain * along
            centred[i, 3] += lag * gain * along
        scalars[SCALE], scalars[LAG], scalars[DT] = scale, lag + dt * scale, dt
        if keeping:
            for i in range(outputs):
                scores[n, i] = w[n] * s[i]
                for j in range(outputs):
                    fishers[n, i, j] = w[n] * H[i, j]
        if alpha > 0 and k >= scalars[PENALTY]:
            fold(theta, v, S, Cm, centred, f_sum, m, scalars)
            penalise(scalars, theta, v, C, alpha, family)
            fold(theta, v, S, Cm, centred, f_sum, m, scalars)
        if k >= scalars[RENEWAL]:
            fold(theta, v, S, Cm, centred, f_sum, m, scalars)
            renew(scalars, S, C, alpha)
            centre(C, m, Cm, mCm)
    fold(theta, v, S, Cm, centred, f_sum, m, scalars)
