"""Checkpoints of a training are an axis: a tiny decoder is trained here, and a layer's score rises over its steps."""

import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torch import nn

from extract.decoders import fetch
from extract.decoders.decoder import Decoder, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, DecoderError, FetchError
from probes.report.scores import PlansScores
from probes.report.sweep_frames import layer_scores, points_frame
from probes.runs import sweep_caches
from probes.runs.grid import grid_of
from probes.runs.run import RunResult
from probes.runs.run_config import RunConfig, TaskSpec
from probes.runs.sweep_run import run_grid, sweep
from probes.runs.watcher import Watcher
from tests.extract.tiny_decoders import make_model, make_tokenizer, save_decoder

STEPS = (0, 15, 30, 60, 90, 120)
WORDS = ("a", "b", "c", "d")


def make_rows(n: int, seed: int) -> list[tuple[str, str]]:
    """Write texts that are of one class where exactly one of two words is in them: no sum over tokens tells that."""
    drawn, rows = random.Random(seed), []
    for number in range(n):
        marks = [bool(number & 1), bool(number & 2)]
        words = [drawn.choice(WORDS) for _ in range(3)]
        words += [mark if there else drawn.choice(WORDS) for mark, there in zip(("x", "y"), marks, strict=True)]
        drawn.shuffle(words)
        rows.append((" ".join(words), "odd" if sum(marks) == 1 else "even"))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny decoder to tell the classes at its top, and save it on the way."""
    folder = tmp_path_factory.mktemp("checkpoints")
    parts = {"train": make_rows(160, 0), "validation": make_rows(80, 1), "test": make_rows(80, 2)}
    lines = ["split,text,label", *(f"{split},{text},{label}" for split, rows in parts.items() for text, label in rows)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    model, tokenizer = make_model("llama").train(), make_tokenizer(adds_bos=True)
    torch.manual_seed(0)
    top = nn.Linear(32, 2)
    optimiser = torch.optim.AdamW([*model.parameters(), *top.parameters()], lr=1e-2)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            model.save_pretrained(folder / f"step{step}")
            tokenizer.save_pretrained(folder / f"step{step}")
        texts, names = zip(*make_rows(96, seed=100 + step), strict=True)
        tokens = tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="right")
        mask = tokens["attention_mask"]
        states = model.model(**tokens).last_hidden_state
        pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        loss = nn.functional.cross_entropy(top(pooled), torch.tensor([name == "odd" for name in names]).long())
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    return folder


@pytest.fixture(scope="module")
def config(folder: Path) -> RunConfig:
    return RunConfig(
        name="steps",
        decoder=DecoderSpec(str(folder / "step0")),
        task=TaskSpec("class-files", {"files": str(folder / "rows.csv")}),
        heads={"logistic-probe": {}},
        bootstrap=100,
        caches=str(folder / "caches"),
        runs=str(folder / "runs"),
    )


@pytest.fixture(scope="module")
def swept(folder: Path, config: RunConfig) -> RunResult[PlansScores]:
    return sweep(config, {"decoder.name": [str(folder / f"step{step}") for step in STEPS]})


@pytest.mark.long
def test_the_score_of_the_top_rises_over_the_checkpoints(swept: RunResult[PlansScores]) -> None:
    scores = layer_scores(
        points_frame(swept.record), "logistic-probe", swept.record.chosen["logistic-probe"].result.metric
    )
    wide = scores.pivot(index="layer", columns="decoder.name", values="value")
    top = wide.loc["final_norm"]
    assert set(top.index) == {f"step{step}" for step in STEPS}
    assert top["step0"] < 0.8
    assert top["step120"] > 0.95
    assert top["step120"] > top["step30"] > top["step0"]
    assert wide.loc["embedding"].max() < 0.8  # no sum over tokens tells the classes
    assert swept.record.chosen["logistic-probe"].point["decoder.name"] in ("step60", "step90", "step120")
    names = {path.name for path in swept.folder.glob("*.png")}
    assert names == {"layers_logistic_probe.png", "points_logistic_probe.png"}


@pytest.mark.long
def test_every_checkpoint_is_on_record(swept: RunResult[PlansScores]) -> None:
    digests = {row.decoder["weight_digest"] for row in swept.record.plans if row.decoder is not None}
    assert len(digests) == len(STEPS)
    lead = swept.record.chosen["logistic-probe"].lead
    assert lead is not None
    assert lead.low > 0
    first = (swept.folder / "summary.md").read_text(encoding="utf-8").splitlines()[2]
    assert "a certain gain" in first


@pytest.mark.long
@pytest.mark.parametrize("plan", ["causal", "nosink-bidirectional:{third}"])
def test_checkpoints_that_had_to_be_fetched_are_removed_again(
    plan: str, config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the depth of each, of which the plan is a share, is read before, and where it cannot be loaded."""
    there = {("somebody/steps", f"step{n}") for n in (30, 60, 90)}
    present: set[tuple[str, str | None]] = {("somebody/steps", "step60")}
    removed: list[tuple[str, str | None]] = []

    def locate(name: str, *, revision: str | None = None, report: object = None) -> fetch.Located:
        del report
        if (name, revision) not in there:
            raise FetchError(f"there is no revision {revision!r}")
        return fetch.Located(name, "folder", str(folder / str(revision)), str(revision))

    def load(spec: DecoderSpec, **options: Any) -> Decoder:
        decoder = load_decoder(spec, **options)
        present.add((spec.name, spec.revision))
        if spec.revision == "step90":
            raise DecoderError("its weights are no numbers")
        return decoder

    def remove(name: str, revision: str | None) -> str:
        removed.append((name, revision))
        return "removed"

    monkeypatch.setattr("extract.decoders.decoder.locate_decoder", locate)
    monkeypatch.setattr(sweep_caches, "load_decoder", load)
    monkeypatch.setattr(sweep_caches, "is_fetched", lambda name, revision: (name, revision) in present)
    monkeypatch.setattr(sweep_caches, "remove_fetched", remove)
    config = replace(config, name="fetched", decoder=replace(config.decoder, name="somebody/steps"), runs=str(tmp_path))
    over = ["decoder.revision=step30,step31,step60,step90", f"plan={plan}"]
    result = sweep(config, over, remove_decoders=True)
    # step60 was there before, and step31 never came
    assert removed == [("somebody/steps", "step30"), ("somebody/steps", "step90")]
    assert result.record.grid is not None
    failure, other = result.record.grid.failed
    assert dict(other.point) == {"revision": "step90", "plan": plan}
    assert dict(failure.point) == {"revision": "step31", "plan": plan}
    assert "there is no revision 'step31'" in failure.why
    assert [row.point["revision"] for row in result.record.plans] == ["step30", "step60"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_HOME", str(tmp_path / "home"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Serve two revisions of a decoder, and list what is downloaded; what is there is in `tmp_path / "here"`."""
    downloads: list[str] = []
    here = tmp_path / "here"
    here.mkdir()
    for n in (1, 2):
        save_decoder(tmp_path / f"step{n}", seed=n)

    def locate(name: str, *, revision: str | None = None, report: object = None) -> fetch.Located:
        del report
        if not (tmp_path / str(revision)).exists():
            raise FetchError(f"there is no revision {revision!r}")
        return fetch.Located(name, "hub", str(tmp_path / str(revision)), f"commit of {revision}")

    def load(spec: DecoderSpec, **options: Any) -> Decoder:
        decoder = load_decoder(spec, **options)
        if not (here / str(spec.revision)).exists():
            downloads.append(str(spec.revision))
            (here / str(spec.revision)).mkdir()
        return decoder

    def remove(_: str, revision: str) -> str:
        shutil.rmtree(here / revision)
        return "removed"

    monkeypatch.setattr("extract.decoders.decoder.locate_decoder", locate)
    monkeypatch.setattr(sweep_caches, "load_decoder", load)
    monkeypatch.setattr(sweep_caches, "is_fetched", lambda _, revision: (here / revision).exists())
    monkeypatch.setattr(sweep_caches, "remove_fetched", remove)
    return downloads


@pytest.mark.parametrize("search", ["", "halving"])
def test_a_checkpoint_is_fetched_once_and_removed_also_after_a_kill(
    hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    """A sweep with a failed checkpoint is computed again, and one that was killed leaves what it fetched."""
    config = RunConfig(
        name="steps",
        decoder=DecoderSpec("somebody/steps"),
        task=TaskSpec("sts-sample", {}, pairs=16),
        heads={"layer-cosine": {}},
        bootstrap=100,
        caches=str(tmp_path / "caches"),
        runs=str(tmp_path / "runs"),
    )
    options: dict[str, Any] = {"search": search, "budget": 1.0} if search else {}
    over = ["decoder.revision=step1,step2,step3"]

    class KilledError(Exception):
        """What a kill is here."""

    def kill(*_: object, **__: object) -> None:
        raise KilledError

    if search:  # what is refused fetches nothing, and notes nothing
        with pytest.raises(ConfigError, match="Set --budget to"):
            sweep(config, over, remove_decoders=True, search=search, budget=0.01)
        assert not (tmp_path / "home").exists()
    with monkeypatch.context() as patched:
        patched.setattr(sweep_caches, "_extract_families", kill)
        with pytest.raises(KilledError):
            sweep(config, over, remove_decoders=True, **options)
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["step1"]
    assert (tmp_path / "home" / sweep_caches.FETCHED).read_text() == "somebody/steps at step1\n"
    sweep(config, over, remove_decoders=True, **options)
    assert hub == ["step1", "step2"]
    assert not list((tmp_path / "here").iterdir())
    assert not (tmp_path / "home" / sweep_caches.FETCHED).exists()


def test_nothing_is_removed_where_the_hub_does_not_say_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise fetch.HubError("not reachable (TimeoutError)")

    monkeypatch.setattr(fetch, "resolve_revision", fail)
    monkeypatch.setattr(fetch, "local_snapshot", lambda *_: None)
    assert fetch.is_fetched("somebody/steps", "step30")
    assert fetch.remove_fetched("somebody/steps", "step30").endswith("the hub does not say which commit it is")


def test_only_what_the_hub_cache_holds_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / "hub"
    base = hub / "models--somebody--steps"
    for commit, revision in (("a" * 40, "step30"), ("b" * 40, "step60")):
        snapshot = base / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            blob = base / "blobs" / f"{commit[0]}-{name}"
            blob.parent.mkdir(exist_ok=True)
            blob.write_text(name, encoding="utf-8")
            (snapshot / name).symlink_to(blob)
        (base / "refs").mkdir(exist_ok=True)
        (base / "refs" / revision).write_text(commit, encoding="utf-8")
    monkeypatch.setattr(fetch, "_snapshot", lambda *_, **__: base / "snapshots" / ("a" * 40))
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", partial(huggingface_hub.scan_cache_dir, hub))
    assert fetch.is_fetched("somebody/steps", "step30")
    assert "removed again" in fetch.remove_fetched("somebody/steps", "step30")
    assert not (base / "snapshots" / ("a" * 40)).exists()
    assert (base / "snapshots" / ("b" * 40) / "config.json").is_file()
    mine = tmp_path / "mine"
    mine.mkdir()
    assert fetch.is_fetched(str(mine))
    assert fetch.remove_fetched(str(mine)).endswith("nothing to remove")
    assert mine.is_dir()


def test_folders_of_the_user_are_never_removed(config: RunConfig, tmp_path: Path, decoder_folder: Path) -> None:
    """With the real functions: decoders that are folders, one with random weights, stay byte for byte."""
    folders = [Path(shutil.copytree(decoder_folder, tmp_path / name)) for name in ("a", "b")]
    before = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    names = [*map(str, folders), f"{folders[0]}@random-0"]
    config = replace(config, name="mine", runs=str(tmp_path / "runs"), caches=str(tmp_path / "caches"))
    said: list[str] = []
    over = ["decoder.name=" + ",".join(names)]
    run_grid(config, grid_of(config, over), removes_decoders=True, watcher=Watcher(say=said.append))
    assert {path: path.read_bytes() for path in before} == before
    assert not any("removed" in line for line in said)
    for name in names:
        assert fetch.is_fetched(name)
        assert fetch.remove_fetched(name).endswith("nothing to remove")
    assert {path: path.read_bytes() for path in before} == before
