"""Heads fitted on shards are those fitted on one file, whatever the order of its rows."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extract.files import digest_rows
from extract.inputs.joined_text import digest_texts
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import CachePart, compose_cache, extract_shards
from extract.store.cache import LatentCache, ShardedCache, describe_shard
from extract.store.manifest import Manifest
from extract.store.reader import ShardIndex, shared_identity
from probes.data.task import Task
from probes.heads.result import HeadResult
from tests.extract.tiny_decoders import make_decoder
from tests.probes.data.planted_classes import make_class_task, plant_classes
from tests.probes.heads.evaluating import as_text, evaluate, make_setting
from tests.probes.heads.words.planted_words import make_task as make_word_task
from tests.probes.planted_latents import make_task, plant

SMALL = {"train": 60, "validation": 30, "test": 20}
CASES: dict[str, dict[str, Any]] = {
    "cosine-mlp": {"max_epochs": 2, "batch_size": 20},
    "siamese-cosine": {"max_epochs": 2, "batch_size": 20, "bottleneck": 4, "hidden": 8},
    "logistic-probe": {"pooling": "mean", "Cs": [0.1, 10.0]},
}

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def into_shards(cache: LatentCache, texts: Sequence[str], folder: Path, *, window: int) -> ShardedCache:
    """Copy the latents of texts, in their order, from one file into shards."""
    index = ShardIndex(shared_identity(cache.identity), cache.manifest.provenance, window)
    for number, start in enumerate(range(0, len(texts), window)):
        part = texts[start : start + window]
        identity = replace(cache.identity, n_rows=len(part), text_digest=digest_rows(digest_texts(part)))
        manifest = Manifest(identity, cache.manifest.provenance)
        path = compose_cache([CachePart(cache, part)], manifest=manifest, folder=folder).path
        shard = describe_shard(path, window=number)
        path.replace(folder / shard.file)
        index = index.with_shard(shard)
    replace(index, is_complete=True).write(folder)
    return ShardedCache(folder)


def without_seconds(result: HeadResult) -> str:
    return re.sub(r'"seconds": [\d.e-]+', "", as_text(result))


@pytest.mark.parametrize("name", CASES)
def test_training_from_shards_is_training_from_one_file(name: str, tmp_path: Path) -> None:
    task: Task
    if name == "logistic-probe":
        task = made = make_class_task(sizes=SMALL)
        one = plant_classes(tmp_path / "one.h5", made)
    else:
        task = pairs = make_task(sizes=SMALL)
        one = plant(tmp_path / "one.h5", pairs)
    texts = [str(text) for text in task.texts()]
    random.Random(3).shuffle(texts)
    shards = into_shards(one, texts, tmp_path / "shards", window=37)
    assert shards.n_shards > 2
    assert shards.rows_of(texts[:5]).tolist() != one.rows_of(texts[:5]).tolist()
    found = [
        evaluate(name, CASES[name], make_setting(each, task, tmp_path / str(k))) for k, each in enumerate((one, shards))
    ]
    assert without_seconds(found[0]) == without_seconds(found[1])


@pytest.mark.long
def test_words_of_shards_train_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With windows of the same size one file holds the very same latents, so that scores agree to the last digit."""
    task, decoder = make_word_task(sizes={"train": 20, "validation": 8, "test": 6}), make_decoder(adds_bos=True)
    spec = ExtractionSpec(words=WordSpec(("last",)))
    monkeypatch.setattr("extract.run.extraction.WINDOW_TEXTS", 12)
    one = extract_latents(decoder, task.texts(), spec=spec, folder=tmp_path)
    shards = extract_shards(decoder, task.texts(), spec=spec, folder=tmp_path / "shards", window=12)
    assert shards.n_shards == 3
    options = {"learning_rate": 1e-2, "max_epochs": 2, "epoch_steps": 1, "batch_size": 8, "chunk_words": 30}
    settings = [make_setting(each, task, tmp_path / str(k)) for k, each in enumerate((one, shards))]
    found = [without_seconds(evaluate("token-classifier", options, each)) for each in settings]
    assert found[0] == found[1]
