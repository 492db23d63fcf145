"""Runs on words from the command line, with a tiny random decoder on the shipped sample: what they write and refuse."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, TaskError, UnknownNameError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.data.word_files import ColumnFormat, load_word_files, load_words_sample, read_columns
from probes.data.word_task import WordTask
from probes.heads.layer_head import load_head
from probes.heads.word_fits import tag_scorer
from probes.heads.word_heads import departures
from probes.latents.word_latents import WordLatents
from probes.metrics.prediction_metrics import decode_tags
from probes.runs.compare import paired_tests
from probes.runs.predict import load_run
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec, load_run_task
from tests.probes.finished_run import opening, require_opening
from tests.probes.runs.plan_sweeps import run_sweep

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sketched_figures() -> None:
    """Render the figures of these runs: tests look at them."""


QUICK: dict[str, Any] = {"max_epochs": 3, "epoch_steps": 1, "learning_rate": 1e-2}
LAYERS = ["embedding", "block_01", "block_02", "block_03", "final_norm"]
SPLITS = ("train", "validation", "test")
MEANS = ExtractionSpec(words=WordSpec(("mean",)))


@dataclass(frozen=True)
class WordRun:
    """A run that `icecore run` has finished."""

    base: Path
    config: Path
    folder: Path
    scores: dict[str, Any]

    @property
    def cache(self) -> LatentCache:
        """The one cache."""
        [path] = (self.base / "caches").glob("*.h5")
        return LatentCache(path)


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path, read_json: Callable[[Path], Any]
) -> WordRun:
    base = tmp_path_factory.mktemp("words")
    settings = {
        "name": "words",
        "decoder": {"name": str(decoder_folder), "device": "cpu"},
        "extraction": {"words": {"poolings": ["mean", "last"]}, "storage_dtype": "float16"},
        "task": {"name": "words-sample", "options": {"tags": "ner"}},
        "heads": {"token-classifier": QUICK, "token-mix": {**QUICK, "pooling": "last"}},
        "seeds": [0, 3],
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
    }
    (base / "words.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert main(["run", str(base / "words.yaml")]) == 0
    folder = base / "runs" / "words"
    return WordRun(base, base / "words.yaml", folder, read_json(folder / "scores.json"))


def make_config(decoder_folder: Path, base: Path, **fields: Any) -> RunConfig:
    values: dict[str, Any] = {
        "name": "w",
        "decoder": DecoderSpec(str(decoder_folder), device="cpu"),
        "task": TaskSpec("words-sample"),
        "heads": {"token-classifier": QUICK},
        "bootstrap": 100,
        "caches": str(base / "caches"),
        "runs": str(base / "runs"),
    }
    return RunConfig(**{**values, **fields})


def test_a_run_writes_everything(finished: WordRun, listing: Callable[[Path], list[str]]) -> None:
    heads = [
        f"heads/{name}/seed_{seed}/{file}"
        for name in ("token-classifier", "token-mix")
        for seed in (0, 3)
        for file in ("head.json", "model.safetensors")
    ]
    figures = [
        *(f"figures/token_classifier_{kind}.png" for kind in ("confusion", "history", "layers", "rows")),
        *(f"figures/token_mix_{kind}.png" for kind in ("confusion", "history", "rows", "weights")),
    ]
    files = [
        "config.yaml",
        "report.drawn.json",
        "report.html",
        "scores.json",
        "stamp.json",
        "summary.md",
        "predictions.csv",
        "predictions_scored.csv",
    ]
    files += [f"predictions/{split}.conll" for split in SPLITS]
    manifest = f"manifests/{finished.cache.path.stem}.json"
    assert listing(finished.folder) == sorted([*files, manifest, *heads, *figures])
    for path in (finished.folder / "figures").glob("*.png"):
        with Image.open(path) as image:
            assert np.ptp(np.asarray(image.convert("L"))) > 100
    require_opening(finished.folder)
    assert " the best baseline, `majority` (" in opening(finished.folder)


def test_scores_say_what_was_done(finished: WordRun) -> None:
    scores = finished.scores
    task = scores["task"]
    assert task["n_sentences"] == {"train": 112, "validation": 32, "test": 32}
    assert task["resampled"] == {"train": "documents", "validation": "sentences", "test": "sentences"}
    assert task["metrics"] == ["span-f1"]
    assert task["words_in_cache"]["n_words"] == sum(task["n_words"].values()) == finished.cache.n_words
    assert task["is_sample"]
    assert scores["cache"]["poolings"] == ["mean", "last"]
    assert scores["protocol"] == "icecore"
    assert [scores["heads"][name]["pooling"] for name in ("token-classifier", "token-mix")] == ["mean", "last"]
    for result in scores["heads"].values():
        assert result["departures"] == []
        assert set(result["summary"]) == set(SPLITS)
        assert [entry["seed"] for entry in result["seeds"]] == [0, 3]
    [curve] = scores["heads"]["token-classifier"]["curves"]
    assert scores["heads"]["token-classifier"]["layers"] == LAYERS
    assert scores["heads"]["token-classifier"]["chosen"]["layer"] == LAYERS[int(np.argmax(curve["values"]))]


def test_heads_are_tested_by_the_mean_over_their_seeds(finished: WordRun) -> None:
    means = [finished.scores["heads"][name]["summary"]["test"]["span-f1"]["mean"] for name in finished.scores["heads"]]
    [test] = paired_tests(finished.folder, by="head", n_resamples=50, n_permutations=49).to_dict("records")
    assert test["difference"] == pytest.approx(means[0] - means[1])


def test_the_summary_holds_tables_and_figures(finished: WordRun) -> None:
    text = (finished.folder / "summary.md").read_text(encoding="utf-8")
    assert "no benchmark result" in text
    assert "bootstrap over test sentences" in text  # four documents are too few
    for part in (
        "## How tags are decoded",
        "| PER |",
        "## Most frequent errors of `token-classifier`, test",
        "| block_02 |",
        "## What each layer gives `token-mix`",
        "0 cut off, 0 covered by no token",
        "tags are IOB2 as detected",
    ):
        assert part in text
    for path in (finished.folder / "figures").glob("*.png"):
        assert f"](figures/{path.name})" in text


def test_predictions_can_be_read_and_scored_again(finished: WordRun) -> None:
    task = load_words_sample("ner")
    columns = ("word", "gold", "token-classifier", "token-mix")
    for split in SPLITS:
        path = finished.folder / "predictions" / f"{split}.conll"
        for column in columns[2:]:
            table = read_columns(path, column, file_format=ColumnFormat(columns, "tab"))
            assert [sentence.words for sentence in table.sentences] == task.splits[split]["words"]
            data = WordLatents(finished.cache, task)
            judge = tag_scorer(data, split)
            ids = np.array([judge.gold.names.index(tag) for row in table.sentences for tag in row.tags])
            found = finished.scores["heads"][column]["summary"][split]["span-f1"]["values"][0]
            assert judge.score(ids) == pytest.approx(found)
        gold = read_columns(path, "gold", file_format=ColumnFormat(columns, "tab"))
        assert [sentence.tags for sentence in gold.sentences] == task.splits[split]["tags"]
    again = load_word_files({"test": path}, columns=list(columns), tags="gold", separator="tab")
    assert again.has_documents


def test_a_saved_head_predicts_what_the_run_wrote(finished: WordRun) -> None:
    saved = load_head(finished.folder / "heads" / "token-classifier" / "seed_0")
    assert (saved.record.layers, saved.record.pooling) == (tuple(LAYERS), "mean")
    task = load_words_sample("ner")
    places = finished.cache.words_of(task.joined("test"))
    with torch.no_grad():
        logits = saved.head(finished.cache.gather(places.positions, "mean"))
    layer = LAYERS.index(finished.scores["heads"]["token-classifier"]["chosen"]["layer"])
    chosen = finished.scores["heads"]["token-classifier"]["chosen"]
    scores, classes = logits[layer].float().numpy(), saved.record.details["classes"]
    tags = [classes[k] for k in decode_tags(scores, places.offsets, labels=classes, way=chosen["decoding"])]
    lines = (finished.folder / "predictions" / "test.conll").read_text(encoding="utf-8").splitlines()
    written = [line.split("\t")[2] for line in lines if line and not line.startswith("-DOCSTART-")]
    assert tags == written


def test_streaming_from_the_file_is_gathering_from_it(finished: WordRun) -> None:
    data = WordLatents(finished.cache, load_words_sample("ner"), pooling="last")
    rows = data.split("train")
    n_words = 0
    for batch in data.train_dataloader():
        wanted = finished.cache.gather(rows.positions[batch.words.numpy()], "last")
        assert torch.equal(batch.latents, wanted)
        n_words += len(batch.words)
    assert n_words == rows.n_words


@pytest.mark.long
def test_fitting_alone_loads_no_decoder_and_ends_alike(
    finished: WordRun,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    read_json: Callable[[Path], Any],
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a decoder was loaded")

    monkeypatch.setattr("probes.runs.run.load_decoder", refuse)
    arguments = ["fit", str(finished.config), "--runs", str(tmp_path), "--head", "token-classifier"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "token-classifier" in printed
    assert "span-f1" in printed
    scores = read_json(tmp_path / "words" / "scores.json")
    mine, theirs = (each["heads"]["token-classifier"] for each in (scores, finished.scores))
    assert {**mine, "seeds": 0} == {**theirs, "seeds": 0}
    assert main([*arguments, "--extraction.words.shift", "true"]) == 1
    assert "0 caches in" in capsys.readouterr().err


def test_the_lists_name_tasks_and_heads_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks", "heads"]) == 0
    printed = capsys.readouterr().out
    for name in ("words-sample", "conll2003", "wnut17", "ud-ewt", "word-files", "token-classifier", "token-mix"):
        assert name in printed


@pytest.mark.long
def test_a_sweep_chooses_plan_and_layer_on_validation(
    decoder_folder: Path, tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    config = make_config(decoder_folder, tmp_path, task=TaskSpec("words-sample", {"tags": "pos"}, pairs=30))
    plans = [parse_plan(text) for text in ("causal", "backward@1-2", "nosink-bidirectional@2-2", "backward@2-3")]
    result = run_sweep(config, plans)
    scores = read_json(result.folder / "scores.json")
    assert scores["task"]["n_sentences"] == {"train": 30, "validation": 30, "test": 30}
    best = {row["plan"]: max(row["heads"]["token-classifier"]["curves"][0]["values"]) for row in scores["plans"]}
    chosen = scores["chosen"]["token-classifier"]
    assert chosen["plan"] == max(best, key=lambda plan: best[plan])
    assert chosen["chosen"]["layer"] in LAYERS
    assert chosen["gain"]["metric"] == "accuracy"
    assert {row["heads"]["token-classifier"]["pooling"] for row in scores["plans"]} == {"last", "mean"}
    text = (result.folder / "summary.md").read_text(encoding="utf-8")
    assert "| token-classifier accuracy |" in text.replace("|  |", "|")
    assert "`backward@1-2`" in text
    assert (result.folder / "sweep.png").stat().st_size > 1000
    assert (result.folder / "layers_token_classifier.png").stat().st_size > 1000
    require_opening(result.folder)
    assert len(list((result.folder / "heads").rglob("head.json"))) == 4


@pytest.mark.long
def test_a_search_finds_its_plan_without_test(
    decoder_folder: Path, tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    config = make_config(decoder_folder, tmp_path, task=TaskSpec("words-sample", {"tags": "pos"}))
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    flags = ["--kinds", "backward", "--k", "0-2", "--search", "halving", "--budget", "0.9"]
    assert main(["sweep", str(tmp_path / "w.yaml"), *flags]) == 0
    scores = read_json(tmp_path / "runs" / "w-search" / "scores.json")
    assert scores["chosen"]["token-classifier"]["plan"] in ("causal", "backward:1", "backward:2")


def test_a_cut_word_is_an_error_and_is_counted(decoder_folder: Path, tmp_path: Path) -> None:
    extraction = ExtractionSpec(template=InputTemplate(max_tokens=12, on_long="truncate"))
    task = TaskSpec("words-sample", {"tags": "pos"}, pairs=20)
    config = make_config(decoder_folder, tmp_path, extraction=extraction, task=task)
    scores = run(config).scores
    found = scores["heads"]["token-classifier"]
    assert scores["task"]["words_in_cache"]["n_cut"] > 0
    coverage = found["extras"]["coverage"]["test"]
    assert 0 < coverage["n_cut"] < coverage["n_words"]
    assert found["summary"]["test"]["accuracy"]["mean"] <= 1 - coverage["n_cut"] / coverage["n_words"]
    text = (tmp_path / "runs" / "w" / "predictions" / "test.conll").read_text(encoding="utf-8")
    assert sum(line.endswith("\t-") for line in text.splitlines()) == coverage["n_cut"]
    lbw = run(replace(config, name="lbw", protocol="look-both-ways")).scores["heads"]["token-classifier"]
    assert lbw["is_optimistic"]
    assert lbw["layers"] == ["final_norm"]
    assert lbw["selection"] == "nothing to choose"
    [line] = lbw["departures"]
    assert line == "sentences are not cut to 32 tokens, as the released code cuts them"  # but to 12, as was asked for
    summary = (tmp_path / "runs" / "lbw" / "summary.md").read_text(encoding="utf-8")
    assert "token-classifier (optimistic)" in summary
    assert "Chosen: nothing" in summary
    assert "nothing to choose" not in summary + repr(load_run(tmp_path / "runs" / "lbw"))
    assert "**optimistic**: words without a latent are left out of the scores" in summary


@pytest.mark.long
def test_magnet_extracts_as_the_paper_does(decoder_folder: Path, tmp_path: Path) -> None:
    heads = {"token-classifier": {"steps": 6}}
    config = make_config(
        decoder_folder, tmp_path, protocol="magnet", heads=heads, task=TaskSpec("words-sample", pairs=20)
    )
    assert config.extraction.words == WordSpec(poolings=("mean",), shift=True)
    found = run(config).scores["heads"]["token-classifier"]
    assert found["options"]["steps"] == 6
    assert found["options"]["learning_rate"] == 5e-4
    assert found["departures"] == ["every block is causal, and no word sees what follows it, as it does with MAGNET"]
    assert found["layers"] == ["final_norm"]
    assert set(found["summary"]["test"]) == {"span-f1", "accuracy"}
    right = (tmp_path / "runs" / "w" / "predictions" / "test.conll").read_text(encoding="utf-8").splitlines()
    tags = [line.split("\t")[-2:] for line in right if line and not line.startswith("-DOCSTART-")]
    assert found["summary"]["test"]["accuracy"]["values"][0] == pytest.approx(np.mean([a == b for a, b in tags]))
    assert "| token-classifier | final_norm, plain tags | accuracy |" in (
        tmp_path / "runs" / "w" / "summary.md"
    ).read_text(encoding="utf-8")
    bidirectional = replace(config, name="both", extraction=replace(config.extraction, plan="bidirectional"))
    assert run(bidirectional).scores["heads"]["token-classifier"]["departures"] == []
    own = ExtractionSpec(words=WordSpec(poolings=("last",)))
    other = run(replace(config, name="other", extraction=own)).scores["heads"]["token-classifier"]
    assert other["departures"][1:] == ["a word is the last of its tokens, and not their mean, as with MAGNET"]


@pytest.mark.long
def test_look_both_ways_labels_every_token(
    decoder_folder: Path, tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    config = make_config(decoder_folder, tmp_path, protocol="look-both-ways", task=TaskSpec("words-sample", pairs=20))
    assert config.extraction.template.max_tokens == 32
    result = run(config)
    plain = TaskSpec("words-sample", pairs=20).load()
    assert isinstance(plain, WordTask)
    n_words = sum(map(len, plain.splits["test"]["words"]))
    assert result.scores["task"]["n_words"]["test"] > n_words
    assert any("every token is a word here" in note for note in result.scores["task"]["notes"])
    found = result.scores["heads"]["token-classifier"]
    assert found["departures"] == []
    assert found["is_optimistic"]
    [path] = (tmp_path / "caches").glob("*.h5")
    tokens = load_run_task(config)
    assert isinstance(tokens, WordTask)
    assert [text.text for text in tokens.joined("test")] == [text.text for text in plain.joined("test")]
    assert LatentCache(path).word_report()["n_shared"] == 0
    assert departures("icecore", LatentCache(path), "last") == ()
    # Fitted again on the cache that is there: the same tokens are found without the decoder.
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(config.to_dict()), encoding="utf-8")
    assert main(["fit", str(tmp_path / "w.yaml"), "--name", "again"]) == 0
    again = read_json(tmp_path / "runs" / "again" / "scores.json")
    assert again["heads"]["token-classifier"]["summary"] == json.loads(json.dumps(found["summary"]))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"heads": {"cosine-mlp": {}}}, UnknownNameError, "unknown head 'cosine-mlp'.*heads for tasks of words"),
        ({"heads": {"token-clasifier": {}}}, UnknownNameError, "did you mean 'token-classifier'"),
        (
            {"heads": {"token-classifier": {"pooling": "last"}}, "extraction": MEANS},
            ConfigError,
            "the pooling 'last', which is not extracted; allowed: mean, or add it to extraction.words",
        ),
        (
            {"extraction": ExtractionSpec(poolings=("last",))},
            ConfigError,
            r"extraction.poolings is \[last\], which pools whole texts, .* set extraction.words.poolings",
        ),
        ({"protocol": "freeze-released"}, ConfigError, "'freeze-released' is for tasks of pairs, but 'words-sample'"),
        ({"task": TaskSpec("words-sample", {"tags": "pos"}), "heads": {}}, ConfigError, "no head was named"),
    ],
)
def test_what_contradicts_itself_is_refused(
    decoder_folder: Path, tmp_path: Path, fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_config(decoder_folder, tmp_path, **fields)


def test_protocols_of_words_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="protocol 'magnet' is for tasks of words, but 'sts-sample' is one of pairs"):
        RunConfig(protocol="magnet")
    with pytest.raises(ConfigError, match="'look-both-ways' is for tasks of classes or words, but 'sts-sample'"):
        RunConfig(protocol="look-both-ways")


def write_conll(path: Path, *tags: str) -> str:
    path.write_text("".join(f"w{k} {tag}\n" for k, tag in enumerate(tags)) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("train",), "no split 'validation', on which head 'token-classifier' chooses its epoch"),
        (("validation", "test"), "task 'word-files' has no split 'train', which every head needs"),
        (("train", "test"), "no split 'validation', on which head 'token-classifier' chooses its epoch"),
    ],
)
def test_a_missing_split_is_told_before_anything_is_extracted(
    tmp_path: Path, splits: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a decoder was loaded")

    monkeypatch.setattr("probes.runs.run.load_decoder", refuse)
    monkeypatch.setattr("probes.runs.sweep_caches.load_decoder", refuse)
    files = {split: write_conll(tmp_path / f"{split}.txt", "B-PER", "O") for split in splits}
    task = TaskSpec("word-files", {"files": files, "columns": ["word", "ner"], "tags": "ner"})
    config = RunConfig(task=task, heads={"token-classifier": {}}, runs=str(tmp_path), caches=str(tmp_path))
    with pytest.raises(TaskError, match=message):
        run(config)
    with pytest.raises(TaskError, match=message.replace("its epoch", "its plan")):
        run_sweep(config, [parse_plan("causal")])
    if splits == ("train",):
        with pytest.raises(TaskError, match="has only the split train; add validation or test rows"):
            run(replace(config, heads={"token-classifier": {"keep": "last"}}))


def test_a_sentence_of_many_words_and_single_rows_go_through(decoder_folder: Path, tmp_path: Path) -> None:
    tags = ["B-PER", "O", "B-LOC", "I-LOC"] * 150
    files = {split: write_conll(tmp_path / f"{split}.txt", *tags) for split in ("train", "validation")}
    task = TaskSpec("word-files", {"files": files, "columns": ["word", "ner"], "tags": "ner"})
    extraction = ExtractionSpec(template=InputTemplate(max_tokens=64, on_long="windows"))
    scores = run(make_config(decoder_folder, tmp_path, task=task, extraction=extraction)).scores
    assert scores["task"]["words_in_cache"]["n_windows"] == 1  # both splits hold the same sentence
    assert scores["task"]["words_in_cache"]["n_cut"] == 0
    summary = scores["heads"]["token-classifier"]["summary"]["validation"]["span-f1"]
    assert np.isnan(summary["low"])  # one sentence cannot be resampled
    written = json.loads((tmp_path / "runs" / "w" / "scores.json").read_text(encoding="utf-8"))
    assert written["heads"]["token-classifier"]["summary"]["validation"]["span-f1"]["low"] is None
