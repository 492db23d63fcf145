"""The shape of scores.json, which may come from anybody: fields of the wrong kind are refused before they are used."""

from collections.abc import Iterator, Mapping
from typing import Any

Shape = type | list[Any] | Mapping[str, Any]
"""`str`, `int`, `bool`; `float`, a number or null; `[shape]`, a list; `{"*": shape}`, a mapping of any
names; `{"name": shape}`, fields, all of which may be absent but those that end in `!`."""

LARGEST = 2**63
WORDS = {str: "a text", int: "a whole number", float: "a number or null", bool: "true or false"}
SUMMARY: Shape = dict.fromkeys(("mean!", "std!", "low!", "high!", "confidence!"), float) | {"values!": [float]}
HEAD: Shape = {
    "pooling!": str,
    "layers!": [str],
    "options!": {},
    "metric!": str,
    "selection!": str,
    "selection_score!": float,
    "chosen!": {
        "layer": str,
        "kind": str,
        "C": float,
        "decoding": str,
        "threshold": float,
        "alpha": float,
        "score": float,
    },
    "optimistic_because!": str,
    "departures!": [str],
    "summary!": {"*": {"*": SUMMARY}},
    "baselines!": {"*": {"*": float}},
    "curves!": [
        {
            "name!": str,
            "split!": str,
            "metric!": str,
            "values!": [float],
            "spread!": [float],
            "by_seed!": [[float]],
        }
    ],
    "seeds!": [
        {
            "seed!": int,
            "best_epoch": int,
            "seconds": float,
            "history": [{"*": float}],
            "scores": {"*": {"*": float}},
            "identical_similarity": float,
        }
    ],
    "extras!": {
        "subsets": {"*": {"n!": int}},
        "residuals": {"*": {"n!": int, "quarters": {"*": [{"*": float}]}}},
    },
}
HEADER: Shape = {
    "what!": str,
    "kind!": str,
    "protocol!": str,
    "name!": str,
    "command": str,
    "commit": str,
    "versions": {"*": str},
    "device": str,
    "n_resamples": int,
    "products": {"*": str},
    "config_sha256": str,
    "own": {"*": {"*": str}},
    "decoder!": {"name!": str, "n_layers": int, "width": int},
}
TASK: Shape = {
    "kind": str,
    "name!": str,
    "source": str,
    "is_sample": bool,
    "metrics": [str],
    "n_rows": {"*": int},
    "digest": str,
    "notes": [str],
    "score_range": [float],
    "n_pairs": {"*": int},
    "licence": str,
    "n_classes": int,
    "class_names": [str],
    "shared_rows": {"*": str},
    "has_groups": bool,
    "tags": [str],
    "has_documents": bool,
    "resampled": {"*": str},
    "n_sentences": {"*": int},
    "n_words": {"*": int},
    "words_in_cache": {"*": int},
}
CACHE: Shape = {
    "file": str,
    "id": str,
    "plan!": str,
    "template": {},
    "poolings": [str],
    "storage_dtype": str,
    "n_rows": int,
    "n_truncated": int,
    "certificate": {},
}
RUN: Shape = {
    "task!": TASK,
    "cache!": CACHE,
    "heads!": {"*": HEAD},
    "pretraining": {},
    "seconds": {"*": float},
}
PLANS: Shape = {
    "task!": TASK,
    "test_read": str,
    "cost": {},
    "search": {},
    "plans!": [{"plan!": str, "cache": str, "certificate": {}, "zero_shot": {}, "heads!": {"*": HEAD}}],
    "chosen": {"*": {"plan!": str, "chosen": {}, "summary": {}}},
}
SHAPES = {"run": RUN, "sweep": PLANS, "search": PLANS}


def check_scores(values: Mapping[str, Any]) -> None:
    """Check the content of scores.json of a run, sweep or search, of this schema."""
    _check(values, HEADER, "")
    _check(values, SHAPES[values["what"]], "")
    for where, heads in _heads(values):
        if not heads:
            raise ValueError(f"`{where}` has no head")
        for name, head in heads.items():
            _check_head(f"{where}.{name}", head)


def _heads(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if "plans" in values:
        yield from ((f"plans[{number}].heads", row["heads"]) for number, row in enumerate(values["plans"]))
    else:
        yield "heads", values["heads"]


def _check_head(where: str, head: Mapping[str, Any]) -> None:
    """Check that the parts of a head's result fit each other."""
    n_layers = len(head["layers"])
    for number, curve in enumerate(head["curves"]):
        lists = [curve["values"], *([curve["spread"]] if curve["spread"] else []), *curve["by_seed"]]
        if any(len(scores) != n_layers for scores in lists):
            raise ValueError(f"`{where}.curves[{number}]` has not a score for each of {n_layers} layers")
    for split, scores in head["summary"].items():
        if head["metric"] not in scores:
            raise ValueError(f"`{where}.summary.{split}` has no {head['metric']!r}, by which the head was chosen")


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, list):
        _require(value, list, "a list", where)
        for number, item in enumerate(value):
            _check(item, shape[0], f"{where}[{number}]")
    elif isinstance(shape, Mapping):
        _require(value, dict, "a mapping", where)
        for name, inner in shape.items():
            key = name.removesuffix("!")
            if name == "*":
                for each, item in value.items():
                    _check(item, inner, f"{where}.{each}".lstrip("."))
            elif key in value:
                _check(value[key], inner, f"{where}.{key}".lstrip("."))
            elif key != name:
                raise KeyError(f"{where}.{key}".lstrip("."))
    elif shape is float:
        is_number = value is None or (isinstance(value, int | float) and type(value) is not bool)
        if not is_number or (isinstance(value, int) and abs(value) >= LARGEST):
            raise TypeError(_wrong(value, WORDS[float], where))
    else:
        _require(value, shape, WORDS[shape], where)


def _require(value: Any, kind: Any, words: str, where: str) -> None:
    if type(value) is not kind or (kind is int and abs(value) >= LARGEST):
        raise TypeError(_wrong(value, words, where))


def _wrong(value: Any, words: str, where: str) -> str:
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >= LARGEST else repr(value)
    return f"`{where}` is {text[:60]}, not {words}"
