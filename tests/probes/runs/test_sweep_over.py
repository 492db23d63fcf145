"""Sweeps over any axes on tiny decoders: what points share is computed once, and every number is that of a run."""

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import ttest_1samp

from extract.decoders.decoder import load_decoder
from extract.errors import ConfigError, HeadError, IcecoreError, UnknownNameError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.records import to_plain
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_latents
from probes.cli.main import main
from probes.data.pair_task import STSB_ORIGINS, PairTask
from probes.data.task_table import load_task
from probes.latents.text_latents import Transform
from probes.metrics.prediction_metrics import pearson
from probes.metrics.significance import bootstrap_p_value, correct_p_values, resamples_for
from probes.report.scores import PartGain, PlanScores, PlansScores, read_plans, without_nan
from probes.report.sweep_frames import gains_frame, layer_scores, points_frame, score_rows, source_frame
from probes.runs import sweep_caches, sweep_points, sweep_run
from probes.runs.config_file import read_config
from probes.runs.folder import RunFolder, find_finished
from probes.runs.grid import grid_of, plan_grid, short_key
from probes.runs.predict import ChosenEncoder
from probes.runs.probe import Encoder
from probes.runs.results import layers_across, results
from probes.runs.run import RunResult, run, score_gaps
from probes.runs.run_config import RunConfig, TaskSpec, load_run_task
from probes.runs.sweep_points import make_transfer, require_sources, rows_by_source
from probes.runs.sweep_run import sweep
from probes.runs.task_kinds import KINDS
from probes.runs.watcher import Watcher
from tests.extract.tiny_decoders import save_decoder
from tests.probes.runs.plan_sweeps import run_search, run_sweep
from tests.probes.runs.small_grid import OVER, config_in


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> RunConfig:
    return config_in(tmp_path_factory.mktemp("grid"), decoder_folder)


@pytest.fixture(scope="module")
def calls() -> dict[str, int]:
    return {"load": 0, "extract": 0}


@pytest.fixture(scope="module")
def swept(config: RunConfig, calls: dict[str, int]) -> RunResult[PlansScores]:
    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*args, **options)

        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_caches, "load_decoder", counting("load", load_decoder))
        patch.setattr(sweep_caches, "sweep_latents", counting("extract", sweep_latents))
        return sweep(config, OVER)


def test_what_points_share_is_computed_once(swept: RunResult[PlansScores], calls: dict[str, int]) -> None:
    assert calls == {"load": 1, "extract": 2}  # with and without the echo; plain and last are of the same passes
    cost = swept.record.cost
    assert cost is not None
    # two plans share the lower two of three blocks; the plain texts are read once for two poolings
    assert cost.block_passes / cost.apart == pytest.approx((4 + 4) / (6 * 3))


def test_every_number_is_that_of_a_run_by_itself(
    config: RunConfig, swept: RunResult[PlansScores], tmp_path: Path
) -> None:
    grid = grid_of(replace(config, sweep={"over": OVER}))
    for point, row in zip(grid.points, swept.record.plans, strict=True):
        if point.values["plan"] == "causal" and point.values["encoder"] != "plain":
            alone = replace(point.config, caches=str(tmp_path / "caches"), runs=str(tmp_path / "runs"))
            [(name, result)] = run(alone).record.heads.items()
            here = row.heads[name]
            assert (here.pooling, here.layers) == (result.pooling, result.layers)
            assert here.selection_score == pytest.approx(result.selection_score, abs=1e-4)
            for mine, theirs in zip(here.curves, result.curves, strict=False):
                if mine.split == theirs.split == "validation":
                    np.testing.assert_allclose(mine.values, theirs.values, atol=1e-4)


def test_the_choice_is_made_on_validation_and_test_is_read_for_it_and_the_reference(
    config: RunConfig, swept: RunResult[PlansScores]
) -> None:
    record = swept.record
    best = max(record.plans, key=lambda row: row.heads["layer-cosine"].selection_score)
    choice = record.chosen["layer-cosine"]
    assert dict(choice.point) == dict(best.point)
    assert record.grid is not None
    reference = record.grid.reference
    assert reference == {"plan": "causal", "encoder": "plain"}
    read = {row.label for row in record.plans if "test" in row.heads["layer-cosine"].summary}
    assert read == {best.label, "plan=causal, encoder=plain"}
    assert choice.gain is not None
    assert choice.gain.over == "plan=causal, encoder=plain"
    assert {tuple(gap.point.values()) for gap in record.grid.gaps} == {
        tuple(row.point.values()) for row in record.plans if dict(row.point) != dict(reference)
    }
    by_point = {row.label: row.heads["layer-cosine"].mean("validation") for row in record.plans}
    for gap in record.grid.gaps:
        name = ", ".join(f"{axis}={value}" for axis, value in gap.point.items())
        assert gap.value == pytest.approx(by_point[name] - by_point["plan=causal, encoder=plain"])
        assert gap.low <= gap.value <= gap.high
        assert gap.p_value <= gap.p_corrected <= 1
    ties, others = record.grid.tied["layer-cosine"], [row for row in record.plans if row is not best]
    task = load_run_task(config)
    compared = score_gaps(
        [row.heads["layer-cosine"] for row in others],
        best.heads["layer-cosine"],
        "validation",
        rows=KINDS["pairs"].report.split_rows(task, "validation"),
        n_resamples=resamples_for(len(others), config.bootstrap),
    )
    p_values = [bootstrap_p_value(*pair) for pair in zip(compared.gaps, compared.draws, strict=True)]
    told = (correct_p_values(p_values) < 0.05) & (compared.n_units >= 30)
    assert ties.n_compared == len(others)
    assert set(ties.points) == {row.label for row, is_told in zip(others, told.tolist(), strict=True) if not is_told}


def test_one_tidy_frame_has_a_column_per_axis_and_every_number(swept: RunResult[PlansScores]) -> None:
    frame = points_frame(swept.record)
    assert list(frame.columns[:2]) == ["plan", "encoder"]
    written = pd.read_csv(swept.folder / "points.csv")
    assert list(written.columns) == list(frame.columns)
    assert len(written) == len(frame)
    scores = score_rows(frame, "layer-cosine", "pearson")
    for row in swept.record.plans:
        here = scores[(scores["plan"] == row.point["plan"]) & (scores["encoder"] == row.point["encoder"])]
        values = dict(zip(here["split"], here["value"], strict=True))
        assert values == {split: row.heads["layer-cosine"].mean(split) for split in row.heads["layer-cosine"].summary}
    curves = layer_scores(frame, "layer-cosine", "pearson")
    assert curves.groupby("point")["layer"].apply(list).map(len).eq(5).all()
    best = curves.groupby("point")["value"].max()
    for row in swept.record.plans:
        assert best[row.label] == pytest.approx(row.heads["layer-cosine"].selection_score)
    assert curves[curves["is_chosen"]]["point"].unique().tolist() == [
        ", ".join(f"{axis}={value}" for axis, value in swept.record.chosen["layer-cosine"].point.items())
    ]


def test_the_report_says_what_every_point_costs(config: RunConfig, swept: RunResult[PlansScores]) -> None:
    tokens = {row.point["encoder"]: row.n_tokens for row in swept.record.plans}
    assert tokens["plain"] == tokens["last"] > len(set(load_run_task(config).texts()))
    assert tokens["echo"] > 1.8 * tokens["plain"]
    frame = points_frame(swept.record)
    assert frame.groupby("encoder")["n_tokens"].unique().map(list).to_dict() == {k: [v] for k, v in tokens.items()}
    summary = (swept.folder / "summary.md").read_text(encoding="utf-8")
    times = tokens["echo"] / tokens["plain"]
    assert f"| causal | echo | {times:.1f}x |" in summary
    assert "| causal | plain | 1.0x |" in summary


def test_the_report_names_the_winner_first_and_says_whether_it_is_certain(swept: RunResult[PlansScores]) -> None:
    summary = (swept.folder / "summary.md").read_text(encoding="utf-8")
    first = summary.splitlines()[2]
    choice = swept.record.chosen["layer-cosine"]
    label = ", ".join(f"{axis}={value}" for axis, value in choice.point.items())
    assert first.startswith(f"The best of 6 points is `{label}`")
    assert any(word in first for word in ("certain", "nothing was gained", "too few rows"))
    assert {"layers_layer_cosine.png", "points_layer_cosine.png"} <= {path.name for path in swept.folder.iterdir()}


def test_the_scores_are_read_back_as_they_were_written(swept: RunResult[PlansScores]) -> None:
    values = RunFolder(swept.folder).values
    assert without_nan(read_plans(values).to_dict()) == {key: values[key] for key in values if key != "sha256"}
    assert main(["table", str(swept.folder)]) == 0
    assert main(["report", str(swept.folder)]) == 0


def test_a_second_sweep_computes_nothing_in_the_decoder(
    config: RunConfig, swept: RunResult[PlansScores], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_args: object, **_options: object) -> None:
        raise AssertionError("a text was extracted")

    for name in ("sweep_latents", "extract_latents"):
        monkeypatch.setattr(sweep_caches, name, forbid)
    again = sweep(config, OVER)
    assert again.folder == swept.folder
    assert json.dumps(without_nan(again.record.to_dict())) == json.dumps(without_nan(swept.record.to_dict()))


def test_heads_and_their_options_are_axes(config: RunConfig) -> None:
    over = {"heads": {"raw": {"layer-cosine": {"transform": "none"}}, "mlp": {"cosine-mlp": {"max_epochs": 2}}}}
    result = sweep(replace(config, name="heads"), {**over, "poolings": ["mean", "last"]})
    assert list(result.record.chosen) == ["head"]
    assert {row.point["heads"]: list(row.heads) for row in result.record.plans} == {
        "raw": ["layer-cosine"],
        "mlp": ["cosine-mlp"],
    }
    frame = points_frame(result.record)
    assert set(frame["slot"]) == {"head"}
    assert set(zip(frame["heads"], frame["head"], strict=True)) == {("raw", "layer-cosine"), ("mlp", "cosine-mlp")}
    cost = result.record.cost
    assert cost is not None
    assert cost.block_passes / cost.apart == pytest.approx(1 / 4)  # one extraction for two heads and two poolings
    assert without_nan(read_plans(RunFolder(result.folder).values).to_dict()) == {
        key: value for key, value in RunFolder(result.folder).values.items() if key != "sha256"
    }


def test_tasks_of_an_axis_may_have_heads_and_metrics_of_their_own(config: RunConfig) -> None:
    over = {
        "head": {"pairs": {}, "classes": {"task": {"name": "class-sample", "pairs": 24}, "heads": "logistic-probe"}}
    }
    mixed = sweep(replace(config, name="mixed"), {**over, "poolings": ["mean", "last"]})
    assert mixed.record.grid is not None
    assert mixed.record.grid.task_axis == "head"  # the axis of tasks, of which each has its metric
    assert {part.metric for part in mixed.record.grid.transfers[0].parts} == {"pearson", "f1-macro"}


def test_a_point_that_fails_costs_itself_alone(config: RunConfig, tmp_path: Path, decoder_folder: Path) -> None:
    broken = Path(shutil.copytree(decoder_folder, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"no weights")
    names = [str(decoder_folder), str(broken)]
    result = sweep(replace(config, name="failing"), {"decoder.name": names})
    assert result.record.grid is not None
    [failure] = result.record.grid.failed
    assert failure.point == {"decoder.name": "broken"}
    assert [dict(row.point) for row in result.record.plans] == [{"decoder.name": decoder_folder.name}]
    assert "**failed**" in (result.folder / "summary.md").read_text(encoding="utf-8")
    with pytest.raises(IcecoreError):
        sweep(replace(config, name="all-fail"), {"decoder.name": [str(broken)]})


SIAMESE: dict[str, dict[str, Any] | None] = {
    "siamese-cosine": {"max_epochs": 1, "batch_size": 8, "hidden": 8, "bottleneck": 4}
}


def test_a_point_whose_head_cannot_be_fitted_costs_itself_alone(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that diverges, at the reference: it is reported, is in no choice, and is tried again by the next run."""
    named, said = replace(config, name="diverging", heads=SIAMESE), list[str]()
    over = {"heads.siamese-cosine.learning_rate": [1e30, 0.01]}
    result = sweep(named, over, watcher=Watcher(say=said.append))
    assert result.record.grid is not None
    [failure] = result.record.grid.failed
    assert dict(failure.point) == {"learning_rate": "1e+30"}
    assert "no epoch of SiameseCosine had a finite" in failure.why
    told = [line for line in said if "failed" in line]
    assert told == [f"learning_rate=1e+30 failed, and the sweep goes on: {failure.why}"]
    assert set(points_frame(result.record)["learning_rate"]) == {"0.01"}
    [choice] = result.record.chosen.values()
    assert dict(choice.point) == dict(result.record.grid.reference) == {"learning_rate": "0.01"}
    assert "`learning_rate=1e+30` **failed**" in (result.folder / "summary.md").read_text(encoding="utf-8")
    fitted, evaluate = list[str](), sweep_points.evaluate_plan

    def count(at: RunConfig, *rest: Any, **options: Any) -> Any:
        fitted.append(f"{at.heads['siamese-cosine']['learning_rate']:g}")  # type: ignore[index]
        return evaluate(at, *rest, **options)

    monkeypatch.setattr(sweep_points, "evaluate_plan", count)
    again = sweep(named, over)
    assert "1e+30" in fitted
    assert without_nan(again.record.to_dict()) == without_nan(result.record.to_dict())
    with pytest.raises(HeadError, match="no epoch of SiameseCosine had a finite"):
        sweep(replace(named, name="all-diverge"), {"heads.siamese-cosine.learning_rate": [1e30, 1e31]})


Change = Callable[[PlanScores], PlanScores]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> dict[str, Exception | Change]:
    """Plan to what happens when its heads are fitted: an error, or a change of its scores."""
    at, evaluate = dict[str, Exception | Change](), sweep_points.evaluate_plan

    def fit(config: RunConfig, task: Any, plan: Any, *rest: Any, **options: Any) -> PlanScores:
        event = at.get(plan.text)
        if isinstance(event, Exception):
            raise event
        row = evaluate(config, task, plan, *rest, **options)
        return row if event is None else event(row)

    monkeypatch.setattr(sweep_points, "evaluate_plan", fit)
    return at


def without_score(row: PlanScores) -> PlanScores:
    return replace(row, heads={name: replace(head, selection_score=math.nan) for name, head in row.heads.items()})


@pytest.mark.parametrize("event", [HeadError("it diverged"), ZeroDivisionError("it diverged"), without_score])
def test_a_plan_that_fails_costs_itself_alone_and_is_tried_again(
    event: Exception | Change, config: RunConfig, failing: dict[str, Exception | Change], tmp_path: Path
) -> None:
    plans = [parse_plan(text) for text in ("causal", "bidirectional:1", "backward:1")]
    named = replace(config, runs=str(tmp_path))
    failing["bidirectional:1"] = event
    result = run_sweep(named, plans)
    assert result.record.grid is not None
    [failure] = result.record.grid.failed
    assert dict(failure.point) == {"plan": "bidirectional:1"}
    assert ("diverged" if isinstance(event, Exception) else "is nan, by which no plan can be chosen") in failure.why
    assert [row.plan.text for row in result.record.plans] == ["causal", "backward:1"]
    assert "`plan=bidirectional:1` **failed**" in (result.folder / "summary.md").read_text(encoding="utf-8")
    values = RunFolder(result.folder).values
    assert without_nan(read_plans(values).to_dict()) == {key: values[key] for key in values if key != "sha256"}
    assert find_finished(named, plan_grid(named, plans), test="chosen") is None, "the next run computes it"
    failing.clear()
    again = run_sweep(named, plans)
    assert [row.plan.text for row in again.record.plans] == ["causal", "bidirectional:1", "backward:1"]
    assert again.record.grid is not None
    assert not again.record.grid.failed
    assert find_finished(named, plan_grid(named, plans), test="chosen") is not None


def test_what_is_wrong_at_every_plan_ends_a_sweep_at_once(
    config: RunConfig, failing: dict[str, Exception | Change], tmp_path: Path
) -> None:
    plans, said = [parse_plan(text) for text in ("causal", "bidirectional:1", "backward:1")], list[str]()
    named, watcher = replace(config, runs=str(tmp_path)), Watcher(say=said.append)
    failing["bidirectional:1"] = ConfigError("there is no such key")
    with pytest.raises(ConfigError, match="there is no such key"):
        run_sweep(named, plans, watcher=watcher)
    failing["causal"] = without_score
    with pytest.raises(HeadError, match="under plan 'causal' is nan, by which no plan can be chosen"):
        run_sweep(named, plans, watcher=watcher)
    assert not any("failed" in line or line.startswith("backward") for line in said)
    failing |= dict.fromkeys(("causal", "bidirectional:1", "backward:1"), HeadError("it diverged"))
    with pytest.raises(HeadError, match="it diverged"):
        run_sweep(named, plans, watcher=watcher)


def test_a_task_on_which_a_point_fails_leaves_it_out_of_all(
    config: RunConfig, failing: dict[str, Exception | Change], tmp_path: Path
) -> None:
    """The reference fails on one of two tasks: points are compared with one that was computed on both."""
    rows = TaskSpec("sts-sample", {}, pairs=24)
    over = {"plan": ["causal", "backward:1"], "rows": {"few": {}, "more": {"task": to_plain(rows)}}}
    named = replace(config, name="one-task", runs=str(tmp_path))
    failures = iter([HeadError("it diverged"), None])

    def once(row: PlanScores) -> PlanScores:
        if (error := next(failures, None)) is not None:
            raise error
        return row

    failing["causal"] = once
    result = sweep(named, over)
    assert result.record.grid is not None
    assert [dict(failure.point) for failure in result.record.grid.failed] == [{"plan": "causal", "rows": "few"}]
    assert {choice.point["plan"] for choice in result.record.chosen.values()} == {"backward:1"}


@pytest.mark.parametrize(
    ("lost", "choose_on"),
    [
        ({("causal", "more"), ("backward:1", "more")}, "more"),
        ({("causal", "more"), ("backward:1", "more")}, ""),
        ({("causal", "few"), ("backward:1", "more")}, ""),
    ],
)
def test_where_no_point_is_left_on_every_task_a_sweep_ends(
    lost: set[tuple[str, str]], choose_on: str, config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is left on one task alone is no choice over all tasks."""
    evaluate = sweep_points.Sweep.evaluate

    def fit(self: sweep_points.Sweep, point: Any, *rest: Any) -> PlanScores:
        if (point.values["plan"], point.values["task"]) in lost:
            raise HeadError("it diverged")
        return evaluate(self, point, *rest)

    monkeypatch.setattr(sweep_points.Sweep, "evaluate", fit)
    over = {
        "plan": ["causal", "backward:1"],
        "task": {"few": {}, "more": {"task": to_plain(TaskSpec("sts-sample", {}, pairs=24))}},
    }
    with pytest.raises(HeadError, match="nothing was computed on every task: HeadError: it diverged"):
        sweep(replace(config, name="lost", runs=str(tmp_path)), over, choose_on=choose_on)


@pytest.mark.long
def test_a_search_goes_on_after_a_trial_of_which_nothing_is_left(
    config: RunConfig, failing: dict[str, Exception | Change], tmp_path: Path
) -> None:
    """Along a line of k and k0 there is often one new plan."""
    plans = [
        parse_plan(text)
        for text in ("nosink-bidirectional:1", "nosink-bidirectional:2", "nosink-bidirectional:1+bidirectional:1")
    ]
    named = replace(config, name="line", runs=str(tmp_path), task=TaskSpec("sts-sample", {}, pairs=64))
    failing[plans[-1].text] = HeadError("it diverged")
    result = run_search(named, plans, strategy="coordinate", budget=1.0)
    [choice] = result.record.chosen.values()
    assert choice.plan in plans[:2]
    assert [dict(failure.point) for failure in result.record.failed] == [{"plan": plans[-1].text}]


def test_a_search_goes_on_without_a_point_that_fails(
    config: RunConfig, failing: dict[str, Exception | Change], tmp_path: Path
) -> None:
    named = replace(config, name="searched", runs=str(tmp_path), task=TaskSpec("sts-sample", {}, pairs=32))
    over = {"plan": ["causal", "backward:1", "backward:2", "bidirectional:1"], "poolings": ["mean", "last"]}
    whole = sweep(named, over, search="halving", budget=0.9)
    [best] = whole.record.chosen.values()
    failing[best.plan.text] = HeadError("it diverged")
    result = sweep(replace(named, name="without"), over, search="halving", budget=0.9)
    [choice] = result.record.chosen.values()
    assert choice.plan != best.plan
    assert result.record.grid is not None
    assert {failure.point["plan"] for failure in result.record.grid.failed} == {best.plan.text}


# Tasks and sources.

SCORED = ("validation", "pearson")
READ = {"plain": {}, "echo": {"template": "echo", "poolings": ["echo-mean"]}}


@pytest.fixture(scope="module")
def over_tasks(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> RunResult[PlansScores]:
    """Two tasks, one with sources of rows."""
    sample = load_task("sts-sample")
    assert isinstance(sample, PairTask)
    lines = ["split\tsentence1\tsentence2\tscore\twhere"]
    for split in sample.splits:
        rows = sample.rows(split).select(range(32))
        for number, (a, b, score) in enumerate(zip(rows["sentence1"], rows["sentence2"], rows["score"], strict=True)):
            lines.append(f"{split}\t{a}\t{b}\t{score}\t{'news' if number % 2 else 'forum'}")
    file = tmp_path_factory.mktemp("tasks") / "pairs.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"files": str(file), "source": "where", "score_range": [0, 5], "name": "mine"}
    tasks = {"mine": {"name": "pair-files", "options": options, "pairs": 0}, "sample": "sts-sample"}
    over = {"encoder": READ, "task": tasks}
    return sweep(replace(config, name="tasks"), over, choose_on="mine")


def test_what_is_chosen_on_one_task_is_read_on_the_others(over_tasks: RunResult[PlansScores]) -> None:
    record = over_tasks.record
    assert record.grid is not None
    scores = {(row.point["encoder"], row.point["task"]): row.heads["layer-cosine"] for row in record.plans}
    chosen = max(("plain", "echo"), key=lambda encoder: scores[encoder, "mine"].selection_score)
    assert record.chosen["layer-cosine"].point == {"encoder": chosen, "task": "mine"}
    read = {key for key, result in scores.items() if "test" in result.summary}
    assert read == {(encoder, task) for encoder in (chosen, "plain") for task in ("mine", "sample")}
    tasks = record.grid.transfers[0]
    assert (tasks.over, tasks.chosen_on) == ("tasks", "the task mine")
    for part in tasks.parts:
        there, here = (scores[encoder, part.name].mean("test") for encoder in (chosen, "plain"))
        assert (part.chosen, part.reference) == (there, here)
        assert part.value == pytest.approx(there - here)
        on = [scores[encoder, part.name].selection_score for encoder in ("plain", "echo")]
        assert part.rank == (0.0 if scores[chosen, part.name].selection_score == max(on) else 1.0)
    [of_choice, unseen] = tasks.parts
    assert (of_choice.is_chosen_on, unseen.is_chosen_on) == (True, False)
    assert tasks.value == unseen.value  # the task that chose is no part of the mean
    assert np.isnan([tasks.low, tasks.high, tasks.spread]).all()
    gains = gains_frame(record)
    gains = gains[gains["over"] == "tasks"]
    assert gains["part"].tolist() == ["mine", "sample", "mean"]
    assert gains["is_chosen_on"].tolist() == [True, False, False]
    assert gains["n_units"].iloc[-1] == 1
    summary = (over_tasks.folder / "summary.md").read_text(encoding="utf-8")
    assert "With the point chosen on the task mine, over the other task, " in summary
    assert f"a gain was seen on {int(unseen.value > 0)} of 1 and is certain" in summary
    assert summary.splitlines()[2].startswith("The best of 2 points on 2 tasks is ")


def test_gains_are_told_by_source_and_each_source_is_left_out_of_a_choice(over_tasks: RunResult[PlansScores]) -> None:
    assert over_tasks.record.grid is not None
    _, sources, left_out = over_tasks.record.grid.transfers
    assert [part.name for part in sources.parts] == ["forum", "news"]
    assert {part.split for part in sources.parts} == {"test"}
    assert {part.n_units for part in sources.parts} <= set(range(10, 17))
    assert left_out.over == "sources, each left out of the choice"
    assert {part.split for part in left_out.parts} == {"validation"}
    rows = {(row.point["encoder"], row.point["task"]): row.heads["layer-cosine"] for row in over_tasks.record.plans}
    options = RunFolder(over_tasks.folder).settings["sweep"]["over"]["task"]["mine"]["task"]["options"]
    task = load_task("pair-files", **options)
    for transfer in (sources, left_out):
        for part in transfer.parts:
            at, gold = rows_by_source(task, part.split)[part.name], np.array(task.rows(part.split)["score"][:])
            there, here = (
                float(pearson(rows[encoder, "mine"].predictions[part.split][at], gold[at]))
                for encoder in (part.point["encoder"], "plain")
            )
            assert (part.chosen, part.reference) == pytest.approx((there, here))


def test_a_sweep_over_plans_alone_says_what_any_sweep_does(
    config: RunConfig, over_tasks: RunResult[PlansScores]
) -> None:
    """Differences from the reference, gains by source, and the frame, as with a second axis."""
    options = RunFolder(over_tasks.folder).settings["sweep"]["over"]["task"]["mine"]["task"]
    last = replace(config.extraction, poolings=("last",), layers=("final_norm",))
    named = replace(config, name="plans-alone", task=TaskSpec(**options), extraction=last)
    plans = ["causal", "bidirectional:1", "backward:1"]
    alone = sweep(named, {"plan": plans})
    [choice] = alone.record.chosen.values()
    reference = next(plan for plan in plans[::-1] if plan != choice.plan.text)
    alone = sweep(named, {"plan": plans}, reference=reference)
    beside = sweep(replace(named, name="plans-beside"), {"plan": plans, "poolings": ["last"]}, reference=reference)
    assert alone.record.grid is not None
    assert beside.record.grid is not None
    for mine, theirs in ((alone.record.grid.gaps, beside.record.grid.gaps),):
        assert [gap.point["plan"] for gap in mine] == [plan for plan in plans if plan != reference]
        assert [replace(gap, point={}) for gap in mine] == [replace(gap, point={}) for gap in theirs]
    assert [part.over for part in alone.record.grid.transfers] == [part.over for part in beside.record.grid.transfers]
    frame, other = (pd.read_csv(result.folder / "points.csv") for result in (alone, beside))
    columns = ["plan", "split", "metric", "layer", "value", "is_chosen", "is_reference", "gap", "p_corrected"]
    pd.testing.assert_frame_equal(frame[columns], other[columns])
    summary = (alone.folder / "summary.md").read_text(encoding="utf-8")
    assert "p-values are corrected by Holm for all other points" in summary
    assert "Over 2 sources, chosen on all sources of validation, a gain was seen on" in summary
    assert (alone.folder / "gains_layer_cosine_sources.png").is_file()


def test_without_a_task_to_choose_on_the_mean_rank_decides(
    config: RunConfig, over_tasks: RunResult[PlansScores]
) -> None:
    options = json.loads(json.dumps(RunFolder(over_tasks.folder).settings["sweep"]["over"]["task"]["mine"]["task"]))
    over = {"encoder": READ, "task": {"mine": options, "sample": "sts-sample"}}
    result = sweep(replace(config, name="ranked"), over)
    scores = {
        (r.point["encoder"], r.point["task"]): r.heads["layer-cosine"].selection_score for r in result.record.plans
    }
    wins = sum(scores["plain", task] > scores["echo", task] for task in ("mine", "sample"))
    expected = "plain" if wins >= 1 else "echo"  # of equal ranks the first
    assert result.record.chosen["layer-cosine"].point["encoder"] == expected


@pytest.mark.parametrize(("choose_on", "message"), [("elsewhere", "unknown task to choose on 'elsewhere'")])
def test_a_task_to_choose_on_that_is_none_is_refused(config: RunConfig, choose_on: str, message: str) -> None:
    over = {"poolings": ["mean"], "task": ["sts-sample", "stsb-hub"]}
    grid = grid_of(replace(config, sweep={"over": over}), choose_on=choose_on)
    with pytest.raises(IcecoreError, match=message):
        sweep_run.find_choice_task(grid, {point.label: load_task("sts-sample") for point in grid.points})
    with pytest.raises(ConfigError, match="tasks are no axis of the sweep"):
        sweep(config, {"poolings": ["mean", "last"]}, choose_on="sts-sample")


def make_parts(gains: Iterable[float]) -> list[PartGain]:
    return [PartGain(str(k), {}, "pearson", "test", 0.5, 0.4, gain, 0, 1, 0, 60) for k, gain in enumerate(gains)]


@pytest.mark.parametrize("n_parts", [2, 4, 8])
def test_the_interval_of_a_mean_gain_covers_it_with_few_parts(n_parts: int) -> None:
    """Parts differ in their true gains, and what is measured of each varies with its rows."""
    rng = np.random.default_rng(0)
    gains = rng.normal(0.1, 0.05, size=(4000, n_parts)) + rng.normal(0, 0.02, size=(4000, n_parts))
    intervals = []
    for measured in gains:
        transfer = make_transfer("head", "tasks", "", make_parts(measured))
        assert transfer is not None
        intervals.append((transfer.low, transfer.high))
    assert np.mean([low <= 0.1 <= high for low, high in intervals]) == pytest.approx(0.95, abs=0.015)
    expected = ttest_1samp(gains[-1], 0).confidence_interval(0.95)
    assert intervals[-1] == pytest.approx((expected.low, expected.high))


def test_the_mean_gain_leaves_out_the_task_that_chose_and_parts_without_a_score() -> None:
    parts = make_parts([0.9, 0.1, math.nan, 0.3])
    parts[0] = replace(parts[0], is_chosen_on=True)
    transfer = make_transfer("head", "tasks", "the task 0", parts)
    assert transfer is not None
    assert len(transfer.parts) == 4
    assert transfer.value == pytest.approx(0.2)
    assert transfer.spread == pytest.approx(math.sqrt(0.02))


def test_the_rows_of_stsb_carry_genre_and_source(icecore_data: Path) -> None:
    task = load_task("stsb-local", folder=str(icecore_data / "stsb"))
    for split, (_, parts) in STSB_ORIGINS.items():
        rows = task.rows(split)
        counts = {name: len(part) for name, part in rows_by_source(task, split).items()}
        assert counts == {source: n for _, source, n in parts}
        assert set(rows["genre"]) == {"captions", "forums", "news"}
    assert task.digest().startswith("d77ed769")  # neither is part of what a task is


def test_other_files_of_stsb_name_no_source(icecore_data: Path, tmp_path: Path) -> None:
    for file in (icecore_data / "stsb").glob("*.csv"):
        text = file.read_text(encoding="utf-8")
        (tmp_path / file.name).write_text(text.replace("guitar", "piano", 1), encoding="utf-8")
    task = load_task("stsb-local", folder=str(tmp_path))
    assert "source" not in task.rows("train").column_names
    assert rows_by_source(task, "train") == {}


def test_tables_of_results_tell_points_apart(swept: RunResult[PlansScores], over_tasks: RunResult[PlansScores]) -> None:
    table = results([swept.folder, over_tasks.folder])
    scores = table[(table["record"] == "score") & (table["split"] == "validation") & (table["metric"] == "pearson")]
    assert not scores.duplicated(["run", "task", "plan", "head"]).any()
    assert "plan=causal, encoder=echo" in set(scores["plan"])
    assert set(scores[scores["run"] == over_tasks.folder.name]["task"]) == {"mine", "sts-sample"}


def test_the_encoder_of_a_grid_is_that_of_its_point(config: RunConfig) -> None:
    """The cosines of its vectors have the score by which the point was chosen, template and all."""
    echo = {"template": "echo", "poolings": ["echo-mean"]}
    again = {"template": {"name": "echo", "instruction": "Say it again: "}, "poolings": ["echo-mean"]}
    over = {"encoder": {"echo": echo, "both": {**echo, "extraction.plan": "bidirectional:1"}, "again": again}}
    swept = sweep(replace(config, name="to-encoder"), over)
    [choice] = swept.record.chosen.values()
    chosen = ChosenEncoder.of(swept.folder)
    assert (chosen.layer, chosen.spec.plan) == (choice.result.chosen["layer"], choice.plan.text)
    assert (chosen.spec.template.repeat, chosen.spec.poolings) == (2, ("echo-mean",))
    rows = load_run_task(config).splits["validation"]
    encoder = Encoder.from_sweep(swept.folder, caches=config.caches)
    one, other = (torch.from_numpy(encoder.encode(rows[column][:])) for column in ("sentence1", "sentence2"))
    cosines = torch.nn.functional.cosine_similarity(one, other, dim=-1).numpy()
    assert pearson(cosines, np.array(rows["score"][:])) == pytest.approx(choice.result.selection_score, abs=1e-3)


@pytest.mark.parametrize("values", [["none", "standardise"], ["standardise", "none"]])
def test_the_encoder_of_a_grid_has_the_transform_of_its_point(values: list[str], config: RunConfig) -> None:
    """Points that differ in options of a head alone have the same latents, of which only one head is theirs."""
    named = replace(config, name=f"transforms-{values[0]}")
    swept = sweep(named, {"heads.layer-cosine.transform": values})
    [choice] = swept.record.chosen.values()
    [wanted] = choice.point.values()
    read_out = ChosenEncoder.of(swept.folder).read_out
    kind = "none" if choice.result.chosen.get("kind") == "raw" else wanted
    assert not isinstance(read_out, Mapping)
    assert ("none" if read_out is None else read_out.name) == kind


def test_the_encoder_of_a_grid_over_decoders_has_the_head_of_its_decoder(config: RunConfig, tmp_path: Path) -> None:
    decoders = [str(save_decoder(tmp_path / f"decoder-{seed}", seed=seed)) for seed in range(3)]
    named = replace(config, name="decoders", heads={"layer-cosine": {"transform": "standardise"}})
    for over in (decoders, decoders[::-1]):  # wherever the best one stands
        swept = sweep(named, {"decoder.name": over})
        [choice] = swept.record.chosen.values()
        alone = replace(
            named, name="one", decoder=replace(config.decoder, name=str(tmp_path / choice.point["decoder.name"]))
        )
        theirs = ChosenEncoder.of(run(alone).folder).read_out
        mine = ChosenEncoder.of(swept.folder).read_out
        assert isinstance(mine, Transform)
        assert isinstance(theirs, Transform)
        assert torch.equal(mine.mean, theirs.mean)


def test_points_that_differ_in_their_views_have_latents_of_their_own(config: RunConfig) -> None:
    echo = {"template": "echo", "poolings": ["echo-mean"]}
    views: dict[str, Any] = {"a": {"one": {}, "two": echo}, "b": {"one": {}, "two": {"poolings": ["last"]}}}
    texts = ["A cold core was drilled.", "Ice."]
    for names in (["a", "b"], ["b", "a"]):  # whichever of them was fitted last
        over = {"reading": {name: {"views": views[name]} for name in names}}
        swept = sweep(replace(config, name=f"reading-{names[0]}"), over)
        [choice] = swept.record.chosen.values()
        for row in swept.record.plans:
            wanted = views[row.point["reading"]]
            named = replace(config, name=f"alone-{row.point['reading']}", extraction=ExtractionSpec(views=wanted))
            alone = run(named)
            [one], [other] = row.heads.values(), alone.record.heads.values()
            assert one.selection_score == pytest.approx(other.selection_score, abs=1e-4)
            if row.point == choice.point:
                joined = [
                    Encoder.from_sweep(folder, pooling="two+one", caches=config.caches).encode(texts)
                    for folder in (swept.folder, alone.folder)
                ]
                np.testing.assert_allclose(joined[0], joined[1], atol=1e-5)


def test_a_source_on_which_nothing_can_be_scored_is_left_out(config: RunConfig, tmp_path: Path) -> None:
    sample = load_task("sts-sample")
    lines = ["split\tsentence1\tsentence2\tscore\twhere"]
    for split in sample.splits:
        for number, row in enumerate(sample.rows(split).select(range(36))):
            score = 1.0 if number % 3 == 2 else row["score"]
            lines.append(f"{split}\t{row['sentence1']}\t{row['sentence2']}\t{score}\t{'abc'[number % 3]}")
    file = tmp_path / "pairs.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"files": str(file), "source": "where", "score_range": [0, 5], "name": "mine"}
    mine = replace(config, name="constant", task=TaskSpec("pair-files", options))
    chosen = {}
    for poolings in (["mean", "last"], ["last", "mean"]):
        result = sweep(mine, {"poolings": poolings}, choose_by="sources")
        [choice] = result.record.chosen.values()
        chosen[poolings[0]] = choice.point
        assert set(source_frame(result.record)["source"]) == {"a", "b"}
    assert chosen["mean"] == chosen["last"]  # not simply the first


def test_an_option_typed_as_its_default_is_that_of_the_encoder(config: RunConfig) -> None:
    """A template of a point that says otherwise does not overrule it, and neither does it where the encoder is read."""
    named = replace(config, name="typed", extraction=ExtractionSpec(template=InputTemplate(eos="auto")))
    swept = sweep(named, {"template.name": ["echo-document"]})
    assert ChosenEncoder.of(swept.folder).spec.template.eos == "auto"
    decided = sweep(replace(config, name="decided"), {"template.name": ["echo-document"]})
    assert ChosenEncoder.of(decided.folder).spec.template.eos == "force"
    for of, eos in ((swept, "auto"), (decided, "force")):  # and so it is where the sweep is run again from its folder
        [again] = grid_of(read_config([], file=str(of.folder / "config.yaml"))).points
        template = again.config.extraction.template
        assert (again.label, template.name, template.eos) == ("template.name=echo-document", "echo-document", eos)


def test_layers_are_told_by_source(over_tasks: RunResult[PlansScores]) -> None:
    """Each curve is that of a run whose validation rows are those of the source alone."""
    frame = source_frame(over_tasks.record)
    assert set(frame["source"]) == {"forum", "news"}
    assert set(frame["n_rows"]) == {16}
    points = {row.label: row for row in over_tasks.record.plans if row.point["task"] == "mine"}
    assert set(frame["point"]) <= set(points)
    assert frame[frame["is_chosen"]]["point"].nunique() == 1
    for point, part in frame.groupby("point"):
        whole, *_ = [c for c in points[str(point)].heads["layer-cosine"].curves if (c.split, c.metric) == SCORED]
        assert part.groupby("source")["layer"].count().eq(len(whole.values)).all()
        ends = part.groupby("layer", sort=False)["value"].agg(["min", "max"])
        assert ends["min"].ne(ends["max"]).any()  # sources differ
    assert (over_tasks.folder / "sources_layer_cosine.png").stat().st_size > 1000
    values = RunFolder(over_tasks.folder).values
    assert without_nan(read_plans(values).to_dict()) == {key: values[key] for key in values if key != "sha256"}


@pytest.mark.long
def test_a_point_is_chosen_by_sources_that_count_alike(config: RunConfig, over_tasks: RunResult[PlansScores]) -> None:
    """The choice is the best mean of the scores on each source, as they are told of every point."""
    options = json.loads(json.dumps(RunFolder(over_tasks.folder).settings["sweep"]["over"]["task"]["mine"]["task"]))
    mine = replace(config, name="by-sources", task=TaskSpec(**options))
    encoders = {**READ, "last": {"poolings": ["last"]}}
    result = sweep(mine, {"encoder": encoders}, choose_by="sources")
    task = load_run_task(mine)
    gold = np.array(task.rows("validation")["score"])
    means = {}
    for row in result.record.plans:
        predicted = row.heads["layer-cosine"].predictions["validation"]
        parts = rows_by_source(task, "validation").values()
        means[row.label] = np.mean([pearson(predicted[part], gold[part]) for part in parts])
    [choice] = result.record.chosen.values()
    assert f"encoder={choice.point['encoder']}" == max(means, key=lambda label: means[label])
    assert RunFolder(result.folder).settings["sweep"]["choose_by"] == "sources"
    frame = points_frame(read_plans(RunFolder(result.folder).values))
    decided = frame[frame["record"] == "sources"].set_index("point")["value"]
    finite = {label: mean for label, mean in means.items() if np.isfinite(mean)}
    assert decided.to_dict() == pytest.approx(finite)  # what decided is on record, and in the report
    summary = (result.folder / "summary.md").read_text(encoding="utf-8")
    assert "| mean over sources | validation |" in summary
    assert f"| {100 * max(finite.values()):.1f} |" in summary
    with pytest.raises(ConfigError, match="but the validation rows of task 'sts-sample' name no source; name their"):
        sweep(config, {"poolings": ["mean", "last"]}, choose_by="sources")
    few = task.replace_splits({split: rows.select(range(9)) for split, rows in task.splits.items()}, note="few")
    with pytest.raises(ConfigError, match=r"fewer than two sources with at least 8 rows \(.+ \d.*\); give more rows"):
        require_sources(few)
    with pytest.raises(ConfigError, match="name the one to choose on with --choose-on"):
        sweep(mine, {"task": {"mine": options, "sample": "sts-sample"}}, choose_by="sources")
    with pytest.raises(ConfigError, match="which few rows of a search cannot tell"):
        sweep(mine, {"encoder": encoders}, choose_by="sources", search="halving")
    with pytest.raises(UnknownNameError, match="unknown choose_by 'source': did you mean 'sources'"):
        sweep(mine, {"encoder": encoders}, choose_by="source")


# What does not fit, and what is refused before anything is computed.


@pytest.mark.parametrize("key", ["plan", "layers"])
def test_a_point_that_fits_one_decoder_and_not_another_costs_itself_alone(
    key: str, config: RunConfig, decoder_folder: Path, tmp_path: Path
) -> None:
    shallow = save_decoder(tmp_path / "shallow", num_hidden_layers=2)
    n_blocks = len(load_decoder(str(decoder_folder)).blocks)
    deep = {"plan": f"backward:{n_blocks}", "layers": f"block_{n_blocks:02d}"}[key]
    over = {"decoder.name": [str(decoder_folder), str(shallow)], key: ["causal" if key == "plan" else "all", deep]}
    result = sweep(replace(config, runs=str(tmp_path / "runs")), over)
    assert result.record.grid is not None
    [failure] = result.record.grid.failed
    assert dict(failure.point) == {"decoder.name": "shallow", key: deep}
    assert ("but the decoder has 2" if key == "plan" else "unknown layer") in failure.why
    assert len(result.record.plans) == 3


@pytest.mark.parametrize("search", ["", "halving"])
def test_a_point_that_does_not_fit_the_only_decoder_is_refused_by_name(
    search: str, config: RunConfig, tmp_path: Path
) -> None:
    named = replace(config, runs=str(tmp_path), caches=str(tmp_path / "caches"))
    for key, values, why in (
        ("plan", ["causal", "backward:99"], "the point .*plan=backward:99.* of the sweep: .*needs 99 blocks"),
        ("layers", ["all", "block_99"], "the point .*layers=block_99.* of the sweep: unknown layer"),
    ):
        with pytest.raises(ConfigError, match=why):
            sweep(named, {key: values, "poolings": ["mean", "last"]}, search=search, budget=0.9 if search else None)
    assert not list(tmp_path.rglob("*.h5"))


def test_a_task_to_choose_on_that_several_values_are_is_refused(config: RunConfig) -> None:
    tasks = {"a": {"task": {"name": "sts-sample", "pairs": 16}}, "b": {"task": {"name": "sts-sample", "pairs": 20}}}
    with pytest.raises(ConfigError, match="choose_on is 'sts-sample', which a and b are; allowed: one of a, b"):
        sweep(config, {"task": tasks}, choose_on="sts-sample")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--over", "poolings=mean,last", "--choose-on", "nope"], "choose_on is 'nope', but tasks are no axis"),
        (["--over", "poolings=mean,last", "--search", "halving", "--budget", "5"], "the search budget is 5"),
        (
            ["--over", "heads.layer-cosine.transform=none,bogus"],
            "the point transform=bogus of the sweep: unknown transform 'bogus'",
        ),
        (["--over", "plan=causal,backward:99"], "the point plan=backward:99 of the sweep: the mask plan"),
    ],
)
def test_a_dry_run_refuses_what_the_sweep_would(
    argv: list[str], sentence: str, decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [
        "sweep",
        "--decoder.name",
        str(decoder_folder),
        "--task.name",
        "sts-sample",
        "--heads",
        "{layer-cosine: {}}",
    ]
    assert main([*whole, *argv, "--dry-run"]) == 1
    assert sentence in capsys.readouterr().err


def test_a_dry_run_says_what_keeps_a_point_from_being_computed(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_decoder(tmp_path / "shallow", num_hidden_layers=2)
    decoders = f"decoder.name={decoder_folder},{tmp_path / 'shallow'},nosuchname"
    words = ["--task.name", "sts-sample", "--heads", "{layer-cosine: {}}", "--over", "plan=causal,backward:3"]
    assert main(["sweep", *words, "--over", decoders, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert [line for line in lines if ": " not in line] == [
        f"plan=causal, decoder.name={decoder_folder.name}",
        "plan=causal, decoder.name=shallow",
        f"plan=backward:3, decoder.name={decoder_folder.name}",
    ]
    assert all(
        "nosuchname" in line or "needs 3 blocks, but the decoder has 2" in line for line in lines if ": " in line
    )


def test_a_sweep_predicts_nothing_and_says_what_does(
    swept: RunResult[PlansScores], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2\nIce.,Snow.\n", encoding="utf-8")
    assert main(["predict", str(swept.folder), str(tmp_path / "pairs.csv")]) == 1
    said = capsys.readouterr().err
    assert "is a sweep, which has heads at many points; allowed: a folder made by `icecore run`." in said
    assert "ValueError" not in said


def test_a_search_of_which_no_point_fits_any_decoder_says_why(
    config: RunConfig, decoder_folder: Path, tmp_path: Path
) -> None:
    shallow = save_decoder(tmp_path / "shallow", num_hidden_layers=2)
    over = {"decoder.name": [str(decoder_folder), str(shallow)], "plan": ["backward:98", "backward:99"]}
    with pytest.raises(HeadError, match=r"no point can be computed on every task: .*needs 98 blocks"):
        sweep(replace(config, runs=str(tmp_path)), over, search="halving", budget=0.9)


def test_an_unknown_decoder_costs_its_own_points_alone(config: RunConfig, decoder_folder: Path, tmp_path: Path) -> None:
    over = {"decoder.name": [str(decoder_folder), "nosuchname"]}
    result = sweep(replace(config, runs=str(tmp_path)), over)
    assert result.record.grid is not None
    [failure] = result.record.grid.failed
    assert "nosuchname" in failure.why
    assert len(result.record.plans) == 1


# What a sweep must not mix up: rows, sources, decoders, and heads of another data set.


def test_a_sweep_whose_sources_have_changed_is_not_found(config: RunConfig, tmp_path: Path) -> None:
    """They are in no digest of a task, and decide a choice by sources."""
    sample = load_run_task(config)
    lines = ["sentence1,sentence2,score,split,where"]
    for split, rows in sample.splits.items():
        lines += [
            f'"{row["sentence1"]}","{row["sentence2"]}",{row["score"]},{split},{"ab"[k % 2]}'
            for k, row in enumerate(rows)
        ]
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(lines), encoding="utf-8")
    options = {"files": str(file), "source": "where", "score_range": [0, 5], "name": "mine"}
    mine = replace(config, name="sources", runs=str(tmp_path), task=TaskSpec("pair-files", options))
    grid = grid_of(mine, ["poolings=mean,last"], choose_by="sources")
    sweep_run.run_grid(mine, grid)
    assert find_finished(mine, grid, test="chosen") is not None
    file.write_text(
        "\n".join(line[:-1] + ("a" if k < 12 else "b") if k else line for k, line in enumerate(lines)), encoding="utf-8"
    )
    assert find_finished(mine, grid, test="chosen") is None


def test_points_that_read_other_rows_are_refused(config: RunConfig, tmp_path: Path) -> None:
    words = replace(
        config,
        task=TaskSpec("words-sample"),
        heads={"token-logistic": {}},
        extraction=ExtractionSpec(),
        runs=str(tmp_path),
    )
    with pytest.raises(ConfigError, match="'protocol=icecore' and 'protocol=look-both-ways' read other rows of task"):
        sweep(words, {"protocol": ["icecore", "look-both-ways"]})


def test_the_encoder_of_a_sweep_over_plans_is_of_its_own_rows(config: RunConfig, tmp_path: Path) -> None:
    """A folder may hold heads that were fitted on other rows later."""
    named = replace(config, name="rows", runs=str(tmp_path), heads={"layer-cosine": {"transform": "standardise"}})
    plans = [parse_plan("causal"), parse_plan("bidirectional:1")]
    folder = run_sweep(named, plans).folder
    right = ChosenEncoder.of(folder).read_out
    others = replace(named, runs=str(tmp_path / "others"), task=TaskSpec("sts-sample", pairs=40))
    elsewhere = run_sweep(others, plans).folder
    for head in (elsewhere / "heads").iterdir():
        shutil.copytree(head, folder / "heads" / head.name)
    again = ChosenEncoder.of(folder).read_out
    assert isinstance(right, Transform)
    assert isinstance(again, Transform)
    assert torch.equal(right.mean, again.mean)


def test_depths_are_those_of_each_points_decoder(config: RunConfig, decoder_folder: Path, tmp_path: Path) -> None:
    shallow = save_decoder(tmp_path / "shallow", num_hidden_layers=2)
    decoders = {"decoder.name": [str(decoder_folder), str(shallow)]}
    folder = sweep(replace(config, name="depths", runs=str(tmp_path)), decoders).folder
    frame = layers_across([folder], head="layer-cosine")
    depths = frame[frame["decoder"] == "shallow"].groupby("layer", sort=False)["depth"].first()
    assert depths.to_dict() == pytest.approx({"embedding": 0, "block_01": 1 / 3, "block_02": 2 / 3, "final_norm": 1})


def test_classes_without_validation_are_chosen_by_folds_of_train(config: RunConfig, tmp_path: Path) -> None:
    classes = replace(
        config,
        name="folds",
        runs=str(tmp_path),
        task=TaskSpec("class-sample"),
        protocol="look-both-ways",
        heads={"logistic-probe": {"Cs": [0.1, 1.0], "layers": ["all"]}},
    )
    result = sweep(classes, {"poolings": ["mean", "last"]})
    [choice] = result.record.chosen.values()
    assert choice.gain is not None
    assert "validation" not in choice.result.summary


@pytest.mark.parametrize(
    ("axis", "values", "reference", "label"),
    [("poolings", [["mean"], ["last"]], ["last"], "[last]"), ("anchor_identical", [True, False], False, "false")],
)
def test_a_reference_of_a_file_may_be_a_plain_value(
    axis: str, values: list[Any], reference: Any, label: str, config: RunConfig
) -> None:
    of_file = replace(config, sweep={"over": {axis: values}, "reference": {axis: reference}})
    assert list(grid_of(of_file).reference.values()) == [label]


@pytest.mark.parametrize("name", ["low", "depth", "p_corrected"])
def test_an_axis_has_no_name_of_a_column(name: str, config: RunConfig) -> None:
    with pytest.raises(ConfigError, match=f"the axis '{name}' has the name of a column of every sweep"):
        grid_of(replace(config, sweep={"over": {name: {"a": {"poolings": ["mean"]}, "b": {"poolings": ["last"]}}}}))


def test_a_key_with_the_name_of_a_column_keeps_a_longer_one(config: RunConfig) -> None:
    assert grid_of(config, ["pretraining.seed=0,1"]).axes == ("pretraining.seed",)
    assert short_key("heads.few-shot-probe.seed") == "few-shot-probe.seed"
