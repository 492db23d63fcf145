"""`icecore run`, `extract` and `fit` on a tiny decoder: what is reused, and what is refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

import extract.run.extraction
import probes.heads.pair_heads
import probes.runs.run
from extract.store.cache import LatentCache
from probes.cli import run_commands
from probes.cli.main import main
from tests.probes.finished_run import Finished, forbid, stamps, without_times
from tests.probes.planted_latents import make_task, plant


def test_a_second_run_neither_extracts_nor_fits(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(finished.base / "caches") | stamps(finished.folder / "heads")
    forbid(monkeypatch, extract.run.extraction, "Extraction")
    forbid(monkeypatch, probes.heads.pair_heads, "fit_head")
    monkeypatch.setattr("sys.argv", ["icecore", "run", str(finished.config)])
    assert main() == 0
    assert stamps(finished.base / "caches") | stamps(finished.folder / "heads") == before
    assert without_times(json.loads((finished.folder / "scores.json").read_text(encoding="utf-8"))) == without_times(
        finished.scores
    )
    out = capsys.readouterr().out
    assert "tiny: tiny-pairs on tiny-llama" in out
    assert "summary.md holds the summary" in out


@pytest.mark.long
def test_the_resolved_config_gives_the_same_scores(finished: Finished) -> None:
    """From nothing but config.yaml, caches and run folder being new."""
    again = finished.base / "again"
    argv = [str(finished.folder / "config.yaml"), "--caches", str(again / "caches"), "--runs", str(again / "runs")]
    assert main(["run", *argv]) == 0
    scores = json.loads((again / "runs" / "tiny" / "scores.json").read_text(encoding="utf-8"))
    for name, result in finished.scores["heads"].items():
        assert scores["heads"][name]["summary"] == result["summary"]
        assert scores["heads"][name].get("chosen") == result.get("chosen")


def test_another_configuration_of_the_same_name_gets_its_own_folder(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(finished.folder)
    assert main(["run", str(finished.config), "--heads", "{layer-cosine: {}}", "--seeds", "[1]"]) == 0
    assert stamps(finished.folder) == before
    [other] = [path for path in (finished.base / "runs").iterdir() if path != finished.folder]
    assert other.name.startswith("tiny-")
    assert f"is a run of other settings or texts; this one is {other.name}\n" in capsys.readouterr().err
    assert yaml.safe_load((other / "config.yaml").read_text(encoding="utf-8"))["seeds"] == [1]
    assert (other / "scores.json").is_file()


@pytest.mark.long
def test_figures_are_written_as_asked_for(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["fit", str(finished.config), "--head", "layer-cosine", "--runs", str(tmp_path)]
    assert main([*again, "--figures", "svg,pdf"]) == 0
    folder = tmp_path / "tiny"
    stems = ("curve", "residuals", "rows")
    drawn = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert set(drawn) == {f"layer_cosine_{stem}.{ending}" for stem in stems for ending in ("svg", "pdf")}
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert "(figures/layer_cosine_curve.svg) [pdf](figures/layer_cosine_curve.pdf)" in summary
    (tmp_path / "more.yaml").write_text("figures: [pdf, svg, png]\n", encoding="utf-8")
    assert main([*again, "--config", str(tmp_path / "more.yaml")]) == 0  # looks open no other folder
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["tiny"]
    after = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert {name: after[name] for name in drawn} == drawn
    assert set(after) - set(drawn) == {f"layer_cosine_{stem}.png" for stem in stems}
    assert yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["figures"] == ["pdf", "svg", "png"]
    capsys.readouterr()
    assert main([*again, "--figures", "svg,jpg"]) == 1
    assert "unknown format of figures 'jpg'" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("run", "extract"):
        assert main([command, str(finished.config), "--dry-run", "--caches=caches", "--runs=runs"]) == 0
        out = capsys.readouterr().out
        n_texts = len(LatentCache(finished.cache))
        assert out.startswith(
            "task      tiny-pairs (pairs): train 64, validation 32, test 32 rows\nrange     0 to 5\nnote "
        )
        if command == "run":
            assert (
                "\nheads     cosine-mlp, layer-cosine, siamese-cosine; seeds 0, 3\nresults   runs/tiny, or beside it"
                in out
            )
        assert "\nplan      causal\ntemplate  bos 'auto'" in out
        assert f"\npoolings  mean, last\nrows      {n_texts} unique texts" in out
        assert all(f"\n{line} " in out for line in ("tokens", "mean", "last", "disk", "time"))
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_is_in_a_cache_already(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(finished.config), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"poolings  mean, last\ncached    in {finished.cache.parent}: nothing to extract\n")
    views = "{plain: {poolings: last}, echo: {template: echo, poolings: echo-mean}}"
    heads = ["--heads", "{layer-cosine: {}}"]
    assert main(["run", str(finished.config), "--dry-run", "--views", views, *heads]) == 0
    plain, echo = capsys.readouterr().out.split("\nview      ")[1:]
    assert plain.startswith("plain\nplan      causal")
    assert plain.endswith(": nothing to extract")
    assert echo.startswith("echo\nplan      causal")
    assert "\ntokens " in echo


def test_a_dry_run_counts_the_corpus_that_heads_start_from(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "generic.txt").write_text("\n".join(f"Sentence {i} is generic." for i in range(30)), encoding="utf-8")
    argv = ["--dry-run", "--pretraining.corpus", "text-file", "--pretraining.options.file", "generic.txt"]
    argv += ["--pretraining.texts", "20", "--caches=caches", "--runs=runs"]
    argv += ["--pretraining.autoencoder.bottleneck", "4"]  # as the head has it
    for command in ("run", "extract"):
        assert main([command, str(finished.config), *argv]) == 0  # no head starts from it
        assert "generic" not in capsys.readouterr().out
        assert main([command, str(finished.config), *argv, "--heads.siamese-cosine.start", "frozen"]) == 0
        out = capsys.readouterr().out
        task, corpus, together = re.split(r"^(?:tiny-pairs|generic|together):\n", out, flags=re.MULTILINE)[1:]
        assert f"\nrows      {len(LatentCache(finished.cache))} unique texts" in task
        assert "\nrows      20 unique texts" in corpus
        for line in ("tokens", "mean", "last", "disk", "time"):
            assert f"\n{line} " in task
            assert f"\n{line} " in corpus
        sizes = [float(match[1]) for match in re.finditer(r"disk +([\d.]+) MB in all", out)]
        assert sizes[2] == pytest.approx(sizes[0] + sizes[1], abs=0.11)
        assert "time      about 0 min" in together
    assert [path.name for path in tmp_path.iterdir()] == ["generic.txt"]


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (
            [
                "--extraction.plan",
                "backward:1",
                "--extraction.template.instruction",
                "Say: ",
                "--extraction.poolings",
                "[mean, last]",
            ],
            [
                "plan      backward:1",
                "template  bos 'auto', instruction 'Say: ', max_tokens none, on_long 'truncate', spans none",
                "poolings  mean, last",
            ],
        ),
        (
            ["--task.name", "words-sample", "--heads", "{token-classifier: {}}"],
            [
                "plan      causal",
                "template  bos 'auto', instruction none, max_tokens none, on_long 'truncate', spans none",
                "poolings  last",
            ],
        ),
    ],
)
def test_a_dry_run_says_what_is_in_force(
    argv: list[str], lines: list[str], decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ["--dry-run", "--decoder.name", str(decoder_folder), "--decoder.device", "cpu", "--task.pairs", "8"]
    assert main(["run", *fixed, *argv]) == 0
    assert "\n".join(["", *lines, ""]) in capsys.readouterr().out


@pytest.mark.parametrize(("gain", "is_said"), [(2.04, True), (1.2, False), (None, False)])
def test_a_dry_run_says_when_bfloat16_would_pay(
    gain: float | None,
    is_said: bool,
    finished: Finished,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_commands, "bfloat16_gain", lambda _: gain)
    assert main(["extract", str(finished.config), "--dry-run", "--caches", str(tmp_path)]) == 0
    assert ("\nfaster    products take 1/2.0 of the time in bfloat16" in capsys.readouterr().out) is is_said


def test_a_dry_run_describes_the_task_before_the_decoder_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"text {i},{'good' if i % 3 else 'bad'}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, ",bad"]), encoding="utf-8")
    assert main(["run", str(tmp_path / "a.csv"), "--dry-run", "--decoder.name", str(tmp_path / "nowhere")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "task      your file (classes): train 48, validation 6, test 6 rows"
    assert lines[1] == "classes   2: bad, good"
    assert any("1 of 61 rows dropped" in line for line in lines[2:])


def test_a_dry_run_checks_the_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"left {i},right {i},{i % 6}" for i in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]), encoding="utf-8")
    task = ["--task.name", "pair-files", "--task.options.files.train", str(tmp_path / "a.csv")]
    assert main(["run", "--dry-run", *task]) == 1
    assert capsys.readouterr().err.startswith("icecore: task 'pair-files' has no split 'validation', which every head")


def test_extract_finds_the_cache(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid(monkeypatch, extract.run.extraction, "Extraction")
    assert main(["extract", str(finished.config)]) == 0
    assert capsys.readouterr().out.strip() == str(finished.cache)


@pytest.mark.long
@pytest.mark.parametrize("how", ["found", "named"])
def test_fit_needs_no_decoder(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    config = yaml.safe_load(finished.config.read_text(encoding="utf-8"))
    config["decoder"]["name"] = str(tmp_path / "gone" / "tiny-llama")  # removed since
    config["runs"] = str(tmp_path / "runs")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    forbid(monkeypatch, probes.runs.run, "load_decoder")
    argv = ["fit", str(tmp_path / "c.yaml"), *(["--cache", str(finished.cache)] if how == "named" else [])]
    assert main(argv) == 0
    scores = json.loads((tmp_path / "runs" / "tiny" / "scores.json").read_text(encoding="utf-8"))
    for name, result in finished.scores["heads"].items():
        assert scores["heads"][name]["summary"] == result["summary"]


@pytest.mark.parametrize(
    "argv",
    [
        ["--decoder.name", "gpt2"],
        ["--extraction.storage_dtype", "float16"],
        ["--extraction.template.instruction", "Say:"],
        ["--decoder.dtype", "bfloat16"],
        ["--decoder.adapter", "some/adapter"],
    ],
)
def test_fit_takes_no_other_cache(finished: Finished, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(finished.config), *argv]) == 1
    err = capsys.readouterr().err
    assert err.startswith(
        f"icecore: 0 caches in {str(finished.base / 'caches')!r} fit 'tiny-pairs' in this configuration (none); allowed"
    )


def test_fit_with_a_cache_of_other_texts_names_the_text(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = plant(tmp_path / "other.h5", make_task(sizes={"train": 8}))
    assert main(["fit", str(finished.config), "--cache", str(other.path), f"--runs={tmp_path / 'runs'}"]) == 1
    assert "does not hold the text" in capsys.readouterr().err


@pytest.mark.long
def test_one_head_of_a_classification_task_alone_can_be_fitted(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "--task.name",
        "class-sample",
        "--decoder.name",
        str(decoder_folder),
        "--decoder.device",
        "cpu",
        "--bootstrap",
        "100",
        f"--caches={tmp_path / 'caches'}",
        f"--runs={tmp_path / 'runs'}",
        "--name",
        "one",
        "--heads",
        "{cosine-threshold: {}}",
    ]
    assert main(["extract", *argv]) == 0
    assert main(["fit", *argv, "--head", "logistic-probe"]) == 0  # one that the file does not name
    scores = json.loads((tmp_path / "runs" / "one" / "scores.json").read_text(encoding="utf-8"))
    assert set(scores["heads"]) == {"logistic-probe"}
    capsys.readouterr()
    assert main(["fit", *argv, "--head", "cosine-mlp"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("icecore: unknown head 'cosine-mlp'")
    assert "These are the heads for tasks of classes, such as 'class-sample'." in err


def test_a_run_folder_that_cannot_be_written_is_named(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    assert main(["run", str(finished.config), f"--runs={tmp_path / 'runs'}"]) == 1
    assert f"the run folder '{tmp_path}/runs/tiny' cannot be written" in capsys.readouterr().err


@pytest.mark.long
def test_fit_with_another_cache_writes_over_nothing(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The heads of the first run were fitted again on the other cache, under scores of the first."""
    runs = tmp_path / "runs"
    folder = Path(shutil.copytree(finished.folder, runs / "tiny"))
    pair = ["Ice is cold.", "Snow is white."]
    assert main(["score", str(folder), *pair]) == 0
    before, score = stamps(folder), capsys.readouterr().out
    caches, backward = f"--caches={tmp_path / 'caches'}", ["--extraction.plan", "backward"]
    assert main(["extract", str(finished.config), caches, *backward]) == 0
    other = capsys.readouterr().out.strip()
    assert (
        main(["fit", str(finished.config), "--cache", other, f"--runs={runs}", f"--caches={finished.cache.parent}"])
        == 0
    )
    assert stamps(folder) == before
    [new] = [path for path in runs.iterdir() if path != folder]
    assert json.loads((new / "scores.json").read_text(encoding="utf-8"))["cache"]["plan"] == "backward"
    capsys.readouterr()
    assert main(["score", str(folder), *pair]) == 0
    assert capsys.readouterr().out == score
    assert yaml.safe_load((new / "config.yaml").read_text(encoding="utf-8"))["extraction"]["plan"] == "backward"
    assert main(["score", str(new), *pair]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_range_of_scores_that_was_not_set_is_said_and_recorded(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ratings of 1 to 5: on screen, in a dry run, in config.yaml and in the summary."""
    lines = [f"left {i},right {i % 7},{1 + i % 5}" for i in range(100)]
    (tmp_path / "p.csv").write_text("\n".join(["sentence1,sentence2,score", *lines, ""]), encoding="utf-8")
    argv = [
        "run",
        "--decoder.name",
        str(decoder_folder),
        "--decoder.device",
        "cpu",
        "--task.name",
        "pair-files",
        "--task.options.files",
        str(tmp_path / "p.csv"),
        "--heads",
        "{layer-cosine: {}}",
        "--bootstrap",
        "100",
        "--caches",
        str(tmp_path / "caches"),
        "--runs",
        str(tmp_path / "runs"),
        "--name",
        "rated",
    ]
    assert main([*argv, "--dry-run"]) == 0
    told = "score_range is 1 to 5, the scores of train; another: task.options.score_range: [0, 5]"
    assert f"note      {told}\n" in capsys.readouterr().out
    assert main(argv) == 0
    assert f"note: {told}\n" in capsys.readouterr().err
    folder = tmp_path / "runs" / "rated"
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert config["task"]["options"]["score_range"] == [1.0, 5.0]
    assert told in (folder / "summary.md").read_text(encoding="utf-8")
    assert main(argv) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["rated"], "the same config, another folder"
