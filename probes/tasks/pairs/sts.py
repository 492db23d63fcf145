"""STS12 to STS17 and SICK-R in the files they were published as; scored by subset."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extract.errors import TaskError
from probes.readers.text_files import read_text
from probes.tasks.pairs.audit import audit_notes
from probes.tasks.pairs.readers import load_sample, load_stsb, parse_score_range
from probes.tasks.pairs.task import PairTask, build_splits

SICK = "SICK.txt"
SICK_SPLITS = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}
CHOOSE_ON = {"stsb": load_stsb, "sts-sample": load_sample}
"""Tasks whose train and validation splits a set that is all test may take."""
COLUMNS = ("sentence1", "sentence2", "score", "subset")


def read_sts_files(folder: str | Path, *, name: str = "", choose_on: str = "stsb") -> PairTask:
    """Read a folder of `STS*.input.SUBSET.txt` with `STS*.gs.SUBSET.txt` beside them, or one with `SICK.txt`.

    Heads fit standardisation on train and choose on validation. SICK-R has both, and gold from 1 to 5; the other sets
    are all test, gold 0 to 5, and take them from another task. Lines without gold, as most of STS2015 and STS2016, are
    left out. Scores are those of all pairs, of each subset, and the mean over subsets (docs/guide.md).

    Args:
        folder: Where the files are.
        name: What reports call the task; the folder's name when empty.
        choose_on: `stsb` or `sts-sample`: whose train and validation are taken; not used for SICK-R.

    Raises:
        TaskError: No such files, a file without its partner, files of unequal length, or a broken line.
    """
    base = Path(folder).expanduser()
    if choose_on not in CHOOSE_ON:
        raise TaskError(f"`choose_on` is {choose_on!r}, but one of {', '.join(CHOOSE_ON)} is needed.")
    columns: dict[str, dict[str, list[Any]]] = {}
    if (base / SICK).is_file():
        limits, note = (1.0, 5.0), ""
        for split, row in _read_sick(base / SICK):
            _add(columns.setdefault(split, {}), row)
    else:
        rows = [row for path in sorted(base.glob("*.input.*.txt")) for row in _read_subset(path)]
        if not rows:
            raise TaskError(f"{base} has no scored pairs: give a folder with STS*.input.*.txt and STS*.gs.*.txt.")
        for row in rows:
            _add(columns.setdefault("test", {}), row)
        other = CHOOSE_ON[choose_on]()
        limits = parse_score_range([0, 5])
        low, high = other.score_range
        for split in ("train", "validation"):
            part = {key: list(other.rows(split)[key]) for key in COLUMNS[:3]}
            columns[split] = {**part, "score": [5 * (score - low) / (high - low) for score in part["score"]]}
        note = f"train and validation are those of {other.name}"
    splits = build_splits(columns)
    notes = (*filter(None, [note]), *audit_notes(splits))
    return PairTask(name or base.resolve().name, splits, limits, str(base), notes=notes)


def _add(columns: dict[str, list[Any]], row: tuple[Any, ...]) -> None:
    for key, value in zip(COLUMNS, row, strict=True):
        columns.setdefault(key, []).append(value)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise TaskError(f"{path} does not exist: put it beside its partner.")
    return [line.rstrip("\r") for line in read_text(path).removesuffix("\n").split("\n")]


def _read_subset(path: Path) -> Iterator[tuple[str, str, float, str]]:
    """Read the scored pairs of one subset; from 2016 on, further columns name sources."""
    gold_path = path.with_name(path.name.replace(".input.", ".gs."))
    texts, golds = _lines(path), _lines(gold_path)
    if len(texts) != len(golds):
        raise TaskError(f"{path} has {len(texts)} lines, but {gold_path.name} has {len(golds)}: they must match.")
    subset = path.name.split(".input.")[1].removesuffix(".txt")
    for number, (line, gold) in enumerate(zip(texts, golds, strict=True), start=1):
        if gold.strip():
            parts = line.split("\t")
            if len(parts) < 2 or not all(part.strip() for part in parts[:2]):
                raise TaskError(f"{path}, line {number}: two texts with a tab between them are needed.")
            yield parts[0], parts[1], _number(gold, gold_path, number, 0.0), subset


def _read_sick(path: Path) -> Iterator[tuple[str, tuple[str, str, float, str]]]:
    header, *lines = (line.split("\t") for line in _lines(path))
    places = {key: header.index(key) for key in header}
    missing = {"sentence_A", "sentence_B", "relatedness_score", "SemEval_set"} - set(places)
    if missing:
        raise TaskError(f"{path} lacks the column {min(missing)!r}: give SICK.txt as it was published.")
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header) or line[places["SemEval_set"]] not in SICK_SPLITS:
            raise TaskError(
                f"{path}, line {number}: {len(header)} columns and a set of TRAIN, TRIAL or TEST are needed."
            )
        score = _number(line[places["relatedness_score"]], path, number, 1.0)
        row = (line[places["sentence_A"]], line[places["sentence_B"]], score, "SICK-R")
        yield SICK_SPLITS[line[places["SemEval_set"]]], row


def _number(text: str, path: Path, number: int, lowest: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not lowest <= value <= 5:
        raise TaskError(f"{path}, line {number}: the gold is {text.strip()!r}, but {lowest:g} to 5 is needed.")
    return value
