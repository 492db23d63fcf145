"""A sweep from the command line, on a tiny decoder."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from extract.decoders.decoder import load_decoder
from extract.errors import ConfigError
from extract.masks.mask_plan import parse_plan
from probes.cli.commands import SweepArgs
from probes.cli.main import main
from probes.cli.whole_run import choose_plans
from probes.runs.run_config import PretrainingSpec, RunConfig
from tests.extract.tiny_decoders import save_decoder
from tests.probes.finished_run import require_opening
from tests.probes.runs.plan_sweeps import run_sweep


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    settings = {
        "name": "tiny",
        "decoder": {"name": str(save_decoder(folder / "decoder"))},
        "task": {"name": "sts-sample"},
        "heads": {"layer-cosine": {}},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def test_a_sweep_reports_every_plan_and_chooses_on_validation(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(config), "--kinds", "backward,bidirectional", "--k", "0-2", "--task.pairs", "16"]) == 0
    folder = config.parent / "runs" / "tiny-sweep"
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    plans = [row["plan"] for row in scores["plans"]]
    assert plans == ["causal", "backward:1", "backward:2", "bidirectional:1", "bidirectional:2"]
    assert scores["cost"]["block_passes"] == 3 + 2 * (1 + 2)
    means = {
        row["plan"]: row["heads"]["layer-cosine"]["summary"]["validation"]["pearson"]["mean"] for row in scores["plans"]
    }
    assert scores["chosen"]["layer-cosine"]["plan"] == max(means, key=lambda plan: means[plan])
    assert {path.name for path in folder.glob("*.png")} == {"sweep.png", "layers_layer_cosine.png"}
    require_opening(folder)
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert all(f"`{plan}`" in summary for plan in plans)
    assert scores["chosen"]["layer-cosine"]["plan"] in capsys.readouterr().out


def test_the_gain_over_the_first_plan_has_an_interval_where_another_one_is_chosen(config: Path) -> None:
    found: dict[str, Any] = {}
    for default, other in (("bidirectional:1", "bidirectional:2"), ("bidirectional:2", "bidirectional:1")):
        rest = ["--name", default[-1], "--task.pairs", "16", "--heads.layer-cosine.layers", "[final_norm]"]
        assert main(["sweep", str(config), "--plans", f"{default}; {other}", *rest]) == 0
        folder = config.parent / "runs" / f"{default[-1]}-sweep"
        choice = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["chosen"]["layer-cosine"]
        assert ("lead" in choice) == (choice["plan"] != default)
        if "lead" in choice:
            found = choice
            summary = (folder / "summary.md").read_text(encoding="utf-8")
            score = f"{100 * choice['gain']['default']:.1f}"
            assert "too few rows (16, fewer than 30) to claim a difference" in summary
            assert f"from the plan `{default}` ({score})" in summary
    lead = found["lead"]
    assert lead["low"] < lead["value"] == found["gain"]["gain"] < lead["high"]
    assert lead["n_units"] == 16


@pytest.mark.long
def test_a_second_sweep_reuses_every_cache(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["sweep", str(config), "--plans", "causal; backward:3", "--task.pairs", "16"]
    assert main(arguments) == 0

    def forbid(*_args: object, **_options: object) -> None:
        raise AssertionError("a block was computed")

    monkeypatch.setattr("extract.run.shards.walk_plans", forbid)
    assert main(arguments) == 0


def test_a_dry_run_lists_the_plans_and_writes_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(config.parent.rglob("*"))
    assert main(["sweep", str(config), "--kinds", "backward", "--windows", "2", "--read", "2-3", "--dry_run"]) != 0
    assert main(["sweep", str(config), "--kinds", "backward", "--windows", "2", "--read", "2-3", "--dry-run"]) == 0
    assert capsys.readouterr().out.split() == ["backward@1-2", "backward@2-3"]
    assert sorted(config.parent.rglob("*")) == before


def sweep_args(**flags: Any) -> SweepArgs:
    return SweepArgs(**flags)


def test_a_grid_of_k_and_k0_is_chosen_by_flags() -> None:
    plans = choose_plans(sweep_args(k="2", k0="0-2"))
    assert [plan.text for plan in plans] == [
        "bidirectional:2",
        "nosink-bidirectional:1+bidirectional:1",
        "nosink-bidirectional:2",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "does not say what to vary"),
        ({"kinds": "backward"}, "does not say what to vary"),
        ({"k": "1", "k0": "3"}, "no plan left"),
        ({"kinds": "backward", "k": "many"}, "'many' is not a list of counts"),
    ],
)
def test_flags_that_say_no_plans_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_plans(sweep_args(**flags))


@pytest.mark.usefixtures("rendered_figures")
def test_verify_prints_the_mask_of_every_block_and_draws_it(
    config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "deep" / "influence.png"
    decoder = str(config.parent / "decoder")
    assert main(["verify", decoder, "backward:1", "--tokens", "4", "--picture", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "block_01 to block_02\n1 0 0 0\n1 1 0 0\n1 1 1 0\n1 1 1 1\n" in printed
    assert "block_03\n1 1 1 1\n0 1 1 1\n0 0 1 1\n0 0 0 1\n" in printed  # its own mask, whatever reached it from below
    assert "plan backward:1 took effect on decoder in 3 blocks, by themselves and in every head, at 5 layers" in printed
    assert picture.stat().st_size > 1000
    assert main(["verify", decoder, "causal", "--picture", str(tmp_path / "mask.jpg")]) == 1
    assert "unknown format of figures 'jpg'" in capsys.readouterr().err


def test_attention_prints_the_sink_mass_of_every_block(
    config: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("The mouse ran.\n\nSnow fell on the quiet harbour.\n", encoding="utf-8")
    out = tmp_path / "maps"
    decoder = str(config.parent / "decoder")
    words = ["attention", decoder, "nosink-bidirectional", "--texts", str(texts), "--out", str(out)]
    assert main([*words, "--figures", "svg,pdf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [[f"block_0{i}", "0.000"] for i in (1, 2, 3)]
    files = ["attention.svg", "attention.pdf", "sink_mass.svg", "sink_mass.pdf"]
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
    assert lines[3].endswith(f": {', '.join(files)}")
    assert main(["attention", decoder, "causal", "--figures", "jpg"]) == 1
    assert "unknown format of figures 'jpg'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "attention"])
def test_bad_plans_and_decoders_are_told_in_a_sentence(
    command: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(config.parent / "decoder"), "bidirectionel"]) == 1
    assert "unknown mask plan 'bidirectionel': did you mean 'bidirectional'?" in capsys.readouterr().err
    assert main([command, str(config.parent / "decoder"), "backward:9"]) == 1
    assert "'backward:9' needs 9 blocks, but the decoder has 3" in capsys.readouterr().err
    assert main([command, "nowhere-to-be-found", "causal"]) == 1
    assert "nowhere-to-be-found" in capsys.readouterr().err
    assert main([command, "one-argument"]) == 2
    assert f"allowed: icecore {command} DECODER PLAN" in capsys.readouterr().err


def test_a_head_that_needs_autoencoders_is_refused_before_anything_is_extracted() -> None:
    config = RunConfig(
        heads={"siamese-cosine": {"start": "pretrained"}}, pretraining=PretrainingSpec(corpus="sts-sample")
    )
    with pytest.raises(ConfigError, match="head 'siamese-cosine' has start 'pretrained', but a sweep fits no auto"):
        run_sweep(config, [parse_plan("causal")])


@pytest.mark.long
def test_the_ratios_of_a_merge_are_an_axis(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = save_decoder(config.parent / "other", seed=1)
    names = [str(config.parent / "decoder"), str(other)]
    merge = f"[{{name: {names[0]}, weight: 0.5}}, {{name: {names[1]}, weight: 0.5}}]"
    runs = ["--runs", str(tmp_path), "--task.pairs", "16"]
    merged = ["sweep", str(config), "--decoder.merge", merge, "--ratios", "0,0.5,1", *runs]
    assert main(merged) == 0
    folder = tmp_path / "tiny-sweep"
    frame = pd.read_csv(folder / "points.csv")
    assert frame["ratio"].unique().tolist() == [0, 0.5, 1]
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    rows = {row["point"]["ratio"]: row for row in scores["plans"]}
    for ratio, name in {"0": names[0], "1": names[1]}.items():  # the ends of the curve are the checkpoints
        digest = load_decoder(name).description.weight_digest
        assert rows[ratio]["decoder"]["weight_digest"] == digest
    selection = {ratio: row["heads"]["layer-cosine"]["selection_score"] for ratio, row in rows.items()}
    best = max(selection, key=lambda ratio: selection[ratio])
    assert scores["chosen"]["layer-cosine"]["point"] == {"ratio": best}
    read = {ratio for ratio, row in rows.items() if "test" in row["heads"]["layer-cosine"]["summary"]}
    assert read == {best, "0"}  # no other ratio is read on test
    capsys.readouterr()
    assert main([*merged, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "ratio=0.5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ratios", "0,1"], "decoder.merge has 0 parts, and ratios are between two"),
        (["--ratios", "0,x"], "--ratios is '0,x'; allowed: numbers"),
        (["--ratios", "0,1", "--plans", "causal"], "--plans"),
    ],
)
def test_ratios_without_a_merge_of_two_are_refused(
    words: list[str], message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(config), *words]) != 0
    assert message in capsys.readouterr().err
