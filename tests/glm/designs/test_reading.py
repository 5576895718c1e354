"""Missing, infinite and unknown values, while training and at prediction."""

import numpy as np
import pytest

from tangograd.glm.designs.design import plan
from tangograd.glm.errors import DataError
from tests.glm.designs.design_tables import batch, table, together, where


def test_indicators_of_missing_values():
    records = batch(y=[1.0] * 4, x=[1.0, None, 3.0, np.nan], z=[1.0] * 4, g=[None, "a", "b", None])
    expected = {
        "x": [1.0, 0.0, 3.0, 0.0],
        "z": [1.0] * 4,
        "g[b]": [0.0, 0.0, 1.0, 0.0],
        "g[(missing)]": [1.0, 0.0, 0.0, 1.0],
        "x[missing]": [0.0, 1.0, 0.0, 1.0],
    }
    scanned = plan(records.schema, target="y", na="indicator", scan=[records])
    opened = plan(records.schema, target="y", na="indicator")
    assert scanned.names == tuple(expected)
    X, _, _ = together(scanned, [records])
    Z, _, _ = together(opened, [records])
    assert opened.names == ("x", "z", "g[(missing)]", "x[missing]", "g[b]")
    assert opened.categories["g"].baseline == "a"
    for column, name in enumerate(scanned.names):
        assert X[:, column].tolist() == expected[name]
        assert Z[:, opened.names.index(name)].tolist() == expected[name]
    assert scanned.notes[-1] == "x: missing values count as 0 and have a coefficient of their own"


def test_missing_values_within_terms_count_as_zero():
    records = batch(y=[1.0] * 3, x=[1.0, None, 4.0], z=[2.0, 3.0, None])
    design = plan(records.schema, formula="y ~ log(x) + x:z", na="indicator", scan=[records])
    assert design.names == ("log(x)", "x:z", "x[missing]", "z[missing]")
    assert design.rows(records, where=where).X.tolist() == [
        [0.0, 2.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0],
        [np.log(4.0), 0.0, 0.0, 1.0],
    ]


GOOD = {
    "y": [1.0, 2.0, 3.0],
    "x": [1.0, 2.0, 3.0],
    "g": ["a", "b", "a"],
    "e": [1.0, 1.0, 1.0],
    "w": [1.0, 1.0, 1.0],
    "o": [0.0, 0.0, 0.0],
}
PARTS = {"target": "y", "exposure": "e", "weights": "w", "offset": "o"}


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (
            "x",
            None,
            "a.csv, line 3: column 'x' is missing; drop such rows (--na drop), give missing",
        ),
        ("x", np.nan, "a.csv, line 3: column 'x' is missing"),
        ("x", np.inf, "a.csv, line 3: column 'x' is infinite (inf)"),
        ("x", -np.inf, "a.csv, line 3: column 'x' is infinite (-inf)"),
        ("g", None, "a.csv, line 3: column 'g' is missing"),
        ("y", None, "a.csv, line 3: column 'y' (the target) is missing"),
        ("y", np.inf, "a.csv, line 3: column 'y' is infinite"),
        ("e", 0.0, "a.csv, line 3: the exposure 'e' is 0; exposures are above 0"),
        ("e", -1.0, "the exposure 'e' is -1"),
        ("e", None, "column 'e' (the exposure) is missing"),
        ("o", None, "column 'o' (the offset) is missing"),
        ("o", np.inf, "column 'o' is infinite"),
        ("w", -1.0, "a.csv, line 3: the weight 'w' is -1; weights are numbers from 0"),
        ("w", None, "the weight 'w' is nan"),
        ("w", np.inf, "column 'w' is infinite"),
    ],
)
@pytest.mark.parametrize("na", [None, "drop", "indicator"])
def test_bad_values_while_training(column, value, said, na):
    good = batch(**GOOD)
    values = [GOOD[column][0], value, GOOD[column][2]]
    bad = batch(**GOOD | {column: values})
    design = plan(good.schema, **PARTS, na=na, scan=[good])
    absent = value is None or np.isnan(value)
    if na is None or column == "w" or not absent or (na == "indicator" and column in "xg"):
        with pytest.raises(DataError) as error:
            design.rows(bad, where=where)
        late = na == "indicator" and absent and column in "xg"
        assert ("nowhere so when the model was planned" if late else said) in str(error.value)
    else:
        rows = design.rows(bad, where=where)
        assert rows.kept.tolist() == [0, 2]
        assert rows.dropped == {column: 1}
        assert len(rows.X) == len(rows.y) == len(rows.weights) == len(rows.offset) == 2


@pytest.mark.parametrize("column", ["x", "g", "e", "o"])
@pytest.mark.parametrize("na", [None, "drop", "indicator"])
def test_missing_values_at_prediction_make_it_empty(column, na):
    good = batch(**GOOD)
    bad = batch(**GOOD | {column: [GOOD[column][0], None, GOOD[column][2]]})
    design = plan(good.schema, **PARTS, na=na, scan=[good])
    rows = design.rows(bad, where=where, training=False)
    assert rows.kept.tolist() == [0, 2]
    assert rows.dropped == {column: 1}
    if na is None:
        with pytest.raises(DataError, match=f"line 3: column '{column}'.* is missing"):
            design.rows(bad, where=where, training=False, unseen="error")


def test_the_first_wrong_row_is_named_however_rows_are_batched():
    records = batch(y=[1.0] * 5, x=[1.0, 1.0, 1.0, np.inf, 1.0], z=[1.0, 1.0, None, 1.0, 1.0])
    for size in (1, 2, 5):
        design = plan(records.schema, target="y")
        with pytest.raises(DataError, match="^row 2: column 'z' is missing"):
            for start in range(0, 5, size):
                design.rows(records.slice(start, size), where=lambda i, s=start: f"row {s + i}")


def test_large_numbers_are_no_infinities():
    records = batch(y=[1.0] * 3, x=[1e308, 1e308, -1e308])
    rows = plan(records.schema, target="y").rows(records, where=where)
    assert rows.X[:, 0].tolist() == [1e308, 1e308, -1e308]


def test_an_interaction_that_overflows():
    records = batch(y=[1.0], x=[1e200], z=[1e200])
    with pytest.raises(DataError, match="the interaction x:z is too large"):
        plan(records.schema, formula="y ~ x:z").rows(records, where=where)


@pytest.mark.parametrize(
    ("unseen", "kept", "region"),
    [("missing", [0, 2], [0.0, 1.0]), ("baseline", [0, 1, 2, 3], [0.0, 0.0, 1.0, 0.0])],
)
def test_unseen_levels(unseen, kept, region):
    records = batch(y=[1.0, 2.0], g=["a", "b"], x=[1.0, 2.0])
    later = batch(g=["a", "c", "b", "d"], x=[5.0, 6.0, 7.0, 8.0])
    for scan in ([records], None):
        design = plan(records.schema, target="y", scan=scan)
        together(design, [records])
        rows = design.rows(later, where=where, training=False, unseen=unseen)
        assert rows.kept.tolist() == kept
        assert rows.X[:, design.names.index("g[b]")].tolist() == region
        assert rows.unseen == {"g": {"c": 1, "d": 1}}
        assert design.categories["g"].labels == ["a", "b"]


def test_unseen_levels_can_be_errors_and_are_while_training_a_complete_design():
    records = batch(y=[1.0, 2.0], g=["north", "south"])
    later = batch(y=[1.0, 2.0], g=["north", "nort"])
    design = plan(records.schema, target="y", scan=[records])
    with pytest.raises(DataError) as error:
        design.rows(later, where=where, training=False, unseen="error")
    assert str(error.value) == (
        "a.csv, line 3: 'nort' is not a level of column 'g', whose levels are 'north', 'south': "
        "predict such rows as missing or as the baseline instead. Did you mean 'north'?"
    )
    with pytest.raises(DataError, match="add it to the levels"):
        design.rows(later, where=where)
    with pytest.raises(DataError, match="unseen is one of missing, baseline, error"):
        design.rows(later, where=where, training=False, unseen="guess")


def test_held_out_rows_have_targets_but_open_nothing():
    records = batch(y=[1.0, 2.0], g=["a", "b"], w=[1.0, 3.0])
    design = plan(records.schema, target="y", weights="w")
    together(design, [records])
    held = batch(y=[5.0, 6.0, 7.0], g=["b", "c", "a"], w=[1.0, 2.0, 3.0])
    rows = design.rows(held, where=where, training=False, target=True)
    assert rows.y.tolist() == [5.0, 7.0]
    assert rows.weights.tolist() == [1.0, 3.0]
    assert rows.X.tolist() == [[1.0], [0.0]]
    assert design.names == ("g[b]",)


def test_an_empty_batch_gives_no_rows():
    records = table(5)
    design = plan(records.schema, target="y", scan=[records])
    rows = design.rows(records.slice(0, 0), where=lambda _: pytest.fail("there is no row"))
    assert rows.X.shape == (0, len(design.names))
    assert rows.y.shape == (0,)
