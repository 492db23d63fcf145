"""Texts of an adaptation: rows of tokens of a mixture of corpora, rows of texts that belong together, and the order."""

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from extract.errors import TaskError
from extract.files import digest_json
from extract.inputs.batches import stream_texts
from probes.adaptation.adapt_config import SHORTEST_ROW, CorpusPart, SscOptions
from probes.data.table_files import BadRow, check_text, read_raw, unknown_column
from probes.data.task_table import TASKS, load_task

DATA = "ICECORE_DATA"
TEXTS_PER_CALL = 256
MOST_CORPUS_TEXTS = 1_000_000
"""Texts taken of a corpus that goes by its name."""


def find_file(name: str) -> Path:
    """Find a file of texts: as it is named, or in the folder that `ICECORE_DATA` names."""
    path = Path(name).expanduser()
    local = Path(os.environ[DATA]) / name if os.environ.get(DATA) else path
    return local if not path.exists() and local.exists() else path


def plain_form(text: str) -> str:
    """Return what is compared of two texts: their words, without case and punctuation."""
    kept = (letter for letter in unicodedata.normalize("NFKC", text).casefold() if letter.isalnum() or letter.isspace())
    return " ".join("".join(kept).split())


@dataclass
class Excluded:
    """Texts that must not be trained on, and how many rows were dropped because they hold one, by where it is from."""

    sources: dict[str, frozenset[str]]
    dropped: Counter[str] = field(default_factory=Counter)

    def holds(self, texts: Iterable[str]) -> bool:
        """Whether one of some texts is excluded; such a row is counted for each source that has one of its texts."""
        forms = {plain_form(text) for text in texts}
        hits = [name for name, excluded in self.sources.items() if not forms.isdisjoint(excluded)]
        self.dropped.update(hits)
        return bool(hits)


def read_excluded(names: Sequence[str]) -> Excluded:
    """Read the texts of files, or of every split of tasks, that must not be trained on."""
    sources: dict[str, frozenset[str]] = {}
    for name in names:
        if name in TASKS:
            task = load_task(name)
            for split, rows in task.splits.items():
                texts = (text for column in task.text_columns for text in rows[column])
                sources[f"{name} {split}"] = frozenset(map(plain_form, texts))
        else:
            sources[Path(name).name] = frozenset(map(plain_form, stream_texts(find_file(name))))
    return Excluded(sources)


# --- Rows of tokens ---


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows of tokens of all parts of a mixture."""

    rows: tuple[NDArray[np.int64], ...]
    part_of: NDArray[np.int64]
    """`(N,)` part that each row is of."""
    shares: NDArray[np.float64]
    """`(P,)` share of each part."""
    has_bos: bool
    """Whether every row begins with the tokenizer's BOS token."""
    digest: str

    @property
    def n_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(map(len, self.rows))

    def draw(self, n: int, *, seed: int) -> NDArray[np.int64]:
        """Draw the rows of a whole training: parts by their shares, and each part's rows in one order after another."""
        generator = np.random.default_rng([seed, 1])
        parts = generator.choice(len(self.shares), size=n, p=self.shares)
        drawn = np.empty(n, np.int64)
        for part in range(len(self.shares)):
            rows, places = np.flatnonzero(self.part_of == part), np.flatnonzero(parts == part)
            rounds = -(-len(places) // len(rows))
            order = np.concatenate([generator.permutation(rows) for _ in range(rounds)] or [rows[:0]])
            drawn[places] = order[: len(places)]
        return drawn


def begins_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer writes its BOS token before a text."""
    ids = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def read_rows(
    parts: Sequence[CorpusPart],
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    held_out: int,
    excluded: Excluded,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[TokenRows, TokenRows]:
    """Read the rows to train on, and those held out, of at most `length` tokens each.

    Documents are cut into consecutive rows, none of which crosses a border; a rest of fewer than `SHORTEST_ROW` tokens
    is dropped. Whole documents are held out, the same ones whatever the seed: those whose digests are smallest, until
    there are enough rows.

    Raises:
        TaskError: A corpus is too small to hold out as many rows and train on others.
    """
    bos = [int(tokenizer.bos_token_id)] if begins_with_bos(tokenizer) else []
    documents: list[tuple[str, int, list[NDArray[np.int64]]]] = []
    for number, part in enumerate(parts):
        before, n_tokens = len(documents), 0
        for digest, ids in _tokenise(_read_documents(part, excluded), tokenizer):
            rows = _cut(ids, bos, length)
            if rows:
                documents.append((digest, number, rows))
                n_tokens += sum(map(len, rows))
        name = part.corpus or Path(part.files).name
        if len(documents) == before:
            raise TaskError(f"the corpus {name!r} holds no text of at least {SHORTEST_ROW} tokens; give another file.")
        report(f"{name}: {len(documents) - before:,} texts, {n_tokens:,} tokens")
    order = sorted(range(len(documents)), key=lambda i: documents[i][0])
    n_held, is_held = 0, [False] * len(documents)
    for i in order:
        if n_held >= held_out:
            break
        is_held[i], n_held = True, n_held + len(documents[i][2])
    weights = np.array([part.weight for part in parts])

    def gather(held: bool) -> TokenRows:
        chosen = [documents[i] for i in range(len(documents)) if is_held[i] == held]
        rows = tuple(row for _, _, rows in chosen for row in rows)
        part_of = np.array([part for _, part, rows in chosen for _ in rows], np.int64)
        if len({*part_of.tolist()}) < len(parts) and not held:
            raise TaskError(
                f"nothing is left to train on of a corpus once {held_out} rows are held out; give more texts, or lower "
                "training.held_out."
            )
        digest = digest_json([digest for digest, _, _ in chosen])
        return TokenRows(rows, part_of, weights / weights.sum(), bool(bos), digest)

    return gather(False), gather(True)


def _read_documents(part: CorpusPart, excluded: Excluded) -> Iterator[str]:
    for text in _read_texts(part):
        paragraphs = text if isinstance(text, list) else [text]
        kept = [paragraph for paragraph in paragraphs if str(paragraph).strip() and not excluded.holds([paragraph])]
        if kept:
            yield "\n".join(kept)


def _read_texts(part: CorpusPart) -> Iterable[str | list[str]]:
    if part.corpus:
        from probes.data.task import load_corpus

        return load_corpus(part.corpus, MOST_CORPUS_TEXTS, part.options).texts()
    return stream_texts(find_file(part.files), column=part.column)


def _tokenise(texts: Iterator[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, NDArray[np.int64]]]:
    some: list[str] = []
    for text in texts:
        some.append(text)
        if len(some) == TEXTS_PER_CALL:
            yield from _encode(some, tokenizer)
            some = []
    if some:
        yield from _encode(some, tokenizer)


def _encode(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, NDArray[np.int64]]]:
    rows = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False).input_ids
    for text, ids in zip(texts, rows, strict=True):
        yield hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), np.array(ids, np.int64)


def _cut(ids: NDArray[np.int64], bos: Sequence[int], length: int) -> list[NDArray[np.int64]]:
    room = length - len(bos)
    pieces = [ids[start : start + room] for start in range(0, len(ids), room)]
    return [np.array([*bos, *piece], np.int64) for piece in pieces if len(piece) + len(bos) >= SHORTEST_ROW]


# --- Texts that belong together ---


@dataclass(frozen=True, eq=False)
class TextRows:
    """Rows of texts: an anchor, its positive, and perhaps a hard negative; of views the anchor alone."""

    rows: tuple[tuple[str, ...], ...]
    digest: str

    def draw(self, n: int, *, seed: int) -> NDArray[np.int64]:
        """Draw the rows of a whole training, in one order after another."""
        generator = np.random.default_rng([seed, 2])
        rounds = -(-n // len(self.rows))
        orders = [generator.permutation(len(self.rows)) for _ in range(rounds)]
        return np.concatenate(orders or [np.zeros(0, np.int64)])[:n]


def read_text_rows(
    options: SscOptions, corpus: Sequence[CorpusPart], *, held_out: int, excluded: Excluded
) -> tuple[TextRows, TextRows]:
    """Read the rows of the contrastive objective to train on, and those held out; rows with an excluded text go.

    No text is in both: rows are held out by the digest of their anchor, and others that share a text with one are not
    trained on.

    Raises:
        UnknownNameError: A column that the file does not have.
        TaskError: An empty text, or too few rows.
    """
    rows = list(dict.fromkeys(row for row in _text_rows(options, corpus) if not excluded.holds(row)))
    order = sorted(rows, key=lambda row: hashlib.sha256(row[0].encode("utf-8", "surrogatepass")).hexdigest())
    held, rest = order[:held_out], {*order[held_out:]}
    known = {plain_form(text) for row in held for text in row}
    trained = [row for row in rows if row in rest and known.isdisjoint(map(plain_form, row))]
    if len(trained) < options.batch or len(held) < 2:
        raise TaskError(
            f"sscl has {len(trained)} rows to train on and {len(held)} held out; allowed: at least a batch of "
            f"{options.batch}, and 2. Give more rows, or lower objectives.sscl.batch."
        )
    return tuple(TextRows(tuple(some), digest_json(some)) for some in (trained, held))  # type: ignore[return-value]


def _text_rows(options: SscOptions, corpus: Sequence[CorpusPart]) -> Iterator[tuple[str, ...]]:
    if not options.files:
        for part in corpus:
            for text in _read_texts(part):
                yield from ((item,) for item in (text if isinstance(text, list) else [text]) if item.strip())
        return
    path = find_file(options.files)
    table = read_raw(path)
    columns = [name for name in (options.anchor, options.positive, options.negative) if name]
    for column in columns:
        if column not in table.columns:
            raise unknown_column(column, table)
    for row in table.rows:
        try:
            yield tuple(check_text(column, row.values[column]) for column in columns)
        except BadRow as error:
            raise TaskError(f"{table.location(row)}: {error}") from error
