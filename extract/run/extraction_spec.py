"""Settings of an extraction, and what a caller may watch of one. Reading a config loads no torch."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from extract.decoders.decoder_spec import split_layers
from extract.errors import InputError, unknown_name
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.poolings.pooling_table import REBA, RebaOptions, check_template, check_word_poolings, select_poolings
from extract.records import read_fields, remembers_given, with_values
from extract.registry import PLACE
from extract.store.manifest import STORAGE_DTYPES

if TYPE_CHECKING:
    import torch


WINDOW_TEXTS = 4096  # texts tokenised and sorted at a time; bounds memory
LATENT_BYTES = 1 << 28  # of one batch's words; a few batches wait to be written
LATENT_BYTES_CPU = 1 << 27  # with half of it, words take a tenth longer than their sentences
FEWEST_TOKENS = 256  # of a batch of words, whatever its latents take
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
        """Refuse values outside the tables."""
        read_fields(self)
        check_word_poolings(self.poolings)
        if self.on_lost not in LOST_POLICIES:
            raise unknown_name("policy for lost words", self.on_lost, LOST_POLICIES)


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
    store_texts: bool = False
    """Keep the texts beside the cache, so that it gives them back (`LatentCache.texts`); it holds digests alone
    otherwise. Also of a cache that is there already."""

    @property
    def looks_inside(self) -> bool:
        """Whether states inside blocks are read, so that the decoder is wired under a causal plan too."""
        return bool(self._reba) or any("." in layer or layer.startswith("taps:") for layer in self.layers)

    @property
    def _reba(self) -> list[str]:
        return [name for name in (*self.poolings, *self.words.poolings) if name in REBA]

    @cached_property
    def mask_plan(self) -> MaskPlan:
        """The plan, read once."""
        return parse_plan(self.plan)

    @property
    def members(self) -> tuple["ExtractionSpec", ...]:
        """The settings of the extractions whose latents are averaged: these, unless there are several templates."""
        templates = self.template.members
        return (self,) if len(templates) == 1 else tuple(self.with_template(template) for template in templates)

    def with_template(self, template: InputTemplate) -> "ExtractionSpec":
        """Return the same settings with another template."""
        return with_values(self, template=template)

    def with_plan(self, plan: MaskPlan) -> "ExtractionSpec":
        """Return the same settings under another plan, which is checked against them but not read from text again."""
        return with_values(self, plan=plan.text, mask_plan=plan)

    def __post_init__(self) -> None:
        """Refuse values outside the tables."""
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
        if self._reba and not plan.is_untouched:
            raise InputError(
                f"the pooling {self._reba[0]!r} gathers states by causal attention, and the plan is {plan.text!r}; "
                "choose the plan 'causal', or another pooling."
            )
        if self.storage_dtype not in STORAGE_DTYPES:
            raise unknown_name("storage dtype", self.storage_dtype, STORAGE_DTYPES)
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise InputError(f"batch_tokens is {self.batch_tokens}; allowed: a whole number of at least 1, or none.")


def names_of_code(spec: ExtractionSpec) -> tuple[str, ...]:
    """List the names of an extraction that are `module:name`, which was imported for it."""
    names = (*spec.mask_plan.kind_names, *spec.poolings, *spec.words.poolings)
    return tuple(name for name in names if PLACE.fullmatch(name))


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
