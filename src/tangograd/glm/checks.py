"""Checks of what users give to the estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tangograd.glm.errors import DataError

Array = NDArray[np.float64]


def numbers_for(values: ArrayLike, name: str, n: int) -> Array:
    """One finite number for each of n rows."""
    column = np.asarray(values, dtype=np.float64)
    if column.shape != (n,):
        raise DataError(
            f"{name} must have a number for each of the {n} rows; its shape is {column.shape}"
        )
    if not np.isfinite(column).all():
        first = int(np.flatnonzero(~np.isfinite(column))[0])
        raise DataError(f"{name} must be finite; row {first} has {column[first]}")
    return np.ascontiguousarray(column)


def checked_weights(sample_weight: ArrayLike | None, n: int) -> Array:
    """Weights of n rows, none negative; ones by default."""
    if sample_weight is None:
        return np.ones(n)
    weights = numbers_for(sample_weight, "sample_weight", n)
    if (weights < 0).any():
        first = int(np.flatnonzero(weights < 0)[0])
        raise DataError(f"sample_weight must be 0 or positive; row {first} has {weights[first]:g}")
    return weights


def check_finite_target(y: Any) -> None:
    """Name the first row of y that is not finite, or missing among labels."""
    values = np.asarray(y).ravel()
    if y is None or values.dtype.kind not in "fO":
        return
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values)
    else:
        bad = np.fromiter(map(_missing, values), bool, len(values))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise DataError(f"y must be finite, and is {values[first]} in row {first}")


def _missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # which NaN is
    except TypeError:  # pandas' NA
        return True


def read_only(array: Array) -> Array:
    """Return an array that is not shared with a model as one that refuses to be written to."""
    array.flags.writeable = False
    return array


def check_among(value: object, name: str, allowed: tuple[object, ...]) -> None:
    """Raise if the value of an option is none of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")
