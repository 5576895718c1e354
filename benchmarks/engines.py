"""What a TANGO step costs with each tangent engine: time and peak memory as ratios to SGD.

Both train the same model on the same batch, on one thread. Blocks of steps of SGD (with momentum:
forward, backward, step) and of TANGO take turns, so that a machine whose speed drifts slows both
alike; the ratio of a pair of neighbouring blocks is one observation, and the median over the rounds
is reported with the quartiles. SGD is eager throughout. γ is a number and there is no
preconditioner, but for the rows "defaults", which are ``TANGO(parameters)`` and where an
observation is a whole period of 40 steps, with both kinds of refresh. The first steps, which look
at γ more closely, are left out. Tangents of linear layers are multiplied by oneDNN, which on some
processors is quicker than MKL, torch's choice for SGD; the rows "auto, no oneDNN" are without it.

Peak memory is that of tensors, exactly: the profiler reports every allocation and deallocation of
torch's CPU allocator, and the largest running sum over a step is the peak above what lived before
it (parameters, optimizer state, batch; gradients are None then, and count). In rows "defaults" it
is the largest of an ordinary step and the two kinds of refresh (and a little too high there: what a
refresh frees of older state is not known to the profiler).

Every model has a process of its own. An engine that cannot do a model is a row with its error.

    python benchmarks/engines.py [--models mlp,conv] [--engines "dual;auto"] [--rounds 10]
    python benchmarks/engines.py --results /tmp/trial.json    # kept elsewhere, beside no others
    python benchmarks/engines.py --plot     # only the table and the picture, from kept results
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

os.environ.update(OMP_NUM_THREADS="1", KINETO_LOG_LEVEL="99")  # before torch

import torch
from glm_results import FOLDER, Results, Row, machine
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from tangograd import TANGO, Categorical
from tangograd.engines.rules import products

RESULTS = FOLDER / "engines.json"
DOCS = FOLDER.parent.parent / "docs/engines.md"
#: glibc gives memory back to the system after some steps and not after others, which is worth up to
#: a fifth of a step of either optimizer; here it keeps it
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}
TABLE_BEGINS, TABLE_ENDS = "<!-- costs -->", "<!-- end of costs -->"
ENGINES = ("auto", "dual", "two-pass", "double-backward", "finite-difference")
DEFAULTS = "defaults"
#: "auto" with tangents from the products that SGD has, MKL's: as it is where oneDNN is no quicker
WITHOUT_ONEDNN = "auto, no oneDNN"
SHOWN = (*ENGINES, DEFAULTS, WITHOUT_ONEDNN)
ONEDNN = products.AVAILABLE
PERIOD = 40  # steps in which TANGO "auto" has both its kinds of refresh
PAST_THE_FIRST = 1041  # a step number far from the first ones, powers of two and refresh steps
REFRESHES = (1060, 1080)  # step numbers, one of each kind
GAMMA, LR = 1e-3, 0.1
VOCABULARY, WIDTH = 256, 128
COMPUTES = re.compile(r"engine '([\w-]+)' computes")  # what is said at INFO level


# ------------------------------------------------------------------ the models


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def conv(norm: Callable[[int], nn.Module] | None = None) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), *([norm(after)] if norm else [])]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


class Recurrent(nn.Module):
    """A recurrent language model."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.recurrent = kind(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, at every position."""
        return self.head(self.recurrent(self.embedding(tokens))[0])


class Transformer(nn.Module):
    """A causal language model whose embedding is also its last layer.

    Its attention is torch's fused one: no dropout, and no mask but the causal flag.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(1024, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, at every position."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.embedding(tokens) + self.positions[:length]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return functional.linear(self.norm(x), self.embedding.weight)


class Case(NamedTuple):
    """A model with its batch.

    Attributes:
        title: in tables.
        make: the model.
        shape: of a batch of inputs; of tokens when it has two dimensions and ``tokens``.
        tokens: whether inputs are tokens, each with the next as its target.
        block: steps of one kind before the other's turn.
        repeats: new models, because where their memory lies makes a difference.
        goals: of the ratios, by engine: time, and memory.
    """

    title: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: bool
    block: int
    repeats: int
    goals: dict[str, tuple[float | None, float | None]]

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        if self.tokens:
            text = torch.randint(VOCABULARY, (self.shape[0], self.shape[1] + 1))
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        return torch.randn(self.shape), torch.randint(10, self.shape[:1])


CASES = {
    "mlp": Case("MLP 784-512-512-10, B=128", mlp, (128, 784), False, 10, 2, {"auto": (1.75, None)}),
    "conv": Case("conv 16-32, B=64", conv, (64, 1, 28, 28), False, 5, 2, {"auto": (1.6, None)}),
    "groupnorm": Case(
        "conv 16-32 + GroupNorm, B=64",
        lambda: conv(lambda channels: nn.GroupNorm(4, channels)),
        (64, 1, 28, 28),
        False,
        5,
        1,
        {},
    ),
    "gru": Case("GRU 128, T=32, B=32", lambda: Recurrent(nn.GRU), (32, 32), True, 3, 1, {}),
    "lstm": Case("LSTM 128, T=32, B=32", lambda: Recurrent(nn.LSTM), (32, 32), True, 3, 1, {}),
    "transformer-2": Case(
        "transformer d=128, 2 layers, T=128, B=8",
        lambda: Transformer(2),
        (8, 128),
        True,
        2,
        1,
        {},
    ),
    "transformer-8": Case(
        "transformer d=128, 8 layers, T=128, B=8",
        lambda: Transformer(8),
        (8, 128),
        True,
        1,
        1,
        {"auto": (2.0, 1.25)},
    ),
}


# ------------------------------------------------------------------ the steps


class Trainee(NamedTuple):
    """A model in training: the optimizer, if there is one, and one step of it."""

    optimizer: torch.optim.Optimizer | None
    step: Callable[[], None]


def sgd(case: Case, x: Tensor, y: Tensor) -> Trainee:
    model = case.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        z = model(x)
        functional.cross_entropy(z.reshape(-1, z.shape[-1]), y.reshape(-1)).backward()
        optimizer.step()

    return Trainee(optimizer, step)


def tango(case: Case, x: Tensor, y: Tensor, engine: str) -> Trainee:
    model, likelihood = case.make(), Categorical()
    if engine == DEFAULTS:
        optimizer = TANGO(model.parameters())
    else:
        named = "auto" if engine == WITHOUT_ONEDNN else engine
        optimizer = TANGO(model.parameters(), lr=LR, gamma=GAMMA, preconditioner=None, engine=named)

    def step() -> None:
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()

    return Trainee(optimizer, step)


# ------------------------------------------------------------------ measuring


def seconds(step: Callable[[], None], steps: int) -> float:
    """Of a block of steps."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start


def in_turns(one: Trainee, other: Trainee, steps: int, block: int) -> tuple[float, float]:
    """Seconds of so many steps of each, in blocks that alternate."""
    total = [0.0, 0.0]
    for _ in range(steps // block):
        for which, trainee in enumerate((one, other)):
            total[which] += seconds(trainee.step, block)
    return total[0], total[1]


def peak_bytes(trainee: Trainee, number: int | None = None) -> int:
    """The most memory that tensors take in a step, above what lives before it.

    Args:
        trainee: takes a step.
        number: the step's number, for a TANGO.
    """
    if number is not None:
        trainee.optimizer.param_groups[0]["steps"] = number
    if trainee.optimizer is not None:
        trainee.optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        trainee.step()
    events = found.profiler.kineto_results.events()
    memory = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    live = most = 0
    for _, size in sorted(memory, key=lambda pair: pair[0]):
        live += size
        most = max(most, live)
    return most


@contextmanager
def listening() -> Iterator[list[str]]:
    """What the library says at INFO level."""
    said: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tangograd")
    kept = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(kept)


def measure(name: str, engine: str, rounds: int, seed: int) -> Row:
    """One row: a model with an engine, or with all defaults."""
    case = CASES[name]
    row: Row = {"model": case.title, "engine": engine, "seed": seed, "picked": None, "error": None}
    row["time_goal"], row["memory_goal"] = case.goals.get(engine, (None, None))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    products.AVAILABLE = ONEDNN and engine != WITHOUT_ONEDNN
    try:
        row |= _measure(case, engine, rounds, seed)
    except Exception as error:
        text = (str(error) or "no message").strip().splitlines()[0]
        row["error"] = f"{type(error).__name__}: {text}"
    row["all_seconds"] = round(time.perf_counter() - start, 1)
    return row


def _measure(case: Case, engine: str, rounds: int, seed: int) -> Row:
    repeats = 1 if engine == DEFAULTS else case.repeats
    if engine == DEFAULTS:
        rounds, steps, block = max(1, rounds * case.block // 10), PERIOD, case.block
    else:
        steps = block = case.block
    pairs: list[tuple[float, float]] = []
    picked: set[str] = set()
    for repeat in range(repeats):
        torch.manual_seed(seed + repeat)
        x, y = case.batch()
        plain = sgd(case, x, y)
        with listening() as said:
            ours = tango(case, x, y, engine)
            for _ in range(3):
                ours.step()
                plain.step()
            picked |= {found[1] for text in said if (found := COMPUTES.match(text))}
        ours.optimizer.param_groups[0]["steps"] = PAST_THE_FIRST
        in_turns(plain, ours, block, block)
        pairs += [in_turns(plain, ours, steps, block) for _ in range(rounds)]
    numbers = (PAST_THE_FIRST, *(REFRESHES if engine == DEFAULTS else ()))
    memory = max(peak_bytes(ours, number) for number in numbers)
    plain_memory = peak_bytes(plain)
    ratios = [b / a for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    parameters = [p for group in ours.optimizer.param_groups for p in group["params"]]
    held = sum(
        value.numel()
        for state in ours.optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )
    return {
        "picked": "; ".join(sorted(picked)) or None,
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "memory_ratio": round(memory / plain_memory, 3),
        "peak_mib": round(memory / 2**20, 3),
        "sgd_peak_mib": round(plain_memory / 2**20, 3),
        "sgd_ms": round(1e3 * statistics.median(a for a, _ in pairs) / steps, 3),
        "state_per_parameter": round(held / sum(p.numel() for p in parameters), 3),
        "n": f"{repeats} × {rounds} pairs of {steps} steps, in blocks of {block}",
        "pairs_ms": [[round(1e3 * a, 3), round(1e3 * b, 3)] for a, b in pairs],
    }


# ------------------------------------------------------------------ showing


def show(rows: list[Row]) -> None:
    """The table."""
    print(
        f"{'model':42}{'engine':19}{'time':>6}  {'quartiles':13}{'goal':>5}{'memory':>8}{'goal':>6}"
    )
    for row in rows:
        start = f"{row['model']:42}{row['engine']:19}"
        if row["error"]:
            print(f"{start}  fails: {row['error'][:90]}")
            continue
        low, high = row["quartiles"]
        goals = [f"{row[kind] or '-'!s}" for kind in ("time_goal", "memory_goal")]
        print(
            f"{start}{row['ratio']:6.2f}  {low:5.2f} - {high:<5.2f}{goals[0]:>5}"
            f"{row['memory_ratio']:8.2f}{goals[1]:>6}  {_choice(row)}"
        )


def _choice(row: Row) -> str:
    return "" if row["picked"] in (None, row["engine"]) else f"chose {row['picked']}"


def missed(rows: list[Row]) -> list[str]:
    """The goals that were not reached, in words."""
    return [
        f"{row['model']}, {row['engine']}: {what} {row[value]:.2f} > {row[goal]}"
        if not row["error"]
        else f"{row['model']}, {row['engine']}: {row['error']}"
        for row in rows
        for what, value, goal in (
            ("time", "ratio", "time_goal"),
            ("memory", "memory_ratio", "memory_goal"),
        )
        if row[goal] and (row["error"] or row[value] > row[goal])
    ]


def markdown(rows: list[Row]) -> str:
    """The table of the docs: time / peak memory of each model and engine, SGD's being 1."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    engines = [name for name in SHOWN if any(r["engine"] == name for r in rows)]
    cells = {
        (row["model"], row["engine"]): "cannot"
        if row["error"]
        else f"{row['ratio']:.2f} / {row['memory_ratio']:.2f}"
        for row in rows
    }
    lines = ["| | " + " | ".join(engines) + " |", "| --- " * (len(engines) + 1) + "|"]
    for model in models:
        each = [cells.get((model, engine), "") for engine in engines]
        lines.append(f"| {model} | " + " | ".join(each) + " |")
    return "\n".join(lines)


def write_docs(rows: list[Row], page: Path) -> None:
    """Put the table in its place."""
    before, rest = page.read_text().split(TABLE_BEGINS)
    _, after = rest.split(TABLE_ENDS)
    page.write_text(f"{before}{TABLE_BEGINS}\n{markdown(rows)}\n{TABLE_ENDS}{after}")


def plot(rows: list[Row], path: Path) -> None:
    """Time and memory of each engine, a group of bars for each model."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(row["model"] for row in rows))
    engines = [name for name in SHOWN if any(r["engine"] == name for r in rows)]
    figure, panels = plt.subplots(2, 1, figsize=(11, 7), sharex=True, layout="constrained")
    kinds = (("ratio", "time_goal", "time"), ("memory_ratio", "memory_goal", "peak memory"))
    for axes, (value, goal, label) in zip(panels, kinds, strict=True):
        for row in rows:
            if row["error"]:
                continue
            number = engines.index(row["engine"])
            at = models.index(row["model"]) + (number - (len(engines) - 1) / 2) / (len(engines) + 1)
            axes.bar(at, row[value], 1 / (len(engines) + 1), color=f"C{number}")
            if row[goal]:
                axes.hlines(row[goal], at - 0.07, at + 0.07, color="black", lw=2)
        axes.axhline(1, color="gray", lw=1)
        axes.set_ylabel(f"{label}, SGD = 1")
        axes.grid(alpha=0.3, axis="y")
    for number, engine in enumerate(engines):
        panels[0].bar(0, 0, color=f"C{number}", label=engine)
    panels[0].hlines([], 0, 0, color="black", lw=2, label="goal")
    panels[0].legend(fontsize="small", ncols=4)
    panels[1].set_xticks(range(len(models)), [m.replace(", ", "\n", 1) for m in models], fontsize=8)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument(
        "--engines",
        default=";".join(SHOWN),
        help=f"of {'; '.join(SHOWN)}, between semicolons",
    )
    parser.add_argument("--rounds", type=int, default=10, help="pairs of blocks, for each repeat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that keeps them")
    parser.add_argument("--plot", action="store_true", help="only show what was kept")
    parser.add_argument("--write-docs", action="store_true", help="the table of docs/engines.md")
    options = parser.parse_args()
    os.environ.update(ALLOCATOR)  # of the processes that measure
    facts = machine("torch") | {
        "allocator": ALLOCATOR,
        "threads": 1,
        "seed": options.seed,
        "gamma": GAMMA,
        "lr": LR,
        "run": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
    results = Results(options.results, ("model", "engine"), facts)
    if not options.plot:
        for name in options.models.split(","):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                for engine in options.engines.split(";"):
                    row = process.submit(
                        measure, name, engine, options.rounds, options.seed
                    ).result()
                    results.add([row])
                    print(f"{row['model']}, {engine}: {row['all_seconds']} s", flush=True)
        print()
    show(results.rows)
    for text in missed(results.rows) or ["every goal is reached"]:
        print(text)
    plot(results.rows, options.results.with_suffix(".png"))
    if options.write_docs:
        write_docs(results.rows, DOCS)
    print(f"raw results: {options.results}")


if __name__ == "__main__":
    main()
