"""Levels: found beforehand, given, or opened as they come."""

import numpy as np
import pyarrow as pa
import pytest

from tangograd.glm.designs import layout
from tangograd.glm.designs.design import plan
from tangograd.glm.designs.layout import Category
from tangograd.glm.errors import DataError
from tests.glm.designs.design_tables import batch, table, together, where


def test_a_scan_is_read_only_if_it_is_needed():
    def never():
        raise AssertionError("read")
        yield

    records = table()
    numbers = ["region", "flag"]
    for options in (
        {"exclude": numbers},
        {"exclude": numbers, "na": "drop"},
        {"levels": {"region": ["north", "south", "east"]}},
        {"formula": "y ~ x + flag"},
    ):
        design = plan(records.schema, target="y", scan=never(), **options)
        assert design.complete
        assert design.to_survey == ()


def test_a_survey_says_which_columns_are_enough():
    schema = table().schema
    assert plan(schema, target="y").to_survey == ("region",)
    assert plan(schema, target="region").to_survey == ("region",)
    assert plan(schema, formula="y ~ x + C(n)").to_survey == ("n",)
    assert plan(schema, formula="y ~ x + C(n)", na="drop").to_survey == ("x", "n", "y")
    draft = plan(schema, formula="y ~ x + C(n)", na="indicator")
    assert draft.to_survey == ("x", "n", "y")
    records = table(missing=0.2)
    done = draft.surveyed([records.select(draft.to_survey)])
    assert done.names == ("x", "n[2]", "n[3]", "n[(missing)]", "x[missing]")


def test_given_levels_are_taken_in_their_order_and_make_numbers_categorical():
    records = table()
    levels = {"region": ["south", "north", "west", "east"], "n": [3, 1, 2]}
    design = plan(records.schema, target="y", levels=levels, exclude=["x", "z", "flag", "w", "e"])
    assert design.names == ("n[1]", "n[2]", "region[north]", "region[west]", "region[east]")
    assert design.notes[0] == "n: 3 levels, baseline '3' (first of the levels given)"
    X, _, _ = together(design, [records])
    assert X[:, 3].sum() == 0


def test_numbers_are_sorted_by_size_and_the_same_as_floats():
    records = batch(y=[1.0] * 4, k=[10, 9, -1, 9])
    design = plan(records.schema, formula="y ~ C(k)", scan=[records])
    assert design.names == ("k[9]", "k[10]")
    floats = batch(y=[1.0] * 4, k=[10.0, 9.0, -1.0, 9.0])
    np.testing.assert_array_equal(
        design.rows(floats, where=where).X, design.rows(records, where=where).X
    )
    assert plan(floats.schema, formula="y ~ C(k)", scan=[floats]).names == design.names


def test_dictionaries_with_unused_levels_nulls_and_numbers():
    indices = pa.array([2, 0, None, 1, 2], pa.int8())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(["a", None, "c", "unused"]))
    whole = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0, 0], pa.int8()), pa.array([7, 5]))
    records = pa.record_batch({"y": pa.array([1.0] * 5), "t": texts, "k": whole})
    design = plan(records.schema, target="y", na="indicator", scan=[records])
    assert design.names == ("t[c]", "t[(missing)]", "k[7]")
    plain = pa.record_batch(
        {
            "y": records["y"],
            "t": pa.array(["c", "a", None, None, "c"]),
            "k": pa.array([7, 5, 5, 7, 7]),
        }
    )
    np.testing.assert_array_equal(
        design.rows(records, where=where).X, design.rows(plain, where=where).X
    )


@pytest.mark.parametrize("scanned", [True, False])
def test_too_many_levels(monkeypatch, scanned):
    monkeypatch.setattr(layout, "MAX_LEVELS", 50)
    monkeypatch.setattr("tangograd.glm.designs.survey.MAX_LEVELS", 50)
    records = batch(y=[1.0] * 60, name=[str(i) for i in range(60)])
    with pytest.raises(DataError, match="column 'name' has more than 50 levels.*--exclude name"):
        together(plan(records.schema, target="y", scan=[records] if scanned else None), [records])


def test_too_many_combinations():
    many = [str(i) for i in range(1000)]
    records = batch(y=[1.0] * 1000, g=many, h=many)
    with pytest.raises(DataError, match="the interaction g:h has 1000000 combinations"):
        plan(records.schema, formula="y ~ g:h", scan=[records])


def test_a_baseline_that_no_row_has_is_said():
    records = batch(y=[1.0, 2.0], g=["a", "b"], h=["a", "b"])
    levels = {"h": ["c", "a", "b"]}
    design = plan(records.schema, formula="y ~ C(g, baseline='c') + h", levels=levels)
    assert design.notes[0] == "g: one level only, 'c'"
    assert "no row" not in design.notes[1]
    together(design, [records])
    assert design.names == ("h[a]", "h[b]", "g[a]", "g[b]")
    assert design.notes == [
        "g: 3 levels, baseline 'c' (as stated in the formula), which no row has",
        "h: 3 levels, baseline 'c' (first of the levels given), which no row has",
    ]
    together(design, [batch(y=[1.0], g=["c"], h=["c"])])
    assert not any("no row" in note for note in design.notes)


def test_infinite_numbers_are_no_levels():
    records = batch(y=[1.0, 2.0], k=[1.0, np.inf])
    with pytest.raises(DataError, match="line 3: column 'k' is infinite"):
        plan(records.schema, formula="y ~ C(k)").rows(records, where=where)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_all_kinds_of_text(kind):
    records = pa.record_batch({"y": pa.array(["no", "yes"], kind), "g": pa.array(["b", "a"], kind)})
    design = plan(records.schema, target="y", scan=[records])
    rows = design.rows(records, where=where)
    assert rows.X.tolist() == [[1.0], [0.0]]
    assert rows.y.tolist() == ["no", "yes"]


def test_one_level_is_said():
    records = batch(y=[1.0, 2.0], x=[1.0, 2.0], g=["a", "a"])
    design = plan(records.schema, target="y", scan=[records])
    assert design.names == ("x",)
    assert design.notes == ["g: one level only, 'a'"]


def test_long_levels_are_not_told_whole():
    category = Category("text", "sorted")
    category.add(["a" * 3000, "b" * 3000])
    assert len(category.note) < 200
    with pytest.raises(DataError) as error:
        Category("text", "given", "c" * 3000, True, {"a" * 3000: 0}).check_baseline()
    assert len(str(error.value)) < 400
