"""Retrieval and reranking tasks: queries for documents; folders in BEIR's layout, and own files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from extract.errors import TaskError
from probes.readers.checked_rows import CheckedRow, Fields, check_rows, find_split_column, read_tables
from probes.readers.checks import check_gold, check_group, check_text
from probes.readers.raw_rows import read_raw
from probes.readers.splits import files_by_split
from probes.tasks.base import load_shipped
from probes.tasks.zero_shot.task import CorpusTask, build_task

C = TypeVar("C", bound=CorpusTask)


@dataclass(frozen=True, eq=False)
class RetrievalTask(CorpusTask):
    """Queries with the relevant documents of a corpus; every other document has grade 0."""

    kind: ClassVar[str] = "retrieval"
    metrics = ("ndcg@10", "recall@10", "recall@100")


@dataclass(frozen=True, eq=False)
class RerankingTask(CorpusTask):
    """Queries with candidates, some of them relevant; `corpus` holds the candidates of all."""

    kind: ClassVar[str] = "reranking"
    metrics = ("map", "mrr")


def read_retrieval_files(
    folder: str | Path,
    *,
    name: str = "",
    corpus: str = "corpus.jsonl",
    queries: str = "queries.jsonl",
    qrels: Mapping[str, str | Path] | str | Path = "qrels",
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> RetrievalTask:
    """Read a retrieval task in BEIR's layout.

    Args:
        folder: Where the files are.
        name: What reports call the task; the folder's name when empty.
        corpus: File of documents with the columns `_id`, `text` and perhaps `title`, which is put before the text.
        queries: File of queries with the columns `_id` and `text`. Those without a relevant document are left out.
        qrels: Folder with `train.tsv`, `dev.tsv` and `test.tsv`, some of them; or a mapping of splits to files; or one
            file, perhaps with a column `split`. Columns `query-id`, `corpus-id` and `score`, the grade.
        bad_rows: `error` stops at a row that cannot be used, `drop` leaves it out and says so in the notes.
        validation_fraction: Part of the queries of train, or else of test, that becomes validation where there is none.
        seed: Seed of that draw.

    Raises:
        TaskError: A file is missing or broken, a row is bad, or qrels name a query or document that is not there.
        UnknownNameError: A column, split, suffix or `bad_rows` is unknown.
    """
    base = Path(folder).expanduser()
    documents = _read_names(base / corpus, with_title=True)
    asked = _read_names(base / queries)
    tables, source = read_tables(_find_qrels(base, qrels))
    fields: Fields = {
        "query": ("query-id", check_group),
        "document": ("corpus-id", check_group),
        "grade": ("score", check_gold),
    }
    judged, notes = check_rows(tables, fields, split_column=find_split_column(tables, None), bad_rows=bad_rows)
    for row in judged:
        for what, table, file in (("query", asked, queries), ("document", documents, corpus)):
            if row.values[what] not in table:
                raise TaskError(f"{row.place}: {what} {row.values[what]!r} is not in {base / file}: add it there.")
    rows = [
        CheckedRow({**row.values, "id": row.values["query"], "query": asked[row.values["query"]]}, row.split, row.place)
        for row in judged
    ]
    return _build(
        RetrievalTask,
        rows,
        documents,
        name=name or base.resolve().name,
        source=f"{base} ({source})",
        notes=notes,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _find_qrels(base: Path, qrels: Any) -> Any:
    """Find the files of qrels by split, or the one file."""
    if isinstance(qrels, Mapping):
        return {split: base / file for split, file in qrels.items()}
    place = base / qrels
    if not place.is_dir():
        return place
    found = {file.stem: file for file in sorted(place.glob("*.tsv"))}
    if not found:
        raise TaskError(f"{place} has no file such as test.tsv: give the folder of qrels, or `qrels` by split.")
    return files_by_split(found)


def _read_names(path: Path, *, with_title: bool = False) -> dict[str, str]:
    """Read texts by their `_id`."""
    found: dict[str, str] = {}
    table = read_raw(path)
    has_title = with_title and "title" in table.columns
    fields: Fields = {
        "id": ("_id", check_group),
        "text": ("text", _as_is),
        "title": ("title" * has_title or None, _as_is),
    }
    for row in check_rows({None: table}, fields, bad_rows="error")[0]:
        name, text = row.values["id"], " ".join(filter(None, (row.values.get("title"), row.values["text"]))).strip()
        if name in found:
            raise TaskError(f"{row.place}: _id {name!r} is there a second time: give every text its own.")
        check_text("text", text or None) if not with_title else None
        found[name] = text or " "  # BEIR has documents without a text, which are found by nobody
    return found


def _as_is(_: str, value: Any) -> str:
    return "" if value is None else str(value)


def read_reranking_files(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    files: Mapping[str, str | Path] | str | Path,
    *,
    name: str = "reranking-files",
    query: str = "query",
    document: str = "document",
    relevance: str = "relevance",
    split_column: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    quoting: bool = True,
    bad_rows: str = "error",
    validation_fraction: float = 0.3,
    seed: int = 0,
) -> RerankingTask:
    """Read a reranking task from files with a row per query and candidate.

    Args:
        files: Split to its file, or one file, perhaps with a column of splits; read as by `read_pair_files`.
        name: What reports call the task.
        query: Column of the query; rows of one query and split are its candidates.
        document: Column of the candidate.
        relevance: Column of its grade; above 0 is relevant.
        split_column: Column of the split; None takes `split` if the file has it.
        header: As for `read_pair_files`, like the four that follow.
        columns: Names of the columns.
        delimiter: Between columns.
        quoting: Whether quotes enclose values.
        bad_rows: `error` or `drop`.
        validation_fraction: Part of the queries that becomes validation where there is none.
        seed: Seed of that draw.

    Raises:
        TaskError: A file is broken, a row is bad, or a query has no relevant candidate.
        UnknownNameError: An unknown column, split, suffix or `bad_rows`.
    """
    tables, source = read_tables(files, header=header, columns=columns, delimiter=delimiter, quoting=quoting)
    fields: Fields = {
        "query": (query, check_text),
        "document": (document, check_text),
        "grade": (relevance, check_gold),
    }
    found, notes = check_rows(tables, fields, split_column=find_split_column(tables, split_column), bad_rows=bad_rows)
    rows = [CheckedRow({**row.values, "id": row.values["query"]}, row.split, row.place) for row in found]
    texts = {text: text for text in sorted({row.values["document"] for row in rows})}
    return _build(
        RerankingTask,
        rows,
        texts,
        name=name,
        source=source,
        notes=notes,
        validation_fraction=validation_fraction,
        seed=seed,
    )


def _build(
    kind: type[C], judged: Sequence[CheckedRow], documents: Mapping[str, str], *, notes: Sequence[str], **more: Any
) -> C:
    """Gather judgements query by query."""
    names = sorted(documents, reverse=True)  # trec_eval puts the higher name first where documents are equally near
    places = {name: place for place, name in enumerate(names)}
    queries = list(_gather(judged, places))
    kept = [row for row in queries if any(grade > 0 for grade in row.values["grades"])]
    if not kept:
        raise TaskError(f"task {more['name']!r} has no query with a relevant document: give grades above 0.")
    dropped = [f"{len(queries) - len(kept)} queries without a relevant document left out"] * (len(kept) < len(queries))
    corpus = tuple(documents[name] for name in names)
    return build_task(kind, kept, notes=(*notes, *dropped), corpus_ids=tuple(names), corpus=corpus, **more)


def _gather(judged: Sequence[CheckedRow], places: Mapping[str, int]) -> Iterator[CheckedRow]:
    gathered: dict[tuple[str | None, str], list[CheckedRow]] = {}
    for row in judged:
        gathered.setdefault((row.split, row.values["id"]), []).append(row)
    for (split, name), rows in gathered.items():
        grades = {places[row.values["document"]]: row.values["grade"] for row in rows}
        ordered = sorted(grades)
        yield CheckedRow(
            {
                "id": name,
                "query": rows[0].values["query"],
                "documents": ordered,
                "grades": [grades[place] for place in ordered],
            },
            split,
            rows[0].place,
        )


def load_retrieval_sample() -> RetrievalTask:
    """Load questions about notes on everyday things that were written for this project: no benchmark.

    Example:
        >>> load_retrieval_sample().n_rows()
        {'validation': 15, 'test': 25}
    """
    read = partial(
        read_retrieval_files,
        name="retrieval-sample",
        corpus="corpus.jsonl",
        queries="queries.jsonl",
        qrels="qrels.tsv",
    )
    return load_shipped("probes.tasks.zero_shot", "samples", read)


def load_reranking_sample() -> RerankingTask:
    """Load questions with four candidates each, of which one or two answer, written for this project: no benchmark.

    Example:
        >>> load_reranking_sample().metrics
        ('map', 'mrr')
    """
    read = partial(read_reranking_files, name="reranking-sample")
    return load_shipped("probes.tasks.zero_shot", "samples/reranking.csv", read)
