"""What the tests of probing share: planted latents, and a tiny decoder on disk."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.cache import LatentCache
from probes.data import PairLatents
from probes.tasks import PairTask
from tests.extract.tiny_decoders import save_decoder
from tests.probes.planted_latents import make_task, pair_data, plant


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
