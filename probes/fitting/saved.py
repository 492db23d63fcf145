"""Fitted heads on disk, each fitted once: weights as safetensors, everything else as JSON. No pickle."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from extract.digest import digest_bytes, digest_json
from extract.errors import HeadError, IcecoreError
from extract.files import read_file, refuse_links, remove_file, write_file
from extract.store.cache import LatentCache

SCHEMA = 4
READABLE = (1, 2, 3, SCHEMA)
"""1: token heads and logistic probes of early versions; 2: pair heads and autoencoders; 3: all of them alike; 4: with
digests of weights and record."""
SEALED_FROM = 4
WEIGHTS, RECORD = "model.safetensors", "head.json"
UNFINISHED = "unfinished-{}.ckpt"
"""State of a fit that has not ended, named after what decides the fit."""
DECODER_KEYS = ("weight_digest", "tokenizer_digest", "dtype")
"""What latents must have in common, of the identity of their decoder."""


@runtime_checkable
class FittedModule(Protocol):
    """A module that can be saved, loaded and called: it knows the arguments it was built with."""

    def __call__(self, *inputs: Any) -> Any:
        """Score latents."""

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Replace the tensors."""

    def eval(self) -> Any:
        """Switch dropout off."""


M = TypeVar("M", bound=FittedModule)
M_co = TypeVar("M_co", bound=FittedModule, covariant=True)


@dataclass(frozen=True)
class SavedHead(Generic[M_co]):
    """A fitted head, in eval mode, on the CPU, and what is stored with it."""

    head: M_co
    record: dict[str, Any]
    """Plain values: `schema`, `name`, `arguments`, `pooling`, `layers`, and what the head's own fit adds."""


def save_fitted(folder: Path, head: M, record: dict[str, Any]) -> SavedHead[M]:
    """Write a fitted head to a folder; its record holds plain values, `name` among them, and is returned whole.

    A kill at any moment leaves no head or this one: the old record goes first and the new one comes last, sealed with a
    digest of itself and of the weights.
    """
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({key: value.contiguous() for key, value in head.state_dict().items()})
    whole = {"schema": SCHEMA, "arguments": head.arguments(), **record, "weights_sha256": digest_bytes(weights)}
    whole["record_sha256"] = _seal(whole)
    remove_file(folder / RECORD)
    write_file(folder / WEIGHTS, weights)
    write_file(folder / RECORD, json.dumps(whole, indent=1, sort_keys=True) + "\n")
    return SavedHead(head, whole)


def load_fitted(folder: str | Path, build: Callable[[dict[str, Any]], M]) -> SavedHead[M]:
    """Read a fitted head; `build` makes the module, without its weights, from the record.

    Raises `HeadError` where no head is there, or one that cannot be read.
    """
    folder = Path(folder)
    try:
        record = _read_record(folder)
        with torch.random.fork_rng():  # fresh weights are drawn before the saved ones replace them
            head = build(record)
        head.load_state_dict(_read_weights(folder, record))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HeadError(
            f"folder {str(folder)!r} holds no readable head ({reason}); allowed: a folder with {RECORD} and "
            f"{WEIGHTS}, as in RUN/heads/NAME/seed_0."
        ) from error
    head.eval()
    return SavedHead(head, record)


def fit_or_load(
    folder: Path,
    fit_id: str,
    fit: Callable[[], tuple[M, dict[str, Any]]],
    build: Callable[[dict[str, Any]], M],
    *,
    cache: LatentCache,
) -> SavedHead[M]:
    """Load the head of a folder if it was fitted under the same circumstances; otherwise fit and save it.

    Args:
        folder: Where the head is kept.
        fit_id: Digest of everything that decides the fit.
        fit: Fits the head; returns it with its record (plain values, `name` among them).
        build: Builds the module, without its weights, from a record.
        cache: The latents that it is fitted on; what they are is kept with it.
    """
    try:
        saved = load_fitted(folder, build)
        if saved.record.get("fit_id") == fit_id:
            return saved
    except IcecoreError:
        pass  # absent, cut short, of another version or another head: fitted again
    head, record = fit()
    saved = save_fitted(folder, head, {**record, "fit_id": fit_id, "latents": describe_latents(cache)})
    for state in folder.glob(f"*{UNFINISHED.format('*')}"):  # or the draft of one
        remove_file(state)
    return saved


def describe_latents(cache: LatentCache) -> dict[str, Any]:
    """Describe the latents that a head is fitted on: new ones must be like them."""
    identity = cache.identity
    decoder = {key: identity["decoder"].get(key) for key in DECODER_KEYS}
    return {
        "cache": cache.manifest.id,
        "decoder": decoder,
        "plan": identity.get("plan"),
        "template": identity.get("template"),
    }


def _read_record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(read_file(folder / RECORD))
    if record["schema"] not in READABLE:
        raise ValueError(f"its schema is {record['schema']}, this version reads 1 to {SCHEMA}; fit it again")
    if record["schema"] >= SEALED_FROM and record["record_sha256"] != _seal(record):
        raise ValueError(f"{RECORD} was changed after it was written; fit it again")
    # Schema 2 kept these two beside the other arguments.
    apart = {key: record[key] for key in ("n_layers", "width") if key in record}
    return {**record, "arguments": {**apart, **record["arguments"]}}


def _read_weights(folder: Path, record: dict[str, Any]) -> dict[str, torch.Tensor]:
    weights = read_file(folder / WEIGHTS)
    if record["schema"] >= SEALED_FROM and record["weights_sha256"] != digest_bytes(weights):
        raise ValueError(f"{WEIGHTS} is not the one that {RECORD} was written with; fit it again")
    return load(weights)


def _seal(record: dict[str, Any]) -> str:
    """Digest a record without its own digest, as it is once read back from JSON."""
    rest = {key: value for key, value in record.items() if key != "record_sha256"}
    return digest_json(json.loads(json.dumps(rest)))
