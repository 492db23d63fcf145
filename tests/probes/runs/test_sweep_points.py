"""Choosing among the scores of plans: no plan is chosen by a score that is no number."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from extract.errors import ConfigError, HeadError
from extract.masks.mask_plan import parse_plan
from probes.data.task import Task
from probes.data.task_table import load_task
from probes.heads.result import HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.report.scores import PlanScores, SearchCost
from probes.runs.grid import grid_of
from probes.runs.run_config import RunConfig
from probes.runs.sweep_caches import PointCaches
from probes.runs.sweep_points import Sweep, finite_score, require_unread_test, rows_by_source
from probes.runs.watcher import SILENT


def row(plan: str, score: float, test: float = 0.5) -> PlanScores:
    summary = {"test": {"accuracy": SeedSummary(test, 0.0, test, test, 0.95, (test,))}}
    head = HeadResult(
        "probe", "mean", ("block_01",), {}, "accuracy", "validation", score, {"layer": "block_01", "C": 1.0}, summary
    )
    return PlanScores(parse_plan(plan), "c.h5", {}, {"probe": head})


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    assert finite_score(row("causal", 0.5), "probe") == 0.5
    message = f"the score of head 'probe' under plan 'backward:2' is {score}, by which no plan can be chosen"
    with pytest.raises(HeadError, match=message):
        finite_score(row("backward:2", score), "probe")


def test_a_protocol_that_chooses_epochs_on_test_leaves_no_test_unread() -> None:
    require_unread_test(RunConfig(name="x"))
    with pytest.raises(
        ConfigError, match="protocol 'freeze-released' chooses epochs on test, which is read for chosen"
    ):
        require_unread_test(RunConfig(name="x", protocol="freeze-released"))


# Choosing among points whose scores are made by hand.


def made_sweep(over: dict[str, Any], score: Any, task: Task, *, search: SearchCost | None = None) -> Sweep:
    """Make a sweep whose heads are `score(values of the point)`, with predictions of validation where it has them."""
    grid = grid_of(RunConfig(heads={"layer-cosine": {}}, bootstrap=200, sweep={"over": over}))
    labels = [point.label for point in grid.points]
    caches = PointCaches(of=dict.fromkeys(labels, cast(Any, None)))
    config = grid.points[0].config
    sweep = Sweep(config, grid, dict.fromkeys(labels, task), caches, Path(), {"layer-cosine": 0}, SILENT, "")
    for point in grid.points:
        made, metrics = score(point.values), {"pearson": SeedSummary(0.5, 0.0, 0.5, 0.5, 0.95, (0.5,))}
        result = replace(row("causal", 0.0).heads["probe"], name="layer-cosine", metric="pearson")
        if isinstance(made, float):
            result = replace(result, selection_score=made)
        else:
            result = replace(result, predictions={"validation": made}, summary={"validation": metrics})
        sweep.rows[point.label] = replace(row("causal", 0.0), heads={"layer-cosine": result}, point=point.values)
    sweep.search = search
    return sweep


@pytest.mark.parametrize(
    ("scores", "worths"),
    [
        # a tie on the first task says nothing, and the second decides
        ({"a": (0.5, 0.2), "b": (0.5, 0.3), "c": (0.5, 0.25)}, (0.5, 1.0, 0.75)),
        # one without a score is the worst of its task
        ({"a": (math.nan, 0.9), "b": (0.6, 0.8), "c": (0.4, 0.7)}, (0.5, 0.75, 0.0)),
        ({"a": (0.6, 0.3), "b": (0.5, 0.5), "c": (0.4, 0.1)}, (0.75, 0.75, 0.0)),
    ],
)
def test_the_mean_rank_over_tasks_bears_ties_and_missing_scores(
    scores: Mapping[str, Sequence[float]], worths: Sequence[float]
) -> None:
    pairs = {"few": {"task.pairs": 24}, "more": {"task.pairs": 25}}
    points = {name: {"poolings": [pooling]} for name, pooling in zip("abc", ("mean", "last", "max"), strict=True)}
    sweep = made_sweep(
        {"encoder": points, "rows": pairs},
        lambda values: scores[values["encoder"]][values["rows"] == "more"],
        load_task("sts-sample"),
    )
    np.testing.assert_allclose(sweep.worths("layer-cosine"), worths)
    assert sweep._choose("layer-cosine").values["encoder"] == "abc"[int(np.argmax(worths))]


def test_a_source_that_is_left_out_has_no_part_in_the_choice(tmp_path: Path) -> None:
    """Each of two points is right on one source alone, and the first on more rows in all."""
    sample, file = load_task("sts-sample").rows("validation"), tmp_path / "pairs.tsv"
    lines = ["split\tsentence1\tsentence2\tscore\twhere"]
    for number in range(40):
        where = "news" if number < 24 else "forum"
        pair = "\t".join(f"{sample[column][number]} {number}" for column in ("sentence1", "sentence2"))
        lines += [f"{split}\t{pair} {split}\t{number % 6}\t{where}" for split in ("train", "validation")]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = load_task("pair-files", files=str(file), source="where", score_range=[0, 5])
    sources, gold = rows_by_source(task, "validation"), np.array(task.rows("validation")["score"][:])
    noise = np.random.default_rng(0).normal(size=len(gold))

    def score(values: Mapping[str, str]) -> Any:
        is_right = np.isin(np.arange(len(gold)), sources[values["encoder"]])
        return np.where(is_right, gold, noise)

    sweep = made_sweep({"encoder": {"news": {}, "forum": {"poolings": ["last"]}}}, score, task)
    first = sweep.points[0]
    chosen = {source: sweep._choose_without("layer-cosine", first, sources, source) for source in sources}
    assert {source: point.values["encoder"] for source, point in chosen.items()} == {"news": "forum", "forum": "news"}


def test_after_a_search_p_values_are_corrected_for_all_its_points() -> None:
    task = load_task("sts-sample")
    gold = np.array(task.rows("validation")["score"][:])
    noise = np.random.default_rng(0).normal(size=len(gold))
    over = {"encoder": {"good": {}, "bad": {"poolings": ["last"]}}}
    cost = SearchCost("halving", 0.25, "layer-cosine", 9, 10, 1, 4, 0.25, ())

    def gap(search: SearchCost | None) -> Any:
        sweep = made_sweep(over, lambda values: gold + noise * (2 + (values["encoder"] == "bad")), task, search=search)
        [found] = sweep._gaps("layer-cosine", "", sweep.points[0], reads_all=False)
        return found

    alone, searched = gap(None), gap(cost)
    assert (alone.p_corrected, searched.p_value) == (alone.p_value, alone.p_value)
    assert searched.p_corrected == min(1, 8 * alone.p_value) > alone.p_corrected
