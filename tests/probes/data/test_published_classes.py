from pathlib import Path

import numpy as np
import pytest

from probes.data.domains import load_banking77, load_pubmedqa, look_both_ways_split
from probes.metrics.prediction_metrics import CLASS_METRICS


@pytest.mark.long
def test_banking77_has_the_published_counts(icecore_data: Path) -> None:
    task = load_banking77(folder=str(icecore_data / "banking77"))
    assert task.n_rows() == {
        "train": 9001,  # of 10,003 rows, five of which repeat another but for case and final punctuation
        "validation": 1002,
        "test": 3080,
    }
    assert task.n_classes == 77
    assert (np.bincount(task.labels("test")) == 40).all()
    assert min(np.bincount(task.labels("validation"), minlength=77)) >= 3
    assert len(task.texts()) == 13083
    again = look_both_ways_split(task).n_rows()
    assert again == {"train": 10466, "test": 2617}


def test_pubmedqa_has_the_published_counts(icecore_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICECORE_DATA", str(icecore_data))
    task = load_pubmedqa()
    assert task.n_rows() == {"train": 400, "validation": 100, "test": 500}
    assert np.bincount(task.labels("test")).tolist() == [276, 169, 55]
    in_training = np.bincount(np.concatenate([task.labels("train"), task.labels("validation")]))
    assert in_training.tolist() == [276, 169, 55]
    assert task.source == "ori_pqal.json, test_ground_truth.json in $ICECORE_DATA/pubmedqa"
    assert all(text.startswith("Question:") and "Context" in text for text in task.texts())
    again = look_both_ways_split(task)
    assert again.n_rows() == {"train": 800, "test": 200}
    assert set(task.metrics) <= set(CLASS_METRICS)
