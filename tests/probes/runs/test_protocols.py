"""Protocols: what may choose an epoch, how often one looks, and that an optimistic number says so."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import probes.heads.pair_heads
from extract.errors import ConfigError, TaskError
from extract.inputs.tokens import TextEncoder
from extract.store.cache import LatentCache
from probes.data.pair_task import PairTask
from probes.fitting.fit_options import PROTOCOLS, ignore_epoch
from probes.heads.head_table import HEADS, PlannedRun, resolve_head
from probes.heads.layer_head import FitContext, load_head
from probes.runs.run import run
from probes.runs.run_config import PretrainingSpec, RunConfig, TaskSpec
from tests.extract.tiny_decoders import make_tokenizer
from tests.probes.finished_run import forbid
from tests.probes.planted_latents import make_task, plant


def evaluate_head(name: str, options: dict[str, Any], setting: FitContext) -> dict[str, Any]:
    """Return the scores of a head in their serial form."""
    resolved = resolve_head(name, options, protocol=setting.protocol)
    return HEADS[name].evaluate(resolved, setting, lambda _: ignore_epoch).to_dict()


SHORT: dict[str, Any] = {
    "max_epochs": 30,
    "hidden": 8,
    "learning_rate": 3e-2,
    "batch_size": 40,
    "pooling": "mean",
    "layers": "all",
}
QUICK = {**SHORT, "keep": "best", "every": 10, "patience": 30}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where heads are kept for the whole module."""
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def setting(cache: LatentCache, task: PairTask, folder: Path) -> FitContext:
    """One seed under FREEZE's released protocol."""
    return FitContext(cache, task, (0,), 100, "cpu", folder, protocol="freeze-released", has_details=False)


@pytest.fixture(scope="module")
def released(setting: FitContext) -> dict[str, Any]:
    """Scores of one head under that protocol."""
    return evaluate_head("cosine-mlp", QUICK, setting)


def test_a_protocol_that_chooses_on_anything_but_validation_is_optimistic() -> None:
    for name, protocol in PROTOCOLS.items():
        assert bool(protocol.optimistic_because) == (protocol.selection != "validation"), name
        assert ("optimistic" in protocol.description) == bool(protocol.optimistic_because)
    assert PROTOCOLS[RunConfig().protocol].selection == "validation"


def test_every_tenth_epoch_is_tested(released: dict[str, Any]) -> None:
    [seed] = released["seeds"]
    history = seed["history"]
    assert len(history) == 30
    looks = [epoch for epoch, step in enumerate(history, start=1) if "test_pearson" in step]
    assert looks == [10, 20, 30]
    assert all(set(step) == {"train_loss"} for epoch, step in enumerate(history, start=1) if epoch not in looks)
    assert all(set(history[epoch - 1]) == {"train_loss", "test_pearson", "test_spearman"} for epoch in looks)


def test_the_best_of_them_is_the_one_that_is_reported(released: dict[str, Any], setting: FitContext) -> None:
    [seed] = released["seeds"]
    found = {epoch: step["test_pearson"] for epoch, step in enumerate(seed["history"], start=1) if len(step) > 1}
    assert seed["best_epoch"] == max(found, key=lambda epoch: found[epoch])
    assert seed["scores"]["test"]["pearson"] == pytest.approx(max(found.values()), abs=1e-5)
    assert released["summary"]["test"]["pearson"]["mean"] == pytest.approx(max(found.values()), abs=1e-5)
    assert len(set(found.values())) == 3  # there was something to choose between
    record = load_head(setting.folder / "cosine-mlp" / "seed_0").record
    assert record.details["best_epoch"] == seed["best_epoch"]


def test_only_heads_with_epochs_are_optimistic(released: dict[str, Any], setting: FitContext) -> None:
    assert released["is_optimistic"] is True
    assert evaluate_head("layer-cosine", {}, setting)["is_optimistic"] is False
    honest = replace(setting, protocol="icecore", folder=setting.folder / "honest")
    found = evaluate_head("cosine-mlp", {**SHORT, "max_epochs": 2}, honest)
    assert found["is_optimistic"] is False
    assert all({"validation_pearson"} <= set(step) for step in found["seeds"][0]["history"])


def test_a_last_epoch_is_chosen_by_nothing(setting: FitContext, tmp_path: Path) -> None:
    found = evaluate_head("cosine-mlp", {**SHORT, "max_epochs": 3}, replace(setting, folder=tmp_path))
    [seed] = found["seeds"]
    assert (seed["best_epoch"], len(seed["history"])) == (3, 3)
    assert (found["is_optimistic"], found["selection"]) == (False, "nothing to choose")
    assert not any(key.startswith("test") for step in seed["history"] for key in step)


LATENTS = {"pooling": "last", "layers": ("blocks",)}
RUNGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "first": (
        "cosine-mlp",
        {},
        {
            "batch_size": 32,
            "max_epochs": 100,
            "keep": "last",
            "learning_rate": 3e-4,
            "weight_decay": 0.01,
            "hidden": 128,
            "loss": "mse",
            "activation": "relu",
            "cosine_scaling": "global",
            "standardises_latents": False,
        },
    ),
    "second": (
        "siamese-cosine",
        {},
        {
            "batch_size": 32,
            "max_epochs": 100,
            "keep": "best",
            "every": 1,
            "learning_rate": 3e-5,
            "weight_decay": 0.01,
            "loss": "mse",
            "encoder": "deep-mlp",
            "bottleneck": 512,
            "standardises_latents": False,
        },
    ),
    "third": (
        "siamese-cosine",
        {"start": "pretrained", "loss": "mse"},
        {
            "batch_size": 128,
            "max_epochs": 150,
            "every": 10,
            "learning_rate": 3e-4,
            "weight_decay": 0.0,
            "loss": "mse",
        },
    ),
    "fourth": (
        "siamese-cosine",
        {"start": "pretrained"},
        {
            "batch_size": 128,
            "max_epochs": 150,
            "every": 10,
            "learning_rate": 3e-4,
            "weight_decay": 0.0,
            "loss": "log-variance",
        },
    ),
}


@pytest.mark.parametrize("rung", RUNGS)
def test_the_released_protocol_sets_each_rung(rung: str) -> None:
    name, given, wanted = RUNGS[rung]
    resolved = resolve_head(name, given, protocol="freeze-released")
    found = {**resolved.options, **vars(resolved.values[1])}
    assert {key: found[key] for key in wanted} == wanted
    assert found["keep"] == "last" or found["patience"] >= found["max_epochs"]  # none stops early
    assert {"pooling": resolved.pooling, "layers": resolved.layers} == LATENTS
    mine = resolve_head(name, {**given, "learning_rate": 0.5}, protocol="freeze-released")
    assert mine.options == {**resolved.options, "learning_rate": 0.5}  # a config has the last word
    plain = resolve_head(name, given)
    assert plain.options == given  # the library's own head is another


def test_the_start_of_a_token_head_is_no_start_from_autoencoders() -> None:
    assert resolve_head("token-classifier", {"start": "prior"}, protocol="magnet").options.steps == 4000


def test_the_released_protocol_extracts_and_pretrains_as_freeze_does() -> None:
    config = RunConfig(
        protocol="freeze-released", pretraining=PretrainingSpec(corpus="class-sample", autoencoder={"max_epochs": 3})
    )
    assert config.extraction.template.bos == "force"
    assert (config.extraction.poolings, config.extraction.layers) == (("last",), ("blocks",))
    chosen = replace(RunConfig().extraction, poolings=("last", "mean"))
    assert RunConfig(protocol="freeze-released", extraction=chosen).extraction.poolings == ("last", "mean")
    options = config.pretraining.autoencoder
    assert options["max_epochs"] == 3
    assert (options["encoder"], options["standardises_latents"], options["batch_size"]) == ("normed-mlp", False, 64)
    assert RunConfig(protocol="freeze-released").pretraining == PretrainingSpec()
    assert RunConfig(pretraining=PretrainingSpec(corpus="class-sample")).pretraining.autoencoder == {}


def test_a_head_kept_under_one_protocol_is_not_served_under_another(
    released: dict[str, Any], setting: FitContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, probes.heads.pair_heads, "fit_head")
    again = evaluate_head("cosine-mlp", QUICK, setting)
    assert json.dumps(again, sort_keys=True) == json.dumps(released, sort_keys=True)  # NaN is not equal to itself
    with pytest.raises(AssertionError, match="fit_head was called"):
        evaluate_head("cosine-mlp", SHORT, replace(setting, protocol="icecore"))


def test_a_fit_of_fewer_than_ten_epochs_is_tested_at_its_end(setting: FitContext, tmp_path: Path) -> None:
    found = evaluate_head("cosine-mlp", {**QUICK, "max_epochs": 4}, replace(setting, folder=tmp_path))
    assert found["seeds"][0]["best_epoch"] == 4


def test_the_split_that_chooses_must_be_there(tmp_path: Path) -> None:
    task = make_task(sizes={"train": 60, "validation": 40})
    resolved = resolve_head("cosine-mlp", QUICK)
    HEADS["cosine-mlp"].check(task, resolved, PlannedRun())
    with pytest.raises(TaskError, match="task 'planted' has no split 'test', which every head needs; add rows to it"):
        HEADS["cosine-mlp"].check(task, resolved, PlannedRun("freeze-released"))
    cache = plant(tmp_path / "c.h5", task)
    setting = FitContext(cache, task, (0,), 100, "cpu", tmp_path, protocol="freeze-released")
    with pytest.raises(TaskError, match="has no split 'test'; it has: train, validation"):
        evaluate_head("cosine-mlp", QUICK, setting)


@pytest.mark.long
def test_a_run_marks_optimistic_numbers_wherever_they_stand(
    cache: LatentCache, task: PairTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskSpec, "load", lambda *_: task)
    config = RunConfig(
        name="released",
        heads={"layer-cosine": {}, "cosine-mlp": {**QUICK, "pooling": "last", "max_epochs": 10}},
        bootstrap=100,
        protocol="freeze-released",
        runs=str(tmp_path),
    )
    with pytest.raises(ConfigError, match="does not hold what protocol 'freeze-released' extracts"):
        run(config, cache=cache)
    monkeypatch.setitem(cache.identity.template, "bos", "force")
    folder = run(config, cache=cache).folder
    text = (folder / "summary.md").read_text(encoding="utf-8")
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    assert scores["protocol"] == "freeze-released"
    assert {name: result["is_optimistic"] for name, result in scores["heads"].items()} == {
        "layer-cosine": False,
        "cosine-mlp": True,
    }
    assert (folder / "figures" / "cosine_mlp_history.png").is_file()
    assert "| cosine-mlp (optimistic) |" in text
    assert "| layer-cosine (" in text
    assert "| layer-cosine (optimistic)" not in text
    assert "> `cosine-mlp` is **optimistic**: the epoch is chosen on the test split that is reported" in text
    assert "nothing was chosen on test" not in text


@pytest.mark.parametrize(
    ("task", "head", "n_tokens"), [("class-sample", "logistic-probe", 512), ("words-sample", "token-classifier", 32)]
)
def test_texts_are_cut_as_look_both_ways_cuts_them(task: str, head: str, n_tokens: int) -> None:
    values: dict[str, Any] = {"task": TaskSpec(task), "heads": {head: {}}}
    lengths = []
    for protocol in ("look-both-ways", "icecore"):
        template = RunConfig(**values, protocol=protocol).extraction.template
        [found] = TextEncoder(make_tokenizer(), template, window=4096)(["ice " * 600])
        lengths.append(len(found.ids))
        assert found.is_truncated == (protocol == "look-both-ways")
    assert lengths[0] == n_tokens
    assert lengths[1] >= 600
