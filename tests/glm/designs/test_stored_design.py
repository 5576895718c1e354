"""Designs survive JSON; damaged and hostile ones are refused."""

import json

import numpy as np
import pyarrow as pa
import pytest

from tangograd.glm.designs.design import Design, plan
from tangograd.glm.errors import DataError
from tests.glm.designs.design_tables import FORMULAS, split, table, together


@pytest.mark.parametrize(
    "formula", [None, *FORMULAS, "y ~ . - x + log(z)", "y ~ C(n, baseline=2)*x"]
)
@pytest.mark.parametrize("na", [None, "drop", "indicator"])
@pytest.mark.parametrize("scanned", [True, False])
def test_a_design_survives_json(formula, na, scanned):
    records = table(80, missing=0.0 if na is None else 0.1)
    parts = {"weights": "w", "exposure": "e", "na": na}
    design = plan(
        records.schema, target="y", formula=formula, **parts, scan=[records] if scanned else None
    )
    together(design, split(records, [30, 50]))
    plain = json.loads(json.dumps(design.to_dict()))
    again = Design.from_dict(plain)
    assert again.to_dict() == design.to_dict()
    assert (again.names, again.notes, again.intercept) == (
        design.names,
        design.notes,
        design.intercept,
    )
    assert (again.types, again.reads(), again.classes) == (
        design.types,
        design.reads(),
        design.classes,
    )
    later = table(50, seed=9, missing=0.1)
    for training in (False, na is not None):
        first, kept, _ = together(design, [later], training=training)
        second, same, _ = together(again, [later], training=training)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(kept, same)
    assert again.names == design.names


def test_types_are_those_that_a_reader_should_use():
    records = table()
    design = plan(records.schema, formula="flag ~ C(n) + region", exposure="e")
    assert design.types == {
        "e": pa.float64(),
        "n": pa.float64(),
        "region": pa.string(),
        "flag": pa.bool_(),
    }


def saved():
    records = table(30, missing=0.2)
    design = plan(records.schema, formula="y ~ x + region", na="indicator")
    together(design, [records])
    return design.to_dict()


def change(path, value):
    def apply(plain):
        *parents, last = path
        for key in parents:
            plain = plain[key]
        if value is KeyError:
            del plain[last]
        else:
            plain[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["columns", "formula"], "y ~ x + I(__import__('os').system('x'))"),
        (["columns", "formula"], "y ~ x + scale(x)"),
        (["columns", "formula"], "y ~ x"),
        (["columns", "formula"], "z ~ x + region"),
        (["columns", "formula"], 3),
        (["columns", "formula"], KeyError),
        (["columns", "more"], 1),
        (["columns", "target"], None),
        (["columns", "target"], "x"),
        (["columns", "target_kind"], ["text"]),
        (["columns", "kinds"], {"x": "number"}),
        (["columns", "kinds"], [["x", "number"], ["x", "number"]]),
        (["columns", "kinds"], [["x", []], ["region", "text"]]),
        (["columns", "categorical"], []),
        (["columns", "categorical"], ["q"]),
        (["columns", "others"], "x"),
        (["columns", "na"], "ignore"),
        (["columns"], None),
        (["categories"], []),
        (["categories"], {}),
        (["categories", 0], {}),
        (["categories", 0, "column"], "x"),
        (["categories", 0, "origin"], "elsewhere"),
        (["categories", 0, "levels"], ["a", "a"]),
        (["categories", 0, "levels"], ["west"]),
        (["categories", 0, "levels"], [1]),
        (["categories", 0, "baseline"], "west"),
        (["categories", 0, "counts"], {"a": -1}),
        (["indicators"], ["region"]),
        (["indicators"], ["x"]),
        (["opened"], []),
        (["opened"], [["x", None, None]]),
        (["opened"], [["q", "a"]]),
        (["opened"], [["region", 1]]),
        (["opened", 0], ["region", "other"]),
        (["complete"], 1),
        (["classes"], [1, 2]),
        (["surveyed_rows"], -1),
        (["surveyed_rows"], True),
        (["sparse"], "yes"),
        (["names"], ["x"]),
        (["names"], KeyError),
        (["more"], 1),
    ],
)
def test_damaged_or_hostile_designs_are_refused(path, value):
    plain = json.loads(json.dumps(saved()))
    Design.from_dict(plain)
    change(path, value)(plain)
    with pytest.raises(DataError):
        Design.from_dict(plain)


@pytest.mark.parametrize("plain", [None, [], "x", {}, 3])
def test_what_is_no_design(plain):
    with pytest.raises(DataError, match="the model's design is damaged"):
        Design.from_dict(plain)
