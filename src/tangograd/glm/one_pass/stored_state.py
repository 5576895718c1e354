"""A one-pass state as bytes, and back."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tangograd.glm.errors import DataError
from tangograd.glm.families import Family, by_name
from tangograd.glm.one_pass.coordinates import Coordinates
from tangograd.glm.one_pass.exact_path import ExactPath
from tangograd.glm.one_pass.null_model import NullModel
from tangograd.glm.one_pass.quadratic import QuadraticModel
from tangograd.glm.one_pass.row_sample import ALL, Kept, RowSample
from tangograd.glm.one_pass.serialization import Fields, pack, unpack
from tangograd.glm.one_pass.start import Start
from tangograd.glm.one_pass.state import OnePassConfig, OnePassState
from tangograd.glm.one_pass.totals import RunningTotals
from tangograd.glm.one_pass.working_rows import WorkingRows

_ROWS = ("Z", "y", "weights", "offset", "number")
_KEPT = ("eta", "null_eta", "key", "uniform", "priority")


def to_bytes(state: OnePassState) -> bytes:
    """Return the state as bytes; rows that wait for their block to be full are among them."""
    family, totals = state.family, state.totals
    header: dict[str, Any] = {
        "family": family.name,
        "link": family.link,
        "parameters": _parameters(family),
        "config": asdict(state.config),
        "intercept": state.start.coordinates.intercept,
        "weight_unit": state.start.coordinates.weight_unit,
        "target_unit": state.start.coordinates.target_unit,
        "blocks": state.quadratic.blocks,
        "rows_seen": state.sample.rows_seen,
        "threshold": state.sample.threshold,
        "largest_uniform": state.sample.largest_uniform,
        "readings": state.readings,
        "frozen": state.path.frozen,
        "null_blocks": state.null_model.quadratic.blocks,
        "null_active": state.null_model.active,
        "null_whole": state.null_model.whole,
        "totals": {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in vars(totals).items()
            if name != "classes"
        },
    }
    arrays: dict[str, NDArray[Any]] = {
        "centre": state.start.coordinates.centre,
        "scale": state.start.coordinates.scale,
        "start_theta": state.start.theta,
        "start_unit": state.start.unit,
        "start_J": state.start.J,
        "start_z": state.start.z,
        "path_theta": state.path.theta,
        "path_unit": state.path.unit,
        "path_J": state.path.J,
        "path_z": state.path.z,
        "classes": totals.classes,
        **state.quadratic.arrays(),
        **{f"null_{k}": v for k, v in state.null_model.quadratic.arrays().items()},
    }
    kept = state.sample.kept()
    if kept is not None:
        arrays |= {f"kept_{name}": getattr(kept.rows, name) for name in _ROWS}
        arrays |= {f"kept_{name}": getattr(kept, name) for name in _KEPT}
    if state.pending.count:
        rows = state.pending.rows()
        arrays |= {f"pending_{name}": getattr(rows, name) for name in _ROWS}
    return pack(header, arrays)


def from_bytes(data: bytes) -> OnePassState:
    """Return the state that was stored.

    Raises:
        DataError: if the bytes are not those of a state, or were changed.
    """
    fields = Fields(*unpack(data))
    family = _family(fields)
    outputs = family.outputs
    centre = fields.array("centre", (None,))
    d = len(centre)
    intercept = fields.value("intercept", bool)
    q = d + intercept
    p = outputs * q
    coordinates = Coordinates(
        centre,
        fields.array("scale", (d,)),
        intercept,
        fields.value("weight_unit", float),
        fields.value("target_unit", float),
    )
    if not (coordinates.scale > 0).all() or min(coordinates[3:]) <= 0:
        raise DataError("the stored state is damaged: a scale is not positive")
    start = Start(
        coordinates,
        fields.array("start_unit", (q,)),
        fields.array("start_theta", (outputs, q)),
        fields.array("start_J", (p, p)),
        fields.array("start_z", (p,)),
    )
    path = ExactPath(
        fields.array("path_theta", (outputs, q)),
        fields.array("path_J", (p, p)),
        fields.array("path_z", (p,)),
        fields.array("path_unit", (q,)),
        fields.value("frozen", bool),
    )
    config = _config(fields)
    sums = {"J": fields.array("J", (p, p)), "z": fields.array("z", (p,))}
    sums["c0"] = fields.array("c0", ())
    if config.meat:
        sums["meat"] = fields.array("meat", (p, p))
    state = OnePassState(
        family=family,
        config=config,
        start=start,
        path=path,
        quadratic=QuadraticModel.from_arrays(sums, fields.count("blocks")),
        sample=_sample(fields, config, q, outputs),
        totals=_totals(fields, outputs),
        null_model=_null_model(fields),
        readings=fields.count("readings", 1),
    )
    if "pending_Z" in fields.arrays:
        waiting = _rows(fields, "pending_", q)
        if len(waiting) >= state.block_rows:
            raise DataError("the stored state is damaged: more rows wait than a block has")
        state.pending.restore(waiting)
    return state


def _parameters(family: Family) -> dict[str, float]:
    if family.name == "multinomial":
        return {"count": family.outputs + 1}
    return family.parameters


def _family(fields: Fields) -> Family:
    parameters = fields.value("parameters", dict)
    try:
        return by_name(fields.value("family", str), fields.value("link", str), **parameters)
    except (TypeError, ValueError) as error:
        raise DataError(f"the stored state is damaged: {error}") from error


def _config(fields: Fields) -> OnePassConfig:
    stored = fields.value("config", dict)
    own = Fields(stored, {})
    config = OnePassConfig(
        penalty=own.value("penalty", float),
        seed=own.count("seed"),
        kept_rows=own.count("kept_rows", 2),
        kept_bytes=own.count("kept_bytes", 1),
        meat=own.value("meat", bool),
    )
    if not 0 <= config.penalty < math.inf:
        raise DataError("the stored state is damaged: the penalty is not a number")
    return replace(config)


def _rows(fields: Fields, prefix: str, q: int) -> WorkingRows:
    Z = fields.array(f"{prefix}Z", (None, q))
    n = len(Z)
    y, weights, offset = (fields.array(f"{prefix}{name}", (n,)) for name in _ROWS[1:4])
    return WorkingRows.of(Z, y, weights, offset, fields.array(f"{prefix}number", (n,), np.int64))


def _sample(fields: Fields, config: OnePassConfig, q: int, outputs: int) -> RowSample:
    sample = RowSample(
        config.half(q, outputs),
        config.seed,
        fields.count("rows_seen"),
        fields.value("threshold", float),
        fields.value("largest_uniform", float),
    )
    if not (0 <= sample.threshold < math.inf and 0 < sample.largest_uniform <= ALL):
        raise DataError("the stored state is damaged: a threshold of the sample is out of range")
    if "kept_Z" in fields.arrays:
        rows = _rows(fields, "kept_", q)
        n = len(rows)
        eta = fields.array("kept_eta", (n, outputs))
        rest = (fields.array(f"kept_{name}", (n,)) for name in _KEPT[1:])
        sample.restore(Kept(rows, eta, *rest))
    return sample


def _null_model(fields: Fields) -> NullModel:
    shapes: dict[str, tuple[int, ...]] = {"J": (1, 1), "z": (1,), "c0": ()}
    sums = {name: fields.array(f"null_{name}", shape) for name, shape in shapes.items()}
    quadratic = QuadraticModel.from_arrays(sums, fields.count("null_blocks"))
    active, whole = (fields.value(f"null_{name}", bool) for name in ("active", "whole"))
    return NullModel(quadratic, active, whole)


def _totals(fields: Fields, outputs: int) -> RunningTotals:
    stored = Fields(fields.value("totals", dict), {})
    totals = RunningTotals()
    for name, default in vars(totals).items():
        if name == "classes":
            continue
        if name == "last" and stored.header.get("last") is None:
            continue
        setattr(totals, name, stored.value(name, type(default)))
    totals.classes = fields.array("classes", (None,))
    if len(totals.classes) not in (0, outputs + 1):
        raise DataError("the stored state is damaged: it has another number of classes")
    return totals
