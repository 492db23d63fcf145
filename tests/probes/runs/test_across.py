"""Runs of any tasks side by side: whose curves are read, how they are normalised, what is ranked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import HeadError, UnknownNameError
from probes.heads.result import Curve, HeadResult
from probes.report.scores import SCORES_SCHEMA, seal_scores
from probes.runs.results import CENTRE_COLUMNS, CURVE_COLUMNS, centres_of_gravity, layers_across, rank_systems
from tests.probes.report.made_runs import make_result, make_summary

LAYERS = ("embedding", "block_01", "block_02", "final_norm")


def head(name: str = "made", score: float = 0.5, *curves: Curve, **fields: Any) -> HeadResult:
    return make_result(name, score, **{"layers": LAYERS, "curves": curves, **fields})


def curve(*values: float, name: str = "", split: str = "validation", **fields: Any) -> Curve:
    return Curve(name, split, "accuracy", values, **fields)


def write(folder: Path, task: str, plans: Mapping[str, HeadResult], *, what: str = "run") -> Path:
    """Write the scores of a run, or of a sweep where there are several plans."""
    common = {
        "schema": SCORES_SCHEMA,
        "what": what,
        "name": folder.name,
        "task": {"name": task},
        "kind": "classes",
        "decoder": {"name": "tiny", "n_layers": 2},
        "protocol": "icecore",
    }
    parts = [{"plan": plan, "heads": {result.name: result.to_dict()}} for plan, result in plans.items()]
    own = {"plans": parts} if what == "sweep" else {"cache": {"plan": parts[0]["plan"]}, "heads": parts[0]["heads"]}
    folder.mkdir()
    values = json.loads(json.dumps({**common, **own}))
    (folder / "scores.json").write_text(json.dumps({**values, "sha256": seal_scores(values)}), encoding="utf-8")
    return folder


def test_curves_of_runs_and_sweeps_stand_side_by_side(tmp_path: Path) -> None:
    test = curve(0, 0, 0, 1, split="test")
    one = write(tmp_path / "one", "colours", {"causal": head("a", 0.5, curve(0.2, 0.4, 0.3, 0.6), test)})
    swept = {"causal": head("a", 0.5, curve(0.5, 0.5, 0.5, 0.5)), "backward:1": head("a", 0.5, curve(1, 0, 0.5, 0.25))}
    two = write(tmp_path / "two", "shapes", swept, what="sweep")
    frame = layers_across([one, str(two)])
    assert tuple(frame.columns) == CURVE_COLUMNS
    assert len(frame) == 12
    assert set(frame["split"]) == {"validation"}
    first = frame.query("run == 'one'")
    assert first["share"].tolist() == pytest.approx([0, 0.5, 0.25, 1])
    assert first["value"].tolist() == [0.2, 0.4, 0.3, 0.6]
    assert first["depth"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert frame.query("run == 'two' and plan == 'causal'")["share"].isna().all()  # a flat curve has no scale
    assert layers_across(one)["run"].unique().tolist() == ["one"]


def test_the_best_of_several_values_counts_and_poolings_are_parted(tmp_path: Path) -> None:
    several = head("a", 0.5, curve(0.1, 0.5, 0.2, 0.3, name="C 1"), curve(0.4, 0.1, np.nan, 0.6, name="C 10"))
    joined = head(
        "b",
        0.5,
        curve(0.1, 0.9, 0.5, 0.2),
        pooling="mean+last",
        layers=("mean/block_01", "mean/final_norm", "last/block_01", "last/final_norm"),
    )
    frame = layers_across(
        [write(tmp_path / "a", "x", {"causal": several}), write(tmp_path / "b", "x", {"causal": joined})]
    )
    assert frame.query("head == 'a'")["value"].tolist() == [0.4, 0.5, 0.2, 0.6]
    parts = frame.query("head == 'b'").set_index(["pooling", "layer"])["value"]
    assert parts.to_dict() == {
        ("mean", "block_01"): 0.1,
        ("mean", "final_norm"): 0.9,
        ("last", "block_01"): 0.5,
        ("last", "final_norm"): 0.2,
    }
    assert frame.query("head == 'b'")["depth"].tolist() == pytest.approx([1 / 3, 1, 1 / 3, 1])


def test_centres_have_an_interval_over_seeds(tmp_path: Path) -> None:
    seeds = ((0.2, 0.4, 0.4, 0.6), (0.2, 0.2, 0.6, 0.6), (0.2, 0.2, 0.2, 0.6))
    mean = tuple(np.mean(seeds, axis=0).tolist())
    run = write(tmp_path / "run", "x", {"causal": head("a", 0.5, curve(*mean, by_seed=seeds))})
    [row] = centres_of_gravity(run).to_dict("records")
    assert tuple(row) == CENTRE_COLUMNS
    centres = [(1 / 3 + 1) / 2, 2 / 3, 1]
    gains = np.diff(mean)
    assert row["centre"] == pytest.approx(gains @ [1 / 3, 2 / 3, 1] / gains.sum())
    assert row["high"] - row["centre"] == pytest.approx(4.302653 * np.std(centres, ddof=1) / np.sqrt(3))
    assert (row["best_layer"], row["n_seeds"]) == ("final_norm", 3)
    assert (row["best"], row["worst"]) == pytest.approx((0.6, 0.2))
    alone = centres_of_gravity(write(tmp_path / "alone", "x", {"causal": head("a", 0.5, curve(0, 0, 1, 0))}))
    assert alone["centre"].tolist() == pytest.approx([2 / 3])
    assert alone["low"].isna().all()


def scored(score: float, name: str = "a", *, test: float | None = None) -> HeadResult:
    splits = {"validation": score} if test is None else {"validation": score, "test": test}
    return head(name, score, summary={split: {"accuracy": make_summary(value)} for split, value in splits.items()})


def test_plans_are_ranked_over_tasks(tmp_path: Path) -> None:
    plans = {"x": (0.9, 0.8, 0.5), "y": (0.2, 0.6, 0.4)}
    names = ("causal", "backward:1", "backward:2")
    runs = [
        write(
            tmp_path / task,
            task,
            {plan: scored(value) for plan, value in zip(names, values, strict=True)},
            what="sweep",
        )
        for task, values in plans.items()
    ]
    found = rank_systems(runs)
    assert found.index.name == "plan"
    assert found["x"].to_dict() == pytest.approx({"causal": 0, "backward:1": 0.5, "backward:2": 2})
    assert found["y"].to_dict() == pytest.approx({"causal": 2, "backward:1": 0, "backward:2": 1})
    assert found["average"].to_dict() == pytest.approx({"backward:1": 0.25, "causal": 1, "backward:2": 1.5})
    assert found.index[0] == "backward:1"


def test_heads_are_ranked_on_test_by_what_validation_chose(tmp_path: Path) -> None:
    runs = []
    for task in ("x", "y"):
        runs.append(write(tmp_path / f"{task}1", task, {"causal": scored(0.9, "a", test=0.1)}))
        runs.append(write(tmp_path / f"{task}2", task, {"backward:1": scored(0.5, "a", test=0.8)}))
        runs.append(write(tmp_path / f"{task}3", task, {"causal": scored(0.4, "b", test=0.3)}))
    found = rank_systems(runs, by="head")
    assert found["average"].to_dict() == {"b": 0, "a": 1}  # of a, the plan that validation prefers


def test_layers_are_ranked_by_their_curves(tmp_path: Path) -> None:
    runs = [
        write(tmp_path / task, task, {"causal": head("a", 0.5, curve(*values))})
        for task, values in {"x": (0, 0.2, 0.3, 0.1), "y": (0.1, 0.4, 0.2, 0)}.items()
    ]
    assert rank_systems(runs, by="layer")["average"].idxmin() == "block_01"


def test_what_cannot_be_ranked_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one", "x", {"causal": scored(0.5)})
    other = write(tmp_path / "other", "y", {"causal": scored(0.5), "backward:1": scored(0.4)}, what="sweep")
    with pytest.raises(HeadError, match="1 plans on 1 tasks cannot be ranked"):
        rank_systems(one)
    with pytest.raises(HeadError, match="plan 'backward:1' has no score on task 'x'"):
        rank_systems([one, other])
    with pytest.raises(UnknownNameError, match="unknown system 'plans': did you mean 'plan'"):
        rank_systems([one, other], by="plans")
    with pytest.raises(HeadError, match="no head of these runs scored single layers"):
        layers_across(one)
    with pytest.raises(HeadError, match="no head 'b' of these runs"):
        layers_across(one, head="b")
