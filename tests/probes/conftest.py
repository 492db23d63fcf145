"""What the tests of probing share: planted latents, and a tiny decoder on disk."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.data.pair_task import PairTask
from probes.latents.text_latents import PairLatents
from tests.extract.tiny_decoders import save_decoder
from tests.probes.finished_run import Finished, write_config
from tests.probes.planted_latents import make_task, pair_data, plant
from tests.sketched import sketched


@pytest.fixture(scope="session")
def task() -> PairTask:
    """Pairs whose gold is planted in one layer."""
    return make_task()


@pytest.fixture(scope="session")
def cache(task: PairTask, tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """Latents of `task`; read-only."""
    return plant(tmp_path_factory.mktemp("planted") / "planted.h5", task)


@pytest.fixture
def data(cache: LatentCache, task: PairTask) -> PairLatents:
    """The pairs with their latents."""
    return pair_data(cache, task)


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama in hub layout, named `tiny-llama`."""
    return save_decoder(tmp_path_factory.mktemp("decoders") / "tiny-llama", max_position_embeddings=256)


@pytest.fixture(scope="session")
def read_json() -> Callable[[Path], Any]:
    """Read a JSON file strictly: NaN is no JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return lambda path: json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.fixture
def listing() -> Callable[[Path], list[str]]:
    """List every file under a folder."""
    return lambda folder: sorted(os.path.relpath(path, folder) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path, read_json: Callable[[Path], Any]
) -> Finished:
    """`icecore run tiny.yaml`, once for all tests; its figures are not rendered."""
    base = tmp_path_factory.mktemp("whole")
    config = write_config(base, decoder_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/somewhere/icecore", "run", str(config)])
        with sketched():
            assert main() == 0
    folder = base / "runs" / "tiny"
    return Finished(base, config, folder, read_json(folder / "scores.json"))
