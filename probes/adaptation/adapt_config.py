"""Settings of an adaptation. Reading a config loads no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from extract.decoders.decoder_spec import DecoderSpec, plain_decoder
from extract.errors import ConfigError, unknown_name
from extract.masks.mask_plan import parse_plan
from extract.records import from_plain, to_plain
from probes.runs.config_file import Pairs, read_record


@dataclass(frozen=True)
class LoraSpec:
    """The low-rank updates that are trained; all else is frozen. Defaults are those of LLM2Vec's released code."""

    rank: int = 16
    """Rank of every update."""
    alpha: float = 32.0
    """Updates are multiplied by alpha / rank."""
    dropout: float = 0.05
    """Dropout on what enters an update."""
    targets: tuple[str, ...] = ("all-linear",)
    """Names of the linear modules of the blocks that get an update, or `all-linear` for all of them."""

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0 or not 0 <= self.dropout < 1:
            raise ConfigError(
                f"lora has rank {self.rank}, alpha {self.alpha:g} and dropout {self.dropout:g}; allowed: a rank of at "
                "least 1, an alpha above 0, and a dropout from 0 to below 1."
            )


@dataclass(frozen=True)
class CorpusPart:
    """One source of texts."""

    files: str = ""
    """A `.txt` file with a text on each line, JSON Lines, CSV, TSV or Parquet, or a folder of such files."""
    column: str = "text"
    """Column of a table; it may hold lists of paragraphs, which are joined to one text."""
    corpus: str = ""
    """Instead of files: a corpus by its name (`icecore list corpora`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of that corpus."""
    weight: float = 1.0
    """Share of the rows, relative to the other parts."""

    def __post_init__(self) -> None:
        if bool(self.files) == bool(self.corpus):
            raise ConfigError(
                "a part of corpus needs files or corpus, one of them: {files: texts.jsonl, column: text}."
            )
        if not self.weight > 0:
            raise ConfigError(f"the weight of a part of corpus is {self.weight:g}; allowed: a number above 0.")


@dataclass(frozen=True)
class Phase:
    """Steps during which the objectives have the same weights."""

    steps: int
    """Optimiser steps; a training without any gives the untrained adapter."""
    weights: dict[str, float]
    """Weight of each objective in the loss; those that are not named rest."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"a phase has {self.steps} steps; allowed: 0 or more.")
        for name, weight in self.weights.items():
            if name not in OBJECTIVES:
                raise unknown_name("objective", name, OBJECTIVES)
            if not weight >= 0:
                raise ConfigError(f"the weight of {name!r} is {weight:g}; allowed: 0 or more.")
        if self.steps and not any(self.weights.values()):
            raise ConfigError(
                f"a phase of {self.steps} steps gives no objective a weight; set for instance {{mntp: 1}}."
            )


@dataclass(frozen=True)
class TrainingSpec:
    """How long and how fast."""

    batch: int = 16
    """Rows of text in a step, for the objectives that predict tokens."""
    length: int = 128
    """Most tokens of such a row."""
    accumulate: int = 1
    """Parts that a step is computed in, to need less memory; `batch` must be a multiple. The texts of `sscl` stay in
    one part, because each has the others as negatives."""
    learning_rate: float = 5e-4
    """Largest learning rate of AdamW."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises from 0."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls to 0 afterwards, or that it does not."""
    weight_decay: float = 0.0
    """Weight decay of AdamW."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for any."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the computation; auto: bfloat16 on a GPU that has it. Some processors have it too and gain by it."""
    check_every: int = 25
    """Steps between two looks at the held-out loss; the state to resume from is written at one, every minute or so."""
    held_out: int = 64
    """Rows of text that are held out, whole documents at a time; as many texts of the contrastive objective."""
    patience: int = 0
    """Looks of the last phase without a lower held-out loss after which training stops; 0 for never."""

    def __post_init__(self) -> None:
        counts = ("batch", "length", "accumulate", "check_every", "held_out")
        wrong = [name for name in counts if getattr(self, name) < 1]
        if wrong or self.length < SHORTEST_ROW:
            name = wrong[0] if wrong else "length"
            least = SHORTEST_ROW if name == "length" else 1
            raise ConfigError(f"training.{name} is {getattr(self, name)}; allowed: a whole number of at least {least}.")
        if self.batch % self.accumulate:
            raise ConfigError(
                f"training.accumulate is {self.accumulate}, and {self.batch} rows do not fall into as many equal parts."
            )
        if not (0 <= self.warmup <= 1 and self.learning_rate > 0 and self.clip >= 0 and self.weight_decay >= 0):
            raise ConfigError(
                "training needs a learning_rate above 0, a warmup from 0 to 1, a clip and a weight_decay of 0 or more."
            )
        if self.patience < 0:
            raise ConfigError(f"training.patience is {self.patience}; allowed: 0 for never, or a number of looks.")


SHORTEST_ROW = 8
"""Tokens of the shortest row that is trained on."""


@dataclass(frozen=True)
class MntpOptions:
    """Options of masked next-token prediction (`mntp`) and of masked token prediction (`mtp`)."""

    rate: float = 0.2
    """Share of the context's tokens that are predicted."""
    masked: float = 0.8
    """Share of these that the mask token replaces."""
    random: float = 0.1
    """Share of these that a random token replaces; the others stay as they are."""
    mask_token: str = ""
    """The mask token; the tokenizer's own when empty, else `_`."""

    def __post_init__(self) -> None:
        shares = (self.rate, self.masked, self.random)
        if not (self.rate > 0 and all(0 <= share <= 1 for share in shares) and self.masked + self.random <= 1):
            raise ConfigError(
                f"rate, masked and random are {shares}; allowed: shares from 0 to 1, a rate above 0, and masked and "
                "random of 1 together at most."
            )


@dataclass(frozen=True)
class MsgOptions:
    """Options of missing-span generation."""

    spans: int = 2
    """Most spans of a row."""
    shortest: int = 4
    """Fewest tokens of a span."""
    longest: int = 128
    """Most tokens of a span; all of a row's spans together take half of it at most."""
    all_share: float = 0.1
    """Share of the rows of which every token is in one span, which is plain causal training."""

    def __post_init__(self) -> None:
        if not (self.spans >= 1 and 1 <= self.shortest <= self.longest and 0 <= self.all_share <= 1):
            raise ConfigError(
                f"msg has up to {self.spans} spans of {self.shortest} to {self.longest} tokens and all_share "
                f"{self.all_share:g}; allowed: at least one span, of at least one token, and a share from 0 to 1."
            )


@dataclass(frozen=True)
class SscOptions:
    """Options of self-supervised contrastive learning."""

    files: str = ""
    """Texts that belong together, a row each, in JSON Lines, CSV, TSV or Parquet; two dropout views of the texts of
    `corpus` when empty."""
    anchor: str = "anchor"
    """Column of a text."""
    positive: str = "positive"
    """Column of the text that is to be near it."""
    negative: str = ""
    """Column of one that is to be far, a hard negative; none when empty."""
    batch: int = 64
    """Rows of a step, all different, each of which has the others as negatives but for equal texts."""
    length: int = 128
    """Most tokens of a text, those of its instruction and EOS among them."""
    instruction: str = "Given the sentence, find its representation: "
    """What is written before every text."""
    pooling: str = "last"
    """Pooling that makes a vector of a text (`icecore list poolings`)."""
    eos: Literal["auto", "force", "none"] = "force"
    """Whether every text ends with the EOS token, at which `last` reads."""
    layers: tuple[str, ...] = ("final_norm",)
    """Layers whose vectors are compared; of several the mean of the losses."""
    temperature: float = 0.1
    """Cosines are divided by it."""
    dropout: float = 0.3
    """Dropout on what enters an update in the passes of this objective, in place of that of `lora`."""

    def __post_init__(self) -> None:
        if self.batch < 2 or not self.temperature > 0 or not 0 <= self.dropout < 1 or self.length < SHORTEST_ROW:
            raise ConfigError(
                "sscl needs a batch of at least 2, a temperature above 0, a dropout from 0 to below 1, and a length of "
                f"at least {SHORTEST_ROW}."
            )
        if self.negative and not self.files:
            raise ConfigError("sscl.negative is a column of sscl.files, which is not set.")
        if not self.files and not self.dropout:
            raise ConfigError(
                "sscl.dropout is 0, and without sscl.files it is what makes two views of a text; allowed: a dropout "
                "above 0. Raise it, or set files."
            )


OBJECTIVES: dict[str, type[MntpOptions] | type[MsgOptions] | type[SscOptions]] = {
    "mntp": MntpOptions,
    "mtp": MntpOptions,
    "msg": MsgOptions,
    "sscl": SscOptions,
}
"""Objectives by name: masked tokens from the token before them, and from their own place; missing spans; contrast."""


@dataclass(frozen=True)
class AdaptConfig:
    """One adaptation: a decoder, a mask plan, texts and objectives give an adapter.

    Example:
        >>> AdaptConfig(corpus=(CorpusPart("texts.txt"),)).phases
        (Phase(steps=600, weights={'mntp': 1.0}),)
    """

    name: str = "adapter"
    """Name of the adapter and of its folder."""
    decoder: DecoderSpec = field(default_factory=DecoderSpec)
    """Which decoder is adapted."""
    plan: str = "bidirectional"
    """Mask plan during training (`icecore list plans`); `hybrid` where spans are generated."""
    corpus: tuple[CorpusPart, ...] = ()
    """Texts for the objectives that predict tokens, as `[{files: texts.jsonl, column: text}]`."""
    exclude: tuple[str, ...] = ()
    """Files of texts, or tasks, whose texts must not be trained on: rows and paragraphs equal to one are dropped. Of a
    table the column `text` is read, or else every column."""
    objectives: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """Options of the objectives that differ from their defaults, as `{sscl: {files: triples.jsonl, batch: 32}}`. Of
    mntp and mtp: rate, masked, random, mask_token; of msg: spans, shortest, longest, all_share; of sscl: files, anchor,
    positive, negative, batch, length, instruction, pooling, eos, layers, temperature, dropout."""
    phases: tuple[Phase, ...] = (Phase(600, {"mntp": 1.0}),)
    """Steps and the weights of the objectives, as `[{steps: 600, weights: {mntp: 1, msg: 1}}]`."""
    lora: LoraSpec = field(default_factory=LoraSpec)
    """What is trained."""
    training: TrainingSpec = field(default_factory=TrainingSpec)
    """Batches, learning rate and when to look."""
    seed: int = 0
    """Seed of the first weights, of the order of rows, and of what is masked."""
    adapters: str = "adapters"
    """Folder of the adapters' folders."""

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not self.name.strip(". ") or "/" in self.name:
            raise ConfigError(f"name is {self.name!r}; allowed: the name of a folder.")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; allowed: 0 or more.")
        if self.decoder.merge:
            raise ConfigError(
                "decoder.merge is set, and no adapter can be read upon a merge; adapt one of its parts, and merge then."
            )
        plan = parse_plan(self.plan)
        if plan.prepend is not None:
            raise ConfigError(
                f"under the plan {self.plan!r} a placeholder is put before every text, which rows of a training have "
                "not; allowed: plans without ~tp."
            )
        used = self.used
        if not used:
            raise ConfigError("phases give no objective a weight; set for instance [{steps: 600, weights: {mntp: 1}}].")
        for name in self.objectives:
            if name not in OBJECTIVES:
                raise unknown_name("objective", name, OBJECTIVES)
            self.options(name)
        needs_spans = any(segment.kind.needs_spans for segment in plan.segments)
        if "msg" in used and not needs_spans:
            raise ConfigError(
                f"msg generates spans, and under the plan {self.plan!r} they would not be spans; set plan to hybrid."
            )
        if "msg" in used and plan.prefix:
            raise ConfigError(
                f"under the plan {self.plan!r} every token sees the last one, which may be of a span that msg "
                "generates; allowed: plans without ~kv."
            )
        hiding, msg = sorted(used & {"mntp", "mtp"}), self.options("msg")
        if "msg" in used and hiding and isinstance(msg, MsgOptions) and msg.all_share == 1:
            raise ConfigError(
                f"objectives.msg.all_share is {msg.all_share:g}, which puts every token in a span and leaves "
                f"{' and '.join(hiding)} no context to hide; allowed beside {' and '.join(hiding)}: from 0 to below 1. "
                "Lower it, or leave one of them out of phases."
            )
        if not self.corpus and (used - {"sscl"} or not self.options("sscl").files):  # type: ignore[union-attr]
            raise ConfigError("corpus is empty; give texts, as [{files: texts.jsonl, column: text}].")

    @property
    def used(self) -> set[str]:
        """Names of the objectives that some phase gives a weight; phases without steps count where all are."""
        phases = [phase for phase in self.phases if phase.steps] or self.phases
        return {name for phase in phases for name, weight in phase.weights.items() if weight}

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def last_phase(self) -> Phase:
        """The last phase that has steps: looks are weighed as it is, and the best of its looks is kept."""
        return next((phase for phase in reversed(self.phases) if phase.steps), self.phases[-1])

    @property
    def folder(self) -> Path:
        """Where the adapter goes."""
        return Path(self.adapters) / self.name

    def weights_at(self, step: int) -> Mapping[str, float]:
        """Return the weights of the objectives at a step, from 0; those of the last phase after the end."""
        for phase in self.phases:
            if step < phase.steps:
                return phase.weights
            step -= phase.steps
        return self.last_phase.weights

    def options(self, name: str) -> MntpOptions | MsgOptions | SscOptions:
        """Return the options of an objective; `UsageError` for an unknown one."""
        options: MntpOptions | MsgOptions | SscOptions = from_plain(
            OBJECTIVES[name], self.objectives.get(name) or {}, f"objectives.{name}"
        )
        return options


def read_adapt_config(typed: Pairs, *, file: str = "", options: Sequence[str] = ()) -> AdaptConfig:
    """Read the settings of an adaptation: a YAML file, if any, and the keys on the command line, which win."""
    return read_record(AdaptConfig, typed, file=file, options=options, code=("plan", "objectives"))


def plain_config(config: AdaptConfig) -> dict[str, Any]:
    """Return what decides an adaptation as plain values: all but where it is written."""
    values: dict[str, Any] = {item.name: to_plain(getattr(config, item.name)) for item in fields(config)}
    values["decoder"] = plain_decoder(config.decoder)
    values["objectives"] = {name: to_plain(config.options(name)) for name in sorted(config.used)}
    return {key: value for key, value in values.items() if key != "adapters"}
