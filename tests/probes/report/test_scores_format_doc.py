"""The table of docs/scores_format.md, held against the records of tiny runs."""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from probes.report.scores import SCORES_SCHEMA, FailedPoint, ViewInfo, without_nan
from tests.probes.report.made_grid import make_grid
from tests.probes.report.made_plans import OVER_K, make_plans, make_search
from tests.probes.report.made_runs import MadeRun, make_pretraining, make_summary

PAGE = Path(__file__).resolve().parents[3] / "docs" / "scores_format.md"
TABLE = PAGE.parent / "tables" / "scores.csv"
HEAD = "heads.HEAD."
KEYS = (
    (r"(^|\.)(train|validation|test)(?=[.\[]|$)", r"\1SPLIT"),
    (r"(^|\.)(pearson|spearman|accuracy|f1-macro|span-f1)(?=\.|$)", r"\1METRIC"),
    (r"history\[\]\.(validation|test)_(pearson|spearman)$", "history[].SPLIT_METRIC"),
    (r"^(.*)heads\.[^.]+", r"\1heads.HEAD"),
    (r"^chosen\.[^.]+", "chosen.HEAD"),
    (r"versions\..+", "versions.PACKAGE"),
    (r"products\..+", "products.WHAT"),
    (r"(?<!_)subsets\.[^.]+", "subsets.SUBSET"),
    (r"baselines\.[^.]+", "baselines.BASELINE"),
    (r"leads\.[^.]+", "leads.HEAD"),
    (r"^over_cosine\.[^.]+", "over_cosine.HEAD"),
    (r"by_source\.[^.]+", "by_source.HEAD"),
    (r"^grid\.tied\.[^.\[]+", "grid.tied.HEAD"),
    (r"autoencoders\.[^.]+", "autoencoders.POOLING"),
    (r"(size_against|quarters)\.[a-z_]+", r"\1.SIDE"),
    (r"decoding\.SPLIT\..+", "decoding.SPLIT.WAY"),
    (r"trials\[\]\.scores\..+", "trials[].scores.PLAN"),
)
"""Keys that the page writes as a name in capitals."""
TYPES: dict[str, Any] = {
    "text": str,
    "integer": int,
    "number": (int, float, type(None)),
    "boolean": bool,
    "object": (dict, list),
    "text or null": (str, type(None)),
}


def documented() -> dict[str, str]:
    """Return every field of the table with its type; those of a head begin with `heads.HEAD`."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [(row["field"], row["type"]) for row in csv.DictReader(file)]
    assert len(rows) == len(dict(rows)), "a field has two rows"
    return dict(rows)


ROWS = documented()
PARTS = {"heads.HEAD", f"{HEAD}extras", "plans[].heads.HEAD", "task", "cache"}
OPAQUE = {path for path, kind in ROWS.items() if kind == "object"} - PARTS
"""Objects that are described elsewhere."""


def general(path: str) -> str:
    for pattern, name in KEYS:
        path = re.sub(pattern, name, path)
    path = path.replace("n_texts.SPLIT", "n_texts.train")
    return re.sub(r"(SIDE\[\]\.)METRIC", r"\1pearson", path)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return every value with the path that the page writes."""
    name = general(path).replace("plans[].heads.", "heads.")
    if name in OPAQUE or not isinstance(value, Mapping | list):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif value and isinstance(value[0], Mapping):
        for item in value:
            yield from leaves(item, f"{path}[]")
    elif value or name in ROWS:
        yield name, value


def is_of(value: Any, kind: str) -> bool:
    if kind.startswith("list of "):
        return isinstance(value, list) and all(is_of(item, kind.removeprefix("list of ")) for item in value)
    return isinstance(value, TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))


@pytest.fixture(scope="module")
def records(made_runs: dict[str, MadeRun]) -> list[dict[str, Any]]:
    """A record of every kind; a subset of pairs has a score."""
    pairs = made_runs["pairs"]
    result = pairs.scores.heads["cosine-mlp"]
    subsets = {**result.extras["subsets"], "leaked": {"n": 30, "pearson": asdict(make_summary(0.5))}}
    named = {"subsets": {"headlines": subsets["leaked"]}, "mean": {"pearson": 0.5}}
    scored = pairs.with_head("cosine-mlp", extras={**result.extras, "subsets": subsets, "named_subsets": named})
    views = [{"layer": scored.scores.heads["layer-cosine"].layers[0], "kind": "raw"}]
    scored = scored.with_head("layer-cosine", chosen={**scored.scores.heads["layer-cosine"].chosen, "views": views})
    scored = scored.with_header(task={"shared_rows": {"test": "2 of 8 rows share a text"}})
    runs = [each.scores for each in (scored, made_runs["classes"], made_runs["numbers"], made_runs["words"])]
    view: ViewInfo = {"plan": "causal", "template": {}, "pooling": "mean", "n_tokens": 9}
    runs.append(replace(scored.scores, cache={**scored.scores.cache, "views": {"plain": view}}))
    failed = (FailedPoint({"plan": "backward:9"}, "it has 6 blocks"),)
    plans = [
        replace(make_plans(OVER_K), failed=failed),
        make_plans(OVER_K, search=make_search(["causal", "backward:1"]), cost=None),
    ]
    grid = make_grid()
    assert grid.grid is not None
    grid = replace(grid, grid=replace(grid.grid, by_source={"head": {grid.plans[0].label: 0.5}}))
    everything: list[Any] = [*runs, *plans, grid, make_pretraining()]
    return [without_nan(each.to_dict()) for each in everything]


def test_every_field_of_a_record_is_on_the_page(records: list[dict[str, Any]]) -> None:
    unknown = {path for record in records for path, _ in leaves(record)} - set(ROWS)
    assert unknown == set()


def test_every_field_of_the_page_is_in_a_record(records: list[dict[str, Any]]) -> None:
    found = {path for record in records for path, _ in leaves(record)}
    assert set(ROWS) - PARTS - found == set()


def test_every_value_has_the_type_of_the_page(records: list[dict[str, Any]]) -> None:
    for record in records:
        for path, value in leaves(record):
            assert is_of(value, ROWS[path]), (path, value)


def test_a_field_without_a_row_is_noticed(records: list[dict[str, Any]]) -> None:
    odd = {**records[0], "surprise": 1}
    assert {path for path, _ in leaves(odd)} - set(ROWS) == {"surprise"}


def test_the_page_names_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8").startswith(f"# scores.json, schema {SCORES_SCHEMA}\n")
