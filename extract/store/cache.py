"""Reading a cache: no decoder, no tokenizer, no dataset; a layer costs one layer's bytes."""

import copy
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from html import escape
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt64
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.decoder_spec import Layer, Layers, select_from, select_one
from extract.errors import (
    CacheError,
    CacheIncompleteError,
    CacheWarning,
    IcecoreError,
    first_line,
    printable,
    require_name,
)
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, JoinedText, digest_texts
from extract.store.format import CHECKSUMS, StoredArray, latent_path, read_layout, rows_that_count
from extract.store.items import CachedTexts, CachedWords, WordPlaces, read_kept, row_keys, texts_file
from extract.store.manifest import (
    STORAGE_DTYPES,
    CacheIdentity,
    Manifest,
    Plain,
    flatten,
    require_same,
    view_identity,
    view_parts,
)
from extract.store.reader import (
    INDEX,
    LocalFiles,
    Shard,
    StoreReader,
    digest_file,
    open_files,
    parse_index,
    require_arrays,
    require_shard,
    require_sound,
    shard_file,
)

if TYPE_CHECKING:
    import datasets
    import pandas as pd

MEAN_OF = "mean_of"
"""Field of a template that lists those of the parts of a mean."""
OF_PARTS = ("template", "poolings", "layers", "words", "chat")
"""Fields of an identity that may differ between the parts of a mean."""


class LatentCache:
    """A latent cache, open for reading: of whole texts, or of words.

    The file is mapped, never held open through HDF5, so a cache can be pickled and shared with DataLoader workers,
    forked or spawned. Views are copy-on-write: changing one never changes the file.

    Args:
        path: The file.
        expected: CacheIdentity the cache must have; any when absent.
        allow_partial: Read a half-done cache; rows that are not done hold arbitrary values.

    Raises:
        CacheError: No such file, or no readable cache.
        CacheIdentityError: The cache holds something other than `expected`; names the differing fields.
        CacheIncompleteError: Some rows are not done and `allow_partial` is off.

    Example:
        >>> cache = LatentCache(getfixture("tiny_cache"))
        >>> cache.layer("block_01", "mean").shape == (len(cache), cache.width)
        True
    """

    _texts: Sequence[str | JoinedText] | None = None
    """Those of the extraction, where it has just been made."""

    def __init__(self, path: str | Path, *, expected: CacheIdentity | None = None, allow_partial: bool = False) -> None:
        self.path = Path(path)
        self._file = StoreReader.of_file(self.path)
        self.manifest = self._file.manifest
        self._require(expected, allow_partial=allow_partial)

    def _require(self, expected: CacheIdentity | None, *, allow_partial: bool) -> None:
        """Refuse a cache of another identity, and one that is half done."""
        if expected is not None:
            require_same(self.identity.to_plain(), expected.to_plain(), where=repr(self._file.name))
        if not allow_partial and not self.is_complete:
            raise CacheIncompleteError(
                f"cache {self._file.name!r} is half done: {self._progress()}. "
                "Run the extraction again to go on where it stopped."
            )

    def _progress(self) -> str:
        state = "no certificate yet" if self.n_done == len(self) else "the rest is missing"
        return f"{self.n_done} of {len(self)} rows, {state}"

    def shown_as(self, identity: CacheIdentity) -> "LatentCache":
        """Return this cache as one of another identity, which differs in layers and poolings that it leaves out."""
        shown = copy.copy(self)
        shown.manifest = Manifest(identity, self.manifest.provenance)
        return shown

    def with_texts(self, texts: Sequence[str | JoinedText]) -> "LatentCache":
        """Return this cache with its texts beside it, in whose order `numpy.asarray` gives its latents."""
        shown = copy.copy(self)  # without `texts`, as a pickle
        shown._texts = texts
        return shown

    def __getstate__(self) -> dict[str, object]:
        return {**{key: value for key, value in vars(self).items() if key != "texts"}, "_texts": None}  # for workers

    @property
    def keeps_texts(self) -> bool:
        """Whether its texts are kept beside it (`store_texts`)."""
        return all(self._file.files.exists(texts_file(name)) for name in self._file.names)

    @cached_property
    def texts(self) -> tuple[str | JoinedText, ...]:
        """The text of every row, in the order of the rows, where they were kept (`store_texts`) or just extracted.

        Raises:
            CacheError: Texts that were not kept, or a file of texts that is damaged.
        """
        texts = self._read_texts() if self._texts is None else list(self._texts)
        if texts is None:
            raise CacheError(
                f"cache {self._file.name!r} holds digests of its texts and not the texts; extract it again with "
                "store_texts (--extraction.store_texts true), which adds them and computes nothing, or use "
                "cache.with_texts(texts)."
            )
        numbers = {digest.tobytes(): number for number, digest in enumerate(digest_texts(texts))}
        rows = [numbers.get(key.tobytes()) for key in row_keys(self._file)]
        if missing := rows.count(None):
            raise CacheError(
                f"the texts that are kept beside cache {self._file.name!r} lack those of {missing} of {len(self)} "
                "rows: they are damaged, or of another cache; extract again with store_texts."
            )
        return tuple(texts[number] for number in rows if number is not None)

    def _read_texts(self) -> list[str | JoinedText] | None:
        """Read the texts that are kept, in the order of the extraction; None where there are none of some shard."""
        kept = [read_kept(self._file.files, name) for name in self._file.names]
        return None if None in kept else [text for texts in kept for text in texts or ()]

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return latents `(L, N, D)` in float32, of the texts that were extracted in their order, or of their words.

        Raises:
            CacheError: A cache that was opened from a file, which has rows in an order of its own and no texts;
                one of several poolings; or layers that differ in width.
            ValueError: `copy=False`: latents are gathered into new memory.
        """
        if copy is False:
            raise ValueError("latents of a cache are gathered into new memory; leave copy=False out.")
        texts = self._read_texts() if self._texts is None else self._texts
        if texts is None:
            raise CacheError(
                f"cache {self.path.name!r} was opened from its file, which holds no texts and its rows in an order of "
                "its own; use cache.gather(cache.rows_of(texts), pooling), or cache.with_texts(texts) first."
            )
        if len(self.poolings) > 1:
            raise CacheError(
                f"cache {self.path.name!r} has the poolings {', '.join(self.poolings)}, which are no single array; use "
                "cache.gather(cache.rows_of(texts), pooling)."
            )
        latents = self.gather(self.items.positions_of(texts), self.poolings[0]).numpy()
        return latents if dtype is None else latents.astype(dtype)

    def __repr__(self) -> str:
        items = f"{self.n_words:,} words" if self.is_words else f"{len(self):,} texts"
        poolings = "+".join(self.poolings)
        return printable(
            f"<cache {self.path.name}: {items}, {len(self.layers)} layers, {poolings}, {self.storage_dtype}\n"
            f" of {self.manifest.provenance.get('decoder', {}).get('name', 'a decoder')} under the plan "
            f"{self.identity.plan}, {self.n_bytes / 1e6:,.1f} MB{'' if self.is_complete else ', half done'}>"
        )

    def _repr_html_(self) -> str:
        """Write what the cache holds as a table of HTML, for a notebook."""
        decoder, items = self.manifest.provenance.get("decoder", {}), "words" if self.is_words else "texts"
        rows = {
            items: f"{len(self.items):,}, {int(self.is_truncated.sum()):,} texts truncated",
            "decoder": f"{decoder.get('name', '-')} ({decoder.get('n_layers', '-')} blocks)",
            "plan": self.identity.plan,
            "layers": f"{len(self.layers)}: {self.layers[0]} to {self.layers[-1]}",
            "poolings": ", ".join(self.poolings),
            "stored as": f"{self.storage_dtype}, {self.n_bytes / 1e6:,.1f} MB",
            "state": "complete and certified" if self.is_complete else f"half done, {self._progress()}",
        }
        cells = (f"<tr><th>{escape(key)}</th><td>{escape(printable(value))}</td></tr>" for key, value in rows.items())
        return f"<b>Cache {escape(printable(self.path.name))}</b><table>{''.join(cells)}</table>"

    def __len__(self) -> int:
        """Number of rows: one a text, or several for a text that was read in windows."""
        return self.manifest.n_rows

    @property
    def identity(self) -> CacheIdentity:
        """What the cache holds; equal identities hold equal latents."""
        return self.manifest.identity

    @property
    def layers(self) -> tuple[str, ...]:
        """Layer names, bottom up."""
        return self.manifest.layers

    @property
    def poolings(self) -> tuple[str, ...]:
        """Pooling names, of words where the cache holds words."""
        return self.manifest.poolings

    @property
    def default_pooling(self) -> str:
        """What a head reads that names no pooling: the first; several are joined by `+`."""
        return self.poolings[0]

    def view_tokens(self) -> dict[str, int]:
        """Count the tokens of all texts in each view; nothing where there are no views."""
        return {}

    def plan_of(self, pooling: str) -> str:
        """Return the plan that the latents of a pooling were computed under; views may have one each."""
        del pooling
        return self.identity.plan

    @property
    def is_words(self) -> bool:
        """Whether the latents are those of words."""
        return self.manifest.words is not None

    @property
    def n_words(self) -> int:
        """Words over all texts, those without a latent too; 0 for whole texts."""
        return self.manifest.n_words

    @cached_property
    def items(self) -> CachedTexts:
        """What the latents are of, by their positions: texts, or words."""
        return CachedWords(self._file) if self.is_words else CachedTexts(self._file)

    @property
    def width(self) -> int:
        """Dimension `D` of a latent; `CacheError` where taps make it differ between layers."""
        return self.width_of(self.layers)

    def width_of(self, layers: Sequence[str]) -> int:
        """Return the width that layers share; `CacheError` where they do not."""
        widths = {self.manifest.width(layer): layer for layer in layers}
        if len(widths) > 1:
            listed = ", ".join(f"{layer} is {width} wide" for width, layer in widths.items())
            raise CacheError(
                f"layers of cache {str(self.path)!r} differ in width ({listed}), so they do not go into one array or "
                "head; choose layers of one width."
            )
        return next(iter(widths))

    @property
    def storage_dtype(self) -> str:
        """`float32`, `float16` or `bfloat16`."""
        return self.manifest.storage_dtype

    @property
    def read_dtype(self) -> str:
        """The dtype that `layer` gives: the stored one, unless the mean of several caches is read."""
        return self.storage_dtype

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of the cache."""
        return (self.path,)

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return self.path.stat().st_size

    @property
    def n_done(self) -> int:
        """Rows that are done."""
        return int(rows_that_count(self._file.map("/rows/is_done"), self._file.map("/certificate")).sum())

    @property
    def is_complete(self) -> bool:
        """Whether every row is done and the certificate is written."""
        return self.n_done == len(self) and bool(self.certificate)

    @property
    def has_checksums(self) -> bool:
        """Whether the latents can be verified; caches of early versions carry no checksums."""
        return f"{CHECKSUMS}/blocks" in self._file.layouts[0]

    def verify(self) -> None:
        """Compare every finished row with its checksums, if it carries any: `CacheError` where one does not match.

        Texts that are kept are compared with the digests in the rows.
        """
        self.verify_latents()
        if (texts := self._read_texts()) is not None:
            self.with_texts(texts).texts  # noqa: B018 - compared

    def verify_latents(self) -> None:
        """Verify latents and certificate alone, not the texts that are kept beside them."""
        require_sound(self.path)

    @property
    def certificate(self) -> Plain:
        """The certificate written when the extraction ended; empty before that."""
        text = self._file.map("/certificate").tobytes().rstrip(b"\0")
        try:
            return dict(json.loads(text)) if text else {}
        except (ValueError, TypeError, RecursionError) as error:
            raise CacheError(
                f"the certificate of cache {str(self.path)!r} is damaged ({error}); delete the file and extract again."
            ) from error

    @property
    def n_tokens(self) -> NDArray[np.int32]:
        """`(N,)` tokens per row, specials and instruction included."""
        return self._file.map("/rows/n_tokens")

    @property
    def is_truncated(self) -> NDArray[np.bool_]:
        """`(N,)` whether text tokens of the row were dropped."""
        return self._file.map("/rows/is_truncated").astype(np.bool_)

    def layer(self, layer: Layer, pooling: str) -> Float[Tensor, "N D"]:
        """Return one layer, by its name or number, as a view of the file in its dtype; bytes are read when touched.

        There is a row for each text, or each word, zeros where a word has no latent.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
        """
        return self._torch(self._file.map(self._array(select_one(layer, self.layers), pooling)))

    def gather(
        self,
        rows: Int[Tensor, " B"] | NDArray[np.int64] | Sequence[int],
        pooling: str,
        *,
        layers: Layers = "all",
    ) -> Float[Tensor, "L B D"]:
        """Gather latents of many layers into float32 memory.

        Args:
            rows: Positions of rows, or of words where the cache holds words; in any order, repeats allowed.
            pooling: One of `poolings`.
            layers: A selection as in `select_layers`.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
            CacheError: A position outside the cache, one that is not a whole number (such as a mask), or layers that
                differ in width.
        """
        index, names = self._require_positions(np.asarray(rows)), select_from(layers, self.layers)
        self.width_of(names)
        return self._gather(index, names, pooling)

    def _require_positions(self, positions: StoredArray) -> Int64[np.ndarray, " B"]:
        noun, last = self.items.noun, len(self.items) - 1
        if positions.ndim != 1:
            raise CacheError(f"the {noun}s have {positions.ndim} dimensions; allowed: one, as a list of positions.")
        if positions.size and positions.dtype.kind not in "iu":
            raise CacheError(f"{noun}s are of dtype {positions.dtype}; allowed: whole numbers from 0 to {last}.")
        outside = positions[(positions < 0) | (positions > last)]
        if outside.size:
            raise CacheError(f"{noun} {outside[0]} is outside this cache; allowed: 0 to {last}.")
        return positions.astype(np.int64)

    def _gather(
        self, positions: Int64[np.ndarray, " B"], layers: Sequence[str], pooling: str
    ) -> Float[Tensor, "L B D"]:
        """Gather latents that are there, of layers of one width."""
        arrays = [self._array(name, pooling) for name in layers]
        return self._torch(self._file.take(arrays, positions)).to(torch.float32)

    def read(
        self,
        start: int,
        stop: int,
        pooling: str,
        *,
        layers: Layers = "all",
        out: Float[Tensor, "L B D"] | None = None,
    ) -> Float[Tensor, "L B D"]:
        """Read consecutive latents of many layers into memory, for streaming through a cache of any size.

        Nothing is mapped, so the memory of the process does not grow with what has been read.

        Args:
            start: First row, or word where the cache holds words.
            stop: One past the last.
            pooling: One of `poolings`.
            layers: A selection as in `select_layers`.
            out: Memory to fill, `(L, stop - start, D)` float32, each layer contiguous; filling the same memory many
                times is much cheaper than allocating it. New memory when absent.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
            CacheError: A range that is not inside the cache, or layers that differ in width.
        """
        if not 0 <= start <= stop <= len(self.items):
            raise CacheError(f"range {start}-{stop} is outside this cache; allowed: within 0-{len(self.items)}.")
        names = select_from(layers, self.layers)
        shape = (len(names), stop - start, self.width_of(names))
        latents = torch.empty(shape, dtype=torch.float32) if out is None else out
        if latents.shape != shape or latents.dtype != torch.float32 or not all(s.is_contiguous() for s in latents):
            raise CacheError(
                f"the memory to fill is {tuple(latents.shape)} {latents.dtype}; needed: {shape} torch.float32, each "
                "layer contiguous."
            )
        for slot, name in zip(latents, names, strict=True):
            self._fill(slot, name, pooling, start)
        return latents

    def _fill(self, slot: Float[Tensor, "B D"], layer: str, pooling: str, start: int) -> None:
        """Read the latents of one layer from `start` on into memory."""
        if self.storage_dtype == "float32":
            self._file.read_into(slot.numpy(), self._array(layer, pooling), start)
        else:
            raw = np.empty(tuple(slot.shape), STORAGE_DTYPES[self.storage_dtype])
            self._file.read_into(raw, self._array(layer, pooling), start)
            slot.copy_(self._torch(raw))

    def rows_of(self, texts: Sequence[str]) -> Int[Tensor, " B"]:
        """Find the rows of texts, which may repeat, by their digests.

        Raises:
            CacheError: A text that this cache does not hold; names the first. Or the cache holds words.
        """
        if self.is_words:
            raise CacheError(f"cache {self._file.name!r} holds words and no whole texts; ask it with words_of.")
        return torch.from_numpy(self.items.positions_of(texts))

    def holds(self, texts: Sequence[str | JoinedText]) -> Bool[np.ndarray, " N"]:
        """Say of each text whether this cache holds it, with its words where it comes with them."""
        return self.items.lookup.find(texts)[1]

    def words_of(self, texts: Sequence[JoinedText]) -> WordPlaces:
        """Find the position and the flags of every word of texts, which may repeat, by the texts' digests.

        Raises:
            CacheError: A text that this cache does not hold with these words; names the first. Or the cache holds
                whole texts.
        """
        return self.items.words_of(texts)

    @property
    def keys(self) -> UInt64[np.ndarray, "P 3"]:
        """Keys that match the latents of caches: two numbers for the text, and the number of the word, else 0."""
        return self.items.keys

    @property
    def has_latent(self) -> Bool[np.ndarray, " P"]:
        """Whether each position has a latent; words that were truncated or that no token covers have none."""
        return self.items.has_latent

    def to_numpy(self, layer: Layer, pooling: str = "") -> StoredArray:
        """Return one layer as an array `(N, D)`, or `(W, D)` of words; `pooling` may be left out where there is one.

        float32 and float16 are views of the file, as `layer` gives them; NumPy has no bfloat16, which becomes float32.
        """
        if not pooling and len(self.poolings) > 1:
            raise CacheError(f"the cache has {len(self.poolings)} poolings ({', '.join(self.poolings)}); name one.")
        latents = self.layer(layer, pooling or self.poolings[0])
        return (latents.float() if latents.dtype == torch.bfloat16 else latents).numpy()

    def to_frame(self, texts: Sequence[str | JoinedText] | None = None) -> "pd.DataFrame":
        """Describe every row, or word, in a data frame, in the order of the latents.

        Columns: `text_id` (digest of the text), `n_tokens`, `is_truncated`; for words also `word_number`, `has_latent`
        and `is_shared`.

        Args:
            texts: Describe these texts, in their order, with a column `text` (and `word`); those that are kept
                beside the cache (`store_texts`), if there are any, when absent.
        """
        import pandas as pd

        from extract.store.writer import Selection

        return pd.DataFrame(Selection(self, layers=self.layers[0], texts=texts).columns())

    def to_dataset(
        self,
        *,
        layers: Layers = "all",
        poolings: Sequence[str] = (),
        texts: Sequence[str | JoinedText] | None = None,
    ) -> "datasets.Dataset":
        """Return latents as a `datasets.Dataset` (Arrow): columns `POOLING/LAYER` beside those of `to_frame`.

        Without `texts` nothing is copied: float32 and float16 latents stay in the file until they are touched.

        Args:
            layers: A selection as in `select_layers`.
            poolings: Poolings; all when empty.
            texts: As for `to_frame`.
        """
        import datasets

        from extract.store.writer import Selection, arrow_table

        return datasets.Dataset(arrow_table(Selection(self, layers, poolings, texts)))

    def export(
        self,
        file: str | Path,
        *,
        layers: Layers = "all",
        poolings: Sequence[str] = (),
        texts: Sequence[str | JoinedText] | None = None,
    ) -> Path:
        """Write latents to a .parquet, .arrow or .safetensors file, in blocks; see `export_cache` and `to_dataset`."""
        from extract.store.writer import Selection, export_cache

        return export_cache(Selection(self, layers, poolings, texts), file)

    def word_report(self) -> dict[str, int]:
        """Count all words, shared, truncated and lost ones; CacheError if the cache holds whole texts.

        Returns:
            `n_words`; `n_shared`, words that begin inside a token that the word before also uses; `n_cut`, truncated;
            `n_lost`, covered by no token; and `n_windows`, texts that were read in more than one window.
        """
        flags = self.items.flags
        bits = {"n_shared": WORD_SHARED, "n_cut": WORD_CUT, "n_lost": WORD_LOST}
        counts = {name: int(np.count_nonzero(flags & bit)) for name, bit in bits.items()}
        return {"n_words": self.n_words, **counts, "n_windows": self.items.lookup.n_split}

    def _array(self, layer: str, pooling: str) -> str:
        require_name("layer", layer, self.layers)
        require_name("pooling", pooling, self.poolings, hint="Extract it, or choose one that is there.")
        return latent_path(self.manifest, pooling, layer)

    def _torch(self, raw: StoredArray) -> Tensor:
        view = torch.from_numpy(raw)
        return view.view(torch.bfloat16) if self.storage_dtype == "bfloat16" else view


class JoinedCache(LatentCache):
    """Several caches of the same texts, read as one: rows and positions are those of the first."""

    def __init__(self, parts: Sequence[LatentCache], manifest: Manifest) -> None:
        first = parts[0]
        self.parts = tuple(parts)
        self.path, self._file = first.path, first._file
        self.manifest = manifest
        self._rows = [_match(row_keys(first._file), row_keys(part._file), part) for part in parts]
        self._positions = [_match(first.items.keys, part.items.keys, part) for part in parts]

    @property
    def read_dtype(self) -> str:
        """float32, whatever the parts are stored in."""
        return "float32"

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file of every part."""
        return tuple(dict.fromkeys(path for part in self.parts for path in part.files))

    @property
    def n_bytes(self) -> int:
        """Bytes of all files; those of a part that is read twice count once."""
        return sum({part.path: part.n_bytes for part in self.parts}.values())

    @property
    def n_done(self) -> int:
        """Rows that are done in every part."""
        return min(part.n_done for part in self.parts)

    @property
    def is_complete(self) -> bool:
        """Whether every part is whole."""
        return all(part.is_complete for part in self.parts)

    def verify_latents(self) -> None:
        """Compare every part with its checksums; raises as `LatentCache.verify`."""
        for part in self.parts:
            part.verify_latents()

    @property
    def n_tokens(self) -> NDArray[np.int32]:
        """`(N,)` tokens per text, over all parts."""
        counts = [part.n_tokens[rows] for part, rows in zip(self.parts, self._rows, strict=True)]
        return np.asarray(np.stack(counts).sum(0, dtype=np.int32))

    @property
    def is_truncated(self) -> NDArray[np.bool_]:
        """`(N,)` whether text tokens of the row were dropped in any part."""
        marks = [part.is_truncated[rows] for part, rows in zip(self.parts, self._rows, strict=True)]
        return np.asarray(np.logical_or.reduce(marks))

    @cached_property
    def items(self) -> CachedTexts:
        """The items of the first part, with the flags of words in any part."""
        if not self.is_words:
            return CachedTexts(self._file)
        flags = [part.items.flags[positions] for part, positions in zip(self.parts, self._positions, strict=True)]
        return CachedWords(self._file, np.bitwise_or.reduce(flags))

    def layer(self, layer: Layer, pooling: str) -> Float[Tensor, "N D"]:
        """Return one layer in float32, in new memory; raises as `LatentCache.layer`."""
        return self.gather(np.arange(len(self.items)), pooling, layers=layer)[0]

    def _fill(self, slot: Float[Tensor, "B D"], layer: str, pooling: str, start: int) -> None:
        slot.copy_(self.gather(np.arange(start, start + len(slot)), pooling, layers=[layer])[0])

    def _require_names(self, layers: Sequence[str], pooling: str) -> None:
        """Refuse names that this cache does not have, though a part of it may."""
        for name in layers:
            self._array(name, pooling)


class MeanCache(JoinedCache):
    """The mean of several caches of the same texts, as of prompts whose latents are averaged (MetaEOL).

    The mean is computed at each read, in float32.

    Args:
        parts: Whole caches, extracted alike but for their templates.
        identity: CacheIdentity of the mean, whose poolings and layers all parts hold; that of the first part with all
            templates when absent.

    Raises:
        CacheIdentityError: Caches that differ in more than their templates.
        CacheError: No caches, or caches of other texts.
    """

    def __init__(self, parts: Sequence[LatentCache], *, identity: CacheIdentity | None = None) -> None:
        if not parts:
            raise CacheError("there are no caches to take the mean of; give at least one.")
        first = parts[0]
        for part in parts[1:]:
            actual, expected = (
                {key: value for key, value in one.like(other).to_plain().items() if key not in OF_PARTS}
                for one, other in permutations((part.identity, first.identity))
            )
            require_same(actual, expected, where=repr(str(part.path)))
        templates = [{k: v for k, v in part.identity.template.items() if k != "window"} for part in parts]
        whole = replace(first.identity, template={**first.identity.template, MEAN_OF: templates})
        provenance = {**first.manifest.provenance, MEAN_OF: [part.manifest.id for part in parts]}
        told = identity or whole
        for part in parts:
            told = told.like(part.identity)
        super().__init__(parts, Manifest(told, provenance))

    @property
    def certificate(self) -> Plain:
        """The certificate of the first part, and the identities of all."""
        return {**self.parts[0].certificate, MEAN_OF: self.manifest.provenance[MEAN_OF]}

    def _gather(
        self, positions: Int64[np.ndarray, " B"], layers: Sequence[str], pooling: str
    ) -> Float[Tensor, "L B D"]:
        self._require_names(layers, pooling)
        total = torch.zeros(len(layers), len(positions), self.width_of(layers))
        for part, matches in zip(self.parts, self._positions, strict=True):
            total += part.gather(matches[positions], pooling, layers=layers)
        return total / len(self.parts)


class ViewCache(JoinedCache):
    """Several caches of the same texts, each a view of them: what a cache has as poolings are here the views, by name.

    So `gather(rows, "echo")` reads the one pooling of the view `echo`, and a channel of several is `echo/block_12`.

    Args:
        views: Name to whole cache, in the order of the channels: of one decoder, the same texts and layers, and one
            pooling each.

    Raises:
        CacheError: No views, several poolings in one, or caches of other texts, words or rows.
        CacheIdentityError: Caches of another decoder, other texts or other layers.

    Example:
        >>> cache = LatentCache(getfixture("tiny_cache"))
        >>> both = ViewCache({"one": cache, "other": cache})
        >>> both.poolings, torch.equal(both.gather([1], "other"), cache.gather([1], "mean"))
        (('one', 'other'), True)
    """

    def __init__(self, views: Mapping[str, LatentCache]) -> None:
        identity = view_identity({name: part.identity for name, part in views.items()})
        first = next(iter(views.values()))
        provenance = {**first.manifest.provenance, "views": {name: part.manifest.id for name, part in views.items()}}
        if len({part.n_words or len(part) for part in views.values()}) > 1:
            listed = ", ".join(f"{name} has {part.n_words or len(part):,}" for name, part in views.items())
            raise CacheError(f"views differ in how many latents they have ({listed}); take views of the same texts.")
        super().__init__([*views.values()], Manifest(identity, provenance))

    @property
    def views(self) -> dict[str, LatentCache]:
        """The cache of each view."""
        return dict(zip(self.poolings, self.parts, strict=True))

    @property
    def default_pooling(self) -> str:
        """All views."""
        return "+".join(self.poolings)

    def view_tokens(self) -> dict[str, int]:
        """Count the tokens of all texts in each view, which is what it costs."""
        return {name: int(part.n_tokens.sum()) for name, part in self.views.items()}

    def plan_of(self, pooling: str) -> str:
        """Return the plan of a view."""
        return self.views[pooling].identity.plan

    @property
    def certificate(self) -> Plain:
        """The certificate of the first view, and those of all by name."""
        return {**self.parts[0].certificate, "views": {name: part.certificate for name, part in self.views.items()}}

    def _gather(
        self, positions: Int64[np.ndarray, " B"], layers: Sequence[str], pooling: str
    ) -> Float[Tensor, "L B D"]:
        self._require_names(layers, pooling)
        part, matches = self._view(pooling)
        return part.gather(matches[positions], part.poolings[0], layers=layers)

    def _fill(self, slot: Float[Tensor, "B D"], layer: str, pooling: str, start: int) -> None:
        self._require_names([layer], pooling)
        part, matches = self._view(pooling)
        rows = matches[start : start + len(slot)]
        if len(rows) and (np.diff(rows) == 1).all():  # as they are in the file
            part.read(int(rows[0]), int(rows[-1]) + 1, part.poolings[0], layers=[layer], out=slot[None])
        else:
            slot.copy_(part.gather(rows, part.poolings[0], layers=[layer])[0])

    def _view(self, name: str) -> tuple[LatentCache, Int[np.ndarray, " P"]]:
        """Return the cache of a view, and where it has the latents of this one."""
        k = self.poolings.index(name)
        return self.parts[k], self._positions[k]


def mean_parts(identity: CacheIdentity) -> list[CacheIdentity]:
    """Return the identities of the parts of a mean; none for other caches."""
    template = identity.template
    window = {key: template[key] for key in ("window",) if key in template}
    return [
        replace(identity, template={**part, **window}, chat=identity.chat if "chat" in part else None)
        for part in template.get(MEAN_OF, ())
    ]


def _match(keys: StoredArray, others: StoredArray, part: LatentCache) -> Int[np.ndarray, " P"]:
    """Find the position of each key of one cache in another."""
    order, other = np.lexsort(keys.T), np.lexsort(others.T)
    if keys.shape != others.shape or (keys[order] != others[other]).any():
        raise CacheError(
            f"cache {str(part.path)!r} does not hold the rows of the first; give both the same texts, cut alike."
        )
    positions = np.empty(len(keys), np.int64)
    positions[order] = other
    return positions


class ShardedCache(LatentCache):
    """The shards of one extraction as one cache; nothing is copied, and opening reads the index alone.

    Rows are those of the first shard, then those of the second, and so on. A text that several windows hold has a row
    in all of them; `rows_of` gives the first. The identity is that of a cache in one file but for `text_digest`.

    Args:
        place: The `index.json`, its folder, or its address, such as `s3://bucket/folder`.
        expected: CacheIdentity the cache must have; any when absent.
        allow_partial: Read the shards that are there while others are missing.

    Raises:
        CacheError: No index there, or it is damaged.
        CacheIdentityError: The shards hold something other than `expected`; names the differing fields.
        CacheIncompleteError: Some windows have no shard and `allow_partial` is off.
    """

    def __init__(
        self, place: str | Path, *, expected: CacheIdentity | None = None, allow_partial: bool = False
    ) -> None:
        folder = str(place).removesuffix(INDEX).rstrip("/") or "."
        files = open_files(folder)
        self.index = parse_index(files.read(INDEX), where=f"{folder}/{INDEX}")
        require_arrays(self.index, where=f"{folder}/{INDEX}")
        layouts = {shard.file: shard.layout for shard in self.index.shards}
        self.path, self.manifest = Path(folder), self.index.manifest
        self._file = StoreReader(files, self.manifest, layouts, name=folder)
        self._require(expected, allow_partial=allow_partial)

    def _progress(self) -> str:
        return f"{len(self)} rows in {self.n_shards} shards, the rest is missing"

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self.index.shards)

    @property
    def files(self) -> tuple[Path, ...]:
        """The index and every shard."""
        return (self.path / INDEX, *(self.path / shard.file for shard in self.index.shards))

    @property
    def n_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.n_bytes for shard in self.index.shards)

    @property
    def n_done(self) -> int:
        """Rows that are done: those of the shards that are listed."""
        return len(self)

    @property
    def is_complete(self) -> bool:
        """Whether the shards hold all texts."""
        return self.index.is_complete

    @property
    def has_checksums(self) -> bool:
        """Always: the index has the SHA-256 of every shard."""
        return True

    @property
    def certificate(self) -> Plain:
        """The certificate of the first shard, and the number of shards, which all have one."""
        return {**super().certificate, "n_shards": self.n_shards}

    def verify_latents(self) -> None:
        """Compare the SHA-256 of every shard with the index: `CacheError` names one that is not what was written."""
        for shard in self.index.shards:
            require_shard(self._file.files, shard, self.index, where=str(self.path))


def describe_shard(path: Path, *, window: int, expected: CacheIdentity | None = None) -> Shard:
    """Describe a whole cache as the shard of a window, for the index; raises as `LatentCache`."""
    cache = LatentCache(path, expected=expected)
    return Shard(
        window=window,
        file=shard_file(window),
        n_rows=len(cache),
        n_words=cache.n_words,
        n_bytes=path.stat().st_size,
        sha256=digest_file(LocalFiles(path.parent), path.name),
        text_digest=cache.identity.text_digest,
        n_tokens=int(cache.n_tokens.sum()),
        n_truncated=int(cache.is_truncated.sum()),
        layout=read_layout(path)[1],
    )


def open_cache(source: LatentCache | str | Path, *, allow_partial: bool = False) -> LatentCache:
    """Open a cache in one file or in shards, the same way; one that is open already is returned.

    Args:
        source: A cache file, the `index.json` of shards, the folder it is in, or the address of either of the latter.
        allow_partial: Read a half-done cache.

    Raises:
        CacheError: As by `LatentCache` and `ShardedCache`.
    """
    if isinstance(source, LatentCache):
        return source
    is_index = "://" in str(source) or Path(source).name == INDEX or (Path(source) / INDEX).is_file()
    kind = ShardedCache if is_index else LatentCache
    return kind(source, allow_partial=allow_partial)


def cache_path(folder: Path, manifest: Manifest) -> Path:
    """Name a cache by its decoder, plan and identity."""
    name = str(manifest.provenance["decoder"]["name"]).replace("/", "--").replace("*", "x")
    plan = re.sub(r"[^a-z0-9-]+", "_", manifest.identity.plan).strip("_")[:60]
    short = name.encode()[:120].decode(errors="ignore")
    return folder / f"{short}-{plan}-{manifest.short_id}.h5"


def find_cache(folder: Path, identity: CacheIdentity) -> LatentCache | None:
    """Find a whole and sound cache of an identity in a folder; further poolings and layers of it are left out.

    That with the file name of `cache_path` comes first. A mean needs all of its parts, and views need each of theirs.
    """
    if identity.views is not None:
        views = {name: find_cache(folder, part) for name, part in view_parts(identity).items()}
        whole = {name: cache for name, cache in views.items() if cache is not None}
        return ViewCache(whole) if len(whole) == len(views) else None
    if parts := mean_parts(identity):
        caches = [cache for part in parts if (cache := find_cache(folder, part)) is not None]
        return MeanCache(caches, identity=identity) if len(caches) == len(parts) else None
    for cache in whole_caches(folder, first=Manifest(identity).short_id):
        expected = identity.like(cache.identity)
        if _covers(cache.identity, expected):
            with passing_over(cache.path):
                cache.verify_latents()
                return cache.shown_as(expected)
    return None


def whole_caches(folder: Path, *, first: str = "") -> Iterator[LatentCache]:
    """Open the whole caches of a folder, those with `first` in their name first; shards are in folders of their own.

    Half-done ones are skipped; others that cannot be read are skipped with a one-line warning.
    """
    try:
        paths = [*folder.glob("*.h5"), *(path.parent for path in folder.glob(f"*/{INDEX}"))]
    except (OSError, ValueError) as error:
        raise CacheError(f"the caches folder {str(folder)!r} cannot be read ({first_line(error)}).") from error
    for path in sorted(paths, key=lambda p: (first not in p.name, p.name)):
        with passing_over(path), suppress(CacheIncompleteError):
            yield open_cache(path)


@contextmanager
def passing_over(path: Path) -> Iterator[None]:
    """Turn the error of a cache that cannot be read into a one-line warning."""
    try:
        yield
    except IcecoreError as error:
        warnings.warn(f"{path.name} in the caches folder is passed over: {error}", CacheWarning, stacklevel=3)


def _covers(identity: CacheIdentity, expected: CacheIdentity) -> bool:
    """Whether a cache of one identity holds all of another."""
    one, other = flatten(identity.to_plain()), flatten(expected.to_plain())
    open_axes = [axis for axis in ("poolings", "layers", "words.poolings") if axis in other]
    for key in one.keys() - other.keys():
        if key.startswith(("own.pooling ", "own.word pooling ", "widths.", "reba.")):  # of further poolings and layers
            del one[key]
    return one.keys() == other.keys() and all(
        set(one[key]) >= set(other[key]) if key in open_axes else one[key] == other[key] for key in one
    )
