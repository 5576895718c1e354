"""``tangograd fit`` on a 5 GB CSV file and on Parquet files of the same rows: memory and speed.

The rows (20 numbers of different scales, two categorical columns, a target of 0 and 1) are written
to a folder that is deleted at the end. Then each of these runs as a process of its own: reading the
table alone with tangograd's reader, with pyarrow's own streams, and ``tangograd fit``; the resident
memory of the process and its children is looked at ten times a second. The goals: less than 600 MB
throughout, and at least half the speed of reading alone. Files are first "warm": in the system's
cache for all of them alike, if memory allows, after a fit that is not counted: the first one on a
machine, which compiles its functions for the others, and is reported apart. Then they are
"cold": before each command the system is asked to forget them, so that they come from the disk.
Modules are found as bytecode by all commands, as those of an installed package are.

    python benchmarks/glm_large.py [--size 5.0] [--folder /tmp] [--keep] [--repeats 3]
        [--formats csv,parquet] [--caches warm,cold] [--fit-options "--passes 1"]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from glm_results import FOLDER, Results, Row, machine

RESULTS = FOLDER / "glm_large.json"
KEY = ("format", "cache", "what", "gigabytes", "repeat")
NUMBERS, CHUNK, ROWS_A_FILE = 20, 250_000, 2_000_000
LEVELS = {"region": 12, "product": 40}
TARGET = "bought"
MEMORY_GOAL = 600e6


def truth(seed: int) -> dict[str, np.ndarray]:
    """Coefficients on standardised numbers, and an effect for each level."""
    rng = np.random.default_rng([seed, 1])
    return {
        "numbers": rng.standard_normal(NUMBERS) / math.sqrt(NUMBERS),
        **{name: 0.5 * rng.standard_normal(count) for name, count in LEVELS.items()},
    }


def scales() -> np.ndarray:
    """10⁻² … 10²."""
    return np.logspace(-2, 2, NUMBERS)


def level(name: str, number: int) -> str:
    return f"{name[0]}{number:02}"


def chunk(seed: int, number: int) -> pa.RecordBatch:
    """CHUNK rows, those of this number."""
    rng = np.random.default_rng([seed, 2, number])
    effects, columns = truth(seed), {}
    eta = np.full(CHUNK, -0.5)
    for j, scale in enumerate(scales()):
        decimals = 4 - round(math.log10(scale))
        x = np.round(rng.standard_normal(CHUNK) * scale, decimals)
        eta += x / scale * effects["numbers"][j]
        columns[f"x{j}"] = pa.array(x)
    for name, count in LEVELS.items():
        codes = rng.integers(count, size=CHUNK)
        eta += effects[name][codes]
        labels = pa.array([level(name, k) for k in range(count)])
        columns[name] = labels.take(pa.array(codes))
    y = rng.random(CHUNK) < 1 / (1 + np.exp(-eta))
    columns[TARGET] = pa.array(y.astype(np.int64))
    return pa.record_batch(columns)


def write(folder: Path, gigabytes: float, seed: int) -> None:
    """A CSV file of at least that size, and a folder of Parquet files with the same rows."""
    csv, parquet = folder / "rows.csv", folder / "parquet"
    parquet.mkdir()
    schema = chunk(seed, 0).schema
    rows, number = 0, 0
    writer = None
    with csv.open("wb") as sink, pa_csv.CSVWriter(sink, schema) as lines:
        while sink.tell() < gigabytes * 1e9:
            batch = chunk(seed, number)
            lines.write_batch(batch)
            if rows % ROWS_A_FILE == 0:
                if writer is not None:
                    writer.close()
                writer = pq.ParquetWriter(parquet / f"part{rows // ROWS_A_FILE:03}.parquet", schema)
            writer.write_batch(batch)
            rows, number = rows + len(batch), number + 1
    writer.close()


class Memory(threading.Thread):
    """The resident memory of a process and its children, every 0.1 s until it ends."""

    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.process, self.sizes, self.high_water = process, [0], 0

    def run(self) -> None:
        """Look until the process is gone."""
        while True:
            try:
                family = [self.process, *self.process.children(recursive=True)]
                self.sizes.append(sum(member.memory_info().rss for member in family))
                self.high_water = high_water(self.process.pid) or self.high_water
                if self.process.status() == psutil.STATUS_ZOMBIE:
                    return
            except psutil.NoSuchProcess:
                if not self.process.is_running():
                    return
            time.sleep(0.1)


def high_water(pid: int) -> int:
    """The largest resident memory that Linux has seen of the process, between samples too."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def watched(command: list[str], **environment: str) -> Row:
    """Run it, with more in its environment: seconds, peak memory, and what it printed at last.

    Raises:
        RuntimeError: it failed.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = psutil.Popen(
            command,
            stdout=output,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=inherited | environment,
        )
        memory = Memory(process)
        memory.start()
        code = process.wait()
        seconds = time.perf_counter() - start
        memory.join()
        output.seek(0)
        errors.seek(0)
        if code:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{errors.read()[-3000:]}")
        every = max(1, len(memory.sizes) // 200)
        return {
            "seconds": seconds,
            "peak_rss": max(*memory.sizes, memory.high_water),
            "samples": len(memory.sizes),
            "rss_megabytes": [round(size / 1e6) for size in memory.sizes[1::every]],
            "printed": output.read(),
        }


def read_alone(path: Path, how: str) -> None:
    """Read a table to its end; print the rows and the seconds without starting Python."""
    start = time.perf_counter()
    if how == "reader":
        from tangograd.glm.tables.readers import open_table

        rows = sum(batch.records.num_rows for batch in open_table(path).batches())
    elif path.is_dir():
        files = (pq.ParquetFile(part) for part in files_of(path))
        rows = sum(batch.num_rows for file in files for batch in file.iter_batches())
    else:
        rows = sum(batch.num_rows for batch in pa_csv.open_csv(path))
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start}))


def accuracy(model: Path, seed: int) -> Row:
    """How far the coefficients of the saved model are from the truth, in standard errors.

    The errors of the levels of a category share that of its baseline, and those of the mean of
    their squares may be far from 1 by this alone; so these are of combinations of coefficients
    whose errors are independent, and the mean of their squares is 1 ± √(2/coefficients).
    """
    fitted = _find(json.loads(model.read_text()), {"names", "estimates", "standard_errors"})
    effects, slopes = truth(seed), {}
    for j, scale in enumerate(scales()):
        slopes[f"x{j}"] = effects["numbers"][j] / scale
    intercept = -0.5
    for name, count in LEVELS.items():
        labels = [f"{name}[{level(name, k)}]" for k in range(count)]
        (baseline,) = [k for k, label in enumerate(labels) if label not in fitted["names"]]
        intercept += effects[name][baseline]
        for k in range(count):
            slopes[labels[k]] = effects[name][k] - effects[name][baseline]
    right = np.array([intercept, *(slopes[name] for name in fitted["names"][1:])])
    errors = np.array(fitted["standard_errors"])
    each = (np.array(fitted["estimates"]) - right) / errors
    correlation = np.array(fitted["covariance"]) / np.outer(errors, errors)
    z = np.linalg.solve(np.linalg.cholesky(correlation), each)
    return {
        "coefficients": len(z),
        "mean_z2_each": float(np.mean(each**2)),
        "mean_z2": float(np.mean(z**2)),
        "largest_z": float(np.abs(z).max()),
        "within_1.96": float(np.mean(np.abs(z) < 1.96)),
        "rows_fitted": fitted["rows"],
        "notes": fitted.get("notes"),
    }


def _find(tree: Any, keys: set[str]) -> dict[str, Any]:
    """The first object in a JSON tree with these keys."""
    if isinstance(tree, dict) and keys <= tree.keys():
        return tree
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for part in parts:
        if isinstance(part, dict | list) and (found := _find(part, keys)):
            return found
    return {}


def forget(path: Path) -> None:
    """Have the system drop the files from its cache."""
    for part in files_of(path):
        with part.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def measure(
    path: Path, options: argparse.Namespace, common: Row, results: Results, compiled: str
) -> None:
    """Readings and fits in turn, ``repeats`` times (once from the disk).

    Args:
        path: the table.
        options: of the command line.
        common: what all rows of the results have.
        results: they go there.
        compiled: a folder for compiled functions; as long as it is empty, a fit is the first.
    """
    model, cold = path.parent / "model.json", common["cache"] == "cold"
    size = sum(part.stat().st_size for part in files_of(path))
    script = [sys.executable, __file__, "--read", str(path), "--how"]
    tangograd = [sys.executable, "-c", "from tangograd.cli import main; main()"]
    fit = [*tangograd, "fit", str(path), "--target", TARGET, "--family", "binomial"]
    fit += ["-o", str(model), *shlex.split(options.fit_options)]
    commands = {
        "reading, tangograd's reader": [*script, "reader"],
        "reading, pyarrow's own stream": [*script, "pyarrow"],
        "tangograd fit": fit,
    }
    if not any(Path(compiled).iterdir()):
        first = watched(fit, NUMBA_CACHE_DIR=compiled)
        first.pop("printed")
        results.add([common | {"what": "the first fit", "repeat": 0, "bytes": size} | first])
        print(
            f"{common['format']:14}{'the first fit, which compiles':30}"
            f"{first['seconds']:8.2f} s{'':13}{first['peak_rss'] / 1e6:8.0f} MB",
            flush=True,
        )
    for repeat in range(1 if cold else options.repeats):
        alone = pyarrow = math.nan
        for what, command in commands.items():
            if cold:
                forget(path)
            row = common | {"what": what, "repeat": repeat, "bytes": size}
            row |= watched(command, NUMBA_CACHE_DIR=compiled)
            printed = row.pop("printed")
            row["megabytes_a_second"] = size / 1e6 / row["seconds"]
            if what == "tangograd fit":
                row |= {"options": options.fit_options, "speed_of_reading": alone / row["seconds"]}
                row["speed_of_pyarrow"] = pyarrow / row["seconds"]
                row |= accuracy(model, options.seed)
            else:
                row["seconds_inside"] = json.loads(printed)["seconds"]
            if what == "reading, tangograd's reader":
                alone = row["seconds"]
            elif what == "reading, pyarrow's own stream":
                pyarrow = row["seconds"]
            results.add([row])
            note = ""
            if what == "tangograd fit":
                note = (
                    f"  {row['speed_of_reading']:.2f} of the speed of reading (goal: 0.5),"
                    f" {row['speed_of_pyarrow']:.2f} of pyarrow's;"
                    f" mean z² {row['mean_z2']:.2f}"
                )
            print(
                f"{common['format']:8}{common['cache']:5} {what:30}{row['seconds']:8.2f} s"
                f"{row['megabytes_a_second']:8.0f} MB/s{row['peak_rss'] / 1e6:8.0f} MB{note}",
                flush=True,
            )
            if what == "tangograd fit" and row["peak_rss"] > MEMORY_GOAL:
                print(f"         more than {MEMORY_GOAL / 1e6:.0f} MB of memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=float, default=5.0, help="of the CSV file, in GB")
    parser.add_argument("--folder", type=Path, help="where to make a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the data at the end")
    parser.add_argument("--data", type=Path, help="the folder of a run with --keep, to use again")
    parser.add_argument("--formats", default="csv,parquet")
    parser.add_argument("--caches", default="warm,cold")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit-options", default="", help="more options of tangograd fit")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--how", choices=["reader", "pyarrow"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read_alone(options.read, options.how)
        return
    facts = machine("pyarrow", "psutil") | {"seed": options.seed}
    facts["memory_gigabytes"] = round(psutil.virtual_memory().total / 1e9, 1)
    results = Results(options.results, KEY, facts)
    folder = options.data or Path(tempfile.mkdtemp(dir=options.folder, prefix="tangograd-large-"))
    try:
        if not options.data:
            write(folder, options.size, options.seed)
        csv, parquet = folder / "rows.csv", folder / "parquet"
        rows = sum(pq.read_metadata(part).num_rows for part in files_of(parquet))
        print(f"{rows} rows in {folder}", flush=True)
        for name, path in (("csv", csv), ("parquet", parquet)):
            with tempfile.TemporaryDirectory() as compiled:
                for cache in options.caches.split(","):
                    if name in options.formats.split(","):
                        common = {"format": name, "cache": cache, "gigabytes": options.size}
                        measure(path, options, common | {"rows": rows}, results, compiled)
    finally:
        if not (options.keep or options.data):
            shutil.rmtree(folder)
    print(f"raw results: {options.results}")


if __name__ == "__main__":
    main()
