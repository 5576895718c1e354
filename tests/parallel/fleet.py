"""Real processes that run one function after another, so that they are started only once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
import warnings
from datetime import timedelta

TIMEOUT = 30.0


class Fleet:
    """``size`` processes joined by gloo on the loopback device."""

    def __init__(self, size, folder):
        self.size, self.folder, self.starts = size, folder, 0
        self.pipes, self.processes = [], []

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.starts += 1
        meeting = self.folder / f"rendezvous-{self.starts}"
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.size, str(meeting), theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function, *args, **kwargs):
        """``function(*args, **kwargs)`` in every process; results in the order of the ranks."""
        answers = self.try_to_run(function, *args, **kwargs)
        errors = [f"rank {rank}: {error}" for rank, (error, _) in enumerate(answers) if error]
        if errors:
            self.stop()  # they may be out of step
            raise AssertionError("\n".join(errors))
        return [result for _, result in answers]

    def try_to_run(self, function, *args, **kwargs):
        """``(error, result)`` of each process."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps((function, args, kwargs)))
        return [self._answer(pipe) for pipe in self.pipes]

    def _answer(self, pipe):
        if not pipe.poll(3 * TIMEOUT):
            return "does not answer", None
        try:
            return pickle.loads(pipe.recv_bytes())
        except EOFError:
            return "has died", None

    def stop(self):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self.pipes, self.processes = [], []


def _serve(rank, size, meeting, pipe):
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    while True:
        try:
            function, args, kwargs = pickle.loads(pipe.recv_bytes())
        except EOFError:
            break
        try:
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                answer = (None, function(*args, **kwargs))
        except Exception:
            answer = (traceback.format_exc(), None)
        pipe.send_bytes(pickle.dumps(answer))
    dist.destroy_process_group()
