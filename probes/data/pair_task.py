"""Sentence pairs with a graded similarity: the task every similarity head is trained and scored on."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float32
from numpy.typing import NDArray

from extract.errors import TaskError, require_name
from extract.files import digest_bytes, read_file
from probes.data.sources import DATA_VARIABLE, find_local, need_local, read_hub
from probes.data.splits import SplitRule, name_splits
from probes.data.table_files import (
    DEFAULT_FILES,
    CheckedRow,
    Fields,
    FileOptions,
    FileRows,
    Files,
    check_gold,
    check_rows,
    check_text,
    is_number,
    read_number,
    read_rows,
    read_text,
)
from probes.data.task import (
    GradedTask,
    conflict_notes,
    conflicting,
    load_shipped,
    remarks,
    split_graded,
    text_keys,
)

if TYPE_CHECKING:
    import datasets


_FINAL = ".!?;:,\"'\u2019\u201d)]"
Pairs = Any
"""Pairs `sentence1`, `sentence2` and `score`: a `datasets.Dataset`, or a dictionary of lists."""


def pair_keys(rows: Pairs) -> list[tuple[str, ...]]:
    """Name each pair so that (a, b) and (b, a) are the same pair."""
    return text_keys(rows, ("sentence1", "sentence2"))


def repeats_earlier_pair(rows: Pairs) -> Bool[np.ndarray, " N"]:
    """Mark the rows whose pair is also in an earlier row of the same split, in either order."""
    first: dict[tuple[str, ...], int] = {}
    return np.array([first.setdefault(key, row) < row for row, key in enumerate(pair_keys(rows))], dtype=bool)


def conflicting_pairs(rows: Pairs) -> list[tuple[str, ...]]:
    """List the unordered pairs of one split that have more than one gold score, each once, in the order first seen."""
    return list(conflicting(pair_keys(rows), rows["score"]))


def pair_is_in(rows: Pairs, other: Pairs) -> Bool[np.ndarray, " N"]:
    """Mark the rows whose pair, in either order, is also a pair of another split, usually train."""
    others = set(pair_keys(other))
    return np.array([key in others for key in pair_keys(rows)], dtype=bool)


def sentence_is_in(rows: Pairs, other: Pairs) -> Bool[np.ndarray, " N"]:
    """Mark the rows of which at least one sentence is also a sentence of another split, usually train.

    `~sentence_is_in(test, train)` is the clean subset of test.
    """
    others = {*other["sentence1"], *other["sentence2"]}
    return np.array([a in others or b in others for a, b in pair_keys(rows)], dtype=bool)


def final_punctuation(rows: Pairs) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Mark the rows whose texts end in different punctuation, and those that differ in nothing else.

    Their last tokens differ, which matters to last-token pooling and hardly to mean pooling.
    """
    differs, only = [], []
    for a, b in zip(rows["sentence1"], rows["sentence2"], strict=True):
        texts = a.rstrip(), b.rstrip()
        stems = [_without_final(text) for text in texts]
        tails = ["".join(text[len(stem) :].split()) for text, stem in zip(texts, stems, strict=True)]
        differs.append(tails[0] != tails[1])
        only.append(tails[0] != tails[1] and stems[0] == stems[1])
    return np.array(differs, dtype=bool), np.array(only, dtype=bool)


def _without_final(text: str) -> str:
    """Leave final punctuation and whitespace out; no regular expression, which would try every place in a long run."""
    end = len(text)
    while end and (text[end - 1] in _FINAL or text[end - 1].isspace()):
        end -= 1
    return text[:end]


def audit_notes(splits: Mapping[str, Pairs]) -> tuple[str, ...]:
    """Count duplicates, overlap between splits and final punctuation, and return the remarks with a count.

    Texts are compared exactly, pairs in either order; splits come in the order train, validation, test.
    """
    # one read of the columns: a datasets column decodes again on every access
    tables = {
        split: {column: rows[column][:] for column in ("sentence1", "sentence2", "score")}
        for split, rows in splits.items()
    }
    counts: list[tuple[int, str]] = []
    for split, rows in tables.items():
        n_rows = len(rows["score"])
        repeats = int(repeats_earlier_pair(rows).sum())
        counts.append((repeats, f"{split}: {repeats} of {n_rows} rows repeat an earlier pair (in either order)"))
        n_conflicts, conflicts = conflict_notes(pair_keys(rows), rows["score"], "pair", "gold")
        counts.append((n_conflicts, f"{split}: {conflicts}"))
        n_differ = int(final_punctuation(rows)[0].sum())
        counts.append((n_differ, f"{split}: the texts of {n_differ} of {n_rows} rows end in different punctuation"))
    for (other, earlier), (split, rows) in combinations(tables.items(), 2):
        n_rows = len(rows["score"])
        n_pairs = int(pair_is_in(rows, earlier).sum())
        counts.append((n_pairs, f"{split}: {n_pairs} of {n_rows} pairs are also in {other}"))
        n_shared = int(sentence_is_in(rows, earlier).sum())
        counts.append((n_shared, f"{split}: {n_shared} of {n_rows} rows share a sentence with {other}"))
    return remarks(counts)


@dataclass(frozen=True, eq=False)
class PairTask(GradedTask):
    """Pairs of texts with a gold similarity, in up to three splits, checked when built."""

    kind: ClassVar[str] = "pairs"
    columns: ClassVar[Mapping[str, str]] = {
        "sentence1": "string",
        "sentence2": "string",
        "score": "float64",
        "subset": "string",
        "genre": "string",
        "source": "string",
    }
    text_columns: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    origin_columns: ClassVar[tuple[str, ...]] = ("genre", "source")
    gold_column: ClassVar[str] = "score"

    name: str
    splits: "datasets.DatasetDict"
    """Pairs `sentence1`, `sentence2` (string), `score` (float64, gold in the original units), and perhaps `subset`
    (string: test is scored for each by itself, too), `genre` and `source` (string: where a pair was taken from)."""
    score_range: tuple[float, float]
    """Lowest and highest gold the task can hold, in the original units."""
    source: str
    is_sample: bool = False
    notes: tuple[str, ...] = ()
    has_inferred_range: bool = False
    """Whether the score range is that of the rows."""

    def inferred_options(self) -> dict[str, object]:
        """Return the score range, where it is that of the rows."""
        return {"score_range": list(self.score_range)} if self.has_inferred_range else {}

    def gold(self, split: str) -> NDArray[np.floating[Any]]:
        """Return the gold of one split in [0, 1]."""
        return self.gold01(split)

    def gold01(self, split: str) -> Float32[np.ndarray, " N"]:
        """Scale the gold of one split to [0, 1] by the score range."""
        low, high = self.score_range
        gold = np.asarray(self.rows(split)["score"][:], dtype=np.float64)
        return ((gold - low) / (high - low)).astype(np.float32)

    def audit(self) -> tuple[str, ...]:
        """Count duplicates, overlap between splits and final punctuation; see `audit_notes`."""
        return audit_notes(self.splits)

    def digest_head(self) -> object:
        """Return the score range."""
        return self.score_range

    def describe_kind(self) -> dict[str, object]:
        """Return the score range, and the row counts under their older name `n_pairs`."""
        return {"score_range": list(self.score_range), "n_pairs": self.n_rows()}


STSB_FILES = {"train": "stsb-en-train.csv", "validation": "stsb-en-dev.csv", "test": "stsb-en-test.csv"}
STSB_HUB_ID = "sentence-transformers/stsb"
_CAPTIONS, _FORUMS, _NEWS = "captions", "forums", "news"
STSB_ORIGINS: dict[str, tuple[str, tuple[tuple[str, str, int], ...]]] = {
    "train": (
        "e1e84fec60bbb598735552f54a35f4949904a484750fd2cb11e2720e49f63da6",
        (
            (_CAPTIONS, "MSRvid", 1000),
            (_CAPTIONS, "images", 1000),
            (_FORUMS, "deft-forum", 450),
            (_NEWS, "MSRpar", 1000),
            (_NEWS, "deft-news", 300),
            (_NEWS, "headlines", 1999),
        ),
    ),
    "validation": (
        "d29586e96558c4eb52cf5ea5d14e9c24d3bf0e44f111b017caba43a5adc33226",
        (
            (_CAPTIONS, "MSRvid", 250),
            (_CAPTIONS, "images", 250),
            (_CAPTIONS, "track5", 125),
            (_FORUMS, "answers-forums", 375),
            (_NEWS, "MSRpar", 250),
            (_NEWS, "headlines", 250),
        ),
    ),
    "test": (
        "11523b625219e94e9ca05d2816b5f02cac1614c5894fe657376fa0806378d053",
        (
            (_CAPTIONS, "MSRvid", 250),
            (_CAPTIONS, "images", 250),
            (_CAPTIONS, "track5", 125),
            (_FORUMS, "answer-answer", 254),
            (_NEWS, "MSRpar", 250),
            (_NEWS, "headlines", 250),
        ),
    ),
}
"""Split to the SHA-256 of its published CSV, and to the genre, source and number of its rows in their order there.

The three-column CSV names neither; the counts are those of the table of sources that STS-B was published with (Cer et
al. 2017), and hold for files of this digest alone.
"""
_NO_HUB = (
    f"set {DATA_VARIABLE} to a folder that holds stsb/{STSB_FILES['train']} and its siblings, or give local files to "
    "task 'pair-files'"
)


def read_pair_files(
    files: Files,
    *,
    name: str = "pair-files",
    sentence1: str = "sentence1",
    sentence2: str = "sentence2",
    score: str = "score",
    split: str | None = None,
    score_range: Sequence[float | int] | None = None,
    genre: str | None = None,
    source: str | None = None,
    options: FileOptions = DEFAULT_FILES,
) -> PairTask:
    r"""Read a pair task from one file per split, or from one file with or without a split column.

    Args:
        files: Split (train, validation or dev, test) to its file; or one file that holds all splits. The format goes
            by the suffix: .csv, .tsv, .tab, .jsonl, .ndjson, .json, .parquet.
        name: Name of the task in reports.
        sentence1: Column of the first text.
        sentence2: Column of the second text.
        score: Column of the gold similarity.
        split: `auto` draws the splits that are missing, equal pairs together: all three (80/10/10) of rows in train or
            in no split, validation where there is train and test. `given` draws none. None is `auto` where a file has
            no splits.
        score_range: Lowest and highest gold allowed; scales the gold to [0, 1]. None takes the lowest and highest of
            train (of all rows, where there is no train), and a note says so.
        genre: Column of the genre of a pair, if there is one; nothing is scored by it unless a sweep asks for gains.
        source: Column of where a pair was taken from, likewise.
        options: How the files are read and split; options of the task by their own names.

    Returns:
        The task, its texts exactly as in the files, its notes naming rows dropped, duplicates and overlap.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "test.tsv")
        >>> rows = [f"text {i}\tother {i}\t{i % 6}" for i in range(8)]
        >>> _ = path.write_text("\n".join(["a\tb\tgold", *rows]), encoding="utf-8")
        >>> read_pair_files({"test": path}, sentence1="a", sentence2="b", score="gold").texts()[:2]
        ['text 0', 'other 0']
    """
    limits = None if score_range is None else parse_score_range(score_range)
    check_score = partial(check_gold, limits=limits) if limits else check_gold
    fields: Fields = {
        "sentence1": (sentence1, check_text),
        "sentence2": (sentence2, check_text),
        "score": (score, check_score),
        "genre": (genre, check_text),
        "source": (source, check_text),
    }
    rows, origin, notes = read_rows(files, fields, options)
    rule = SplitRule(options.seed, options.validation_fraction, split=split)
    columns, drawn = split_graded(rows, rule, columns=PairTask.text_columns, name=name)
    splits = PairTask.hold(columns)
    if limits is None:
        where, ranged = ("train", [splits["train"]]) if "train" in splits else ("all rows", list(splits.values()))
        scores = [gold for rows in ranged for gold in rows["score"]]
        low, high = min(scores), max(scores)
        note = f"score_range is {low:g} to {high:g}, the scores of {where}; another: task.options.score_range: [0, 5]"
        notes = (*notes, note)
    task = PairTask(name, splits, limits or (low, high), origin, has_inferred_range=limits is None)
    return task.with_remarks(*notes, drawn)


def parse_score_range(value: object) -> tuple[float, float]:
    """Check a score range that came from a YAML file or a command: two finite numbers, the lower first."""
    ends: list[Any] = list(value) if isinstance(value, list | tuple) else []
    if isinstance(value, str):  # as a command may have it: 0,5
        with suppress(ValueError):
            ends = [float(part) for part in value.split(",")]
    numbers = [float(end) for end in ends if is_number(end) and math.isfinite(end)]
    if len(ends) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise TaskError(f"`score_range` is {value!r}, but two numbers are needed, the lower first, such as [0, 5].")
    return numbers[0], numbers[1]


def load_stsb_local(folder: str | Path | None = None, *, bad_rows: str = "error") -> PairTask:
    """Read the English STS Benchmark, gold 0 to 5: 5,749 training, 1,500 validation and 1,379 test pairs.

    `folder` holds `stsb-en-train.csv`, `stsb-en-dev.csv` and `stsb-en-test.csv`; None is `$ICECORE_DATA/stsb`.
    """
    local = need_local("stsb", folder, example=STSB_FILES["train"])
    files = {split: local.find(file) for split, file in STSB_FILES.items()}
    task = read_pair_files(
        files,
        name="stsb",
        score_range=(0.0, 5.0),
        options=FileOptions(header=False, columns=("sentence1", "sentence2", "score"), bad_rows=bad_rows),
    )
    splits = type(task.splits)({split: _with_origins(task.rows(split), split, files[split]) for split in task.splits})
    return replace(task, splits=splits, source=local.source(*STSB_FILES.values()))


def _with_origins(rows: "datasets.Dataset", split: str, file: Path) -> "datasets.Dataset":
    """Add genre and source to the rows of a split of STS-B, where its file is the published one and all are there."""
    digest, parts = STSB_ORIGINS[split]
    if len(rows) != sum(n for _, _, n in parts) or digest_bytes(read_file(file)) != digest:
        return rows
    origins = [(genre, source) for genre, source, n in parts for _ in range(n)]
    for column, values in zip(PairTask.origin_columns, zip(*origins, strict=True), strict=True):
        rows = rows.add_column(column, list(values))
    return rows


def load_stsb_hub(
    hub_id: str = STSB_HUB_ID,
    *,
    revision: str | None = None,
    score_range: Sequence[float | int] = (0.0, 1.0),
    genre: str | None = None,
    source: str | None = None,
    bad_rows: str = "error",
) -> PairTask:
    """Load pairs in columns `sentence1`, `sentence2` and `score` through `datasets`; the source names the commit.

    `hub_id` is a dataset of the hub (the default holds STS-B, gold already scaled to 0..1), or a local folder laid out
    like one; `revision` a branch, tag or commit. `genre` and `source` are the columns that tell where a pair is from.
    """
    limits = parse_score_range(score_range)
    tables, origin = read_hub(hub_id, revision=revision, help_text=_NO_HUB)
    fields: Fields = {
        "sentence1": ("sentence1", check_text),
        "sentence2": ("sentence2", check_text),
        "score": ("score", partial(check_gold, limits=limits)),
        "genre": (genre, check_text),
        "source": (source, check_text),
    }
    rows = check_rows(name_splits(tables, origin), fields, source=origin, bad_rows=bad_rows)
    return _build_official(rows, limits, "stsb" if hub_id == STSB_HUB_ID else Path(hub_id).name)


def load_stsb() -> PairTask:
    """Load STS-B from `$ICECORE_DATA/stsb` (gold 0 to 5) where that folder exists, else from the hub (gold 0 to 1)."""
    return load_stsb_hub() if find_local("stsb") is None else load_stsb_local()


def load_sample() -> PairTask:
    """Load the pairs written for this project and shipped with it, gold 0 to 5: a sample, not a benchmark."""
    return load_shipped("samples/sts.csv", partial(read_pair_files, name="sts-sample", score_range=(0.0, 5.0)))


SICK = "SICK.txt"
SICK_SPLITS = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}
CHOOSE_ON = {"stsb": load_stsb, "sts-sample": load_sample}
"""Tasks whose train and validation splits a set that is all test may take."""


def read_sts_files(folder: str | Path, *, name: str = "", choose_on: str = "stsb") -> PairTask:
    """Read a folder of `STS*.input.SUBSET.txt` with `STS*.gs.SUBSET.txt` beside them, or one with `SICK.txt`.

    Heads fit standardisation on train and choose on validation. SICK-R has both, and gold from 1 to 5; the other sets
    are all test, gold 0 to 5, and take them from another task. Lines without gold, as most of STS2015 and STS2016, are
    left out. Scores are those of all pairs, of each subset, and the mean over subsets (docs/guide.md). `choose_on`,
    `stsb` or `sts-sample`, is the task that gives train and validation; it is not used for SICK-R.
    """
    base = Path(folder).expanduser()
    if choose_on not in CHOOSE_ON:
        raise TaskError(f"`choose_on` is {choose_on!r}, but one of {', '.join(CHOOSE_ON)} is needed.")
    note = ""
    if (base / SICK).is_file():
        limits, rows = (1.0, 5.0), list(_read_sick(base / SICK))
    else:
        limits, rows = (0.0, 5.0), [row for path in sorted(base.glob("*.input.*.txt")) for row in _read_subset(path)]
        if not rows:
            raise TaskError(f"{base} has no scored pairs: give a folder with STS*.input.*.txt and STS*.gs.*.txt.")
        other = CHOOSE_ON[choose_on]()
        low, high = other.score_range
        for split in ("train", "validation"):
            for pair in other.rows(split):
                rows.append(CheckedRow({**pair, "score": 5 * (pair["score"] - low) / (high - low)}, split))
        note = f"train and validation are those of {other.name}"
    return _build_official(FileRows(rows, str(base), (note,)), limits, name or base.resolve().name)


def _build_official(rows: FileRows, limits: tuple[float, float], name: str) -> PairTask:
    columns, _ = split_graded(rows.rows, SplitRule(split="given"), columns=PairTask.text_columns, name=name)
    return PairTask(name, PairTask.hold(columns), limits, rows.source).with_remarks(*rows.notes)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise TaskError(f"{path} does not exist: put it beside its partner.")
    return [line.rstrip("\r") for line in read_text(path).removesuffix("\n").split("\n")]


def _read_subset(path: Path) -> Iterator[CheckedRow]:
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
            score = _number(gold, gold_path, number, 0.0)
            values = {"sentence1": parts[0], "sentence2": parts[1], "score": score, "subset": subset}
            yield CheckedRow(values, "test")


def _read_sick(path: Path) -> Iterator[CheckedRow]:
    header, *lines = (line.split("\t") for line in _lines(path))
    missing = {"sentence_A", "sentence_B", "relatedness_score", "SemEval_set"} - set(header)
    if missing:
        raise TaskError(f"{path} lacks the column {min(missing)!r}: give SICK.txt as it was published.")
    for number, line in enumerate(lines, start=2):
        row = dict(zip(header, line, strict=False))
        if len(line) != len(header) or row["SemEval_set"] not in SICK_SPLITS:
            raise TaskError(
                f"{path}, line {number}: {len(header)} columns and a set of TRAIN, TRIAL or TEST are needed."
            )
        score = _number(row["relatedness_score"], path, number, 1.0)
        values = {"sentence1": row["sentence_A"], "sentence2": row["sentence_B"], "score": score, "subset": "SICK-R"}
        yield CheckedRow(values, SICK_SPLITS[row["SemEval_set"]])


def _number(text: str, path: Path, number: int, lowest: float) -> float:
    value = read_number(text)
    if not lowest <= value <= 5:
        raise TaskError(f"{path}, line {number}: the gold is {text.strip()!r}, but {lowest:g} to 5 is needed.")
    return value


SUBSETS = {
    "full": "every row",
    "clean": "no sentence of the row is in train",
    "leaked": "a sentence of the row is in train",
    "leaked pair": "the very pair is in train",
    "punctuation": "the two texts end in different punctuation, or one of them in none",
    "same but punctuation": "the two texts differ in final punctuation and nothing else",
    "repeated": "the pair is in the split more than once, in either order",
    "conflicting gold": "the pair is also in the split with another gold",
}
DROPS = {
    "pairs": "training rows whose pair, in either order, is in validation or test",
    "sentences": "training rows with any sentence in common with validation or test",
}


def subsets(rows: Pairs, train: Pairs) -> dict[str, Bool[np.ndarray, " N"]]:
    """Mark the rows of each of `SUBSETS` in a split, to be scored by themselves."""
    keys = pair_keys(rows)
    counts = Counter(keys)
    conflicting = set(conflicting_pairs(rows))
    leaked = sentence_is_in(rows, train)
    differs, only = final_punctuation(rows)
    return {
        "full": np.ones(len(keys), dtype=bool),
        "clean": ~leaked,
        "leaked": leaked,
        "leaked pair": pair_is_in(rows, train),
        "punctuation": differs,
        "same but punctuation": only,
        "repeated": np.array([counts[key] > 1 for key in keys], dtype=bool),
        "conflicting gold": np.array([key in conflicting for key in keys], dtype=bool),
    }


def drop_leaked_rows(task: PairTask, *, by: str) -> PairTask:
    """Leave out the training rows that overlap with validation or test by a name from `DROPS`, and note their number.

    A task without training rows stays as it is; one of which too few are left is refused.
    """
    require_name("rows to drop", by, DROPS)
    if "train" not in task.splits:
        return task
    mark = pair_is_in if by == "pairs" else sentence_is_in
    train = task.splits["train"]
    leaked = np.zeros(len(train), dtype=bool)
    for split, rows in task.splits.items():
        if split != "train":
            leaked |= mark(train, rows)
    note = f"train: {int(leaked.sum())} of {len(leaked)} rows left out, whose {by} are in validation or test"
    return task.keep_rows({"train": np.flatnonzero(~leaked)}, note=note)
