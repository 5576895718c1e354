"""Small data sets that scikit-learn and statsmodels bring along, as tables to try a fit on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tangograd.glm.errors import DataError
from tangograd.glm.tables.tables import Batch, Table, table

BATCH_ROWS = 8192


@dataclass(frozen=True)
class Example:
    """A data set.

    Attributes:
        about: what it is, in a few words.
        target: the column to be explained.
        load: the columns; needs the package that brings them.
        options: further ones of the fit, by name.
    """

    about: str
    target: str
    load: Callable[[], dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> Table:
        """The rows.

        Raises:
            DataError: the package that brings them is not installed.
        """
        try:
            columns = self.load()
        except ModuleNotFoundError as error:
            known = ", ".join(own for own, each in EXAMPLES.items() if each.load not in _ELSEWHERE)
            raise DataError(
                f"the example {name!r} comes with {error.name}, which is not installed: run "
                f"pip install {error.name}, or take one of {known}"
            ) from error
        return in_memory(f"example {name}", pa.table(columns))


@dataclass(frozen=True)
class _Part:
    """A table in memory in the place of a file."""

    name: str
    data: pa.Table
    interrupted: bool = False

    @property
    def size(self) -> int:
        return int(self.data.nbytes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.data.schema.names)

    def types(self) -> dict[str, pa.DataType] | None:
        return dict(zip(self.names, self.data.schema.types, strict=True))

    def read(self, schema: pa.Schema, *, threads: bool = True) -> Iterator[Batch]:
        del threads
        row = 0
        chosen = self.data.select(schema.names).cast(schema)
        for records in chosen.to_batches(max_chunksize=BATCH_ROWS):
            first, row = row, row + records.num_rows
            read = self.size * row // self.data.num_rows
            yield Batch(records, self.name, first, read, _Place(first))


@dataclass(frozen=True)
class _Place:
    first: int

    def __call__(self, index: int) -> str:
        return f"row {self.first + index + 1}"


def in_memory(name: str, data: pa.Table) -> Table:
    """A table in memory, to be read as a stream.

    >>> rows = in_memory("two rows", pa.table({"x": [1, 2]}))
    >>> [batch.records.to_pydict() for batch in rows.batches()]
    [{'x': [1.0, 2.0]}]
    """
    return table([_Part(name, data)], {}, rereadable=True)


def _columns(bunch: Any, target: str, values: Any) -> dict[str, Any]:
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    return {**dict(zip(names, bunch.data.T, strict=True)), target: values}


def _diabetes() -> dict[str, Any]:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    return _columns(bunch, "progression", bunch.target)


def _breast_cancer() -> dict[str, Any]:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return _columns(bunch, "diagnosis", bunch.target_names[bunch.target].astype(object))


def _wine() -> dict[str, Any]:
    from sklearn.datasets import load_wine

    bunch = load_wine()
    return _columns(bunch, "cultivar", bunch.target_names[bunch.target].astype(object))


def _fair() -> dict[str, Any]:
    from statsmodels.datasets import fair

    data = fair.load_pandas().data
    columns = {name: data[name].to_numpy() for name in data.columns if name != "affairs"}
    return {**columns, "affair": (data["affairs"] > 0).to_numpy()}


def _randhie() -> dict[str, Any]:
    from statsmodels.datasets import randhie

    data = randhie.load_pandas().data
    return {name: data[name].to_numpy() for name in data.columns}


def _star98() -> dict[str, Any]:
    from statsmodels.datasets import star98

    data = star98.load_pandas().data
    above, below = (data[name].to_numpy() for name in ("NABOVE", "NBELOW"))
    columns = {
        name: data[name].to_numpy()
        for name in data.columns
        if name not in ("NABOVE", "NBELOW") and "_" not in name
    }
    return {**columns, "pupils": above + below, "above": above / (above + below)}


_ELSEWHERE = (_fair, _randhie, _star98)

#: the data sets by name
EXAMPLES = {
    "diabetes": Example(
        "progression of diabetes in 442 patients", "progression", _diabetes, {"family": "gaussian"}
    ),
    "breast_cancer": Example(
        "569 tumours, malignant or benign", "diagnosis", _breast_cancer, {"alpha": 0.01}
    ),
    "wine": Example("178 wines of three cultivars", "cultivar", _wine, {"alpha": 0.01}),
    "fair": Example("affairs of 6,366 married women", "affair", _fair),
    "randhie": Example("20,190 counts of visits to a doctor", "mdvis", _randhie),
    "star98": Example(
        "shares of pupils above the median in 303 districts",
        "above",
        _star98,
        {"weights": "pupils", "family": "binomial"},
    ),
}
