"""Tables become the same design matrices as elsewhere, in any batches."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import statsmodels.formula.api as smf
from formulaic import model_matrix

from tangograd.glm.designs.columns import class_codes
from tangograd.glm.designs.design import plan
from tangograd.glm.errors import DataError
from tangograd.glm.matrices import Categorical
from tests.glm.designs.design_tables import FORMULAS, array, batch, split, table, together, where


def test_without_a_formula_all_columns_are_used_as_get_dummies_would():
    records = table()
    design = plan(records.schema, target="y", exclude=["w", "e"], scan=[records])
    rows = design.rows(records, where=where)
    frame = records.to_pandas().drop(columns=["y", "w", "e"])
    theirs = pd.get_dummies(frame, columns=["region", "flag"], drop_first=True)
    assert design.names == ("x", "z", "n", "region[north]", "region[south]", "flag[true]")
    assert design.intercept
    np.testing.assert_array_equal(rows.X, theirs.to_numpy(dtype=float))
    np.testing.assert_array_equal(rows.y, frame.assign(y=records["y"])["y"])
    assert rows.X.flags.c_contiguous
    assert rows.X.dtype == np.float64
    assert rows.kept.tolist() == list(range(60))
    assert rows.kept.dtype == np.int64
    assert design.notes == [
        "region: 3 levels, baseline 'east' (first in sorted order)",
        "flag: 2 levels, baseline 'false' (first in sorted order)",
    ]
    assert design.surveyed_rows == 60
    assert sum(design.categories["region"].counts.values()) == 60


def test_weights_exposure_and_offset():
    records = table()
    design = plan(
        records.schema,
        target="y",
        weights="w",
        exposure="e",
        offset="z",
        exclude=["region", "flag"],
    )
    rows = design.rows(records, where=where)
    frame = records.to_pandas()
    assert design.names == ("x", "n")
    np.testing.assert_array_equal(rows.weights, frame["w"])
    np.testing.assert_allclose(rows.offset, frame["z"] + np.log(frame["e"]), rtol=1e-15)
    assert design.reads() == ("x", "n", "z", "e", "y", "w")
    assert design.reads(training=False) == ("x", "n", "z", "e")
    later = design.rows(records.select(design.reads(training=False)), where=where, training=False)
    assert later.y is None
    assert later.weights is None
    np.testing.assert_array_equal(later.offset, rows.offset)
    np.testing.assert_array_equal(later.X, rows.X)


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(10, 2)]
)
def test_all_numbers_become_float64(kind):
    values = [Decimal(1), Decimal(2), None] if pa.types.is_decimal(kind) else [1, 2, None]
    records = pa.record_batch({"y": pa.array([1.0, 2.0, 3.0]), "x": pa.array(values, kind)})
    rows = plan(records.schema, target="y", na="drop").rows(records, where=where)
    assert rows.X.dtype == np.float64
    assert rows.X.tolist() == [[1.0], [2.0]]


def test_targets_keep_their_kind():
    records = batch(
        x=[1.0, 2.0, 3.0], text=["no", "yes", "no"], truth=[True, False, True], k=[1, 2, 3]
    )
    found = {}
    for name in ("text", "truth", "k"):
        others = {"text", "truth", "k"} - {name}
        design = plan(records.schema, target=name, exclude=others, scan=[records])
        found[name] = (design.rows(records, where=where).y, design.classes)
    assert found["text"][0].tolist() == ["no", "yes", "no"]
    assert found["text"][1] == ("no", "yes")
    assert found["truth"][0].dtype == bool
    assert found["truth"][1] == (False, True)
    assert found["k"][0].dtype == np.float64
    assert found["k"][1] is None


def test_class_codes_grow_or_refuse():
    codes, classes = class_codes(np.array([2.0, 1.0]), (), grow=True)
    assert (codes.tolist(), classes) == ([0, 1], (2.0, 1.0))
    codes, classes = class_codes(np.array([True, False]), (False, True))
    assert (codes.tolist(), classes) == ([1, 0], (False, True))
    with pytest.raises(DataError, match="the class 'c', which is none of 'a', 'b'"):
        class_codes(np.array(["a", "c"], dtype=object), ("a", "b"))


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("sparse", [False, True])
def test_matrices_agree_with_formulaic(formula, sparse):
    records = table()
    design = plan(records.schema, formula=formula, scan=[records])
    design.sparse = sparse
    ours = design.rows(records, where=where)
    frame = records.to_pandas()
    frame["flag"] = frame["flag"].map({False: "false", True: "true"})
    theirs = model_matrix(formula.split("~")[1], frame, context={"sqrt": np.sqrt})
    names = [
        name.replace("[T.", "[").replace("C(n)", "n").replace("C(region)", "region")
        for name in theirs.columns
    ]
    assert [*["Intercept"] * design.intercept, *design.names] == names
    assert sp.issparse(ours.X) is sparse
    kept = theirs.to_numpy(dtype=float)[:, int(design.intercept) :]
    np.testing.assert_allclose(array(ours.X), kept, rtol=1e-14)


def test_a_fit_agrees_with_statsmodels_formula():
    records = table(200)
    formula = "y ~ x*C(region) + log(z)"
    design = plan(records.schema, formula=formula, scan=[records])
    rows = design.rows(records, where=where)
    X = np.column_stack([np.ones(200), rows.X])
    ours = np.linalg.lstsq(X, rows.y, rcond=None)[0]
    theirs = smf.ols(formula.replace("log", "np.log"), records.to_pandas()).fit().params
    assert np.sort(ours) == pytest.approx(np.sort(theirs), rel=1e-9)
    assert ours[0] == pytest.approx(theirs["Intercept"], rel=1e-9)


def test_a_dot_leaves_out_the_columns_with_other_parts():
    records = table()
    design = plan(
        records.schema,
        formula="y ~ . - z",
        exposure="e",
        weights="w",
        exclude=["flag"],
        scan=[records],
    )
    assert design.names == ("x", "n", "region[north]", "region[south]")


@pytest.mark.parametrize(
    ("formula", "baseline", "names"),
    [
        ("C(region, baseline='south')", "south", ("region[east]", "region[north]")),
        ("C(n, baseline=2)", "2", ("n[1]", "n[3]")),
        ("C(flag, baseline=True)", "true", ("flag[false]",)),
    ],
)
@pytest.mark.parametrize("scanned", [True, False])
def test_the_formula_may_state_the_baseline(formula, baseline, names, scanned):
    records = table()
    design = plan(records.schema, target="y", formula=formula, scan=[records] if scanned else None)
    X, _, _ = together(design, [records])
    assert sorted(design.names) == sorted(names)
    (category,) = design.categories.values()
    assert category.baseline == baseline
    assert design.notes == [
        f"{category.column}: {len(names) + 1} levels, baseline {baseline!r} "
        "(as stated in the formula)"
    ]
    assert X.sum() == sum(
        str(value).lower() != baseline for value in records[category.column].to_pylist()
    )


def test_terms_without_a_value_are_errors_with_row_and_term():
    records = batch(y=[1.0] * 4, x=[1.0, 2.0, 0.0, -1.0], z=[1.0, 0.0, 1.0, 1.0])
    for formula, said in [
        (
            "log(x)",
            "a.csv, line 4: the term log(x) has no value at x = 0: log needs values above 0",
        ),
        (
            "sqrt(x)",
            "line 5: the term sqrt(x) has no value at x = -1: sqrt needs values of at least",
        ),
        ("log1p(x)", "line 5: the term log1p(x) has no value at x = -1"),
        (
            "I(x / z)",
            "line 3: the term I(x / z) has no value at x = 2, z = 0: nothing can be divided",
        ),
        ("I(x**0.5)", "line 5: the term I(x ** 0.5) has no value at x = -1: 0 has no negative"),
        ("I(x**-1)", "line 4: the term I(x ** -1)"),
        ("exp(1000 * x)", "line 2: the term exp(1000 * x) has no value at x = 1: exp overflows"),
    ]:
        design = plan(records.schema, target="y", formula=formula)
        for training in (True, False):
            with pytest.raises(DataError) as error:
                design.rows(records, where=where, training=training)
            assert said in str(error.value)


@pytest.mark.parametrize(
    "formula", [None, "y ~ x*region + log(z) + C(n):flag", "y ~ region:flag - 1"]
)
@pytest.mark.parametrize("na", ["drop", "indicator"])
@pytest.mark.parametrize("scanned", [True, False])
def test_any_batches_give_the_same_rows(formula, na, scanned):
    records = table(120, seed=3, missing=0.1)

    def fresh():
        scan = split(records, [50, 70]) if scanned else None
        return plan(records.schema, target="y", formula=formula, na=na, scan=scan)

    whole = fresh()
    X, kept, y = together(whole, [records])
    for sizes in ([1] * 120, [7, 0, 53, 60], [119, 1]):
        design = fresh()
        other, indices, target = together(design, split(records, sizes))
        assert design.names == whole.names
        np.testing.assert_array_equal(other, X)
        np.testing.assert_array_equal(indices, kept)
        np.testing.assert_array_equal(target, y)
    assert len(kept) < 120 if na == "drop" else len(kept) == 120


def test_scanned_and_open_designs_differ_in_the_order_of_columns_alone():
    records = table(200)
    formula = "y ~ C(region, baseline='north')*x + C(n, baseline=1)"
    scanned = plan(records.schema, formula=formula, scan=[records])
    opened = plan(records.schema, formula=formula)
    X, _, _ = together(scanned, [records])
    Z, _, _ = together(opened, split(records, [3, 197]))
    order = [opened.names.index(name) for name in scanned.names]
    assert order != sorted(order)
    np.testing.assert_array_equal(Z[:, order], X)


def test_levels_open_as_they_come_at_the_end_of_the_names():
    design = plan(batch(y=[1.0], g=["a"], x=[1.0], h=["a"]).schema, target="y")
    assert not design.complete
    first = batch(y=[1.0, 1.0], g=["b", "a"], x=[1.0, 2.0], h=["u", "u"])
    rows = design.rows(first, where=where)
    assert design.names == ("x", "g[a]")
    assert rows.X.tolist() == [[1.0, 0.0], [2.0, 1.0]]
    second = batch(y=[1.0, 1.0, 1.0], g=["c", "b", "c"], x=[3.0, 4.0, 5.0], h=["u", "v", "v"])
    rows = design.rows(second, where=where)
    assert design.names == ("x", "g[a]", "g[c]", "h[v]")
    assert rows.X.tolist() == [[3.0, 0.0, 1.0, 0.0], [4.0, 0.0, 0.0, 1.0], [5.0, 0.0, 1.0, 1.0]]
    assert design.notes == [
        "g: 3 levels, baseline 'b' (first seen)",
        "h: 2 levels, baseline 'u' (first seen)",
    ]


def test_rows_that_are_dropped_open_no_levels():
    records = batch(y=[1.0, 1.0, 1.0], x=[None, 1.0, 2.0], g=["a", "b", "c"])
    for scan in ([records], None):
        design = plan(records.schema, target="y", na="drop", scan=scan)
        rows = design.rows(records, where=where)
        assert design.names == ("x", "g[c]")
        assert rows.kept.tolist() == [1, 2]
        assert rows.dropped == {"x": 1}


def test_a_batch_that_fails_opens_nothing():
    design = plan(batch(y=[1.0], x=[1.0], g=["a"]).schema, target="y")
    with pytest.raises(DataError):
        design.rows(batch(y=[1.0, 1.0], x=[1.0, np.inf], g=["a", "b"]), where=where)
    assert design.categories["g"].labels == []


def test_wide_and_mostly_zero_matrices_are_csr():
    rng = np.random.default_rng(0)
    levels = [f"l{i:03d}" for i in range(200)]
    records = batch(
        y=rng.normal(size=1000),
        x=rng.normal(size=1000),
        g=rng.choice(levels, 1000),
        h=rng.choice(levels[:9], 1000),
    )
    design = plan(records.schema, target="y", scan=[records])
    X = design.rows(records, where=where).X
    assert isinstance(X, sp.csr_array)
    assert X.has_sorted_indices
    assert X.has_canonical_format
    design.sparse = False
    np.testing.assert_array_equal(design.rows(records, where=where).X, X.toarray())
    narrow = plan(records.schema, target="y", exclude=["g"], scan=[records])
    assert isinstance(narrow.rows(records, where=where).X, np.ndarray)


def test_many_numbers_stay_dense():
    records = batch(**{f"x{i}": [1.0] for i in range(100)}, g=["a"])
    design = plan(records.schema, target="x0", levels={"g": list("abcdefgh")})
    assert len(design.names) == 106
    assert isinstance(design.rows(records, where=where).X, np.ndarray)


def test_open_designs_sort_the_indices_of_csr():
    rng = np.random.default_rng(0)
    records = batch(
        y=np.ones(400),
        g=rng.choice(200, 400).astype(str),
        h=rng.choice(200, 400).astype(str),
        x=np.ones(400),
    )
    design = plan(records.schema, target="y")
    for part in split(records, [10, 390]):
        X = design.rows(part, where=where).X
    assert isinstance(X, sp.csr_array)
    assert X.has_canonical_format


@pytest.mark.parametrize("na", ["drop", "indicator"])
@pytest.mark.parametrize("formula", [None, *FORMULAS])
def test_numbers_and_levels_apart_are_the_same_matrix(formula, na):
    """Where there are no products of both, and levels at all."""
    records = table(missing=0.1)
    excluded = () if formula else ("w", "e")
    target = None if formula else "y"
    options = {"target": target, "formula": formula, "exclude": excluded, "na": na}
    design = plan(records.schema, **options, scan=[records])
    growing = plan(records.schema, **options)
    expected = design.rows(records, where=where)
    found = design.rows(records, where=where, apart=True)
    products = any(block.term.numbers and block.term.categories for block in design.layout.blocks)
    assert isinstance(found.X, Categorical) is (bool(design.categories) and not products)
    if isinstance(found.X, Categorical):
        assert design.entries == len(design.layout.blocks)
        assert found.X.numbers.shape[1] + found.X.codes.shape[1] >= design.entries
        np.testing.assert_array_equal(found.X.toarray(), array(expected.X))
    np.testing.assert_array_equal(found.kept, expected.kept)
    parts = [growing.rows(part, where=where, apart=True).X for part in split(records, [20, 40])]
    fresh, _, _ = together(plan(records.schema, **options), split(records, [20, 40]))
    parts = [part.toarray() if isinstance(part, Categorical) else array(part) for part in parts]
    width = len(growing.names)
    both = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
    np.testing.assert_array_equal(np.concatenate(both), fresh)


def outcome(design, records, place, **options):
    """What rows become, or the error."""
    try:
        rows = design.rows(records, where=place, **options)
    except DataError as error:
        return str(error)
    X = rows.X.toarray() if isinstance(rows.X, Categorical) else rows.X
    parts = (array(X), rows.y, rows.weights, rows.offset)
    kept = [place(int(i)) for i in rows.kept]
    return [None if part is None else part.tolist() for part in parts], kept, rows.dropped


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("na", [None, "drop", "indicator"])
@pytest.mark.parametrize("formula", [None, *FORMULAS])
def test_some_rows_are_those_of_a_smaller_table(formula, na, missing):
    """With the same errors at the same places, whatever is in the rows that are not read."""
    records = table(missing=missing)
    chosen = np.random.default_rng(3).random(records.num_rows) < 0.7
    numbers = np.flatnonzero(chosen)
    smaller = records.take(pa.array(numbers))
    target = None if formula else "y"
    options = {"target": target, "formula": formula, "na": na, "weights": "w", "exposure": "e"}

    def planned(scanned):
        scan = [smaller] if scanned else None
        return plan(records.schema, **options, scan=scan)

    for scanned in (True, False):
        for apart in (True, False):
            found = outcome(planned(scanned), records, where, only=chosen, apart=apart)
            expected = outcome(planned(scanned), smaller, lambda i: where(int(numbers[i])))
            assert found == expected


def test_rows_that_are_not_read_may_be_wrong():
    records = batch(y=[1.0, 2.0, 3.0], x=[1.0, np.inf, 2.0], g=["a", "b", "c"])
    design = plan(records.schema, target="y", levels={"g": ["a", "c"]})
    only = np.array([True, False, True])
    rows = design.rows(records, where=where, only=only, apart=True)
    assert rows.X.toarray().tolist() == [[1.0, 0.0], [2.0, 1.0]]
    assert rows.kept.tolist() == [0, 2]
    with pytest.raises(DataError, match="infinite"):
        design.rows(records, where=where, apart=True)
    none = design.rows(records, where=where, only=np.zeros(3, bool), apart=True)
    assert none.X.toarray().shape == (0, 2)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("missing", ["level", "target", "row"])
def test_batches_before_the_first_level(missing, apart):
    """Nothing can be used, and no column is there for levels yet."""
    g = pa.array([None, None] if missing == "level" else ["a", "b"], pa.string())
    y = pa.array([None, None] if missing == "target" else [1.0, 2.0], pa.float64())
    records = pa.record_batch({"y": y, "x": [3.0, 4.0], "g": g})
    only = np.zeros(2, bool) if missing == "row" else None
    design = plan(records.schema, target="y", na="drop")
    rows = design.rows(records, where=where, apart=apart, only=only)
    assert rows.X.shape == (0, 1)
    later = design.rows(batch(y=[1.0, 2.0], x=[3.0, 4.0], g=["a", "b"]), where=where, apart=apart)
    X = later.X.toarray() if apart else later.X
    assert X.tolist() == [[3.0, 0.0], [4.0, 1.0]]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.uint64()])
def test_dictionaries_of_all_indices(kind):
    g = pa.DictionaryArray.from_arrays(pa.array([0, 2, 2], kind), pa.array(["a", "b", "c"]))
    records = pa.record_batch({"y": [1.0, 2.0, 3.0], "g": g})
    rows = plan(records.schema, target="y", scan=[records]).rows(records, where=where)
    assert rows.X.tolist() == [[0.0], [1.0], [1.0]]
