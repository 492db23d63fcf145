"""What HDF5 says of a store, asked only where the structure of its file is known to be whole, or in another process.

HDF5 may loop for ever, deaf to signals, on one flipped bit of its structure. A new store ends in a seal, which is read
without HDF5: the digest of everything that is no array. Files without one are read by this module run as a script,
under a time limit. So it imports nothing of ours.
"""

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import h5py

SEAL = b"\nicecore structure "
SEAL_BYTES = 1 << 18
"""Bytes at the end of a file in which the seal is looked for."""
PIECE_BYTES = 1 << 24
"""Bytes that are read at a time for the digest."""
SECONDS = 30.0
"""Time that HDF5 has to open a file without a seal; a whole one takes less than one second."""


@dataclass(frozen=True)
class Structure:
    """Attributes and arrays of a store, as HDF5 gives them."""

    schema: int | None
    identity: str = ""
    manifest: str = ""
    manifest_digest: str | None = None
    arrays: tuple[tuple[str, int | None, tuple[int, ...], str], ...] = ()
    """Path, first byte (none where it is not contiguous), shape and dtype of each."""


def read_structure(path: Path) -> Structure:
    """Read the structure of a store."""
    state = path.stat()
    tail_bytes = min(SEAL_BYTES, state.st_size)
    with path.open("rb") as file:
        file.seek(state.st_size - tail_bytes)
        tail = file.read(tail_bytes)
    start = tail.rfind(SEAL)
    if start < 0:
        return _ask_child(str(path), state.st_size, state.st_mtime_ns, state.st_ino)
    end = state.st_size - len(tail) + start
    try:
        seal = json.loads(tail[start + len(SEAL) :])
        is_whole = _digest(path, seal["ranges"], end) == seal["sha256"]
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"the seal at its end is damaged: {error}") from error
    if not is_whole:
        raise ValueError("its structure does not match the digest at its end")
    return ask_hdf5(path)


def seal_structure(path: Path, arrays: list[tuple[int, int]]) -> None:
    """Add the seal to a store that HDF5 will not write again; `arrays` are first bytes and sizes."""
    end, position, ranges = path.stat().st_size, 0, []
    for offset, n_bytes in [*sorted(arrays), (end, 0)]:
        if offset > position:
            ranges.append([position, offset])
        position = max(position, offset + n_bytes)
    seal = {"ranges": ranges, "sha256": _digest(path, ranges, end)}
    with path.open("ab") as file:
        file.write(SEAL + json.dumps(seal, separators=(",", ":")).encode())


def ask_hdf5(path: Path) -> Structure:
    """Read the structure of a store through HDF5, which may not return where it is damaged."""
    arrays: list[tuple[str, int | None, tuple[int, ...], str]] = []

    def add(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            arrays.append((f"/{name}", item.id.get_offset(), tuple(item.shape), item.dtype.str))

    with h5py.File(path, "r", locking=False) as file:
        schema = file.attrs.get("icecore_schema")
        if schema is None or int(schema) != 1:
            return Structure(None if schema is None else int(schema))
        file.visititems(add)
        digest = file.attrs.get("manifest_digest")
        texts = str(file.attrs["identity"]), str(file.attrs["manifest"]), None if digest is None else str(digest)
        return Structure(int(schema), *texts, arrays=tuple(arrays))


@lru_cache(maxsize=256)
def _ask_child(path: str, *state: int) -> Structure:
    """Read the structure of a file without a seal in another process; asked again where the file's state changed."""
    del state
    command = [sys.executable, "-I", "-W", "ignore", __file__, str(Path(path).resolve())]
    try:
        child = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"HDF5 did not come to an end in {SECONDS:g} seconds, so its structure is damaged") from error
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"HDF5 ended with code {child.returncode}")
    fields = json.loads(child.stdout)
    arrays = tuple((name, offset, tuple(shape), dtype) for name, offset, shape, dtype in fields.pop("arrays"))
    return Structure(**fields, arrays=arrays)


def _digest(path: Path, ranges: list[list[int]], end: int) -> str:
    """Return the SHA-256 of ranges of a file, which must lie before `end`, and of where they are."""
    digest, last = hashlib.sha256(json.dumps([ranges, end]).encode()), 0
    with path.open("rb") as file:
        for start, stop in ranges:
            if not last <= start <= stop <= end:
                raise ValueError(f"range {start}-{stop} is outside the file, or was read before")
            file.seek(start)
            for left in range(stop - start, 0, -PIECE_BYTES):
                digest.update(file.read(min(left, PIECE_BYTES)))
            last = stop
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(asdict(ask_hdf5(Path(sys.argv[1])))))
    except Exception as problem:  # h5py raises a dozen unrelated types on a damaged file
        sys.exit((str(problem) or type(problem).__name__).strip().splitlines()[0])
