"""Small tables, and what a design makes of them."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import scipy.sparse as sp


def where(row):
    return f"a.csv, line {row + 2}"


def table(rows=60, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)

    def holes(values):
        return pa.array(values, mask=rng.random(rows) < missing)

    return pa.record_batch(
        {
            "y": pa.array(rng.normal(size=rows)),
            "x": holes(rng.normal(size=rows)),
            "z": holes(rng.uniform(0.5, 2, size=rows)),
            "n": holes(rng.integers(1, 4, size=rows)),
            "region": holes(rng.choice(["south", "north", "east"], size=rows)),
            "flag": holes(rng.random(rows) < 0.5),
            "w": pa.array(rng.uniform(size=rows)),
            "e": pa.array(rng.uniform(1, 2, size=rows)),
        }
    )


def batch(**columns):
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def array(X):
    return X.toarray() if sp.issparse(X) else X


def split(records, sizes):
    edges = np.cumsum([0, *sizes])
    return [records.slice(start, stop - start) for start, stop in pairwise(edges)]


def together(design, batches, **options):
    """All rows of a stream, earlier ones padded to the final width."""
    found, start, kept = [], 0, []
    for records in batches:
        rows = design.rows(records, where=where, **options)
        found.append(rows)
        kept.append(rows.kept + start)
        start += records.num_rows
    width = len(design.names)
    X = [np.pad(array(rows.X), ((0, 0), (0, width - rows.X.shape[1]))) for rows in found]
    y = [rows.y for rows in found if rows.y is not None]
    return np.concatenate(X), np.concatenate(kept), np.concatenate(y) if y else None


FORMULAS = [
    "y ~ x + C(region) + log(z)",
    "y ~ x*region",
    "y ~ x:region - 1",
    "y ~ region:flag",
    "y ~ region*flag*x - x:flag",
    "y ~ C(n) + x + n",
    "y ~ 0 + C(n):region + I(x**2 / z)",
    "y ~ (x + z + region)**2",
    "y ~ exp(x) + sqrt(z):C(n) + I(1 - x*z)",
    "y ~ 1",
]
