import csv
import json
import tempfile
from pathlib import Path

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.data.pair_task import PairTask, read_pair_files
from probes.data.table_files import quiet_datasets

LOOKALIKES = (
    "None",
    "NA",
    "null",
    "nan",
    "NaN",
    "1e5",
    "007",
    "true",
    "False",
    "-inf",
    "2012-01-01",
    "N/A",
    "#N/A",
)
DATES = ("2012-01-01T10:00:00Z", "2012-01-01 10:00:00", "2012-01-01")
ODD = (
    'say "hi", then',
    '"',
    '""',
    "a\tb",
    "a\nb",
    "a\r\nb",
    "a\rb",
    "naïve 中文 👩‍👩‍👧",
    "\u2028",
    " padded ",
    "\x00x",
    "\ufeffx",
    "x\x0cy",
)

anything = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
texts = st.lists(st.tuples(anything, anything), min_size=8, max_size=12)


def full(pairs: list[tuple[str, str]]) -> list[tuple[str, str, float]]:
    return [(a, b, float(index % 6)) for index, (a, b) in enumerate(pairs)]


def write(path: Path, pairs: list[tuple[str, str]]) -> None:
    rows = full(pairs)
    if path.suffix == ".jsonl":
        lines = [json.dumps({"sentence1": a, "sentence2": b, "score": s}, ensure_ascii=False) for a, b, s in rows]
        path.write_text("\n".join(lines), encoding="utf-8", newline="")
        return
    if path.suffix == ".json":
        table = [{"sentence1": a, "sentence2": b, "score": s} for a, b, s in rows]
        path.write_text(json.dumps(table), encoding="utf-8")
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", quoting=csv.QUOTE_ALL)
        writer.writerow(["sentence1", "sentence2", "score"])
        writer.writerows(rows)


def pairs_of(task: PairTask) -> list[tuple[str, str]]:
    return list(zip(task.splits["train"]["sentence1"], task.splits["train"]["sentence2"], strict=True))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json"])
@given(pairs=texts)
@settings(max_examples=15, deadline=None)
def test_any_text_comes_back_as_it_was(suffix: str, pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"pairs{suffix}"
        write(path, pairs)
        task = read_pair_files({"train": path})
    assert pairs_of(task) == pairs
    assert list(task.splits["train"]["score"]) == [row[2] for row in full(pairs)]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("words", [LOOKALIKES, DATES * 3, tuple(text for text in ODD if text.strip())])
def test_odd_texts_stay_texts(tmp_path: Path, suffix: str, words: tuple[str, ...]) -> None:
    pairs = [(word, words[-1 - index]) for index, word in enumerate(words)]
    path = tmp_path / f"pairs{suffix}"
    if suffix == ".parquet":
        rows = full(pairs)
        columns = {"sentence1": [r[0] for r in rows], "sentence2": [r[1] for r in rows], "score": [r[2] for r in rows]}
        with quiet_datasets():
            datasets.Dataset.from_dict(columns).to_parquet(path)
    else:
        write(path, pairs)
    assert pairs_of(read_pair_files({"train": path})) == pairs
