"""A search over any grid: within its budget, nothing computed twice, and told what was dropped and why."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.errors import ConfigError, HeadError, UsageError
from extract.run.shards import compose_cache, sweep_latents
from extract.wiring.states import count_blocks, route_of
from probes.cli.main import main
from probes.report.document import search_fates
from probes.report.scores import PlansScores, SearchCost, SearchTrial, read_plans, without_nan
from probes.runs import sweep_caches, sweep_run
from probes.runs.folder import RunFolder
from probes.runs.grid import grid_of, read_search
from probes.runs.predict import ChosenEncoder
from probes.runs.run import RunResult
from probes.runs.run_config import RunConfig
from probes.runs.sweep_run import search_grid, sweep
from tests.probes.runs.random_kills import results, without_times
from tests.probes.runs.small_grid import OVER as SMALL
from tests.probes.runs.small_grid import config_in

N_BLOCKS = 3
OVER = {**SMALL, "plan": ["causal", "bidirectional:3"]}
BUDGET = 0.75


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> RunConfig:
    return config_in(tmp_path_factory.mktemp("searched"), decoder_folder, pairs=60)


@pytest.fixture(scope="module")
def computed() -> list[tuple[int, list[Any]]]:
    return []


@pytest.fixture(scope="module")
def searched(config: RunConfig, computed: list[tuple[int, list[Any]]]) -> RunResult[PlansScores]:
    """A search of six points; `computed` has the texts and plans of every pass through the decoder."""

    def counting(decoder: Any, texts: Sequence[Any], plans: Sequence[Any], **options: Any) -> Any:
        computed.append((len(texts), list(plans)))
        return sweep_latents(decoder, texts, plans, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_caches, "sweep_latents", counting)
        return sweep(config, OVER, search="halving", budget=BUDGET)


def search_of(result: RunResult[PlansScores]) -> SearchCost:
    search = result.record.search
    assert search is not None
    return search


def test_the_decoder_computes_what_the_search_says_and_no_more(
    searched: RunResult[PlansScores], computed: list[tuple[int, list[Any]]]
) -> None:
    search = search_of(searched)
    passes = [n * count_blocks([route_of(plan, N_BLOCKS) for plan in plans]) for n, plans in computed]
    n_families = 2  # with and without the echo; plain and last are of the same passes, and two plans share no block
    rounds = [trial.cost for trial in search.trials]
    assert search.full_cost == n_families * 2 * N_BLOCKS * search.n_texts
    assert search.cost == sum(rounds) + N_BLOCKS * (search.n_texts - search.trials[-1].n_texts)
    assert search.cost <= BUDGET * search.full_cost
    n_rounds = next(n for n in range(len(passes) + 1) if sum(passes[:n]) == sum(rounds))
    assert n_rounds >= n_families  # what is computed in the rounds is what they are charged for
    assert all(len(plans) <= 2 for _, plans in computed[n_rounds:])  # then the found point and the reference


def test_it_finds_the_best_of_the_rows_it_read(searched: RunResult[PlansScores]) -> None:
    search = search_of(searched)
    assert len(search.trials[0].scores) == search.n_plans == 6
    for before, after in zip(search.trials, search.trials[1:], strict=False):
        assert set(after.scores) < set(before.scores)
        assert after.n_rows > before.n_rows
        dropped = [score for point, score in before.scores.items() if point not in after.scores]
        assert min(before.scores[point] for point in after.scores) >= max(dropped)
    last = search.trials[-1].scores
    [choice] = searched.record.chosen.values()
    assert choice.point == dict(part.split("=") for part in max(last, key=lambda name: last[name]).split(", "))


@pytest.mark.long
def test_the_found_point_is_that_of_the_whole_grid_there(
    searched: RunResult[PlansScores], config: RunConfig, tmp_path: Path
) -> None:
    [choice] = searched.record.chosen.values()
    whole = sweep(replace(config, name="whole", runs=str(tmp_path), caches=str(tmp_path / "caches")), OVER)
    there = {row.label: row.heads["layer-cosine"] for row in whole.record.plans}
    assert {row.label for row in searched.record.plans} <= set(there)
    for row in searched.record.plans:
        assert row.heads["layer-cosine"].selection_score == pytest.approx(there[row.label].selection_score, abs=1e-4)
    assert searched.record.grid is not None
    assert searched.record.grid.reference == {"plan": "causal", "encoder": "plain"}
    read = {row.label for row in searched.record.plans if "test" in row.heads["layer-cosine"].summary}
    assert read == {"plan=causal, encoder=plain", ", ".join(f"{a}={v}" for a, v in choice.point.items())}
    assert searched.record.test_read == " and ".join(row.label for row in searched.record.plans)


def test_the_report_says_what_was_dropped_at_which_trial_and_why(searched: RunResult[PlansScores]) -> None:
    search = search_of(searched)
    text = (searched.folder / "summary.md").read_text(encoding="utf-8")
    [choice] = searched.record.chosen.values()
    found = ", ".join(f"{axis}={value}" for axis, value in choice.point.items())
    assert text.splitlines()[2].startswith(
        f"Of 6 points the search found `{found}` at {search.share:.2f} of the cost of scoring all"
    )
    fates = search_fates(search, found)
    assert set(fates) == set(search.trials[0].scores)
    for point, fate in fates.items():
        assert any(line.startswith(f"| `{point}` |") and f"| {fate} |" in line for line in text.splitlines())
    assert {"search.png", "points.csv"} <= {path.name for path in searched.folder.iterdir()}
    values = RunFolder(searched.folder).values
    assert values["what"] == "search"
    assert without_nan(read_plans(values).to_dict()) == {key: values[key] for key in values if key != "sha256"}
    assert main(["report", str(searched.folder)]) == 0
    assert main(["table", str(searched.folder)]) == 0


def test_fates_name_the_last_that_was_kept() -> None:
    trials = (
        SearchTrial(16, 32, 9, {"a": 0.5, "b": 0.4, "c": 0.3, "d": float("nan")}),
        SearchTrial(32, 64, 9, {"a": 0.6, "b": 0.7}),
    )
    search = SearchCost("halving", 0.25, "head", 4, 64, 18, 80, 0.225, trials)
    assert search_fates(search, "b") == {
        "c": "dropped in trial 1: 30.0, behind `b` with 40.0",
        "d": "dropped in trial 1: no score, behind `b` with 40.0",
        "a": "dropped in trial 2: 60.0, behind `b` with 70.0",
        "b": "found",
    }
    assert search_fates(replace(search, strategy="coordinate"), "b") == {"b": "found"}


def test_the_encoder_of_a_search_is_that_of_the_found_point(searched: RunResult[PlansScores]) -> None:
    [choice] = searched.record.chosen.values()
    chosen = ChosenEncoder.of(searched.folder)
    assert (chosen.spec.plan, chosen.layer) == (choice.plan.text, choice.result.chosen["layer"])


def test_a_second_search_computes_nothing(
    config: RunConfig, searched: RunResult[PlansScores], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_args: object, **_options: object) -> None:
        raise AssertionError("something was computed")

    before = {path: path.stat().st_mtime_ns for path in Path(config.caches).iterdir()}
    for name in ("sweep_latents", "extract_latents", "compose_cache"):
        monkeypatch.setattr(sweep_caches, name, forbid)
    again = sweep(config, OVER, search="halving", budget=BUDGET)
    assert json.dumps(without_nan(again.record.to_dict())) == json.dumps(without_nan(searched.record.to_dict()))
    assert {path: path.stat().st_mtime_ns for path in Path(config.caches).iterdir()} == before


class Killed(BaseException):
    """A kill."""


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 2])
def test_stopped_while_caches_grow_it_ends_with_the_same_bits(
    at: int, config: RunConfig, searched: RunResult[PlansScores], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = replace(config, caches=str(tmp_path / "caches"), runs=str(tmp_path / "runs"))
    composed = []

    def stop(*args: Any, **options: Any) -> Any:
        composed.append(args)
        if len(composed) == at:
            raise Killed
        return compose_cache(*args, **options)

    monkeypatch.setattr(sweep_caches, "compose_cache", stop)
    with pytest.raises(Killed):
        sweep(again, OVER, search="halving", budget=BUDGET)
    monkeypatch.setattr(sweep_caches, "compose_cache", compose_cache)
    result = sweep(again, OVER, search="halving", budget=BUDGET)
    expected = without_nan(searched.record.to_dict())
    assert without_times(without_nan(result.record.to_dict())) == without_times(expected)
    mine, theirs = (results(Path(folder).parent) for folder in (again.caches, config.caches))
    theirs = {name: value for name, value in theirs.items() if name in mine or name.startswith("caches")}
    assert {name: value for name, value in mine.items() if name.startswith("caches")} == {
        name: value for name, value in theirs.items() if name.startswith("caches")
    }


@pytest.mark.long
def test_points_that_fail_are_dropped_and_named(config: RunConfig, tmp_path: Path, decoder_folder: Path) -> None:
    broken, gone = Path(shutil.copytree(decoder_folder, tmp_path / "broken")), tmp_path / "gone"
    (broken / "model.safetensors").write_bytes(b"no weights")
    over = {"decoder.name": [str(decoder_folder), str(broken), str(gone)], "plan": ["causal", "bidirectional:3"]}
    result = sweep(replace(config, name="failing", runs=str(tmp_path)), over, search="halving", budget=0.9)
    assert result.record.grid is not None
    names = {(Path(f.point["decoder.name"]).name, f.point["plan"]) for f in result.record.grid.failed}
    assert names == {(name, plan) for name in ("broken", "gone") for plan in ("causal", "bidirectional:3")}
    search = search_of(result)
    assert (search.n_plans, search.n_asked) == (4, 6)  # what is not there is known before anything is priced
    assert result.record.chosen["layer-cosine"].point["decoder.name"].endswith(decoder_folder.name)
    summary = (result.folder / "summary.md").read_text(encoding="utf-8")
    assert "no score, behind" in summary
    assert "Of 6 points, of which 4 failed, the search found" in summary


@pytest.mark.long
def test_over_tasks_the_one_to_choose_on_is_read_alone_until_the_end(config: RunConfig) -> None:
    tasks = {"pairs": {}, "classes": {"task": {"name": "class-sample", "pairs": 40}, "heads": "logistic-probe"}}
    over = {"on": tasks, "plan": ["causal", "bidirectional:3", "backward:3"]}
    one = sweep(replace(config, name="on-one"), over, choose_on="pairs", search="halving", budget=0.8)
    search = search_of(one)
    assert search.n_plans == 3
    assert search.full_cost == 3 * N_BLOCKS * search.n_texts
    assert search.by == "head"
    found = one.record.chosen["head"].point["plan"]
    assert {(row.point["on"], row.point["plan"]) for row in one.record.plans} == {
        (task, plan) for task in tasks for plan in (found, "causal")
    }
    assert one.record.grid is not None
    assert [part.name for part in one.record.grid.transfers[0].parts] == ["pairs", "classes"]
    ranked = sweep(replace(config, name="on-all"), over, search="halving", budget=0.8)
    both = search_of(ranked)
    assert both.by == "head, by normalised ranks over tasks"
    assert both.n_texts > search.n_texts
    assert both.full_cost == 3 * N_BLOCKS * both.n_texts
    assert all(0 <= score <= 1 for score in both.trials[0].scores.values())  # 1: the best of both tasks


@pytest.mark.long
def test_words_are_paid_for_again_with_more_rows(config: RunConfig) -> None:
    """A text with words is one unit with its windows, of which no part is kept."""
    task = replace(config.task, name="words-sample", pairs=40)
    heads: dict[str, dict[str, Any] | None] = {"token-logistic": {"max_iterations": 5}}
    over = {"words.poolings": ["mean", "last"], "plan": ["causal", "bidirectional:3"]}
    result = sweep(replace(config, name="words", task=task, heads=heads), over, search="halving", budget=1.0)
    search = search_of(result)
    assert search.cost <= search.full_cost == 2 * N_BLOCKS * search.n_texts
    for trial in search.trials:
        assert trial.cost % (N_BLOCKS * trial.n_texts) == 0


# --- How it is asked for ---


@pytest.mark.long
def test_a_search_is_typed_written_or_passed(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {key: value for key, value in config.to_dict().items() if key in ("decoder", "task", "heads")}
    values |= {"name": "file", "caches": config.caches, "runs": str(tmp_path / "runs"), "bootstrap": 100}
    section = {"over": {"plan": ["causal", "bidirectional:3"], "poolings": ["mean", "last"]}}
    path = tmp_path / "file.yaml"
    path.write_text(
        yaml.safe_dump({**values, "sweep": {**section, "search": "halving", "budget": 0.9}}), encoding="utf-8"
    )
    assert main(["sweep", str(path), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("plan=") == 4
    assert main(["sweep", str(path)]) == 0
    written = json.loads((tmp_path / "runs/file-search/scores.json").read_text(encoding="utf-8"))
    typed = ["--over", "plan=causal,bidirectional:3", "--over", "poolings=mean,last", "--search", "halving"]
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert main(["sweep", str(path), *typed, "--budget", "0.9", "--name", "typed"]) == 0
    read = json.loads((tmp_path / "runs/typed-search/scores.json").read_text(encoding="utf-8"))
    assert read["search"] == written["search"]


def test_what_cannot_be_searched_is_refused_before_anything_is_computed(config: RunConfig, tmp_path: Path) -> None:
    there = replace(config, caches=str(tmp_path / "caches"), runs=str(tmp_path / "runs"))
    plans = {"plan": ["causal", "bidirectional:3"]}
    with pytest.raises(ConfigError, match=r"leaves 0 rows per split .* or more, or sweep the 2 points as they"):
        sweep(there, plans, search="halving", budget=0.25)
    with pytest.raises(ConfigError, match="test is 'all', but a search reads test for what it found"):
        sweep(there, plans, search="halving", test="all")
    with pytest.raises(ConfigError, match="the point 'plan=causal, poolings=mean' is no point of a"):
        sweep(there, {**plans, "poolings": ["mean", "last"]}, search="coordinate", budget=0.9)
    with pytest.raises(UsageError, match="--budget does nothing by itself"):
        sweep(there, plans, budget=0.5)
    with pytest.raises(ConfigError, match=r"sweep\.budget is 'much'; allowed: a share"):
        read_search(replace(there, sweep={"search": "halving", "budget": "much"}))
    assert not (tmp_path / "caches").exists()
    assert not (tmp_path / "runs").exists()


def test_a_found_point_that_fails_on_all_rows_is_an_error(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = sweep_caches.obtain_point_caches

    def obtain(grid: Any, tasks: Mapping[str, Any], **options: Any) -> Any:
        caches = real(grid, tasks, **options)
        if "test" in next(iter(tasks.values())).splits:
            label = next(label for label in caches.of if "last" in label or len(caches.of) == 1)
            caches.fail([label], "too long", options["watcher"])
        return caches

    monkeypatch.setattr(sweep_run, "obtain_point_caches", obtain)
    grid = grid_of(replace(config, sweep={"over": {"poolings": ["last"], "plan": ["causal", "bidirectional:3"]}}))
    with pytest.raises(HeadError, match=r"was found, but fails on all rows: too long"):
        search_grid(replace(config, runs=str(tmp_path)), grid, budget=0.9)
