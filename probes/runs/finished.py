"""A finished run, read back from its folder, which may come from anybody: values are checked and names are no paths."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from extract.decoders.decoder import Decoder
from extract.decoders.spec import DecoderSpec, read_recorded_decoder, split_random
from extract.digest import digest_bytes
from extract.errors import CacheIdentityError, HeadError, first_line
from extract.files import read_file
from extract.inputs.template import InputTemplate
from extract.masks.plan import parse_plan
from extract.own.names import import_own, require_own, require_recorded
from extract.poolings.reba_options import RebaOptions
from extract.records import as_given
from extract.run.spec import ExtractionSpec, WordSpec
from extract.store.manifest import differences
from probes.fitting.saved import DECODER_KEYS, FittedModule, SavedHead
from probes.heads.registry import find_head
from probes.report.document import best_result
from probes.report.scores import SCORES_SCHEMA, RunScores, read_run, seal_scores
from probes.runs.config import PretrainingSpec, RunConfig, TaskSpec
from probes.runs.kinds import KINDS
from probes.runs.record import CONFIG

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What a run folder says of its heads and of the latents they read."""

    folder: Path
    scores: RunScores
    spec: ExtractionSpec
    decoder: DecoderSpec
    heads: Mapping[str, tuple[Path, ...]]
    """Head to the folders of its seeds, all inside the run folder."""

    @property
    def best(self) -> str:
        """The head with the best selection score."""
        return best_result(self.scores.heads.values()).name

    def require_head(self, saved: SavedHead[FittedModule], name: str) -> None:
        """Refuse a head in another head's folder, or one that was fitted on another cache than the scores are of."""
        found = {"name": saved.record["name"], "cache": _latents(saved).get("cache", self.scores.cache["id"])}
        self._require_same(found, {"name": name, "cache": self.scores.cache["id"]}, what="head")

    def require_latents(self, decoder: Decoder, heads: Sequence[SavedHead[FittedModule]]) -> None:
        """Refuse latents that are not like those that the scores and each of the heads are of, and changed code."""
        require_own(self.scores.header.own, folder=self.folder)
        described = decoder.description
        now = {
            "decoder": {key: getattr(described, key) for key in DECODER_KEYS},
            "plan": parse_plan(self.spec.plan).text,
            "template": {**self.spec.template.to_dict(), "window": described.window},
        }
        scored = {
            "decoder": {key: self.scores.header.decoder[key] for key in DECODER_KEYS},
            "plan": self.scores.cache["plan"],
            "template": self.scores.cache["template"],
        }
        for fitted_on in (scored, *(_latents(saved) for saved in heads)):
            if fitted_on:
                self._require_same(now, {key: fitted_on[key] for key in now}, what="latents")

    def _require_same(self, found: dict[str, Any], wanted: dict[str, Any], *, what: str) -> None:
        unequal = differences(found, wanted)
        if unequal and what == "head":
            listing = "; ".join(f"{key} is {a!r}, its scores are of {b!r}" for key, (a, b) in unequal.items())
            raise CacheIdentityError(
                f"a head of {str(self.folder)!r} is not the one that was scored: {listing}. Run it again: icecore run "
                f"{self.folder / CONFIG}."
            )
        if unequal:
            listing = "; ".join(f"{key} is {a!r}, the run has {b!r}" for key, (a, b) in unequal.items())
            raise CacheIdentityError(
                f"the heads of {str(self.folder)!r} were fitted on something else: {listing}. Score with the decoder "
                "and the config.yaml of the run, or run it again."
            )


def read_finished(folder: Path) -> FinishedRun:
    """Read a run folder back.

    Raises:
        HeadError: No finished run there, one of an earlier version, or one that names what is no head of a run.
        IcecoreError: Settings that are outside their tables.
    """
    try:
        values = json.loads(read_file(folder / "scores.json"))
        settings = read_file(folder / CONFIG)
        config = yaml.safe_load(settings)
        schema = values["schema"]
        if schema == SCORES_SCHEMA:
            _require_unchanged(values, settings)
            _import_own(values, config["extraction"], folder)
            scores = read_run(values)
            heads = {name: _head_folders(folder, name, result.seeds) for name, result in scores.heads.items()}
            spec, decoder = read_spec(config["extraction"]), _read_decoder(config["decoder"])
            _require_described(scores)
            base = recorded_folder(config, folder)
            return FinishedRun(folder, scores, _near_spans(spec, folder, base), _near(decoder, folder, base), heads)
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise HeadError(
            f"folder {str(folder)!r} holds no finished run ({reason}); allowed: a folder made by `icecore run`, as "
            "runs/demo."
        ) from error
    raise HeadError(
        f"folder {str(folder)!r} holds a run of another version (schema {schema}, this one reads {SCORES_SCHEMA}); run "
        f"it again: icecore run {folder / CONFIG}."
    )


def _import_own(values: Mapping[str, Any], extraction: Mapping[str, Any], folder: Path) -> None:
    """Import what users added, as the run recorded it; a name that stands elsewhere alone is refused."""
    own = values.get("own", {})
    names = (*extraction["poolings"], *extraction["words"]["poolings"], extraction["plan"], *values["heads"])
    require_recorded(own, names)
    import_own(own, folder=folder)


def _require_unchanged(values: Mapping[str, Any], settings: bytes) -> None:
    """Refuse scores or settings of which a byte that counts is not as the run wrote it."""
    for name, is_sealed in (
        ("scores.json", values.get("sha256") == seal_scores(values)),
        (CONFIG, values.get("config_sha256") == digest_bytes(settings)),
    ):
        if not is_sealed:
            raise ValueError(f"{name} was changed after the run had ended, or is older than its seal; run it again")


def read_config(folder: Path) -> RunConfig:
    """Read the configuration of a run back, which cannot ask for code to be run; HeadError for a folder without one."""
    try:
        values = yaml.safe_load(read_file(folder / CONFIG))
        parts = {
            "decoder": read_recorded_decoder({**values["decoder"], "trust_remote_code": False}),
            "extraction": read_spec(values["extraction"]),
            "task": TaskSpec(**values["task"]), "pretraining": PretrainingSpec(**values["pretraining"]),
        }  # fmt: skip
        return RunConfig(**{**_tuples(values), **parts})
    except UNREADABLE as error:
        raise HeadError(
            f"folder {str(folder)!r} holds no {CONFIG} of a run ({first_line(error)}); allowed: a folder made by "
            "`icecore run`, as runs/demo."
        ) from error


def read_spec(values: dict[str, Any]) -> ExtractionSpec:
    """Read the `extraction` of a run's config.yaml back; an unknown key is a `TypeError`."""
    template, words = (_tuples(values[name]) for name in ("template", "words"))
    parts = {
        "template": InputTemplate(**template),
        "words": as_given(WordSpec(**words), frozenset(words)),
        "reba": RebaOptions(**values.get("reba", {})),
    }
    return as_given(ExtractionSpec(**{**_tuples(values), **parts}), frozenset(values))


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}


def _read_decoder(values: dict[str, Any]) -> DecoderSpec:
    spec = read_recorded_decoder(values)
    for key in ("name", "device", "revision", "adapter"):
        value = getattr(spec, key)
        if not isinstance(value, str) and (value is not None or key in ("name", "device")):
            raise TypeError(f"decoder.{key} is {value!r}, which is no text")
    return spec


def _head_folders(folder: Path, name: str, seeds: Sequence[Mapping[str, Any]]) -> tuple[Path, ...]:
    """Find the folders of a head's seeds; other names, and seeds that are no numbers, are refused."""
    if not find_head(name):  # so that no name leads out of the folder
        raise ValueError(f"it names a head {name!r}, which this version does not know")
    numbers = [seed["seed"] for seed in seeds]
    if any(type(number) is not int for number in numbers):
        raise ValueError(f"the seeds of head {name!r} are {numbers}, which are not all whole numbers")
    place = folder / "heads" / name
    return tuple(place / f"seed_{number}" for number in numbers) or (place,)  # a head without seeds has one


def _require_described(scores: RunScores) -> None:
    """Refuse scores without what heads are compared with, before a decoder is loaded."""
    if scores.header.kind not in KINDS or not scores.heads:
        raise ValueError(f"it has {len(scores.heads)} heads for tasks of {scores.header.kind!r}")
    for part, keys in ((scores.cache, ("id", "plan", "template")), (scores.header.decoder, DECODER_KEYS)):
        missing = [key for key in keys if key not in part]
        if missing:
            raise KeyError(f"{', '.join(missing)} is missing")
    for result in scores.heads.values():
        if not isinstance(result.chosen.get("layer", ""), str):
            raise TypeError(f"the chosen layer is {result.chosen['layer']!r}")


def recorded_folder(config: Mapping[str, Any], folder: Path) -> str:
    """Return the run folder as seen from the working folder of the run, which recorded paths are relative to."""
    return str(Path(config["runs"]) / folder.resolve().name)


def _near(spec: DecoderSpec, folder: Path, base: str) -> DecoderSpec:
    adapter = spec.adapter and find_recorded(spec.adapter, folder, base)
    if spec.merge:
        near = {part: find_recorded(part.name, folder, base) for part in spec.merge}
        return replace(spec, merge=tuple(replace(part, name=name) for part, name in near.items()))
    return replace(spec, name=find_recorded(spec.name, folder, base), adapter=adapter)


def _near_spans(spec: ExtractionSpec, folder: Path, base: str) -> ExtractionSpec:
    template = replace(spec.template, spans=find_recorded(spec.template.spans, folder, base))
    return replace(spec, template=template)


def find_recorded(name: str, folder: Path, base: str) -> str:
    """Find a recorded path from here, or else from the run folder; any other name stays as it is."""
    plain = split_random(name)[0]
    if not name or Path(name).is_absolute() or Path(plain).expanduser().exists():
        return name
    from_folder = str(folder.resolve() / os.path.relpath(plain, base))
    return from_folder + name.removeprefix(plain) if Path(from_folder).exists() else name


def _latents(saved: SavedHead[FittedModule]) -> dict[str, Any]:
    """What a head was fitted on; early heads do not say."""
    found: dict[str, Any] = saved.record.get("latents", {})
    return found
