"""Writing rows into a store such that no kill can damage it.

Every array is laid out and given its disk space before the first row is computed. After that HDF5 writes nothing:
rows go into the arrays with positioned writes, so the file's structure never changes again and a kill at any moment
leaves a readable file. A row is marked as written after its data, and as done once the weights that computed it were
compared with their digest. Several processes write disjoint rows of one file the same way. POSIX only.
docs/cache_format.md is the contract, docs/decisions/hdf5-writes.md says why.
"""

import glob
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder_spec import Layers, select_from
from extract.errors import CacheError, CacheLockedError, InputError, NonFiniteLatentError, require_name
from extract.files import replacing_file
from extract.inputs.batches import Batch
from extract.inputs.joined_text import JoinedText, plain_text
from extract.poolings.memory import empty_in_pages
from extract.store.format import (
    CERTIFICATE,
    CERTIFICATE_BYTES,
    CHECKSUMS,
    CLOSED,
    WRITTEN,
    StoredArray,
    checked_arrays,
    explained_errors,
    latent_path,
    locked_file,
    read_layout,
    rows_that_count,
)
from extract.store.items import Columns
from extract.store.manifest import Plain

if TYPE_CHECKING:
    import pyarrow as pa

    from extract.store.cache import LatentCache


_sync = getattr(os, "fdatasync", os.fsync)  # not every system has the cheaper one


class StoreWriter:
    """Writes rows into a laid-out store with positioned writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest, self._layout = read_layout(path)
        with explained_errors(path):
            self._fd = os.open(path, os.O_RDWR)
        for draft in path.parent.glob(f".{glob.escape(path.name)}.new-*"):  # a kill left the store its first name
            with suppress(OSError):
                if draft.samefile(path) and not draft.is_symlink():
                    draft.unlink()

    def close(self) -> None:
        """Close the file; a lock held through it ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the store for one writing process (or one group of them) until the block ends."""
        try:
            with locked_file(self._fd):
                yield
        except BlockingIOError as error:
            raise CacheLockedError(
                f"cache {str(self.path)!r} is being written by another process; wait for it, "
                "or stop it and run again (nothing it wrote is lost)."
            ) from error

    def done_rows(self) -> NDArray[np.bool_]:
        """Read which rows count."""
        return rows_that_count(self._read("/rows/is_done"), self._read("/certificate"))

    def is_whole(self) -> bool:
        """Whether all rows count and a certificate says what was proved of them."""
        return bool(self.done_rows().all() and self._read("/certificate").any())

    def write_rows(
        self,
        first: int,
        latents: StoredArray | Sequence[Sequence[StoredArray]],
        *,
        rows: dict[str, StoredArray],
        words: tuple[int, NDArray[np.uint8]] | None = None,
    ) -> None:
        """Write consecutive rows: latents, then the columns of the rows, then, once both are on disk, a mark.

        They count from `close_rows` on.
        """
        start = first if words is None else words[0]
        arrays = [
            (latent_path(self.manifest, pooling, layer), start, latents[k][p][:, : self.manifest.width(layer)])
            for k, layer in enumerate(self.manifest.layers)
            for p, pooling in enumerate(self.manifest.poolings)
        ]
        if words is not None:
            arrays.append(("/words/flags", start, words[1]))
        arrays += [(f"/rows/{name}", first, values) for name, values in rows.items()]
        n_rows = len(rows["digest"])
        with explained_errors(self.path):
            sums = {name: self._write(name, start, values) for name, start, values in arrays}
            if f"{CHECKSUMS}/blocks" in self._layout:  # a store that an earlier version laid out has no arrays for them
                ordered = np.array([[sums[name] for name in checked_arrays(self.manifest)]], np.uint32)
                self._write(f"{CHECKSUMS}/blocks", first, ordered)
                self._write(f"{CHECKSUMS}/n_rows", first, np.array([n_rows], np.int32))
            _sync(self._fd)
            self._write("/rows/is_done", first, np.full(n_rows, WRITTEN, np.uint8))

    def write_certificate(self, certificate: Plain) -> None:
        """Write the certificate, as JSON padded with zero bytes."""
        text = json.dumps(certificate, sort_keys=True).encode()
        if len(text) > CERTIFICATE_BYTES:
            raise CacheError(f"the certificate has {len(text)} bytes; at most {CERTIFICATE_BYTES} fit.")
        with explained_errors(self.path):
            crc = self._write("/certificate", 0, np.frombuffer(text.ljust(CERTIFICATE_BYTES, b"\0"), np.uint8))
            if CERTIFICATE in self._layout:
                self._write(CERTIFICATE, 0, np.array([crc], np.uint32))
            _sync(self._fd)

    def close_rows(self, first: int, n_rows: int) -> None:
        """Let consecutive rows that were written count."""
        with explained_errors(self.path):
            self._write("/rows/is_done", first, np.full(n_rows, CLOSED, np.uint8))

    def _read(self, name: str) -> NDArray[np.uint8]:
        array = self._layout[name]
        return np.frombuffer(os.pread(self._fd, array.n_bytes, array.offset), np.uint8)

    def _write(self, name: str, first: int, values: StoredArray) -> int:
        """Write rows of an array and return the CRC-32 of their bytes."""
        array = self._layout[name]
        view = np.ascontiguousarray(values, array.dtype).view(np.uint8).reshape(-1).data
        offset, crc = array.offset + first * array.row_bytes, zlib.crc32(view)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written
        return crc


# --- What is written: latents in the storage dtype, or the first that does not fit ---

TORCH_STORAGE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Unfit(NamedTuple):
    """The first latent that cannot be stored: its indices in `(L, P, N, D)`, and its value before rounding."""

    indices: tuple[int, ...]
    value: float


def round_latents(latents: Float[Tensor, "L P N D"], storage: str) -> tuple[Tensor, Int64[Tensor, " 3"]]:
    """Round latents to a storage dtype; also return a report on those that do not fit, for `read_report`.

    Both are on the device of the latents, which is not waited for.
    """
    dtype = TORCH_STORAGE[storage]
    is_stored = latents.dtype == dtype
    stored = latents if is_stored else empty_in_pages(latents.shape, dtype, device=latents.device).copy_(latents)
    # Whatever is not finite makes the sum so, at a fraction of the cost of asking every value. A sum may also overflow
    # by itself; only then every value is checked. A device is not asked, since it would be waited for.
    on_cpu = stored.device.type == "cpu"
    if stored.numel() == 0 or (on_cpu and math.isfinite(float(stored.sum(dtype=torch.float32)))):
        return stored, torch.zeros(3, dtype=torch.int64, device=stored.device)
    return stored, report_on(latents, stored)


def report_on(latents: Float[Tensor, "L P N D"], stored: Float[Tensor, "L P N D"]) -> Int64[Tensor, " 3"]:
    """Report on latents and how they are stored: whether one is not finite, the first position, its bits in float32."""
    width = stored.shape[-1]
    low, high = stored.reshape(-1, width).aminmax(dim=-1)  # NaN if one value is; nothing large is made
    row = (~(low.isfinite() & high.isfinite())).to(torch.uint8).argmax().reshape(1)
    is_unfit = ~stored.reshape(-1, width).index_select(0, row)[0].isfinite()
    column = is_unfit.to(torch.uint8).argmax().reshape(1)
    value = latents.reshape(-1, width).index_select(0, row)[0].index_select(0, column)
    bits = value.to(torch.float32).view(torch.int32).to(torch.int64)
    return torch.cat([is_unfit.any().reshape(1).to(torch.int64), row * width + column, bits])


def read_report(report: Int64[Tensor, " 3"], shape: Sequence[int]) -> Unfit | None:
    """Read the report of `round_latents`, in main memory, on latents of a shape; None where all of them fit."""
    is_unfit, position, bits = report.tolist()
    if not is_unfit:
        return None
    value = float(np.array(bits, np.int32).view(np.float32))
    return Unfit(tuple(int(axis) for axis in np.unravel_index(position, tuple(shape))), value)


def refuse_latent(value: float, *, where: str, storage: str, dtype: str) -> NonFiniteLatentError:
    """Build the error for a latent that cannot be stored: its value before rounding, where it is, and both dtypes."""
    if math.isfinite(value):
        cause = f"does not fit the storage dtype {storage}; choose storage_dtype bfloat16 or float32"
    elif dtype == "float32":
        cause = "is not finite although computed in float32; check the decoder's weights"
    else:
        cause = f"is not finite; compute in float32 or bfloat16 instead of {dtype}"
    return NonFiniteLatentError(f"latent {value:g} at {where} {cause}. Rows that are done stay.")


def name_latent(batch: Batch, number: int, texts: Sequence[str | JoinedText]) -> str:
    """Name the text, or the word and its text, of a row or word of a batch; `texts` are the caller's."""
    if batch.words is None:
        position = int(batch.positions[number])
        text = texts[position]
        return f"text {position} ({plain_text(text)[:40]!r})"
    ends = np.cumsum(batch.words.n_words)
    row = int(np.searchsorted(ends, number, side="right"))
    position = int(batch.positions[row])
    word = number - int(ends[row] - batch.words.n_words[row]) + int(batch.words.word_start[row])
    text = texts[position]
    assert isinstance(text, JoinedText)
    first, last = text.spans[word]
    return f"word {word} ({text.text[first:last][:40]!r}) of text {position} ({text.text[:40]!r})"


# Caches for other programs: a data frame of rows, an Arrow table, and Parquet, Arrow and safetensors files.


BLOCK_BYTES = 1 << 26
"""Latents held at a time while a file is written."""
METADATA = "icecore"
"""Key of the identity, as JSON, in the metadata of every file."""
SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int32": "I32", "int64": "I64"}


@dataclass(frozen=True, eq=False)
class Selection:
    """The part of a cache that goes into a table or file: of some layers and poolings (all when empty).

    With `texts`, their latents in this order, and a column `text`; else all latents, with a column `text` where the
    cache keeps its texts.
    """

    cache: "LatentCache"
    layers: Layers = "all"
    poolings: Sequence[str] = ()
    texts: Sequence[str | JoinedText] | None = None
    arrays: tuple[tuple[str, str], ...] = field(init=False)
    positions: Int64[np.ndarray, " P"] | None = field(init=False)

    def __post_init__(self) -> None:
        """Resolve names and texts; raises as `LatentCache.layer`, `rows_of` and `words_of`."""
        cache = self.cache
        for pooling in self.poolings:
            require_name("pooling", pooling, cache.poolings)
        names = select_from(self.layers, cache.layers)
        arrays = tuple((pooling, layer) for pooling in self.poolings or cache.poolings for layer in names)
        object.__setattr__(self, "arrays", arrays)
        object.__setattr__(self, "positions", None if self.texts is None else cache.items.positions_of(self.texts))

    def __len__(self) -> int:
        """Latents of every layer: of texts, or of words."""
        return len(self.cache.items) if self.positions is None else len(self.positions)

    def columns(self) -> Columns:
        """Describe every latent: `text_id`, `n_tokens` and `is_truncated`; of words also which, and whether it has one.

        `text_id` is the digest of the text, hexadecimal. With texts, also `text`, and of words `word`.
        """
        items, chosen = self.cache.items, slice(None) if self.positions is None else self.positions
        rows = items.row_of_latent[chosen]
        ids = np.ascontiguousarray(items.keys[chosen, :2]).view(np.uint8).reshape(-1, 16)
        return {
            **self._text_columns(rows),
            "text_id": [digest.tobytes().hex() for digest in ids],
            **items.columns(chosen),
            "n_tokens": self.cache.n_tokens[rows],
            "is_truncated": self.cache.is_truncated[rows],
        }

    def _text_columns(self, rows: Int64[np.ndarray, " P"]) -> Columns:
        """Write the texts of all latents into columns: those that were given, or else that the cache keeps."""
        cache = self.cache
        if self.texts is not None:
            return cache.items.text_columns(self.texts)
        if not cache.keeps_texts:
            return {}
        texts = [cache.texts[row] for row in rows.tolist()]
        columns: Columns = {"text": list(map(plain_text, texts))}
        if cache.is_words:
            of_words = zip(texts, cache.items.keys[:, 2].tolist(), strict=True)
            columns["word"] = [
                text.text[slice(*text.spans[number])] if isinstance(text, JoinedText) else ""
                for text, number in of_words
            ]
        return columns

    def read(self, start: int, stop: int, pooling: str, layer: str) -> Tensor:
        """Read some of the latents of one layer into memory, `(stop - start, D)` in the stored dtype."""
        if self.positions is None:
            latents = self.cache.read(start, stop, pooling, layers=[layer])
        else:
            latents = self.cache.gather(self.positions[start:stop], pooling, layers=[layer])
        return latents[0].to(TORCH_STORAGE[self.cache.read_dtype])

    def blocks(self, n_arrays: int) -> Iterator[tuple[int, int]]:
        """Divide the latents into ranges of at most `BLOCK_BYTES` over `n_arrays` arrays."""
        widest = max(self.cache.width_of([layer]) for _, layer in self.arrays)
        size = max(1, BLOCK_BYTES // (n_arrays * widest * 4))
        return ((start, min(start + size, len(self))) for start in range(0, len(self), size))

    @property
    def metadata(self) -> dict[str, str]:
        """The identity of the cache as metadata of a file."""
        return {METADATA: json.dumps(self.cache.identity.to_plain(), sort_keys=True)}


def arrow_table(chosen: Selection) -> "pa.Table":
    """Return latents as an Arrow table: a column of lists per pooling and layer beside `Selection.columns`.

    Without texts, float32 and float16 latents stay in the mapped file. Arrow has no bfloat16, which becomes float32.
    """
    import pyarrow as pa

    cache, latents = chosen.cache, {}
    for pooling, layer in chosen.arrays:
        is_mapped = chosen.positions is None and cache.read_dtype != "bfloat16"
        whole = cache.layer(layer, pooling) if is_mapped else chosen.read(0, len(chosen), pooling, layer)
        latents[f"{pooling}/{layer}"] = _lists(whole)
    return pa.table({**chosen.columns(), **latents}).replace_schema_metadata(chosen.metadata)


def _lists(latents: Tensor) -> "pa.Array":
    import pyarrow as pa

    values = (latents.float() if latents.dtype == torch.bfloat16 else latents).numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _record_batches(chosen: Selection) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    described = pa.table(chosen.columns()).combine_chunks()
    for start, stop in chosen.blocks(len(chosen.arrays)):
        latents = {
            f"{pooling}/{layer}": _lists(chosen.read(start, stop, pooling, layer)) for pooling, layer in chosen.arrays
        }
        part = {name: described[name].chunk(0)[start:stop] for name in described.column_names}
        yield pa.RecordBatch.from_pydict({**part, **latents}, metadata=chosen.metadata)


def _write_batches(chosen: Selection, open_writer: Callable[["pa.Schema"], Any]) -> None:
    writer = None
    for batch in _record_batches(chosen):
        writer = writer or open_writer(batch.schema)
        writer.write_batch(batch)
    if writer:
        writer.close()


def _write_parquet(chosen: Selection, file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    _write_batches(chosen, partial(pq.ParquetWriter, file, compression="none", use_dictionary=False))


def _write_arrow(chosen: Selection, file: BinaryIO) -> None:
    import pyarrow as pa

    _write_batches(chosen, partial(pa.ipc.new_stream, file))


def _write_safetensors(chosen: Selection, file: BinaryIO) -> None:
    """Write the format's header and one tensor after the other: its own library would hold all of them in memory."""
    columns = {name: np.asarray(values) for name, values in chosen.columns().items() if not isinstance(values, list)}
    columns = {name: values.astype(np.uint8) if values.dtype == bool else values for name, values in columns.items()}
    storage = chosen.cache.read_dtype
    shapes = {
        f"{pooling}/{layer}": (storage, [len(chosen), chosen.cache.width_of([layer])])
        for pooling, layer in chosen.arrays
    }
    shapes |= {name: (str(values.dtype), [len(values)]) for name, values in columns.items()}
    header: Columns = {"__metadata__": chosen.metadata}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + int(np.prod(shape)) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for pooling, layer in chosen.arrays:
        for start, stop in chosen.blocks(1):
            file.write(chosen.read(start, stop, pooling, layer).contiguous().view(torch.uint8).numpy().data)
    for values in columns.values():
        file.write(np.ascontiguousarray(values).tobytes())


WRITERS: dict[str, Callable[[Selection, BinaryIO], None]] = {
    ".parquet": _write_parquet,
    ".arrow": _write_arrow,
    ".safetensors": _write_safetensors,
}
"""The writer of a file, by its suffix."""


def export_cache(chosen: Selection, file: str | Path) -> Path:
    """Write latents to a file by its suffix, one of `WRITERS`; memory does not grow with the cache.

    Parquet and Arrow (the stream format of `datasets`) have a row per text or word, with bfloat16 as float32. In
    safetensors every pooling and layer is a tensor in the stored dtype; texts are not stored.
    """
    path = Path(file)
    require_name("suffix of the file", path.suffix, WRITERS)
    if not len(chosen):
        raise InputError("there are no texts to export; give at least one, or leave texts out to export all.")
    with replacing_file(path) as opened:
        WRITERS[path.suffix](chosen, opened)
    return path
