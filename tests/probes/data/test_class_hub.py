"""Classification datasets laid out like the hub's; no test here reaches a network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.class_task import load_class_hub
from probes.data.table_files import quiet_datasets
from tests.probes.hub_builders import hub_builder


def save_split(path: Path, rows: dict[str, list[Any]], *, names: list[str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_dict(rows)
    if names:
        table = table.cast_column("label", datasets.ClassLabel(names=names))
    with quiet_datasets():
        table.to_parquet(path)


def hub_folder(folder: Path, *, config: str = "", splits: tuple[str, ...] = ("train", "test")) -> Path:
    for split in splits:
        rows: dict[str, list[Any]] = {"text": [f"{split} {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
        save_split(folder / config / f"{split}-00000-of-00001.parquet", rows, names=["calm", "cross"])
    return folder


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing forbids the hub."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def answer_probe(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    def dataset_info(_self: object, _repository: str, **_options: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)


def test_a_local_folder_by_column_names(tmp_path: Path) -> None:
    task = load_class_hub(str(hub_folder(tmp_path / "mood")), class_names=["calm", "cross"], metric="f1-macro")
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 36, "validation": 4, "test": 40}
    assert (task.name, task.source, task.metric) == ("mood", f"folder {tmp_path / 'mood'}", "f1-macro")
    assert task.class_names == ("calm", "cross")
    assert task.splits["test"][1] == {"text": "test 1", "label": 1, "row": 41}


def test_a_train_split_alone_is_drawn_three_ways(tmp_path: Path) -> None:
    task = load_class_hub(str(hub_folder(tmp_path / "mood", splits=("train",))))
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 32, "validation": 4, "test": 4}


def test_a_configuration_has_a_folder(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "many", config="mood")
    hub_folder(folder, config="other", splits=("train",))
    task = load_class_hub(str(folder), config="mood")
    assert (task.name, task.source) == ("many-mood", f"folder {folder / 'mood'}")
    with pytest.raises(UnknownNameError, match=r"unknown configuration 'moood': did you mean 'mood'\? Allowed: mood"):
        load_class_hub(str(folder), config="moood")


def declared(folder: Path, *, default: str = "") -> Path:
    """Lay a repository out as the hub does: data in one folder, configurations declared in README.md."""
    entries = []
    for config in ("mood", "tone"):
        for split in ("train", "test"):
            texts: list[Any] = [f"{config} {split} {i}" for i in range(40)]
            rows = {"text": texts, "label": [i % 2 for i in range(40)]}
            save_split(folder / "data" / f"{config}-{split}.parquet", rows)
        files = "".join(f"  - split: {split}\n    path: data/{config}-{split}.parquet\n" for split in ("train", "test"))
        mark = "  default: true\n" if config == default else ""
        entries.append(f"- config_name: {config}\n{mark}  data_files:\n{files}")
    (folder / "README.md").write_text("---\nconfigs:\n" + "".join(entries) + "---\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("config", ["mood", "tone"])
def test_a_declared_configuration_is_read(tmp_path: Path, config: str) -> None:
    folder = declared(tmp_path / "many")
    task = load_class_hub(str(folder), config=config)
    assert (task.name, task.source) == (f"many-{config}", f"folder {folder.absolute()}, configuration {config}")
    assert task.splits["test"]["text"][0] == f"{config} test 0"
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 36, "validation": 4, "test": 40}


def test_of_several_configurations_one_must_be_named(tmp_path: Path) -> None:
    folder = declared(tmp_path / "many")
    with pytest.raises(TaskError, match=r"has 2 configurations, none of them the default: .* of mood, tone\."):
        load_class_hub(str(folder))
    with pytest.raises(UnknownNameError, match=r"unknown configuration 'moood': did you mean 'mood'"):
        load_class_hub(str(folder), config="moood")
    default = declared(tmp_path / "default", default="tone")
    assert load_class_hub(str(default)).splits["test"]["text"][0] == "tone test 0"


@pytest.mark.usefixtures("online")
def test_a_configuration_of_the_hub_without_a_folder_of_its_own_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of the folder comes back empty, so what the repository declares is asked for."""
    (tmp_path / "snapshot").mkdir()
    folder = declared(tmp_path / "many")
    read = datasets.load_dataset

    def load_dataset_builder(repository: str, *, name: str, revision: str, cache_dir: str | None) -> object:
        assert (repository, revision, cache_dir) == ("someone/many", "c0ffee", None)
        return hub_builder(read(str(folder), name=name, cache_dir=str(tmp_path / "cache")))

    answer_probe(monkeypatch, SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_a, **_k: str(tmp_path / "snapshot"))
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda *_a, **_k: ["mood", "tone"])
    monkeypatch.setattr("datasets.load_dataset_builder", load_dataset_builder)
    task = load_class_hub("someone/many", config="tone")
    assert task.source == "someone/many/tone at c0ffee of the Hugging Face hub"
    assert task.splits["test"]["text"][0] == "tone test 0"
    with pytest.raises(UnknownNameError, match=r"unknown configuration 'tune': did you mean 'tone'"):
        load_class_hub("someone/many", config="tune")


def test_an_unknown_column_names_those_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown column 'labels': did you mean 'label'\? Allowed: text, label"):
        load_class_hub(str(hub_folder(tmp_path / "mood")), label="labels")


@pytest.mark.usefixtures("online")
def test_a_configuration_is_fetched_alone_at_the_commit_the_hub_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub_folder(tmp_path / "snapshots" / "c0ffee", config="mood")
    asked: list[object] = []

    def snapshot_download(repository: str, **options: object) -> str:
        asked.append((repository, options["revision"], options["repo_type"], options["allow_patterns"]))
        return str(folder)

    answer_probe(monkeypatch, SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    task = load_class_hub("someone/many", config="mood")
    assert asked == [("someone/many", "c0ffee", "dataset", ["mood/*"])]
    assert task.source == "someone/many/mood at c0ffee of the Hugging Face hub"
    with pytest.raises(
        TaskError, match=r"someone/many/mood \(train\), row 1: column 'label' holds 0 \(int\), not a str"
    ):
        load_class_hub("someone/many", config="mood", text="label")


@pytest.mark.usefixtures("online")
def test_without_the_hub_the_cache_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hub_folder(tmp_path / "snapshots" / "c0ffee", config="mood")
    answer_probe(monkeypatch, ConnectionError("no route"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_a, **_k: str(folder))
    assert load_class_hub("someone/many", config="mood").source == (
        "someone/many/mood at c0ffee from the cache of the hub (hub not asked)"
    )


@pytest.mark.usefixtures("online")
def test_neither_hub_nor_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer_probe(monkeypatch, ConnectionError("no route"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TaskError) as caught:
        load_class_hub("someone/many", config="mood")
    said = "dataset 'someone/many' cannot be loaded: the hub gave nothing (ConnectionError: no route), and the cache"
    assert said in str(caught.value)
    assert "task 'class-files'" in str(caught.value)


@pytest.mark.usefixtures("online")
def test_a_download_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_arguments: object, **_options: object) -> str:
        raise OSError("connection reset")

    answer_probe(monkeypatch, SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(TaskError, match=r"'someone/many' cannot be downloaded \(OSError: connection reset\); check"):
        load_class_hub("someone/many", config="mood")


def test_the_hub_is_not_asked_when_that_is_forbidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TaskError, match="the hub was not asked, because HF_HUB_OFFLINE is set, and the cache has no"):
        load_class_hub("someone/many", config="mood")
