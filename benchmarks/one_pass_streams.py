"""How far one look at a stream is from maximum likelihood, and what it says of that itself.

The measure is ``1 + (θ - θ̂)ᵀ H (θ - θ̂) / (φ p)``: the variance of the estimates in units of maximum
likelihood's. Each kind of stream (``one_pass_data.py``) is read once, and once more if the claim of
the first reading is above 2%.

    python benchmarks/one_pass_streams.py [--families logit,poisson] [--kinds "sorted_*"]
        [--seeds 5] [--rows 200000] [--columns 10] [--output results/one_pass_streams.json]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # before NumPy

import numpy as np
from one_pass_data import FRESH, KINDS, Stream, applies, make

from tangograd.glm.families import Family, by_name, evaluate
from tangograd.glm.one_pass.start import fit_start, rows_needed
from tangograd.glm.one_pass.state import OnePassConfig, OnePassState

GATE = 0.02


FAMILIES: dict[str, Family] = {
    "gaussian": by_name("gaussian"),
    "logit": by_name("binomial"),
    "probit": by_name("binomial", "probit"),
    "cloglog": by_name("binomial", "cloglog"),
    "poisson": by_name("poisson"),
    "gamma": by_name("gamma"),
    "negative_binomial": by_name("negative_binomial", dispersion=0.5),
    "tweedie": by_name("tweedie", power=1.5),
    "multinomial": by_name("multinomial", count=3),
}


def maximum_likelihood(family: Any, data: Stream, theta: Any) -> tuple[Any, Any, float]:
    """Return the estimate (outputs, d + 1), its Hessian and φ, by Newton steps on all rows."""
    X, y, offset, w = data
    centre, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    Z = np.c_[(X - centre) / scale, np.ones(len(y))]
    k, q = theta.shape
    b = theta.copy()
    b[:, -1] += b[:, :-1] @ centre
    b[:, :-1] *= scale

    def parts(b: Any) -> Any:
        return evaluate(family, Z @ b.T + offset[:, None], y)

    value = w @ parts(b)[0]
    for _ in range(60):
        _, s, f, h = parts(b)
        g = ((w[:, None] * s).T @ Z).ravel()

        def full(c: Any) -> Any:
            return np.block(
                [[Z.T @ (Z * (w * c[:, i, j])[:, None]) for j in range(k)] for i in range(k)]
            )

        H = full(h)
        try:
            step = np.linalg.solve(
                np.linalg.cholesky(H).T, np.linalg.solve(np.linalg.cholesky(H), g)
            )
        except np.linalg.LinAlgError:
            step = np.linalg.lstsq(full(f), g, rcond=1e-14)[0]
        decrement = g @ step
        if decrement < 1e-9:
            break
        t = 1.0
        while t > 1e-9 and not (w @ parts(b - t * step.reshape(k, q))[0]) <= value + 1e-12 * abs(
            value
        ):
            t /= 2
        b = b - t * step.reshape(k, q)
        value = w @ parts(b)[0]
    phi = 1.0
    if family.estimates_dispersion:
        _, s, f, _ = parts(b)
        phi = float(w @ (s[:, 0] ** 2 / f[:, 0, 0]) / w.sum())
    T = np.diag(np.r_[scale, 1.0])  # from original coefficients to standardized
    T[-1, :-1] = centre
    return b, np.kron(np.eye(k), T), H / phi


def ratio(theta: Any, best: Any, T: Any, H: Any) -> float:
    difference = T @ theta.ravel() - best.ravel()
    return float(1 + difference @ H @ difference / best.size)


def run(kind: str, name: str, seed: int, n: int, d: int) -> dict[str, Any]:
    """Return the ratio and the claim after one look, and after a second where that is asked for."""
    family, data = FAMILIES[name], make(kind, name, seed, n, d)
    begin = time.perf_counter()
    m = min(rows_needed(data.X.shape[1]), n)
    head = (data.X[:m], data.y[:m], data.weights[:m], data.offset[:m])
    start = fit_start(family, *head)
    state = OnePassState.init(family, start, OnePassConfig(seed=seed))
    state.update(data.X, data.y, data.weights, data.offset)
    first = state.finish()
    seconds = time.perf_counter() - begin
    second = first
    readings = 1
    if not first.excess <= GATE:
        again = state.again(first)
        again.update(data.X, data.y, data.weights, data.offset)
        second = again.finish()
        if not second.excess <= first.excess:
            second = first
        readings = 2
    to = start.coordinates.to_original
    best, T, H = maximum_likelihood(family, data, to(second.theta.copy()))
    return {
        "kind": kind,
        "family": name,
        "seed": seed,
        "rows": n,
        "columns": data.X.shape[1],
        "ratio": ratio(to(first.theta.copy()), best, T, H),
        "claim": 1 + first.excess,
        "leverage": float(np.nanmax(first.leverage)),
        "readings": readings,
        "ratio_auto": ratio(to(second.theta.copy()), best, T, H),
        "claim_auto": 1 + second.excess,
        "seconds": seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line a kind and family, and the counts that the goals are about."""
    lines = [f"{'kind':24}{'family':18}{'ratio':>10}{'claim':>10}{'auto':>10}{'claim':>10}"]
    keys = dict.fromkeys((row["kind"], row["family"]) for row in rows)
    for kind, family in keys:
        here = [row for row in rows if (row["kind"], row["family"]) == (kind, family)]
        worst = max(here, key=lambda row: row["ratio"])
        auto = max(here, key=lambda row: row["ratio_auto"])
        mark = "*" if kind in FRESH else ""
        lines.append(
            f"{kind + mark:24}{family:18}{worst['ratio']:10.4g}{worst['claim']:10.4g}"
            f"{auto['ratio_auto']:10.4g}{auto['claim_auto']:10.4g}"
        )
    r, c = (np.array([row[name] for row in rows]) for name in ("ratio", "claim"))
    ra = np.array([row["ratio_auto"] for row in rows])
    lines += [
        f"fits {len(rows)}; read twice {np.mean([row['readings'] > 1 for row in rows]):.1%}",
        f"claim within 1.5x: {np.mean((r / c < 1.5) & (c / r < 1.5)):.1%}",
        f"silent (ratio > 1.25, claim < 1.1): {int(((r > 1.25) & (c < 1.1)).sum())}",
        f"false warnings (ratio < 1.05, claim > 1.1): {int(((r < 1.05) & (c > 1.1)).sum())}",
        f"ratio <= 1.02: {np.mean(r <= 1.02):.1%}; auto: {np.mean(ra <= 1.02):.1%}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", default="logit,poisson,gamma")
    parser.add_argument("--kinds", default="*")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for kind in (k for k in KINDS if fnmatch.fnmatch(k, options.kinds)):
        for name in options.families.split(","):
            if not applies(kind, name):
                continue
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                n = options.rows * (5 if kind == "rare_events" else 1)
                with np.errstate(all="ignore"):
                    rows.append(run(kind, name, seed, n, options.columns))
                row = rows[-1]
                print(
                    f"{kind:24}{name:18}{seed:3}{row['ratio']:12.5g}{row['claim']:12.5g}"
                    f"{row['ratio_auto']:12.5g}{row['claim_auto']:12.5g}"
                    f"{row['leverage']:8.2f}{row['seconds']:7.2f}",
                    flush=True,
                )
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
