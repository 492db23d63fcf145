"""Published files that are not tables: PubMedQA and FiQA (JSON objects), PubMed RCT and PhraseBank (text lines)."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from extract.errors import TaskError
from probes.readers.raw_rows import RawRow, RawTable, shorten
from probes.readers.text_files import read_bytes, read_text, split_lines

ABSTRACT_MARK = "###"
PHRASEBANK_ENCODING = "latin-1"


def read_records(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object of records by id."""
    try:
        records = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}, line {error.lineno}: this is not JSON ({error.msg}).") from error
    if not isinstance(records, dict) or not records:
        raise TaskError(f"{path} holds {shorten(records)}, but one JSON object of records by id is needed.")
    return records


def pubmedqa_table(records: Path, test_ids: Path, *, text_form: str) -> RawTable:
    """Lay out PubMedQA's labelled set as `text`, `label` (yes, no, maybe) and `split` (official test half, or train).

    Args:
        records: `ori_pqal.json`: id to QUESTION, CONTEXTS and `final_decision`.
        test_ids: `test_ground_truth.json`: id to decision.
        text_form: A key of `PUBMEDQA_FORMS`.

    Raises:
        TaskError: A file is broken, or test ids have no record.
    """
    rows = read_records(records)
    test = read_records(test_ids)
    unknown = [key for key in test if key not in rows]
    if unknown:
        raise TaskError(f"{test_ids} names {len(unknown)} records that {records} lacks, the first {unknown[0]!r}.")
    glue = PUBMEDQA_FORMS[text_form]
    table = []
    for number, (key, record) in enumerate(rows.items(), start=1):
        missing = [name for name in ("QUESTION", "CONTEXTS", "final_decision") if name not in record]
        if missing or not _are_texts([record["QUESTION"]]) or not _are_texts(record["CONTEXTS"]):
            lacks = ", ".join(missing) or "a text as QUESTION, or a list of texts as CONTEXTS"
            table.append(RawRow(number, {}, f"broken record: {key} lacks {lacks}"))
            continue
        values = {
            "text": glue(record["QUESTION"], record["CONTEXTS"]),
            "label": record["final_decision"],
            "split": "test" if key in test else "train",
        }
        table.append(RawRow(number, values))
    return RawTable(str(records), "row", ("text", "label", "split"), table)


def _glue_as_released(question: str, contexts: list[str]) -> str:
    return f"Question:{question}Context{''.join(contexts)}"


def _glue_with_spaces(question: str, contexts: list[str]) -> str:
    return " ".join([question, *contexts])


PUBMEDQA_FORMS: dict[str, Callable[[str, list[str]], str]] = {
    "look-both-ways": _glue_as_released,
    "plain": _glue_with_spaces,
}
"""How question and contexts become one text."""


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def rct_table(path: Path) -> RawTable:
    """Read PubMed RCT: `###` and an id before each abstract, `LABEL`, a tab and a sentence in each line of it.

    The columns are `text`, `label` and `abstract`.
    """
    abstract = None
    rows = []
    for number, line in _numbered_lines(read_text(path)):
        if line.startswith(ABSTRACT_MARK):
            abstract = line.removeprefix(ABSTRACT_MARK).strip()
            continue
        label, tab, text = line.partition("\t")
        problem = "" if tab else f"no tab: {shorten(line)} is not label, tab and sentence"
        if abstract is None:
            problem = f"no abstract: {shorten(line)} comes before the first {ABSTRACT_MARK} line"
        values = {"text": text.strip(), "label": label, "abstract": abstract}
        rows.append(RawRow(number, {} if problem else values, problem))
    return RawTable(str(path), "line", ("text", "label", "abstract"), rows)


def phrasebank_table(path: Path) -> RawTable:
    """Read Financial PhraseBank: a sentence, `@` and its sentiment in each line, in Latin-1."""
    rows = []
    for number, line in _numbered_lines(read_bytes(path).decode(PHRASEBANK_ENCODING)):
        text, mark, label = line.rpartition("@")
        problem = "" if mark else f"no @: {shorten(line)} is not sentence, @ and sentiment"
        rows.append(RawRow(number, {} if problem else {"text": text, "label": label}, problem))
    return RawTable(str(path), "line", ("text", "label"), rows)


def fiqa_table(path: Path, *, neutral: float) -> RawTable:
    """Read a FiQA challenge file: id to a sentence and, for each of its targets, a sentiment score from -1 to 1.

    One row per target, with columns `text`, `label` (neutral from `-neutral` up to, not including, `neutral`) and
    `sentence` (the text again, so that it can name a group: the challenge gives some sentences several ids).
    """
    rows: list[RawRow] = []
    for key, record in read_records(path).items():
        for target in record.get("info") or [{}]:
            score = _as_score(target.get("sentiment_score"))
            if score is None:
                found = shorten(target.get("sentiment_score"))
                row = RawRow(len(rows) + 1, {}, f"no score: record {key} holds {found}, but a number is needed")
            else:
                label = "negative" if score < -neutral else "neutral" if score < neutral else "positive"
                values = {"text": record.get("sentence"), "label": label, "sentence": record.get("sentence")}
                row = RawRow(len(rows) + 1, values)
            rows.append(row)
    return RawTable(str(path), "row", ("text", "label", "sentence"), rows)


def rename_labels(table: RawTable, names: Mapping[str, str], *, column: str) -> RawTable:
    """Replace the codes of a label column by their names; a code without a name stays, and is rejected later."""
    rows = [
        replace(row, values={**row.values, column: names.get(str(row.values[column]).strip(), row.values[column])})
        if column in row.values
        else row
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _as_score(value: object) -> float | None:
    try:
        score = float(str(value))
    except ValueError:
        return None
    return score if -1 <= score <= 1 else None


def _numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(split_lines(text), start=1):
        if line.strip():
            yield number, line.rstrip("\r\n")
