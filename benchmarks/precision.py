"""bfloat16 instead of float32 on a CPU: `python -m benchmarks.precision`. What it saves, and what it does to each head.

The same runs on latents of both, paired on the rows of test; the speed is that of the forward pass with pooling, both
sides in turn. Writes benchmarks/results/cpu-precision.json.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.extraction import POOLINGS, choose_sentences, make_batches
from benchmarks.machine import describe_machine
from benchmarks.timing import compare
from extract.decoders.decoder import load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.wiring.states import pool_batch
from probes.cli.main import main as icecore
from probes.runs.compare import paired_tests
from probes.runs.predict import read_run_folder

OUT = Path(__file__).parent / "results" / "cpu-precision.json"
Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
HEADS: dict[str, tuple[str, ...]] = {
    "stsb": ("layer-cosine", "cosine-mlp", "cosine-linear", "siamese-cosine"),
    "banking77": ("logistic-probe", "nearest-centroid"),
    "banking77-clusters": ("layer-clusters",),
    "number-sample": ("ridge-probe",),
    "retrieval-sample": ("layer-search",),
    "reranking-sample": ("layer-rerank",),
    "pair-class-sample": ("layer-alike",),
    "bitext-sample": ("layer-translate",),
    "odd-sample": ("layer-odd",),
    "words-sample": ("token-classifier", "token-logistic", "token-normed", "token-mix"),
}
"""Task to the heads that are fitted on it."""


def run_heads(task: str, dtype: Dtype, *, decoder: str, rows: int, folder: Path) -> Path:
    """Fit the heads of a task on latents computed in a dtype; return the run's folder."""
    name = f"{task}-{dtype}"
    few = () if task.endswith("sample") else ("--task.pairs", str(rows))
    heads = "{" + ", ".join(f"{head}: {{}}" for head in HEADS[task]) + "}"
    where = ("--name", name, "--runs", str(folder), "--caches", str(folder / "caches"))
    told = ("--decoder.name", decoder, "--decoder.dtype", dtype, "--task.name", task, *few, "--heads", heads)
    if icecore(["run", *told, *where, "--quiet"]):
        raise SystemExit(f"the run {name} failed")
    return folder / name


def compare_heads(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Test every head in bfloat16 against itself in float32, on the same rows, both with the layer they chose."""
    found: dict[str, dict[str, Any]] = {}
    for head, score in read_run_folder(folders[0]).scores.heads.items():
        row = paired_tests(folders, head=head, against=folders[0].name).to_dict("records")[0]
        found[head] = {
            "metric": score.metric,
            "float32": score.summary["test"][score.metric].mean,
            **{key: float(row[key]) for key in ("difference", "low", "high", "bootstrap")},
        }
    return found


def compare_speed(name: str, *, sentences: int, repeats: int) -> dict[str, Any]:
    """Time forward passes with pooling in both dtypes, in turn, and say how far latents are apart."""
    decoders = {dtype: load_decoder(DecoderSpec(name, dtype=dtype), report=print) for dtype in DTYPES}
    batches = make_batches(decoders["float32"], choose_sentences(sentences)[1])

    def side(dtype: Dtype) -> list[torch.Tensor]:
        own = decoders[dtype]
        return [pool_batch(own, batch, poolings=POOLINGS, layers=own.layers) for batch in batches]

    sides = [(dtype, lambda dtype=dtype: side(dtype)) for dtype in DTYPES]
    timed = compare("float32 vs bfloat16", (sides[0], sides[1]), bar="(none)", repeats=repeats)
    cosines = [torch.cosine_similarity(a, b, dim=-1) for a, b in zip(*(side(d) for d in DTYPES), strict=True)]
    return {**timed.to_dict(), "lowest_cosine": min(float(each.min()) for each in cosines)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--tasks", nargs="*", default=list(HEADS), choices=HEADS)
    parser.add_argument("--rows", type=int, default=400, help="rows per split")
    parser.add_argument("--sentences", type=int, default=256, help="sentences that are timed; 0 for no timing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/precision"))
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    results: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {"heads": {}}
    for task in asked.tasks:
        where = [
            run_heads(task, dtype, decoder=asked.decoder, rows=asked.rows, folder=asked.folder) for dtype in DTYPES
        ]
        results["heads"][task] = compare_heads(where)
    if asked.sentences:
        results["speed"] = compare_speed(asked.decoder, sentences=asked.sentences, repeats=asked.repeats)
    results |= {"decoder": asked.decoder, "rows": asked.rows, **describe_machine()}
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: results.get(key) for key in ("heads", "speed")}, indent=1))


if __name__ == "__main__":
    main()
