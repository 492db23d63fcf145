from pathlib import Path

import numpy as np
import pytest

from extract.errors import TaskError
from probes.data.pair_task import load_sample, load_stsb, load_stsb_local, pair_is_in


def test_the_sample_is_whole_in_range_and_disjoint() -> None:
    task = load_sample()
    assert task.is_sample
    assert list(task.splits) == ["train", "validation", "test"]
    assert sum(len(rows) for rows in task.splits.values()) >= 300
    for split in task.splits:
        gold = task.gold01(split)
        assert gold.min() >= 0
        assert gold.max() <= 1
        assert gold.std() > 0.2
    train, validation, test = task.splits.values()
    assert not pair_is_in(validation, train).any()
    assert not pair_is_in(test, train).any()
    assert not pair_is_in(test, validation).any()
    assert "no benchmark" in task.notes[0]


def test_stsb_has_the_published_counts_and_range(icecore_data: Path) -> None:
    task = load_stsb_local(icecore_data / "stsb")
    assert {split: len(rows) for split, rows in task.splits.items()} == {
        "train": 5749,
        "validation": 1500,
        "test": 1379,
    }
    assert task.score_range == (0.0, 5.0)
    assert not task.is_sample
    for split in task.splits:
        assert (task.gold01(split).min(), task.gold01(split).max()) == (0.0, 1.0)
    assert task.splits["test"][0]["sentence1"] == "A girl is styling her hair."
    np.testing.assert_allclose(task.gold01("test")[:2], [0.5, 0.72], rtol=1e-6)


@pytest.mark.long
def test_stsb_prefers_the_local_files(icecore_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(icecore_data))
    task = load_stsb()
    assert task.source == "stsb-en-train.csv, stsb-en-dev.csv, stsb-en-test.csv in $ICECORE_DATA/stsb"
    assert task.digest() == load_stsb_local(icecore_data / "stsb").digest()


def test_local_stsb_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    with pytest.raises(TaskError, match=r"ICECORE_DATA is not set: set it to the folder that holds stsb/stsb-en-train"):
        load_stsb_local()


def test_local_stsb_with_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    (tmp_path / "stsb").mkdir()
    with pytest.raises(TaskError, match=r"stsb-en-train\.csv does not exist"):
        load_stsb()


def test_stsb_without_local_files_or_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(TaskError) as caught:
        load_stsb()
    message = str(caught.value)
    assert (
        "dataset 'sentence-transformers/stsb' cannot be loaded: the hub was not asked, because HF_HUB_OFFLINE"
        in message
    )
    assert "set ICECORE_DATA to a folder that holds stsb/stsb-en-train.csv" in message
