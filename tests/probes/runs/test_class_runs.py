"""Runs of classification tasks from the command line: what is written, what a protocol does, what is refused."""

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, HeadError, IcecoreError, TaskError
from extract.masks.mask_plan import parse_plan
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.data.class_task import ClassTask
from probes.fitting.fit_options import find_protocol
from probes.heads.layer_head import load_head
from probes.heads.linear_probes import LinearProbe
from probes.latents.text_latents import join_pair
from probes.runs.run import check_heads, run
from probes.runs.run_config import RunConfig, TaskSpec, load_run_task
from tests.probes.finished_run import opening, require_opening
from tests.probes.runs.plan_sweeps import run_search, run_sweep


def write_pairs(path: Path) -> Path:
    """Write questions in pairs, the same or another one, in the format of the medical question pairs."""
    words = ["mouse", "snow", "harbour", "night", "bread", "letter", "quiet", "old", "green", "paper"]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        for i in range(60):
            first = f"is {words[i % 10]} {words[i // 10]} bad for {words[(i + 3) % 10]}"
            rows.writerow([i % 5, first, f"is {words[i % 10]} bad for {words[(i + 3) % 10]} {words[i // 10]}", 1])
            rows.writerow([i % 5, first, f"how do {words[(i + 5) % 10]} and {words[(i + 7) % 10]} get {i}", 0])
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("class-runs")
    (folder / "mqp").mkdir()
    write_pairs(folder / "mqp" / "mqp.csv")
    settings: dict[str, Any] = {
        "name": "pairs",
        "decoder": {"name": str(decoder_folder), "device": "cpu"},
        "extraction": {"poolings": ["mean"]},
        "task": {"name": "mqp", "options": {"folder": str(folder / "mqp")}},
        "heads": {"logistic-probe": {"Cs": [0.1, 1.0]}, "cosine-threshold": {}},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
    }
    (folder / "pairs.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder


def config_of(base: Path, **more: Any) -> RunConfig:
    settings = yaml.safe_load((base / "pairs.yaml").read_text(encoding="utf-8"))
    config = RunConfig(
        name="other",
        decoder=DecoderSpec(**settings["decoder"]),
        task=TaskSpec(**settings["task"]),
        heads=settings["heads"],
        bootstrap=100,
        caches=settings["caches"],
        runs=settings["runs"],
    )
    return replace(config, **more)


def test_pairs_are_classified_by_features_and_by_a_threshold(
    base: Path, capsys: pytest.CaptureFixture[str], read_json: Callable[[Path], Any], listing: Callable[[Path], Any]
) -> None:
    assert main(["run", str(base / "pairs.yaml")]) == 0
    folder = base / "runs" / "pairs"
    scores = read_json(folder / "scores.json")
    (manifest,) = [name for name in listing(folder) if name.startswith("manifests/")]
    figures = [
        f"figures/{name}_{what}.png"
        for name in ("cosine_threshold", "logistic_probe")
        for what in ("confusion", "layers")
    ]
    probe_files = [
        f"heads/{head}/{name}"
        for head in ("cosine-threshold", "logistic-probe")
        for name in ("head.json", "model.safetensors")
    ]
    whole = [
        "config.yaml",
        "report.drawn.json",
        "report.html",
        "scores.json",
        "stamp.json",
        "summary.md",
        "predictions.csv",
        manifest,
        *figures,
        *probe_files,
    ]
    assert listing(folder) == sorted(whole)
    assert scores["task"]["n_rows"] == {"train": 96, "validation": 12, "test": 12}
    assert scores["task"]["has_groups"]
    for name in ("logistic-probe", "cosine-threshold"):
        result = scores["heads"][name]
        assert result["selection"] == "validation"
        assert not result["is_optimistic"]
        assert result["summary"]["test"]["accuracy"]["mean"] > 0.7
    default = scores["heads"]["logistic-probe"]["extras"]["default"]
    assert (default["layer"], default["C"]) == ("final_norm", 1.0)
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    gain = scores["heads"]["logistic-probe"]["summary"]["test"]["accuracy"]["mean"] - default["scores"]["test"]
    assert f"| {100 * gain:+.1f} |" in summary
    assert "The default of `logistic-probe` is final_norm, C 1" in summary
    assert "similar" in (folder / "predictions.csv").read_text(encoding="utf-8")
    assert "pairs: mqp on tiny-llama" in capsys.readouterr().out
    require_opening(folder)
    assert "the best baseline, `" in opening(folder)


def test_the_saved_probe_is_the_reported_one(base: Path, read_json: Callable[[Path], Any]) -> None:
    folder = base / "runs" / "again"
    assert main(["run", str(base / "pairs.yaml"), "--name", "again"]) == 0
    probe = load_head(folder / "heads" / "logistic-probe")
    assert probe.record["is_pairs"]
    assert isinstance(probe.head, LinearProbe)
    [layer] = probe.record.layers
    assert layer == read_json(folder / "scores.json")["heads"]["logistic-probe"]["chosen"]["layer"]
    cache = LatentCache(base / "caches" / read_json(folder / "scores.json")["cache"]["file"])
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    a, b = (cache.gather(cache.rows_of([row[f"text{k}"] for row in rows]), "mean", layers=layer) for k in (1, 2))
    assert probe.head.predict(join_pair(a, b)[0]) == [row["logistic-probe"] for row in rows]


def test_the_protocol_of_look_both_ways_is_marked(base: Path, read_json: Callable[[Path], Any]) -> None:
    arguments = [
        "--protocol",
        "look-both-ways",
        "--name",
        "lbw",
        "--heads",
        "{logistic-probe: {}, cosine-threshold: {}}",
    ]
    assert main(["run", str(base / "pairs.yaml"), *arguments]) == 0
    scores = read_json(base / "runs" / "lbw" / "scores.json")
    assert scores["cache"]["template"]["max_tokens"] == 512
    assert scores["task"]["n_rows"] == {"train": 96, "test": 24}
    probe, threshold = scores["heads"]["logistic-probe"], scores["heads"]["cosine-threshold"]
    assert probe["options"]["oversampling"] == "times-5"
    assert (probe["options"]["is_standardised"], probe["options"]["max_iterations"]) == (False, 100)
    assert probe["layers"] == ["final_norm"]
    assert threshold["is_optimistic"]
    assert probe["is_optimistic"]  # the split forgets that two rows share a question
    torn = probe["optimistic_because"]
    assert re.fullmatch(r"\d+ of 24 test rows are of a group that also has rows in train", torn)
    assert (
        threshold["optimistic_because"] == f"layer, kind and threshold are chosen on all rows, test among them; {torn}"
    )
    summary = (base / "runs" / "lbw" / "summary.md").read_text(encoding="utf-8")
    assert "cosine-threshold (optimistic)" in summary
    assert "logistic-probe (optimistic)" in summary
    assert f"`logistic-probe` is **optimistic**: {torn}." in summary
    took = probe["extras"]["convergence"]["chosen"]["n_iterations"]
    assert probe["extras"]["convergence"]["chosen"]["is_converged"]
    assert (
        f"`logistic-probe` may take 100 iterations, the released code's limit; it took {took} and converged" in summary
    )
    assert "SMOTE (`times-5`) added 384 rows to 96" in summary
    assert "protocol `look-both-ways`" in summary


def test_no_plan_is_chosen_on_test_or_on_nothing(base: Path) -> None:
    plans = [parse_plan("causal"), parse_plan("backward:1")]
    before = sorted((base / "caches").glob("*"))
    config = config_of(base, heads={"cosine-threshold": {"choose_on": "test"}})
    with pytest.raises(ConfigError, match=r"head 'cosine-threshold' has choose_on 'test' .* on which no plan can be"):
        run_sweep(config, plans)
    config = config_of(base, heads={"logistic-probe": {}}, protocol="look-both-ways")
    with pytest.raises(ConfigError, match="one layer and one C, and task 'mqp' no validation split"):
        run_search(config, plans, strategy="halving", budget=1.0)
    one = replace(config.extraction, layers=("final_norm",))
    config = replace(config, heads={"logistic-probe": {"layers": "all"}}, extraction=one)
    with pytest.raises(ConfigError, match="one layer and one C, and task 'mqp' no validation split"):
        run_sweep(config, plans)
    assert sorted((base / "caches").glob("*")) == before


def write_texts(path: Path, sizes: dict[str, int]) -> None:
    """Write a CSV file of a text, a class and a split per row; every fourth row of a class is of test."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "split"])
        for name, n in sizes.items():
            for i in range(n):
                rows.writerow([f"{name} is number {i}", name, "test" if i % 4 == 0 else "train"])


def test_rare_classes_of_unsplit_files_are_dropped_as_released(base: Path, tmp_path: Path) -> None:
    write_texts(tmp_path / "rare.csv", {"hot": 20, "cold": 20, "mild": 2})
    text = (tmp_path / "rare.csv").read_text(encoding="utf-8")
    (tmp_path / "rare.csv").write_text(text.replace(",split", ",other"), encoding="utf-8")
    spec = TaskSpec("class-files", options={"files": str(tmp_path / "rare.csv")})
    config = config_of(base, task=spec, heads={"logistic-probe": {}}, protocol="look-both-ways")
    task = load_run_task(config)
    assert isinstance(task, ClassTask)
    assert task.class_names == ("cold", "hot")
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 32, "test": 8}
    assert any("1 classes of fewer than 3 rows ('mild': 2) dropped" in note for note in task.notes)
    for refusing in (replace(config, protocol="icecore"), replace(config, task=with_rare(spec, "error"))):
        with pytest.raises(TaskError, match=r"1 classes of fewer than 3 rows \('mild': 2\)"):
            refusing.task.load(find_protocol(refusing.protocol).task)


def with_rare(spec: TaskSpec, rare: str) -> TaskSpec:
    return replace(spec, options={**spec.options, "rare": rare})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosine-threshold", {}, "compares two texts, but a row of task 'class-files'"),
        ("logistic-probe", {}, "class 'cold' has 3 rows for 5 folds"),
    ],
)
def test_what_is_knowable_is_refused_before_anything_is_extracted(
    base: Path, tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    """Without validation, five folds of train would decide, and the thin class has three rows there."""
    files = {"files": str(tmp_path / "thin.csv"), "split_column": "split", "validation_fraction": 0.1}
    write_texts(tmp_path / "thin.csv", {"hot": 16, "cold": 4})
    config = config_of(base, task=TaskSpec("class-files", options=files), heads={name: options})
    whole = config.task.load()
    assert isinstance(whole, ClassTask)
    pool = {key: [*whole.splits["train"][key], *whole.splits["validation"][key]] for key in ("text", "label", "row")}
    splits = ClassTask.hold({"train": pool, "test": whole.splits["test"].to_dict()})
    task = whole.replace_splits(splits, note="no validation")
    with pytest.raises(IcecoreError, match=message):
        check_heads(config, task)


def test_a_choosing_split_that_is_not_there_is_refused_before_anything_is_extracted(base: Path) -> None:
    before = sorted((base / "caches").glob("*"))
    with pytest.raises(HeadError, match="choose_on is 'dev'; allowed: a split of task 'mqp', which are train, vali"):
        run(config_of(base, heads={"cosine-threshold": {"choose_on": "dev"}}, name="never"))
    assert sorted((base / "caches").glob("*")) == before
    assert not (base / "runs" / "never").exists()
