"""What waits for its turn to be held out keeps little in memory."""

import weakref

import numpy as np
import pyarrow as pa

from tangograd.glm.commands.holdout import Reservoir
from tangograd.glm.commands.inference import Target
from tangograd.glm.commands.preparation import Preparation
from tangograd.glm.designs.design import plan
from tangograd.glm.families import family
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
