"""Caches for other programs: a data frame of rows, an Arrow table, and Parquet, Arrow and safetensors files."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from extract.decoders.decoder_spec import Layers, select_from
from extract.errors import unknown_name
from extract.files import replacing_file
from extract.inputs.joined_text import JoinedText
from extract.store.items import Columns
from extract.store.writer import TORCH_STORAGE

if TYPE_CHECKING:
    import pyarrow as pa

    from extract.store.cache import LatentCache

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
            if pooling not in cache.poolings:
                raise unknown_name("pooling", pooling, cache.poolings)
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
        columns: Columns = {"text": [text if isinstance(text, str) else text.text for text in texts]}
        if cache.is_words:
            of_words = zip(texts, cache.items.keys[:, 2].tolist(), strict=True)
            columns["word"] = [_word(text, number) for text, number in of_words]
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


def _word(text: str | JoinedText, number: int) -> str:
    if isinstance(text, str):
        return ""
    start, end = text.spans[number]
    return text.text[start:end]


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


def _write_parquet(chosen: Selection, file: BinaryIO) -> None:
    import pyarrow.parquet as pq

    writer = None
    for batch in _record_batches(chosen):
        writer = writer or pq.ParquetWriter(file, batch.schema, compression="none", use_dictionary=False)
        writer.write_batch(batch)
    if writer:
        writer.close()


def _write_arrow(chosen: Selection, file: BinaryIO) -> None:
    import pyarrow as pa

    writer = None
    for batch in _record_batches(chosen):
        writer = writer or pa.ipc.new_stream(file, batch.schema)
        writer.write_batch(batch)
    if writer:
        writer.close()


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
    if path.suffix not in WRITERS:
        raise unknown_name("suffix of the file", path.suffix, WRITERS)
    with replacing_file(path) as opened:
        WRITERS[path.suffix](chosen, opened)
    return path
