"""Tables and parts that do not fit."""

import pyarrow as pa
import pytest

from tangograd.glm.designs.design import plan
from tangograd.glm.errors import DataError
from tests.glm.designs.design_tables import batch, table, where


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "yy"}, "column 'yy' (the target) is not in the data; its columns are: y, x, z"),
        ({"target": "yy"}, "Did you mean 'y'?"),
        ({}, "no target: name it (--target y)"),
        ({"target": "y", "weights": "v"}, "column 'v' (the weights) is not in the data"),
        ({"target": "y", "exposure": "region"}, "the exposure, is of type string, not numbers"),
        ({"target": "y", "offset": "y"}, "both the target and the offset"),
        ({"target": "y", "exclude": ["regoin"]}, "Did you mean 'region'?"),
        ({"target": "y", "exclude": ["y"]}, "is the target and excluded"),
        (
            {"target": "y", "levels": {"reg": ["a"]}},
            "(for which levels are given) is not in the data",
        ),
        (
            {"target": "y", "levels": {"region": []}},
            "the levels given for 'region' must be different",
        ),
        ({"target": "y", "levels": {"region": ["a", "a"]}}, "must be different texts"),
        ({"target": "y", "levels": {"region": ["a", None]}}, "must be different texts"),
        ({"target": "y", "na": "ignore"}, "(drop, indicator), not 'ignore'"),
        (
            {"target": "x", "formula": "y ~ z"},
            "the target is 'x' (--target) but 'y' in the formula",
        ),
        ({"target": "x", "formula": "x + z"}, "cannot explain itself"),
        ({"formula": "y ~ x", "exclude": ["x"]}, "is in the formula and excluded"),
        ({"formula": "y ~ log(region)"}, "region is categorical; arithmetic needs numbers"),
        ({"formula": "y ~ C(region, baseline='nrth')"}, "Did you mean 'north'?"),
        ({"formula": "y ~ I(__import__('os'))"}, "A formula may hold"),
        (
            {"target": "y", "exclude": ["x", "z", "n", "region", "flag", "w", "e"]},
            "no column besides",
        ),
    ],
)
def test_plans_that_do_not_fit(options, said):
    records = table()
    with pytest.raises(DataError) as error:
        plan(records.schema, scan=[records], **options)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0], pa.timestamp("s")),
        pa.array([0], pa.date32()),
        pa.array([[1.0]]),
        pa.array([b"a"]),
        pa.array([{"a": 1}]),
        pa.array([None], pa.null()),
    ],
)
def test_columns_that_no_model_can_use(values):
    records = pa.record_batch({"y": pa.array([1.0]), "x": pa.array([1.0]), "t": values})
    with pytest.raises(DataError, match=r"column 't' is of type .*--exclude t"):
        plan(records.schema, target="y")
    with pytest.raises(DataError, match="column 't' is of type"):
        plan(records.schema, formula="y ~ .")
    assert plan(records.schema, target="y", exclude=["t"]).names == ("x",)
    assert plan(records.schema, formula="y ~ x").names == ("x",)


def test_a_column_that_changes_its_type_or_disappears():
    records = table()
    design = plan(records.schema, target="y", exclude=["flag"], scan=[records])
    for name, values, kind in [
        ("x", ["1.5"], "numbers"),
        ("region", [1.5], "text"),
        ("y", ["a"], "numbers"),
    ]:
        one = records.slice(0, 1)
        changed = one.set_column(records.schema.get_field_index(name), name, pa.array(values))
        with pytest.raises(
            DataError, match=f"from a.csv, line 2 on: column '{name}' .* hold {kind}"
        ):
            design.rows(changed, where=where)
    with pytest.raises(DataError, match="column 'x' is not in the data"):
        design.rows(records.drop_columns(["x"]), where=where)
    with pytest.raises(DataError, match=r"column 'y' \(the target\) is not in the data"):
        design.rows(records.drop_columns(["y"]), where=where)


def test_columns_of_nulls_alone_are_missing_ones():
    records = batch(y=[1.0, 2.0], x=[1.0, 2.0], g=["a", "b"])
    design = plan(records.schema, target="y", na="drop", scan=[records])
    empty = pa.record_batch({"y": pa.array([1.0]), "x": pa.nulls(1), "g": pa.nulls(1)})
    assert design.rows(empty, where=where).dropped == {"x": 1, "g": 1}


def test_columns_of_one_name():
    twice = pa.RecordBatch.from_arrays([pa.array([1.0])] * 3, names=["y", "x", "x"])
    with pytest.raises(DataError, match="two columns are called 'x'"):
        plan(twice.schema, target="y")
    design = plan(batch(y=[1.0], x=[1.0]).schema, target="y")
    with pytest.raises(DataError, match="two columns are called 'x'"):
        design.rows(twice, where=where)


def test_coefficients_of_one_name():
    records = pa.record_batch(
        {"y": pa.array([1.0, 1.0]), "g": pa.array(["a", "b"]), "g[b]": pa.array([1.0, 2.0])}
    )
    with pytest.raises(DataError, match=r"two coefficients would be called 'g\[b\]'"):
        plan(records.schema, target="y", scan=[records])
