"""How often nominal 95% intervals hold the true coefficient: simulated data sets of every family.

Two settings: ``held`` (1000 rows of 5 columns, which the estimators hold in memory and fit to
convergence) and ``streamed`` (20,000 rows of 10 columns, of which they may hold 1000). Intervals
are estimate ± 1.96 standard errors, by the Fisher matrix ("model") or the sandwich ("robust"); the
share that holds the truth is pooled over coefficients, intercepts included. The goal: 93-97%.

    python benchmarks/glm_coverage.py [--datasets 2000] [--families "poisson,gamma"]
        [--settings held,streamed] [--features independent] [--jobs 2] [--again]
    python benchmarks/glm_coverage.py --summary
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # before NumPy

import numpy as np
from glm_cases import FAMILIES, FEATURES, Fit, set_buffer, simulate, simulated, tango
from glm_results import FOLDER, Results, Row, machine

RESULTS = FOLDER / "glm_coverage.json"
KEY = ("family", "setting", "features", "first")
CHUNK = 100  # data sets a task
QUANTILE = 1.959963984540054


@dataclass(frozen=True)
class Setting:
    """Sizes of the data, and the bytes of rows that estimators may hold (None: their default)."""

    rows: int
    columns: int
    buffer: int | None


SETTINGS = {
    "held": Setting(1000, 5, None),
    "streamed": Setting(20_000, 10, 1000 * 10 * 8),
}


def measure(
    family: str, setting: str, features: str, first: int, count: int, fit: Fit = tango
) -> Row:
    """Data sets of the seeds first … first + count - 1, as one row of sums by coefficient."""
    size = SETTINGS[setting]
    case = simulated(family, features, size.rows, size.columns)
    errors: dict[str, list[np.ndarray]] = {"model": [], "robust": []}
    streamed, excess, misses = 0, [], []
    start = time.perf_counter()
    for seed in range(first, first + count):
        X, y, truth = simulate(case.family, features, size.rows, size.columns, seed)
        fitted = fit(case, X, y, seed=seed)
        streamed += not fitted.converged
        excess.append(fitted.excess)
        misses.append(fitted.estimates - truth)
        for kind, found in (("model", fitted.standard_errors), ("robust", fitted.robust_errors)):
            errors[kind].append(misses[-1] / found)
    row: Row = {
        "family": family,
        "setting": setting,
        "features": features,
        "first": first,
        "datasets": count,
        "seeds": [first, first + count - 1],
        "streamed": streamed,
        "coefficients": len(misses[0]),
        "excess_claimed": float(np.mean(excess)),
        "seconds": round(time.perf_counter() - start, 2),
    }
    for kind in ("model", "robust"):
        z = np.array(errors[kind])
        covered = np.abs(z) <= QUANTILE
        row |= {
            f"{kind}_covered": covered.sum(0).tolist(),
            f"{kind}_z2": np.round((z**2).mean(0), 4).tolist(),
            # for the error of the share: coefficients of one data set are not independent
            f"{kind}_square_of_datasets": float((covered.sum(1) ** 2).sum()),
        }
    return row


def run(options: argparse.Namespace, results: Results) -> None:
    families, settings = options.families.split(","), options.settings.split(",")
    starts = range(0, options.datasets, CHUNK)
    for setting in settings:
        tasks = [
            (family, setting, options.features, first, min(CHUNK, options.datasets - first))
            for first in starts
            for family in families
        ]
        tasks = [task for task in tasks if options.again or not _done(task, results)]
        with ProcessPoolExecutor(
            options.jobs,
            multiprocessing.get_context("spawn"),
            initializer=set_buffer,
            initargs=(SETTINGS[setting].buffer,),
        ) as pool:
            running = {pool.submit(measure, *task): task for task in tasks}
            for number, future in enumerate(as_completed(running), 1):
                family, *_, first, count = running[future]
                row = future.result()
                results.add([row])
                shares = [
                    sum(row[f"{kind}_covered"]) / (count * row["coefficients"])
                    for kind in ("model", "robust")
                ]
                print(
                    f"{number:4}/{len(tasks)} {setting:9}{family:18} {first:5}+{count:<4}"
                    f" model {shares[0]:.3f} robust {shares[1]:.3f}  {row['seconds']:6.1f} s",
                    flush=True,
                )


def _done(task: tuple[str, str, str, int, int], results: Results) -> bool:
    row = dict(zip(KEY, task[:4], strict=True))
    return row in results and results.row(row)["datasets"] >= task[4]


def summary(rows: list[Row]) -> None:
    """Shares with their own standard errors (data sets taken as independent, not coefficients)."""
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["setting"], row["features"], row["family"]].append(row)
    print(
        f"{'setting':10}{'features':13}{'family':19}{'sets':>6}{'streamed':>9}"
        f"{'model':>15}{'lowest':>8}{'robust':>15}{'lowest':>8}{'z² model':>9}"
    )
    for (setting, features, family), some in sorted(groups.items()):
        sets, p = sum(row["datasets"] for row in some), some[0]["coefficients"]
        text = ""
        for kind in ("model", "robust"):
            covered = np.sum([row[f"{kind}_covered"] for row in some], 0)
            share = covered.sum() / (sets * p)
            square = sum(row[f"{kind}_square_of_datasets"] for row in some) / (sets * p**2)
            error = np.sqrt(max(square - share**2, 0) / sets)
            text += f"{100 * share:8.2f} ± {100 * error:4.2f}{100 * covered.min() / sets:8.2f}"
        z2 = sum(np.mean(row["model_z2"]) * row["datasets"] for row in some) / sets
        streamed = sum(row["streamed"] for row in some)
        print(f"{setting:10}{features:13}{family:19}{sets:6}{streamed:9}{text}{z2:9.3f}")


def main() -> None:
    names = [name for name in FAMILIES if name not in ("probit", "cloglog", "multinomial5")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--datasets", type=int, default=2000, help="of each family and setting")
    parser.add_argument("--families", default=",".join(names), help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--features", default="independent", choices=FEATURES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true", help="of the results that are there")
    options = parser.parse_args()
    settings = {name: asdict(setting) for name, setting in SETTINGS.items()}
    results = Results(options.results, KEY, machine() | {"threads": 1, "settings": settings})
    if not options.summary:
        run(options, results)
        print(f"raw results: {options.results}")
    summary(results.rows)


if __name__ == "__main__":
    main()
