"""What a TANGO step costs: time as a ratio to SGD with momentum, and the size of its state.

Both optimizers train the same model on the same batch. Blocks of ten steps alternate, so that a
busy machine slows both alike; the ratio of each pair of neighbouring blocks is one observation, and
the median is reported with the quartiles.

    python benchmarks/step_cost.py [--pairs 30] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tangograd import TANGO, Categorical
from tangograd.engines import Site
from tangograd.engines.dual import Dual

RESULTS = Path(__file__).parent / "results" / "step_cost.json"
BLOCK, REPEATS = 10, 5


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


CASES = {
    "MLP 784-512-512-10, B=128": (mlp, (128, 784), 1.8),
    "conv 16-32, B=64": (conv, (64, 1, 28, 28), 1.7),
}


def sgd_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def tango_step(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, gamma: float | str, lean: bool
) -> tuple[TANGO, Callable[[], None]]:
    optimizer, likelihood = (
        TANGO(model.parameters(), lr=0.1, gamma=gamma, preconditioner=None),
        Categorical(),
    )
    optimizer._blocks.engine.select(Site(model), Dual(graph_free=lean))

    def step() -> None:
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()

    return optimizer, step


def seconds(step: Callable[[], None]) -> float:
    """Of one step, as the mean over a block."""
    start = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return (time.perf_counter() - start) / BLOCK


def measure(name: str, pairs: int, seed: int) -> list[dict[str, object]]:
    make, shape, target = CASES[name]
    rows: list[dict[str, object]] = []
    for gamma, lean in ((0.01, True), (0.01, False), ("max", True)):
        times, medians = [], []
        for repeat in range(REPEATS):  # new models: where their memory lies makes a difference
            torch.manual_seed(seed + repeat)
            x, y = torch.randn(shape), torch.randint(10, (shape[0],))
            sgd = sgd_step(make(), x, y)
            model = make()
            optimizer, tango = tango_step(model, x, y, gamma, lean)
            for _ in range(30):  # past the first steps, which look at γ more closely
                sgd()
                tango()
            pair = [(seconds(sgd), seconds(tango)) for _ in range(pairs)]
            medians.append(round(statistics.median(b / a for a, b in pair), 3))
            times += pair
        ratios = [b / a for a, b in times]
        quartiles = statistics.quantiles(ratios, n=4)
        held = sum(v.numel() for state in optimizer.state.values() for v in state.values())
        rows.append(
            {
                "model": name,
                "gamma": gamma,
                "lean": lean,
                "ratio": round(quartiles[1], 3),
                "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
                "ratio_of_means": round(sum(b for _, b in times) / sum(a for a, _ in times), 3),
                "target": target if gamma != "max" and lean else None,
                "sgd_ms": round(1e3 * statistics.median(a for a, _ in times), 2),
                "state_per_parameter": held / sum(p.numel() for p in model.parameters()),
                "medians_of_repeats": medians,
                "n": f"{REPEATS} repeats of {pairs} pairs of blocks of {BLOCK} steps",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=30, help="alternating blocks of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'model':28}{'gamma':>7}{'lean':>9}{'ratio':>8}  quartiles    state/param  target")
    for name in CASES:
        for row in measure(name, options.pairs, options.seed):
            rows.append(row)
            low, high = row["quartiles"]  # type: ignore[misc]
            print(
                f"{name:28}{row['gamma']!s:>7}{row['lean']!s:>9}{row['ratio']:8.2f}"
                f"  {low:.2f} - {high:.2f}{row['state_per_parameter']:13.1f}"
                f"{row['target'] or '-'!s:>8}"
            )
    RESULTS.parent.mkdir(exist_ok=True)
    result = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.machine(),
        "threads": 1,
        "seed": options.seed,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(f"raw results: {RESULTS}")


if __name__ == "__main__":
    main()
