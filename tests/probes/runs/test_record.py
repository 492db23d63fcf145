"""A run folder knows its settings and its cache: nothing else is written over it, and no absolute path into it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.errors import ConfigError
from extract.files import digest_json
from extract.store.cache import LatentCache
from probes.runs.folder import open_folder, without_absolute_paths
from probes.runs.run_config import RunConfig
from tests.probes.planted_latents import make_task, plant


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[LatentCache]:
    """Two caches of different texts."""
    folder = tmp_path_factory.mktemp("caches")
    return [plant(folder / f"{n}.h5", make_task(sizes={"train": n})) for n in (8, 9)]


def test_another_cache_is_another_folder(caches: list[LatentCache], tmp_path: Path) -> None:
    first, second = caches
    one = open_folder(str(tmp_path), "r", {"seeds": [0]}, first)
    two = open_folder(str(tmp_path), "r", {"seeds": [0]}, second)
    assert one == tmp_path / "r"
    assert two.parent == tmp_path
    assert two.name.startswith("r-")
    other = open_folder(str(tmp_path), "r", {"seeds": [1]}, first)
    both = open_folder(str(tmp_path), "r", {"seeds": [1]}, second)
    assert len({one, two, other, both}) == 4
    (one / "manifests" / ".new-1-8.json").write_text("{", encoding="utf-8")  # of a killed process
    for cache, seeds, folder in ((first, 0, one), (second, 0, two), (first, 1, other), (second, 1, both)):
        assert open_folder(str(tmp_path), "r", {"seeds": [seeds]}, cache) == folder
        manifest = folder / "manifests" / f"{cache.path.stem}.json"
        assert manifest.read_text(encoding="utf-8") == cache.manifest.to_json() + "\n"


def test_a_folder_that_is_damaged_is_left_alone(caches: list[LatentCache], tmp_path: Path) -> None:
    for name, text in (("config.yaml", "[a: b"), ("manifests/8.json", "{")):
        folder = open_folder(str(tmp_path), name[:4], {"seeds": [0]}, caches[0])
        (folder / name).write_text(text, encoding="utf-8")
        assert open_folder(str(tmp_path), name[:4], {"seeds": [0]}, caches[0]) != folder
        assert (folder / name).read_text(encoding="utf-8") == text


def test_no_absolute_path_is_recorded_and_early_folders_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.tsv").touch()
    settings: dict[str, Any] = {
        "decoder": {"name": str(tmp_path / "gone"), "adapter": None},
        "extraction": {"template": {"instruction": str(tmp_path)}},
        "task": {"options": {"files": {"train": str(tmp_path / "train.tsv"), "test": ["/no/file"]}, "separator": "/"}},
        "caches": str(tmp_path.parent / "caches"),
        "runs": "runs",
    }
    folder = open_folder("runs", "r", settings)
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == {
        "decoder": {"name": "gone", "adapter": None},
        "extraction": {"template": {"instruction": str(tmp_path)}},  # a text, not a path
        "task": {"options": {"files": {"train": "train.tsv", "test": ["/no/file"]}, "separator": "/"}},
        "caches": "../caches",
        "runs": "runs",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")  # as before
    assert open_folder("runs", "r", settings) == folder
    assert (folder / "config.yaml").read_text(encoding="utf-8") == text


def test_every_path_of_a_configuration_is_among_those_that_need_not_exist() -> None:
    config = RunConfig(caches="/no/caches", runs="/no/runs").to_dict()
    config["decoder"] |= {"name": "/no/decoder", "adapter": "/no/adapter"}
    config["extraction"]["template"]["spans"] = "/no/spans.jsonl"
    assert "/no/" in str(config)
    assert "'/no/" not in str(without_absolute_paths(config))


@pytest.mark.parametrize("place", ["", "heads", "figures/a.png", "manifests"])
def test_nothing_is_written_through_a_link(place: str, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    link = tmp_path / "runs" / "r" / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="is a link, and nothing is written through links"):
        open_folder(str(tmp_path / "runs"), "r", {"seeds": [0]})
    assert not list((tmp_path / "victim").iterdir())


def test_a_folder_is_named_after_what_differs(caches: list[LatentCache], tmp_path: Path) -> None:
    def settings(plan: str = "causal", decoder: str = "/models/tiny", **more: Any) -> dict[str, Any]:
        return {"decoder": {"name": decoder}, "extraction": {"plan": plan}, "seeds": [0], **more}

    def name(values: dict[str, Any]) -> str:
        found = open_folder(str(tmp_path), "pairs", values, caches[0])
        assert open_folder(str(tmp_path), "pairs", values, caches[0]) == found
        return found.name

    assert name(settings()) == "pairs"
    assert name(settings("nosink-bidirectional:10")) == "pairs-nosink-bidirectional-10"
    assert name(settings(seeds=[0, 3])) == "pairs-seeds-0-3"
    assert name(settings("backward:2", decoder="/models/other")) == "pairs-other-backward-2"
    assert re.fullmatch(r"pairs-[0-9a-f]{8}", name(settings(notes="much " * 20)))
    old = tmp_path / f"pairs-{digest_json(settings('bidirectional:3'))[:8]}"  # made by an earlier version
    old.mkdir()
    assert name(settings("bidirectional:3")) == old.name
