"""No command and no public function imports what a folder names, wherever in it a name of code can stand."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import pytest

import icecore
from extract.errors import CodeError
from extract.files import digest_json, digest_text
from extract.masks.mask_plan import KINDS
from extract.poolings.pooling_table import POOLINGS, WORD_POOLINGS
from extract.registry import ADDED, digest_source
from extract.store.manifest import CacheIdentity, Manifest
from probes.cli.main import main
from probes.export.sentence_transformers import PairScorer, stage_run
from probes.heads.head_table import HEADS
from probes.runs.folder import RunFolder
from tests.probes.finished_run import Finished, edit_config, edit_scores

MODULE = "named_by_a_folder"
NAME = f"{MODULE}:part"
Forge = Callable[[Path], object]


def edit_head(folder: Path, **changes: Any) -> None:
    """Change the record of every head and seal it again, as whoever made the folder can."""
    for path in folder.glob("heads/*/seed_*/head.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        del record["record_sha256"]
        record.update(changes)
        record["record_sha256"] = digest_json(record)
        path.write_text(json.dumps(record), encoding="utf-8")


def edit_cache(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change identity and provenance of the cache, and the manifest of it that the run holds."""
    [path] = (folder.parent / "caches").glob("*.h5")
    with h5py.File(path, "r+") as file:
        manifest = Manifest.from_json(file.attrs["manifest"])
        identity = manifest.identity.to_plain()
        change(identity, manifest.provenance)
        manifest = Manifest(CacheIdentity.from_plain(identity), manifest.provenance)
        file.attrs["identity"] = manifest.id
        file.attrs["manifest"] = text = manifest.to_json()
        file.attrs["manifest_digest"] = digest_text(text)
    for old in (folder / "manifests").glob("*.json"):
        old.write_text(text, encoding="utf-8")


def in_config(*path: str, value: Any) -> Forge:
    def put(config: Any) -> None:
        for part in path[:-1]:
            config = config[part]
        config[path[-1]] = value

    return lambda folder: edit_config(folder, put)


def in_scores(change: Callable[[Any], object]) -> Forge:
    return lambda folder: edit_scores(folder, change)


def record(key: str, module: str = MODULE, **more: str) -> Forge:
    """Let scores and cache record a part of code as their author's, with the true digest of its source."""

    def forge(folder: Path) -> None:
        own = {key: {"module": module, "sha256": "0" * 64, "source": digest_source(module), **more}}
        edit_scores(folder, lambda scores: scores.update(own=own))
        edit_cache(folder, lambda _, provenance: provenance.update(own=own))

    return forge


def both(*forges: Forge) -> Forge:
    return lambda folder: [forge(folder) for forge in forges]


def rename_head(folder: Path) -> None:
    edit_config(folder, lambda config: config["heads"].update({NAME: {}}))
    edit_scores(folder, lambda scores: scores["heads"].update({NAME: scores["heads"]["layer-cosine"]}))
    shutil.copytree(folder / "heads" / "layer-cosine", folder / "heads" / NAME)


PLACES: dict[str, Forge] = {
    "config: poolings": in_config("extraction", "poolings", value=["mean", "last", NAME]),
    "config: heads": in_config("heads", value={NAME: {}}),
    "head.json: pooling": lambda folder: edit_head(folder, pooling=NAME),
    "head.json: layers": lambda folder: edit_head(folder, layers=[f"{NAME}/block_01"] * 3),
    "scores: a recorded module": record("pooling x"),
    "cache: plan": lambda folder: edit_cache(folder, lambda identity, _: identity.update(plan=f"{NAME}:2")),
    "config: word poolings": in_config("extraction", "words", "poolings", value=[NAME]),
    "config: plan": in_config("extraction", "plan", value=f"{NAME}:2"),
    "config: plan of an architecture": in_config("extraction", "plan", value=f"extra/{NAME}:2"),
    "config: pooling of a view": in_config("views", value={"plain": {}, "other": {"poolings": [NAME]}}),
    "config: word pooling of a view": in_config("views", value={"other": {"words": {"poolings": [NAME]}}}),
    "config: plan of a view": in_config("views", value={"other": {"plan": f"{NAME}:2"}}),
    "config: views that are none": in_config("views", value=[NAME]),
    "config: view that is none": in_config("views", value={"other": [NAME]}),
    "config: layers": in_config("extraction", "layers", value=[NAME]),
    "config: template": in_config("extraction", "template", "name", value=NAME),
    "config: pooling of a head": in_config("heads", "layer-cosine", value={"pooling": NAME}),
    "config: layers of a head": in_config("heads", "layer-cosine", value={"layers": [f"{NAME}/block_01"]}),
    "config: transform": in_config("heads", "layer-cosine", value={"transform": NAME}),
    "config: loss": in_config("heads", "siamese-cosine", value={"loss": NAME}),
    "config: task": in_config("task", "name", value=NAME),
    "config: option of a task": in_config("task", "options", value={"files": NAME, "reader": NAME}),
    "config: corpus": in_config("pretraining", "corpus", value=NAME),
    "config: decoder": in_config("decoder", "name", value=NAME),
    "config: loggers": in_config("loggers", value=[NAME]),
    "head.json: name": lambda folder: edit_head(folder, name=NAME),
    "head.json: chosen layer": lambda folder: edit_head(folder, layer=f"{NAME}/block_01"),
    "scores: head": rename_head,
    "scores: plan": in_scores(lambda scores: scores["cache"].update(plan=f"{NAME}:2")),
    "scores: pooling of a head": in_scores(lambda scores: scores["heads"]["layer-cosine"].update(pooling=NAME)),
    "scores: chosen layer": in_scores(
        lambda scores: scores["heads"]["layer-cosine"]["chosen"].update(layer=f"{NAME}/block_01")
    ),
    "scores: a sweep": in_scores(
        lambda scores: scores.update(
            what="sweep",
            own={f"mask kind {NAME}": {"module": MODULE, "sha256": "0", "source": digest_source(MODULE)}},
            plans=[
                {
                    "plan": f"{NAME}:2",
                    "cache": "x",
                    "certificate": {},
                    "zero_shot": {},
                    "heads": scores["heads"],
                }
            ],
            chosen={},
        )
    ),
    "scores: a recorded submodule": record("pooling x", f"{MODULE}_package.inner"),
    "scores: a recorded name": both(
        record(f"pooling {NAME}"), in_config("extraction", "poolings", value=["mean", "last", NAME])
    ),
    "scores: a recorded head": both(record(f"head {NAME}"), rename_head),
    "scores: __main__ of a package": record("pooling x", f"{MODULE}_package.__main__"),
    "cache: pooling": lambda folder: edit_cache(
        folder, lambda identity, _: identity.update(poolings=[*identity["poolings"], NAME])
    ),
    "cache: code": lambda folder: edit_cache(folder, lambda identity, _: identity.update(own={f"pooling {NAME}": "0"})),
}


def commands(run: str, config: str, cache: str, out: Path) -> list[list[str]]:
    """List every command that reads a run folder, its config.yaml or a cache."""
    texts = str(out / "pairs.tsv")
    small = ["--orders", "2", "--resamples", "100", "--views", "alone"]
    return [
        ["score", run, "a", "b"],
        ["score", run, "a", "b", "--head", "cosine-mlp"],
        ["predict", run, texts],
        ["predict", run, "--serve"],
        ["table", run],
        ["compare", run, run],
        ["compare", run, run, "--by-layer"],
        ["compare", run, run, "--across"],
        ["geometry", run, "--measures", "gold,norm"],
        ["geometry", cache],
        ["layers", run, *small],
        ["report", run],
        ["export", "parquet", run, str(out / "o.parquet"), "--texts", "task"],
        ["export", "sentence-transformers", run, str(out / "one")],
        ["export", "sentence-transformers", config, str(out / "two")],
        ["push", run, "--to", str(out / "staged")],
        ["inspect", cache],
        ["run", config, "--dry-run"],
        ["extract", config, "--dry-run"],
        ["fit", config, "--head", "layer-cosine"],
        ["fit", config, "--cache", cache, "--head", "layer-cosine"],
        ["sweep", config, "--plans", "backward:1", "--dry-run"],
        ["embed", texts, config],
        ["mteb", config],
    ]


def functions(run: Path, cache: str, out: Path) -> list[Callable[[], object]]:
    """List every public function that reads a run folder, a head or a cache."""
    pairs = [("Ice is cold.", "Snow is white.")]
    return [
        lambda: icecore.load_run(run).predict(pairs),
        lambda: icecore.load_run(run).cache(),
        lambda: icecore.load_scorer(run).score(pairs),
        lambda: icecore.compare_layers(run),
        lambda: icecore.compare_at_layers(run, run),
        lambda: icecore.compare([run, run]),
        lambda: icecore.results(run),
        lambda: icecore.paired_tests([run, run]),
        lambda: icecore.layers_across([run]),
        lambda: icecore.rank_systems([run]),
        lambda: icecore.expected_validation(run),
        lambda: icecore.write_report(run),
        lambda: icecore.open_cache(cache),
        *(lambda head=head: icecore.load_head(head) for head in sorted(run.glob("heads/*/seed_0"))),
        lambda: PairScorer(run).predict(pairs),
        lambda: stage_run(run, out / "staged-too"),
        lambda: RunFolder(run).config,
    ]


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None, sketched_figures: None) -> None:
    """Save the time of checking shapes and of rendering."""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the modules that are named would leave a mark."""
    mark, modules = tmp_path / "mark", tmp_path / "modules"
    source = f"with open({str(mark)!r}, 'a') as file:\n    file.write(__name__)\n\ndef part(*_):\n    pass\n"
    for name in (f"{MODULE}.py", *(f"{MODULE}_package/{name}.py" for name in ("__init__", "inner", "__main__"))):
        (modules / name).parent.mkdir(parents=True, exist_ok=True)
        (modules / name).write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    tables: list[dict[Any, Any]] = [ADDED, POOLINGS, WORD_POOLINGS, KINDS, HEADS]
    before = [dict(table) for table in tables]
    yield mark
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
    for name in [name for name in sys.modules if name.startswith(MODULE)]:
        del sys.modules[name]


@pytest.fixture
def stranger(finished: Finished, tmp_path: Path) -> Path:
    """A run folder beside the caches that it read."""
    shutil.copytree(finished.base / "caches", tmp_path / "caches")
    folder = Path(shutil.copytree(finished.folder, tmp_path / "stranger"))
    edit_config(folder, lambda config: config.update(caches=str(tmp_path / "caches"), runs=str(tmp_path / "runs")))
    (tmp_path / "pairs.tsv").write_text("text\ttext2\nIce.\tSnow.\n", encoding="utf-8")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore")
def test_nothing_that_a_folder_names_is_imported(
    place: str, stranger: Path, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLACES[place](stranger)
    line = '{"texts": ["Ice.", "Snow."]}\n'
    [cache] = map(str, (tmp_path / "caches").glob("*.h5"))
    for argv in commands(str(stranger), str(stranger / "config.yaml"), cache, tmp_path):
        monkeypatch.setattr(sys, "stdin", io.StringIO(line))
        with suppress(Exception):  # whether it ends in a sentence is tested elsewhere
            main(argv)
        assert not mark.exists(), f"{' '.join(argv)} imported what stands in {place}"
    for k, call in enumerate(functions(stranger, cache, tmp_path)):
        with suppress(Exception):
            call()
        assert not mark.exists(), f"function {k} imported what stands in {place}"
    assert not [name for name in sys.modules if name.startswith(MODULE)]


@pytest.mark.parametrize(
    ("place", "argv"),
    [
        ("config: poolings", ["run", "CONFIG", "--dry-run"]),
        ("config: heads", ["fit", "CONFIG"]),
        ("head.json: pooling", ["score", "RUN", "a", "b"]),
        ("scores: a recorded module", ["score", "RUN", "a", "b"]),
        ("scores: a recorded module", ["layers", "RUN"]),
        ("config: plan", ["sweep", "CONFIG", "--k", "1"]),
    ],
)
def test_the_message_names_the_option_that_opens(
    place: str, argv: list[str], stranger: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PLACES[place](stranger)
    words = [word.replace("CONFIG", str(stranger / "config.yaml")).replace("RUN", str(stranger)) for word in argv]
    assert main(words) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith(
        f"is code of the module {MODULE!r}, which no file may import by itself; if you trust that module, add "
        f"--allow-code {MODULE}, or in Python allow_code=[{MODULE!r}]."
    )
    assert not mark.exists()
    main([*words, "--allow-code", MODULE])
    assert mark.exists()


def test_what_is_allowed_is_compared_with_its_record_first(stranger: Path, mark: Path, tmp_path: Path) -> None:
    record("pooling x", f"{MODULE}_package.inner")(stranger)
    package = tmp_path / "modules" / f"{MODULE}_package"
    for file in (package / "__init__.py", package / "inner.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(f"{text}# edited\n", encoding="utf-8")
        with pytest.raises(CodeError, match="whose source is not the one that was recorded, so it is not imported"):
            icecore.load_run(stranger, allow_code=f"{MODULE}_package.inner")
        file.write_text(text, encoding="utf-8")
    assert not mark.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "place",
    [
        "config: poolings",
        "config: heads",
        "config: word poolings",
        "config: plan",
        "config: plan of an architecture",
        "head.json: pooling",
        "head.json: layers",
        "scores: a recorded module",
        "scores: head",
        "scores: a sweep",
        "scores: a recorded submodule",
        "scores: a recorded name",
        "scores: a recorded head",
        "scores: __main__ of a package",
        "cache: plan",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_without_the_gate_it_would_be_imported(
    place: str, stranger: Path, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The walk above sees an open gate; from the other places no code is imported at all."""
    monkeypatch.setattr("extract.registry.import_code", lambda module, *_, **__: import_module(module))
    PLACES[place](stranger)
    [cache] = map(str, (tmp_path / "caches").glob("*.h5"))
    for argv in commands(str(stranger), str(stranger / "config.yaml"), cache, tmp_path):
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"texts": ["Ice.", "Snow."]}\n'))
        with suppress(Exception):
            main(argv)
        if mark.exists():
            return
    for call in functions(stranger, cache, tmp_path):
        with suppress(Exception):
            call()
        if mark.exists():
            return
    pytest.fail(f"no command and no function imports what stands in {place}")
