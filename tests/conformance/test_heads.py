"""What every registered head must hold, whatever kind of task it is for."""

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import getsource, signature
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch

from extract.errors import IcecoreError, TaskError, UnknownNameError
from extract.registry import option_names, resolve
from probes.data.task import Task
from probes.fitting.saved_fits import SavedHead
from probes.heads.head_table import HEADS, HeadEntry, PlannedRun, resolve_head
from probes.heads.layer_head import FitContext, load_head
from probes.heads.result import HeadResult
from probes.report.scores import read_result
from probes.runs.task_kinds import KINDS
from tests.conformance.planted_kinds import ALL, PLANTED, fingerprint
from tests.probes.heads.evaluating import as_text, evaluate, make_setting

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "siamese-cosine mlp": ("siamese-cosine", {"encoder": "mlp", "loss": "mse"}),
    "siamese-cosine widths": ("siamese-cosine", {"bottleneck": "16, upper half 24", "loss": "cosent"}),
    "siamese-cosine pairs": ("siamese-cosine", {"bottleneck": [16, 24, 24, 24, 16], "pair_features": 2}),
}
"""Ways of one head that build it otherwise."""
CASES = {**{name: (name, {}) for name in HEADS}, **VARIANTS}


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


def quick_options(case: str) -> dict[str, Any]:
    name, own = CASES[case]
    quick = PLANTED[HEADS[name].kind].quick
    return {**{key: value for key, value in quick.items() if key in HEADS[name].options()}, **own}


def accepts(entry: HeadEntry, task: Task) -> bool:
    try:
        entry.check(task, resolve_head(entry.name, {}), PlannedRun())
    except IcecoreError:
        return False
    return True


def task_of(case: str, shuffled: tuple[str, ...] = ()) -> Task:
    """Return the first sample task that the head takes."""
    entry = HEADS[CASES[case][0]]
    return next(task for task in PLANTED[entry.kind].tasks(shuffled) if accepts(entry, task))


@dataclass(frozen=True, eq=False)
class Trial:
    """A head evaluated on the planted latents of its kind."""

    case: str
    setting: FitContext
    result: HeadResult
    watched: tuple[int, ...]

    @property
    def name(self) -> str:
        return CASES[self.case][0]

    def again(self, **changes: Any) -> HeadResult:
        return evaluate(self.name, quick_options(self.case), replace(self.setting, **changes))

    def saved(self) -> list[SavedHead[Any]]:
        return [load_head(path.parent) for path in sorted((self.setting.folder / self.name).rglob("head.json"))]


@pytest.fixture(scope="module", params=[*HEADS, *(pytest.param(case, marks=pytest.mark.long) for case in VARIANTS)])
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trial(case: str, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder, task, name = tmp_path_factory.mktemp("trial"), task_of(case), CASES[case][0]
    cache = PLANTED[HEADS[name].kind].plant(folder, task)
    setting = make_setting(cache, task, folder / "heads", seeds=(0, 1))
    before = (fingerprint(cache), task.digest(), torch.get_rng_state(), np.random.get_state(legacy=False))
    watched: list[int] = []

    def watch(seed: int) -> Any:
        watched.append(seed)
        return lambda *_: None

    result = evaluate(name, quick_options(case), setting, watch=watch)
    assert (fingerprint(cache), task.digest()) == before[:2]  # inputs are not changed
    assert torch.equal(torch.get_rng_state(), before[2])  # and global generators are left alone
    np.testing.assert_equal(np.random.get_state(legacy=False), before[3])
    return Trial(case, setting, result, tuple(watched))


def test_every_kind_of_head_is_planted() -> None:
    assert {entry.kind for entry in HEADS.values()} <= set(PLANTED)


@pytest.mark.parametrize("name", HEADS)
def test_options_resolve_from_nothing_and_from_text(name: str) -> None:
    entry = HEADS[name]
    assert entry.name == name
    assert entry.description
    found = resolve_head(name, None)
    assert (found.name, found.pooling, found.layers) == (name, "", ("all",))
    for source, value in zip(map(resolve, entry.sources), found.values, strict=True):
        expected: Any = {} if not is_dataclass(source) else source() if isinstance(source, type) else source
        assert value == expected
        if not is_dataclass(value):
            continue
        numbers = {each.name: getattr(value, each.name) for each in fields(value)}
        numbers = {key: item for key, item in numbers.items() if type(item) in (int, float)}
        assert resolve_head(name, {key: str(item) for key, item in numbers.items()}).values == found.values
    assert resolve_head(name, {"pooling": "last", "layers": "blocks"}).layers == ("blocks",)


@pytest.mark.parametrize("name", HEADS)
def test_an_unknown_option_is_refused_with_the_nearest(name: str) -> None:
    assert len(set(HEADS[name].options())) == len(HEADS[name].options())
    assert {"pooling", "layers"} <= set(HEADS[name].options())
    for option in HEADS[name].options():
        with pytest.raises(UnknownNameError, match=rf"unknown {name} option '{option}_': did you mean '{option}'\?"):
            resolve_head(name, {f"{option}_": 1})


@pytest.mark.parametrize("name", HEADS)
def test_options_are_named_without_an_import_as_they_are_declared(name: str) -> None:
    entry = HEADS[name]
    assert entry.options()[:-2] == tuple(option for each in entry.sources for option in option_names(resolve(each)))


@pytest.mark.parametrize("name", HEADS)
def test_every_option_is_documented(name: str) -> None:
    for source in map(resolve, HEADS[name].sources):
        declared = source if isinstance(source, type) else type(source)
        if is_dataclass(declared):
            lines = [line for each in declared.__mro__[:-1] for line in getsource(each).splitlines()]
            for each in fields(declared):
                k = next(k for k, line in enumerate(lines) if line.startswith(f"    {each.name}: "))
                assert lines[k + 1].startswith('    """'), f"option {each.name} of {name} has no docstring"
        else:
            options = [key for key, each in signature(declared).parameters.items() if each.default is not each.empty]
            assert all(f"{key}:" in (declared.__doc__ or "") for key in options)


@pytest.mark.parametrize("name", HEADS)
def test_a_task_without_the_split_it_needs_is_refused_in_a_sentence(name: str) -> None:
    task, needed = task_of(name), "train" if KINDS[HEADS[name].kind].needs_train else "validation"
    with pytest.raises(TaskError, match=needed) as caught:  # some kinds refuse it before there is a task to check
        rest = {split: rows for split, rows in task.splits.items() if split != needed}
        HEADS[name].check(task.replaced(splits=type(task.splits)(rest)), resolve_head(name, {}), PlannedRun())
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_the_result_is_complete(trial: Trial) -> None:
    result, task = trial.result, trial.setting.task
    assert result.name == trial.name
    assert result.metric == task.metrics[0]
    assert result.selection
    assert np.isfinite(result.selection_score)
    assert result.selection_score == pytest.approx(result.mean("validation"), abs=1e-6)
    assert result.options.keys() <= set(HEADS[trial.name].options())
    assert result.splits == tuple(task.splits) == ALL
    for split in task.splits:
        assert set(result.summary[split]) == set(task.metrics)
        for each in result.summary[split].values():
            n_values = (max(len(result.seeds), 1), result.options.get("draws"))
            assert len(each.values) in (*n_values, *[2] * (result.metric == "v-measure"))  # clusters of every seed
            assert each.low <= each.mean <= each.high
    if "layer" in result.chosen:
        assert result.chosen["layer"] in result.layers
    for curve in result.curves:
        assert (curve.split in task.splits, curve.metric in task.metrics) == (True, True)
        assert len(curve.values) == len(result.layers)
        assert {len(row) for row in (*curve.by_seed, curve.spread)} <= {0, len(result.layers)}
    for scores in result.baselines.values():
        assert set(scores) == set(task.splits)
    assert not result.is_optimistic


def test_every_row_is_predicted_and_scored(trial: Trial) -> None:
    result, task, kind = trial.result, trial.setting.task, PLANTED[HEADS[trial.name].kind]
    assert set(result.predictions) == set(result.row_scores) == set(task.splits)
    for split, predicted in result.predictions.items():
        assert predicted.shape == (kind.n_predictions(task, split),)
        assert result.row_scores[split].shape == (len(task.splits[split]),)
        if np.issubdtype(predicted.dtype, np.integer):
            assert -1 <= predicted.min() <= predicted.max() < len(result.names[split])
        else:
            assert np.isfinite(predicted).all()
            assert not result.names


def test_the_serial_form_round_trips(trial: Trial) -> None:
    text = json.dumps(trial.result.to_dict())
    values = json.loads(text, parse_constant=lambda _: None)  # NaN is written as null
    again = json.loads(as_text(read_result(trial.name, values)), parse_constant=lambda _: None)
    assert again == values
    json.dumps(again, allow_nan=False)


def test_it_is_found_again_bit_for_bit_without_fitting(trial: Trial) -> None:
    stamps = {path: path.stat().st_mtime_ns for path in trial.setting.folder.rglob("*") if path.is_file()}
    assert stamps
    again = trial.again()
    assert stamps == {path: path.stat().st_mtime_ns for path in trial.setting.folder.rglob("*") if path.is_file()}
    assert as_text(again) == as_text(trial.result)
    for split in ALL:
        np.testing.assert_array_equal(again.predictions[split], trial.result.predictions[split])
        np.testing.assert_array_equal(again.row_scores[split], trial.result.row_scores[split])


def without_seconds(result: HeadResult) -> str:
    return as_text(replace(result, seeds=tuple({**each, "seconds": 0} for each in result.seeds)))


@pytest.mark.long
def test_the_seed_decides_everything(trial: Trial, tmp_path: Path) -> None:
    same = trial.again(folder=tmp_path / "same")
    assert without_seconds(same) == without_seconds(trial.result)
    for split in ALL:
        np.testing.assert_array_equal(same.predictions[split], trial.result.predictions[split])
    if len(trial.result.seeds) > 1:  # a head with seeds: each gives other weights
        first, second = ({**each, "seed": 0, "seconds": 0} for each in trial.result.seeds)
        assert first != second
        assert trial.watched == (0, 1)


def test_it_is_read_back_and_predicts_the_same(trial: Trial) -> None:
    saved = trial.saved()
    assert len(saved) == max(len(trial.result.seeds), 1)
    assert {each.record.name for each in saved} == {trial.name}
    predict = PLANTED[HEADS[trial.name].kind].predict
    for split in ALL:
        found = predict(saved, trial.setting, split, trial.result.chosen)
        np.testing.assert_array_equal(found, trial.result.predictions[split])


def test_what_is_planted_is_found(trial: Trial) -> None:
    assert trial.result.mean("test") > PLANTED[HEADS[trial.name].kind].chance[1]


@pytest.mark.long
def test_shuffled_gold_is_chance(trial: Trial, tmp_path: Path) -> None:
    """Also: heads kept for other gold are not taken for these, and rows are scored the higher the better."""
    low, high = PLANTED[HEADS[trial.name].kind].chance
    folder = Path(copytree(trial.setting.folder, tmp_path / "heads"))
    shuffled = trial.again(task=task_of(trial.case, ALL), folder=folder, seeds=(0,))
    assert low <= shuffled.mean("test") <= high
    records = [place.rglob("head.json") for place in (trial.setting.folder, folder)]
    before, after = (min(found).read_text(encoding="utf-8") for found in records)
    assert json.loads(before)["fit_id"] != json.loads(after)["fit_id"]
    if result_has_row_scores(trial.result):
        assert np.nanmean(trial.result.row_scores["test"]) > np.nanmean(shuffled.row_scores["test"])


def result_has_row_scores(result: HeadResult) -> bool:
    """All but clusters, which score a row only with the others."""
    return result.metric != "v-measure"


def test_predicted_names_are_those_of_the_gold(trial: Trial) -> None:
    kind = HEADS[trial.name].kind
    for split in trial.result.names if result_has_row_scores(trial.result) else ():
        names, gold = np.array(trial.result.names[split]), np.array(KINDS[kind].report.gold(trial.setting.task, split))
        found = trial.result.predictions[split]
        assert np.mean(names[found[found >= 0]] == gold[found >= 0]) > PLANTED[kind].chance[1]


@pytest.mark.long
def test_nothing_is_chosen_on_the_test_split(trial: Trial, tmp_path: Path) -> None:
    """Poison the gold of the test split: whatever was chosen, fitted or predicted stays bit-identical."""
    poisoned = trial.again(task=task_of(trial.case, ("test",)), folder=tmp_path)
    assert poisoned.summary["test"] != trial.result.summary["test"]
    for key in ("chosen", "selection_score", "options", "layers"):
        assert getattr(poisoned, key) == getattr(trial.result, key)
    for split in ("train", "validation"):
        assert poisoned.summary[split] == trial.result.summary[split]
    for split in ALL[:2] if PLANTED[HEADS[trial.name].kind].predicts_scores else ALL:
        np.testing.assert_array_equal(poisoned.predictions[split], trial.result.predictions[split])
