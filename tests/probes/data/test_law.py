"""Each legal task on a tiny file in its published format, written for this test."""

from pathlib import Path

import datasets
import pytest

from extract.errors import TaskError, UnknownNameError
from probes.data.class_task import ClassTask
from probes.data.domains import FAIR, UNFAIR_TERMS, load_scotus, load_unfair_tos
from tests.probes.data.tiny_files import counts, save_parquet

SPLITS = (("train", 20), ("validation", 8), ("test", 8))


def save_scotus(folder: Path) -> Path:
    label = datasets.ClassLabel(names=[str(area) for area in range(1, 14)])
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    for split, n_rows in SPLITS:
        rows = [{"text": f"Opinion {split} {i}", "label": (0, 7, 12)[i % 3]} for i in range(n_rows)]
        save_parquet(folder / "scotus" / f"{split}-00000-of-00001.parquet", rows, features)
    return folder


def test_scotus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_scotus(str(save_scotus(tmp_path / "lex_glue")))
    assert counts(task) == dict(SPLITS)
    assert task.metrics == ("f1-micro", "f1-macro")
    assert [task.class_names[number] for number in task.labels("test")[:3]] == [
        "Criminal Procedure",
        "Economic Activity",
        "Miscellaneous",
    ]
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    assert load_scotus().digest() == task.digest()


def save_unfair_tos(folder: Path, *, broken: bool = False) -> Path:
    terms = datasets.List(datasets.Value("int64") if broken else datasets.ClassLabel(names=list(UNFAIR_TERMS)))
    features = datasets.Features({"text": datasets.Value("string"), "labels": terms})
    found: list[list[int]] = [[], [0], [], [1, 7], [0, 1]]
    if broken:
        found[1] = [8]
    for split, n_rows in SPLITS:
        rows = [{"text": f"You agree {split} {i} .", "labels": found[i % 5]} for i in range(n_rows)]
        save_parquet(folder / "unfair_tos" / f"{split}-00000-of-00001.parquet", rows, features)
    return folder


def first_labels(task: ClassTask) -> list[str]:
    return [task.class_names[number] for number in task.labels("train")[:5]]


def test_unfair_tos_by_type(tmp_path: Path) -> None:
    task = load_unfair_tos(str(save_unfair_tos(tmp_path)))
    assert counts(task) == dict(SPLITS)
    assert task.class_names == (FAIR, *UNFAIR_TERMS)
    assert first_labels(task) == [FAIR, UNFAIR_TERMS[0], FAIR, UNFAIR_TERMS[1], UNFAIR_TERMS[0]]
    assert task.notes[0] == "12 rows are of several unfair terms; each counts as the first of them"
    assert (task.metric, task.look_both_ways_rows) == ("f1-weighted", 3000)


def test_unfair_tos_as_yes_or_no(tmp_path: Path) -> None:
    folder = str(save_unfair_tos(tmp_path))
    assert first_labels(load_unfair_tos(folder, target="any"))[:4] == [FAIR, "unfair term", FAIR, "unfair term"]
    against_rest = load_unfair_tos(folder, target="Unilateral termination")
    assert against_rest.labels("train")[:5].tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(UnknownNameError, match=r"unknown target 'Arbitraton': did you mean 'Arbitration'\?"):
        load_unfair_tos(folder, target="Arbitraton")


def test_unfair_tos_with_a_label_that_is_no_term(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"row 2: labels are not terms: \[8\], but a list of numbers from 0 to 7 is need"
    ):
        load_unfair_tos(str(save_unfair_tos(tmp_path, broken=True)))
