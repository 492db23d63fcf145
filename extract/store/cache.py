"""Reading a cache: no decoder, no tokenizer, no dataset; a layer costs one layer's bytes."""

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8, UInt64
from numpy.typing import NDArray
from torch import Tensor

from extract.decoders.layers import select_from
from extract.errors import CacheError, CacheIncompleteError, unknown_name
from extract.inputs.alignment import WORD_CUT, WORD_LOST, WORD_SHARED
from extract.inputs.joined import JoinedText
from extract.store.checksums import require_sound
from extract.store.dtypes import STORAGE_DTYPES
from extract.store.exports import Selection, arrow_table, export_cache
from extract.store.layout import latent_path, rows_that_count
from extract.store.manifest import Manifest, require_same
from extract.store.reader import RowLookup, StoreReader, WordPlaces, place_keys, ranges

if TYPE_CHECKING:
    import datasets
    import pandas as pd


class LatentCache:
    """A latent cache, open for reading: of whole texts, or of words.

    The file is mapped, never held open through HDF5, so a cache can be pickled and shared with DataLoader workers,
    forked or spawned. Views are copy-on-write: changing one never changes the file.

    Args:
        path: The store.
        expected: Identity the cache must have; any when absent.
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

    def __init__(
        self, path: str | Path, *, expected: dict[str, Any] | None = None, allow_partial: bool = False
    ) -> None:
        self.path = Path(path)
        self._file = StoreReader(self.path)
        self.manifest = self._file.manifest
        if expected is not None:
            require_same(self.manifest.identity, expected, where=repr(str(self.path)))
        if not allow_partial and not self.is_complete:
            state = "no certificate yet" if self.n_done == len(self) else "the rest is missing"
            raise CacheIncompleteError(
                f"cache {str(path)!r} is half done: {self.n_done} of {len(self)} rows, {state}. "
                "Run the extraction again to go on where it stopped."
            )

    def shown_as(self, identity: dict[str, Any]) -> "LatentCache":
        """Return this cache as one of another identity, which differs in layers and poolings that it leaves out."""
        shown = copy.copy(self)
        shown.manifest = Manifest(identity, self.manifest.provenance)
        return shown

    def __repr__(self) -> str:
        rows = f"{self.n_words:,} words" if self.is_words else f"{len(self):,} texts"
        poolings = "+".join(self.poolings)
        return f"<cache {self.path.name}: {rows}, {len(self.layers)} layers, {poolings}, {self.storage_dtype}>"

    def __len__(self) -> int:
        """Number of rows: one a text, or several for a text that was read in windows."""
        return int(self.manifest.identity["n_rows"])

    @property
    def identity(self) -> dict[str, Any]:
        """What the cache holds; equal identities hold equal latents."""
        return self.manifest.identity

    @property
    def layers(self) -> tuple[str, ...]:
        """Layer names, bottom up."""
        return tuple(self.identity["layers"])

    @property
    def poolings(self) -> tuple[str, ...]:
        """Pooling names, of words where the cache holds words."""
        return self.manifest.poolings

    @property
    def is_words(self) -> bool:
        """Whether the latents are those of words."""
        return self.manifest.words is not None

    @property
    def n_words(self) -> int:
        """Words over all texts, each with one latent slot; 0 for whole texts."""
        return 0 if self.manifest.words is None else int(self.manifest.words["n_words"])

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
        return str(self.identity["storage_dtype"])

    @property
    def read_dtype(self) -> str:
        """The dtype that `layer` gives: that of the store, unless several caches are read as one."""
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
        return self._file.has_checksums

    def verify(self) -> None:
        """Compare every finished row with its checksums, which reads the whole file; nothing if it carries none.

        Raises:
            CacheError: Something in the file is not what was written.
        """
        require_sound(self._file)

    @property
    def certificate(self) -> dict[str, Any]:
        """The certificate written when the extraction ended; empty before that."""
        text = self._file.map("/certificate").tobytes().rstrip(b"\0")
        try:
            return dict(json.loads(text)) if text else {}
        except (ValueError, TypeError) as error:
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

    def layer(self, layer: str, pooling: str) -> Float[Tensor, "N D"]:
        """Return one layer as a view of the file, in the stored dtype; bytes are read when they are touched.

        The rows are those of texts, or of words; the latent of a word that has none is zero.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
        """
        return self._torch(self._file.map(self._array(layer, pooling)))

    def gather(
        self,
        rows: Int[Tensor, " B"] | NDArray[np.int64] | Sequence[int],
        pooling: str,
        *,
        layers: str | int | Iterable[str | int] = "all",
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
        index, names = self._check_places(np.asarray(rows)), select_from(layers, self.layers)
        return self._gather(index, names, pooling, width=self.width_of(names))

    def _gather(
        self, rows: Int[Tensor, " B"], layers: Sequence[str], pooling: str, *, width: int
    ) -> Float[Tensor, "L B D"]:
        """Gather rows that are there, of layers of one width."""
        gathered = torch.empty(len(layers), len(rows), width, dtype=torch.float32)
        for slot, name in zip(gathered, layers, strict=True):
            slot.copy_(self._pick(name, pooling, rows))
        return gathered

    def _pick(self, layer: str, pooling: str, rows: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """Gather rows that are there, of one layer, in the stored dtype."""
        return self._torch(self._file.pick(self._array(layer, pooling), rows.numpy()))

    def read(
        self,
        start: int,
        stop: int,
        pooling: str,
        *,
        layers: str | int | Iterable[str | int] = "all",
        out: Float[Tensor, "L B D"] | None = None,
    ) -> Float[Tensor, "L B D"]:
        """Read consecutive latents of many layers into memory, for streaming through a cache of any size.

        Nothing is mapped, so the memory of the process does not grow with what has been read.

        Args:
            start: First row, or word where the cache holds words.
            stop: One past the last.
            pooling: One of `poolings`.
            layers: A selection as in `select_layers`.
            out: Memory to fill, `(L, stop - start, D)` float32, each layer contiguous; filling the same memory again
                and again is much cheaper than asking for new memory. New memory when absent.

        Raises:
            UnknownNameError: A layer or pooling this cache does not have.
            CacheError: A range that is not inside the cache, or layers that differ in width.
        """
        if not 0 <= start <= stop <= self._n_places:
            raise CacheError(f"range {start}-{stop} is outside this cache; allowed: within 0-{self._n_places}.")
        names = select_from(layers, self.layers)
        shape = (len(names), stop - start, self.width_of(names))
        found = torch.empty(shape, dtype=torch.float32) if out is None else out
        if found.shape != shape or found.dtype != torch.float32 or not all(slot.is_contiguous() for slot in found):
            raise CacheError(
                f"the memory to fill is {tuple(found.shape)} {found.dtype}; needed: {shape} torch.float32, each layer "
                "contiguous."
            )
        for slot, name in zip(found, names, strict=True):
            self._fill(slot, name, pooling, start)
        return found

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
            raise CacheError(f"cache {str(self.path)!r} holds words and no whole texts; ask it with words_of.")
        return torch.from_numpy(self._lookup.rows(texts)[0])

    def words_of(self, texts: Sequence[JoinedText]) -> WordPlaces:
        """Find the place and the flags of every word of texts, which may repeat, by the texts' digests.

        Raises:
            CacheError: A text that this cache does not hold with these words; names the first. Or the cache holds
                whole texts.
        """
        self._require_words()
        places = self._lookup.words(texts)
        return replace(places, flags=self.word_flags[places.positions])

    @property
    def keys(self) -> UInt64[np.ndarray, "P 3"]:
        """What each latent is of, to match caches: two numbers for the text, and the number of its word, else 0."""
        return place_keys(self._file)

    @property
    def has_latent(self) -> Bool[np.ndarray, " P"]:
        """Whether each place has a latent, as words that were truncated or that no token covers have not."""
        if not self.is_words:
            return np.ones(len(self), np.bool_)
        has_latent: NDArray[np.bool_] = (self.word_flags & (WORD_CUT | WORD_LOST)) == 0
        return has_latent

    @property
    def word_flags(self) -> UInt8[np.ndarray, " W"]:
        """`(W,)` bits of `extract.inputs.alignment` for every word; CacheError if the cache holds whole texts."""
        self._require_words()
        return self._file.map("/words/flags")

    @property
    def row_of_place(self) -> Int64[np.ndarray, " P"]:
        """Row of each place: itself for a text, that of the piece of text it was read in for a word."""
        rows: NDArray[np.int64] = np.arange(len(self))
        if not self.is_words:
            return rows
        first, n_words = (self._file.map(f"/rows/{name}").astype(np.int64) for name in ("first_word", "n_words"))
        found = np.zeros(self.n_words, np.int64)
        found[ranges(first, n_words)] = np.repeat(rows, n_words)
        return found

    def to_numpy(self, layer: str, pooling: str = "") -> NDArray[Any]:
        """Return one layer as an array `(N, D)`, or `(W, D)` of words; `pooling` may be left out where there is one.

        float32 and float16 are views of the file, as `layer` gives them; NumPy has no bfloat16, which becomes float32.
        """
        found = self.layer(layer, pooling or self._only_pooling())
        return (found.float() if found.dtype == torch.bfloat16 else found).numpy()

    def to_frame(self, texts: Sequence[str | JoinedText] | None = None) -> "pd.DataFrame":
        """Describe every row, or word, in a data frame, in the order of the latents.

        Columns: `text_id` (digest of the text), `n_tokens`, `is_truncated`; for words also `word_number`, `has_latent`
        and `is_shared`.

        Args:
            texts: Describe these texts, in their order, with a column `text` (and `word`); a cache holds no texts.
        """
        import pandas as pd

        return pd.DataFrame(Selection(self, layers=self.layers[0], texts=texts).columns())

    def to_dataset(
        self,
        *,
        layers: str | int | Iterable[str | int] = "all",
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

        return datasets.Dataset(arrow_table(Selection(self, layers, poolings, texts)))

    def export(
        self,
        file: str | Path,
        *,
        layers: str | int | Iterable[str | int] = "all",
        poolings: Sequence[str] = (),
        texts: Sequence[str | JoinedText] | None = None,
    ) -> Path:
        """Write latents to a .parquet, .arrow or .safetensors file, in blocks; see `export_cache` and `to_dataset`."""
        return export_cache(Selection(self, layers, poolings, texts), file)

    def _only_pooling(self) -> str:
        if len(self.poolings) > 1:
            raise CacheError(f"the cache has {len(self.poolings)} poolings ({', '.join(self.poolings)}); name one.")
        return self.poolings[0]

    def word_report(self) -> dict[str, int]:
        """Count the words, and those that something happened to; CacheError if the cache holds whole texts.

        Returns:
            `n_words`; `n_shared`, words that begin inside a token that the word before also uses; `n_cut`, truncated;
            `n_lost`, covered by no token; and `n_windows`, texts that were read in more than one window.
        """
        self._require_words()
        flags = self.word_flags
        bits = {"n_shared": WORD_SHARED, "n_cut": WORD_CUT, "n_lost": WORD_LOST}
        counts = {name: int(np.count_nonzero(flags & bit)) for name, bit in bits.items()}
        return {"n_words": self.n_words, **counts, "n_windows": self._lookup.n_split}

    @property
    def _row_digests(self) -> UInt64[np.ndarray, "N 2"]:
        """`(N, 2)` the digest of each row's text, as two numbers."""
        return np.ascontiguousarray(self._file.map("/rows/digest")).view(np.uint64)

    def _require_words(self) -> None:
        if not self.is_words:
            raise CacheError(f"cache {str(self.path)!r} holds whole texts and no words; ask it with rows_of.")

    @property
    def _n_places(self) -> int:
        return self.n_words if self.is_words else len(self)

    def _array(self, layer: str, pooling: str) -> str:
        if layer not in self.layers:
            raise unknown_name("layer", layer, self.layers)
        if pooling not in self.poolings:
            raise unknown_name("pooling", pooling, self.poolings, hint="Extract it, or choose one that is there.")
        return latent_path(self.manifest, pooling, layer)

    def _torch(self, raw: NDArray[Any]) -> Tensor:
        view = torch.from_numpy(raw)
        return view.view(torch.bfloat16) if self.storage_dtype == "bfloat16" else view

    @cached_property
    def _lookup(self) -> RowLookup:
        return RowLookup(self._file)

    def _check_places(self, places: NDArray[Any]) -> Int[Tensor, " B"]:
        noun = "word" if self.is_words else "row"
        if places.size and places.dtype.kind not in "iu":
            raise CacheError(
                f"{noun}s are of dtype {places.dtype}; allowed: whole numbers from 0 to {self._n_places - 1}."
            )
        outside = places[(places < 0) | (places >= self._n_places)]
        if outside.size:
            raise CacheError(f"{noun} {outside[0]} is outside this cache; allowed: 0 to {self._n_places - 1}.")
        return torch.as_tensor(places.astype(np.int64))
