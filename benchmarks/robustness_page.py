# ruff: noqa: E501  (lines of Markdown)
"""Write ``docs/robustness.md`` from the raw results of ``robustness.py``.

python benchmarks/robustness_page.py
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from robustness import RESULTS, RIVALS, Rows, better, final, flags, read
from robustness_tasks import RAW_TASKS, TASKS

PAGE = Path(__file__).parent.parent / "docs" / "robustness.md"
HEAD = """# Robustness of the defaults

TANGO with default arguments on 62 small tasks with 3 seeds each: all likelihoods, raw columns, very large
counts and amounts, raw pixels, initial weights times 0.03 to 3, deep ReLU networks, BatchNorm, attention,
LSTM and GRU, embeddings with rare tokens, label noise, 30 samples, batches of 1 to 512, fine-tuning of
networks trained on wrong labels, bfloat16, and accumulation. All optimizers of a seed start from the same
parameters and see the same batches. A third of the tasks (*) was set aside before anything was tuned on
the others.

A run has failed if it raises an exception or ends above 0.98 times its starting loss. It is behind if its
final training loss is above the better of Adam with the rates 1e-3 and 1e-2. The losses are training
losses above a floor that depends on the data alone. Scripts:
`python benchmarks/robustness.py [suite|raw] [--rivals]` and `python benchmarks/robustness_page.py`;
[raw results](../benchmarks/results).

| | failed | behind | tuning tasks | held-out tasks | median of loss / better Adam's |
| --- | --- | --- | --- | --- | --- |
"""
RAW = """
## Raw columns

Breast cancer (30-32-1, Bernoulli) and wine (13-32-3, Categorical) with unscaled columns, batches of 1, 32
and 100, five seeds, 500 steps:

| | failed | behind | median of loss / better Adam's |
| --- | --- | --- | --- |
"""
EVERY = """
## All tasks

Final losses of the three seeds, with default arguments; the start is their mean.

| task | start | TANGO | better Adam |
| --- | --- | --- | --- |
"""
WEAK = """
The default is behind on targets whose scale is both far away and wide (amounts of 10⁴ with little noise,
counts over several orders of magnitude), on the GRU that adds numbers, and on counts with batches of one
sample. `preconditioner="diagonal"` is more often behind, and fails on one task: two convolutions whose
initial weights are multiplied by 0.03 have not left the start after 200 steps for two of three seeds (Adam
fails for one seed).
"""


def own_rows(file: str, name: str) -> Rows:
    """Return the rows of one variant of TANGO in a results file."""
    return {key: row for key, row in read(RESULTS / file).items() if key[2] == name}


def rival_rows(file: str) -> Rows:
    """Return the rows of the rivals in a results file."""
    return {key: row for key, row in read(RESULTS / file).items() if key[2] in RIVALS}


def summary(own: Rows, rivals: Rows, held_out: Mapping[str, bool]) -> list[str]:
    """Return failures, shares that are behind (all, tuning, held out), and the median ratio."""
    rows = own | rivals
    letters = {key: flags(row, rows) for key, row in own.items() if key[0] in held_out}
    failed = sum("E" in found or "S" in found for found in letters.values())
    shares = []
    for kinds in ((False, True), (False,), (True,)):
        chosen = [found for key, found in letters.items() if held_out[key[0]] in kinds]
        behind = sum("B" in found for found in chosen)
        shares.append(f"{100 * behind / len(chosen):.0f}%" if chosen else "–")
    ratios = [
        final(row) / best
        for row in own.values()
        if (best := better(rows, row["task"], row["seed"])) is not None and best > 0
    ]
    return [f"{failed} of {len(letters)}", *shares, f"{statistics.median(ratios):.2f}"]


def main() -> None:
    """Write the page."""
    text, rivals = HEAD, rival_rows("robustness.json")
    held_out = {task.name: task.held_out for task in TASKS}
    for label, file, name in (
        ("TANGO, defaults", "robustness.json", "tango"),
        ('TANGO, `preconditioner="diagonal"`', "robustness_diagonal.json", "tango diagonal"),
        ("version 0.1.0, defaults", "robustness_0.1.0.json", "tango"),
        (
            'version 0.1.0, `preconditioner="kronecker"`',
            "robustness_0.1.0.json",
            "tango kronecker",
        ),
    ):
        cells = summary(own_rows(file, name), rivals, held_out)
        text += f"| {label} | {' | '.join(cells)} |\n"
    text += WEAK + RAW
    raw_rivals = rival_rows("robustness_raw.json")
    raw = {task.name: False for task in RAW_TASKS}
    for label, file in (
        ("TANGO, defaults", "robustness_raw.json"),
        ("version 0.1.0, defaults", "robustness_raw_0.1.0.json"),
    ):
        failed, behind, _, _, ratio = summary(own_rows(file, "tango"), raw_rivals, raw)
        text += f"| {label} | {failed} | {behind} | {ratio} |\n"
    text += EVERY
    own = own_rows("robustness.json", "tango")
    for task in TASKS:
        mine = sorted((r for r in own.values() if r["task"] == task.name), key=lambda r: r["seed"])
        losses = ", ".join(f"{final(row):.3g}" for row in mine)
        adams = ", ".join(f"{better(own | rivals, task.name, r['seed']):.3g}" for r in mine)
        start = statistics.mean(row["start"] for row in mine)
        star = "*" if task.held_out else ""
        text += f"| {task.name}{star} | {start:.3g} | {losses} | {adams} |\n"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
