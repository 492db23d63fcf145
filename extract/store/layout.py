"""Where the arrays of a store are in its file; docs/cache_format.md is the contract."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extract.digest import DIGEST_BYTES, digest_text
from extract.errors import CacheError, IcecoreError, first_line, unknown_name
from extract.store.dtypes import STORAGE_DTYPES
from extract.store.manifest import SCHEMA, Manifest
from extract.store.structure import Structure, read_structure

WRITTEN, CLOSED = 1, 2
"""Values of the done map: a row that is there, and one whose weights were compared with their digest afterwards."""
CERTIFICATE_BYTES = 1 << 16
CHECKSUMS = "/checksums"
CERTIFICATE = f"{CHECKSUMS}/certificate"
LatentRange = tuple[int, int]


@dataclass(frozen=True)
class ArrayPlace:
    """Where one array is in the file."""

    offset: int  # first byte
    shape: tuple[int, ...]  # the first axis counts rows
    dtype: np.dtype[Any]  # as stored (bfloat16 as uint16)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of the array."""
        return self.shape[0] * self.row_bytes


def array_shapes(manifest: Manifest) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """List the arrays of a store: HDF5 path to shape and stored dtype."""
    identity = manifest.identity
    storage = identity["storage_dtype"]
    if storage not in STORAGE_DTYPES:
        raise unknown_name("storage dtype", storage, STORAGE_DTYPES)
    n_rows = int(identity["n_rows"])
    words = manifest.words
    n_latents = n_rows if words is None else int(words["n_words"])
    dtype = np.dtype(STORAGE_DTYPES[storage]).type
    shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        latent_path(manifest, pooling, layer): ((n_latents, manifest.width(layer)), dtype)
        for pooling in manifest.poolings
        for layer in identity["layers"]
    }
    if words is not None:
        shapes["/words/flags"] = ((n_latents,), np.uint8)
        shapes["/rows/first_word"] = ((n_rows,), np.int64)
        shapes["/rows/n_words"] = ((n_rows,), np.int32)
        shapes["/rows/word_start"] = ((n_rows,), np.int32)
    shapes["/rows/digest"] = ((n_rows, DIGEST_BYTES), np.uint8)
    shapes["/rows/n_tokens"] = ((n_rows,), np.int32)
    shapes["/rows/is_truncated"] = ((n_rows,), np.uint8)
    shapes["/rows/is_done"] = ((n_rows,), np.uint8)
    shapes["/certificate"] = ((CERTIFICATE_BYTES,), np.uint8)
    shapes[f"{CHECKSUMS}/blocks"] = ((n_rows, len(shapes) - 2), np.uint32)
    shapes[f"{CHECKSUMS}/n_rows"] = ((n_rows,), np.int32)
    shapes[CERTIFICATE] = ((1,), np.uint32)
    return shapes


def rows_that_count(done_map: NDArray[np.uint8], certificate: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Read off a done map which rows count; a certificate closes those of caches of earlier versions too."""
    counts: NDArray[np.bool_] = done_map >= (WRITTEN if certificate.any() else CLOSED)
    return counts


def checked_arrays(manifest: Manifest) -> list[str]:
    """List the arrays whose rows have checksums, in the order of the columns of `/checksums/blocks`."""
    return [
        name for name in array_shapes(manifest) if not name.startswith((CHECKSUMS, "/rows/is_done", "/certificate"))
    ]


def latent_path(manifest: Manifest, pooling: str, layer: str) -> str:
    """Name the array of one layer under one pooling: of words where the store holds words, else of texts."""
    return f"/{'latents' if manifest.words is None else 'words'}/{pooling}/{layer}"


def read_layout(path: Path) -> tuple[Manifest, dict[str, ArrayPlace]]:
    """Read the manifest of a store and the places of its arrays by HDF5 path, then close the file.

    Raises:
        CacheError: No such file, no HDF5 file, not one of ours, of another schema, or shorter than it should be.
    """
    if not path.is_file():
        what = "a pipe, folder or other special file at" if path.exists() else "no cache"
        raise CacheError(f"there is {what} {str(path)!r}; make a cache with: icecore extract.")
    try:
        structure = read_structure(path)
        manifest = _read_manifest(structure, path)
        places = _find_places(structure, manifest, path)
    except IcecoreError:
        raise
    except Exception as error:  # h5py raises a dozen unrelated types on a damaged file
        reason = str(error) if isinstance(error, ValueError) else first_line(error)
        raise CacheError(
            f"{str(path)!r} is not a readable HDF5 file ({reason}); "
            "if it was cut short in copying, copy it again, else delete it and extract again."
        ) from error
    end = max(place.offset + place.n_bytes for place in places.values())
    if path.stat().st_size < end:
        raise CacheError(
            f"cache {str(path)!r} is truncated: {path.stat().st_size} of {end} bytes; copy it again or extract again."
        )
    return manifest, places


def _read_manifest(structure: Structure, path: Path) -> Manifest:
    if structure.schema is None:
        raise CacheError(f"{str(path)!r} is an HDF5 file but not an icecore cache (no attribute icecore_schema).")
    if structure.schema != SCHEMA:
        raise CacheError(f"cache {str(path)!r} has schema {structure.schema}; this version reads schema {SCHEMA}.")
    text, digest = structure.manifest, structure.manifest_digest
    manifest = Manifest.from_json(text)
    # Caches of earlier versions have neither a digest of the manifest nor checksums.
    is_whole = (digest is not None) == _has_checksums(structure)
    if manifest.id != structure.identity or not is_whole or digest not in (None, digest_text(text)):
        raise CacheError(
            f"the manifest of cache {str(path)!r} is damaged: it does not match its digest; delete the file and "
            "extract again."
        )
    return manifest


def _has_checksums(structure: Structure) -> bool:
    return any(name.startswith(f"{CHECKSUMS}/") for name, *_ in structure.arrays)


def _find_places(structure: Structure, manifest: Manifest, path: Path) -> dict[str, ArrayPlace]:
    arrays = {name: (offset, shape, np.dtype(dtype)) for name, offset, shape, dtype in structure.arrays}
    places = {}
    for name, (shape, dtype) in array_shapes(manifest).items():
        if name.startswith(CHECKSUMS) and not _has_checksums(structure):
            continue
        if name not in arrays:
            raise ValueError(f"array {name} is missing")
        offset, actual_shape, actual_dtype = arrays[name]
        if offset is None:
            raise CacheError(
                f"array {name} of cache {str(path)!r} is not contiguous; it was rewritten by another program."
            )
        if actual_shape != shape or actual_dtype != dtype:
            raise CacheError(
                f"array {name} of cache {str(path)!r} is {actual_shape} {actual_dtype}, its manifest says {shape} "
                f"{np.dtype(dtype)}; it was rewritten by another program. Delete it and extract again."
            )
        places[name] = ArrayPlace(offset, actual_shape, actual_dtype)
    return places
