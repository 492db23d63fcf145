"""How time and memory grow with rows N, tokens T, layers L and width D: extraction, and the fit of every head.

Run as `OMP_NUM_THREADS=1 python -m benchmarks.growth`; its numbers go to results/cpu-growth.json, and
`python -m benchmarks.growth --page` writes them into docs/speed.md.

A curve is a process of its own. For memory it forks a child for each size, which goes through the smallest size first
and then through its own; its peak is the largest resident size above what it had between the two. For time it goes
through all sizes in turn, forwards and backwards, so that a drift of the machine's speed affects all alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.exponents import fit_growth
from benchmarks.machine import describe_machine
from benchmarks.training_free_page import ROOT, filled
from extract.poolings.memory import trim_heap

OUT = ROOT / "benchmarks" / "results" / "cpu-growth.json"
PAGE = ROOT / "docs" / "speed.md"
LETTERS = "QXZJVKWY"
"""Letters that the tokenizer of the tiny decoders never joins: a text of them has a token for each."""
SIZES: dict[str, tuple[dict[str, int], dict[str, tuple[int, ...]]]] = {
    "extraction": (
        {"N": 128, "T": 32, "L": 4, "D": 128},
        {
            "N": (64, 128, 256, 512, 1024, 2048),
            "T": (16, 32, 64, 128, 256, 512, 1024),
            "L": (2, 4, 8, 16, 32, 64),
            "D": (64, 128, 256, 512, 1024),
        },
    ),
    **{
        head: (
            {"N": 1024, "L": 8, "D": 128},
            {"N": (256, 512, 1024, 2048, 4096, 8192), "L": (2, 4, 8, 16, 32, 64), "D": (32, 64, 128, 256, 512, 1024)},
        )
        for head in ("logistic probe", "siamese cosine", "autoencoder", "token classifier", "layer cosine")
    },
}
"""What is fixed, and what each variable goes through, by what is measured."""
ITERATIONS = 20
"""L-BFGS iterations of every logistic probe: how many it takes to converge depends on the data, not on the size."""
Run = Callable[[], object]


def prepare_extraction(folder: Path, *, N: int, T: int, L: int, D: int) -> Run:
    """Extract `N` texts of `T` tokens with a random Llama of `L` blocks of width `D`, whole caches and all."""
    from extract.run.extraction import extract_latents
    from extract.run.extraction_spec import ExtractionSpec
    from tests.extract.tiny_decoders import make_decoder

    sizes: dict[str, Any] = {
        "hidden_size": D,
        "intermediate_size": 3 * D,
        "num_hidden_layers": L,
        "num_attention_heads": D // 32,
        "num_key_value_heads": D // 32,
        "max_position_embeddings": 2048,
    }
    decoder = make_decoder(**sizes)
    drawn = np.random.default_rng(0).integers(0, len(LETTERS), (N, T))
    texts = ["".join(LETTERS[k] for k in row) for row in drawn]

    def run() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            cache = extract_latents(decoder, texts, spec=ExtractionSpec(layers=("blocks",)), folder=own)
            if int(cache.n_tokens.max()) - T > 1:
                raise RuntimeError(f"texts of {T} letters have up to {cache.n_tokens.max()} tokens")

    return run


def prepare_logistic(_: Path, *, N: int, L: int, D: int) -> Run:
    """Fit probes of 4 classes and one C on latents in memory, with a fixed number of iterations."""
    from probes.logistic.problem import SolverOptions
    from probes.logistic.solver import fit_logistic

    latents, codes = torch.randn(L, N, D), torch.arange(N) % 4
    options = SolverOptions(max_iterations=ITERATIONS, tol=1e-12, gap_tol=1e-12)
    return lambda: fit_logistic(latents, codes, Cs=[1.0], options=options)


def prepare_pairs(folder: Path, *, N: int, L: int, D: int, head: str) -> Run:
    """Fit a head of pairs on `N` training pairs: an epoch, or what it takes without training."""
    from extract.store.cache import LatentCache
    from probes.data.pair_task import PairTask
    from probes.fitting.fit import fit_head
    from probes.fitting.fit_options import EpochOptions
    from probes.latents.text_latents import PairLatents
    from probes.networks.pair_networks import LayerCosine, SiameseCosine

    columns: dict[str, dict[str, list[Any]]] = {
        split: {
            "sentence1": [f"{split} {i} a" for i in range(n)],
            "sentence2": [f"{split} {i} b" for i in range(n)],
            "score": [float(i % 6) for i in range(n)],
        }
        for split, n in (("train", N), ("validation", 64))
    }
    task = PairTask("synthetic", PairTask.hold(columns), (0.0, 5.0), "made up")
    texts = [text for part in columns.values() for side in ("sentence1", "sentence2") for text in part[side]]
    cache: LatentCache = _write_texts(folder / "pairs.h5", texts, L=L, D=D)
    options = EpochOptions(max_epochs=1, batch_size=128)

    def run() -> None:
        data = PairLatents(cache, task, batch_size=options.batch_size)
        fit_head(SiameseCosine(L, D) if head == "siamese cosine" else LayerCosine(L, D), data, options=options)

    return run


def prepare_autoencoder(folder: Path, *, N: int, L: int, D: int) -> Run:
    """Fit the default autoencoders for an epoch."""
    from probes.fitting.fit import fit_layers
    from probes.fitting.fit_options import FitOptions
    from probes.latents.text_latents import TextLatents
    from probes.networks.layerwise_networks import LayerAutoencoder

    cache = _write_texts(folder / "texts.h5", [f"text {i}" for i in range(N)], L=L, D=D)
    options = FitOptions(batch_size=64, max_epochs=1)

    def run() -> None:
        fit_layers(LayerAutoencoder(L, D), TextLatents(cache, batch_size=64), options=options)

    return run


def prepare_tokens(folder: Path, *, N: int, L: int, D: int) -> Run:
    """Fit token classifiers of all layers on sentences of 15 words for an epoch."""
    from benchmarks.tokens import Sizes, synthetic_task, write_word_cache
    from probes.heads.word_fits import TokenOptions, fit_token_head
    from probes.latents.word_latents import WordLatents
    from probes.networks.layerwise_networks import TokenClassifier

    sizes = Sizes(n_sentences=N, n_layers=L, width=D, storage_dtype="float32")
    task = synthetic_task(sizes)
    cache = write_word_cache(folder / "words.h5", task.texts(), sizes)
    options = TokenOptions(max_epochs=1, epoch_steps=1, keep="last")

    def run() -> None:
        data = WordLatents(cache, task)
        head = TokenClassifier(L, D, len(data.classes), **options.head_arguments())
        fit_token_head(head, data, options)

    return run


def _write_texts(path: Path, texts: Sequence[str], *, L: int, D: int) -> Any:
    from benchmarks.big_caches import write_text_cache
    from benchmarks.tokens import Sizes

    return write_text_cache(path, texts, Sizes(len(texts), n_layers=L, width=D, storage_dtype="float32"))


def prepare(what: str, folder: Path, sizes: Mapping[str, int]) -> Run:
    """Make ready what is measured: decoders, texts and caches are there before."""
    torch.manual_seed(0)
    if what in ("siamese cosine", "layer cosine"):
        return prepare_pairs(folder, **sizes, head=what)
    made: dict[str, Callable[..., Run]] = {
        "extraction": prepare_extraction,
        "logistic probe": prepare_logistic,
        "autoencoder": prepare_autoencoder,
        "token classifier": prepare_tokens,
    }
    return made[what](folder, **sizes)


def resident(field: str) -> int:
    """Read `VmRSS` or its largest value `VmHWM` of this process, in bytes; Linux alone."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def peak_in_child(first: Run, run: Run) -> int:
    """Fork, run the one and then the other, and return by how many bytes the second exceeds what was there before."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        peak = -1
        try:
            first()  # what is loaded and reserved once
            trim_heap()
            before = resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the largest value begins again
            run()
            peak = resident("VmHWM") - before
        finally:
            os.write(writing, str(peak).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        peak = int(answer.read() or -1)
    os.waitpid(child, 0)
    if peak < 0:
        raise RuntimeError("a run ended without a peak; its message is above")
    return peak


def measure_curve(what: str, variable: str, *, repeats: int, folder: Path) -> dict[str, Any]:
    """Measure one curve in this process."""
    fixed, ranges = SIZES[what]
    values = ranges[variable]
    runs = []
    for k, value in enumerate(values):
        own = folder / str(k)
        own.mkdir()
        runs.append(prepare(what, own, {**fixed, variable: value}))
    peaks = [peak_in_child(runs[0], run) for run in runs]  # before this process computes anything
    for run in runs:
        run()
    rounds = []
    for k in range(repeats):
        order = range(len(values)) if k % 2 == 0 else reversed(range(len(values)))
        rounds.append(dict(sorted((i, _seconds(runs[i])) for i in order)))
    return {
        "what": what,
        "variable": variable,
        "values": list(values),
        "fixed": {key: value for key, value in fixed.items() if key != variable},
        "seconds": [statistics.median(each[i] for each in rounds) for i in range(len(values))],
        "ranges": [[min(each[i] for each in rounds), max(each[i] for each in rounds)] for i in range(len(values))],
        "peak_bytes": peaks,
    }


def _seconds(run: Run) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure_all(names: Sequence[str], *, repeats: int) -> list[dict[str, Any]]:
    """Measure every curve, each in a process of its own, and fit it."""
    found = []
    for what in names:
        for variable in SIZES[what][1]:
            command = [sys.executable, "-m", "benchmarks.growth", "--curve", what, variable, "--repeats", str(repeats)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            curve: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            for side in ("seconds", "peak_bytes"):
                curve[f"{side}_growth"] = fit_growth(curve["values"], curve[side]).to_dict()
            found.append(curve)
            sys.stderr.write(f"{what}, {variable}: {describe(curve)}\n")
    return found


def describe(curve: Mapping[str, Any]) -> str:
    """Describe a curve in one line."""
    times = ", ".join(f"{seconds:.3g}" for seconds in curve["seconds"])
    peaks = ", ".join(f"{peak / 1e6:.0f}" for peak in curve["peak_bytes"])
    return (
        f"{times} s ({exponent_cell(curve['seconds_growth'])}); {peaks} MB "
        f"({exponent_cell(curve['peak_bytes_growth'])})"
    )


def exponent_cell(growth: Mapping[str, Any]) -> str:
    """Write an exponent with its standard error, the slope between the largest sizes where none fits, or `flat`."""
    if growth["is_flat"]:
        return "flat"
    if growth["exponent"] is None:
        return f"about {growth['local']:.2f}"
    return f"{growth['exponent']:.2f}±{growth['error']:.2f}"


def table(curves: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write one row per thing measured: the exponents of time and of memory in each variable."""
    variables = list(dict.fromkeys(curve["variable"] for curve in curves))
    yield "| what | " + " | ".join(variables) + " |"
    yield "|---" * (1 + len(variables)) + "|"
    rows: dict[str, dict[str, str]] = {}
    for curve in curves:
        cell = f"{exponent_cell(curve['seconds_growth'])}, {exponent_cell(curve['peak_bytes_growth'])}"
        rows.setdefault(curve["what"], {})[curve["variable"]] = cell
    for what, cells in rows.items():
        yield f"| {what} | " + " | ".join(cells.get(variable, "") for variable in variables) + " |"


def page_with(curves: Sequence[Mapping[str, Any]], page: str) -> str:
    """Fill the table into a page, whose other tables stay."""
    kept = {"growth": "\n".join(table(curves))}
    before, mark, rest = page.partition("<!-- table: growth -->")
    inside, end, after = rest.partition("<!-- end -->")
    return before + filled(mark + inside + end, kept) + after


def main() -> None:
    """Measure the curves that were asked for, or write the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", nargs="*", choices=SIZES, default=list(SIZES), help="what is measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--curve", nargs=2, metavar=("WHAT", "VARIABLE"), help="measure one curve here, and print it")
    parser.add_argument("--page", action="store_true", help="write the committed numbers into docs/speed.md")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    if asked.curve:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(measure_curve(*asked.curve, repeats=asked.repeats, folder=Path(name))))
        return
    if not asked.page:
        curves = measure_all(asked.only, repeats=asked.repeats)
        result = {"repeats": asked.repeats, "curves": curves, **describe_machine()}
        asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if asked.page or asked.out == OUT:
        curves = json.loads(asked.out.read_text(encoding="utf-8"))["curves"]
        PAGE.write_text(page_with(curves, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
