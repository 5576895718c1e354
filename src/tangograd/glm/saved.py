"""Model files: versioned JSON with a checksum; nothing in them is ever executed.

A file is one object: ``format`` (its name), ``version``, ``sha256`` (of the model as canonical
JSON, keys sorted) and ``model``. It is standard JSON: numbers that are not finite are
``{"$float": "nan"}``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tangograd
from tangograd.files import replacing
from tangograd.glm.errors import DataError
from tangograd.glm.fitted import Array, Fitted

FORMAT = "tangograd-glm"
VERSION = 1
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
TAG = "$float"
KINDS = ("full", "diagonal", "none")


def save(path: str | Path, payload: dict[str, Any]) -> None:
    """Write a model file, whole or not at all: if it fails, the file that was there is kept.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "model.json"
    >>> save(path, {"a": [0.1, float("inf")], "b": None})
    >>> load(path)
    {'a': [0.1, inf], 'b': None}

    Args:
        path: of the file, in a folder that exists.
        payload: of dicts with keys of text, lists (tuples become lists), text, numbers, True,
            False and None.

    Raises:
        TypeError: there is something else in it.
        OSError: it cannot be written.
    """
    model = _encoded(payload, "payload")
    document = {
        "format": FORMAT,
        "version": VERSION,
        "sha256": _checksum(model),
        "model": model,
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    with replacing(Path(path)) as draft:
        draft.write_text(text + "\n", encoding="ascii")


def load(path: str | Path) -> dict[str, Any]:
    """Read a model file.

    Raises:
        DataError: there is none, it is of another format or version, or it is damaged.
    """
    path = Path(path)
    document = _document(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"{path} is not a model of tangograd (JSON of format {FORMAT!r})")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise DataError(
            f"{path} is a model file of version {version!r}, and tangograd "
            f"{tangograd.__version__} reads version {VERSION}: read it with the release of "
            "tangograd that wrote it (or a later one), or fit the model again"
        )
    if document.keys() != {"format", "version", "sha256", "model"}:
        raise _damaged(path, "its parts are not those of a model file")
    model = document["model"]
    if not isinstance(model, dict):
        raise _damaged(path, "its model is not an object")
    try:
        if document["sha256"] != _checksum(model):
            raise _damaged(path, "its checksum does not match")
        decoded: dict[str, Any] = _decoded(model, path)
    except RecursionError as error:
        raise _damaged(path, "it is nested too deeply") from error
    return decoded


def fitted_to_dict(fitted: Fitted) -> dict[str, Any]:
    """The model as plain values, for ``save``.

    Raises:
        DataError: the model is not one that could be read again, such as with coefficients that
            are not finite.
    """
    plain = {part.name: _plain(getattr(fitted, part.name)) for part in fields(Fitted)}
    fitted_from_dict(plain)
    return plain


def fitted_from_dict(plain: dict[str, Any]) -> Fitted:
    """The model that ``fitted_to_dict`` made plain: equal in every bit.

    What predictions are made from must be finite; what is only reported (errors, likelihoods) may
    be unknown.

    Raises:
        DataError: a field is missing, unknown, of another type or of another length.
    """
    unknown = sorted(plain.keys() - READERS.keys())
    if unknown:
        raise _wrong(unknown[0], "is not known to this version of tangograd")
    values = {}
    for name, read in READERS.items():
        if name not in plain:
            raise _wrong(name, "is missing")
        values[name] = read(plain[name], name)
    fitted = Fitted(**values)
    _check_together(fitted)
    return fitted


def _document(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"there is no model file {str(path)!r}") from error
    if data.startswith((b"\x80", b"PK")):
        raise DataError(
            f"{path} is a pickle or an archive, which is never opened since it could run code; "
            "save the model with `tangograd fit -o` or the estimator's `save`"
        )
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON: {error}") from error


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is damaged, cut off or not a model ({why}): take a copy of it, or fit the model "
        "again"
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not standard JSON")


def _checksum(model: dict[str, Any]) -> str:
    canonical = json.dumps(model, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _encoded(value: Any, place: str) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {TAG: repr(float(value))}
    if isinstance(value, list | tuple):
        return [_encoded(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) and key != TAG for key in value):
        return {key: _encoded(item, f"{place}[{key!r}]") for key, item in value.items()}
    raise TypeError(f"{place} is {type(value).__name__}, which model files do not hold")


def _decoded(value: Any, path: Path) -> Any:
    if isinstance(value, list):
        return [_decoded(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _decoded(item, path) for key, item in value.items()}
    number = value[TAG]
    if len(value) != 1 or not isinstance(number, str) or number not in NOT_FINITE:
        raise _damaged(path, f"{TAG} is not one of {', '.join(NOT_FINITE)}")
    return NOT_FINITE[number]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _wrong(name: str, why: str) -> DataError:
    return DataError(f"not a usable model: its field {name!r} {why}; fit it again")


Reader = Callable[[Any, str], Any]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(name, "is not text")
    return value


def _bool(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "is not true or false")
    return value


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise _wrong(name, "is not a count")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float):
        raise _wrong(name, "is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(name, "is too large") from error


def _finite(value: Any, name: str) -> float:
    number = _number(value, name)
    if not math.isfinite(number):
        raise _wrong(name, "is not finite")
    return number


def _not_negative(value: Any, name: str) -> float:
    number = _finite(value, name)
    if number < 0:
        raise _wrong(name, "is negative")
    return number


def _list_of(read: Reader) -> Reader:
    def read_list(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _wrong(name, "is not a list")
        return tuple(read(item, name) for item in value)

    return read_list


def _array_of(read: Reader) -> Reader:
    read_list = _list_of(read)

    def read_array(value: Any, name: str) -> Array:
        return np.array(read_list(value, name), dtype=np.float64)

    return read_array


def _maybe(read: Reader) -> Reader:
    return lambda value, name: None if value is None else read(value, name)


def _matrix(value: Any, name: str) -> Array:
    rows = _list_of(_list_of(_number))(value, name)
    if {len(row) for row in rows} != {len(rows)}:
        raise _wrong(name, "is not a square matrix")
    return np.array(rows, dtype=np.float64)


def _counts(value: Any, name: str) -> NDArray[np.int64]:
    counts = _list_of(_count)(value, name)
    if any(count >= 2**63 for count in counts):
        raise _wrong(name, "is too large")
    return np.array(counts, dtype=np.int64)


def _parameters(value: Any, name: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _wrong(name, "is not an object")
    return {_text(key, name): _finite(number, name) for key, number in value.items()}


def _label(value: Any, name: str) -> str | int | float | bool:
    if type(value) is float:
        return _finite(value, name)
    if not isinstance(value, str | int):
        raise _wrong(name, "has a label that is neither text nor a number nor true or false")
    return value


READERS: dict[str, Reader] = {
    "family": _text,
    "link": _text,
    "names": _list_of(_text),
    "estimates": _array_of(_finite),
    "rows": _count,
    "weight": _not_negative,
    "dispersion": _not_negative,
    "log_likelihood": _number,
    "deviance": _number,
    "null_deviance": _number,
    "progressive": _bool,
    "parameters": _parameters,
    "classes": _maybe(_list_of(_label)),
    "standard_errors": _maybe(_array_of(_number)),
    "robust_errors": _maybe(_array_of(_number)),
    "covariance_kind": _text,
    "covariance": _maybe(_matrix),
    "excess": _number,
    "alpha": _not_negative,
    "passes": _count,
    "converged": _bool,
    "notes": _list_of(_text),
    "trace_rows": _counts,
    "trace_loss": _array_of(_number),
}


def _check_together(fitted: Fitted) -> None:
    """What the fields must be beside each other."""
    classes = fitted.classes
    if classes is not None and len(classes) < 2:
        raise _wrong("classes", "has fewer than two labels")
    if classes is not None and len(set(classes)) < len(classes):
        raise _wrong("classes", "has a label twice")
    size = len(fitted.outcomes) * len(fitted.names)
    if not size:
        raise _wrong("names", "is empty")
    for name in ("estimates", "standard_errors", "robust_errors", "covariance"):
        value = getattr(fitted, name)
        if value is not None and len(value) != size:
            raise _wrong(name, f"has length {len(value)} where there are {size} coefficients")
    kind = fitted.covariance_kind
    if kind not in KINDS:
        raise _wrong("covariance_kind", f"is {kind!r}, not one of {', '.join(KINDS)}")
    if (fitted.standard_errors is None) != (kind == "none"):
        raise _wrong("standard_errors", f"does not go with covariance_kind {kind!r}")
    if fitted.robust_errors is not None and kind == "none":
        raise _wrong("robust_errors", f"does not go with covariance_kind {kind!r}")
    if (fitted.covariance is None) != (kind != "full"):
        raise _wrong("covariance", f"does not go with covariance_kind {kind!r}")
    if len(fitted.trace_rows) != len(fitted.trace_loss):
        raise _wrong("trace_loss", "has another length than trace_rows")
    if np.any(np.diff(fitted.trace_rows) <= 0):
        raise _wrong("trace_rows", "does not increase")
