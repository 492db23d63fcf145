"""Files that are written whole, so that a kill leaves the old content or the new; digests of content; CSV."""

import csv
import errno
import glob
import gzip
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from extract.errors import ConfigError, DecoderError, DiskFullError, IcecoreError

if TYPE_CHECKING:
    from _csv import Reader

    import numpy as np
    import pandas as pd
    import torch
    from numpy.typing import NDArray
    from torch import nn
    from transformers import PreTrainedTokenizerBase


DIGEST_BYTES = 16
"""Of the digest of a row; other digests are SHA-256 in hexadecimal digits."""
PACKED_BYTES, PACKED_TIMES = 1 << 28, 100
"""What gzip may unpack to, whatever its size, and as a multiple of it: texts take a tenth to a quarter."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Windows has no such option."""
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step, as `replacing_file` does; raises the same."""
    with replacing_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file piece by piece: it holds its old content or all of the new, whenever the process is killed.

    A draft beside it is synced and renamed when the `with` block ends; one that a killed process left is removed by the
    next. A link of that name is never followed. `DiskFullError` and `ConfigError` leave the file as it was.
    """
    try:
        _sweep_drafts(path)
        draft, file = _open_draft(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink()
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(error, path) from error


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, for good: a crash does not bring it back."""
    try:
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(error, path) from error


def read_file(path: Path) -> bytes:
    """Read a plain file; anything else, such as a pipe that would never end, is an `OSError`."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return path.read_bytes()


def unpack(content: bytes) -> bytes:
    """Unpack gzip, as `gzip.decompress` does; `ValueError` for a little of it that would fill the memory."""
    most = max(PACKED_BYTES, PACKED_TIMES * len(content))
    with gzip.GzipFile(fileobj=BytesIO(content)) as file:
        plain = file.read(most + 1)
    if len(plain) > most:
        raise ValueError(f"it holds more than {PACKED_TIMES} times its size")
    return plain


def open_unlinked(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a file for writing, but not through a link, which would reach elsewhere (`ConfigError`)."""
    _refuse_link(path)
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | NO_FOLLOW, 0o666))


def refuse_links(folder: Path) -> None:
    """Refuse a folder that is a link or holds one, through which writing would reach elsewhere; it may be absent."""
    for parent, folders, files in os.walk(folder):
        for path in [Path(parent), *(Path(parent, name) for name in (*folders, *files))]:
            _refuse_link(path)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(
            f"{str(path)!r} is a link, and nothing is written through links; allowed: a folder of plain files and "
            "folders. Remove the link, or choose another folder or name."
        )


def _open_draft(path: Path) -> tuple[Path, BinaryIO]:
    """Open a new draft and lock it; another one where somebody swept it before it was locked."""
    while True:
        draft = path.with_name(f".new-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
        file = os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
        _lock(file.fileno(), waits=True)  # a draft without a lock is a leftover
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), draft.stat()):
                return draft, file
        file.close()


def _sweep_drafts(path: Path) -> None:
    for leftover in path.parent.glob(f".new-*-{glob.escape(path.name)}"):
        with suppress(OSError):
            if leftover.is_symlink() or not leftover.is_file():  # never ours
                leftover.unlink()
                continue
            with leftover.open("rb") as file:
                if _lock(file.fileno()):
                    leftover.unlink()


def _lock(descriptor: int, *, waits: bool = False) -> bool:
    """Lock an open file until it is closed; False where a living process holds the lock or there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename or removal durable, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unwritable(error: OSError, path: Path) -> IcecoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in NO_SPACE:
        return DiskFullError(
            f"no space for {str(path)!r} ({reason}); the old content is kept. Free some space and run again."
        )
    return ConfigError(
        f"file {str(path)!r} cannot be written ({reason}); allowed: a folder that can be written. Check its "
        "permissions, or choose another."
    )


def digest_json(value: object) -> str:
    """Digest plain values by their canonical JSON."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """Digest a text by its UTF-8 bytes."""
    return digest_bytes(text.encode())


def digest_bytes(content: bytes) -> str:
    """Digest the content of a file."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(value: object) -> str:
    """Write plain values as canonical JSON: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_rows(rows: "NDArray[np.uint8]") -> str:
    """Digest a whole list of row digests in its order."""
    return hashlib.sha256(rows.tobytes()).hexdigest()


def digest_module(module: "nn.Module") -> str:
    """Digest names, shapes, dtypes and bytes of every parameter and buffer, non-persistent buffers included.

    Equal digests mean bit-identical tensors. They are hashed two at a time on the CPU, and offloaded ones are read from
    main memory or disk. Rotary frequencies that change with the length of a batch (longrope) are no weights: the
    original ones of the decoder are hashed.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    def one(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        whole = _read_offloaded(module, name, tensor) if tensor.device.type == "meta" else tensor
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole  # split over processes
        flat = whole.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        head = f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode()
        return hashlib.sha256(head + hashlib.sha256(flat.numpy().data).digest()).digest()

    buffers = dict(module.named_buffers())
    for name in buffers:
        path, _, last = name.rpartition(".")
        owner, before = module.get_submodule(path), last.replace("inv_freq", "original_inv_freq")
        if "longrope" in str(getattr(owner, "rope_type", "")) and last.endswith("inv_freq") and hasattr(owner, before):
            buffers[name] = getattr(owner, before)
    named = {name for name, _ in module.named_parameters(remove_duplicate=False)} | buffers.keys()
    scales = {name: value for name, value in module.state_dict().items() if name not in named}  # of quantised weights
    tensors = [*module.named_parameters(), *buffers.items()]
    tensors += [(name, value) for name, value in scales.items() if isinstance(value, torch.Tensor)]
    is_split = any(hasattr(tensor, "full_tensor") for _, tensor in tensors)  # gathered in one order everywhere
    with ThreadPoolExecutor(max_workers=1 if is_split else 2) as pool:
        parts = list(pool.map(one, tensors))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def hooks_of(module: "nn.Module") -> list[Any]:
    """Return the hooks by which accelerate moves a module's inputs and weights between devices."""
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))


def _read_offloaded(module: "nn.Module", name: str, empty: "torch.Tensor") -> "torch.Tensor":
    """Read an offloaded tensor from main memory or disk, in the dtype it is used in."""
    path, _, last = name.rpartition(".")
    for hook in hooks_of(module.get_submodule(path)):
        if getattr(hook, "weights_map", None) is not None:
            tensor: torch.Tensor = hook.weights_map[last].to(empty.dtype)
            return tensor
    raise DecoderError(f"the weight {name!r} is on no device and was not offloaded by accelerate; load it first.")


def digest_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Digest everything that decides a tokenizer's output: the whole fast tokenizer and its special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state: Any = sorted(tokenizer.get_vocab().items())
    if backend is not None:
        # Padding and truncation are settings of the last caller, which none of our calls keep.
        state = {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("padding", "truncation")}
    splits = ["split_special_tokens"] if getattr(tokenizer, "split_special_tokens", False) else []  # not in the state
    return digest_json([state, {key: str(value) for key, value in tokenizer.special_tokens_map.items()}, *splits])


# --- CSV that people open in spreadsheets ---


FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""How a text begins that a spreadsheet may run, and one that has got quotes before: the last four are the full width
forms of the first four."""


def safe_text(text: str) -> str:
    """Put a quote before a text that a spreadsheet would run, or one with quotes before such a text; no number is one.

    Example:
        >>> safe_text("=1+1"), safe_text("'=1+1"), safe_text("-1.5"), safe_text("a=1")
        ("'=1+1", "''=1+1", '-1.5', 'a=1')
    """
    return f"'{text}" if FORMULA.match(text) and not _is_number(text) else text


def plain_text(text: str) -> str:
    """Take away the quote that `safe_text` put before a text."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def write_csv(rows: Iterable[Iterable[object]], *, newline: str = "\r\n", is_safe: bool = True) -> str:
    """Write rows, the first of them the names of the columns, with safe texts; numbers stay as they are."""
    lines = []
    for row in rows:
        file = StringIO(newline="")
        # the writer quotes a carriage return only where lines end in one; alone it would begin a row of its own
        writer = csv.writer(file, lineterminator="\r\n")
        writer.writerow([safe_text(value) if is_safe and isinstance(value, str) else value for value in row])
        lines.append(file.getvalue().removesuffix("\r\n") + newline)
    return "".join(lines)


def write_frame(frame: "pd.DataFrame") -> str:
    """Write a frame without its index, with safe texts; numbers stay as they are."""
    safe = frame.map(lambda value: safe_text(value) if isinstance(value, str) else value)
    safe.columns = [safe_text(str(name)) for name in frame.columns]
    return str(safe.to_csv(index=False, lineterminator="\r\n"))


def csv_records(
    lines: Iterable[str], delimiter: str = ",", *, has_quotes: bool = True, is_strict: bool = False
) -> "Reader":
    """Make a reader of the csv module for cells of any length; its own limit is 131,072 characters."""
    csv.field_size_limit(2**31 - 1)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=is_strict)


def read_csv(text: str) -> list[list[str]]:
    """Read what `write_csv` or `write_frame` wrote, names of columns first, with the texts that were written."""
    return [[plain_text(cell) for cell in row] for row in csv_records(StringIO(text, newline=""))]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
