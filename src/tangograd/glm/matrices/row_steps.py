"""Compiled arithmetic of one row of TANGO's recursion, for the parts that rows are made of.

A row ``z = [x - m, 1]`` has *numbers*, of which all are used (the intercept's 1 is one of them),
and *entries*: a few of many columns, whose others are 0. The recursion is

    v_k = keep v_{k-1} + a C z,        θ_k = θ_{k-1} - δt_k v_k,        S_k = S_{k-1} + f z².

It changes every coefficient, but those of columns where x = 0 only by factors that all of them
share. With ``v = s u`` and ``θ = φ - b u``, the scalars s and b take these factors, and a row
touches only the u and φ of its entries. Centring subtracts multiples of C m from all u and φ; these
multiples are kept apart as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.numerics.gram import padded, zeros
from tangograd.glm.numerics.jit import REORDERED, Compiled, helper

Array = NDArray[np.float64]
Columns = NDArray[np.int64]

#: of the square of a column's mean: smaller variances are rounding
CANCELLED = 1e-12


class _PathFields(NamedTuple):
    theta: Array
    v: Array
    C: Array
    S: Array
    center: Array


class PathArrays(Compiled, _PathFields):
    """Arrays of a path, of shape (outputs, width + 1) with the intercept last.

    Attributes:
        theta: θ, the coefficients of z.
        v: the velocity.
        C: the diagonal of C; 0 keeps a coefficient where it is.
        S: Σ of the diagonals of the rows' Fisher matrices.
        center: m, shape (width,).
    """


class _NumbersFields(NamedTuple):
    places: Columns
    m: Array
    x: Array
    theta: Array
    v: Array
    C: Array
    S: Array


class Numbers(Compiled, _NumbersFields):
    """Columns that are used in every row, together in memory; padded by zeros.

    Attributes:
        places: their columns, the intercept's last.
        m: what they are centred at.
        x: of the row in work, centred, and the intercept's 1.
        theta: their θ, shape (outputs, padded).
        v: their velocity.
        C: their diagonal of C.
        S: their sums of Fisher diagonals.
    """


class _EntriesFields(NamedTuple):
    theta: Array
    v: Array
    C: Array
    S: Array
    m: Array
    Cm: Array
    m_square: Array
    owed: Array
    fisher: Array
    factors: Array


class Entries(Compiled, _EntriesFields):
    """Columns of which a row has few.

    Attributes:
        theta: φ of these columns, in the path's array.
        v: u, in the same way.
        C: the diagonal of C.
        S: sums of Fisher diagonals that lack Σ f m².
        m: what the columns are centred at; 0 in columns of numbers.
        Cm: C m, shape (outputs, width).
        m_square: Σ m² C of each output.
        owed: of each output, r and ρ, the multiples of C m that u and φ lack, and m·u and m·φ.
        fisher: Σ f of each output.
        factors: s and b.
    """


def new_numbers(path: PathArrays, places: Columns) -> Numbers:
    """Return room for the numbers in some columns, and the intercept."""
    outputs, size = len(path.theta), padded(len(places) + 1)
    room = zeros(2 + 4 * outputs, size)  # no vector of them lies across two lines of the cache
    own = np.append(places, path.theta.shape[1] - 1)
    return Numbers(own, room[0], room[1], *room[2:].reshape(4, outputs, size))


@helper
def begin_numbers(path: PathArrays, part: Numbers) -> None:
    """Copy the coefficients of the columns."""
    last = len(part.places) - 1
    for j in range(last):
        part.m[j] = path.center[part.places[j]]
        part.x[j] = -part.m[j]  # also of columns that this matrix does not have
    part.x[last] = 1.0
    for i in range(len(part.theta)):
        for j in range(last + 1):
            place = part.places[j]
            part.theta[i, j], part.v[i, j] = path.theta[i, place], path.v[i, place]
            part.C[i, j], part.S[i, j] = path.C[i, place], path.S[i, place]


@helper
def flush_numbers(path: PathArrays, part: Numbers) -> None:
    """Write θ, v and S back."""
    for i in range(len(part.theta)):
        for j in range(len(part.places)):
            place = part.places[j]
            path.theta[i, place], path.v[i, place] = part.theta[i, j], part.v[i, j]
            path.S[i, place] = part.S[i, j]


@helper
def center_numbers(values: Array, n: int, part: Numbers) -> None:
    """Take row n of the values into work."""
    for j in range(values.shape[1]):
        part.x[j] = values[n, j] - part.m[j]


@helper(fastmath=REORDERED)
def predict_numbers(part: Numbers, eta: Array, t: Array, q: Array) -> None:
    """Write z·θ, z·v and zᵀCz of the row in work, for each output."""
    x = part.x
    for i in range(len(eta)):
        theta, v, C = part.theta[i], part.v[i], part.C[i]
        along_theta, along_v, square = 0.0, 0.0, 0.0
        for j in range(len(x)):
            along_theta += x[j] * theta[j]
            along_v += x[j] * v[j]
            square += x[j] * x[j] * C[j]
        eta[i], t[i], q[i] = along_theta, along_v, square


@helper(fastmath=REORDERED)
def update_numbers(part: Numbers, keep: float, dt: float, a: Array, f: Array) -> None:
    """Update v, θ and S by the row in work."""
    x = part.x
    for i in range(len(a)):
        theta, v, C, S = part.theta[i], part.v[i], part.C[i], part.S[i]
        a_i, f_i = a[i], f[i]
        for j in range(len(x)):
            new = keep * v[j] + a_i * C[j] * x[j]
            v[j] = new
            theta[j] -= dt * new
            S[j] += f_i * x[j] * x[j]


def new_entries(path: PathArrays, numbers: Columns) -> Entries:
    """Return room for columns with entries: all but those of numbers."""
    outputs, size = path.theta.shape
    m = path.center.copy()
    m[numbers] = 0.0
    Cm, one = np.empty((outputs, size - 1)), np.empty((2, outputs))
    owed, factors = np.empty((outputs, 4)), np.empty(2)
    return Entries(*path[:4], m, Cm, one[0], owed, one[1], factors)


@helper
def begin_entries(part: Entries) -> None:
    """Start from whole coefficients, in the path's arrays."""
    for i in range(len(part.theta)):
        part.m_square[i], part.fisher[i] = 0.0, 0.0
        for k in range(4):
            part.owed[i, k] = 0.0
        for j in range(len(part.m)):
            part.Cm[i, j] = part.C[i, j] * part.m[j]
            part.m_square[i] += part.Cm[i, j] * part.m[j]
            part.owed[i, 2] += part.m[j] * part.v[i, j]
            part.owed[i, 3] += part.m[j] * part.theta[i, j]
    part.factors[0], part.factors[1] = 1.0, 0.0


@helper
def predict_entries(
    part: Entries, i: int, sums: tuple[float, float, float, float], eta: Array, t: Array, q: Array
) -> None:
    """Add what the entries of a row contribute to z·θ, z·v and zᵀCz of an output.

    Args:
        part: the columns.
        i: the output.
        sums: over the row's entries: Σ x u, Σ x φ, Σ x C m and Σ x² C.
        eta: gets z·θ.
        t: gets z·v.
        q: gets zᵀCz.
    """
    x_u, x_phi, x_Cm, x_Cx = sums
    r, rho, m_u, m_phi = part.owed[i, 0], part.owed[i, 1], part.owed[i, 2], part.owed[i, 3]
    along_u = x_u - r * x_Cm - (m_u - r * part.m_square[i])
    along_phi = x_phi - rho * x_Cm - (m_phi - rho * part.m_square[i])
    eta[i] += along_phi - part.factors[1] * along_u
    t[i] += part.factors[0] * along_u
    q[i] += max(0.0, x_Cx - 2 * x_Cm + part.m_square[i])


@helper
def owe_center(part: Entries, i: int, gain: float, x_Cm: float, f: float) -> None:
    """Note what a row's update of an output leaves out: multiples of C m, and f m².

    Args:
        part: the columns.
        i: the output.
        gain: a / s, by which u of the row's entries has grown times C x.
        x_Cm: Σ x C m over the entries.
        f: of the row.
    """
    late = part.factors[1] * gain
    part.fisher[i] += f
    part.owed[i, 0] += gain
    part.owed[i, 1] += late
    part.owed[i, 2] += gain * x_Cm
    part.owed[i, 3] += late * x_Cm


@helper
def flush_entries(path: PathArrays, part: Entries, numbers: Numbers) -> None:
    """Make θ, v and S of columns with entries whole, and write those of the numbers back."""
    outputs, width = path.theta.shape[0], path.theta.shape[1] - 1
    s, b = part.factors[0], part.factors[1]
    for i in range(outputs):
        r, rho = part.owed[i, 0], part.owed[i, 1]
        total = numbers.S[i, len(numbers.places) - 1]
        for j in range(width):
            u = path.v[i, j] - r * part.Cm[i, j]
            path.theta[i, j] -= rho * part.Cm[i, j] + b * u
            path.v[i, j] = s * u
            square = part.m[j] * part.m[j]
            path.S[i, j] += part.fisher[i] * square
            if path.S[i, j] < CANCELLED * total * square:  # a constant column
                path.S[i, j] = 0.0
    flush_numbers(path, numbers)
