"""Design matrices by kind, and blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from tangograd.glm.matrices.base import DesignMatrix, GramAccumulator, GramSum
from tangograd.glm.matrices.block import Block, concatenate, rechunk, split
from tangograd.glm.matrices.categorical import Categorical
from tangograd.glm.matrices.csr import Csr, checked_csr
from tangograd.glm.matrices.dense import Dense
from tangograd.glm.matrices.row_steps import PathArrays

__all__ = [
    "Block",
    "Categorical",
    "Csr",
    "Dense",
    "DesignMatrix",
    "GramAccumulator",
    "GramSum",
    "PathArrays",
    "as_matrix",
    "concatenate",
    "rechunk",
    "split",
]


def as_matrix(X: Any) -> DesignMatrix:
    """Return an array or a sparse matrix of scipy's as a design matrix, without a copy if possible.

    Raises:
        ValueError: the arrays of a sparse matrix contradict each other.
    """
    if isinstance(X, DesignMatrix):
        return X
    if sp.issparse(X):
        return checked_csr(X)
    dtype = np.float32 if getattr(X, "dtype", None) == np.float32 else np.float64
    return Dense(np.require(X, dtype, ["C", "A"]))
