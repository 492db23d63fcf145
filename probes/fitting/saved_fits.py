"""Fitted heads on disk, each fitted once: weights as safetensors, everything else as JSON. No pickle."""

import hashlib
import io
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypedDict, TypeVar, cast, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from extract.errors import HeadError, IcecoreError
from extract.files import digest_bytes, digest_json, read_file, refuse_links, remove_file, replacing_file, write_file
from extract.records import Values
from extract.store.cache import LatentCache
from extract.store.manifest import describe_views
from extract.threads import keep_threads
from probes.fitting.fit_options import FitHooks, Trainer

SCHEMA = 4
READABLE = (1, 2, 3, SCHEMA)
"""1: token heads and logistic probes of early versions; 2: pair heads and autoencoders; 3: all of them alike; 4: with
digests of weights and record."""
SEALED_FROM = 4
WEIGHTS, RECORD = "model.safetensors", "head.json"
DIGESTS = ("weights_sha256", "record_sha256")
UNFINISHED = "unfinished-{}.ckpt"
"""State of a fit that has not ended, named after what decides the fit."""
DECODER_KEYS = ("weight_digest", "tokenizer_digest", "dtype")
"""What latents must have in common, of the identity of their decoder."""


@runtime_checkable
class FittedModule(Protocol):
    """A module that can be saved, loaded and called."""

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Score latents."""

    def arguments(self) -> Values:
        """Return the constructor's arguments as plain values."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name."""

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> object:
        """Replace the tensors."""

    def eval(self) -> object:
        """Switch dropout off."""


M = TypeVar("M", bound=FittedModule)
M_co = TypeVar("M_co", bound=FittedModule, covariant=True)


@dataclass(frozen=True)
class FitRecord:
    """What is stored with a fitted head, as plain values."""

    name: str
    """The head."""
    pooling: str = ""
    """The pooling it reads, or several joined by `+`."""
    layers: tuple[str, ...] = ()
    """The layers it reads, in order."""
    details: Values = field(default_factory=dict)
    """What only heads of its kind have."""
    arguments: Values = field(default_factory=dict)
    """Arguments of the module's constructor."""
    fit_id: str = ""
    """Digest of all that decides the fit."""
    latents: Values = field(default_factory=dict)
    """What it was fitted on, see `describe_latents`; early heads do not say."""
    schema: int = SCHEMA
    """Version of the form."""

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "FitRecord":
        """Read what `to_plain` wrote; schema 2 had sizes beside the arguments."""
        named = {item.name: values.pop(item.name) for item in fields(cls) if item.name in values}
        layers = named.pop("layers", [])
        if type(named.get("pooling", "")) is not str or type(layers) is not list or {*map(type, layers)} - {str}:
            raise TypeError(f"the pooling is {named.get('pooling')!r} and the layers are {layers!r}")
        sizes = {key: values[key] for key in ("n_layers", "width") if key in values}
        return cls(**{**named, "arguments": {**sizes, **named["arguments"]}}, layers=tuple(layers), details=values)

    def __getitem__(self, key: str) -> Any:
        """Return a value by its key in head.json."""
        return self.to_plain()[key]

    def to_plain(self) -> dict[str, object]:
        """Return the serial form, in which details are beside the rest."""
        values = {**vars(self), "layers": list(self.layers), **self.details}
        del values["details"]
        return values


@dataclass(frozen=True)
class SavedHead(Generic[M_co]):
    """A fitted head, in eval mode, on the CPU, and what is stored with it."""

    head: M_co
    record: FitRecord


def save_fitted(folder: Path, head: M, record: FitRecord) -> SavedHead[M]:
    """Write a fitted head to a folder; its record is returned with the arguments of the head.

    The old record goes first and the sealed new one comes last: a kill leaves no head or this one.
    """
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({key: value.contiguous() for key, value in head.state_dict().items()})
    record = replace(record, arguments=head.arguments())
    values = {**record.to_plain(), "weights_sha256": digest_bytes(weights)}
    values["record_sha256"] = _seal(values)
    remove_file(folder / RECORD)
    write_file(folder / WEIGHTS, weights)
    write_file(folder / RECORD, json.dumps(values, indent=1, sort_keys=True) + "\n")
    return SavedHead(head, record)


def load_fitted(folder: str | Path, build: Callable[[FitRecord], M]) -> SavedHead[M]:
    """Read a fitted head, whose module `build` makes without weights; HeadError where none can be read."""
    folder = Path(folder)
    try:
        values = json.loads(read_file(folder / RECORD))
        if values["schema"] not in READABLE:
            raise ValueError(f"its schema is {values['schema']}, this version reads 1 to {SCHEMA}; fit it again")
        is_sealed = values["schema"] >= SEALED_FROM
        if is_sealed and values["record_sha256"] != _seal(values):
            raise ValueError(f"{RECORD} was changed after it was written; fit it again")
        digest = values["weights_sha256"] if is_sealed else ""
        record = FitRecord.from_plain({key: value for key, value in values.items() if key not in DIGESTS})
        with torch.random.fork_rng():  # fresh weights are drawn before the saved ones replace them
            head = build(record)
        weights = read_file(folder / WEIGHTS)
        if is_sealed and digest != digest_bytes(weights):
            raise ValueError(f"{WEIGHTS} is not the file that {RECORD} was written with; fit it again")
        head.load_state_dict(load(weights))
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
    fit: Callable[[], tuple[M, FitRecord]],
    build: Callable[[FitRecord], M],
    *,
    cache: LatentCache,
) -> SavedHead[M]:
    """Load the head of a folder if it has this `fit_id`, a digest of all that decides it; else fit and save it.

    Another run may have made the same fit: with other seeds, heads or figures beside it. It is copied from there.
    """
    for place in chain([folder], _of_other_runs(folder, fit_id)):
        with suppress(IcecoreError):  # absent, incomplete, of another version or another head: fitted again
            saved = load_fitted(place, build)
            if saved.record.fit_id == fit_id:
                return saved if place == folder else save_fitted(folder, saved.head, saved.record)
    head, record = fit()
    saved = save_fitted(folder, head, replace(record, fit_id=fit_id, latents=describe_latents(cache)))
    for state in folder.glob(f"*{UNFINISHED.format('*')}"):  # or the draft of one
        remove_file(state)
    return saved


def _of_other_runs(folder: Path, fit_id: str) -> Iterator[Path]:
    """Find this fit of a head in runs beside its run that are named like it, as `demo` and `demo-seeds-0-1` are."""
    run = next((above for above in folder.parents if (above / "config.yaml").exists()), None)
    if run is None:
        return
    for other in sorted(run.parent.iterdir()):
        if f"{other.name}-".startswith(f"{run.name}-") or f"{run.name}-".startswith(f"{other.name}-"):
            place = other / folder.relative_to(run)
            with suppress(OSError, ValueError, AttributeError, RecursionError):  # no record, or none of ours
                if place != folder and json.loads(read_file(place / RECORD)).get("fit_id") == fit_id:
                    yield place


def describe_latents(cache: LatentCache) -> dict[str, object]:
    """Describe the latents that a head is fitted on: new ones must be like them."""
    identity = cache.identity
    decoder = {key: identity.decoder.get(key) for key in DECODER_KEYS}
    if "config_digest" in identity.decoder:  # as `unlike` compares it
        decoder["config_digest"] = identity.decoder["config_digest"]
    return {
        "cache": cache.manifest.id,
        "decoder": decoder,
        "plan": identity.plan,
        "template": identity.template,
        **({"views": views} if (views := describe_views(identity)) else {}),
    }


def unlike(decoder: Mapping[str, object], other: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """List where two records of a decoder differ; a configuration counts where both tell it, as early ones do not."""
    pairs = {key: (decoder.get(key), other.get(key)) for key in (*DECODER_KEYS, "config_digest")}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1] and (key in DECODER_KEYS or all(pair))}


def _seal(values: Values) -> str:
    """Digest a record without this digest, as it is once read back from JSON."""
    rest = {key: value for key, value in values.items() if key != "record_sha256"}
    return digest_json(json.loads(json.dumps(rest)))


# Resuming a fit that was killed: the state of training is written every few minutes, at the end of an epoch.

PAUSE_SECONDS = 60.0
"""Least time between two states: a fit that is shorter writes none."""
LARGEST_SHARE = 0.02
"""Largest share of a fit's time that writing states takes."""
_KEY = "icecore"
_DIGEST_SIZE = hashlib.sha256().digest_size


class _Interrupted(TypedDict, total=False):
    """What is added to Lightning's checkpoint."""

    generators: dict[str, torch.Tensor]
    seconds: float
    identity: str
    threads: int


class Unfinished(FitHooks):
    """Saves the state of a fit in the folder of its head, and resumes the fit from the state that a killed one left.

    The state is Lightning's checkpoint, with the order of rows (the data module's state) and torch's generators, so
    that a resumed fit ends with the same bits. A state of another fit, or a damaged one, is not used. It holds tensors
    and plain values only, so reading one runs no code.

    Args:
        folder: Folder of the head.
        fit_id: Digest of everything that decides the fit.
    """

    def __init__(self, folder: Path, fit_id: str) -> None:
        versions = [str(torch.__version__), version("lightning")]
        self.identity = digest_json([fit_id, versions])
        self.path = folder / UNFINISHED.format(self.identity[:16])
        self.files = _SealedFiles()
        self.seconds_before = 0.0
        """Seconds of training that an earlier process spent on the epochs that are not repeated."""
        self._generators: dict[str, torch.Tensor] = {}
        self._began = self._written = time.monotonic()
        self._cost, self._is_possible = 0.0, True

    def find(self) -> Path | None:
        """Return the path of the state to resume from, if there is one that can be read."""
        if not self.path.exists():
            return None
        try:
            self.files.open(self.path, self.identity)
        except Exception:  # whatever is wrong with it, the fit starts again
            return None
        return self.path

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Read the generators and the time."""
        state = cast("_Interrupted", checkpoint[_KEY])
        self._generators, self.seconds_before = state["generators"], state["seconds"]
        keep_threads(state.get("threads"))  # early versions did not say

    def on_save_checkpoint(self, module: torch.nn.Module, checkpoint: dict[str, object]) -> None:
        """Add the generators and the time."""
        generators = {"cpu": torch.get_rng_state()}
        device = next(module.parameters()).device
        if device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(device)
        seconds = self.seconds_before + time.monotonic() - self._began
        threads = torch.get_num_threads()
        checkpoint[_KEY] = {"generators": generators, "seconds": seconds, "identity": self.identity, "threads": threads}

    def on_train_start(self, module: torch.nn.Module) -> None:
        """Set torch's generators to where the next epoch begins; the order of rows is the data's own state."""
        self._began = self._written = time.monotonic()
        if self._generators:
            torch.set_rng_state(self._generators["cpu"])
            if "cuda" in self._generators:
                torch.cuda.set_rng_state(self._generators["cuda"], next(module.parameters()).device)

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        """Write the state, if the last one is old enough and training continues."""
        now = time.monotonic()
        is_due = now - self._written >= max(PAUSE_SECONDS, self._cost / LARGEST_SHARE)
        if not (is_due and self._is_possible) or trainer.should_stop:
            return
        try:
            refuse_links(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            trainer.save_checkpoint(self.path)
        except (IcecoreError, OSError) as error:
            self._is_possible = False
            warnings.warn(f"this fit cannot be resumed if it is killed: {error}", RuntimeWarning, stacklevel=2)
        self._written = time.monotonic()
        self._cost = self._written - now


class _Digesting(io.RawIOBase):
    """Passes bytes on to a file and digests them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        """Write bytes."""
        self.digest.update(content)
        return self.file.write(content)


class _SealedFiles:
    """Checkpoints that are written whole, end in their digest, and hold tensors and plain values."""

    def __init__(self) -> None:
        self._opened: dict[str, object] | None = None

    def save_checkpoint(self, checkpoint: dict[str, object], path: Path) -> None:
        """Write a checkpoint in place of the last one."""
        with replacing_file(path) as file:
            through = _Digesting(file)
            torch.save(checkpoint, cast("BinaryIO", through))
            file.write(through.digest.digest())

    def open(self, path: Path, identity: str) -> None:
        """Read the checkpoint of a fit for `load_checkpoint`; whatever is wrong with it is raised."""
        content = read_file(path)
        body, seal = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
        if digest_bytes(body) != seal.hex():
            raise ValueError("it is not as it was written")
        checkpoint: dict[str, object] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        if cast("_Interrupted", checkpoint[_KEY]).get("identity") != identity:
            raise ValueError("it is the state of another fit")
        self._opened = checkpoint

    def load_checkpoint(self) -> dict[str, object]:
        """Return the checkpoint that was opened."""
        if self._opened is None:
            raise RuntimeError("no checkpoint was opened")
        opened, self._opened = self._opened, None
        return opened
