"""Batches by length, under a token budget and with almost no padding; texts of files of any size."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8
from numpy.typing import NDArray
from torch import Tensor

from extract.errors import NAME_COLUMN, InputError, first_line, require_name, unknown_name
from extract.files import csv_records
from extract.inputs.joined_text import CONTEXT, PADDING, TEXT
from extract.inputs.tokens import EncodedText

Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and counts."""
Side = Literal["right", "left"]
PARQUET_ROWS = 1024
"""Rows of a Parquet file in memory."""


@dataclass(frozen=True)
class BatchWords:
    """The `W` words of a batch of `B` rows, row by row."""

    starts: NDArray[np.int64]
    """`(W,)` first token that each word is read at, as row times columns plus column."""
    counts: NDArray[np.int64]
    """`(W,)` tokens that it is read at, from there on; 0 where it has no latent."""
    flags: NDArray[np.uint8]
    """`(W,)` bits of `extract.inputs.joined_text`."""
    n_words: NDArray[np.int32]
    """`(B,)` words per row."""
    word_start: NDArray[np.int32]
    """`(B,)` position of a row's first word among the words of its text."""
    first_word: int = 0
    """Position of the first word of the batch in the cache."""
    echo: Ranges | None = None
    """`starts` and `counts` in the last copy of a text."""


@dataclass(frozen=True)
class BatchWindows:
    """Which of the `W` windows of a text a batch holds; its latents are joined into one row of the cache."""

    counts: NDArray[np.int64]
    """`(W,)` tokens that each window of the text is pooled over."""
    first: int
    """Position of the batch's first window."""
    n_tokens: int
    """Tokens of the whole text, specials and instruction once."""

    def before(self, n_rows: int) -> Float[Tensor, "B 1"]:
        """Count the tokens that the windows before each row of the batch are pooled over."""
        ends = torch.from_numpy(self.counts.cumsum() - self.counts)
        return ends[self.first : self.first + n_rows].to(torch.float32).unsqueeze(1)


@dataclass(frozen=True)
class Batch:
    """`B` rows that go through the decoder together."""

    rows: NDArray[np.int64]
    """`(B,)` position of each row in the cache; the same for all windows of a text."""
    positions: NDArray[np.int64]
    """`(B,)` position of each text in the caller's list."""
    ids: Int[Tensor, "B T"]
    """Padding holds an arbitrary valid id."""
    is_real: Bool[Tensor, "B T"]
    """Not padding."""
    roles: Int8[Tensor, "B T"]
    """Role of each token (`extract.inputs.tokens`), `PADDING` elsewhere."""
    copies: Int8[Tensor, "B T"]
    """Copy of the text that each token is of, from 1; 0 outside the text."""
    last: Int[Tensor, " B"]
    """Column that the pooling `last` reads."""
    n_tokens: NDArray[np.int32]
    """`(B,)` real tokens per row."""
    is_truncated: NDArray[np.bool_]
    """`(B,)`."""
    spans: Int[Tensor, "B T"] | None = None
    """Span numbers for the hybrid mask; None where no text has spans."""
    words: BatchWords | None = None
    """The words to read; None where whole texts are pooled."""
    windows: BatchWindows | None = None
    """Where all rows are windows of one text."""
    placeholder: Int[Tensor, " B"] | None = None
    """Column of the placeholder that a plan prepends; None without one."""
    texts: tuple[EncodedText, ...] = ()
    """What each row was made from, of which it can be made again."""

    @property
    def is_text(self) -> Bool[Tensor, "B T"]:
        """Where a token has the role `text`, in any copy."""
        return self.roles == TEXT

    @property
    def is_padded(self) -> bool:
        """Whether any column of any row is padding."""
        return int(self.n_tokens.sum()) != self.ids.numel()

    @property
    def n_shared(self) -> int:
        """How many tokens all rows begin with before their texts, as a template writes them; not all of a row."""
        is_shared = (self.is_real & ~self.is_text & (self.ids == self.ids[:1])).all(0)
        return min(int(is_shared.cumprod(0).sum()), self.ids.shape[1] - 1)


def group_by_length(
    lengths: Sequence[int],
    *,
    batch_tokens: int,
    min_tokens: int = 0,
    max_padding: float = 0.1,
    split_length: int | None = None,
) -> list[list[int]]:
    """Group texts into batches of equal or nearly equal length, by their positions.

    Batches hold one exact length. A length with too few tokens to keep the machine busy is joined with the next
    longer ones while the padding stays under a bound. The result depends on the arguments alone, so that a resumed
    extraction computes the very same batches. The longest texts come first, so that the batch that needs the most
    memory fails early.

    Example:
        >>> group_by_length([3, 5, 3], batch_tokens=100)
        [[1], [0, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        is_apart = bool(split_length and batches and lengths[batches[-1][-1]] <= split_length < lengths[i])
        if batches and not is_apart and _fits(batches[-1], lengths, i, (batch_tokens, min_tokens, max_padding)):
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches[::-1]


def _fits(batch: list[int], lengths: Sequence[int], i: int, limits: tuple[int, int, float]) -> bool:
    batch_tokens, min_tokens, max_padding = limits
    width, n_padded = lengths[i], (len(batch) + 1) * lengths[i]
    if n_padded > batch_tokens:
        return False
    if width == lengths[batch[-1]]:
        return True
    n_real = sum(lengths[k] for k in batch)
    return n_real < min_tokens and 1 - (n_real + width) / n_padded <= max_padding


def group_texts(
    texts: Sequence[EncodedText], *, batch_tokens: int, min_tokens: int, split_length: int | None = None
) -> list[list[int]]:
    """Group texts as `group_by_length` does; one that is read in windows is a group by itself, ahead of the others."""
    whole = [i for i, text in enumerate(texts) if not text.windows]
    groups = group_by_length(
        [len(texts[i].ids) for i in whole],
        batch_tokens=batch_tokens,
        min_tokens=min_tokens,
        split_length=split_length,
    )
    return [[i] for i, text in enumerate(texts) if text.windows] + [[whole[k] for k in group] for group in groups]


def collate_group(
    texts: Sequence[EncodedText], rows: Sequence[int], *, batch_tokens: int, first_word: int = 0
) -> Iterator[Batch]:
    """Yield the batch of a group of texts; of one in windows, batches of as many windows as `batch_tokens` hold."""
    positions, windows = [text.index for text in texts], texts[0].windows
    if not windows:
        yield collate(texts, rows, positions=positions, first_word=first_word)
        return
    counts = np.array([(window.roles == TEXT).sum() for window in windows], np.int64)
    n_rows = max(1, batch_tokens // len(windows[0].ids))  # all are as long as a row may be
    for first in range(0, len(windows), n_rows):
        some = windows[first : first + n_rows]
        batch = collate(some, [*rows] * len(some), positions=positions * len(some))
        yield replace(batch, windows=BatchWindows(counts, first, len(texts[0].ids)))


def collate(
    texts: Sequence[EncodedText],
    rows: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    pad_id: int = 0,
    side: Side | Sequence[Side] = "right",
    width: int | None = None,
    first_word: int = 0,
) -> Batch:
    """Put encoded texts, at least one, into one batch on the CPU.

    `rows` are positions in the cache, `positions` those in the caller's list, and `first_word` is the position of the
    first word of the batch in the cache. Padding, on one `side` or on that of each row, is masked, never recognised by
    its id. The batch is `width` columns wide, or as wide as the longest text.
    """
    lengths = [len(text.ids) for text in texts]
    columns = max(lengths) if width is None else max(width, *lengths)
    sides = [side] * len(texts) if isinstance(side, str) else side
    begins = [0 if side == "right" else columns - length for side, length in zip(sides, lengths, strict=True)]

    def pad(arrays: Iterable[NDArray[np.generic]], value: int | bool, dtype: type[np.generic]) -> Tensor:
        padded = np.full((len(texts), columns), value, dtype)
        for row, (array, start) in enumerate(zip(arrays, begins, strict=True)):
            padded[row, start : start + len(array)] = array
        return torch.from_numpy(padded)

    has_spans = any(text.spans is not None for text in texts)
    spans = (np.full(len(text.ids), CONTEXT) if text.spans is None else text.spans for text in texts)
    placeholders = [
        text.placeholder + start for text, start in zip(texts, begins, strict=True) if text.placeholder is not None
    ]
    return Batch(
        rows=np.asarray(rows, np.int64),
        positions=np.asarray(rows if positions is None else positions, np.int64),
        ids=pad([text.ids for text in texts], pad_id, np.int64),
        is_real=pad([np.ones(length, np.bool_) for length in lengths], value=False, dtype=np.bool_),
        roles=pad([text.roles for text in texts], PADDING, np.int8),
        copies=pad([text.copies for text in texts], 0, np.int8),
        last=torch.tensor([start + text.last_column for text, start in zip(texts, begins, strict=True)]),
        n_tokens=np.asarray(lengths, np.int32),
        is_truncated=np.asarray([text.is_truncated for text in texts], np.bool_),
        spans=pad(spans, CONTEXT, np.int64) if has_spans else None,
        placeholder=torch.tensor(placeholders) if len(placeholders) == len(texts) else None,
        words=_collate_words(texts, begins, columns=columns, first_word=first_word),
        texts=tuple(texts),
    )


def _collate_words(
    texts: Sequence[EncodedText], begins: Sequence[int], *, columns: int, first_word: int
) -> BatchWords | None:
    """Put the words of rows of `columns` columns into one list; `begins` is the first real column of each row."""
    by_row = [text.words for text in texts if text.words is not None]
    if len(by_row) < len(texts):
        return None

    def join(ranges: Sequence[NDArray[np.int64]]) -> Ranges:
        starts = [some[:, 0] + row * columns + begins[row] for row, some in enumerate(ranges)]
        return np.concatenate(starts), np.concatenate([some[:, 1] - some[:, 0] for some in ranges])

    echoes = [words.echo for words in by_row if words.echo is not None]
    starts, counts = join([words.columns for words in by_row])
    return BatchWords(
        starts=starts,
        counts=counts,
        flags=np.concatenate([words.flags for words in by_row]),
        n_words=np.array([len(words.flags) for words in by_row], np.int32),
        word_start=np.array([words.start for words in by_row], np.int32),
        first_word=first_word,
        echo=join(echoes) if len(echoes) == len(by_row) else None,
    )


@dataclass(frozen=True)
class TextStream:
    """The texts of a file or folder, which are read again whenever it is iterated; see `stream_texts`."""

    files: tuple[Path, ...]
    column: str

    def __iter__(self) -> Iterator[str]:
        for file in self.files:
            try:
                yield from READERS[file.suffix.lower()](file, self.column)
            except (OSError, ValueError, RecursionError) as error:  # one that Arrow raises is one of them
                raise InputError(f"{str(file)!r} cannot be read ({first_line(error)}); give a sound file.") from error


def stream_texts(path: str | Path, *, column: str = "text") -> TextStream:
    """Read the texts of a file of any size, a few at a time.

    Args:
        path: A `.txt` file with a text on each line, of which blank ones are skipped; a `.jsonl` file with an
            object on each line; a `.csv` or `.tsv` file with a header; a `.parquet` file; or a folder of such files,
            read in the order of their names.
        column: The column of the texts, where the file is a table.

    Raises:
        InputError: No such file, or a folder without any; while reading, a file that is damaged.
        UnknownNameError: Another suffix; while reading, a column that the table does not have.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no file {str(path)!r}; give one of {', '.join(READERS)}, or a folder of them.")
    if path.is_dir():
        files = tuple(sorted(file for file in path.iterdir() if file.suffix.lower() in READERS))
        if not files:
            raise InputError(f"folder {str(path)!r} holds no texts; allowed: files of {', '.join(READERS)}.")
        return TextStream(files, column)
    if path.suffix.lower() not in READERS:
        raise unknown_name("suffix of a file of texts", path.suffix, READERS)
    return TextStream((path,), column)


def _read_lines(file: Path, _: str) -> Iterator[str]:
    with file.open(encoding="utf-8-sig") as lines:
        yield from filter(str.strip, (line.rstrip("\n") for line in lines))


def _read_objects(file: Path, column: str) -> Iterator[str]:
    for line in _read_lines(file, column):
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"the line {line[:40]!r} is no object")  # `TextStream` adds the file
        require_name(f"column of {str(file)!r}", column, row, hint=NAME_COLUMN)
        yield row[column]


def _read_table(file: Path, column: str) -> Iterator[str]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv_records(lines, "\t" if file.suffix.lower() == ".tsv" else ",", is_strict=True)
        try:
            names = next(rows, None)
            if names is None:
                raise InputError(
                    f"the file {str(file)!r} is empty; it needs a header that names its columns, and rows."
                )
            require_name(f"column of {str(file)!r}", column, names, hint=NAME_COLUMN)
            at = names.index(column)
            for row in filter(None, rows):
                if len(row) <= at:
                    raise ValueError(f"line {rows.line_num}: {len(row)} instead of {len(names)} columns")
                yield row[at]
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: {error}") from error


def _read_parquet(file: Path, column: str) -> Iterator[str]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        require_name(f"column of {str(file)!r}", column, table.schema_arrow.names, hint=NAME_COLUMN)
        for batch in table.iter_batches(PARQUET_ROWS, columns=[column]):
            yield from batch.column(0).to_pylist()


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _read_lines,
    ".jsonl": _read_objects,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
}
"""Readers of the texts of a file, by its suffix."""
