"""From the command line to heads that start from autoencoders: both caches, one fit, everything found again."""

import csv
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import extract.run.extraction
import probes.heads.pair_heads
import probes.runs.run
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.heads.pair_heads import FOLDER
from probes.layers.findings import load_findings
from probes.report.scores import SCORES_SCHEMA
from probes.runs.predict import load_scorer
from tests.probes.finished_run import Finished, forbid, stamps, without_times

pytestmark = pytest.mark.long

TEXTS = [f"Snow of winter number {i} fell on the quiet harbour." for i in range(24)]
AUTOENCODER = "{bottleneck: '4, upper half 6', max_epochs: 2, batch_size: 8}"
HEADS = """{
  cosine-mlp: {pooling: mean+last, max_epochs: 2, batch_size: 16, hidden: 8},
  siamese-cosine: {pooling: last, start: frozen, max_epochs: 2, batch_size: 16, hidden: 8, layers: [blocks]},
}"""


class Ladder:
    """A run whose siamese head starts from autoencoders, and what `icecore extract` said before it."""

    def __init__(self, base: Path, argv: list[str], extracted: list[str]) -> None:
        self.base, self.argv, self.extracted = base, argv, extracted
        self.folder = base / "runs" / "ladder"
        self.scores: dict[str, Any] = json.loads((self.folder / "scores.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ladder(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    """`icecore extract`, then `icecore run`, with a text file as the corpus."""
    base = tmp_path_factory.mktemp("ladder")
    (base / "corpus.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    (base / "caches").mkdir()
    shutil.copy(finished.cache, base / "caches")
    argv = [
        str(finished.config),
        "--name",
        "ladder",
        "--heads",
        HEADS,
        "--calibration",
        "isotonic",
        "--pretraining.corpus",
        "text-file",
        "--pretraining.options.file",
        str(base / "corpus.txt"),
        "--pretraining.texts",
        "20",
        "--pretraining.autoencoder",
        AUTOENCODER,
        f"--caches={base / 'caches'}",
        f"--runs={base / 'runs'}",
    ]
    said = StringIO()
    with redirect_stdout(said):
        assert main(["extract", *argv]) == 0
    assert main(["run", *argv]) == 0
    return Ladder(base, argv, said.getvalue().splitlines())


@pytest.mark.long
def test_extract_prints_the_cache_of_the_task_and_that_of_the_corpus(ladder: Ladder, finished: Finished) -> None:
    task, corpus = ladder.extracted
    assert Path(task) == ladder.base / "caches" / finished.cache.name
    assert sorted(map(str, (ladder.base / "caches").glob("*.h5"))) == sorted([task, corpus])
    cache = LatentCache(corpus)
    assert len(cache) == 20  # pretraining.texts
    assert sorted(cache.rows_of(TEXTS[:20]).tolist()) == list(range(20))


def test_a_run_tells_what_its_encoders_were_fitted_on(ladder: Ladder) -> None:
    told = ladder.scores["pretraining"]
    assert told["corpus"] == {"name": "corpus", "source": str(ladder.base / "corpus.txt")}
    assert told["cache"]["file"] == Path(ladder.extracted[1]).name
    assert set(told["autoencoders"]) == {"last"}  # only what a head asked for
    of_last = told["autoencoders"]["last"]
    assert of_last["codes"] == [4, 4, 4, 6, 6]
    assert of_last["n_texts"] == {"train": 19, "held_out": 1}
    assert len(of_last["history"]) == 2
    assert len(list((ladder.base / "caches" / FOLDER).iterdir())) == 1
    text = (ladder.folder / "summary.md").read_text(encoding="utf-8")
    assert "## Layer-wise autoencoders" in text
    assert "(figures/autoencoder_last.png)" in text
    assert (ladder.folder / "figures" / "autoencoder_last_history.png").is_file()


def test_the_head_has_the_codes_of_its_layers(ladder: Ladder) -> None:
    for seed in (0, 3):
        record = json.loads((ladder.folder / f"heads/siamese-cosine/seed_{seed}/head.json").read_text(encoding="utf-8"))
        assert record["arguments"]["bottleneck"] == [4, 4, 6]  # block_01 to block_03 of five layers
        assert record["arguments"]["start"] == "frozen"
        assert set(record["calibration"]) == {"predictions", "scores"}


@pytest.mark.long
def test_fit_finds_both_caches_and_fits_nothing_anew(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stamps(ladder.base / "caches") | stamps(ladder.folder / "heads")
    for module, name in (
        (probes.runs.run, "load_decoder"),
        (extract.run.extraction, "Extraction"),
        (probes.heads.pair_heads, "fit_head"),
        (probes.heads.pair_heads, "fit_layers"),
    ):
        forbid(monkeypatch, module, name)
    assert main(["fit", *ladder.argv]) == 0
    assert stamps(ladder.base / "caches") | stamps(ladder.folder / "heads") == before
    scores = json.loads((ladder.folder / "scores.json").read_text(encoding="utf-8"))
    assert without_times(scores) == without_times(ladder.scores)
    assert "summary.md holds the summary" in capsys.readouterr().out


def test_fit_names_the_corpus_whose_cache_is_missing(
    ladder: Ladder, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "caches").mkdir()
    shutil.copy(finished.cache, tmp_path / "caches")
    assert main(["fit", *ladder.argv, f"--caches={tmp_path / 'caches'}", f"--runs={tmp_path / 'runs'}"]) == 1
    assert "fit 'corpus' in this configuration (none); allowed: exactly one" in capsys.readouterr().err


def test_new_pairs_are_scored_as_the_run_scored_them(ladder: Ladder) -> None:
    """Through the decoder, two poolings, two seeds and an isotonic calibration."""
    with (ladder.folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = [(row["sentence1"], row["sentence2"]) for row in rows]
    for head in ("cosine-mlp", "siamese-cosine"):
        expected = [float(row[head]) for row in rows]
        assert np.std(expected) > 0
        np.testing.assert_allclose(load_scorer(ladder.folder, head=head).score(pairs), expected, atol=2e-3)
    assert ladder.scores["heads"]["cosine-mlp"]["pooling"] == "mean+last"
    assert len(ladder.scores["heads"]["cosine-mlp"]["layers"]) == 10


def test_autoencoders_can_be_fitted_by_themselves(
    finished: Finished,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listing: Callable[[Path], list[str]],
    read_json: Callable[[Path], Any],
) -> None:
    forbid(monkeypatch, probes.runs.run, "load_decoder")
    argv = [
        "fit",
        str(finished.config),
        "--head",
        "autoencoder",
        "--cache",
        str(finished.cache),
        "--pretraining.autoencoder",
        "{bottleneck: D/8, max_epochs: 1}",
        "--pretraining.seed",
        "5",
        f"--caches={tmp_path / 'caches'}",
        f"--runs={tmp_path / 'runs'}",
    ]
    assert main(argv) == 0
    folder = tmp_path / "runs" / "tiny-autoencoder"
    assert f"{folder}/summary.md holds the losses of every layer" in capsys.readouterr().out
    figures = [f"figures/autoencoder_{pooling}{kind}.png" for pooling in ("mean", "last") for kind in ("", "_history")]
    files = [name for name in listing(folder) if not name.startswith("manifests/")]
    assert files == sorted(["config.yaml", "scores.json", "summary.md", *figures])
    scores = read_json(folder / "scores.json")
    assert scores["schema"] == SCORES_SCHEMA
    assert scores["cache"]["file"] == finished.cache.name
    for pooling in ("mean", "last"):
        found = scores["pretraining"]["autoencoders"][pooling]
        assert (found["seed"], found["codes"], found["best_epochs"]) == (5, [4] * 5, [1] * 5)
        assert len(found["held_out_losses"]) == len(found["layers"]) == 5
        assert found["n_texts"]["train"] + found["n_texts"]["held_out"] == len(LatentCache(finished.cache))
    kept = list((tmp_path / "caches" / FOLDER).iterdir())
    assert len(kept) == 2
    forbid(monkeypatch, probes.heads.pair_heads, "fit_layers")
    assert main(argv) == 0  # found again


def test_autoencoders_are_fitted_on_the_cache_of_the_corpus(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forbid(monkeypatch, probes.runs.run, "load_decoder")
    assert main(["fit", *ladder.argv, "--head", "autoencoder", f"--runs={tmp_path}"]) == 0
    scores = json.loads((tmp_path / "ladder-autoencoder" / "scores.json").read_text(encoding="utf-8"))
    assert scores["cache"]["n_rows"] == 20
    assert scores["pretraining"]["autoencoders"]["last"] == ladder.scores["pretraining"]["autoencoders"]["last"]


@pytest.mark.long
def test_one_head_alone_can_be_fitted(finished: Finished, tmp_path: Path) -> None:
    argv = ["fit", str(finished.config), "--cache", str(finished.cache), f"--runs={tmp_path}"]
    assert main([*argv, "--head", "cosine-mlp", "--name", "one"]) == 0
    scores = json.loads((tmp_path / "one" / "scores.json").read_text(encoding="utf-8"))
    assert set(scores["heads"]) == {"cosine-mlp"}
    assert scores["heads"]["cosine-mlp"]["options"]["hidden"] == 8  # as the file says
    assert scores["heads"]["cosine-mlp"]["summary"] == finished.scores["heads"]["cosine-mlp"]["summary"]
    others = ["--heads", "{cosine-mlp: {}}", "--name", "two"]  # one that the file does not name
    assert main([*argv, *others, "--head", "layer-cosine"]) == 0
    assert set(json.loads((tmp_path / "two" / "scores.json").read_text(encoding="utf-8"))["heads"]) == {"layer-cosine"}


def test_layers_of_such_heads_are_studied_without_a_decoder(
    ladder: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(ladder.folder, tmp_path / "ladder"))
    forbid(monkeypatch, probes.runs.run, "load_decoder")
    forbid(monkeypatch, probes.heads.pair_heads, "fit_head")
    how = ["--head", "all", "--views", "shapley", "--orders", "4", "--resamples", "100"]
    assert main(["layers", str(folder), *how, "--caches", str(ladder.base / "caches")]) == 0
    shown = capsys.readouterr().out
    assert "mean/embedding" in shown  # the head of two poolings
    found = {each.head: each for each in load_findings(folder)}
    for name in ("cosine-mlp", "siamese-cosine"):
        curve = found[name].curve("shapley")
        assert curve is not None
        score = ladder.scores["heads"][name]["summary"]["test"]["pearson"]["mean"]
        assert sum(curve.values) == pytest.approx(score, abs=1e-5)
