"""Settings of an extraction, and what a caller may watch of one. Reading a config loads no torch."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from extract.decoders.decoder_spec import split_layers
from extract.errors import ConfigError, InputError, UnknownNameError, require_name
from extract.inputs.template import TEMPLATES, InputTemplate, split_names
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.poolings.pooling_table import (
    REBA,
    RebaOptions,
    check_template,
    check_word_poolings,
    find_token_set,
    select_poolings,
)
from extract.records import from_plain, given, read_fields, record_hints, remembers_given, unknown_key, with_values
from extract.registry import PLACE
from extract.store.manifest import STORAGE_DTYPES

if TYPE_CHECKING:
    import torch


WINDOW_TEXTS = 4096  # texts tokenised and sorted at a time; bounds memory
LATENT_BYTES = 1 << 28  # of one batch's words; a few batches wait to be written
LATENT_BYTES_CPU = 1 << 27  # with half of it, words take a tenth longer than their sentences
FEWEST_TOKENS = 256  # of a batch of words, whatever its latents take
FEWEST_SHARING = 128  # texts; of fewer, trying whether rows may share a prefix takes as long as it saves
LOST_POLICIES = {
    "error": "refuse the text, naming the word",
    "count": "flag the word; it has no latent",
}


@remembers_given
@dataclass(frozen=True)
class WordSpec:
    """Options for the words of texts; used only for `JoinedText`s."""

    poolings: tuple[str, ...] = ("auto",)
    """Word poolings: `first`, `last`, `mean` over the tokens of a word, or `auto`: `last` where every block is causal,
    `first` where every block is backward, else `mean`. The name that `auto` stands for is recorded."""
    shift: bool = False
    """Represent each token by the output at the token before it (MAGNET)."""
    on_lost: Literal["error", "count"] = "error"
    """A word that no token covers: `error` (its text is refused) or `count` (flagged, no latent)."""

    def __post_init__(self) -> None:
        read_fields(self)
        check_word_poolings(self.poolings)
        require_name("policy for lost words", self.on_lost, LOST_POLICIES)


@remembers_given
@dataclass(frozen=True)
class ExtractionSpec:
    """Options of an extraction."""

    plan: str = "causal"
    """Mask plan (`icecore list plans`)."""
    template: InputTemplate = field(default_factory=InputTemplate)
    """How a text becomes tokens."""
    poolings: tuple[str, ...] = ("mean",)
    """Poolings (`icecore list poolings`)."""
    words: WordSpec = field(default_factory=WordSpec)
    """Options for words, where the texts come with their words; the poolings of whole texts are then not stored."""
    reba: RebaOptions = field(default_factory=RebaOptions)
    """Attention of the ReBA poolings; ignored without them."""
    layers: tuple[str, ...] = ("all",)
    """Layers: names, numbers (12 is `block_12`, -1 the last layer), or `all`, `blocks`, `upper-half`; and taps inside
    blocks: names such as `block_07.value`, or `taps:value`, `taps:attention`, `taps:mid` of every block."""
    storage_dtype: str = "float32"
    """How latents are stored: `float32`, `float16` or `bfloat16`."""
    batch_tokens: int | None = None
    """Most tokens per batch, padding included; chosen for the device when absent."""
    views: dict[str, dict[str, object] | None] = field(default_factory=dict, hash=False, metadata={"is_key": False})
    """Views that are read as one cache, by name, each what it changes of all this; none where this alone is read."""
    store_texts: bool = False
    """Keep the texts beside the cache, so that it gives them back (`LatentCache.texts`); it holds digests alone
    otherwise. Also of a cache that is there already."""

    @property
    def looks_inside(self) -> bool:
        """Whether states inside blocks are read, so that the decoder is wired under a causal plan too."""
        return bool(self.reba_poolings) or any("." in layer or layer.startswith("taps:") for layer in self.layers)

    @property
    def reba_poolings(self) -> list[str]:
        """The poolings of texts and words that gather states by causal attention, which no sweep over plans can."""
        return [name for name in (*self.poolings, *self.words.poolings) if name in REBA]

    @cached_property
    def mask_plan(self) -> MaskPlan:
        """The plan, read once."""
        return parse_plan(self.plan)

    @cached_property
    def readings(self) -> dict[str, "ExtractionSpec"]:
        """What is extracted, by view; without views this itself, under no name."""
        if not self.views:
            return {"": self}
        return {name: _read_view(self, name, changes or {}) for name, changes in self.views.items()}

    @property
    def passes(self) -> "list[tuple[ExtractionSpec, tuple[str, ...]]]":
        """The extractions that compute the readings, with the names of those that each serves.

        Views that differ in their poolings alone are one extraction with all of them.
        """
        return join_readings(self.readings) if self.views else [(self, ("",))]

    def poolings_read(self, *, of_words: bool) -> tuple[str, ...]:
        """Name what a cache of this has as poolings: the views, or else the poolings of texts or of words."""
        return tuple(self.views) or (self.words.poolings if of_words else self.poolings)

    def of_layer(self, layer: str, name: str) -> "ExtractionSpec":
        """Return what computes one layer of one pooling, or of one view by its name, and nothing else."""
        spec = self.readings[name] if self.views else replace(self, poolings=(name,))
        return replace(spec, layers=(layer,), batch_tokens=None)

    @property
    def members(self) -> tuple["ExtractionSpec", ...]:
        """The settings of the extractions whose latents are averaged: these, unless there are several templates."""
        templates = self.template.members
        return (self,) if len(templates) == 1 else tuple(with_values(self, template=one) for one in templates)

    def shares_prefix(self, n_texts: int) -> bool:
        """Whether rows may share what the template writes before every text; few texts do not make up for its proof."""
        return n_texts >= FEWEST_SHARING and (bool(self.template.instruction) or self.template.chat != "none")

    def with_plan(self, plan: MaskPlan) -> "ExtractionSpec":
        """Return the same settings under another plan, which is checked against them but not read from text again."""
        return with_values(self, plan=plan.text, mask_plan=plan)

    def for_documents(self) -> "ExtractionSpec":
        """Return the same settings, of every view, with the templates that documents are read with."""
        return self.with_templates(InputTemplate.for_documents)

    def with_templates(self, change: Callable[[InputTemplate], InputTemplate]) -> "ExtractionSpec":
        """Return the same settings, of every view, with changed templates."""
        views: dict[str, dict[str, object] | None] = {
            name: {**(self.views[name] or {}), "template": change(view.template)}
            for name, view in self.readings.items()
            if name
        }
        return with_values(self, template=change(self.template), views=views)

    def __post_init__(self) -> None:
        vars(self).pop("readings", None)  # of the record that this one is a changed copy of
        object.__setattr__(self, "layers", split_layers(self.layers))
        read_fields(self)
        plan = self.mask_plan
        if any(segment.kind.needs_spans for segment in plan.segments) and not self.template.spans:
            raise InputError(
                f"the plan {plan.text!r} needs spans and none are given; set template.spans to 'random:SEED' or a file."
            )
        check_template(select_poolings(self.poolings), self.template)
        check_template(self.words.poolings, self.template)
        if plan.prepend is not None and self.words.shift:
            raise InputError(
                f"the plan {plan.text!r} puts a placeholder before the text, so words.shift would read it; "
                "set words.shift to false, or choose another plan."
            )
        if self.words.shift and "reba" in self.words.poolings:
            raise InputError(
                "words.shift is true, but the pooling 'reba' weighs the tokens of a word itself; set words.shift to "
                "false, or choose another pooling."
            )
        if self.reba_poolings and not plan.is_untouched:
            raise InputError(
                f"the pooling {self.reba_poolings[0]!r} gathers states by causal attention, and the plan is "
                f"{plan.text!r}; choose the plan 'causal', or another pooling."
            )
        require_name("storage dtype", self.storage_dtype, STORAGE_DTYPES)
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise InputError(f"batch_tokens is {self.batch_tokens}; allowed: a whole number of at least 1, or none.")
        self.readings  # noqa: B018 - read, so that views are refused here


VIEW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
SHARED_KEYS = {"layers": "all views have the same layers", "views": "a view has no views of its own"}
"""Keys that a view cannot change, and why."""


def _read_view(spec: ExtractionSpec, name: str, changes: dict[str, object]) -> ExtractionSpec:
    """Make what a view extracts: an extraction with some of its keys changed, of sections the keys that are named."""
    if not VIEW_NAME.fullmatch(name):
        raise InputError(
            f"a view is called {name!r}; allowed: up to 40 letters, digits, '-', '_' and '.', as in {{echo: ...}}."
        )
    hints, values = record_hints(ExtractionSpec), dict[str, object]()
    for key, change in changes.items():
        if key in SHARED_KEYS:
            raise InputError(
                f"views.{name}.{key} is set, but {SHARED_KEYS[key]}; set extraction.{key}, or leave it out."
            )
        if key not in hints:
            raise unknown_key(f"views.{name}.{key}", [f"views.{name}.{known}" for known in hints])
        record, value = getattr(spec, key), change
        if isinstance(record, InputTemplate | WordSpec | RebaOptions) and not isinstance(change, type(record)):
            section = {"name": change} if isinstance(change, str) else change
            value = {**_kept(record, section), **section} if isinstance(section, Mapping) else section
        values[key] = from_plain(hints[key], value, f"views.{name}.{key}")
    try:
        view = replace(spec, **values, views={})  # type: ignore[arg-type]
    except UnknownNameError as error:
        raise UnknownNameError(f"view {name!r}: {error}") from error
    except InputError as error:
        raise InputError(f"view {name!r}: {error}") from error
    for key, poolings in (("poolings", view.poolings), ("words.poolings", view.words.poolings)):
        if len(poolings) != 1:
            raise InputError(
                f"view {name!r} has the {key} {', '.join(poolings)}; allowed: one. "
                "Make a view of each: what they share is computed once."
            )
    return view


def _kept(record: InputTemplate | WordSpec | RebaOptions, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a section that a view keeps: those that were given, but for what a template's name decides.

    The name of a template, the old or the new one, decides fields only where they are not changed by themselves.
    """
    names = record_hints(RebaOptions) if isinstance(record, RebaOptions) else given(record)
    kept = {key: getattr(record, key) for key in names if key != "name" or "name" not in changes}
    if isinstance(record, InputTemplate) and "name" in changes:
        old = [TEMPLATES[name].fields for name in split_names(record.name)]
        new = [TEMPLATES[name].fields for name in split_names(str(changes["name"] or ""))]
        return {key: value for key, value in kept.items() if not any(key in fields for fields in (*old, *new))}
    return kept


def join_readings(readings: Mapping[str, ExtractionSpec]) -> list[tuple[ExtractionSpec, tuple[str, ...]]]:
    """Join readings that differ in their poolings and layers alone to one extraction; see `ExtractionSpec.passes`."""
    groups: dict[ExtractionSpec, list[str]] = {}
    for name, spec in readings.items():
        groups.setdefault(_but_poolings(spec), []).append(name)
    passes = []
    for names in groups.values():
        views = [readings[name] for name in names]
        layers = tuple(dict.fromkeys(layer for view in views for layer in view.layers))
        poolings = tuple(dict.fromkeys(pooling for view in views for pooling in view.poolings))
        of_words = tuple(dict.fromkeys(pooling for view in views for pooling in view.words.poolings))
        first = views[0]
        joined = (
            first
            if len(views) == 1
            else replace(first, layers=layers, poolings=poolings, words=replace(first.words, poolings=of_words))
        )
        passes.append((joined, tuple(names)))
    return passes


def _but_poolings(spec: ExtractionSpec) -> ExtractionSpec:
    return replace(spec, layers=("all",), poolings=("mean",), words=replace(spec.words, poolings=("auto",)))


def sweep_key(spec: ExtractionSpec) -> ExtractionSpec:
    """Return what readings have in common that one sweep computes: all but poolings, layers and plans without tails."""
    alike = _but_poolings(spec)
    return alike if spec.mask_plan.has_tail else alike.with_plan(parse_plan("causal"))


def require_one_reading(spec: ExtractionSpec, what: str) -> None:
    """Refuse views where one extraction is read at a time, as `what` does, a clause."""
    if spec.views:
        raise ConfigError(
            f"there are the views {', '.join(spec.views)}, but {what}; leave views out, and put "
            "the change of one of them in extraction."
        )


def names_of_code(spec: ExtractionSpec) -> tuple[str, ...]:
    """List the names of an extraction that are `module:name`, which was imported for it."""
    names = (*spec.mask_plan.kind_names, *spec.poolings, *spec.words.poolings)
    return tuple(name for name in names if PLACE.fullmatch(name) and not find_token_set(name))


def batch_limits(spec: ExtractionSpec, device: "torch.device", *, token_bytes: int = 0) -> tuple[int, int]:
    """Choose the most and the fewest tokens per batch for a device; smaller batches are joined with their neighbours.

    `token_bytes` are those of the latents of a word of one token, at every layer and pooling; 0 for whole texts.
    """
    most, latent_bytes = (2048, LATENT_BYTES_CPU) if device.type == "cpu" else (16384, LATENT_BYTES)
    if token_bytes:
        most = min(most, max(FEWEST_TOKENS, latent_bytes // token_bytes))
    most = spec.batch_tokens or most
    return most, most // 8


class ExtractionProgress:
    """Progress callback of an extraction; silent by default."""

    def expect(self, *, n_tokens: int) -> None:
        """About `n_tokens` tokens are left to compute; comes before `start`, if at all."""

    def start(self, *, n_rows: int, n_done: int) -> None:
        """An extraction of `n_rows` rows (0 if unknown) begins, of which `n_done` are already done."""

    def advance(self, *, n_rows: int, n_tokens: int) -> None:
        """A batch has been written."""

    def finish(self) -> None:
        """The extraction has ended, well or not."""
