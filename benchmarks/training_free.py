"""Training-free encoders side by side: `python -m benchmarks.training_free [--decoders A,B] [--tasks stsb] [--rows N]`.

Each encoder is one run of `icecore run`, whose options the table shows; layers are chosen on validation, and test is
read once. Writes benchmarks/results/training_free.json; encoders that are there already are not computed again.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probes.cli.main import main as icecore
from probes.report.lead import best_result
from probes.runs.existing import find_cache_of_run
from probes.runs.finished import read_finished
from probes.runs.paired_tests import paired_tests
from probes.runs.record import describe_program

OUT = Path(__file__).parent / "results" / "training_free.json"
FORCE = ("--extraction.template.bos", "force")
POOLINGS = "--extraction.poolings"
LAST = (POOLINGS, "last")
WORD_TASKS = ("odd-sample",)


def _named(name: str, *more: str) -> tuple[str, ...]:
    return ("--extraction.template.name", name, *(more or LAST))


def _plan(plan: str, *more: str) -> tuple[str, ...]:
    return ("--extraction.plan", plan, *more)


def _taps(tap: str, pooling: str = "mean") -> tuple[str, ...]:
    return ("--extraction.layers", f"taps:{tap}", POOLINGS, pooling)


ENCODERS: dict[str, tuple[str, ...]] = {
    "mean": (),
    "last": LAST,
    "PromptEOL, one word": _named("prompt-eol"),
    "pretended CoT, one word": _named("pretended-cot"),
    "knowledge, one word": _named("knowledge"),
    "echo, mean": _named("echo", POOLINGS, "echo-mean"),
    "echo, last": _named("echo", POOLINGS, "echo-last"),
    "ReBA-2, mean": ("--extraction.template.repeat", "2", POOLINGS, "reba-mean"),
    "ReBA-2, last": ("--extraction.template.repeat", "2", POOLINGS, "reba-last"),
    "Token Prepending, one word": _plan("causal~tp1-6", *_named("prompt-eol")),
    "KV prefix, one word": _plan("causal~kv12-15", *_named("kv-embedding")),
    "attention tap, mean": _taps("attention"),
    "value tap, mean": _taps("value"),
    **{f"no sink, top {k}": _plan(f"nosink-bidirectional:{k}") for k in (5, 10, 15, 20)},
    **{f"no sink, {a} to {b}": _plan(f"nosink-bidirectional@{a}-{b}") for a, b in ((17, 20), (21, 26))},
    "no sink, top 10, echo, mean": _plan("nosink-bidirectional:10", *_named("echo", POOLINGS, "echo-mean")),
}
"""Encoder to the options of `icecore run` that make it."""
TASKS: dict[str, tuple[str, ...]] = {
    "stsb": ("--task.name", "stsb", "--heads", "{layer-cosine: {transform: none}}"),
    "banking77": ("--task.name", "banking77", "--heads", "{few-shot-probe: {}}"),
    "banking77-clusters": ("--task.name", "banking77-clusters", "--heads", "{layer-clusters: {}}"),
    "odd-sample": ("--task.name", "odd-sample", "--heads", "{layer-odd: {}}"),
}
"""Task to the options that score it without training, or on a few rows."""


OF_WORDS = {"mean": "mean", "last": "last", "echo-mean": "echo", "echo-last": "echo-last", "reba-mean": "reba"}
"""Pooling of a text to that of a word, for tasks of words."""


def has_encoder(task: str, encoder: str) -> bool:
    """Whether an encoder reads what a task compares: prompts and `reba-last` read texts, not words."""
    return task not in WORD_TASKS or (pooling_of(encoder) in OF_WORDS and "one word" not in encoder)


def pooling_of(encoder: str) -> str:
    """Return the pooling of texts that an encoder reads."""
    options = ENCODERS[encoder]
    return options[options.index(POOLINGS) + 1] if POOLINGS in options else "mean"


def options_of(task: str, encoder: str, decoder: str, rows: int) -> tuple[str, ...]:
    """Return the options of `icecore run` for one cell of the table."""
    own = ENCODERS[encoder]
    if task in WORD_TASKS:
        place = own.index(POOLINGS) if POOLINGS in own else len(own)
        own = (*own[:place], *own[place + 2 :], "--extraction.words.poolings", OF_WORDS[pooling_of(encoder)])
    few = ("--task.pairs", str(rows)) if rows and not task.endswith("sample") else ()
    return ("--decoder.name", decoder, *FORCE, *TASKS[task], *few, *own)


def run_one(folder: Path, task: str, encoder: str, *, decoder: str, rows: int) -> Path:
    """Run an encoder on a task, unless it was, and return its folder."""
    name = f"{task}-{encoder}-{decoder}-{rows}".replace(", ", "-").replace(" ", "-").lower()
    if not (folder / name / "scores.json").exists():
        where = ("--name", name, "--runs", str(folder), "--caches", str(folder.parent / "caches"))
        if icecore(["run", *options_of(task, encoder, decoder, rows), *where, "--quiet"]):
            raise SystemExit(f"{encoder} failed on {task}")
    return folder / name


def describe(folder: Path) -> dict[str, Any]:
    """Return the chosen layer, the scores of a run, and the tokens that its texts took."""
    run = read_finished(folder)
    result = best_result(list(run.scores.heads.values()))
    scores = {split: result.summary[split][result.metric].to_dict() for split in ("validation", "test")}
    n_tokens = int(np.sum(find_cache_of_run(folder, "").n_tokens))
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
    parser.add_argument("--folder", type=Path, default=Path("runs/training-free"))
    chosen = parser.parse_args(arguments)
    results: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for decoder in chosen.decoders.split(","):
        for task in chosen.tasks.split(","):
            found = {
                encoder: run_one(chosen.folder, task, encoder, decoder=decoder, rows=chosen.rows)
                for encoder in dict.fromkeys(("mean", *chosen.encoders.split("; ")))
                if has_encoder(task, encoder)
            }
            gaps = compare_encoders(found)
            rows = {
                encoder: {**describe(path), **gaps.get(encoder, {}),
                          "options": " ".join(options_of(task, encoder, decoder, chosen.rows))}
                for encoder, path in found.items()
            }  # fmt: skip
            results[f"{decoder} {task}"] = {"rows_per_split": chosen.rows, "encoders": rows, **describe_program()}
            OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(f"{decoder} {task}")
            for encoder, row in rows.items():
                gap = f"{100 * row['difference']:+5.1f}" if "difference" in row else "     "
                print(f"  {encoder:30} {100 * row['test']['mean']:5.1f} {gap}  {row['chosen'].get('layer', '')}")


if __name__ == "__main__":
    main()
