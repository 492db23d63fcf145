"""Logistic probes of all layers and C at once against scikit-learn's loop over layers x C, on Banking77."""

import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from benchmarks.agreement import ProbeRows, agree_tightly, agreement, describe_agreement
from benchmarks.timing import Comparison, compare, seconds_of
from extract.decoders.decoder import Decoder
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec
from probes.data.domains import load_banking77
from probes.data.sources import find_local
from probes.logistic.problem import LogisticFit, SolverOptions
from probes.logistic.solver import fit_logistic

DATASET = "banking77"
N_ROWS = 3000
CS = (0.01, 0.1, 1.0, 10.0, 100.0)
SKLEARN_ITERATIONS = 5000
"""Enough for its default tolerance on every problem; at its default of 100 it stops before."""
TIE = 1e-8
"""Share of an objective within which two are the same: both sides compute in float32."""


def why_skipped() -> str:
    """Return the reason why the benchmark cannot run; empty if it can."""
    return "" if find_local(DATASET) else f"ICECORE_DATA names no folder that holds {DATASET}/"


def banking77_rows(decoder: Decoder, *, n_rows: int = N_ROWS) -> ProbeRows:
    """Compute the latents of Banking77 below the final norm: embedding and blocks, mean pooling.

    Args:
        decoder: The frozen decoder, under its causal plan.
        n_rows: Training rows, drawn by class with a fixed seed.

    Returns:
        Training rows, and all validation rows.
    """
    task = load_banking77().subset(n_rows)
    spec = ExtractionSpec(poolings=("mean",), layers=tuple(decoder.layers[:-1]))
    train, held_out = (
        embed_texts(decoder, list(task.splits[split]["text"]), spec=spec)[:, 0] for split in ("train", "validation")
    )
    return ProbeRows(train, torch.from_numpy(task.labels("train")), held_out)


def compare_probes(
    rows: ProbeRows, *, repeats: int, options: SolverOptions | None = None
) -> tuple[Comparison, dict[str, Any]]:
    """Compare fitting every layer and C at once with scikit-learn's `LogisticRegression` in a loop.

    Both standardise, and both get float32, which is faster for scikit-learn too. It runs with its default tolerance,
    enough iterations to reach it, and the number of BLAS threads that is fastest: next to its own OpenMP loops, more
    threads can be several times slower than one.

    Args:
        rows: What to fit on, and what to compare predictions on.
        repeats: Timed pairs; only our side is warmed up, because one loop takes minutes.
        options: Options of our solver.

    Returns:
        The comparison, and how the solutions agree, as plain values.

    Raises:
        RuntimeError: One of our objectives is higher than scikit-learn's.
    """
    options = options or SolverOptions()
    x, gold = rows.latents.numpy(), rows.codes.numpy()
    theirs: dict[tuple[int, int], LogisticRegression] = {}
    ours: list[LogisticFit] = []
    n_threads = _fastest_blas(x[len(x) // 2], gold)

    def one_by_one() -> None:
        with threadpool_limits(n_threads, user_api="blas"):
            for layer in range(len(x)):
                scaled = StandardScaler().fit_transform(x[layer])
                for c, C in enumerate(CS):
                    theirs[layer, c] = LogisticRegression(C=C, max_iter=SKLEARN_ITERATIONS).fit(scaled, gold)

    def at_once() -> None:
        ours[:] = [fit_logistic(rows.latents, rows.codes, Cs=CS, options=options)]

    at_once()  # on an accelerator the first call loads kernels
    name = f"probes, {len(x)} layers x {len(CS)} C, {x.shape[1]} rows: loop vs at once"
    sides = (("scikit-learn", one_by_one), ("at once", at_once))
    bar = ">= 4" if options.device == "cpu" else ">= 20"
    comparison = compare(name, sides, bar=bar, repeats=repeats, warm_up=False)
    agreed = agreement(rows, theirs, ours[0], Cs=CS)
    if agreed.worst_excess > TIE:
        raise RuntimeError(f"an objective is higher than scikit-learn's by {agreed.worst_excess:g} of it")
    facts = {"blas_threads": n_threads, **asdict(agreed), "tight": asdict(agree_tightly(rows, options=options))}
    sys.stderr.write(f"  {describe_agreement(facts)}\n")
    return comparison, facts


def _fastest_blas(x: NDArray[np.float32], gold: NDArray[np.int64]) -> int:
    """Find the number of BLAS threads with which scikit-learn is fastest on one problem."""
    scaled = StandardScaler().fit_transform(x)

    def fit() -> None:
        LogisticRegression(C=1.0, max_iter=SKLEARN_ITERATIONS).fit(scaled, gold)

    seconds = {}
    for n_threads in sorted({1, torch.get_num_threads()}):
        with threadpool_limits(n_threads, user_api="blas"):
            fit()
            seconds[n_threads] = seconds_of(fit)
    return min(seconds, key=lambda n: seconds[n])
