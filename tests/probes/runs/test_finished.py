"""A run folder from anybody: nothing in it is run, no name leads out of it, and whatever is damaged is one sentence."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import probes.runs.predict
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import CacheIdentityError, DecoderError, HeadError, IcecoreError, UnknownNameError
from extract.files import digest_json
from probes.cli.main import main
from probes.heads.layer_head import load_head
from probes.heads.pair_heads import PairFits
from probes.runs.folder import RunFolder
from probes.runs.predict import load_scorer, read_run_folder
from tests.probes.finished_run import Finished, edit_config, edit_scores, without_times

PAIRS = [("Ice is cold.", "Snow is white.")]


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """A run folder to spoil."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def write_malicious(decoder: Path, folder: Path) -> Path:
    """Write a checkpoint that comes with code, which leaves a mark when it is run."""
    shutil.copytree(decoder, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "code.py").write_text(f"open({str(folder / 'mark')!r}, 'w').close()\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("place", ["poolings", "words", "plan", "heads"])
def test_a_name_of_code_that_was_not_recorded_is_not_imported(
    copy: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    (copy / "smuggled.py").write_text(f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(copy))
    name, changes = (
        "smuggled:part",
        {
            "poolings": lambda config: config["extraction"].update(poolings=[name]),
            "words": lambda config: config["extraction"]["words"].update(poolings=[name]),
            "plan": lambda config: config["extraction"].update(plan=f"extra/{name}:2"),
        },
    )
    if place in changes:
        edit_config(copy, changes[place])
    else:
        edit_scores(copy, lambda scores: scores["heads"].update({name: scores["heads"]["layer-cosine"]}))
    with pytest.raises(HeadError, match="names 'smuggled:part', which is not among the code that it recorded"):
        read_run_folder(copy)
    assert not mark.exists()


def test_a_saved_head_imports_nothing(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, folder = tmp_path / "mark", copy / "heads" / "layer-cosine" / "seed_0"
    (tmp_path / "smuggled_head.py").write_text(f"open({str(mark)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    record = json.loads((folder / "head.json").read_text(encoding="utf-8"))
    del record["record_sha256"]
    record["name"] = "smuggled_head:part"
    record["record_sha256"] = digest_json(record)
    (folder / "head.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UnknownNameError, match=r"unknown head 'smuggled_head:part'.* import what registers it first"):
        load_head(folder)
    assert not mark.exists()


def test_a_run_folder_cannot_have_code_run(
    copy: Path,
    decoder_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    theirs = write_malicious(decoder_folder, tmp_path / "theirs")
    edit_config(copy, lambda config: config["decoder"].update(name=str(theirs), trust_remote_code=True))
    with pytest.raises(DecoderError, match=r"never run because a run folder says so; .* add --trust-remote-code"):
        load_scorer(copy)
    assert main(["score", str(copy), "a", "b"]) == 1
    assert "add --trust-remote-code" in capsys.readouterr().err
    assert not (theirs / "mark").exists()
    asked: list[DecoderSpec] = []

    def refuse(spec: DecoderSpec) -> None:
        asked.append(spec)
        raise DecoderError("far enough.")

    monkeypatch.setattr(probes.runs.predict, "load_decoder", refuse)
    for argv in ([], ["--trust-remote-code"]):
        assert main(["score", str(copy), "a", "b", *argv]) == 1
    assert [spec.trust_remote_code for spec in asked] == [False, True]


@pytest.mark.parametrize(
    "spread",
    [{"device_map": {"": "disk"}, "max_memory": {"cpu": "1MB"}}, {"device_map": "balanced"}, {"tp_plan": "auto"}],
)
def test_a_run_does_not_say_where_a_decoder_is_held(
    spread: dict[str, Any], copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may have been another one, and a stranger's folder would be written to."""
    folder = {"offload_folder": str(tmp_path / "theirs")} if "device_map" in spread else {}
    edit_config(copy, lambda config: config["decoder"].update(device="auto", **spread, **folder))
    asked: list[DecoderSpec] = []

    def refuse(spec: DecoderSpec) -> None:
        asked.append(spec)
        raise DecoderError("far enough.")

    monkeypatch.setattr(probes.runs.predict, "load_decoder", refuse)
    assert main(["score", str(copy), "a", "b"]) == 1
    for spec in (*asked, RunFolder(copy).config.decoder):
        assert (spec.device_map, spec.max_memory, spec.offload_folder, spec.tp_plan) == ("auto", None, None, None)
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "/elsewhere", "layer-cosine/../../..", "", "autoencoder"])
def test_a_recorded_head_that_is_no_head_is_refused(name: str, copy: Path) -> None:
    edit_scores(copy, lambda scores: scores["heads"].update({name: scores["heads"]["layer-cosine"]}))
    with pytest.raises(HeadError, match=r"it names a head '.*', which this version does not know"):
        load_scorer(copy, head="layer-cosine")


@pytest.mark.parametrize("seed", ["../../../elsewhere", "/elsewhere", 1.5, True, None, [0]])
def test_a_recorded_seed_that_is_no_number_is_refused(seed: Any, copy: Path) -> None:
    edit_scores(copy, lambda scores: scores["heads"]["layer-cosine"]["seeds"][0].update(seed=seed))
    with pytest.raises(HeadError, match=r"`heads\.layer-cosine\.seeds\[0\]\.seed` is .*, not a whole number"):
        load_scorer(copy)


SPOILS: dict[str, Callable[[Path], object]] = {
    "a decoder that is no text": lambda folder: edit_config(folder, lambda c: c["decoder"].update(name=5)),
    "an adapter that is no text": lambda folder: edit_config(folder, lambda c: c["decoder"].update(adapter=[1])),
    "a plan that is no text": lambda folder: edit_config(folder, lambda c: c["extraction"].update(plan=5)),
    "no extraction": lambda folder: edit_config(folder, lambda c: c.pop("extraction")),
    "runs that are no text": lambda folder: edit_config(folder, lambda c: c.update(runs=5)),
    "a config that is a list": lambda folder: (folder / "config.yaml").write_text("[1]"),
    "a config that is no YAML": lambda folder: (folder / "config.yaml").write_text("a: [b"),
    "a config that is no text": lambda folder: (folder / "config.yaml").write_bytes(b"\xff\xfe\x00"),
    "nested brackets": lambda folder: (folder / "scores.json").write_text("[" * 100_000),
    "no heads": lambda folder: edit_scores(folder, lambda s: s.update(heads={})),
    "another kind": lambda folder: edit_scores(folder, lambda s: s.update(kind="nothing")),
    "no plan": lambda folder: edit_scores(folder, lambda s: s["cache"].pop("plan")),
    "no digest": lambda folder: edit_scores(folder, lambda s: s["decoder"].pop("weight_digest")),
    "a list for a cache": lambda folder: edit_scores(folder, lambda s: s.update(cache=[])),
    "a layer that is no text": lambda folder: edit_scores(
        folder, lambda s: s["heads"]["layer-cosine"]["chosen"].update(layer=7)
    ),
    "no seed": lambda folder: edit_scores(folder, lambda s: s["heads"]["layer-cosine"]["seeds"][0].pop("seed")),
}


@pytest.mark.parametrize("spoil", list(SPOILS))
def test_what_is_damaged_is_one_sentence(spoil: str, copy: Path) -> None:
    SPOILS[spoil](copy)
    with pytest.raises(IcecoreError, match=r"holds no finished run|unknown|allowed"):
        read_run_folder(copy)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("scores.json", '"n_resamples": 100', '"n_resamples": 101'),
        ("scores.json", '"pooling": "last"', '"pooling": "mean"'),
        ("scores.json", '"sha256": "', '"sha257": "'),
        ("config.yaml", "shift: false", "shift: true"),
        ("config.yaml", "storage_dtype: float32", "storage_dtype: float16"),
    ],
)
def test_a_changed_byte_is_noticed(copy: Path, name: str, old: str, new: str) -> None:
    text = (copy / name).read_text(encoding="utf-8")
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(HeadError, match=f"{name} was changed after the run had ended, .*; run it again"):
        load_scorer(copy)


@pytest.mark.long
def test_running_again_repairs_a_changed_folder(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", finished.scores["command"].split())  # the folder serves other tests too
    path = finished.folder / "scores.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"pooling": "last"', '"pooling": "mean"', 1), encoding="utf-8")
    assert main(["run", str(finished.config)]) == 0
    assert without_times(json.loads(path.read_text(encoding="utf-8"))) == without_times(json.loads(text))
    load_scorer(finished.folder)


def test_of_a_run_with_a_seed_more_that_seed_alone_is_fitted(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(shutil.copytree(finished.folder, tmp_path / "tiny"))
    weights = first / "heads" / "cosine-mlp" / "seed_3" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")  # damaged, so it is fitted too
    fitted, fit = [], PairFits._fit

    def counted(head: PairFits, seed: int, *rest: Any) -> Any:
        fitted.append((head.resolved.name, seed))
        return fit(head, seed, *rest)

    monkeypatch.setattr(PairFits, "_fit", counted)
    assert main(["run", str(finished.config), "--runs", str(tmp_path), "--seeds", "0,3,5"]) == 0
    assert fitted == [("cosine-mlp", 3), ("cosine-mlp", 5), ("siamese-cosine", 5)]
    scores = json.loads((tmp_path / "tiny-seeds-0-3-5" / "scores.json").read_text(encoding="utf-8"))
    for name in ("cosine-mlp", "siamese-cosine"):
        before, after = (each["heads"][name]["seeds"] for each in (finished.scores, scores))
        assert [seed["scores"] for seed in after[:2]] == [seed["scores"] for seed in before]


def test_a_pipe_in_a_run_folder_hangs_nothing(copy: Path) -> None:
    for name in ("scores.json", "config.yaml", "heads/layer-cosine/seed_0/head.json"):
        (copy / name).rename(copy / "aside")
        os.mkfifo(copy / name)
        with pytest.raises(HeadError, match="not a plain file"):
            load_scorer(copy, head="layer-cosine")
        (copy / name).unlink()
        (copy / "aside").rename(copy / name)


def test_a_head_of_another_cache_is_refused(finished: Finished, copy: Path) -> None:
    place = copy / "heads" / "cosine-mlp" / "seed_0"
    edit_scores(copy, lambda scores: scores["cache"].update(id="0" * 64))
    with pytest.raises(
        CacheIdentityError, match=r"is not the one that was scored: cache is '.*', its scores are of '0+'"
    ):
        load_scorer(copy)
    shutil.copytree(finished.folder / "heads" / "layer-cosine" / "seed_0", place, dirs_exist_ok=True)
    shutil.copy(finished.folder / "scores.json", copy / "scores.json")
    with pytest.raises(CacheIdentityError, match="name is 'layer-cosine', its scores are of 'cosine-mlp'"):
        load_scorer(copy, head="cosine-mlp")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"plan": "backward"}, "plan is 'causal', the run has 'backward'"),
        ({"template": {}}, r"template\.bos is 'auto', the run has None"),
        ({"decoder": {"dtype": "float16"}}, r"decoder\.dtype is 'float32', the run has 'float16'"),
    ],
)
def test_plan_template_and_weights_are_compared_with_the_head_itself(
    part: dict[str, Any], message: str, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_other(folder: Path) -> Any:
        saved = load_head(folder)
        latents = {**saved.record.latents, **part}
        return replace(saved, record=replace(saved.record, latents=latents))

    monkeypatch.setattr(probes.runs.predict, "load_head", load_other)
    with pytest.raises(CacheIdentityError, match=message):
        load_scorer(finished.folder)


def test_a_decoder_is_found_from_here_and_from_the_run_folder(
    finished: Finished, decoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = yaml.safe_load((finished.folder / "config.yaml").read_text(encoding="utf-8"))
    assert not Path(recorded["decoder"]["name"]).is_absolute()
    assert not Path(recorded["caches"]).is_absolute()
    expected = load_scorer(finished.folder).score(PAIRS)
    monkeypatch.chdir(tmp_path)  # from where the recorded path leads nowhere
    assert not Path(recorded["decoder"]["name"]).exists()
    assert load_scorer(finished.folder).score(PAIRS).tolist() == expected.tolist()
    moved = Path(shutil.copytree(finished.folder, tmp_path / "a" / "b" / "moved"))
    with pytest.raises(DecoderError, match="If it has moved, say where it is: icecore score --decoder NAME"):
        load_scorer(moved)
    assert load_scorer(moved, decoder=str(decoder_folder)).score(PAIRS).tolist() == expected.tolist()


def test_a_run_folder_with_absolute_paths_and_early_heads_still_opens(
    finished: Finished, copy: Path, decoder_folder: Path
) -> None:
    def make_absolute(config: Any) -> None:
        config["decoder"]["name"] = str(decoder_folder)
        config["caches"], config["runs"] = str(finished.base / "caches"), str(finished.base / "runs")

    edit_config(copy, make_absolute)
    for path in copy.rglob("head.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        later = ("latents", "weights_sha256", "record_sha256")
        early = {key: value for key, value in record.items() if key not in later}
        path.write_text(json.dumps({**early, "schema": 3}), encoding="utf-8")
    assert load_scorer(copy).score(PAIRS).tolist() == load_scorer(finished.folder).score(PAIRS).tolist()


def test_terminal_escapes_are_not_printed(finished: Finished, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "snow \x1b]0;title\x07\x1b[2Jis\x9b31m"
    for more in ([], ["--jsonl"]):
        assert main(["score", str(finished.folder), evil, "ice", *more]) == 0
    line, row = capsys.readouterr().out.splitlines()
    assert line.endswith("\tsnow ]0;title[2Jis31m\tice")
    assert "\x9b" not in row
    assert evil in json.loads(row).values()  # written as codes
    edit_config(copy, lambda config: config["decoder"].update(name="\x1b[31mgone"))
    assert main(["score", str(copy), "a", "b"]) == 1
    assert main(["score", f"runs/{evil}", "a", "b"]) == 1
    assert not set(capsys.readouterr().err) & {"\x1b", "\x07", "\x9b"}
