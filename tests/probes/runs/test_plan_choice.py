"""No sweep and no search chooses on test: the best on test is planted where it is not the best on validation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.decoders.decoder_spec import DecoderSpec
from extract.masks.mask_plan import plans_over_k_and_k0
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.data.class_task import ClassTask
from probes.runs.grid_search import draw_rows
from probes.runs.run import evaluate_heads, make_context
from probes.runs.run_config import RunConfig, TaskSpec
from tests.probes.runs.plan_sweeps import run_search, run_sweep
from tests.probes.worded_classes import write_worded_classes

PLANS = plans_over_k_and_k0(range(3), range(3))
HEAD = "logistic-probe"
CS = [0.01, 1.0, 100.0]
NEW = "tepid"


@dataclass(frozen=True)
class Point:
    """What is chosen: a plan, a layer and a C."""

    plan: str
    layer: str
    C: float


@dataclass(frozen=True)
class Planted:
    """A run whose test labels are those that one probe predicts, which is another one than the best on validation.

    Attributes:
        config: The run.
        gold: The labels of test.
        winner: The best on validation.
        rival: The best of another plan on validation, with another layer and C; it alone of the two knows all of test.
    """

    config: RunConfig
    gold: tuple[str, ...]
    winner: Point
    rival: Point


def write_rows(path: Path, gold: Sequence[str] | None = None) -> TaskSpec:
    """Write sentences whose class is one of their words, which about every fifth does not say."""
    write_worded_classes(path, share_told=0.8, test_gold=gold)
    return TaskSpec("class-files", {"files": str(path), "split_column": "split"})


def point_of(scores: dict[str, Any]) -> Point:
    """Read what a sweep or a search chose."""
    chosen = scores["chosen"][HEAD]
    return Point(chosen["plan"], chosen["chosen"]["layer"], chosen["chosen"]["C"])


def predict_test(config: RunConfig, row: dict[str, Any], *, layer: str, C: float) -> tuple[str, ...]:
    """Predict the classes of test with the probe of one plan, layer and C."""
    alone = replace(config, heads={HEAD: {"Cs": [C], "layers": layer}})
    task = alone.task.load()
    assert isinstance(task, ClassTask)
    cache = LatentCache(Path(config.caches) / row["cache"])
    setting = make_context(alone, task, cache, Path(config.runs) / "alone")
    ids = evaluate_heads(alone, setting)[HEAD].predictions["test"]
    return tuple(task.class_names[i] for i in ids)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    config = RunConfig(
        name="honest",
        decoder=DecoderSpec(str(decoder_folder), device="cpu"),
        extraction=ExtractionSpec(poolings=("mean",)),
        task=write_rows(folder / "honest.csv"),
        heads={HEAD: {"Cs": CS}},
        bootstrap=100,
        caches=str(folder / "caches"),
        runs=str(folder / "runs"),
    )
    scores = run_sweep(config, PLANS).scores
    winner = point_of(scores)
    rows = {row["plan"]: row for row in scores["plans"]}
    best = {
        plan: Point(plan, *(row["heads"][HEAD]["chosen"][key] for key in ("layer", "C"))) for plan, row in rows.items()
    }
    rival = next(each for each in best.values() if each.layer != winner.layer and each.C != winner.C)
    gold = predict_test(config, rows[rival.plan], layer=rival.layer, C=rival.C)
    assert predict_test(config, rows[winner.plan], layer=winner.layer, C=winner.C) != gold
    return Planted(config, gold, winner, rival)


def poisoned(gold: tuple[str, ...]) -> dict[str, list[str]]:
    """Shuffle labels, or give some rows a label that no other split has."""
    rng = np.random.default_rng(1)
    return {
        "permuted": [gold[i] for i in rng.permutation(len(gold))],
        "new": [NEW if i % 3 == 0 else label for i, label in enumerate(gold)],
    }


def before_test(value: Any) -> Any:
    """Leave out what was read on test, and what choosing gained there."""
    if isinstance(value, dict):
        return {key: before_test(part) for key, part in value.items() if key not in ("test", "gain", "lead")}
    return [before_test(part) for part in value] if isinstance(value, list) else value


def run_all(planted: Planted, folder: Path, *, search: str) -> dict[str, dict[str, Any]]:
    """Sweep, or search, under the planted labels of test and under each kind of poison."""
    found = {}
    for name, gold in {"planted": planted.gold, **poisoned(planted.gold)}.items():
        config = replace(planted.config, name=name, runs=str(folder), task=write_rows(folder / f"{name}.csv", gold))
        if search:
            found[name] = run_search(config, PLANS, strategy=search, budget=0.9).scores
        else:
            found[name] = run_sweep(config, PLANS).scores
    return found


@pytest.mark.long
def test_a_sweep_chooses_the_winner_of_validation_whatever_test_says(planted: Planted, tmp_path: Path) -> None:
    found = run_all(planted, tmp_path, search="")
    clean = found["planted"]
    assert len({planted.winner.plan, planted.rival.plan}) == len({planted.winner.C, planted.rival.C}) == 2
    for scores in found.values():
        assert point_of(scores) == planted.winner
        assert before_test(scores["plans"]) == before_test(clean["plans"])
        assert before_test(scores["chosen"]) == before_test(clean["chosen"])
    read = [scores["chosen"][HEAD]["summary"]["test"]["accuracy"]["mean"] for scores in found.values()]
    assert len(set(read)) > 1
    assert max(read) < 1


def test_rows_are_drawn_the_same_whatever_test_says(tmp_path: Path) -> None:
    gold = tuple(("cold", "warm")[i % 2] for i in range(40))
    plain = write_rows(tmp_path / "plain.csv", gold).load().without_test()
    for name, labels in poisoned(gold).items():
        task = write_rows(tmp_path / f"{name}.csv", labels).load().without_test()
        assert task.digest() == plain.digest()
        for n_rows in (16, 30, 40):
            assert draw_rows(task, n_rows).digest() == draw_rows(plain, n_rows).digest()


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["halving", "coordinate"])
def test_a_search_is_the_same_whatever_test_says(strategy: str, planted: Planted, tmp_path: Path) -> None:
    found = run_all(planted, tmp_path, search=strategy)
    clean = found["planted"]
    assert len(clean["search"]["trials"][0]["scores"]) > 1
    for scores in found.values():
        assert scores["search"] == clean["search"]
        assert point_of(scores) == point_of(clean)
        assert before_test(scores["plans"]) == before_test(clean["plans"])
        assert before_test(scores["chosen"]) == before_test(clean["chosen"])
    read = [scores["chosen"][HEAD]["summary"]["test"]["accuracy"]["mean"] for scores in found.values()]
    assert len(set(read)) > 1
