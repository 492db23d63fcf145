"""Forged records of a run, sealed again: every command ends in one sentence, whatever a field holds."""

import json
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extract.files import digest_json
from probes.cli.main import main
from probes.report.scores import seal_scores
from tests.extract.tiny_decoders import make_texts, write_shards
from tests.probes.finished_run import Finished, edit_config, edit_scores
from tests.probes.scored_runs import run_classes, run_words

CHANGES: dict[str, Callable[[Any], Any]] = {
    "null": lambda _: None,
    "wrong": lambda value: 7 if isinstance(value, str) else "x",
    "huge": lambda _: 10**400,
    "nested": lambda value: {"a": [value]},
    "list": lambda value: {} if isinstance(value, list) else [],
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the path of every field, of lists that of the first item."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*at, key)
        yield from paths(item, (*at, key))


def forged(record: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """Give the record with the field gone, and with every other content."""
    for change in (None, *CHANGES.values()):
        copy = json.loads(json.dumps(record))
        inner = copy
        for key in path[:-1]:
            inner = inner[key]
        if change is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = change(inner[path[-1]])
        yield copy


def write_forged(path: Path, record: Any) -> None:
    """Write a record with the digest that whoever forged it can compute."""
    if path.name == "scores.json":
        record = {**record, "sha256": seal_scores(record)}
    else:
        key = "digest" if path.name == "index.json" else "record_sha256"
        rest = {name: value for name, value in record.items() if name != key}
        record = {**rest, key: digest_json(rest)}
    path.write_text(json.dumps(record), encoding="utf-8")


def require_sentences(file: Path, argv: list[list[str]], capsys: pytest.CaptureFixture[str], below: str = "") -> int:
    """Run commands on every forged record, which raises where one ends in anything but a sentence; count refusals."""
    record, n_refused = json.loads(file.read_text(encoding="utf-8")), 0
    for path in paths(record):
        if below and path[: below.count(".") + 1] != tuple(below.split(".")):
            continue
        for bad in forged(record, path):
            write_forged(file, bad)
            for words in argv:
                capsys.readouterr()
                if main(words):
                    message = capsys.readouterr().err
                    assert message.startswith("icecore: "), (path, words)
                    n_refused += 1
    return n_refused


@pytest.fixture
def folder(finished: Finished, tmp_path: Path, unchecked_shapes: None) -> Path:
    """A copy of a finished run, to be changed."""
    del unchecked_shapes
    return Path(shutil.copytree(finished.folder, tmp_path / "run"))


@pytest.mark.parametrize("below", ["name", "kind", "decoder.n_layers", "task.name", "heads.layer-cosine.metric"])
def test_a_forged_field_of_scores_ends_in_a_sentence(
    below: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(folder)
    argv = [["table", run], ["table", run, "--format", "tidy"]]
    assert require_sentences(folder / "scores.json", argv, capsys, below) > len(argv)


@pytest.mark.long
def test_every_forged_field_of_a_head_ends_in_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [["score", str(folder), "a", "b", "--head", "layer-cosine", "--quiet"]]
    assert require_sentences(folder / "heads/layer-cosine/seed_0/head.json", argv, capsys) > 50


@pytest.mark.long
def test_every_forged_field_of_an_index_ends_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unchecked_shapes: None
) -> None:
    del unchecked_shapes
    write_shards(tmp_path / "shards", make_texts(7), window=4)
    argv = [[command, str(tmp_path / "shards")] for command in ("inspect", "geometry")]
    assert require_sentences(tmp_path / "shards" / "index.json", argv, capsys) > 50


def _doubling(start: str, form: str, n: int = 12) -> str:
    """Write a document of which every line holds nine times the one above."""
    return "\n".join([f"a0: &a0 {start}", *(form.format(i, ", ".join([f"*a{i - 1}"] * 9)) for i in range(1, n))])


HOSTILE_YAML = {
    "anchors": (_doubling("[1]", "a{0}: &a{0} [{1}]"), "with its anchors written out; allowed: 20,000"),
    "merges": (_doubling("{x: 1}", "a{0}: &a{0}\n  <<: [{1}]"), "with its anchors written out; allowed: 20,000"),
    "list in itself": ("a: &a [*a]", "an anchor holds itself"),
    "mapping in itself": ("a: &a {b: *a}", "an anchor holds itself"),
    "depth": (f"a: {'[' * 3000}{']' * 3000}", "is nested too deeply"),
    "digits": ("a: 0x" + "f" * 5000, "a number of 20000 bits"),
    "set": ("a: !!set {x, y}", "a value of type set"),
    "object": ("a: !!python/object/apply:os.system [x]", "is not YAML"),
}


@pytest.mark.parametrize(("yaml", "message"), HOSTILE_YAML.values(), ids=HOSTILE_YAML)
def test_hostile_yaml_in_the_config_of_a_run_ends_in_a_sentence(
    yaml: str, message: str, folder: Path, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run, other = folder / "config.yaml", str(folder), str(finished.folder)
    text = config.read_text(encoding="utf-8")
    config.write_text(
        text.replace("    name: tiny-pairs", "    name: tiny-pairs\n" + textwrap.indent(yaml, "    ")), encoding="utf-8"
    )
    edit_scores(folder, lambda _: None)
    for argv in (
        ["score", run, "a", "b"],
        ["compare", run, other],
        ["compare", other, run],
        ["compare", run, other, "--by-layer"],
        ["layers", run],
        ["geometry", run],
        ["run", str(config), "--dry-run"],
    ):
        capsys.readouterr()
        assert main(argv) == 1, argv
        [sentence] = capsys.readouterr().err.splitlines()
        assert sentence.startswith("icecore: ")
        assert message in sentence
    assert main(["table", run]) == 0  # reads no configuration


@pytest.fixture(scope="module")
def runs(finished: Finished, tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> dict[str, Path]:
    """Finished runs by kind; their scores.json is changed and put back."""
    base = tmp_path_factory.mktemp("forged")
    (base / "classes").mkdir()
    return {
        "pairs": Path(shutil.copytree(finished.folder, base / "pairs")),
        "words": run_words(base / "words", decoder_folder, seeds=(0,)),
        "classes": run_classes(base / "classes", decoder_folder),
    }


def _choose(layer: str) -> Callable[[dict[str, Any]], None]:
    def change(result: dict[str, Any]) -> None:
        result["chosen"]["layer"] = layer

    return change


def _rename(result: dict[str, Any]) -> None:
    """Let scores.json agree with itself, and not with the saved head."""
    result["layers"] = [f"block_{90 + index}" for index in range(len(result["layers"]))]
    result["chosen"]["layer"] = "block_90"


@pytest.mark.parametrize(
    ("kind", "head"), [("pairs", "layer-cosine"), ("words", "token-classifier"), ("classes", "logistic-probe")]
)
def test_a_layer_that_the_head_does_not_read_is_refused(
    kind: str, head: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = runs[kind], str(runs[kind])
    other = str(shutil.copytree(folder, tmp_path / "other"))
    (tmp_path / "rows.csv").write_text("sentence1,sentence2,text\nice,snow,ice melts\n", encoding="utf-8")
    columns = ["--columns", "sentence1,sentence2" if kind == "pairs" else "text"]
    texts = ["a", "b"] if kind == "pairs" else ["a b c"]
    reading = [
        ["score", run, *texts, "--head", head],
        ["predict", run, str(tmp_path / "rows.csv"), "--head", head, *columns],
    ]
    showing = [
        ["report", run],
        ["table", run],
        ["compare", run, other],
        ["compare", other, run],
        ["compare", run, other, "--by-layer"],
        ["layers", run],
    ]
    content = (folder / "scores.json").read_bytes()
    changes = {"block_99": _choose("block_99"), "nothing": _choose(""), "its own": _rename}
    for change in changes.values():
        edit_scores(folder, lambda scores: change(scores["heads"][head]))  # noqa: B023
        for argv in reading if change is _rename else [*reading, *showing]:
            capsys.readouterr()
            assert main(argv) == 1, argv
            [sentence] = capsys.readouterr().err.splitlines()
            assert sentence.startswith("icecore: ")
            assert "layer" in sentence
        (folder / "scores.json").write_bytes(content)
    for argv in reading:
        assert main(argv) == 0


@pytest.mark.parametrize("change", [_choose("block_02"), _choose("block_99"), _rename])
def test_a_layer_of_a_head_that_reads_all_of_them_is_refused(
    change: Callable[[dict[str, Any]], None], runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, head = runs["pairs"], "cosine-mlp"
    content = (folder / "scores.json").read_bytes()
    edit_scores(folder, lambda scores: change(scores["heads"][head]))
    capsys.readouterr()
    assert main(["score", str(folder), "a", "b", "--head", head]) == 1
    [sentence] = capsys.readouterr().err.splitlines()
    assert "layer" in sentence
    (folder / "scores.json").write_bytes(content)


@pytest.mark.parametrize("argv", [["layers", "RUN"], ["compare", "RUN", "OTHER", "--by-layer"]])
def test_a_head_that_the_config_of_a_run_lacks_is_named(
    argv: list[str], folder: Path, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(folder, lambda config: config["heads"].pop("layer-cosine"))
    names = {"RUN": str(folder), "OTHER": str(finished.folder)}
    capsys.readouterr()
    assert main([names.get(word, word) for word in [*argv, "--head", "layer-cosine"]]) == 1
    assert "has no head 'layer-cosine', which scores.json has" in capsys.readouterr().err


def test_a_saved_head_that_reads_what_the_run_has_not_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.glob("heads/siamese-cosine/*/head.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        write_forged(path, {**record, "layers": [*record["layers"][:-1], "block_99"]})
    capsys.readouterr()
    assert main(["score", str(folder), "a", "b", "--head", "siamese-cosine", "--quiet"]) == 1
    assert "reads mean/block_99, which the run has no latents of" in capsys.readouterr().err
