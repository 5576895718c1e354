"""One pass beside X @ β and beside other programs: seconds, and accuracy beside every time.

``rivals``: logistic regression on 10⁶×50 float64 in memory, features independent and scaled
10⁻³…10³, all in one process on one core. Seconds are those of the fit alone, medians where
repeated; the quick ones (X @ β, TANGO, SGDClassifier) run in turns, 15 rounds, and their ratios are
medians over the rounds; compilation is done before, and reported. The ratio is 1 + (squared Fisher
distance to the maximum-likelihood estimate)/(d/n), of which 1 is maximum likelihood. Vowpal Wabbit
reads its own text format: given are the pass over the text (parsing included) and over the binary
cache that it makes of the text, which is the fairest to it; writing the text is reported, and in
neither. Beside its defaults stands ``--power_t 0.75``, the best of seven settings tried on 5·10⁴×20
independent features (seed 0): a choice in its favour, which TANGO is not given.

``sums``: what the two sums of outer products that standard errors need cost a row, by the compiled
function and by BLAS (two symmetric products of the rows in strips), in turns.

``linear``: seconds of a pass against n·d, and against the non-zeros of CSR, with a picture: a line
for each number of columns, whose intercept is the start (Fisher scoring on the first rows).

    python benchmarks/glm_speed.py [rivals] [sums] [linear] [--rows 1000000] [--columns 50]
        [--without statsmodels,lbfgs] [--plot]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # before NumPy
os.environ.update(NUMBA_NUM_THREADS="1", NUMBA_CACHE_DIR=tempfile.mkdtemp())  # compile anew

import glm_rivals
import numpy as np
from glm_cases import set_buffer, simulate
from glm_families import Array, Logit
from glm_oracle import Matrix, maximum_likelihood, ratio
from glm_results import FOLDER, Results, Row, machine
from glm_rivals import Found, timed
from scipy import sparse
from threadpoolctl import threadpool_limits

from tangograd.glm.numerics.gram import add_gram, padded

RESULTS = FOLDER / "glm_speed.json"
ROUNDS = 15
KEY = ("part", "features", "method", "rows", "columns", "entries")
GRID = [
    (n, d) for n in (50_000, 100_000, 200_000, 500_000, 1_000_000) for d in (10, 20, 50, 100, 200)
]
SPARSE = [
    (n, d, density)
    for n, d, densities in (
        (250_000, 200, (0.01, 0.05, 0.2)),
        (1_000_000, 200, (0.01, 0.03, 0.1, 0.2)),
        (250_000, 1000, (0.01, 0.03, 0.1)),
        (1_000_000, 1000, (0.01, 0.02, 0.04)),
    )
    for density in densities
]


def tango(X: Matrix, y: Array, covariance: str | None) -> Found:
    """One pass with default settings."""
    from tangograd.glm import TangoClassifier

    return glm_rivals.scikit(TangoClassifier(covariance=covariance, random_state=0), X, y)


@contextmanager
def holding(size: int) -> Iterator[None]:
    """Let the estimators hold so many bytes of rows."""
    kept = set_buffer(None)
    set_buffer(size)
    try:
        yield
    finally:
        set_buffer(kept)


def compile_all() -> dict[str, float]:
    """Fit small data in every way that is timed later; the seconds of first and second fits."""
    X, y, _ = simulate(Logit(), "independent", 40_000, 5, seed=1)
    S, z, _ = simulate(Logit(), "sparse", 40_000, 20, seed=1, storage="csr")
    seconds = {}
    with holding(20_000):
        for kind, data in (("dense", (X, y)), ("csr", (S, z))):
            for covariance in (None, "auto"):
                for which in ("first", "next"):
                    start = time.perf_counter()
                    tango(*data, covariance)
                    passed = round(time.perf_counter() - start, 4)
                    seconds[f"{kind}, covariance={covariance}, {which} fit"] = passed
    for data in ((X, y), (S, z)):
        tango(*data, None)
    return seconds


def repeat(times: int, fit: Callable[[], Found]) -> tuple[Array, list[float]]:
    found = [fit() for _ in range(times)]
    return found[-1][0], [seconds for _, seconds in found]


def in_turns(runs: dict[str, Callable[[], Found]]) -> dict[str, tuple[Array, list[float]]]:
    """Run each in every round: the machine's speed drifts, and does so for all of them alike."""
    for run in runs.values():
        run()
    found: dict[str, list[Found]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            found[name].append(run())
    return {name: (each[-1][0], [seconds for _, seconds in each]) for name, each in found.items()}


def product(X: Array, beta: Array) -> Found:
    """The median of three, for it is short."""
    return beta, statistics.median(timed(lambda: X @ beta)[1] for _ in range(3))


def methods(X: Array, y: Array, folder: Path) -> Iterator[tuple[str, Callable[[], Any], str]]:
    """Name, how to run it (coefficients, list of seconds), and a note."""
    d, text = X.shape[1], folder / "data.vw"
    yield 'TANGO, covariance="auto"', lambda: repeat(3, lambda: tango(X, y, "auto")), ""
    _, writing = timed(lambda: glm_rivals.write_vw(text, X, y))
    for settings in ("", "--power_t 0.75"):
        name = f"Vowpal Wabbit {settings}".strip()
        text.with_suffix(".cache").unlink(missing_ok=True)
        note = (
            f"from text, which took {writing:.1f} s to write ({text.stat().st_size / 1e6:.0f} MB)"
        )

        def run(settings: str = settings) -> tuple[Array, list[float]]:
            return repeat(1, lambda: glm_rivals.vowpal_wabbit(text, d, settings))

        yield f"{name}, text", run, note
        yield f"{name}, cache", run, "from its binary cache"
    yield "glum", lambda: repeat(3, lambda: glm_rivals.glum(X, y)), "maximum likelihood"
    yield "LogisticRegression", lambda: repeat(1, lambda: glm_rivals.lbfgs(X, y)), "lbfgs, C=inf"
    yield "statsmodels", lambda: repeat(1, lambda: glm_rivals.statsmodels(X, y)), "GLM, IRLS"


def rivals(options: argparse.Namespace, results: Results) -> None:
    n, d = options.rows, options.columns
    without = [name.strip().lower() for name in options.without.split(",") if name]
    for features in ("independent", "scaled"):
        X, y, _ = simulate(Logit(), features, n, d, options.seed)
        best = maximum_likelihood(X, y, Logit())
        print(f"\n{features}, {n} x {d}\n{'':38}{'seconds':>9}{'to TANGO':>10}{'ratio':>12}")
        common = {"part": "rivals", "features": features, "rows": n, "columns": d, "entries": n * d}
        quick = {
            "X @ β": lambda: product(X, best.theta[1:]),  # noqa: B023
            "TANGO, covariance=None": lambda: tango(X, y, None),  # noqa: B023
            "SGDClassifier": lambda: glm_rivals.sgd(X, y),  # noqa: B023
        }
        turns = in_turns(quick)
        ours = turns["TANGO, covariance=None"][1]

        def record(name: str, found: tuple[Array, list[float]], note: str) -> None:
            theta, seconds = found
            row: Row = common | {  # noqa: B023
                "method": name,
                "seconds": statistics.median(seconds),
                "all_seconds": seconds,
                "ratio": ratio(theta, best, X, Logit()) if len(theta) == d + 1 else None,  # noqa: B023
                "times_product": quotient(seconds, turns["X @ β"][1]),  # noqa: B023
                "times_tango": quotient(seconds, ours),  # noqa: B023
                "note": note,
            }
            results.add([row])
            _print(row)

        for name, found in turns.items():
            record(name, found, "in turns")
        with tempfile.TemporaryDirectory() as folder:
            for name, run, note in methods(X, y, Path(folder)):
                if not any(name.lower().startswith(word) for word in without):
                    record(name, run(), note)
        product_times = quotient(ours, turns["X @ β"][1])
        print(f"TANGO is {product_times:.2f} times X @ β (goal: at most 6)")


def quotient(seconds: list[float], others: list[float]) -> float:
    """How many times as long: the median over rounds, where both were run in turns."""
    if len(seconds) == len(others) == ROUNDS:
        return statistics.median(a / b for a, b in zip(seconds, others, strict=True))
    return statistics.median(seconds) / statistics.median(others)


def _print(row: Row) -> None:
    times = "" if row["times_tango"] is None else f"{row['times_tango']:.2f}"
    accuracy = "" if row["ratio"] is None else f"{row['ratio']:.4g}"
    print(
        f"{row['method']:38}{row['seconds']:9.4f}{times:>10}{accuracy:>12}  {row['note']}",
        flush=True,
    )


def sums(options: argparse.Namespace, results: Results) -> None:
    rng = np.random.default_rng(options.seed)
    for d in (10, 20, 50, 100, 200, 500):
        n = 512
        z, weights = np.zeros((n, padded(d))), rng.uniform(size=n)
        z[:, :d] = rng.standard_normal((n, d))
        total, x = np.zeros((padded(d), padded(d))), np.ascontiguousarray(z[:, :d])
        times = max(1, int(2e8 / (n * d * d)))

        def compiled() -> Found:
            return x, timed(lambda: [add_gram(weights, z, total) for _ in range(2 * times)])[1]  # noqa: B023

        def blas() -> Found:
            return x, timed(lambda: [x.T @ x for _ in range(2 * times)])[1]  # noqa: B023

        turns = in_turns({"compiled": compiled, "BLAS": blas})
        for name, (_, seconds) in turns.items():
            row: Row = {
                "part": "sums",
                "features": "normal",
                "method": name,
                "rows": n,
                "columns": d,
                "entries": n * d,
                "seconds": statistics.median(seconds) / (n * times),
                "times_blas": quotient(seconds, turns["BLAS"][1]),
            }
            results.add([row])
            print(
                f"{d:4} columns, {name:10}{1e9 * row['seconds']:9.1f} ns a row"
                f"{row['times_blas']:7.2f} times BLAS",
                flush=True,
            )


def linear(options: argparse.Namespace, results: Results) -> None:
    buffer = set_buffer(None)

    def record(features: str, X: Matrix, y: Array, entries: int, size: int) -> None:
        _, times = repeat(3, lambda: tango(X, y, None))
        row = {
            "part": "linear",
            "features": features,
            "method": "TANGO, covariance=None",
            "rows": X.shape[0],
            "columns": X.shape[1],
            "entries": entries,
            "streamed": size > buffer,
            "seconds": min(times),
            "all_seconds": times,
        }
        results.add([row])
        print(
            f"{features:8}{X.shape!s:>16}{entries:>12}{'' if row['streamed'] else ' held':6}"
            f"{min(times):9.4f} s{1e9 * min(times) / entries:8.2f} ns an entry",
            flush=True,
        )

    for n, d in GRID:
        if n <= options.rows:
            X, y, _ = simulate(Logit(), "scaled", n, d, options.seed)
            record("scaled", X, y, n * d, X.nbytes)
    for n, d, density in SPARSE:
        if n <= options.rows:
            S, y = zero_one(n, d, density, options.seed)
            record("csr", S, y, S.nnz, 12 * S.nnz)
    plot(results.rows)


def zero_one(n: int, d: int, density: float, seed: int) -> tuple[sparse.csr_matrix, Array]:
    """Columns of 0 and 1 at this density, and a target of either class."""
    rng = np.random.default_rng([seed, n, d])
    parts = []
    for start in range(0, n, 8192):
        chosen = rng.random((min(8192, n - start), d), np.float32) < density
        parts.append(sparse.csr_matrix(chosen, dtype=np.float64))
    S = sparse.vstack(parts, format="csr")
    theta = rng.standard_normal(d) / np.sqrt(d * density)
    return S, Logit().sample(rng, (S @ theta)[:, None])


def plot(rows: list[Row]) -> None:
    """Seconds of streamed fits against entries, with a line for each number of columns."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = [row for row in rows if row["part"] == "linear"]
    figure, panels = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axes, features, label in zip(
        panels, ("scaled", "csr"), ("dense: rows · columns", "CSR: non-zeros"), strict=True
    ):
        some = [row for row in rows if row["features"] == features and row["streamed"]]
        groups: dict[tuple[int, ...], list[Row]] = {}
        for row in some:  # of sparse rows, the start depends on both; the pass on entries alone
            group = (row["columns"], row["rows"]) if features == "csr" else (row["columns"],)
            groups.setdefault(group, []).append(row)
        for number, (group, of) in enumerate(sorted(groups.items())):
            x, t = (np.array([row[key] for row in of]) for key in ("entries", "seconds"))
            axes.plot(x, t, "o", color=f"C{number}")
            told = f"{group[0]} columns" + "".join(f", {rows / 1e6:g}M rows" for rows in group[1:])
            if len(of) > 2:
                slope, start = np.polyfit(x, t, 1)
                told += f": {start:.2f} s and {1e9 * slope:.1f} ns an entry"
                axes.plot(x, start + slope * x, color=f"C{number}", lw=1)
            axes.plot([], [], "o-", color=f"C{number}", label=told)
            print(f"{features}, {told}")
        axes.set_xlim(0)
        axes.set_xlabel(label)
        axes.set_ylabel("seconds of a pass")
        axes.legend(fontsize="x-small", loc="upper left")
        axes.set_ylim(0, 1.35 * max(row["seconds"] for row in some))
        axes.grid(alpha=0.3)
    path = RESULTS.with_suffix(".png")
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=["rivals", "sums", "linear", []], default=[])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", default="", help="beginnings of the names of rivals")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", action="store_true", help="only draw the picture anew")
    options = parser.parse_args()
    facts = machine("glum", "statsmodels", "vowpalwabbit", "threadpoolctl")
    facts |= {"threads": 1, "seed": options.seed, "run": time.strftime("%Y-%m-%d %H:%M")}
    results = Results(options.results, KEY, facts)
    if options.plot:
        plot(results.rows)
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for everyone
    with threadpool_limits(1):
        facts["compilation_seconds"] = compile_all()
        print(facts["compilation_seconds"])
        for part in options.parts or ["rivals", "sums", "linear"]:
            {"rivals": rivals, "sums": sums, "linear": linear}[part](options, results)
    shutil.rmtree(os.environ["NUMBA_CACHE_DIR"])
    print(f"raw results: {options.results}")


if __name__ == "__main__":
    main()
