"""Whether adapting a decoder makes it a better frozen encoder: adapters, what they can do, and probes.

    python -m benchmarks.adapted STUDY [SYSTEM ...] [--parts infilling,stsb]  # adapt and measure, or go on
    python -m benchmarks.adapted STUDY --out benchmarks/results/adapted-smollm2.json  # gather what is there
    python -m benchmarks.adapted STUDY --decoder gemma-3-270m-q4_k_m.gguf ...  # the same of another decoder
    python -m benchmarks.adapted STUDY SYSTEM ... --at-once 16  # in so many processes, on a GPU or many cores
    python -m benchmarks.adapted STUDY --beside benchmarks/results/adapted-smollm2.json  # probes of another device

A system is the decoder under a plan, or one of its adapters under `bidirectional`. STUDY holds `adapters/`,
`infilling/SYSTEM`, `runs/SYSTEM-TASK` and caches. The reference of all differences is the best plan without training.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from extract.decoders.decoder import choose_device
from probes.adaptation.abilities import compare_abilities
from probes.adaptation.adapt import RECORD, WEIGHTS
from probes.adaptation.adapt_config import OBJECTIVES
from probes.cli.arguments import read_command
from probes.cli.commands import find_command
from probes.cli.main import main as icecore
from probes.metrics.bootstrap import Difference
from probes.metrics.significance import correct_p_values
from probes.report.scores import without_nan
from probes.runs.compare import compare, read_runs

DECODER = "smollm2-135m-instruct"
SHAPES = {
    DECODER: ("nosink-bidirectional:10", "10,14,18,20,22,24,26,28,final_norm"),
    "gemma-3-270m-q4_k_m": ("nosink-bidirectional:9", "5,7,9,11,12,13,14,16,final_norm"),
}
"""Decoder, or stem of its file, to its best plan without training and the layers at which words are read."""
PLANS = ("nosink", "causal", "bidirectional")
"""Without training; the first, the best plan of `SHAPES`, is the reference of probes."""
BASE = "causal"
"""What stands for the decoder in abilities, which have plans of their own."""
WIKI = "configs/adapt/wiki.yaml"
HERE = ["--corpus", "[{files: enwiki2006/paragraphs.jsonl, column: paragraphs}]", "--exclude", "[stsb]"]
"""Texts that are at hand, in the place of those of published recipes."""
TRIPLES = "{files: snli/triples.train.jsonl, negative: negative, batch: 64, length: 128, temperature: 0.1}"
ADAPTERS = {
    "wiki-0": [WIKI],
    "wiki-1": [WIKI, "--seed", "1"],
    "wiki-2": [WIKI, "--seed", "2"],
    "mntp": [WIKI, "--phases", "[{steps: 300, weights: {mntp: 1}}]"],
    "mntp-msg": [WIKI, "--phases", "[{steps: 300, weights: {mntp: 1, msg: 1}}]"],
    "all": [
        WIKI,
        "--phases",
        "[{steps: 200, weights: {mntp: 1, msg: 1}}, {steps: 100, weights: {mntp: 1, msg: 1, sscl: 9}}]",
    ],
    "mtp": [WIKI, "--phases", "[{steps: 300, weights: {mtp: 1}}]"],
    "llm2vec": ["configs/adapt/llm2vec.yaml", *HERE],
    "magnet": ["configs/adapt/magnet.yaml", *HERE, "--objectives.sscl", TRIPLES],
}
"""Name to the configuration and what differs from it; those of published recipes are for a GPU."""
SYSTEMS = (*PLANS, *ADAPTERS)
SIAMESE = "{encoder: linear, bottleneck: 256, loss: log-variance, patience: 10}"
TASKS = {
    "stsb": (
        ["configs/stsb-nosink.yaml", "--heads", f"{{layer-cosine: {{}}, siamese-cosine: {SIAMESE}}}", "--seeds", "0"],
        ("layer-cosine", "siamese-cosine"),
    ),
    "wnut17": (["configs/wnut17-ner.yaml"], ("token-classifier",)),
    "ud-ewt": (["configs/ud-ewt-pos.yaml", "--task.pairs", "2000"], ("token-classifier",)),
    "conll2000": (["configs/conll2000-chunk.yaml", "--task.pairs", "2000", "--seeds", "0"], ("token-classifier",)),
}
"""Task, and folder in $ICECORE_DATA, to its run and the heads that are compared; without the folder it is left out."""
WORDS = ("wnut17", "ud-ewt", "conll2000")
"""Tasks that are read at some layers."""
SAME = 1e-3
"""Largest difference of the first seed of a reference that was measured twice."""
INFILLING = ["--rows", "200", "--continuations", "100", "--choices", "100"]


def plan_of(system: str, decoder: str) -> str:
    """Name the plan under which a system is probed."""
    best, _ = SHAPES[_stem(decoder)]
    return {"nosink": best, "causal": "causal"}.get(system, "bidirectional")


def _stem(decoder: str) -> str:
    return Path(decoder).name.removesuffix(".gguf")


def measure(study: Path, system: str, parts: list[str], decoder: str) -> None:
    """Make the adapter of a system, measure what it can do, and probe it; what is there is found."""
    adapter = study / "adapters" / system
    is_adapted = system in ADAPTERS
    if is_adapted and not (adapter / WEIGHTS).exists():  # written last
        where = ["--decoder.name", decoder, "--name", system, "--adapters", str(adapter.parent)]
        _icecore("adapt", *ADAPTERS[system], *where)
    folder = study / "infilling" / system
    if "infilling" in parts and (is_adapted or system == BASE) and not (folder / "scores.json").exists():
        _icecore("infill", decoder, *["--adapter", str(adapter)] * is_adapted, *INFILLING, "--out", str(folder))
    _, layers = SHAPES[_stem(decoder)]
    adapted = ["--decoder.adapter", str(adapter)] if is_adapted else []
    for task, (run, _) in TASKS.items():
        if task not in parts:
            continue
        if not (Path(os.environ.get("ICECORE_DATA", "nowhere")) / task).is_dir():
            print(f"{task} is left out: it is not in $ICECORE_DATA", flush=True)
        else:
            where = ["--name", f"{system}-{task}", "--runs", str(study / "runs"), "--caches", str(study / "caches")]
            under = ["--decoder.name", decoder, "--extraction.plan", plan_of(system, decoder), *adapted]
            _icecore("run", *run, *where, *under, *["--extraction.layers", layers] * (task in WORDS))


def measure_at_once(study: Path, systems: list[str], parts: list[str], decoder: str, n_processes: int) -> None:
    """Measure systems in processes of their own, the parts of one beside each other; `STUDY/logs` has what they say."""
    logs = study / "logs"
    logs.mkdir(parents=True, exist_ok=True)

    def one(system: str, part: str) -> None:
        command = [sys.executable, "-m", "benchmarks.adapted", str(study), system, "--decoder", decoder]
        with (logs / f"{system}-{part or 'adapter'}.log").open("a", encoding="utf-8") as log:
            subprocess.run([*command, f"--parts={part}"], stdout=log, stderr=subprocess.STDOUT, check=True)
        sys.stdout.write(f"{system} {part or 'adapter'}\n")

    with ThreadPoolExecutor(n_processes) as pool:
        adapters = {pool.submit(one, system, ""): system for system in systems if system in ADAPTERS}
        measured = [pool.submit(one, system, part) for system in systems if system not in ADAPTERS for part in parts]
        for made in as_completed(adapters):
            if not made.exception():
                measured += [pool.submit(one, adapters[made], part) for part in parts]
        failed = [error for future in [*adapters, *measured] if (error := future.exception())]
    if failed:
        raise SystemExit("\n".join(f"{error}; {logs} says why" for error in failed))


def _icecore(*words: str) -> None:
    print("icecore", *words, flush=True)
    status = icecore([*words, "--verbose"])
    if status:
        raise SystemExit(status)


def gather(study: Path, decoder: str = DECODER) -> dict[str, Any]:
    """Gather what adapters are, abilities over the decoder's, and probes over the best plan without training."""
    return {
        "machine": describe_machine(choose_device("auto")),
        "decoder": _stem(decoder),
        "plans": {system: plan_of(system, decoder) for system in PLANS},
        "adapters": {name: _adapter(study, name) for name in ADAPTERS if _is_there(study, name)},
        "abilities": _abilities(study),
        "tasks": _tasks(study),
    }


def gather_beside(study: Path, file: Path) -> dict[str, Any]:
    """Add what was measured on another device, where heads differ: of the same adapters, or of those `trained_here`.

    What an earlier study there has measured of other systems stays; the p-values of all systems of a probe are
    corrected for their number.
    """
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    before = results.get("beside", {"abilities": [], "trained_here": [], "adapters": {}, "tasks": {}})
    adapters = {name: _adapter(study, name) for name in ADAPTERS if (study / "adapters" / name / RECORD).exists()}
    measured = {(row["ability"], row["system"], row["plan"]): row for row in [*before["abilities"], *_abilities(study)]}
    beside = {"machine": describe_machine(choose_device("auto")), "abilities": [*measured.values()]}
    beside["trained_here"] = [name for name in ADAPTERS if name in (*before["trained_here"], *adapters)]
    beside["adapters"] = before.get("adapters", {}) | adapters
    tasks = {name: _join_rows(name, before["tasks"].get(name, []), rows) for name, rows in _tasks(study).items()}
    return results | {"beside": beside | {"tasks": tasks}}


def _join_rows(name: str, before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add rows to those of an earlier study, which must have the same reference."""
    if not (before and now):
        return before or now
    reference, *added = now
    first, again = (row.get("by_seed", [row["test"]])[0] for row in (before[0], reference))
    is_same = all(reference[key] == before[0][key] for key in ("run", "device"))
    if not is_same or abs(again - first) > SAME:
        raise SystemExit(
            f"{name}: the reference {reference['run']} has {again:.4f} and had {first:.4f}; measure all systems on one "
            "machine."
        )
    rows = {row["run"]: row for row in [*before, *added]}
    return _corrected(sorted(rows.values(), key=lambda row: SYSTEMS.index(row["run"])))


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Correct the p-values of rows, of which the first is the reference, by Holm for their number.

    Rows that were gathered without raw p-values stay as they are, corrected for those beside them then; the others are
    multiplied by the number of all.
    """
    reference, *compared = rows
    raw = [row.get("raw_p_value") for row in compared]
    if all("raw_p_value" in row for row in compared):
        corrected = correct_p_values([float("nan") if p_value is None else p_value for p_value in raw]).tolist()
    else:
        corrected = [
            row["p_value"] if p_value is None else min(1.0, p_value * len(compared))
            for row, p_value in zip(compared, raw, strict=True)
        ]
    pairs = zip(compared, corrected, strict=True)
    return [reference, *(without_nan({**row, "p_value": p_value}) for row, p_value in pairs)]


def _tasks(study: Path) -> dict[str, Any]:
    return {f"{task} {head}": _probes(study, task, head) for task, (_, heads) in TASKS.items() for head in heads}


def _is_there(study: Path, system: str) -> bool:
    return (study / "adapters" / system / RECORD).exists() or (study / "infilling" / system / "scores.json").exists()


def _adapter(study: Path, name: str) -> dict[str, Any]:
    """Describe an adapter by its record, or where it was not kept by the settings of the study."""
    path = study / "adapters" / name / RECORD
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        made = ("plan", "objectives", "steps", "dropped", "best_step", "held_out")
        cost = ("tokens", "tokens_per_second", "seconds", "versions")
        asked = {key: record["config"][key] for key in ("seed", "phases", "lora", "training")}
        return {**asked, **{key: record[key] for key in (*made, *cost)}}
    config = read_command(find_command("adapt"), ADAPTERS[name]).config
    settings = {key: asdict(config)[key] for key in ("plan", "seed", "phases", "lora", "training")}
    return settings | {"objectives": [name for name in OBJECTIVES if name in config.used], "steps": config.steps}


def _abilities(study: Path) -> list[dict[str, Any]]:
    folders = [study / "infilling" / system for system in (BASE, *ADAPTERS)]
    there = [folder for folder in folders if (folder / "scores.json").exists()]
    own = {(row.name, folder.name, row.plan): row.over_first for folder in there for row in compare_abilities([folder])}
    rows = []
    for row in compare_abilities(there) if len(there) > 1 else []:
        gain = row.over_plan or row.over_first
        rows.append(
            {"ability": row.name, "system": row.folder, "plan": row.plan, "value": row.score.mean}
            | {"low": row.score.low, "high": row.score.high, "n_units": row.n_units}
            | ({"difference": _ends(gain)} if gain else {})
            | ({"p_value": row.p_value} if gain is row.over_first and gain else {})
            | ({"over_own_causal": _ends(sides)} if (sides := own[row.name, row.folder, row.plan]) else {})
        )
    return rows


def _ends(gain: Difference) -> list[float]:
    return [gain.value, gain.low, gain.high]


def _probes(study: Path, task: str, head: str) -> list[dict[str, Any]]:
    """Compare runs with the first; all are on one device, as a trained head differs from one to another."""
    folders = {system: study / "runs" / f"{system}-{task}" for system in SYSTEMS}
    there = {system: path for system, path in folders.items() if (path / "scores.json").exists()}
    if not there:
        return []
    runs = dict(zip(there, read_runs(list(there.values()), head), strict=True))
    device = {system: str(run.folder.values["device"]) for system, run in runs.items()}
    if len({*device.values()}) > 1:
        raise SystemExit(f"{study}: runs of {task} are on {' and '.join({*device.values()})}; keep a study for each.")
    by = "source" if task == "stsb" else ""
    gains: dict[str, dict[str, Any]] = {}
    if len(there) > 1:
        compared = compare(list(there.values()), head=head, by=by)
        gains = dict(zip(there, compared.table.to_dict("records"), strict=True))
        for system, p_value in zip([*there][1:], compared.raw_p_values, strict=True):
            gains[system]["raw_p_value"] = p_value
        for k, system in enumerate([*there][1:] if by else ()):
            gains[system]["by_source"] = {part.value: _ends(part.differences[k]) for part in compared.parts}
    rows = []
    for system, run in runs.items():
        metric = run.result.metric
        means = {split: run.result.mean(split) for split in ("validation", "test")}
        test = run.result.summary["test"][metric]
        row = {"plan": run.plan, "head": head, "metric": metric, **means, "difference": None, "low": None, "high": None}
        about = {"layer": run.result.chosen.get("layer"), "interval": [test.low, test.high], "device": device[system]}
        about |= {"by_seed": list(test.values)} if len(test.values) > 1 else {}
        rows.append(without_nan({**row, **gains.get(system, {}), "run": system, **about}))
    return rows


def main() -> None:
    """Measure systems, or gather what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--decoder", default=DECODER, help=f"of {', '.join(SHAPES)}, or its .gguf file")
    parser.add_argument("--parts", default=",".join(["infilling", *TASKS]))
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--beside", type=Path, metavar="FILE", help="add what this study measured to a gathered one")
    asked = parser.parse_args()
    if _stem(asked.decoder) not in SHAPES:
        parser.error(f"{asked.decoder!r} is no decoder of the study; allowed: {', '.join(SHAPES)}, or its .gguf file.")
    for system in asked.systems:
        if system not in SYSTEMS:
            parser.error(f"{system!r} is no system; allowed: {', '.join(SYSTEMS)}.")
    parts = [part for part in asked.parts.split(",") if part]
    if asked.at_once > 1:
        measure_at_once(asked.study, asked.systems, parts, asked.decoder, asked.at_once)
    else:
        for system in asked.systems:
            measure(asked.study, system, parts, asked.decoder)
    if asked.out:
        asked.out.write_text(json.dumps(gather(asked.study, asked.decoder), indent=1) + "\n", encoding="utf-8")
    if asked.beside:
        asked.beside.write_text(json.dumps(gather_beside(asked.study, asked.beside), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
