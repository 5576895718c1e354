"""TANGO with default arguments on many small tasks, beside Adam and AdamW.

The tasks are those of ``robustness_tasks.py``. All optimizers of a seed start from the same
parameters and see the same batches in the same order. Adam and AdamW have learning rates 1e-3 and
1e-2 and PyTorch's defaults otherwise.

The reported loss is the mean log-loss over at most 1000 training samples, the same for all
optimizers, minus a floor that depends on the data alone (see ``robustness_data.py``). It is
computed in one batch, in train mode, and buffers are restored: BatchNorm thus uses the statistics
of the samples on which the loss is computed. There are 20 checkpoints; the final loss is the mean
over the last three.

Flags of a run of TANGO:

* E: an exception was raised;
* S: stuck, the final loss is above 0.98 × the loss at the start (or not finite);
* B: behind, the final loss is above the better of Adam(1e-3) and Adam(1e-2);
* L: late, Adam(1e-3) has that loss (mean over three checkpoints) in half the steps.

A run with an exception counts as behind and late, too. Losses of Adam and AdamW are kept in
``results/robustness.json`` and computed again only with ``--rivals``. The mode ``raw`` trains on
raw breast cancer and wine data with batches of 1, 32 and 100, for 500 steps and five seeds.

    python benchmarks/robustness.py [suite|raw] [--rivals] [--only REGEX] [--tuning|--held-out]
        [--seeds 3] [--jobs 2] [--preconditioner NAME] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import sklearn
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table
from robustness_tasks import RAW_TASKS, TASKS, Problem, Task
from torch import Tensor

import tangograd

RESULTS = Path(__file__).parent / "results"
RIVALS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam 1e-3": lambda parameters: torch.optim.Adam(parameters, 1e-3),
    "adam 1e-2": lambda parameters: torch.optim.Adam(parameters, 1e-2),
    "adamw 1e-3": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    "adamw 1e-2": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
}
CHECKPOINTS, LAST = 20, 3
STUCK = 0.98

Row = dict[str, Any]
Rows = dict[tuple[str, int, str], Row]


# ------------------------------------------------------------------------------------------- a run


def batches(rows: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each batch: epochs in random order, without incomplete batches."""
    generator = torch.Generator().manual_seed(seed)
    batch = min(batch, rows)
    while True:
        order = torch.randperm(rows, generator=generator)
        yield from (part for part in order.split(batch) if len(part) == batch)


@torch.no_grad()
def reported_loss(task: Task, problem: Problem) -> float:
    """Return the mean loss above the floor on the evaluated samples."""
    x, y = problem.x[: task.evaluated], problem.y[: task.evaluated]
    buffers = [(b, b.clone()) for b in problem.model.buffers()]
    with task.precision():
        outputs = problem.model(x)
    for buffer, before in buffers:
        buffer.copy_(before)
    targets = y.double() if y.is_floating_point() else y
    return float(task.family.excess(outputs.double(), targets).sum(-1).mean())


def train(task: Task, problem: Problem, optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
    """Take one step on a batch, accumulated over its micro-batches."""
    optimizer.zero_grad()
    for part in rows.chunk(task.micro_batches):
        is_tango = isinstance(optimizer, tangograd.TANGO)
        block = optimizer.tangents(problem.model) if is_tango else nullcontext()
        with block, task.precision():
            loss = problem.likelihood(problem.model(problem.x[part]), problem.y[part])
        (loss * (len(part) / len(rows))).backward()
    optimizer.step()


def run(task: Task, seed: int, name: str) -> Row:
    """Train and return the loss at the start, at the checkpoints and at the end."""
    began = time.process_time()
    problem = task.build(seed)
    row: Row = {"task": task.name, "seed": seed, "optimizer": name}
    row |= {"n": len(problem.x), "batch": task.batch, "steps": task.steps}
    row["start"] = reported_loss(task, problem)
    curve: list[float] = []
    order = batches(len(problem.x), task.batch, seed)
    error, k = None, 0
    try:
        optimizer = optimizer_named(name, problem)
        for k in range(1, task.steps + 1):
            train(task, problem, optimizer, next(order))
            if k % (task.steps // CHECKPOINTS) == 0:
                curve.append(reported_loss(task, problem))
    except Exception as exception:  # any failure is a result
        error = f"{type(exception).__name__} in step {k}: {exception}"
    row["curve"] = [float(f"{loss:.6g}") if math.isfinite(loss) else None for loss in curve]
    return row | {"error": error, "seconds": round(time.process_time() - began, 2)}


def optimizer_named(name: str, problem: Problem) -> torch.optim.Optimizer:
    """Return a rival, or TANGO with the preconditioner that its name says."""
    if name in RIVALS:
        return RIVALS[name](problem.model.parameters())
    _, _, preconditioner = name.partition(" ")
    options = {"preconditioner": preconditioner} if preconditioner else {}
    return tangograd.TANGO(problem.model.parameters(), **options)


def job(mode: str, task: str, seed: int, name: str) -> Row:
    """Run in a process of its own, with one thread."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return run(next(t for t in MODES[mode] if t.name == task), seed, name)


MODES = {"suite": TASKS, "raw": RAW_TASKS}


# --------------------------------------------------------------------------------------- its flags


def mean_until(row: Row, checkpoint: int) -> float:
    """Return the mean loss of the last three checkpoints up to this one; infinity if it failed."""
    window = row["curve"][max(checkpoint - LAST, 0) : checkpoint]
    if len(row["curve"]) < checkpoint or None in window:
        return math.inf
    return statistics.mean(window)


def final(row: Row) -> float:
    """Return the final loss, infinite if there is none."""
    return mean_until(row, CHECKPOINTS)


def better(rows: Rows, task: str, seed: int, rival: str = "adam") -> float | None:
    """Return the smaller final loss of a rival with rates 1e-3 and 1e-2, if it was run."""
    keys = [(task, seed, f"{rival} {rate}") for rate in ("1e-3", "1e-2")]
    return min(final(rows[key]) for key in keys) if all(key in rows for key in keys) else None


def flags(row: Row, rows: Rows) -> str:
    """Return the letters that apply to a run of TANGO."""
    loss, found = final(row), ""
    if row["error"]:
        found += "E"
    elif not loss <= STUCK * row["start"]:
        found += "S"
    best = better(rows, row["task"], row["seed"])
    if best is None:
        return found
    if row["error"] or loss > best:
        found += "B"
    slow = rows[row["task"], row["seed"], "adam 1e-3"]
    middle = range(LAST, CHECKPOINTS // 2 + 1)
    if row["error"] or any(mean_until(slow, k) <= loss for k in middle):
        found += "L"
    return found


def totals(selected: list[Row], rows: Rows) -> list[str]:
    """Return the number of runs, of each flag, and the typical ratio to the better Adam."""
    letters = [flags(row, rows) for row in selected]
    n = len(selected)
    counts = [sum(letter in found for found in letters) for letter in "ESBL"]
    ratios = []
    for row in selected:
        best = better(rows, row["task"], row["seed"])
        if best is not None and best > 0:
            ratios.append(final(row) / best)
    shares = [f"{count} ({100 * count / n:.0f}%)" for count in counts]
    if not ratios:  # without rivals
        return [str(n), *shares[:2], "–", "–", "–"]
    return [str(n), *shares, f"{statistics.median(ratios):.2f}"]


def show(console: Console, tasks: list[Task], name: str, rows: Rows) -> None:
    """Print a line for each task, then the totals of the tuning and of the held-out tasks."""
    table = Table(title=f"{name}: loss above the floor; * marks tasks that are held out")
    table.add_column("task", no_wrap=True)
    for title in ("start", "TANGO", "better Adam", "better AdamW", "flags", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    own = [row for (_, _, optimizer), row in rows.items() if optimizer == name]
    for task in tasks:
        mine = sorted((r for r in own if r["task"] == task.name), key=lambda r: r["seed"])
        if not mine:
            continue
        rivals = [
            "  ".join(
                "–" if loss is None else f"{loss:.3g}"
                for loss in (better(rows, task.name, row["seed"], rival) for row in mine)
            )
            for rival in ("adam", "adamw")
        ]
        table.add_row(
            task.name + ("*" if task.held_out else ""),
            f"{statistics.mean(row['start'] for row in mine):.3g}",
            "  ".join(f"{final(row):.3g}" for row in mine),
            *rivals,
            " ".join(flags(row, rows) or "·" for row in mine),
            f"{statistics.mean(row['seconds'] for row in mine):.1f}",
        )
    console.print(table)
    summary = Table("tasks", "runs", "E", "S", "B", "L", "median TANGO / better Adam")
    for title, chosen in (("tuning", [False]), ("held out", [True]), ("all", [False, True])):
        names = {task.name for task in tasks if task.held_out in chosen}
        selected = [row for row in own if row["task"] in names]
        if selected:
            summary.add_row(title, *totals(selected, rows))
    console.print(summary)
    for row in own:
        if row["error"]:
            console.print(f"{row['task']}, seed {row['seed']}: {row['error']}", markup=False)


# ------------------------------------------------------------------------------------- all of them


def read(path: Path) -> Rows:
    """Return the rows of a results file, if there is one."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {(row["task"], row["seed"], row["optimizer"]): row for row in rows}


def write(path: Path, rows: Rows) -> None:
    """Write rows, one a line, with the versions of the libraries."""
    versions = {
        "tangograd": tangograd.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "threads": 1,
        "seeds": sorted({seed for _, seed, _ in rows}),
    }
    head = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in versions.items())
    lines = ",\n".join("  " + json.dumps(rows[key]) for key in sorted(rows))
    path.write_text(f'{{\n{head} "rows": [\n{lines}\n ]\n}}\n')


def compute(mode: str, keys: list[tuple[str, int, str]], jobs: int, console: Console) -> Rows:
    """Run all of these in processes, with a progress bar."""
    found: Rows = {}
    spawn = multiprocessing.get_context("spawn")
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar, ProcessPoolExecutor(jobs, spawn) as pool:
        line = bar.add_task(mode, total=len(keys))
        for future in as_completed([pool.submit(job, mode, *key) for key in keys]):
            row = future.result()
            found[row["task"], row["seed"], row["optimizer"]] = row
            bar.update(line, advance=1, description=f"{row['task'][:30]:30}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mode", nargs="?", choices=list(MODES), default="suite")
    parser.add_argument("--rivals", action="store_true", help="run Adam and AdamW, too")
    parser.add_argument("--preconditioner", help="TANGO's, instead of the default")
    parser.add_argument("--only", default="", help="regular expression that task names match")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--tuning", action="store_true", help="only tasks that are not held out")
    part.add_argument("--held-out", action="store_true", help="only tasks that are held out")
    parser.add_argument("--seeds", type=int, help="number of seeds (3, raw: 5)")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument("--output", type=Path, help="file for the results of TANGO")
    options = parser.parse_args()

    rivals_path = RESULTS / (
        "robustness.json" if options.mode == "suite" else "robustness_raw.json"
    )
    output = options.output or rivals_path
    seeds = range(options.seeds or (3 if options.mode == "suite" else 5))
    tasks = [
        task
        for task in MODES[options.mode]
        if re.search(options.only, task.name)
        and not (options.tuning and task.held_out)
        and not (options.held_out and not task.held_out)
    ]
    own = f"tango {options.preconditioner}" if options.preconditioner else "tango"
    names = [own, *(RIVALS if options.rivals else ())]
    console = Console(width=max(Console().width, 190))
    keys = [(task.name, seed, name) for task in tasks for seed in seeds for name in names]
    found = compute(options.mode, keys, options.jobs, console)

    known = {task.name for task in MODES[options.mode]}
    RESULTS.mkdir(exist_ok=True)
    for path in {rivals_path, output}:
        kept = {key: row for key, row in read(path).items() if key[0] in known}
        ours = {
            key: row
            for key, row in found.items()
            if path == (rivals_path if key[2] in RIVALS else output)
        }
        if ours:
            write(path, kept | ours)
    rivals = {key: row for key, row in read(rivals_path).items() if key[2] in RIVALS}
    shown = rivals | found
    show(console, tasks, own, shown)
    stale = {
        task
        for (task, seed, _), row in found.items()
        for name in RIVALS
        if (task, seed, name) in rivals
        and not math.isclose(rivals[task, seed, name]["start"], row["start"], rel_tol=1e-4)
    }
    if stale:
        console.print(f"other start than the rivals, run them again (--rivals): {sorted(stale)}")
    console.print(f"raw results: {output}")


if __name__ == "__main__":
    main()
