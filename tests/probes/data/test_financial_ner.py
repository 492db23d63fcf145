"""The financial agreements of Alvarado et al. (2015), in the format of their published files."""

from pathlib import Path

import pytest

from extract.errors import TaskError
from probes.data.task_table import TASKS
from probes.data.word_files import load_financial_ner

AGREEMENT = """-DOCSTART- -X- O O

Loan NNP - O
Agreement NNP - O
Corwen NNP - I-ORG
de IN - I-ORG
Veld NNP - I-ORG
and CC - O
Petra NNP - I-PER
Oslo NNP - I-LOC

The DT - O
Borrower NNP - I-PER
pays VBZ - O
. . - O

"""


AGREEMENTS = "".join(
    AGREEMENT.replace("Loan", f"Loan{k}").replace("The DT", f"The{k} DT") if k else AGREEMENT for k in range(5)
)


def write(folder: Path, text: str = AGREEMENTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("FIN5.txt", "FIN3.txt"):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_published_columns_become_spans_with_a_validation_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "financial-ner")
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path))
    task = load_financial_ner(validation_fraction=0.2)
    assert (task.name, task.metric, task.has_documents) == ("financial-ner", "span-f1", True)
    assert {split: len(rows) for split, rows in task.splits.items()} == {"train": 8, "validation": 2, "test": 10}
    assert task.source == "FIN5.txt, FIN3.txt in $ICECORE_DATA/financial-ner"
    first, second = task.splits["test"]["tags"][:2]
    assert first == ["O", "O", "B-ORG", "I-ORG", "I-ORG", "O", "B-PER", "B-LOC"]
    assert second == ["O", "B-PER", "O", "O"]
    assert task.scheme is not None
    assert task.scheme.name == "IO"
    assert "validation: 2 of the 10 training sentences, drawn with seed 0; train is the rest" in task.notes
    assert TASKS["financial-ner"].options() == ("folder", "validation_fraction", "seed", "scheme")


def test_quotes_that_are_no_utf8_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    published = (folder / "FIN3.txt").read_bytes()
    (folder / "FIN3.txt").write_bytes(b"\x93 NN - O\nNotice NN - O\n\x94 NN - O\n\n" + published)
    words = load_financial_ner(str(folder)).splits["test"]["words"][0]
    assert words == ["\N{LEFT DOUBLE QUOTATION MARK}", "Notice", "\N{RIGHT DOUBLE QUOTATION MARK}"]


def test_what_is_missing_or_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    with pytest.raises(TaskError, match=r"ICECORE_DATA is not set: .* holds financial-ner/FIN5\.txt"):
        load_financial_ner()
    folder = write(tmp_path / "c")
    (folder / "FIN3.txt").unlink()
    with pytest.raises(TaskError, match=r"FIN3\.txt does not exist: give the folder that holds FIN3\.txt, packed"):
        load_financial_ner(str(folder))
    write(folder, "Loan NNP - O\nAgreement NNP O\n")
    with pytest.raises(TaskError, match=r"FIN5\.txt, line 2: 3 instead of 4 columns"):
        load_financial_ner(str(folder))
