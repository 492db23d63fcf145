"""What a run works with: its corpus only where a head asks for it, autoencoders once per pooling."""

from pathlib import Path
from typing import Any

import pytest

import probes.data.task
from extract.errors import ConfigError, TaskError
from extract.store.cache import LatentCache
from probes.data.task import Corpus
from probes.heads.layer_head import load_head
from probes.heads.pair_heads import FOLDER
from probes.runs.run import EncoderStore
from probes.runs.run_config import PretrainingSpec, RunConfig, obtain_corpus
from probes.runs.watcher import SILENT, Watcher
from tests.probes.corpus_latents import write_corpus
from tests.probes.finished_run import forbid

AUTOENCODER: dict[str, Any] = {"bottleneck": 3, "max_epochs": 1, "batch_size": 40}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """A corpus of 120 texts; read-only."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c.h5")


def make_config(heads: dict[str, dict[str, Any] | None], *, caches: Path = Path("caches"), **how: Any) -> RunConfig:
    spec = PretrainingSpec(**{"corpus": "sts-sample", "texts": 20, "autoencoder": AUTOENCODER, "seed": 4, **how})
    return RunConfig(heads=heads, pretraining=spec, caches=str(caches))


@pytest.mark.parametrize(
    ("heads", "is_needed"),
    [
        ({"layer-cosine": None, "cosine-mlp": {}}, False),
        ({"siamese-cosine": {"start": "fresh"}}, False),
        ({"siamese-cosine": {"start": "frozen"}}, True),
        ({"cosine-mlp": {}, "siamese-cosine": {"start": "pretrained"}}, True),
    ],
)
def test_the_corpus_is_loaded_where_a_head_starts_from_it(
    heads: dict[str, dict[str, Any] | None], is_needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(heads)
    if not is_needed:
        forbid(monkeypatch, probes.data.task, "load_corpus")
    found = obtain_corpus(config)
    assert (found is not None) == is_needed
    if found is not None:
        assert (found.name, len(found.texts())) == ("sts-sample", 20)


def test_only_heads_of_pairs_start_from_autoencoders() -> None:
    """A token head has a `start` too, which names how its weights begin."""
    words: dict[str, Any] = {"task": {"name": "words-sample"}, "heads": {"token-classifier": {"start": "prior"}}}
    corpus: dict[str, Any] = {"pretraining": {"corpus": "sts-sample"}}
    assert obtain_corpus(RunConfig(**words, **corpus)) is None
    assert RunConfig(**words, random_decoder=True).random_decoder
    with pytest.raises(ConfigError, match="head 'siamese-cosine' starts from autoencoders of the trained decoder"):
        RunConfig(**corpus, heads={"siamese-cosine": {"start": "frozen"}}, random_decoder=True)


def test_without_a_corpus_there_is_none() -> None:
    assert obtain_corpus(RunConfig()) is None


def test_autoencoders_are_fitted_once_per_pooling_as_the_run_says(corpus: LatentCache, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    watcher = Watcher(epochs=lambda head, seed: lambda epoch, _: told.append((head, seed, epoch)))
    shelf = EncoderStore(make_config({"siamese-cosine": {"start": "frozen"}}, caches=tmp_path), corpus, watcher)
    mean, both = shelf("mean"), shelf("mean+last")
    assert shelf("mean") is mean
    assert shelf("mean+last") is both
    assert told == [("autoencoder (mean)", 4, 1), ("autoencoder (mean+last)", 4, 1)]
    assert (mean.record.details["seed"], mean.head.codes) == (4, (3,) * 5)
    assert both.head.n_layers == 10
    kept = {load_head(folder).record.pooling for folder in (tmp_path / FOLDER).iterdir()}
    assert kept == {"mean", "mean+last"}


def test_what_scores_tell_of_them(corpus: LatentCache, tmp_path: Path) -> None:
    config = make_config({"siamese-cosine": {"start": "frozen"}}, caches=tmp_path)
    shelf = EncoderStore(config, corpus, SILENT)
    told = shelf.describe(Corpus("mine", "made up", ("a",)))
    assert told["autoencoders"] == {}
    shelf("last")
    told = shelf.describe(Corpus("mine", "made up", ("a",)))
    assert told["corpus"] == {"name": "mine", "source": "made up"}
    assert told["cache"]["n_rows"] == 120
    assert set(told["autoencoders"]) == {"last"}
    assert len(told["autoencoders"]["last"]["held_out_losses"]) == 5
    assert "fit_id" not in told["autoencoders"]["last"]
    assert EncoderStore(config, None, SILENT).describe(None) == {"corpus": {}, "cache": {}, "autoencoders": {}}


def test_without_the_latents_of_a_corpus_there_are_none() -> None:
    shelf = EncoderStore(make_config({"siamese-cosine": {"start": "frozen"}}), None, SILENT)
    with pytest.raises(TaskError, match=r"there is no corpus to fit autoencoders on; set `pretraining\.corpus`"):
        shelf("mean")
