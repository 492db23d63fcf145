"""Texts kept beside a cache on demand, in a file of their own: arrays are laid out before any text is read.

`x.texts.jsonl.gz` beside `x.h5` has a line of JSON for each text, a string, or a list of text and spans of words. The
digests in the cache say which row a text is of, and that it is as it was. docs/cache_format.md is the contract.
"""

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from extract.errors import CacheError, first_line
from extract.files import read_file, write_file
from extract.inputs.joined_text import JoinedText

if TYPE_CHECKING:
    from extract.store.reader import ShardFiles

SUFFIX = ".texts.jsonl.gz"
UNREADABLE = (OSError, EOFError, ValueError, TypeError, IndexError, RecursionError, zlib.error)
"""What reading a damaged file of texts may raise."""


def texts_file(name: str) -> str:
    """Name the file of the texts of a cache or shard by its own."""
    return name.removesuffix(".h5") + SUFFIX


def keep_texts(cache: Path, texts: Sequence[str | JoinedText]) -> None:
    """Write the texts of a cache beside it, unless they are there."""
    path = cache.with_name(texts_file(cache.name))
    lines = [text if isinstance(text, str) else [text.text, list(map(list, text.spans))] for text in texts]
    content = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()
    try:
        if path.is_file() and gzip.decompress(read_file(path)) == content:
            return
    except UNREADABLE:
        pass  # damaged: written again
    write_file(path, gzip.compress(content, mtime=0))


def move_texts(cache: Path, to: Path) -> None:
    """Move the texts of a cache, if they are kept, with it."""
    path = cache.with_name(texts_file(cache.name))
    if path.is_file():
        path.replace(to.with_name(texts_file(to.name)))


def read_kept(files: "ShardFiles", name: str) -> list[str | JoinedText] | None:
    """Read the texts of a cache or shard; None where none are kept, `CacheError` where they cannot be read."""
    file = texts_file(name)
    try:
        content = files.read(file)
    except CacheError:
        return None
    try:
        lines = [json.loads(line) for line in gzip.decompress(content).decode().split("\n") if line]
        return [_text(line) for line in lines]
    except UNREADABLE as error:
        raise CacheError(
            f"the texts in {file!r} cannot be read ({first_line(error)}); delete the file, and extract again with "
            "store_texts to write it again: latents are kept."
        ) from error


def _text(line: object) -> str | JoinedText:
    if isinstance(line, str):
        return line
    if not isinstance(line, list) or not isinstance(line[0], str):
        raise TypeError(f"{line!r} is no text")
    return JoinedText(line[0], tuple((int(start), int(end)) for start, end in line[1]))
