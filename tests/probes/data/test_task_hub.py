import time
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.pair_task import load_stsb_hub
from probes.data.table_files import quiet_datasets
from probes.data.task_table import load_task
from tests.probes.hub_builders import hub_builder


def hub_folder(
    folder: Path, *, score: str = "score", splits: tuple[str, ...] = ("train", "validation", "test")
) -> Path:
    (folder / "data").mkdir(parents=True)
    for split in splits:
        rows = {
            "sentence1": [f"{split} {i}" for i in range(10)],
            "sentence2": ["None", "2012-01-01"] * 5,
            score: [i / 10 for i in range(10)],
            "dataset": ["MSRvid", "headlines"] * 5,
        }
        with quiet_datasets():
            datasets.Dataset.from_dict(rows).to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nothing forbids the hub and nothing is cached; no test here reaches a network."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("HF_DATASETS_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "empty cache")


def answer_probe(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    def dataset_info(_self: object, _repository: str, **_options: object) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)


def test_a_local_folder_laid_out_like_the_hub(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = hub_folder(tmp_path / "mine")
    before = sorted(folder.rglob("*"))
    task = load_stsb_hub(str(folder))
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 10, "validation": 10, "test": 10}
    assert task.splits["test"][1] == {"sentence1": "test 1", "sentence2": "2012-01-01", "score": 0.1}
    assert (task.name, task.source, task.score_range) == ("mine", f"folder {folder}", (0.0, 1.0))
    assert capfd.readouterr() == ("", "")
    assert sorted(folder.rglob("*")) == before


def test_hub_rows_may_tell_where_they_are_from(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "mine")
    task = load_task("stsb-hub", hub_id=str(folder), source="dataset")
    assert task.rows("test")["source"][:3] == ["MSRvid", "headlines", "MSRvid"]
    assert task.digest() == load_stsb_hub(str(folder)).digest()


def test_hub_rows_are_checked_like_any_other(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "mine")
    with pytest.raises(TaskError) as caught:
        load_stsb_hub(str(folder), score_range=(0, 0.5))
    assert f"{folder} (train), row 7: column 'score' holds 0.6, but a number from 0 to 0.5 is needed" in str(
        caught.value
    )


def test_bad_hub_rows_can_be_dropped(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "mine")
    task = load_stsb_hub(str(folder), score_range=(0, 0.8), bad_rows="drop")
    dropped = "1 of 10 rows dropped (gold out of range: 1; first at row 10)"
    assert task.notes[:2] == (f"{folder} (train): {dropped}", f"{folder} (validation): {dropped}")


def test_a_repository_with_another_column(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "mine", score="label")
    with pytest.raises(UnknownNameError, match=r"unknown column 'score'. Allowed: sentence1, sentence2, label"):
        load_stsb_hub(str(folder))


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no revision 'v2': leave `revision` out"):
        load_stsb_hub(str(hub_folder(tmp_path / "mine")), revision="v2")


def test_an_empty_folder_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        load_stsb_hub(str(tmp_path))
    assert f"dataset '{tmp_path}' cannot be read (" in str(caught.value)


@pytest.mark.usefixtures("online")
def test_an_unreachable_hub_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_probe(monkeypatch, ConnectionError("Name or service not known"))
    with pytest.raises(TaskError) as caught:
        load_stsb_hub()
    message = str(caught.value)
    assert "'sentence-transformers/stsb' cannot be loaded: the hub gave nothing (ConnectionError: Name or" in message
    assert "the cache has no copy; set ICECORE_DATA" in message
    assert "task 'pair-files'" in message


@pytest.mark.usefixtures("online")
def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.decoders.fetch.PROBE_SECONDS", 0.1)
    monkeypatch.setattr("extract.decoders.fetch.GRACE_SECONDS", 0.1)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_a, **_k: time.sleep(30))
    with pytest.raises(TaskError, match=r"the hub gave nothing \(TimeoutError: no answer in 0\.2 s\)"):
        load_stsb_hub()


@pytest.mark.usefixtures("online")
def test_a_pinned_revision_is_never_taken_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_probe(monkeypatch, ConnectionError("no route"))
    with pytest.raises(TaskError, match=r"'sentence-transformers/stsb' cannot be loaded at revision 'abc'"):
        load_stsb_hub(revision="abc")


@pytest.mark.usefixtures("online")
def test_a_reachable_hub_is_read_at_the_commit_it_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(hub_folder(tmp_path / "mine"))
    real, asked = datasets.load_dataset, []

    def load_dataset_builder(repository: str, *, revision: str | None, cache_dir: str | None) -> object:
        asked.append((repository, revision, cache_dir))
        return hub_builder(real(folder, cache_dir=str(tmp_path / "cache")))

    answer_probe(monkeypatch, SimpleNamespace(sha="c0ffee"))
    monkeypatch.setattr("datasets.load_dataset_builder", load_dataset_builder)
    task = load_stsb_hub()
    assert asked == [("sentence-transformers/stsb", "c0ffee", None)]
    assert task.source == "sentence-transformers/stsb at c0ffee of the Hugging Face hub"
    assert task.name == "stsb"


@pytest.mark.usefixtures("online")
def test_the_offline_switch_of_datasets_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    answer_probe(monkeypatch, ConnectionError("no route"))
    with pytest.raises(TaskError, match="no route"):
        load_stsb_hub()
    assert datasets.config.HF_HUB_OFFLINE is False
    monkeypatch.undo()
    assert before == datasets.config.HF_HUB_OFFLINE
