"""The numbers of a finished run, sweep, search or pretraining, under names that do not depend on how they are stored.

This is the only module that knows the layout of a run folder. When the layout changes, change this module and leave the
golden files as they are. A key that is neither taken nor left out is an error, so that no result goes unrecorded.

Names (`HEAD` stands for a head, behind `plans/PLAN/` in a sweep or search):

    task/..., cache/..., protocol       what was read
    HEAD/SPLIT/METRIC/...               mean, std, low, high, confidence, values (one per seed)
    HEAD/seed_N/...                     best_epoch, identical_similarity, history/KEY (one per epoch), scores
    HEAD/chosen/..., HEAD/curve/...     the chosen point, and scores over layers
    HEAD/...                            all else that is known of the head
    predictions/SPLIT/HEAD              one per row or word
    chosen/HEAD/..., search/..., autoencoders/POOLING/...
"""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Numbers = dict[str, Any]
"""Name to a number, text, truth value or None, or to a list (of lists) of them."""

HEAD_TAKEN = ("pooling", "layers", "is_optimistic", "chosen")
HEAD_TURNED = ("summary", "seeds", "curves", "baselines", "extras")
HEAD_LEFT = ("options", "metric", "selection", "selection_score", "optimistic_because", "departures")
"""Settings, sentences, and what stands elsewhere too."""
EXTRAS_TURNED = ("subsets", "by_type", "errors")
TASK_TAKEN = (
    "n_pairs",
    "n_rows",
    "n_classes",
    "class_names",
    "has_groups",
    "metrics",
    "score_range",
    "tags",
    "scheme",
    "has_documents",
    "resampled",
    "n_sentences",
    "n_words",
    "words_in_cache",
    "is_sample",
)
TASK_LEFT = ("kind", "name", "source", "digest", "notes", "licence")
TASK_COMMON = {"pairs": ("n_rows", "metrics"), "words": ("n_rows",)}
"""Keys that every kind of task has since schema 3, and the golden files of these kinds do not."""
CACHE_TAKEN = ("plan", "poolings", "storage_dtype", "n_rows", "n_truncated", "certificate")
CACHE_LEFT = ("file", "id", "template")
TOP_TURNED = (
    "what",
    "kind",
    "task",
    "cache",
    "heads",
    "pretraining",
    "plans",
    "chosen",
    "search",
    "cost",
    "test_read",
    "protocol",
    "n_resamples",
)
TOP_LEFT = (
    "schema",
    "name",
    "command",
    "commit",
    "versions",
    "products",
    "device",
    "decoder",
    "seconds",
    "config_sha256",
    "sha256",
    "own",
    "baselines",
    "over_cosine",
    "grid",
)


def numbers_of(folder: Path) -> Numbers:
    """Collect the numbers of a folder.

    Args:
        folder: A folder that a run, sweep, search or pretraining has finished.

    Returns:
        Every number, by its name.
    """
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    _require_known(scores, TOP_TURNED + TOP_LEFT, "scores.json")
    is_run = scores["what"] == "run"
    found: Numbers = {key: scores[key] for key in ("protocol", "n_resamples") if is_run}
    task = {key: value for key, value in scores["task"].items() if key not in TASK_COMMON.get(scores["kind"], ())}
    found |= _taken("task", task, TASK_TAKEN, TASK_LEFT)
    if "cache" in scores:
        found |= _taken("cache", scores["cache"], CACHE_TAKEN, CACHE_LEFT)
    found |= _heads("", scores.get("heads", {}), scores["kind"])
    found |= _autoencoders(scores.get("pretraining", {}))
    found |= _plans(scores) if "plans" in scores else {}
    found |= _predictions(folder)
    # How many batches were proved depends on when rows were closed, and so on time.
    return {name: value for name, value in found.items() if "/certificate/batches/" not in name}


def _heads(prefix: str, heads: Mapping[str, Any], kind: str) -> Numbers:
    found: Numbers = {}
    for name, result in heads.items():
        place, extras = f"{prefix}{name}", result["extras"]
        found |= _taken(place, result, HEAD_TAKEN, HEAD_TURNED + HEAD_LEFT)
        found |= {f"{place}/metric": result["metric"]} if kind == "words" else {}
        found |= _flat(place, result["summary"])
        for seed in result["seeds"]:
            found |= _seed(f"{place}/seed_{seed['seed']}", seed)
        found |= _flat(place, result["baselines"])
        found |= _flat(place, {key: value for key, value in extras.items() if key not in EXTRAS_TURNED})
        found |= _flat(f"{place}/subset", extras.get("subsets", {}))
        found |= _curves(place, result, extras)
        for split, rows in extras.get("by_type", {}).items():
            for row in rows:
                counts = {key: value for key, value in row.items() if key != "type"}
                found |= _flat(f"{place}/{split}/type {row['type']}", counts)
        for split, rows in extras.get("errors", {}).items():
            found |= _columns(f"{place}/{split}/errors", rows)
    return found


def _curves(place: str, result: Mapping[str, Any], extras: Mapping[str, Any]) -> Numbers:
    """Name curves over layers as the golden files do: by split, metric and kind, by kind, or as a surface."""
    curves = result["curves"]
    if not curves:
        return {}
    if "Cs" in extras:
        columns = [curve["values"] for curve in curves]
        return {f"{place}/surface": [list(row) for row in zip(*columns, strict=True)]}
    if curves[0]["by_seed"]:
        [curve] = curves
        by_layer = {
            "split": curve["split"],
            "mean": curve["values"],
            "std": curve["spread"],
            "values": curve["by_seed"],
        }
        return _flat(f"{place}/curve", by_layer)
    if "threshold" in result["chosen"]:
        return {f"{place}/curve/{curve['name']}": curve["values"] for curve in curves}
    return {f"{place}/curve/{curve['split']}/{curve['metric']}/{curve['name']}": curve["values"] for curve in curves}


def _seed(place: str, seed: Mapping[str, Any]) -> Numbers:
    left = {key: value for key, value in seed.items() if key not in ("seed", "seconds", "history")}
    return {**_flat(place, left), **_columns(f"{place}/history", seed["history"])}


def _autoencoders(pretraining: Mapping[str, Any]) -> Numbers:
    found: Numbers = {}
    for pooling, record in pretraining.get("autoencoders", {}).items():
        place = f"autoencoders/{pooling}"
        found |= _taken(
            place,
            record,
            ("layers", "codes", "seed", "best_epochs", "held_out_losses", "held_out_squared_errors", "n_texts"),
            ("history", "seconds", "standardises_latents"),
        )
        found |= _columns(f"{place}/history", record["history"])
    if pretraining.get("cache"):
        found |= _taken("autoencoders/cache", pretraining["cache"], CACHE_TAKEN, CACHE_LEFT)
    return found


def _plans(scores: Mapping[str, Any]) -> Numbers:
    """Collect what a sweep or a search tells of its plans."""
    rows = scores["plans"]
    read = scores["test_read"].split(" and ")
    found: Numbers = {"plans": [row["plan"] for row in rows]}
    found["test_read"] = [row["plan"] for row in rows if row["plan"] in read or scores["test_read"] == "every plan"]
    for row in rows:
        place = f"plans/{row['plan']}"
        found |= _taken(place, row, ("certificate", "zero_shot"), ("plan", "cache", "heads"))
        found |= _heads(f"{place}/", row["heads"], scores["kind"])
    for name, choice in scores["chosen"].items():
        told = {"point" if key == "chosen" else key: value for key, value in choice.items()}
        found |= _taken(f"chosen/{name}", told, ("plan", "point", "gain", "summary"), ("lead",))
    found |= _flat("cost", scores.get("cost", {}))
    if "search" in scores:
        search = scores["search"]
        found |= _taken(
            "search",
            search,
            ("strategy", "budget", "by", "n_plans", "n_texts", "cost", "full_cost", "share"),
            ("trials", "n_asked"),
        )
        for k, trial in enumerate(search["trials"]):
            found |= _flat(f"search/trial_{k}", trial)
    return found


def _predictions(folder: Path) -> Numbers:
    found: Numbers = {}
    table, columns = folder / "predictions.csv", sorted((folder / "predictions").glob("*.conll"))
    if table.exists() and not columns:
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        names = list(rows[0])
        for row in rows:
            for name in names[names.index("gold") :]:
                found.setdefault(f"predictions/{row['split']}/{name}", []).append(_number(row[name]))
    heads = [path.name for path in sorted((folder / "heads").iterdir())] if (folder / "heads").is_dir() else []
    for path in columns:
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")]
        tags = [line[1:] for line in lines if len(line) > 1 and line[0] != "-DOCSTART-"]
        for k, name in enumerate(["gold", *heads]):
            found[f"predictions/{path.stem}/{name}"] = [row[k] for row in tags]
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _taken(place: str, values: Mapping[str, Any], taken: tuple[str, ...], left: tuple[str, ...]) -> Numbers:
    _require_known(values, taken + left, place)
    return _flat(place, {key: value for key, value in values.items() if key in taken})


def _require_known(values: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    unknown = set(values) - set(known)
    assert not unknown, f"{place} holds {sorted(unknown)}, which the golden record neither takes nor leaves out"


def _columns(place: str, rows: Iterable[Mapping[str, Any]]) -> Numbers:
    """Turn rows of the same keys into one list per key; a key that a row lacks is None there."""
    listed = list(rows)
    keys = dict.fromkeys(key for row in listed for key in row)
    return {f"{place}/{key}": [row.get(key) for row in listed] for key in keys}


def _flat(place: str, value: Any) -> Numbers:
    """Name every value under a place, durations left out; a list of records is one list per key."""
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if key != "seconds"}
        return {name: each for key, item in kept.items() for name, each in _flat(f"{place}/{key}", item).items()}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return _columns(place, value)
    return {place: value}
