"""A search from the command line, on a tiny decoder: nothing computed twice."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from extract.errors import ConfigError, UnknownNameError
from extract.masks.mask_plan import parse_plan, plans_over_k, plans_over_k_and_k0
from extract.store.cache import LatentCache
from extract.wiring.states import count_blocks
from probes.cli.main import main
from probes.data.task_table import load_task
from probes.heads.class_heads import fewest_rows
from probes.runs.grid_search import FEWEST_ROWS, count_texts, draw_rows, rows_of
from probes.runs.run_config import RunConfig
from tests.extract.tiny_decoders import save_decoder
from tests.probes.finished_run import require_opening
from tests.probes.runs.plan_sweeps import run_search, run_sweep
from tests.probes.worded_classes import write_worded_classes

GRID = ["--k", "0-2", "--k0", "0-2"]
N_BLOCKS = 3


def settings(folder: Path, data: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "decoder": {"name": str(folder / "decoder")},
        "extraction": {"poolings": ["mean"]},
        "task": {"name": "class-files", "options": {"files": str(data), "split_column": "split"}},
        "heads": {"logistic-probe": {"Cs": [1.0], "layers": "final_norm"}},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
        **more,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("search")
    save_decoder(base / "decoder")
    data = write_worded_classes(base / "rows.csv")
    (base / "tiny.yaml").write_text(yaml.safe_dump(settings(base, data)), encoding="utf-8")
    return base


@pytest.fixture(scope="module")
def scores(folder: Path) -> dict[str, Any]:
    """`icecore sweep tiny.yaml --search halving`, once for all tests."""
    assert main(["sweep", str(folder / "tiny.yaml"), *GRID, "--search", "halving", "--budget", "0.7"]) == 0
    found: dict[str, Any] = json.loads((folder / "runs/tiny-search/scores.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.long
def test_a_search_reports_every_trial_and_what_it_cost(folder: Path, scores: dict[str, Any]) -> None:
    search = scores["search"]
    plans = [plan.text for plan in plans_over_k_and_k0(range(3), range(3))]
    assert list(search["trials"][0]["scores"]) == plans
    assert search["n_plans"] == len(plans) == 6
    assert search["n_texts"] == 100  # train and validation alone
    passes = count_blocks([parse_plan(plan).kinds(N_BLOCKS) for plan in plans])
    assert search["full_cost"] == passes * 100
    assert search["share"] == search["cost"] / search["full_cost"] <= 0.7
    first = search["trials"][0]
    assert first["cost"] == passes * first["n_texts"]
    last = search["trials"][-1]
    assert search["cost"] == sum(trial["cost"] for trial in search["trials"]) + N_BLOCKS * (100 - last["n_texts"])
    chosen = scores["chosen"]["logistic-probe"]
    assert chosen["plan"] == max(last["scores"], key=lambda plan: last["scores"][plan])
    assert chosen["gain"]["gain"] == chosen["gain"]["chosen"] - chosen["gain"]["default"]
    assert scores["test_read"] == " and ".join(dict.fromkeys([chosen["plan"], "causal"]))
    summary = (folder / "runs/tiny-search/summary.md").read_text(encoding="utf-8")
    assert all(f"`{plan}`" in summary for plan in plans)
    assert f"{search['cost']:,} block passes times texts" in summary
    assert (folder / "runs/tiny-search/search.png").stat().st_size > 1000
    require_opening(folder / "runs/tiny-search")


def test_the_chosen_plan_is_fitted_on_the_whole_task(folder: Path, scores: dict[str, Any]) -> None:
    config = RunConfig(
        name="alone",
        decoder=load_config(folder).decoder,
        extraction=load_config(folder).extraction,
        task=load_config(folder).task,
        heads=load_config(folder).heads,
        bootstrap=100,
        caches=str(folder / "alone"),
        runs=str(folder / "alone"),
    )
    chosen = scores["chosen"]["logistic-probe"]
    alone = run_sweep(config, [parse_plan(chosen["plan"])]).scores["plans"][0]["heads"]["logistic-probe"]
    for split in ("train", "validation", "test"):
        mine, theirs = (each["summary"][split]["accuracy"]["mean"] for each in (chosen, alone))
        assert mine == pytest.approx(theirs, abs=0.04)  # latents agree up to rounding


def load_config(folder: Path) -> RunConfig:
    from probes.cli.arguments import read_command
    from probes.cli.commands import COMMANDS

    config: RunConfig = read_command(COMMANDS["run"], [str(folder / "tiny.yaml")]).config
    return config


def test_a_second_search_computes_nothing(
    folder: Path, scores: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_args: object, **_options: object) -> None:
        raise AssertionError("a block was computed")

    before = {path: path.stat().st_mtime_ns for path in (folder / "caches").iterdir()}
    monkeypatch.setattr("extract.run.shards.walk_plans", forbid)
    again = run_search(
        load_config(folder), plans_over_k_and_k0(range(3), range(3)), strategy="halving", budget=0.7
    ).scores
    assert again["search"] == scores["search"]
    assert json.loads(json.dumps(again["chosen"])) == scores["chosen"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "caches").iterdir()} == before


def test_latents_of_fewer_rows_are_kept(folder: Path, scores: dict[str, Any]) -> None:
    """Every cache but the first ones is composed of the one before it and of the new texts."""
    caches = [LatentCache(path) for path in (folder / "caches").glob("*.h5")]
    sizes = {trial["n_texts"] for trial in scores["search"]["trials"]} | {140}
    assert {len(cache) for cache in caches} == sizes  # no caches of the new texts alone are left behind
    smallest = min(sizes)
    for cache in caches:
        assert ("composed_of" in cache.certificate) == (len(cache) > smallest)


@pytest.mark.long
def test_pairs_are_searched_along_coordinates(
    folder: Path, capsys: pytest.CaptureFixture[str], read_json: Callable[[Path], Any]
) -> None:
    config = settings(folder, folder / "rows.csv", name="pairs", heads={"layer-cosine": {}})
    path = folder / "pairs.yaml"
    path.write_text(yaml.safe_dump({**config, "task": {"name": "sts-sample"}}), encoding="utf-8")
    assert main(["sweep", str(path), *GRID, "--search", "coordinate", "--budget", "0.9", "--task.pairs", "40"]) == 0
    found = read_json(folder / "runs/pairs-search/scores.json")
    assert found["search"]["strategy"] == "coordinate"
    assert found["search"]["share"] <= 0.9
    assert len({trial["n_rows"] for trial in found["search"]["trials"]}) == 1
    assert f"best on validation {found['chosen']['layer-cosine']['plan']}" in capsys.readouterr().out


@pytest.mark.long
def test_plans_that_are_no_grid_can_be_halved(folder: Path) -> None:
    config = RunConfig(**{**vars(load_config(folder)), "name": "lines"})
    plans = plans_over_k(["backward", "nosink-causal"], range(3))
    found = run_search(config, plans, strategy="halving", budget=0.8).scores
    assert found["chosen"]["logistic-probe"]["plan"] in [plan.text for plan in plans]
    assert (folder / "runs/lines-search/search.png").stat().st_size > 1000


def test_what_cannot_be_searched_is_told_before_anything_is_computed(folder: Path) -> None:
    config, plans = load_config(folder), plans_over_k_and_k0(range(3), range(3))
    with pytest.raises(UnknownNameError, match="unknown search strategy 'halve': did you mean 'halving'"):
        run_search(config, plans, strategy="halve")
    with pytest.raises(ConfigError, match="the search budget is 25; allowed"):
        run_search(config, plans, strategy="halving", budget=25.0)
    with pytest.raises(ConfigError, match=r"leaves \d+ rows per split .* at least 16 are needed"):
        run_search(config, plans, strategy="halving", budget=0.1)
    with pytest.raises(ConfigError, match="the plan 'causal~kv1-1' cannot be part of a sweep"):
        run_search(config, [parse_plan("causal~kv1-1")], strategy="halving")


@pytest.mark.parametrize("name", ["class-sample", "sts-sample", "words-sample", "number-sample"])
def test_rows_are_drawn_nested_and_never_from_test(name: str) -> None:
    judged = load_task(name).without_test()
    assert list(judged.splits) == ["train", "validation"]
    n_texts, n_rows = count_texts(judged, 16), rows_of(judged)
    drawn = [set(draw_rows(judged, n).texts()) for n in (20, 40, 100, n_rows)]
    assert all(fewer <= more for fewer, more in pairwise(drawn))
    assert [n_texts(n) for n in (20, 40, min(100, n_rows), n_rows)] == [len(texts) for texts in drawn]
    assert drawn[-1] == set(judged.texts())
    assert draw_rows(judged, 10**6) is judged


def test_cross_validation_asks_for_rows_of_every_class_in_every_fold() -> None:
    task: Any = load_task("class-sample").without_test()
    alone = type(task)(**{**vars(task), "splits": type(task.splits)({"train": task.splits["train"]})})
    drawn: Any = draw_rows(alone, max(FEWEST_ROWS, fewest_rows(alone, 5)))
    counts = np.bincount(drawn.labels("train"))
    assert counts.min() >= 5
