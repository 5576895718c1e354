"""Diagnostics as TensorBoard's scalars."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from tangograd import TANGO, Categorical

from ..cases import mlp
from ..test_optimizer import batches, train


@pytest.mark.parametrize("options", [{}, {"gamma": 0.1, "preconditioner": None}])
def test_one_line_a_step(options, tmp_path):
    model = mlp()
    optimizer, likelihood, known = TANGO(model.parameters(), **options), Categorical(), []
    with SummaryWriter(tmp_path) as writer:
        for step, batch in enumerate(batches(4)):
            train(model, optimizer, likelihood, [batch])
            for name, value in optimizer.diagnostics().items():
                writer.add_scalar(f"tango/{name}", value, step)
            known.append(optimizer.diagnostics())
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"tango/{name}" for name in known[0]}
    for name in known[0]:
        found = [event.value for event in events.Scalars(f"tango/{name}")]
        assert found == pytest.approx([row[name] for row in known], rel=1e-6, nan_ok=True)
