"""Training-free encoders side by side: `python -m benchmarks.training_free [--decoders A,B] [--tasks stsb] [--rows N]`.

Each encoder is one run of `icecore run`, whose options the table shows; layers are chosen on validation, and test is
read once. Writes benchmarks/results/training_free.json; encoders that are there already are not computed again.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probes.cli.main import main as icecore
from probes.report.document import best_result
from probes.runs.compare import paired_tests
from probes.runs.folder import describe_program
from probes.runs.predict import read_run_folder

OUT = Path(__file__).parent / "results" / "training_free.json"


@dataclass(frozen=True)
class Encoder:
    """An encoder: the pooling read, all those of its extraction, which others share, options, and what cosines see."""

    reads: str
    poolings: str
    options: tuple[str, ...] = ()
    transform: str = "none"


def _both(reads: str, first: str, *options: str) -> Encoder:
    """Read the mean or the last token, of a cache that holds both."""
    return Encoder(f"{first}{reads}", f"[{first}last,{first}mean]", options)


def _plan(plan: str) -> tuple[str, ...]:
    return "--extraction.plan", plan


def _named(name: str) -> tuple[str, ...]:
    return "--extraction.template.name", name


def _taps(tap: str) -> tuple[str, ...]:
    return "--extraction.layers", f"taps:{tap}"


TWICE = ("--extraction.template.repeat", "2")
ENCODERS: dict[str, Encoder] = {
    "mean": _both("mean", ""),
    "mean, standardised": replace(_both("mean", ""), transform="standardise"),
    "last": _both("last", ""),
    "PromptEOL, one word": Encoder("last", "last", _named("prompt-eol")),
    "pretended CoT, one word": Encoder("last", "last", _named("pretended-cot")),
    "knowledge, one word": Encoder("last", "last", _named("knowledge")),
    "echo, mean": _both("mean", "echo-", *_named("echo")),
    "echo, last": _both("last", "echo-", *_named("echo")),
    "ReBA-2, mean": _both("mean", "reba-", *TWICE),
    "ReBA-2, last": _both("last", "reba-", *TWICE),
    "Token Prepending, one word": Encoder("last", "last", (*_plan("causal~tp1-{fifth}"), *_named("prompt-eol"))),
    "KV prefix, one word": Encoder("last", "last", (*_plan("causal~kv{two fifths}-{half}"), *_named("kv-embedding"))),
    "attention tap, mean": Encoder("mean", "mean", _taps("attention")),
    "value tap, mean": Encoder("mean", "mean", _taps("value")),
    **{
        f"no sink, top {k}, mean": _both("mean", "", *_plan(f"nosink-bidirectional:{{{k}}}"))
        for k in ("sixth", "third", "half")
    },
    "no sink, top third, mean, standardised": replace(
        _both("mean", "", *_plan("nosink-bidirectional:{third}")), transform="standardise"
    ),
    "no sink, top third, last": _both("last", "", *_plan("nosink-bidirectional:{third}")),
    "no sink, middle third, mean": _both("mean", "", *_plan("nosink-bidirectional@{third}-{two thirds}")),
    "no sink, top third, echo, mean": _both("mean", "echo-", *_plan("nosink-bidirectional:{third}"), *_named("echo")),
    "no sink, top third, pretended CoT": Encoder(
        "last", "last", (*_plan("nosink-bidirectional:{third}"), *_named("pretended-cot"))
    ),
}
"""Encoder to what `icecore run` is told to make it; blocks are shares of the depth."""
SHARES = {"sixth": 1 / 6, "fifth": 1 / 5, "third": 1 / 3, "two fifths": 2 / 5, "half": 1 / 2, "two thirds": 2 / 3}
TASKS: dict[str, str] = {
    "stsb": "layer-cosine",
    "banking77": "few-shot-probe",
    "banking77-clusters": "layer-clusters",
    "odd-sample": "layer-odd",
}
"""Task to the head that scores it without training, or on a few rows."""
TRANSFORMED = ("stsb",)
"""Tasks whose head is shown transformed latents too."""
WORD_TASKS = ("odd-sample",)
OF_WORDS = {"mean": "mean", "echo-mean": "echo", "reba-mean": "reba"}
"""Pooling of a text to that of a word, for tasks of words."""


def has_encoder(task: str, encoder: str) -> bool:
    """Whether an encoder reads what a task compares: a last token is that of a text, not of a word in it."""
    if ENCODERS[encoder].transform != "none" and task not in TRANSFORMED:
        return False
    return task not in WORD_TASKS or ENCODERS[encoder].reads in OF_WORDS


def options_of(task: str, encoder: str, decoder: str, *, rows: int, depth: int) -> tuple[str, ...]:
    """Return the options of `icecore run` for one cell of the table."""
    own = ENCODERS[encoder]
    reads, poolings = own.reads, ("--extraction.poolings", own.poolings)
    if task in WORD_TASKS:
        reads = OF_WORDS[own.reads]
        poolings = ("--extraction.words.poolings", reads)
    transform = f"transform: {own.transform}, " * (task in TRANSFORMED)
    heads = ("--heads", f"{{{TASKS[task]}: {{{transform}pooling: {reads}}}}}")
    few = ("--task.pairs", str(rows)) if rows and not task.endswith("sample") else ()
    forced = ("--extraction.template.bos", "force")
    blocks = {share: round(part * depth) for share, part in SHARES.items()}
    options = [option.format(**blocks) for option in own.options]
    return ("--decoder.name", decoder, "--task.name", task, *few, *heads, *forced, *poolings, *options)


def run_one(folder: Path, encoder: str, options: Sequence[str]) -> Path:
    """Run an encoder, unless it was, and return its folder."""
    name = encoder.replace(", ", "-").replace(" ", "-").lower()
    if not (folder / name / "scores.json").exists():
        where = ("--name", name, "--runs", str(folder), "--caches", str(folder.parent / "caches"))
        if icecore(["run", *options, *where, "--quiet"]):
            raise SystemExit(f"{encoder} failed: icecore run {' '.join(options)}")
    return folder / name


def describe(folder: Path) -> dict[str, Any]:
    """Return the chosen layer, the scores of a run, and the tokens that its texts took."""
    run = read_run_folder(folder)
    result = best_result(list(run.scores.heads.values()))
    scores = {split: result.summary[split][result.metric].to_dict() for split in ("validation", "test")}
    n_tokens = int(np.sum(run.cache().n_tokens))
    return {"head": result.name, "metric": result.metric, "chosen": dict(result.chosen), **scores, "n_tokens": n_tokens}


def compare_encoders(found: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """Test every encoder against the plain mean on the same rows, corrected by Holm."""
    table = paired_tests(list(found.values()), against=found["mean"].name)
    by_name = {path.name: encoder for encoder, path in found.items()}
    keep = ("difference", "low", "high", "bootstrap_corrected")
    return {by_name[row["one"]]: {key: float(row[key]) for key in keep} for row in table.to_dict("records")}


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoders", default="smollm2-135m-instruct")
    parser.add_argument("--tasks", default="stsb,odd-sample")
    parser.add_argument("--encoders", default="; ".join(ENCODERS))
    parser.add_argument("--rows", type=int, default=0, help="rows per split; all when 0")
    parser.add_argument("--depth", type=int, default=30, help="blocks of the decoders")
    parser.add_argument("--folder", type=Path, default=Path("runs/training-free"))
    chosen = parser.parse_args(arguments)
    results: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for decoder in chosen.decoders.split(","):
        for task in chosen.tasks.split(","):
            options = {
                encoder: options_of(task, encoder, decoder, rows=chosen.rows, depth=chosen.depth)
                for encoder in dict.fromkeys(("mean", *chosen.encoders.split("; ")))
                if has_encoder(task, encoder)
            }
            folder = chosen.folder / f"{task}-{Path(decoder).stem}-{chosen.rows}"
            found = {encoder: run_one(folder, encoder, own) for encoder, own in options.items()}
            gaps = compare_encoders(found)
            rows = {
                encoder: {**describe(path), **gaps.get(encoder, {}), "options": " ".join(options[encoder])}
                for encoder, path in found.items()
            }
            results[f"{Path(decoder).stem} {task}"] = {
                "rows_per_split": chosen.rows,
                "encoders": rows,
                **describe_program(),
            }
            OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(f"{decoder} {task}")
            for encoder, row in rows.items():
                gap = f"{100 * row['difference']:+5.1f}" if "difference" in row else "     "
                print(f"  {encoder:30} {100 * row['test']['mean']:5.1f} {gap}  {row['chosen'].get('layer', '')}")


if __name__ == "__main__":
    main()
