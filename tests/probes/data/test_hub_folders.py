"""A folder laid out like a dataset of the hub may come from anybody: only its own files are read, and no address."""

import json
import os
import socket
from pathlib import Path

import datasets
import pytest

from extract.errors import TaskError
from probes.data.sources import read_hub
from tests.probes.hub_builders import hub_builder

SECRET = "the user's own diary"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a folder with one good file beside a file of the user, where no address can be reached."""

    def connect(*_arguments: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    for path, text in ((tmp_path / "secret.jsonl", SECRET), (tmp_path / "mine" / "good.jsonl", "a good text")):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"text": text, "label": 0}) + "\n", encoding="utf-8")
    return tmp_path / "mine"


def declare(folder: Path, data: str, *, card: str = "README.md") -> None:
    mark = "---\n" * (card == "README.md")
    (folder / card).write_text(f"{mark}configs:\n- config_name: default\n  {data}\n{mark}", encoding="utf-8")


def texts(folder: Path, config: str | None = None) -> list[str]:
    tables, _ = read_hub(str(folder), config, revision=None, help_text="look again")
    return [row.values["text"] for table in tables.values() for row in table.rows]


@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "data",
    [
        "data_files: {outer}/secret.jsonl",
        "data_files: file:{outer}/secret.jsonl",
        "data_files: file://{outer}/secret.jsonl",
        "data_files: '{outer}/*.jsonl'",
        "data_files: ../secret.jsonl",
        "data_files: '../*.jsonl'",
        "data_files: 'x/../../*.jsonl'",
        "data_files: [good.jsonl, ../secret.jsonl]",
        "data_files: [{{split: train, path: ../secret.jsonl}}]",
        "data_files: [{{split: train, path: [good.jsonl, '{outer}/secret.jsonl']}}]",
        "data_dir: ..",
        "data_dir: '{outer}'",
        "data_files: https://example.org/secret.jsonl",
        "data_files: 'http://169.254.169.254/*.json'",
        "data_files: hf://datasets/someone/mine/secret.jsonl",
        "data_files: 'zip://secret.jsonl::{outer}/packed.zip'",
        "data_files: s3://bucket/secret.jsonl",
    ],
)
def test_a_card_names_only_files_of_its_folder(folder: Path, data: str, card: str) -> None:
    declare(folder, data.format(outer=folder.parent), card=card)
    with pytest.raises(
        TaskError, match=r"which is not in it, so nothing was read; allowed: files of its own"
    ) as caught:
        texts(folder)
    assert "\n" not in str(caught.value)


def test_of_several_configurations_those_not_asked_for_are_refused_as_well(folder: Path) -> None:
    entries = "".join(
        f"- config_name: {name}\n  data_files: {path}\n"
        for name, path in (("good", "good.jsonl"), ("bad", "https://example.org/secret.jsonl"))
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{entries}---\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"names 'https://example\.org/secret\.jsonl', which is not in it"):
        texts(folder, "good")


def test_a_folder_of_a_configuration_has_a_card_too(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "good.jsonl").rename(inner / "good.jsonl")
    declare(inner, "data_files: ../../secret.jsonl")
    with pytest.raises(TaskError, match=r"names '\.\./\.\./secret\.jsonl', which is not in it"):
        texts(folder, "inner")


@pytest.mark.parametrize(
    ("link", "target", "data"),
    [
        ("more.jsonl", "secret.jsonl", ""),
        ("more.jsonl", "secret.jsonl", "data_files: more.jsonl"),
        ("more.jsonl", "secret.jsonl", "data_files: '**'"),
        ("more", "", "data_files: more/secret.jsonl"),
        ("more", "", "data_files: 'more/*.jsonl'"),
        ("more", "", "data_dir: more"),
        ("README.md", "card.md", ""),
    ],
)
def test_no_link_leads_out_of_it(folder: Path, link: str, target: str, data: str) -> None:
    (folder.parent / "card.md").write_text("---\npretty_name: Mine\n---\n", encoding="utf-8")
    if data:
        declare(folder, data)
    (folder / link).symlink_to(folder.parent / target)
    with pytest.raises(TaskError, match=r"names '.*', which is not in it"):
        texts(folder)


@pytest.mark.parametrize("data", ["data_files: good.jsonl", "data_files: './*.jsonl'", "data_dir: ."])
def test_its_own_files_are_read(folder: Path, data: str) -> None:
    declare(folder, data)
    (folder.parent / "link").symlink_to(folder)
    assert texts(folder) == ["a good text"]
    assert texts(folder.parent / "link") == ["a good text"]


def test_a_link_within_the_folder_is_followed(folder: Path) -> None:
    (folder / "kept").mkdir()
    (folder / "good.jsonl").rename(folder / "kept" / "blob")
    (folder / "train.jsonl").symlink_to(folder / "kept" / "blob")
    declare(folder, "data_files: train.jsonl")
    assert texts(folder) == ["a good text"]


def test_a_snapshot_of_the_cache_of_the_hub_links_to_its_blobs(folder: Path) -> None:
    snapshot = folder / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "good.jsonl").rename(folder / "blobs" / "0a1b")
    (snapshot / "train.jsonl").symlink_to(Path("../../blobs/0a1b"))
    assert texts(snapshot) == ["a good text"]


@pytest.mark.parametrize("file", ["/etc/hostname", "local:///etc/hostname", "zip://a.csv::/srv/data/a.zip"])
def test_a_repository_of_the_hub_names_no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    builder = hub_builder(datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": [SECRET]})}))
    builder.config.data_files["train"].append(file)
    monkeypatch.setattr("probes.data.sources.is_offline", lambda _switch: False)
    monkeypatch.setattr("probes.data.sources.ask_commit", lambda _ask: "c0ffee")
    monkeypatch.setattr("datasets.get_dataset_config_names", lambda *_names, **_options: ["default"])
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_names, **_options: builder)
    with pytest.raises(TaskError, match="which is not in it"):
        read_hub("someone/mine", None, revision=None, help_text="look again")


def test_a_link_that_no_card_names_is_refused_too(folder: Path) -> None:
    """Some readers of `datasets` open what lies beside the files that they were given."""
    (folder / "instruction.md").symlink_to(folder.parent / "secret.jsonl")
    declare(folder, "data_files: good.jsonl")
    with pytest.raises(TaskError, match=r"names '.*instruction\.md', which is not in it"):
        texts(folder)


def test_readers_of_more_than_files_are_refused(folder: Path) -> None:
    (folder / "tasks/a").mkdir(parents=True)
    (folder / "tasks/a/task.toml").write_text("version = '1.0'\n", encoding="utf-8")
    (folder / "good.jsonl").unlink()
    declare(folder, "data_files: tasks/a/task.toml")
    with pytest.raises(TaskError, match=r"is of the kind '[a-z]*'; allowed: files of csv, json, parquet, text, arrow"):
        texts(folder)


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "more.jsonl")
    with pytest.raises(TaskError, match=r"holds 'more\.jsonl', which is no plain file"):
        texts(folder)


@pytest.mark.parametrize("key", ["sep: '(a|aa)+$'", "delimiter: ab", "engine: python"])
def test_a_separator_is_no_pattern(folder: Path, key: str) -> None:
    (folder / "good.jsonl").rename(folder / "good.csv")
    declare(folder, f"data_files: good.csv\n  {key}")
    with pytest.raises(TaskError, match="has a separator of several characters, or an engine"):
        texts(folder)
