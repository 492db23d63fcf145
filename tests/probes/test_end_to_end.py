"""A whole run with a tiny random decoder, through the command line: what it writes, reuses and refuses."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import extract.runner
import probes.evaluate
import probes.runs
from extract.cache import LatentCache
from extract.errors import CacheIdentityError, HeadError, InputError, TaskError, UnknownNameError
from probes.cli.main import main
from probes.config import RunConfig, TaskSpec
from probes.runs import run
from probes.scorer import load_scorer
from probes.tasks import load_task
from tests.extract.tiny_decoders import make_decoder
from tests.probes.planted_latents import make_task, plant

SIZES = {"train": 64, "validation": 32, "test": 32}


@dataclass(frozen=True)
class Finished:
    """A run that `icecore run` has finished."""

    base: Path
    config: Path
    folder: Path
    scores: dict[str, Any]

    @property
    def cache(self) -> Path:
        """The one cache."""
        [path] = (self.base / "caches").glob("*.h5")
        return path


def write_config(base: Path, decoder: Path) -> Path:
    """Write a small task and a configuration with one head of each kind."""
    sample = load_task("sts-sample")
    lines = ["split\tsentence1\tsentence2\tscore"]
    for split, n in SIZES.items():
        part = sample.splits[split].select(range(n))
        lines += [
            f"{split}\t{a}\t{b}\t{s}"
            for a, b, s in zip(part["sentence1"], part["sentence2"], part["score"], strict=True)
        ]
    (base / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config: dict[str, Any] = {
        "name": "tiny",
        "decoder": {"name": str(decoder), "device": "cpu"},
        "extraction": {"poolings": ["mean", "last"]},
        "task": {"name": "pair-files", "options": {"files": str(base / "pairs.tsv"), "name": "tiny-pairs"}},
        "heads": {
            "layer-cosine": {"pooling": "last"},
            "cosine-mlp": {"max_epochs": 4, "batch_size": 16, "hidden": 8},
            "siamese-cosine": {"max_epochs": 4, "batch_size": 16, "hidden": 8, "bottleneck": 4, "layers": ["blocks"]},
        },
        "seeds": [0, 3],
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
    }
    (base / "tiny.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return base / "tiny.yaml"


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path, read_json: Callable[[Path], Any]
) -> Finished:
    """`icecore run tiny.yaml`, once for all tests."""
    base = tmp_path_factory.mktemp("whole")
    config = write_config(base, decoder_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/somewhere/icecore", "run", str(config)])
        assert main() == 0
    folder = base / "runs" / "tiny"
    return Finished(base, config, folder, read_json(folder / "scores.json"))


def forbid(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(module, name, refuse)


def without_times(scores: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scores.items() if key not in ("seconds", "command")}


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_writes_everything(finished: Finished, listing: Callable[[Path], list[str]]) -> None:
    heads = [
        f"heads/{name}/seed_{seed}/{file}"
        for name, seeds in (("cosine-mlp", (0, 3)), ("layer-cosine", (0,)), ("siamese-cosine", (0, 3)))
        for seed in seeds
        for file in ("head.json", "model.safetensors")
    ]
    figures = [
        "figures/cosine_mlp_history.png", "figures/cosine_mlp_layers.png", "figures/layer_cosine_curve.png",
        "figures/siamese_cosine_history.png", "figures/siamese_cosine_layers.png",
    ]  # fmt: skip
    manifest = f"manifests/{finished.cache.stem}.json"
    assert listing(finished.folder) == sorted(["config.yaml", "scores.json", "summary.md", manifest, *heads, *figures])


def test_figures_show_something(finished: Finished) -> None:
    for path in (finished.folder / "figures").glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 300
            assert np.ptp(np.asarray(image.convert("L"))) > 100


def test_scores_say_where_they_come_from(finished: Finished) -> None:
    scores = finished.scores
    assert scores["command"] == f"icecore run {finished.config}"
    assert scores["versions"]["icecore"] == version("icecore")
    assert {"torch", "transformers", "lightning", "scipy", "numpy"} <= set(scores["versions"])
    assert scores["device"] == "cpu"
    assert isinstance(scores["commit"], str)
    assert (scores["name"], scores["protocol"], scores["n_resamples"]) == ("tiny", "icecore", 100)
    assert scores["decoder"]["name"] == "tiny-llama"
    assert len(scores["decoder"]["weight_digest"]) == 64
    assert scores["cache"]["file"] == finished.cache.name
    assert scores["cache"]["certificate"]["influence"]
    assert scores["task"]["n_pairs"] == SIZES
    assert scores["task"]["name"] == "tiny-pairs"
    assert set(scores["seconds"]) == {"extraction", "heads"}
    assert [entry["seed"] for entry in scores["heads"]["cosine-mlp"]["seeds"]] == [0, 3]


def test_every_head_reads_its_own_pooling_and_layers(finished: Finished) -> None:
    heads = finished.scores["heads"]
    assert [heads[name]["pooling"] for name in ("layer-cosine", "cosine-mlp", "siamese-cosine")] == [
        "last",
        "mean",
        "mean",
    ]
    assert heads["siamese-cosine"]["layers"] == ["block_01", "block_02", "block_03"]
    assert heads["cosine-mlp"]["layers"] == ["embedding", "block_01", "block_02", "block_03", "final_norm"]
    record = json.loads(
        (finished.folder / "heads" / "layer-cosine" / "seed_0" / "head.json").read_text(encoding="utf-8")
    )
    assert record["pooling"] == "last"


def test_the_manifest_is_that_of_the_cache(finished: Finished) -> None:
    cache = LatentCache(finished.cache)
    text = (finished.folder / "manifests" / f"{finished.cache.stem}.json").read_text(encoding="utf-8")
    assert text == cache.manifest.to_json() + "\n"
    assert cache.manifest.id == finished.scores["cache"]["id"]


def test_the_summary_holds_table_and_figures(finished: Finished) -> None:
    text = (finished.folder / "summary.md").read_text(encoding="utf-8")
    for name in finished.scores["heads"]:
        assert f"| {name}" in text
    for path in (finished.folder / "figures").glob("*.png"):
        assert f"](figures/{path.name})" in text
    assert finished.scores["command"] in text


def test_a_second_run_neither_extracts_nor_fits(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(finished.base / "caches") | stamps(finished.folder / "heads")
    forbid(monkeypatch, extract.runner, "Extraction")
    forbid(monkeypatch, probes.evaluate, "fit_head")
    assert main(["run", str(finished.config)]) == 0
    assert stamps(finished.base / "caches") | stamps(finished.folder / "heads") == before
    assert without_times(json.loads((finished.folder / "scores.json").read_text(encoding="utf-8"))) == without_times(
        finished.scores
    )
    out = capsys.readouterr().out
    assert "tiny: tiny-pairs on tiny-llama" in out
    assert "summary.md holds the summary" in out


def test_the_resolved_config_gives_the_same_scores(finished: Finished) -> None:
    """From nothing but config.yaml, caches and run folder being new."""
    again = finished.base / "again"
    argv = [str(finished.folder / "config.yaml"), "--caches", str(again / "caches"), "--runs", str(again / "runs")]
    assert main(["run", *argv]) == 0
    scores = json.loads((again / "runs" / "tiny" / "scores.json").read_text(encoding="utf-8"))
    for name, result in finished.scores["heads"].items():
        assert scores["heads"][name]["summary"] == result["summary"]
        assert scores["heads"][name].get("chosen") == result.get("chosen")


def test_another_configuration_of_the_same_name_gets_its_own_folder(finished: Finished) -> None:
    before = stamps(finished.folder)
    assert main(["run", str(finished.config), "--heads", "{layer-cosine: {}}", "--seeds", "[1]"]) == 0
    assert stamps(finished.folder) == before
    [other] = [path for path in (finished.base / "runs").iterdir() if path != finished.folder]
    assert other.name.startswith("tiny-")
    assert yaml.safe_load((other / "config.yaml").read_text(encoding="utf-8"))["seeds"] == [1]
    assert (other / "scores.json").is_file()


def test_a_dry_run_writes_nothing(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("run", "extract"):
        assert main([command, str(finished.config), "--dry-run", "--caches=caches", "--runs=runs"]) == 0
        out = capsys.readouterr().out
        n_texts = len(LatentCache(finished.cache))
        assert out.startswith(f"rows      {n_texts} unique texts")
        assert all(f"\n{line} " in out for line in ("tokens", "mean", "last", "disk", "time"))
    assert not list(tmp_path.iterdir())


def test_extract_finds_the_cache(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forbid(monkeypatch, extract.runner, "Extraction")
    assert main(["extract", str(finished.config)]) == 0
    assert capsys.readouterr().out.strip() == str(finished.cache)


@pytest.mark.parametrize("how", ["found", "named"])
def test_fit_needs_no_decoder(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    config = yaml.safe_load(finished.config.read_text(encoding="utf-8"))
    config["decoder"]["name"] = str(tmp_path / "gone" / "tiny-llama")  # removed since
    config["runs"] = str(tmp_path / "runs")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    forbid(monkeypatch, probes.runs, "load_decoder")
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
        f"icecore: 0 caches in {str(finished.base / 'caches')!r} fit this configuration (none); allowed"
    )


def test_fit_with_a_cache_of_other_texts_names_the_text(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = plant(tmp_path / "other.h5", make_task(sizes={"train": 8}))
    assert main(["fit", str(finished.config), "--cache", str(other.path), f"--runs={tmp_path / 'runs'}"]) == 1
    assert "does not hold the text" in capsys.readouterr().err


def test_score_two_texts(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(finished.folder), "A cat sleeps.", "The cat is asleep."]) == 0
    captured = capsys.readouterr()
    score, left, right = captured.out.rstrip("\n").split("\t")
    assert 0 <= float(score) <= 5
    assert (left, right) == ("A cat sleeps.", "The cat is asleep.")
    best = max(
        finished.scores["heads"], key=lambda n: finished.scores["heads"][n]["summary"]["validation"]["pearson"]["mean"]
    )
    assert captured.err.startswith(f"head {best}, mean of ")


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_score_many_pairs(
    finished: Finished, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = 'One "quote.\tTwo.\n\nA line\u2028inside a text.\tAnother.\nTwo.\tOne "quote.\n'
    file = "-"
    if source == "file":
        file = str(tmp_path / "pairs.tsv")
        Path(file).write_text("\ufeff" + lines, encoding="utf-8")
    else:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["score", str(finished.folder), "--pairs", file, "--head", "siamese-cosine"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.rstrip("\n").split("\n")]
    assert [row[1:] for row in rows] == [line.split("\t") for line in lines.split("\n") if line]
    assert rows[0][0] == rows[2][0]  # the same pair the other way round


@pytest.mark.parametrize("line", ["only one", "a\tb\tc", "a\t ", "\t"])
def test_a_wrong_line_is_named(
    finished: Finished, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.tsv").write_text(f"a\tb\n\n{line}\n", encoding="utf-8")
    assert main(["score", str(finished.folder), "--pairs", str(tmp_path / "p.tsv")]) == 1
    err = capsys.readouterr().err
    assert err == (
        f"icecore: line 3 of {str(tmp_path / 'p.tsv')!r} is {line.split(chr(9))!r}; "
        "allowed: two texts with one tab between them.\n"
    )


def test_a_pairs_file_that_cannot_be_read(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(finished.folder), "--pairs", "no.tsv"]) == 1
    assert "pairs file 'no.tsv' cannot be read" in capsys.readouterr().err


def test_an_identical_pair_gets_the_reported_constant(finished: Finished) -> None:
    for name, result in finished.scores["heads"].items():
        scorer = load_scorer(finished.folder, head=name)
        found = scorer.score([("Ice is cold.", "Ice is cold."), ("Snow.", "Snow.")])
        records = [seed.record["calibration"] for seed in scorer.seeds]
        expected = np.mean(
            [
                np.clip(c["slope"] * entry["identical_similarity"] + c["intercept"], c["low"], c["high"])
                for c, entry in zip(records, result["seeds"], strict=True)
            ]
        )
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_scores_of_test_pairs_are_those_of_the_run(finished: Finished) -> None:
    task = load_task("pair-files", files=str(finished.base / "pairs.tsv"))
    part = task.splits["test"]
    pairs = list(zip(part["sentence1"], part["sentence2"], strict=True))
    scorer = load_scorer(finished.folder, head="cosine-mlp")
    one_seed = type(scorer)(scorer.name, scorer.seeds[:1], scorer.decoder, scorer.spec)
    found = np.corrcoef(one_seed.score(pairs), part["score"])[0, 1]
    expected = finished.scores["heads"]["cosine-mlp"]["seeds"][0]["scores"]["test"]["pearson"]
    assert found == pytest.approx(expected, abs=0.02)  # clipping to the range may change it a little


def test_another_decoder_is_refused_by_its_digest(finished: Finished) -> None:
    with pytest.raises(
        CacheIdentityError, match=r"of the decoder for '.*tiny' holds something else: .*weight_digest is"
    ):
        load_scorer(finished.folder, decoder=make_decoder("llama", seed=5, adds_bos=True, max_position_embeddings=256))


def test_what_a_scorer_cannot_do(finished: Finished, tmp_path: Path) -> None:
    scorer = load_scorer(str(finished.folder), head="layer-cosine")
    with pytest.raises(InputError, match="there are no pairs to score"):
        scorer.score([])
    with pytest.raises(InputError, match="text 1 is ' '"):
        scorer.score([("a", " ")])
    with pytest.raises(UnknownNameError, match=r"unknown head of this run 'cosine-mpl': did you mean 'cosine-mlp'\?"):
        load_scorer(finished.folder, head="cosine-mpl")
    for text in ("{}", "[]", "{", "null", '{"heads": {}}'):
        (tmp_path / "scores.json").write_text(text, encoding="utf-8")
        shutil.copy(finished.folder / "config.yaml", tmp_path)
        with pytest.raises(HeadError, match="holds no finished run; allowed: a folder made by `icecore run`"):
            load_scorer(tmp_path)


def test_inspect_a_whole_cache(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    cache = LatentCache(finished.cache)
    assert main(["inspect", str(finished.cache)]) == 0
    out = capsys.readouterr().out
    assert f"{len(cache)} of {len(cache)} rows, complete" in out
    assert "tiny-llama (llama, 3 blocks, width 32)" in out
    assert "mean, last x 5 layers (embedding ... final_norm), float32" in out
    assert "influence as planned" in out
    assert f"tokens       {int(cache.n_tokens.sum()):,} in all" in out
    assert f"identity     {cache.manifest.id}" in out
    assert "decoder.weight_digest" in out


def test_inspect_as_json(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(finished.cache), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    cache = LatentCache(finished.cache)
    assert value["identity"] == cache.identity
    assert value["n_done"] == len(cache)
    assert value["certificate"] == cache.certificate


def test_inspect_a_half_done_cache(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import h5py

    half = tmp_path / "half.h5"
    shutil.copy(finished.cache, half)
    with h5py.File(half, "r+") as file:
        file["rows/is_done"][5:] = 0
        file["certificate"][:] = 0
    assert main(["inspect", str(half)]) == 0
    out = capsys.readouterr().out
    assert "5 of" in out
    assert "half done: run the same extraction again to go on" in out
    assert "none yet (written when the extraction ends)" in out
    assert main(["fit", str(finished.config), "--cache", str(half)]) == 1
    assert "is half done: 5 of" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"plain text", b"\x89HDF\r\n\x1a\n" + b"\0" * 64])
def test_inspect_a_foreign_file(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.h5").write_bytes(content)
    assert main(["inspect", str(tmp_path / "x.h5")]) == 1
    err = capsys.readouterr().err
    assert str(tmp_path / "x.h5") in err
    assert "Traceback" not in err


def test_a_task_without_validation_is_told_before_anything_is_extracted(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (finished.base / "pairs.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "p.tsv").write_text("".join(line for line in lines if not line.startswith("val")), encoding="utf-8")
    forbid(monkeypatch, probes.runs, "load_decoder")
    task = TaskSpec("pair-files", {"files": str(tmp_path / "p.tsv")})
    with pytest.raises(TaskError, match="task 'pair-files' has no split 'validation', which every head needs"):
        run(RunConfig(task=task))


def test_a_run_folder_that_cannot_be_written_is_named(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    assert main(["run", str(finished.config), f"--runs={tmp_path / 'runs'}"]) == 1
    assert f"the run folder '{tmp_path}/runs/tiny' cannot be written" in capsys.readouterr().err


def test_the_python_interface_equals_the_command(finished: Finished, tmp_path: Path) -> None:
    config = RunConfig(
        name="direct", heads={"layer-cosine": {}}, bootstrap=100, runs=str(tmp_path),
        task=TaskSpec("pair-files", {"files": str(finished.base / "pairs.tsv")}),
    )  # fmt: skip
    result = run(config, cache=LatentCache(finished.cache))
    assert result.folder == tmp_path / "direct"
    assert result.scores["command"] == ""
    assert result.scores["heads"]["layer-cosine"]["pooling"] == "mean"
