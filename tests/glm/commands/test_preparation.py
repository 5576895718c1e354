"""What waits for its turn to be held out keeps little in memory."""

import weakref

import numpy as np
import pyarrow as pa
import pytest

from tangograd.glm.commands.holdout import Draw, Reservoir
from tangograd.glm.commands.inference import Target
from tangograd.glm.commands.preparation import Preparation
from tangograd.glm.designs.design import plan
from tangograd.glm.errors import DataError
from tangograd.glm.families import by_name as family
from tangograd.glm.tables.tables import Batch


def batches(count, rows):
    rng = np.random.default_rng(0)
    for number in range(count):
        records = pa.record_batch({"x": rng.normal(size=rows), "y": rng.normal(size=rows)})
        yield Batch(records, "a.csv", number * rows, 0, lambda i: f"line {i}")


def test_rows_held_out_do_not_keep_their_batches():
    """A reservoir that is full draws ever fewer rows, each with the place that it is from."""
    reservoir = Reservoir(0.5)
    reservoir.limit = 0.01
    schema = pa.schema([("x", pa.float64()), ("y", pa.float64())])
    design = plan(schema, target="y", scan=[])
    prepare = Preparation(design, Target("y", family("gaussian")), 0.5, 0, reservoir)
    read, held = [], 0
    for batch in batches(100, 1000):
        read.append(weakref.ref(batch))
        for piece in prepare(batch):
            held += 0 if piece.held is None else len(piece.held.rows)
        del batch, piece
        assert not any(each() is not None for each in read)
    rest = prepare.rest()
    assert 800 < held + len(rest.rows) < 1200


#: what may be wrong with a row: a column, its value, and what is said of it
FAULTS = {
    "missing": ("x", np.nan, "column 'x' is missing"),
    "infinite": ("x", np.inf, "column 'x' is infinite"),
    "target": ("y", -1.0, "must be 0 or positive, but it is -1"),
    "no target": ("y", np.nan, r"column 'y'( \(the target\))? is missing"),
    "weight": ("w", -1.0, "the weight 'w' is -1"),
    "no weight": ("w", np.nan, "the weight 'w' is nan"),
    "exposure": ("e", 0.0, "the exposure 'e' is 0"),
    "no exposure": ("e", np.nan, r"column 'e'( \(the exposure\))? is missing"),
    "level": ("name", "new", "'new' is not a level of column 'name'"),
}


@pytest.mark.parametrize("second", FAULTS)
@pytest.mark.parametrize("first", FAULTS)
@pytest.mark.parametrize("held", [(), (0,), (1,), (0, 1)], ids=str)
def test_the_first_row_that_is_wrong_is_named(first, second, held):
    """Whatever is wrong, in whichever column, and whether or not the rows are held out."""
    rows, learned = 300, Draw(0).next(300) >= 0.2
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.normal(size=rows),
        "y": rng.poisson(1.0, rows).astype(float),
        "w": np.ones(rows),
        "e": np.ones(rows),
        "name": np.array(["a", "b"] * (rows // 2), object),
    }
    wrong, start = [], 100
    for number, fault in enumerate((first, second)):
        row = start + int(np.argmin(learned[start:] == (number in held)))
        assert learned[row] == (number not in held)
        start = row + 3
        column, value, words = FAULTS[fault]
        columns[column][row] = value
        if fault != "level" or learned[row]:  # rows held out may have any
            wrong.append(rf"{words}.*line {row}\b|line {row}: {words}")
    records = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    design = plan(
        records.schema, target="y", weights="w", exposure="e", levels={"name": ["a", "b"]}
    )
    prepare = Preparation(design, Target("y", family("poisson")), 0.2, 0, Reservoir(0.2))

    def prepared():
        list(prepare(Batch(records, "a.csv", 0, 0, lambda i: f"line {i}")))
        prepare.rest()

    if not wrong:
        prepared()
        return
    with pytest.raises(DataError, match=wrong[0]):
        prepared()
