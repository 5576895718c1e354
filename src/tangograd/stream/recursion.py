"""One row of TANGO's recursion, in vectors: what the model says of it, and what it learns from it.

The rows of one output (:func:`tangograd.stream.glm.single_rows`, and those with levels) are made of
two functions, ``predict`` and ``learn``, and of what is a number, not a vector; ``learn`` has the
paper's two equations. Arrays are padded with zeros (:func:`tangograd.stream.vectors.padded`), and
after a row's numbers comes the intercept's 1.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from tangograd.stream.vectors import (
    WIDEST,
    WIDTH,
    ZERO,
    Array,
    constant,
    padded,
    plus_product,
    repeated,
    total,
    zeros,
)


def _predict(
    typing: Any, X: Any, row: Any, m: Any, theta: Any, v: Any, C: Any, z: Any, n: Any
) -> Any:
    """``z[n] = x - m``, and of this ``x·θ``, ``x·v`` and ``xᵀCx``.

    Args:
        typing: of numba.
        X: rows of numbers, float64 or float32.
        row: which of them.
        m: what they are centred at, as ``centre_of`` has it.
        theta: θ.
        v: the velocity.
        C: the diagonal of C.
        z: gets the row, centred.
        n: in this place.
    """
    del typing, row, n
    three = types.UniTuple(types.float64, 3)

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds, (_, row, _, _, _, _, _, n) = signature.args, arguments
        X = Array(context, b, kinds[0], arguments[0], single=True)
        m, theta, v, C, z = (Array(context, b, kinds[k], arguments[k]) for k in range(2, 7))
        none, parts = constant(0), WIDEST // WIDTH  # as many sums on any processor
        sums = [[cgutils.alloca_once_value(b, ZERO) for _ in range(parts)] for _ in range(3)]
        with cgutils.for_range_slice(b, none, z.columns, constant(WIDEST)) as (start, _):
            for part in range(parts):
                j = b.add(start, constant(WIDTH * part))
                x = b.fsub(X.read_first(row, j, b.sub(X.columns, j)), m.read(none, j))
                z.write(x, n, j)
                factors = (theta.read(none, j), v.read(none, j), b.fmul(C.read(none, j), x))
                for one, factor in zip(sums, factors, strict=True):
                    b.store(plus_product(b, factor, x, b.load(one[part])), one[part])
        found = [total(b, [b.load(each) for each in one]) for one in sums]
        return context.make_tuple(b, three, found)

    return three(X, types.intp, m, theta, v, C, z, types.intp), make


def _learn(
    typing: Any,
    z: Any,
    n: Any,
    keep: Any,
    gain: Any,
    dt: Any,
    f: Any,
    theta: Any,
    v: Any,
    C: Any,
    S: Any,
) -> Any:
    """``v = (1-δt_{k-1}) v + a C x`` and ``θ = θ - δt_k v``, x being ``z[n]``; ``S = S + f x²``.

    Args:
        typing: of numba.
        z: rows, centred.
        n: which of them.
        keep: ``1-δt_{k-1}``.
        gain: a, which is γ (s - F̂ t).
        dt: ``δt_k``.
        f: the row's Fisher weight.
        theta: θ.
        v: the velocity.
        C: the diagonal of C.
        S: the sum of the rows' Fisher diagonals.
    """
    del typing, n, keep, gain, dt, f

    def make(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        kinds, n = signature.args, arguments[1]
        z, theta, v, C, S = (Array(context, b, kinds[k], arguments[k]) for k in (0, 6, 7, 8, 9))
        keep, gain, back, f = (
            repeated(b, number) for number in (*arguments[2:4], b.fneg(arguments[4]), arguments[5])
        )
        none = constant(0)
        with cgutils.for_range_slice(b, none, z.columns, constant(WIDTH)) as (j, _):
            x = z.read(n, j)
            kept = b.fmul(keep, v.read(none, j))
            new = plus_product(b, b.fmul(C.read(none, j), x), gain, kept)
            v.write(new, none, j)
            theta.write(plus_product(b, back, new, theta.read(none, j)), none, j)
            S.write(plus_product(b, b.fmul(x, x), f, S.read(none, j)), none, j)
        return context.get_dummy_value()

    number = types.float64
    return types.void(z, types.intp, number, number, number, number, theta, v, C, S), make


predict: Any = intrinsic(_predict)
learn: Any = intrinsic(_learn)


@register_jitable
def centre_of(m):  # type: ignore[no-untyped-def]
    """What ``predict`` centres a row at: at m, and the intercept, which is not there, at -1."""
    centre = zeros(1, padded(len(m) + 1))[0]
    for j in range(len(m)):
        centre[j] = m[j]
    centre[len(m)] = -1.0
    return centre


@register_jitable
def widened(whole):  # type: ignore[no-untyped-def]
    """A copy, padded."""
    part = zeros(1, padded(len(whole)))[0]
    for i in range(len(whole)):
        part[i] = whole[i]
    return part


@register_jitable
def taken(whole, places):  # type: ignore[no-untyped-def]
    """A copy of some elements, padded."""
    part = zeros(1, padded(len(places)))[0]
    for i in range(len(places)):
        part[i] = whole[places[i]]
    return part


@register_jitable
def put(part, places, whole):  # type: ignore[no-untyped-def]
    """Back to where they were taken from."""
    for i in range(len(places)):
        whole[places[i]] = part[i]
