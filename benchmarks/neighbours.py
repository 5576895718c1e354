"""TANGO beside its neighbours: which of them train which models, at what cost, and how they fail.

Every neighbour gets the same models, as a user has written them, and its own default settings. A
cell of the table is the time of a step as a ratio to that of SGD with momentum in the same
situation, or what goes wrong: an error, parameters that are not trained, curvature that is left
out. That is found by looking: which parameters have moved after some steps, which layers the
neighbour says it knows, and for BackPACK, which promises a diagonal of the Fisher matrix exactly,
by comparing it with sums over samples and classes. With DDP, two processes train on batches of
their own besides, and must then have the same weights. Blocks of steps of SGD and of the neighbour
take turns, on one thread, and the median over the rounds is reported.

SINGD and those of pytorch_optimizer are optimizers. curvlinops' K-FAC and BackPACK's diagonal are
tools to build one: here each step computes them on its batch, and goes along ``(C + λ)⁻¹ g``.

The neighbours are no dependencies of this project. Put them in an environment of their own:

    pip install -e '.[torch,neighbours]'

BackPACK asks for torchvision, which is not used here and may bring another torch: ``--no-deps``
(and einconv, einops, linear_operator and unfoldNd by hand) avoids that.

    python benchmarks/neighbours.py [--only 'SINGD;SOAP'] [--rounds 5] [--seed 0] [--write-docs]
    python benchmarks/neighbours.py --kept [--write-docs]     # tables from kept results
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import os
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch

import torch
from glm_results import FOLDER, Results, Row, machine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from engines import PAST_THE_FIRST, Trainee, Transformer, conv, in_turns, mlp, peak_bytes
from tangograd import TANGO, Categorical

RESULTS = FOLDER / "neighbours.json"
PAGE = Path(__file__).parent.parent / "docs" / "neighbours.md"
PACKAGES = ("singd", "curvlinops-for-pytorch", "backpack-for-pytorch", "pytorch_optimizer")
WARM_UP = 12  # steps; the neighbours' periods are 10
SECONDS = 3.0  # for the timing of a cell, about
DAMPING = 1e-2
NO_STATE = "no state"


# ------------------------------------------------------------------ situations


class LastOfLSTM(nn.Module):
    """Classifies a sequence by the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.lstm(x)[0][:, -1])


class MeanOfAttention(nn.Module):
    """Classifies a sequence by the mean of its self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class MeanOfTransformer(nn.Module):
    """Classifies a sequence by the mean over a transformer's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.second(self.first(x)).mean(1))


class Tied(nn.Module):
    """Predicts a word from the mean of words, with one matrix for both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.hidden = nn.Linear(64, 64)
        self.activation = nn.Tanh()
        self.head = nn.Linear(64, 256, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.activation(self.hidden(self.embedding(x).mean(1))))


class LanguageModel(nn.Module):
    """A transformer of 8 layers with fused attention; the positions of all texts in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = Transformer(8)

    def forward(self, words: Tensor) -> Tensor:
        """Logits of the next word, of every position."""
        return self.transformer(words).flatten(0, 1)


def bfloat16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def distributed(model: nn.Module) -> nn.Module:
    """DDP, in a world of one process."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return DistributedDataParallel(model)


class Situation(NamedTuple):
    """A model, its batch and what is around it.

    Attributes:
        make: the model.
        shape: of the inputs.
        words: whether the inputs are words, of 256, and the classes too.
        each: whether each word has a class, not each row.
        around: opened around the forward pass.
        wrap: makes what is trained of the model.
        checkpoint: whether the question is saving and loading.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    words: bool = False
    each: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    checkpoint: bool = False

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        if self.words:
            targets = (math.prod(self.shape),) if self.each else self.shape[:1]
            return torch.randint(256, self.shape), torch.randint(256, targets)
        return torch.randn(self.shape), torch.randint(10, self.shape[:1])


SITUATIONS = {
    "MLP 784-512-512-10": Situation(mlp, (128, 784)),
    "conv 16-32": Situation(conv, (64, 1, 28, 28)),
    "conv + BatchNorm": Situation(lambda: conv(nn.BatchNorm2d), (64, 1, 28, 28)),
    "LSTM": Situation(LastOfLSTM, (32, 32, 64)),
    "MultiheadAttention": Situation(MeanOfAttention, (32, 32, 64)),
    "TransformerEncoderLayer": Situation(MeanOfTransformer, (32, 32, 64)),
    "transformer, 8 layers": Situation(LanguageModel, (8, 128), words=True, each=True),
    "tied embeddings": Situation(Tied, (64, 8), words=True),
    "bfloat16 autocast (MLP)": Situation(mlp, (128, 784), around=bfloat16),
    "DDP-wrapped (MLP)": Situation(mlp, (128, 784), wrap=distributed),
    "resumed from a checkpoint (MLP)": Situation(mlp, (128, 784), checkpoint=True),
}


# ------------------------------------------------------------------ neighbours


@dataclass
class Training:
    """A model in training.

    Attributes:
        step: takes one, on a batch.
        saved: what a checkpoint has besides the model, by name; all have a ``state_dict``.
        note: what had to be done first.
        left_out: says, after some steps, of which parts the curvature is not used.
        check: says, of a small batch, what is wrong with the curvature.
    """

    step: Callable[[Tensor, Tensor], None]
    saved: dict[str, Any]
    note: str | None = None
    left_out: Callable[[], list[str]] = list
    check: Callable[[Tensor, Tensor], list[str]] | None = None


Around = Callable[[], AbstractContextManager[Any]]


def plain(
    make: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
) -> Callable[[nn.Module, Around], Training]:
    """An optimizer of parameters, as torch's."""

    def start(model: nn.Module, around: Around) -> Training:
        optimizer = make(model.parameters())
        return Training(stepper(model, optimizer, around), {"optimizer": optimizer})

    return start


def stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, around: Around
) -> Callable[[Tensor, Tensor], None]:
    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with around():
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def sgd(model: nn.Module, around: Around) -> Training:
    def make(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    return plain(make)(model, around)


def tango(**options: Any) -> Callable[[nn.Module, Around], Training]:
    """TANGO with these options."""

    def start(model: nn.Module, around: Around) -> Training:
        optimizer, likelihood = TANGO(model.parameters(), **options), Categorical()

        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            with around(), optimizer.tangents(model):
                loss = likelihood(model(x), y)
            loss.backward()
            optimizer.step()

        return Training(step, {"optimizer": optimizer, "likelihood": likelihood})

    return start


def singd(model: nn.Module, around: Around) -> Training:
    from singd.optim.optimizer import SINGD

    optimizer = SINGD(model)

    return Training(
        stepper(model, optimizer, around),
        {"optimizer": optimizer},
        left_out=lambda: _used_elsewhere(model, optimizer.module_names),
    )


def curvlinops(model: nn.Module, around: Around) -> Training:
    from curvlinops import KFACInverseLinearOperator, KFACLinearOperator

    parameters = [p for p in model.parameters() if p.requires_grad]
    mapped: set[nn.Module] = set()

    def step(x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        with around():
            loss = cross_entropy(model(x), y)
        loss.backward()
        with around():
            F = KFACLinearOperator(
                model,
                nn.CrossEntropyLoss(),
                parameters,
                [(x, y)],
                check_deterministic=False,
                num_per_example_loss_terms=1,
                num_data=len(x),
                separate_weight_and_bias=False,
            )
            inverse = KFACInverseLinearOperator(F, damping=DAMPING, use_heuristic_damping=True)
            direction = inverse @ [p.grad for p in parameters]
        mapped.update(model.get_submodule(name) for name in F._mapping)
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.sub_(d, alpha=1e-3)

    return Training(step, {}, left_out=lambda: _used_elsewhere(model, mapped))


def as_it_is(model: nn.Module) -> nn.Module:
    import backpack as library

    return library.extend(model)


def converted(model: nn.Module) -> nn.Module:
    import backpack as library

    return library.extend(model, use_converter=True)


def rewritten(model: nn.Module) -> nn.Module:
    """The same function as a chain of BackPACK's own modules, with the same parameters."""
    import backpack as library
    from backpack.custom_module.permute import Permute
    from backpack.custom_module.reduce_tuple import ReduceTuple
    from backpack.custom_module.slicing import Slicing

    if isinstance(model, LastOfLSTM):
        parts = [model.lstm, ReduceTuple(0), Slicing((slice(None), -1)), model.head]
    elif isinstance(model, Tied):
        mean = [Permute(0, 2, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
        parts = [model.embedding, *mean, model.hidden, model.activation, model.head]
    else:
        raise NotImplementedError("not to be written in its modules")
    return library.extend(nn.Sequential(*parts))


def backpack(
    make: Callable[[nn.Module], nn.Module], note: str | None = None
) -> Callable[[nn.Module, Around], Training]:
    """BackPACK's diagonal, of a model that is made fit for it."""

    def start(model: nn.Module, around: Around) -> Training:
        import backpack as library
        from backpack.extensions import DiagGGNExact, DiagGGNMC

        inner = model.module if isinstance(model, DistributedDataParallel) else model
        extended = make(inner)
        run = model if extended is inner else extended
        loss_function = library.extend(nn.CrossEntropyLoss())
        names = {id(p): name for name, p in inner.named_parameters()}
        parameters = list(extended.parameters())

        def backward(extension: Any, x: Tensor, y: Tensor) -> None:
            extended.zero_grad()
            with around():
                loss = loss_function(run(x), y)
            with library.backpack(extension):
                loss.backward()

        def step(x: Tensor, y: Tensor) -> None:
            backward(DiagGGNMC(), x, y)
            with torch.no_grad():
                for p in parameters:
                    p.sub_(p.grad / (p.diag_ggn_mc + DAMPING), alpha=1e-3)

        def check(x: Tensor, y: Tensor) -> list[str]:
            backward(DiagGGNExact(), x, y)
            found = [p.diag_ggn_exact.clone() for p in parameters]
            wrong = []
            for p, exact, ours in zip(parameters, fisher_diagonal(run, x), found, strict=True):
                error = float((ours - exact).norm() / exact.norm())
                if not error < 1e-3:
                    wrong.append(f"{names.get(id(p), 'a weight')} (off by {100 * error:.0f}%)")
            return [f"the diagonal is wrong for {_some(wrong)}"] if wrong else []

        return Training(step, {}, note, check=check)

    return start


def soap(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    from pytorch_optimizer import SOAP

    return SOAP(parameters)


def shampoo(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    from pytorch_optimizer import Shampoo

    return Shampoo(parameters)


def scalable_shampoo(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    from pytorch_optimizer import ScalableShampoo

    return ScalableShampoo(parameters)


class Neighbour(NamedTuple):
    """A way to train.

    Attributes:
        starts: makers of a training, the first that works counts.
        period: steps after which its costs repeat.
    """

    starts: tuple[Callable[[nn.Module, Around], Training], ...]
    period: int


NEIGHBOURS = {
    "TANGO": Neighbour((tango(),), 40),
    "TANGO, γ given": Neighbour((tango(gamma=1e-3, preconditioner=None),), 10),
    "Adam": Neighbour((plain(torch.optim.Adam),), 10),
    "SINGD": Neighbour((singd,), 10),
    "curvlinops K-FAC": Neighbour((curvlinops,), 1),
    "BackPACK DiagGGNMC": Neighbour(
        (
            backpack(as_it_is),
            backpack(rewritten, "only when written anew as a chain of BackPACK's modules"),
            backpack(converted, "only through BackPACK's converter"),
        ),
        1,
    ),
    "SOAP": Neighbour((plain(soap),), 10),
    "Shampoo": Neighbour((plain(shampoo),), 1),
    "ScalableShampoo": Neighbour((plain(scalable_shampoo),), 10),
}


def _used_elsewhere(model: nn.Module, known: Iterable[nn.Module]) -> list[str]:
    """Where known layers share a parameter with layers that are not known."""
    known = set(known)
    shared = {id(p): name for name, p in model.named_parameters()}
    ours = {id(p) for module in known for p in module.parameters(recurse=False)}
    return [
        f"the curvature of {shared[id(p)]} is that of its use in one layer; {name!r} is left out"
        for name, module in model.named_modules()
        if module not in known
        for p in module.parameters(recurse=False)
        if id(p) in ours
    ]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ------------------------------------------------------------------ looking


def fisher_diagonal(model: nn.Module, x: Tensor) -> list[Tensor]:
    """``1/B Σ_i Σ_c p_ic (∂ ln p_ic/∂θ)²``, by as many backward passes."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    log_p = model(x).log_softmax(-1)
    for row in log_p:
        for value in row:
            grads = torch.autograd.grad(value, parameters, retain_graph=True)
            for t, g in zip(total, grads, strict=True):
                t.add_(g.square(), alpha=float(value.detach().exp()) / len(x))
    return total


def train(situation: Situation, start: Any, seed: int) -> tuple[nn.Module, Training]:
    """A new model, and how it is trained."""
    torch.manual_seed(seed)
    model = situation.wrap(situation.make())
    return model, start(model, situation.around)


def problems(situation: Situation, start: Any, seed: int) -> list[str]:
    """What is wrong although no error is raised."""
    model, training = train(situation, start, seed)
    x, y = situation.batch()
    moving = _with_gradient(model, x, y)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(WARM_UP):
        training.step(x, y)
    now = dict(model.named_parameters())
    still = [name for name in moving if torch.equal(now[name], before[name])]
    lost = [name for name, p in now.items() if not bool(p.isfinite().all())]
    found = [training.note] if training.note else []
    found += [f"does not train {_some(still)}"] if still else []
    found += [f"not finite after {WARM_UP} steps: {_some(lost)}"] if lost else []
    if training.check and situation.around is nullcontext:
        found += training.check(x[:4], y[:4])
    return found + training.left_out()


def _with_gradient(model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """The parameters whose gradient is more than rounding errors."""
    grads = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
    largest = max(float(g.norm()) for g in grads)
    named = zip(dict(model.named_parameters()), grads, strict=True)
    return [name for name, g in named if float(g.norm()) > 1e-5 * largest]


def apart(name: str, attempt: int, situation_name: str, seed: int) -> list[str]:
    """Whether two processes, each with its own batch, come to have different weights."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as ranks,
    ):
        runs = [
            ranks.submit(rank, number, folder, name, attempt, situation_name, seed)
            for number in range(2)
        ]
        first, second = (torch.tensor(run.result()) for run in runs)
    distance = float((first - second).norm() / first.norm())
    return [f"of two processes, each ends with other weights ({distance:.0e})"] if distance else []


def rank(
    number: int, folder: str, name: str, attempt: int, situation_name: str, seed: int
) -> list[float]:
    """Train in one of two processes; some of the weights, of every parameter."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2
    )
    situation = SITUATIONS[situation_name]
    model, training = train(situation, NEIGHBOURS[name].starts[attempt], seed)
    torch.manual_seed(seed + number)
    x, y = situation.batch()
    for _ in range(WARM_UP):
        training.step(x, y)
    found = torch.cat([p.detach().double().reshape(-1)[:100] for p in model.parameters()])
    # or the last to hold the group is the model, and torch may wait for a thread that waits for it
    del model, training
    gc.collect()
    torch.distributed.destroy_process_group()
    return found.tolist()


def resume(situation: Situation, start: Any, seed: int) -> list[str]:
    """What is lost by saving after some steps, and loading."""
    model, training = train(situation, start, seed)
    if not training.saved:
        return [NO_STATE]
    batches = [situation.batch() for _ in range(2 * WARM_UP)]
    for x, y in batches[:WARM_UP]:
        training.step(x, y)
    file = io.BytesIO()
    parts = {"model": model} | training.saved
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    found: list[str] = []
    try:
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:
        found = [f"loads only with weights_only=False ({type(error).__name__} without)"]
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    other, resumed = train(situation, start, seed + 1)
    for name, part in ({"model": other} | resumed.saved).items():
        part.load_state_dict(loaded[name])
    for run in (training, resumed):
        torch.manual_seed(seed)
        for x, y in batches[WARM_UP:]:
            run.step(x, y)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    furthest = max(float((a - b).detach().abs().max()) for a, b in pairs)
    if furthest:
        found.append(f"the run that was resumed differs, by up to {furthest:.1g} in a weight")
    return found


def first_line(error: BaseException) -> str:
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip() or "no message"
    line = text.splitlines()[0].strip()
    return f"{type(error).__name__}: {line[:140]}{'…' if len(line) > 140 else ''}"


def measure(name: str, situation_name: str, rounds: int, seed: int) -> Row:
    """A cell of the table."""
    torch.set_num_threads(1)
    situation, neighbour = SITUATIONS[situation_name], NEIGHBOURS[name]
    row: Row = {"neighbour": name, "situation": situation_name, "error": None, "problems": []}
    for number, start in enumerate(neighbour.starts):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                look = resume if situation.checkpoint else problems
                row["problems"] = look(situation, start, seed)
                if situation.wrap is distributed:
                    row["problems"] += apart(name, number, situation_name, seed)
            row["warnings"] = sorted({_warning(w) for w in caught})
            if any("not be trained" in text for text in row["warnings"]):
                row["problems"] = [
                    f"{text} (and warns)" if "not train" in text else text
                    for text in row["problems"]
                ]
            if not situation.checkpoint:
                row |= timed(situation, start, neighbour.period, rounds, seed)
            row |= {"error": None, "attempt": number}
            break
        except Exception as error:
            row["error"] = first_line(error)
    return row


def _warning(warning: warnings.WarningMessage) -> str:
    return f"{warning.category.__name__}: {str(warning.message).strip().splitlines()[0][:160]}"


def timed(situation: Situation, start: Any, period: int, rounds: int, seed: int) -> Row:
    """Its time as a ratio to SGD's in the same situation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainees = []
        for maker in (sgd, start):
            _, training = train(situation, maker, seed)
            x, y = situation.batch()
            optimizer = training.saved.get("optimizer")
            trainees.append(Trainee(optimizer, lambda t=training, x=x, y=y: t.step(x, y)))
        for trainee in trainees:
            for _ in range(3):
                trainee.step()
            if isinstance(trainee.optimizer, TANGO):
                trainee.optimizer.param_groups[0]["steps"] = PAST_THE_FIRST
        begun, pairs = time.perf_counter(), []
        while len(pairs) < rounds and (not pairs or time.perf_counter() - begun < SECONDS):
            pairs.append(in_turns(trainees[0], trainees[1], period, min(period, 10)))
    ratios = [b / a for a, b in pairs]
    plain, ours = (peak_bytes(trainee) for trainee in trainees)
    return {
        "ratio": round(statistics.median(ratios), 3),
        "memory_ratio": round(ours / plain, 3),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "sgd_ms": round(1e3 * statistics.median(a for a, _ in pairs) / period, 3),
        "n": f"{len(pairs)} pairs of {period} steps",
        "pairs_ms": [[round(1e3 * a, 3), round(1e3 * b, 3)] for a, b in pairs],
    }


# ------------------------------------------------------------------ showing


def cell(row: Row | None) -> str:
    """What stands in the table."""
    if row is None:
        return ""
    if row["error"]:
        return "fails"
    if row["problems"] == [NO_STATE]:
        return NO_STATE
    if "ratio" not in row:
        text = "differs" if any("differs" in text for text in row["problems"]) else "the same"
    else:
        text = f"{row['ratio']:.1f}×" if row["ratio"] < 10 else f"{row['ratio']:.0f}×"
        text += f" / {row['memory_ratio']:.1f}"
    return f"{text}, but" if row["problems"] else text


def tables(rows: list[Row], facts: Row) -> str:
    """The page, in Markdown."""
    by = {(row["neighbour"], row["situation"]): row for row in rows}
    names = [name for name in NEIGHBOURS if any(key[0] == name for key in by)]
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    notes: dict[str, int] = {}
    for situation in SITUATIONS:
        cells = []
        for name in names:
            row = by.get((name, situation))
            text = cell(row)
            note = (row["error"] or "; ".join(row["problems"])) if row else ""
            if note not in ("", NO_STATE):
                text += f" [{notes.setdefault(note, len(notes) + 1)}]"
            cells.append(text)
        lines.append(f"| {situation} | " + " | ".join(cells) + " |")
    listed = "\n".join(f"{n}. {_as_text(note)}" for note, n in notes.items())
    versions = ", ".join(f"{name} {facts[name]}" for name in ("torch", *PACKAGES) if name in facts)
    return PAGE_TEXT.format(table="\n".join(lines), notes=listed, versions=versions, **facts)


def _as_text(note: str) -> str:
    for character in "_*<>[]|":
        note = note.replace(character, "\\" + character)
    return note


PAGE_TEXT = """# TANGO beside its neighbours

Second-order optimizers and the tools for building them, on the same models, as a user would write
them, with their default settings. Numbers are the time of a step / the most memory that it takes
beyond what is there before it (which has the optimizer's state), where those of SGD with momentum
in the same situation are 1 (float32, one thread, a processor without a GPU); *but* means that it
runs and that something is left out or wrong, which the note tells; *fails* that it raises the error
in the note. This says nothing about how many steps each needs.

{table}

{notes}

"TANGO" has all defaults: its γ is found by a line search and its preconditioner is learned. With γ
given it has no preconditioner, which is the paper's algorithm. curvlinops' K-FAC and BackPACK's
diagonal are not optimizers: each step computes them on its batch and goes along (C + λ)⁻¹ g.
BackPACK is tried on the model as it is; written anew, by hand, as a chain of its own modules, where
that is possible; and through its converter: the error is that of the last. SINGD and K-FAC can be
given the parameters of linear and convolution layers alone, and leave the others to another
optimizer. ScalableShampoo begins to precondition at its step 25 and computes its matrix roots every
1000 steps: its times leave most of that out. A tied weight counts as *but* where its curvature is
that of one use.

Checkpoints are saved after {warm_up} steps with `torch.save` (of model, optimizer and, for TANGO,
likelihood) and loaded with `weights_only=True`; the same number of steps later, all weights must be
*the same*, bit for bit. With DDP the time is that in a world of one process; besides, two processes
train, each on its own batch, and must stay equal.

Times are of a few rounds on a machine with other work on it, good to a factor of about 1.5; what
runs and what fails does not depend on it.

Measured with {versions}, Python {python}, seed {seed}, on {run}.
Raw results: `benchmarks/results/neighbours.json`. This page is written by

    pip install -e '.[torch,neighbours]'
    python benchmarks/neighbours.py --write-docs
"""


def versions() -> Row:
    """Of the neighbours that are installed."""
    found: Row = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            print(f"{name} is not installed: pip install -e '.[torch,neighbours]'")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=";".join(NEIGHBOURS), help="neighbours, with ';' between")
    parser.add_argument("--situations", default=";".join(SITUATIONS), help="with ';' between")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of blocks, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", action="store_true", help="measure nothing")
    parser.add_argument("--write-docs", action="store_true", help=f"write docs/{PAGE.name}")
    options = parser.parse_args()
    run = time.strftime("%Y-%m-%d", time.gmtime())
    facts = machine("torch") | versions() | {"threads": 1, "seed": options.seed, "run": run}
    if options.kept:
        facts = json.loads(RESULTS.read_text())
    results = Results(RESULTS, ("neighbour", "situation"), facts)
    for name in () if options.kept else options.only.split(";"):
        process = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        for situation in options.situations.split(";"):
            begun = time.perf_counter()
            row = process.submit(measure, name, situation, options.rounds, options.seed).result()
            results.add([row])
            told = row["error"] or "; ".join(row["problems"])
            seconds = time.perf_counter() - begun
            print(f"{name:20}{situation:33}{cell(row):14}{seconds:5.1f} s  {told}", flush=True)
        process.shutdown()
    page = tables(results.rows, results.facts | {"warm_up": WARM_UP})
    if options.write_docs:
        PAGE.write_text(page)
        print(f"page: {PAGE}")
    else:
        print(page)
    print(f"raw results: {RESULTS}")


if __name__ == "__main__":
    main()
