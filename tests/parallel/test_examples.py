"""The examples, as they are started and in processes that are there already."""

import os
import subprocess
import sys

from tests.parallel import scripts


def test_torchrun_starts_the_ddp_example(tmp_path):
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(str(scripts.EXAMPLES / "ddp.py"), "--epochs", "1", "--folder", str(tmp_path / "run")),
    ]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "'resumed after': 0, 'steps': 15" in done.stdout
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_fsdp_example_goes_on_where_it_was(pair, tmp_path):
    first = pair.run(scripts.fsdp, tmp_path, 1)[0]
    second = pair.run(scripts.fsdp, tmp_path, 2)[0]
    assert (first["resumed after epoch"], second["resumed after epoch"]) == (0, 1)
    assert second["accuracy"] > 0.5
