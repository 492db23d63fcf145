"""The configuration of a run; every field is a key of the YAML file and an option of the command line.

Also the texts that it names, and its paths: relative to its file, in the folder of a run to where the run was made.
"""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin, get_type_hints

from extract.decoders.decoder_spec import DecoderSpec, list_adapters, plain_decoder, read_adapters, split_random
from extract.errors import ConfigError, ConfigWarning, unknown_name
from extract.files import digest_json
from extract.inputs.template import TASK, TEMPLATES
from extract.poolings.pooling_table import AUTO, REBA, WORD_POOLINGS, RebaOptions, split_poolings
from extract.records import Values, complete, read_fields, to_plain, with_values
from extract.run.extraction_spec import ExtractionSpec
from extract.store.manifest import flatten
from probes.data.task_table import CORPORA, TASKS, load_task
from probes.fitting.fit_options import check_loggers, find_protocol
from probes.heads.head_table import check_head, resolve_head
from probes.runs.task_kinds import KINDS

if TYPE_CHECKING:
    from probes.data.pair_task import PairTask
    from probes.data.task import Corpus, Task
    from probes.heads.head_table import HeadOptions


TYPED = "command line"
"""Source of a value that was typed, and that something must therefore read."""
NAME_BYTES = 150
"""Of the name of a run, which some files and folders carry on."""
FITTED = ("heads", "seeds", "protocol", "calibration", "anchor_identical")
"""Settings that decide a fit, beside latents and rows."""


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
        _check_choices(self, "task.")
        if self.name not in TASKS:
            raise unknown_name("task", self.name, TASKS)
        if self.pairs < 0:
            raise ConfigError(f"task.pairs is {self.pairs}; allowed: a whole number of pairs per split, or 0 for all.")
        if self.drop_leaked != "none" and self.kind != "pairs":
            raise ConfigError(
                f"task.drop_leaked is {self.drop_leaked!r}, but task {self.name!r} has no pairs to compare."
            )

    @property
    def kind(self) -> str:
        """What its rows are: `pairs` with a graded similarity, texts of `classes`, or sentences of tagged `words`."""
        return TASKS[self.name].kind

    def load(self, defaults: Mapping[str, object] = MappingProxyType({})) -> "Task":
        """Load the task, drawn down to `pairs` per split.

        `defaults` are options of the reader that replace its own where it has them, as a protocol sets them.
        """
        known = TASKS[self.name].options()
        options = {**{key: value for key, value in defaults.items() if key in known}, **self.options}
        task = load_task(self.name, **options)
        if self.drop_leaked != "none":
            from probes.data.pair_task import drop_leaked_rows

            task = drop_leaked_rows(cast("PairTask", task), by=self.drop_leaked)
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
        if self.corpus and self.corpus not in (*CORPORA, *TASKS):
            raise unknown_name("corpus", self.corpus, [*CORPORA, *TASKS])
        if self.texts < 1:
            raise ConfigError(f"pretraining.texts is {self.texts}; allowed: a whole number of at least 1.")
        if self.autoencoder:
            from probes.heads.pair_heads import check_autoencoder_options

            check_autoencoder_options(self.autoencoder)


@dataclass(frozen=True)
class RunConfig:
    """One run: a task, a decoder, what is extracted, and the heads that are fitted on it.

    Python may give plain values as a file does: a name or a mapping for a section (`task="stsb"`,
    `extraction={"plan": "backward"}`), one value for a list (`seeds=0`), names for heads without options.

    Example:
        >>> RunConfig(task="class-sample", heads="logistic-probe").task.kind  # doctest: +SKIP
        'classes'
    """

    name: str = "run"
    """Name of the run and of its folder."""
    decoder: DecoderSpec = field(default_factory=DecoderSpec)
    """Which decoder, and how it is held."""
    extraction: ExtractionSpec = field(default_factory=ExtractionSpec)
    """What is extracted from every text."""
    task: TaskSpec = field(default_factory=TaskSpec)
    """Rows, gold and splits."""
    views: dict[str, dict[str, object] | None] = field(default_factory=dict)
    """Views of every text that are read together, by name, each what it changes of `extraction`, as {plain: {}, echo:
    {template: echo, poolings: echo-mean}}. Heads read the layers of all of them, as echo/block_12."""
    heads: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {"layer-cosine": {}})
    """Heads by name (`icecore list heads`), each with the options that differ from its defaults."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; every trained head is fitted once per seed and reported with its spread."""
    pretraining: PretrainingSpec = field(default_factory=PretrainingSpec)
    """Layer-wise autoencoders, for heads that start from them."""
    protocol: Literal["icecore", "freeze-released", "look-both-ways", "magnet"] = "icecore"
    """`icecore`: everything is chosen on validation, test is read once. `freeze-released`: FREEZE's networks as its
    notebooks fit them, most of them with the best epoch on test, which is optimistic.
    `look-both-ways`: the splits and settings of LBW's released code. `magnet`: MAGNET's linear classifier of words.
    See docs/protocol.md."""
    calibration: Literal["linear", "isotonic"] = "linear"
    """How predictions become scores, fitted on validation."""
    anchor_identical: bool = False
    """Whether calibration gives a text paired with itself the highest score."""
    bootstrap: int = 1000
    """Bootstrap resamples behind every interval."""
    random_decoder: bool = False
    """Whether the best head is also fitted on the same decoder with random weights, as a further baseline."""
    figures: tuple[str, ...] = ("png",)
    """Formats of the figures: png, svg, pdf, one or several."""
    loggers: tuple[str, ...] = ()
    """Logs of every epoch of trained heads, in their folders: csv, tensorboard or wandb, several or none."""
    caches: str = "caches"
    """Folder of caches, shared by runs."""
    runs: str = "runs"
    """Folder of run folders."""
    sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False, metadata={"is_key": False})
    """Where the values that were typed or read from a file came from, by key."""
    missing: dict[str, str] = field(default_factory=dict, compare=False, repr=False, metadata={"is_key": False})
    """What a file names and is nowhere, by key, as sentences."""
    sweep: dict[str, object] = field(default_factory=dict, compare=False, repr=False, metadata={"is_key": False})
    """The section `sweep` of its file, which says what `icecore sweep` goes over."""
    has_checked_heads: bool = field(default=True, compare=False, repr=False, metadata={"is_key": False})
    """False leaves the values of heads' options unread, which takes torch, until `check_heads`."""

    def __post_init__(self) -> None:
        read_fields(self)
        heads: Any = self.heads
        if isinstance(heads, str | list | tuple):
            names = [heads] if isinstance(heads, str) else heads
            object.__setattr__(self, "heads", {name: {} for name in names})
        _check_choices(self)
        is_shown = self.name.isprintable() and len(self.name.encode()) <= NAME_BYTES
        if not self.name or "/" in self.name or self.name.startswith(".") or not is_shown:
            raise ConfigError(
                f"the run name is {self.name[:80]!r}; allowed: a folder name without '/' or a leading dot, printable, "
                f"of at most {NAME_BYTES} bytes."
            )
        if not all(0 <= seed < 1 << 32 for seed in self.seeds):
            raise ConfigError(f"seeds are {list(self.seeds)}; allowed: whole numbers from 0 to {(1 << 32) - 1}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds are {list(self.seeds)}; allowed: at least one, each once.")
        object.__setattr__(self, "figures", figure_formats(self.figures))
        check_loggers(self.loggers)
        if self.bootstrap < 100:
            raise ConfigError(f"bootstrap is {self.bootstrap}; allowed: 100 resamples or more.")
        if not self.heads:
            raise ConfigError("no head was named; list at least one under `heads` (icecore list heads).")
        protocol = find_protocol(self.protocol, kind=self.task.kind, task=self.task.name)
        # Filled in here, so that the run's record holds what is extracted.
        object.__setattr__(self, "extraction", complete(self.extraction, protocol.extraction.get(self.task.kind, {})))
        if self.views:
            object.__setattr__(self, "extraction", with_values(self.extraction, views=self.views))
        elif self.extraction.views:
            object.__setattr__(self, "views", self.extraction.views)
        if self.pretraining.corpus and protocol.autoencoder:
            options = {**protocol.autoencoder, **self.pretraining.autoencoder}
            object.__setattr__(self, "pretraining", replace(self.pretraining, autoencoder=options))
        self._check_heads()
        if self.random_decoder:
            self._check_random_decoder()

    def _check_random_decoder(self) -> None:
        """Refuse a decoder that has no other with random weights."""
        if self.decoder.merge or self.decoder.adapter or split_random(self.decoder.name)[1] is not None:
            raise ConfigError(
                f"random_decoder is true, but decoder {self.decoder.name!r} is merged, adapted or random already; name "
                "a plain one, or set random_decoder to false."
            )

    def _check_heads(self) -> None:
        """Refuse options of heads, and poolings that they read and nobody extracts."""
        for name, options in self.heads.items():
            check_head(name, options, kind=self.task.kind, task=self.task.name)
        kind = KINDS[self.task.kind]
        if kind.reads_words and self.extraction.poolings != ExtractionSpec().poolings:
            raise ConfigError(
                f"extraction.poolings is [{', '.join(self.extraction.poolings)}], which pools whole texts, but task "
                f"{self.task.name!r} is one of words; set extraction.words.poolings "
                f"({', '.join((AUTO, *WORD_POOLINGS))})."
            )
        self._refuse_unread(reads_words=kind.reads_words)
        key = "extraction.words.poolings" if kind.reads_words else "extraction.poolings"
        extracted = self.extraction.poolings_read(of_words=kind.reads_words)
        for name, resolved in self.resolve_heads().items() if self.has_checked_heads else ():
            for pooling in split_poolings(resolved.pooling or extracted[0]):
                if pooling not in extracted and self.views:
                    raise ConfigError(
                        f"head {name!r} reads the pooling {pooling!r}, but there are views, which stand for their "
                        f"poolings; allowed: {', '.join(extracted)}, or several joined by '+', or leave pooling out."
                    )
                if pooling not in extracted and "auto" not in extracted:  # the plan says which pooling `auto` is
                    raise ConfigError(
                        f"head {name!r} reads the pooling {pooling!r}, which is not extracted; "
                        f"allowed: {', '.join(extracted)}, or add it to {key}."
                    )
            kind.check_config(self, resolved)

    def _refuse_unread(self, *, reads_words: bool) -> None:
        """Refuse what was typed about the extraction or a corpus and would be ignored."""
        views = self.extraction.readings.values()
        has_reba = any(REBA & {*view.poolings, *view.words.poolings} for view in views)
        unread = {
            "extraction.words": (reads_words, f"task {self.task.name!r} has no words"),
            "extraction.poolings": (not reads_words, f"task {self.task.name!r} is one of words"),
            "extraction.reba": (has_reba, "no pooling of ReBA is extracted"),
            "pretraining.texts": (bool(self.pretraining.corpus), "pretraining.corpus names no texts"),
            "pretraining.options": (bool(self.pretraining.corpus), "pretraining.corpus names no texts"),
        }
        for key, source in self.sources.items():
            is_read, why = unread.get(".".join(key.split(".")[:2]), (True, ""))
            if source == TYPED and not is_read:
                raise ConfigError(f"{key} does nothing, as {why}; leave it out.")

    def check_heads(self) -> "RunConfig":
        """Return the same configuration, the values of heads' options checked."""
        return self if self.has_checked_heads else replace(self, has_checked_heads=True)

    def digest_fit(self, task_digest: str) -> str:
        """Digest what is fitted, beside the latents: what the folder of the heads of a point ends with."""
        values = self.to_dict()
        return digest_json([task_digest, *(values[key] for key in FITTED)])[:8]

    def require_files(self, section: str) -> None:
        """Refuse a section that names files which are nowhere; `ConfigError` says where they were looked for."""
        for key, sentence in self.missing.items():
            if key.startswith(f"{section}."):
                raise ConfigError(sentence)

    def resolve_heads(self) -> "dict[str, HeadOptions]":
        """Check the options of every head; those that the config leaves out are the protocol's, then the defaults."""
        context = {"protocol": self.protocol, "kind": self.task.kind, "task": self.task.name}
        return {name: resolve_head(name, options, **context) for name, options in self.heads.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the whole configuration as plain values."""
        values: dict[str, Any] = to_plain({**asdict(self), "decoder": plain_decoder(self.decoder)})
        del values["sources"], values["missing"], values["sweep"], values["has_checked_heads"]
        extraction = values["extraction"] | {"template": self.extraction.template.settings()}
        if self.extraction.reba == RebaOptions():  # records from before there was ReBA stay equal
            del extraction["reba"]
        if not self.extraction.store_texts:
            del extraction["store_texts"]
        del extraction["views"]  # they stand beside it
        if not self.views:
            del values["views"]
        if not self.random_decoder:  # as do those from before there was this
            del values["random_decoder"]
        return values | {"extraction": extraction}


def _check_choices(spec: object, prefix: str = "") -> None:
    """Refuse null, a value that its field's `Literal` does not list, or that is no section: Python does not ask."""
    for name, hint in get_type_hints(type(spec)).items():
        if getattr(spec, name) is None and type(None) not in get_args(hint):
            raise ConfigError(f"{prefix}{name} is null; give a value, or leave the key out to have its default.")
        is_section = isinstance(hint, type) and is_dataclass(hint)
        section = hint if is_section else dict if get_origin(hint) is dict else object
        if not isinstance(getattr(spec, name), section):
            raise ConfigError(f"{prefix}{name} is {getattr(spec, name)!r}; allowed: a mapping of names to values.")
        if get_origin(hint) is Literal and getattr(spec, name) not in get_args(hint):
            raise unknown_name(f"{prefix}{name}", getattr(spec, name), get_args(hint))


def describe_sources(config: RunConfig) -> dict[str, str]:
    """Say of every value of a configuration, by dotted key, where it came from.

    Options of heads that a protocol decides stand in no configuration, so their values are written too.
    """
    protocol, name = find_protocol(config.protocol), f"protocol {config.protocol}"
    extraction = protocol.extraction.get(config.task.kind, {})
    decided = flatten(
        to_plain({"extraction": extraction, "pretraining": {"autoencoder": protocol.autoencoder}}), keeps_empty=True
    )
    values, defaults = (flatten(one.to_dict(), keeps_empty=True) for one in (config, RunConfig()))
    sources = {}
    for key, value in values.items():
        parts = key.split(".")
        typed = [config.sources.get(".".join(parts[:n])) for n in range(len(parts), 0, -1)]
        by_protocol = name if key in decided and decided[key] == value else None
        fallback = "default" if key in defaults and defaults[key] == value else "Python"
        sources[key] = next(filter(None, [typed[0], _template_of(config, key), by_protocol, *typed[1:]]), fallback)
    for head, options in config.heads.items():
        merged = protocol.options_of(head, options or {})
        sources |= {f"heads.{head}.{key}": f"{merged[key]}, {name}" for key in merged.keys() - (options or {}).keys()}
    return sources


def _template_of(config: RunConfig, key: str) -> str | None:
    """Name the template that decided a value; None where none did."""
    template, (section, _, field) = config.extraction.template, key.rpartition(".")
    fields = TEMPLATES[template.name].fields if template.name in TEMPLATES else {}
    is_decided = section == "extraction.template" and field in fields
    text = str(fields.get(field)).replace(TASK, template.task)
    return f"template {template.name}" if is_decided and str(getattr(template, field)) == text else None


FORMATS = ("png", "svg", "pdf")


def figure_formats(formats: str | Sequence[str]) -> tuple[str, ...]:
    """Read the formats of figures, a list or names with `,` between them, each once.

    Example:
        >>> figure_formats("svg, pdf")
        ('svg', 'pdf')
    """
    names = formats.strip("[]").split(",") if isinstance(formats, str) else formats
    names = tuple(dict.fromkeys(str(name).strip().lower() for name in names))
    hint = "Give one or several with ',' between them, as in --figures svg,pdf."
    if not any(names):
        raise ConfigError(f"figures names no format; allowed: {', '.join(FORMATS)}. {hint}")
    for name in names:
        if name not in FORMATS:
            raise unknown_name("format of figures", name, FORMATS, hint=hint)
    return names


# --- The texts of a run ---


MTEB_TASKS = ("banking77",)
"""Tasks that Look Both Ways scores as mteb does, with their own splits; use `few-shot-probe`."""


def load_run_task(config: RunConfig) -> "Task":
    """Load the task of a run with the changes of its protocol, such as other splits under `look-both-ways`."""
    protocol = find_protocol(config.protocol)
    config.require_files("task")
    task: Any = config.task.load(protocol.task)
    cut = protocol.cut.get(config.task.kind)
    if cut == "released-split" and task.name not in MTEB_TASKS:
        from probes.data.domains import look_both_ways_split

        task = look_both_ways_split(task)
    elif cut == "every-token":  # reading the tokenizer does not load the decoder
        templates = {view.template for view in config.extraction.readings.values()}
        if len(templates) > 1:
            raise ConfigError(
                f"protocol {config.protocol!r} tags every token as a word, and the views {', '.join(config.views)} cut "
                "texts into tokens by different templates; give all of them one template."
            )
        from extract.decoders.decoder import load_tokenizer
        from probes.data.word_task import label_every_token

        task = label_every_token(task, load_tokenizer(config.decoder), template=config.extraction.template)
    changed: Task = task
    return changed


def obtain_corpus(config: RunConfig) -> "Corpus | None":
    """Load the pretraining corpus of a run; None when no head of it starts from autoencoders."""
    spec = config.pretraining
    if not spec.corpus or all(head.start == "fresh" for head in config.resolve_heads().values()):
        return None
    config.require_files("pretraining")
    from probes.data.task import load_corpus

    return load_corpus(spec.corpus, spec.texts, spec.options)


# --- Paths ---


FILE_KEYS = {
    "task.options": ("files", "folder"),
    "pretraining.options": ("files", "folder", "file"),
    "corpus": ("files",),
    "objectives.sscl": ("files",),
}
"""Settings that are paths, by section."""
NAME_KEYS = {
    "decoder": ("name", "adapter"),
    "extraction.template": ("spans",),
    "task.options": ("hub_id",),
    "pretraining.options": ("repository",),
}
"""Settings that may be a path or another name."""
LIST_KEYS = {"decoder.merge": "decoder", "corpus": "corpus"}
"""Lists of sections, and the section that each part has the paths of."""
VIEW = re.compile(r"views\.[^.]+")
"""The section of a view, which has the paths of `extraction`."""


def recorded_place(folder: Path, runs: str) -> Path:
    """Return the folder of a run as its recorded paths see it: from the working folder in which it was made."""
    return Path(runs) / folder.resolve().name


def from_run(folder: Path, runs: str, path: str) -> Path:
    """Return a path that a run recorded, seen from the run's folder, wherever the working folder is."""
    return folder.resolve() / os.path.relpath(path, recorded_place(folder, runs))


def home_of(file: str, values: Values) -> tuple[Path, Path]:
    """Return the folder of a config, and how its paths see that folder: as `.`, or in that of a run as recorded."""
    folder, runs = Path(file).parent, values.get("runs")
    is_of_run = Path(file).name == "config.yaml" and any(
        (folder / name).exists() for name in ("scores.json", "manifests")
    )
    return folder, recorded_place(folder, runs) if is_of_run and isinstance(runs, str) else Path()


def exists(path: str) -> bool:
    """Whether there is such a file or folder; not for a text that is no path."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


class ConfigPaths:
    """Rewrites paths that are seen from where `folder` is `seen_as` so that they are relative to the working folder.

    What is in the working folder alone stays as it is, with a warning where the config is not that of a run; so does
    what is in neither, which `missing` describes by key. `source` is the configuration, for these sentences.
    """

    def __init__(self, folder: Path, seen_as: Path, source: str) -> None:
        self.folder, self.seen_as, self.source = folder.resolve(), seen_as, source
        self.missing: dict[str, str] = {}

    def read(self, values: Values, section: str = "") -> dict[str, Any]:
        """Return a section, or the whole where it has no name, with its paths rewritten."""
        return {key: self._value(str(key), value, section) for key, value in values.items()}

    def _value(self, key: str, value: object, section: str) -> Any:
        name = f"{section}.{key}".removeprefix(".")
        is_file, is_name = (key in keys.get(VIEW.sub("extraction", section), ()) for keys in (FILE_KEYS, NAME_KEYS))
        if isinstance(value, Mapping):  # files by split, or a section
            return (
                {k: self._path(v, f"{name}.{k}", is_file=True) for k, v in value.items()}
                if is_file
                else self.read(value, name)
            )
        if name in LIST_KEYS and isinstance(value, list):
            return [self.read(part, LIST_KEYS[name]) if isinstance(part, Mapping) else part for part in value]
        if name == "decoder.adapter" and isinstance(value, str | list):
            adapters = [self._path(part, name, is_file=False) for part in list_adapters(read_adapters(value))]
            return adapters[0] if len(adapters) == 1 else adapters or value
        return self._path(value, name, is_file=is_file) if is_file or is_name else value

    def _path(self, value: object, name: str, *, is_file: bool) -> Any:
        if not isinstance(value, str) or not value or value[0] == "~" or Path(value).is_absolute():
            return value
        plain = split_random(value)[0]
        is_file = is_file or value[0] == "." or value.count("/") > 1 or value.endswith(".gguf")
        path, home = (self.folder / os.path.relpath(part, self.seen_as) for part in (plain, "."))
        places = dict.fromkeys((str(home.resolve()), str(Path.cwd())))
        near = exists(plain)
        if exists(str(path)) and path.resolve() != Path(plain).resolve():
            return os.path.relpath(path) + value.removeprefix(plain)
        if is_file and not near:
            self.missing[name] = (
                f"{name} of {self.source!r} is {value!r}, which is not in {' nor in '.join(map(repr, places))}; a "
                "path of a config is relative to the config."
            )
        elif is_file and len(places) > 1 and self.seen_as == Path():
            text = f"{name} of {self.source!r}: {value!r} is in the working folder, and not beside the config; "
            warnings.warn(f"{text}a path of a config is relative to the config.", ConfigWarning, stacklevel=2)
        return value
