"""Laying out an empty store with all of its disk space reserved, in one step that no kill can leave half done."""

import errno
import math
import os
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from extract.digest import digest_text
from extract.store.disk import explain_write_error, free_bytes, locked_file
from extract.store.layout import array_shapes
from extract.store.manifest import SCHEMA, Manifest
from extract.store.structure import ask_hdf5, seal_structure

DRAFT_SECONDS = 60
ALIGNMENT = 4096  # bytes; arrays start on page borders, so that views of them are aligned for every dtype
STRUCTURE_BYTES = 1 << 20  # more than HDF5 adds to the arrays


def create_store(path: Path, manifest: Manifest) -> None:
    """Lay out an empty store at `path`; a store that another process puts there first is left alone.

    Raises:
        DiskFullError: Not enough space; nothing is left behind.
        CacheError: The folder cannot be written.
    """
    shapes = array_shapes(manifest)
    needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
    draft = path.with_name(f".{path.name}.new-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep_leftovers(path)
        if free_bytes(path.parent) < needed:  # checked first: HDF5 handles a full disk badly
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with draft.open("wb") as held, locked_file(held.fileno(), waits=True):  # a leftover has no lock
            # Tried first, and sparse: HDF5 ends the process where it meets a limit on the size of files.
            held.truncate(needed + 2 * ALIGNMENT * len(shapes) + STRUCTURE_BYTES)
            _lay_out(draft, manifest)
            arrays = [(offset, name) for name, offset, *_ in ask_hdf5(draft).arrays if offset is not None]
            sizes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in shapes.items()}
            seal_structure(draft, [(offset, sizes[name]) for offset, name in arrays])
            _reserve(draft)
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                if not path.exists():
                    draft.replace(path)
    except (OSError, RuntimeError) as error:  # HDF5 raises either
        raise explain_write_error(error, path, needed=needed) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _lay_out(draft: Path, manifest: Manifest) -> None:
    with h5py.File(draft, "w", locking=False, alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        file.attrs["icecore_schema"] = SCHEMA
        file.attrs["identity"] = manifest.id
        file.attrs["manifest"] = text = manifest.to_json()
        file.attrs["manifest_digest"] = digest_text(text)
        layers = set(manifest.identity["layers"])
        for name, (shape, dtype) in array_shapes(manifest).items():
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_layout(h5py.h5d.CONTIGUOUS)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            # Latents are not zeroed: the done map says which rows count.
            is_latent = name.rsplit("/", 1)[1] in layers
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER if is_latent else h5py.h5d.FILL_TIME_ALLOC)
            parent = file.require_group(name.rsplit("/", 1)[0] or "/")
            space = h5py.h5s.create_simple(shape)
            made = h5py.h5d.create(
                parent.id, name.rsplit("/", 1)[1].encode(), h5py.h5t.py_create(np.dtype(dtype)), space, plist
            )
            if is_latent:
                h5py.Dataset(made).attrs["dtype"] = manifest.identity["storage_dtype"]


def _reserve(draft: Path) -> None:
    with draft.open("r+b") as file:
        if hasattr(os, "posix_fallocate"):  # elsewhere a full disk shows when rows are written
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        os.fsync(file.fileno())


def _sweep_leftovers(path: Path) -> None:
    """Remove the drafts that killed processes left in a folder; those of other stores once they have aged.

    A draft is held by its lock, but for a moment after it is made.
    """
    for leftover in path.parent.glob(".*.h5.new-*"):
        is_own = leftover.name.startswith(f".{path.name}.new-")
        try:
            if not is_own and time.time() - leftover.stat().st_mtime < DRAFT_SECONDS:
                continue
            held = os.open(leftover, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # a FIFO would wait for a writer
            with os.fdopen(held, "rb") as file, locked_file(file.fileno()):
                leftover.unlink(missing_ok=True)
        except OSError:
            continue  # held by a process that is alive
