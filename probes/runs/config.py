"""The configuration of a run; every field is a key of the YAML file and an option of the command line."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from extract.decoders.spec import DecoderSpec
from extract.errors import ConfigError, unknown_name
from extract.run.spec import ExtractionSpec
from probes.tasks.pairs.leakage import drop_leaked_rows
from probes.tasks.pairs.task import PairTask
from probes.tasks.table import ALL_TASKS, AnyTask, load_any_task

PROTOCOL_KINDS = {"freeze-released": ("pairs",), "look-both-ways": ("classes", "words"), "magnet": ("words",)}
"""Kinds of task that a paper's protocol is about; `icecore` is about all."""

PROTOCOL_EXTRACTION: dict[str, dict[str, dict[str, Any]]] = {
    "magnet": {"words": {"shift": True, "poolings": ("mean",)}},
    "look-both-ways": {"template": {"max_tokens": 32}},
}
"""What a protocol extracts from tasks of words, wherever the configuration says what it would say by itself."""


@dataclass(frozen=True)
class TaskSpec:
    """Which task, and its own options."""

    name: str = "sts-sample"
    """A task (`icecore list tasks`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the task's reader, for instance files, columns and score range."""
    pairs: int = 0
    """Rows per split, drawn with a fixed seed, for quick trials; all when 0."""
    drop_leaked: Literal["none", "pairs", "sentences"] = "none"
    """Training rows to leave out: those whose pair, or any of whose sentences, is in validation or test."""

    def __post_init__(self) -> None:
        """Refuse a task that stands in no table."""
        _check_choices(self, "task.")
        if self.name not in ALL_TASKS:
            raise unknown_name("task", self.name, ALL_TASKS)
        if self.pairs < 0:
            raise ConfigError(f"task.pairs is {self.pairs}; allowed: a whole number of pairs per split, or 0 for all.")
        if self.drop_leaked != "none" and self.kind != "pairs":
            raise ConfigError(
                f"task.drop_leaked is {self.drop_leaked!r}, but task {self.name!r} has no pairs to compare."
            )

    @property
    def kind(self) -> str:
        """What its rows are: `pairs` with a graded similarity, texts of `classes`, or sentences of tagged `words`."""
        return ALL_TASKS[self.name].kind

    def load(self) -> AnyTask:
        """Load the task, drawn down to `pairs` per split.

        Raises:
            TaskError: Rows that cannot be used.
            UnknownNameError: An option the task does not have.
        """
        task = load_any_task(self.name, **self.options)
        if self.drop_leaked != "none" and isinstance(task, PairTask):
            task = drop_leaked_rows(task, by=self.drop_leaked)
        return task.subset(self.pairs) if self.pairs else task


@dataclass(frozen=True)
class PretrainingSpec:
    """Layer-wise autoencoders that heads with `start: pretrained` or `frozen` begin from."""

    corpus: str = ""
    """Their texts: a corpus or task (`icecore list corpora`); none when empty."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the corpus."""
    texts: int = 20000
    """Most texts taken, from the front of the corpus."""
    autoencoder: dict[str, Any] = field(default_factory=dict)
    """Options of the autoencoders and of fitting them, where they differ from the defaults."""
    seed: int = 0
    """Seed of the autoencoders; one set of them serves every seed of a head."""

    def __post_init__(self) -> None:
        """Refuse what stands in no table."""
        from probes.tasks.corpus import CORPORA

        if self.corpus and self.corpus not in (*CORPORA, *ALL_TASKS):
            raise unknown_name("corpus", self.corpus, [*CORPORA, *ALL_TASKS])
        if self.texts < 1:
            raise ConfigError(f"pretraining.texts is {self.texts}; allowed: a whole number of at least 1.")
        if self.autoencoder:
            from probes.heads.pairs.pretraining import check_autoencoder_options  # brings torch with it

            check_autoencoder_options(self.autoencoder)


@dataclass(frozen=True)
class RunConfig:
    """One run: a task, a decoder, what is extracted, and the heads that are fitted on it."""

    name: str = "run"
    """Name of the run and of its folder."""
    decoder: DecoderSpec = field(default_factory=DecoderSpec)
    """Which decoder, and how it is held."""
    extraction: ExtractionSpec = field(default_factory=ExtractionSpec)
    """What is extracted from every text."""
    task: TaskSpec = field(default_factory=TaskSpec)
    """Rows, gold and splits."""
    heads: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {"layer-cosine": {}})
    """Heads by name (`icecore list heads`), each with the options that differ from its defaults."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; every trained head is fitted once per seed and reported with its spread."""
    pretraining: PretrainingSpec = field(default_factory=PretrainingSpec)
    """Layer-wise autoencoders, for heads that start from them."""
    protocol: Literal["icecore", "freeze-released", "look-both-ways", "magnet"] = "icecore"
    """`icecore`: everything is chosen on validation, test is read once. `freeze-released`: the best of every tenth
    epoch on test, as FREEZE's released notebooks choose it, which is optimistic.
    `look-both-ways`: the splits and settings of LBW's released code. `magnet`: MAGNET's linear classifier of words.
    See docs/protocol.md."""
    calibration: Literal["linear", "isotonic"] = "linear"
    """How predictions become scores, fitted on validation."""
    anchor_identical: bool = False
    """Whether calibration gives a text paired with itself the highest score."""
    bootstrap: int = 1000
    """Bootstrap resamples behind every interval."""
    caches: str = "caches"
    """Folder of caches, shared by runs."""
    runs: str = "runs"
    """Folder of run folders."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        _check_choices(self)
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"the run name is {self.name!r}; allowed: a folder name without '/' or a leading dot.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds are {list(self.seeds)}; allowed: at least one, each once.")
        if self.bootstrap < 100:
            raise ConfigError(f"bootstrap is {self.bootstrap}; allowed: 100 resamples or more.")
        if not self.heads:
            raise ConfigError("no head was named; list at least one under `heads` (icecore list heads).")
        kind = self.task.kind
        kinds = PROTOCOL_KINDS.get(self.protocol, (kind,))
        if kind not in kinds:
            raise ConfigError(
                f"protocol {self.protocol!r} is for tasks of {' or '.join(kinds)}, but {self.task.name!r} is one of "
                f"{kind}; use protocol icecore."
            )
        if self.task.kind == "classes":
            self._check_class_heads()
        elif self.task.kind == "words":
            self._check_text_poolings()
            # Filled in here, so that the run's record holds what is extracted.
            object.__setattr__(self, "extraction", _extraction_of(self.extraction, self.protocol))
            self._check_word_heads()
        else:
            self._check_pair_heads()

    def _check_class_heads(self) -> None:
        from probes.heads.classes.registry import CLASS_HEADS, resolve_class_options  # the heads bring torch with them

        for name, options in self.heads.items():
            if name not in CLASS_HEADS:
                hint = f"These are the heads of classification tasks, as {self.task.name!r} is."
                raise unknown_name("head", name, CLASS_HEADS, hint=hint)
            self._check_pooling(name, resolve_class_options(name, options or {}).pooling)

    def _check_text_poolings(self) -> None:
        if self.extraction.poolings != ExtractionSpec().poolings:
            raise ConfigError(
                f"extraction.poolings is [{', '.join(self.extraction.poolings)}], which pools whole texts, but task "
                f"{self.task.name!r} is one of words; set extraction.words.poolings (auto, first, last, mean)."
            )

    def _check_word_heads(self) -> None:
        from probes.heads.words.registry import WORD_HEADS, resolve_word_options  # the heads bring torch with them

        for name, options in self.heads.items():
            if name not in WORD_HEADS:
                hint = f"These are the heads of tasks of words, as {self.task.name!r} is."
                raise unknown_name("head", name, WORD_HEADS, hint=hint)
            resolved = resolve_word_options(name, options or {}, protocol=self.protocol)
            self._check_pooling(name, resolved.pooling or None)

    def _check_pair_heads(self) -> None:
        from probes.heads.options import resolve_options  # the heads bring torch with them
        from probes.heads.pairs.pretraining import require_same_encoders

        for name, options in self.heads.items():
            resolved = resolve_options(name, options or {})
            self._check_pooling(name, resolved.pooling)
            n_features = resolved.arguments.get("pair_features", 0)
            if self.anchor_identical and n_features:
                raise ConfigError(
                    f"anchor_identical is true, but head {name!r} has pair_features {n_features} and so predicts no "
                    "constant for a text paired with itself; set it to false, or pair_features to 0."
                )
            if resolved.arguments.get("start", "fresh") == "fresh":
                continue
            if not self.pretraining.corpus:
                raise ConfigError(
                    f"head {name!r} has start {resolved.arguments['start']!r}, but `pretraining.corpus` is empty; "
                    "name the corpus of its autoencoders (icecore list corpora), or use start: fresh."
                )
            require_same_encoders(name, resolved.arguments, self.pretraining.autoencoder)

    def _check_pooling(self, head: str, pooling: str | None) -> None:
        from probes.latents.channels import split_poolings

        is_words = self.task.kind == "words"
        key = "extraction.words.poolings" if is_words else "extraction.poolings"
        extracted = self.extraction.words.poolings if is_words else self.extraction.poolings
        for name in split_poolings(pooling or extracted[0]):
            if name not in extracted and "auto" not in extracted:  # the plan says which pooling `auto` is
                raise ConfigError(
                    f"head {head!r} reads the pooling {name!r}, which is not extracted; "
                    f"allowed: {', '.join(extracted)}, or add it to {key}."
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the whole configuration as plain values."""
        values: dict[str, Any] = _plain(asdict(self))
        return values


def _extraction_of(spec: ExtractionSpec, protocol: str) -> ExtractionSpec:
    """Fill in what a protocol extracts; values that differ from the default are the user's and stay."""
    for part, values in PROTOCOL_EXTRACTION.get(protocol, {}).items():
        own = getattr(spec, part)
        unset = {name: value for name, value in values.items() if getattr(own, name) == getattr(type(own)(), name)}
        spec = replace(spec, **{part: replace(own, **unset)})
    return spec


def _check_choices(spec: Any, prefix: str = "") -> None:
    """Refuse a value that its field's `Literal` does not list: the command line asks for it, Python does not."""
    for name, hint in get_type_hints(type(spec)).items():
        if get_origin(hint) is Literal and getattr(spec, name) not in get_args(hint):
            raise unknown_name(f"{prefix}{name}", getattr(spec, name), get_args(hint))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
