"""What earlier versions wrote opens, is found again, and gives the numbers that it gave.

`tests/archive` holds what `make_archive` wrote with the code of its time. A head that is found keeps its files; one
that is fitted again gets new ones.
"""

import json
import math
import platform
import shutil
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import icecore
from probes.cli.main import main
from tests.golden.record import processor
from tests.probes.finished_run import stamps, without_times
from tests.sketched import sketched

ARCHIVE = Path(__file__).parent / "archive" / "first.tar.xz"
OF_MACHINE = ("versions", "products")
LATER = ("baselines", "over_cosine", "grid")
"""Fields that the archive is older than; `task.score_range` of numbers is another."""
COMMENTED = "config_sha256"
"""The seal of config.yaml, whose comments say where values came from; its settings are compared instead."""
TABLES = ("predictions.csv", "predictions_scored.csv")
MODULE = "my_parts"


pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def contents(unpacked: Path) -> Any:
    return json.loads((unpacked / "contents.json").read_text(encoding="utf-8"))


RUNS = (
    "pairs",
    "masked",
    "released",
    "own",
    "classes",
    "labelled",
    "numbers",
    "words",
    "tagged",
    "retrieval",
    "reranking",
    "clustering",
    "alike",
    "bitext",
    "odd",
    "plans-sweep",
)
OFTEN = ("own", "numbers")
"""Runs of the default suite; the others are `long`."""
EACH_RUN = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in RUNS]


@pytest.fixture(autouse=True)
def folder(unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The archive in a folder of its own, which is the working folder; its module of a user is not imported yet."""
    place = shutil.copytree(unpacked, tmp_path / "moved")
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with sketched():
        yield
    sys.modules.pop(MODULE, None)


def read_scores(run: str) -> dict[str, Any]:
    scores = without_times(json.loads(Path("runs", run, "scores.json").read_text(encoding="utf-8")))
    if scores.get("kind") == "numbers":
        scores["task"].pop("score_range", None)
    return {key: value for key, value in scores.items() if key not in (*OF_MACHINE, *LATER, COMMENTED)}


def read_settings(run: str) -> Any:
    return yaml.safe_load(Path("runs", run, "config.yaml").read_text(encoding="utf-8"))


def head_stamps(run: str) -> dict[str, int]:
    return {path: time for path, time in stamps(Path("runs", run)).items() if "heads" in Path(path).parts}


def numbers_in(value: Any) -> list[Any]:
    """List keys and values, nested ones too."""
    if isinstance(value, dict):
        return [part for key, inner in sorted(value.items()) for part in (key, *numbers_in(inner))]
    return [part for inner in value for part in numbers_in(inner)] if isinstance(value, list) else [value]


def require_equal(now: Any, then: Any, *, is_exact: bool) -> None:
    """Compare numbers, exactly or as another processor rounds them."""
    if is_exact:
        assert json.dumps(now, sort_keys=True) == json.dumps(then, sort_keys=True)
        return
    for one, other in zip(numbers_in(now), numbers_in(then), strict=True):
        assert one == other or math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)


def require_finding(contents: Any, run: str) -> None:
    """Skip where nothing can be found: versions are part of what a cache is, and Python's of a user's code."""
    here = {package: version(package) for package in contents["versions"]}
    if here != contents["versions"]:
        pytest.skip(f"the archive is of {contents['versions']}; caches of other versions are not found: {here}")
    if run == "own" and platform.python_version_tuple()[:2] != tuple(contents["python"].split(".")[:2]):
        pytest.skip(f"Python {contents['python']} compiles a user's code to another digest than this one")


def test_every_cache_opens_and_is_whole() -> None:
    texts = Path("texts.txt").read_text(encoding="utf-8").splitlines()
    caches = [*Path("caches").glob("*.h5"), Path("caches/shards")]
    for path in caches:
        cache = icecore.open_cache(path)
        cache.verify()
        assert len(cache.layers) > 1
    assert len(caches) >= len(RUNS)
    assert main(["inspect", "caches/shards", "--verify"]) == 0
    assert len(icecore.open_cache("caches/shards").rows_of(texts)) == 20


def test_every_run_is_read_as_a_frame_of_its_scores() -> None:
    frame = icecore.results([f"runs/{run}" for run in RUNS])
    for run in RUNS:
        heads = frame[frame["run"].isin([run, read_scores(run)["name"]]) & frame["record"].eq("score")]["head"]
        assert len(heads), run


@pytest.mark.parametrize("run", EACH_RUN)
def test_a_config_finds_its_cache_and_heads_and_gives_the_same_numbers(run: str, contents: Any) -> None:
    require_finding(contents, run)
    [command] = [args for args in contents["commands"] if args[1] == f"{run.removesuffix('-sweep')}.yaml"]
    assert next(Path("runs", run).glob("**/heads/*"), None), "no head was saved"
    before, heads, caches = read_scores(run), head_stamps(run), stamps(Path("caches"))
    settings = read_settings(run)
    tables = {name: path.read_bytes() for name in TABLES if (path := Path("runs", run, name)).is_file()}
    assert main(command) == 0
    assert read_settings(run) == settings
    assert head_stamps(run) == heads, "a head was fitted again"
    assert stamps(Path("caches")) == caches, "a cache was written again"
    is_exact = processor() == contents["processor"]
    require_equal(read_scores(run), before, is_exact=is_exact)
    if is_exact:
        assert {name: Path("runs", run, name).read_bytes() for name in tables} == tables


@pytest.mark.parametrize("run", EACH_RUN)
def test_new_rows_are_predicted_as_they_were(run: str, contents: Any) -> None:
    if run not in contents["scored"]:
        pytest.skip("it predicts no new rows")
    if run == "own":
        require_finding(contents, run)
    kind = contents["scored"][run]
    lines = Path(f"{kind}.txt").read_text(encoding="utf-8").splitlines()
    rows: list[Any] = [tuple(line.split("\t")) if kind == "pairs" else line for line in lines]
    rows = [line.split() for line in lines] if kind == "words" else rows
    loaded = icecore.load_run(f"runs/{run}", allow_code=MODULE if run == "own" else ())
    for name, then in contents["predictions"].items():
        if name.split()[0] == run:
            now = json.loads(json.dumps([*loaded.predict(rows, head=name.split()[1])], default=lambda x: x.tolist()))
            require_equal(now, then, is_exact=False)


COMMANDS = {
    "layers": ("layers", "runs/numbers", "--resamples", "100"),
    "layers of classes": ("layers", "runs/classes", "--resamples", "100"),
    "compare": ("compare", "runs/pairs", "runs/masked", "--out", "compared"),
    "compare across": ("compare", "runs/pairs", "runs/numbers", "--across"),
    "compare by layer": ("compare", "runs/pairs", "runs/masked", "--by-layer"),
    "geometry": ("geometry", "runs/masked", "runs/pairs", "--out", "geometry"),
    "export": ("export", "parquet", "runs/masked", "latents.parquet"),
    "predict": ("predict", "runs/masked", "pairs.txt", "--out", "predicted.csv"),
    "recorded config": ("run", "runs/masked/config.yaml"),
    "fit": ("fit", "pairs.yaml", "--head", "layer-cosine"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_read_what_is_there(name: str) -> None:
    assert main(COMMANDS[name]) == 0


@pytest.mark.long
def test_recorded_layers_stay_in_the_report() -> None:
    before = Path("runs/pairs/layers.json").read_text(encoding="utf-8")
    icecore.write_report("runs/pairs")
    assert "in numbers" in Path("runs/pairs/report.html").read_text(encoding="utf-8")
    assert Path("runs/pairs/layers.json").read_text(encoding="utf-8") == before


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_exported_encoder_gives_the_latents_of_its_cache() -> None:
    package: Any = pytest.importorskip("sentence_transformers.base.modules", reason="needs the extra")
    from probes.export.sentence_transformers import load_sentence_transformer

    texts = [str(text) for text in icecore.load_task("sts-sample").texts()[:4]]
    cache = icecore.extract_latents(
        icecore.load_decoder("tiny-llama"), texts, spec=icecore.ExtractionSpec(plan="nosink-bidirectional:1")
    )
    expected = cache.gather(cache.rows_of(texts), "mean", layers=["block_01"])[0].numpy()
    np.testing.assert_allclose(load_sentence_transformer("encoder").encode(texts), expected, atol=1e-4)
    [module] = json.loads(Path("encoder/modules.json").read_text(encoding="utf-8"))
    place, _, name = module["type"].rpartition(".")
    assert issubclass(getattr(import_module(place), name), package.InputModule), "what older files name"
