"""Where a decoder is: a known name, a hub id, a local folder or a GGUF file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from extract.decoders.fetch import cached_gguf, fetch_decoder
from extract.decoders.hub import resolve_hub
from extract.decoders.known import KNOWN_DECODERS, known_decoder
from extract.decoders.spec import split_random
from extract.errors import DecoderError


@dataclass(frozen=True)
class Located:
    """A decoder that transformers can load."""

    name: str  # short, for people; never a path
    source: str  # `known`, `folder`, `gguf`, `hub` or `memory`
    path: str  # local folder, or the hub id
    revision: str  # hub commit or wheel version; empty for a local folder
    random_seed: int | None = None  # of weights to be drawn in place of the trained ones


def locate_decoder(name: str, *, revision: str | None = None, report: Callable[[str], None]) -> Located:
    """Find a decoder and obtain it where it is a known one.

    Args:
        name: A local folder or .gguf file, a known name, or a hub id, tried in this order; perhaps `@random-SEED`.
        revision: Hub revision; only a hub id takes one.
        report: Receives one-line remarks.

    Raises:
        DecoderError: A folder without config.json, a file of another kind, or an unknown name.
        FetchError: A known decoder that could not be obtained, or a hub id while the hub is out of reach.
    """
    name, random_seed = split_random(name)
    if random_seed is not None:
        trained = locate_decoder(name, revision=revision, report=report)
        return replace(trained, name=f"{trained.name}@random-{random_seed}", random_seed=random_seed)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DecoderError(
                f"folder {name!r} holds no config.json; allowed: a decoder folder in hub layout "
                "(config.json, safetensors weights, tokenizer.json)."
            )
        return Located(path.resolve().name, "folder", str(path), "")
    if path.suffix.lower() == ".gguf":
        return Located(path.name, "gguf", str(cached_gguf(path, report=report)), "")
    if path.is_file():
        raise DecoderError(f"file {name!r} is not a decoder; allowed: a .gguf file or a folder in hub layout.")
    if "/" not in name:
        entry = known_decoder(name)
        fetched = fetch_decoder(entry.name, report=report)
        return Located(entry.name, "known", str(fetched.folder), fetched.revision)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise DecoderError(
            f"there is no folder {name!r}; allowed: a local folder, a .gguf file, a hub id 'owner/name', "
            f"or a known name ({', '.join(KNOWN_DECODERS)})."
        )
    return Located(name, "hub", name, resolve_hub(name, revision))
