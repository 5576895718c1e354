"""A process that dies ends the run, and the run goes on from its last checkpoint."""

import time

import torch

from tests.parallel import scripts
from tests.parallel.fleet import TIMEOUT, Fleet


def test_a_killed_process_costs_the_steps_since_the_last_checkpoint(pair, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir(), whole.mkdir()
    doomed = Fleet(2, tmp_path)
    doomed.run(scripts.ready)
    started = time.monotonic()
    (error, _), (other, _) = doomed.try_to_run(scripts.ddp, killed, kill_after=7)
    assert time.monotonic() - started < TIMEOUT
    doomed.stop()
    assert other == "has died"
    assert "RuntimeError" in error
    assert "onnection" in error  # closed by peer, or reset
    assert [path.name for path in killed.iterdir()] == ["checkpoint.pt"]

    uninterrupted, _ = pair.run(scripts.ddp, whole)[0]
    for theta, summary in pair.run(scripts.ddp, killed):
        assert summary["resumed after"] == 6
        assert all(map(torch.equal, theta, uninterrupted))
