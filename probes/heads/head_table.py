"""The table of heads, and what a run needs to know of a kind of task.

A new head is one file, one row here, one config and one test.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from extract.decoders.decoder_spec import split_layers
from extract.errors import ConfigError, IcecoreError, InputError, UnknownNameError, require_name, unknown_name
from extract.registry import Later, add_own, find_own, later, option_names, resolve
from probes.fitting.fit_options import EpochOptions, FitOptions, Options, find_protocol
from probes.networks.network_options import Widths, check_widths

if TYPE_CHECKING:
    from extract.decoders.decoder import Decoder
    from extract.run.extraction_spec import ExtractionSpec
    from extract.store.cache import LatentCache
    from probes.data.task import Task, TaskInfo
    from probes.data.task_table import TaskEntry
    from probes.fitting.saved_fits import FitRecord, FittedModule
    from probes.heads.baselines import Baselines
    from probes.heads.layer_head import FitContext, HeadParts, Heads, Reporter
    from probes.heads.result import HeadResult
    from probes.layers.views import LayerRows
    from probes.report.document import KindReport
    from probes.runs.run_config import RunConfig


DATA_OPTIONS = ("pooling", "layers")
"""Options of every head: the latents it reads."""

_NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of numbers",
}


@dataclass(frozen=True)
class HeadOptions:
    """The options of one head, checked."""

    name: str
    """The head."""
    values: tuple[Any, ...]
    """Its options, one value per source (see `resolve_sources`), in order."""
    pooling: str
    """The pooling it reads, or several joined by `+`; where empty the first extracted one, or all views."""
    layers: tuple[str, ...]
    """The layers it reads."""

    @property
    def options(self) -> Any:
        """Its options, of the first source; None for a head without any."""
        return self.values[0] if self.values else None

    @property
    def start(self) -> str:
        """How its network of pairs starts: `fresh`, or else from autoencoders; those of words have a `start` too."""
        return self.options.get("start", "fresh") if isinstance(self.options, Mapping) else "fresh"


def split_data_options(name: str, options: Options) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Separate a head's options from the pooling (empty for the first extracted one) and the layers it reads."""
    others = {key: value for key, value in options.items() if key not in DATA_OPTIONS}
    layers, pooling = options.get("layers", "all"), options.get("pooling")
    try:
        names = split_layers(layers)
    except UnknownNameError:
        names = ()
    if not names:
        raise ConfigError(f"option layers of head {name!r} is {layers!r}; allowed: a layer, or a list of them.")
    if not isinstance(pooling, str | None) or pooling == "":
        raise ConfigError(f"option pooling of head {name!r} is {pooling!r}; allowed: the name of a pooling.")
    return others, pooling or "", names


def option_defaults(source: object) -> dict[str, inspect.Parameter]:
    """List the options, with their defaults, of a dataclass, an instance of one, or a class with a constructor."""
    parameters = inspect.signature(source if callable(source) else type(source)).parameters
    options = {key: option for key, option in parameters.items() if option.default is not inspect.Parameter.empty}
    if is_dataclass(source) and not isinstance(source, type):
        return {item.name: options[item.name].replace(default=getattr(source, item.name)) for item in fields(source)}
    return options


def resolve_sources(
    name: str, sources: Sequence[object], options: Options, *, others: Sequence[str] = ()
) -> tuple[Any, ...]:
    """Check options against what declares them, a value per source: a dataclass, or a network's arguments by name.

    Messages call the head `name`, and list `others` as further options.
    """
    require_known(name, sources, options, others=others)
    sources = [resolve(source) for source in sources]
    declared = [option_defaults(source) for source in sources]
    values: list[dict[str, Any]] = [{} for _ in sources]
    for key, value in options.items():
        k = next(k for k, table in enumerate(declared) if key in table)
        is_checked = isinstance(sources[k], type) and is_dataclass(sources[k])  # checks its own ranges
        values[k][key] = coerce(name, key, value, declared[k][key], is_free=is_checked)
    return tuple(_build(source, part) for source, part in zip(sources, values, strict=True))


def require_known(name: str, sources: Sequence[object], options: Options, *, others: Sequence[str] = ()) -> None:
    """Refuse an option that no source declares, without importing the sources; arguments as of `resolve_sources`."""
    allowed = [*(option for source in sources for option in option_names(source)), *others]
    for key in options:
        require_name(f"{name} option", key, allowed)


def _build(source: object, values: dict[str, Any]) -> Any:
    if not is_dataclass(source):
        return values
    return source(**values) if isinstance(source, type) else replace(source, **values)


def coerce(head: str, key: str, value: object, parameter: inspect.Parameter, *, is_free: bool) -> Any:
    """Convert a value to the kind of its default; YAML reads `1e-3` as a text, so a number may come as one.

    Where the default is None, the option takes a number or None. Unless `is_free` (a range is checked elsewhere),
    numbers are at least 0, or 1 where the default is not 0.
    """
    default = parameter.default
    if parameter.annotation == Widths:
        return check_widths(value)
    if value is None and default is None:
        return None
    kind = float if default is None else type(default)
    least = 0 if kind is float or default == 0 else 1
    for converted in _readings(value, kind):
        if is_free or kind not in (int, float) or least <= converted < math.inf:
            return converted
    noun = _NOUNS.get(kind, kind.__name__)
    noun += f" of at least {least:g}" * (kind in (int, float) and not is_free) + ", or null" * (default is None)
    raise ConfigError(f"option {key} of head {head!r} is {value!r}; allowed: {noun}.")


def _readings(value: Any, kind: type) -> Iterator[Any]:
    """Read a value as a kind; nothing where it cannot be read so."""
    try:
        if kind is tuple:
            listed = value.split(",") if isinstance(value, str) else value
            items = listed if isinstance(listed, list | tuple) else [listed]
            if not any(isinstance(item, bool) for item in items):
                yield tuple(float(item) for item in items)
        elif isinstance(value, bool) or kind is bool or kind is str:
            if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):  # to Python, True is an int
                yield value
        elif kind is int and isinstance(value, int):  # beyond 2 ** 53, a float would be another number
            yield value
        elif kind is float or float(value).is_integer():
            yield kind(float(value))
    except (TypeError, ValueError, OverflowError):
        return


def try_building(name: str, network: type[Any], arguments: Options) -> None:
    """Build a network without memory or randomness, so that a bad value is refused before anything is extracted."""
    import torch

    sizes = arguments.get("bottleneck")
    n_layers = len(sizes) if isinstance(sizes, list | tuple) else 2  # the true number is known with the cache
    try:
        with torch.device("meta"):
            network(max(n_layers, 1), 4096, **arguments)
    except IcecoreError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # torch answers a size beyond 64 bits with a TypeError
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(f"head {name!r} cannot be built with {arguments}: {reason}.") from error


@dataclass(frozen=True)
class PlannedRun:
    """The run that a head is to be fitted in."""

    protocol: str = "icecore"
    """The protocol of the run."""
    chooses_plan: bool = False
    """Whether a mask plan is chosen by its validation score, as in a sweep or a search."""
    extracted: tuple[str, ...] = ("all",)
    """The layers that are extracted, as a config names them."""


@dataclass(frozen=True)
class HeadEntry:
    """One row of the table of heads, whose functions and classes may be named by `later`.

    A subclass of `probes.heads.layer_head.Head` has its functions as `run`, `check` and `ablate`.
    """

    name: str
    """The name in configs."""
    kind: str
    """The kind of task it is for."""
    description: str
    """One line."""
    sources: tuple[Any, ...]
    """What declares its options: dataclasses, instances whose values are the defaults, or a network's class."""
    evaluate: "Callable[[HeadOptions, FitContext, Reporter], HeadResult]"
    """Fits it for every seed or loads it, chooses as the protocol says and reads test once."""
    check: Callable[[Any, HeadOptions, PlannedRun], None]
    """Refuses a task it cannot be fitted on, before anything is extracted."""
    build: "Callable[..., FittedModule]"
    """Builds the network from the arguments it was saved with, ready for its weights. New rows of classes and numbers
    are scored by its `predict`."""
    check_options: Callable[[HeadOptions], None] = lambda _: None
    """Refuses options that contradict each other."""
    oldest_schema: int = 1
    """Oldest schema of saved heads that it can be read from."""
    parts: "Callable[[HeadOptions, FitContext, HeadResult, str, Reporter], HeadParts] | None" = None
    """Predicts from layers of a fitted head, and from sets of them; None for one that is refitted on every layer."""
    gives_probabilities: bool = False
    """Whether the softmax of its outputs is the probability of each class."""

    def options(self) -> tuple[str, ...]:
        """List the names of its options."""
        return (*(name for source in self.sources for name in option_names(source)), *DATA_OPTIONS)


def pair_head(name: str, network: Any, fit: EpochOptions | None, description: str) -> HeadEntry:
    """Make the row of a pair head: a network of `PairHead`'s interface is all that a new one needs.

    `fit` holds the defaults of fitting it; None for a network without training.
    """
    return HeadEntry(
        name,
        "pairs",
        description,
        (network, fit) if fit else (network,),
        evaluate=later("probes.heads.pair_heads:PairFits.run", network),
        check=later("probes.heads.pair_heads:PairFits.check"),
        check_options=later("probes.heads.pair_heads:PairFits.check_options", network),
        build=network,
        oldest_schema=2,
        parts=later("probes.heads.pair_heads:PairFits.ablate", network),
    )


def token_head(
    name: str,
    network: Any,
    description: str,
    *,
    options: Any = later("probes.heads.word_fits:TokenOptions"),  # noqa: B008 - frozen
    fit: Any = None,
) -> HeadEntry:
    """Make the row of a token head: a network of `TokenHead`'s interface is all that a new one needs.

    `fit` fits it in place of `fit_token_head`.
    """
    return HeadEntry(
        name,
        "words",
        description,
        (options,),
        evaluate=later("probes.heads.word_heads:TokenFits.run", network, fit),
        check=later("probes.heads.word_heads:TokenFits.check"),
        build=network,
        parts=later("probes.heads.word_heads:TokenFits.ablate", network, fit),
    )


def layer_head(
    name: str, kind: str, description: str, *, head: Any, build: Any, options: Any = None, **more: Any
) -> HeadEntry:
    """Make the row of a head of one layer: a subclass of `LayerHead` is all that a new one needs.

    `build` is its module, `options` the dataclass of its options, and `more` further fields of `HeadEntry`.
    """
    run, check, parts = (
        later(f"{head.place}.{method}") if isinstance(head, Later) else getattr(head, method)
        for method in ("run", "check", "ablate")
    )
    sources = (options,) if options else ()
    return HeadEntry(name, kind, description, sources, evaluate=run, check=check, build=build, parts=parts, **more)


def _layer_head(name: str, kind: str, description: str, places: str, **more: Any) -> HeadEntry:
    """Make a shipped row; `places` names the module, and in it the head, its module and its options if it has any."""
    module, *names = places.split()
    head, build, *options = (later(f"{module}:{attribute}") for attribute in names)
    return layer_head(name, kind, description, head=head, build=build, options=options[0] if options else None, **more)


def zero_shot_head(name: str, kind: str, description: str, head: str, *, options: str = "ZeroShotOptions") -> HeadEntry:
    """Make the row of a head without fitting: a class of `probes.heads.zero_shot_heads`."""
    module = "probes.heads.zero_shot_heads"
    return _layer_head(name, kind, description, f"{module} {head} ZeroShotHead {options}")


_PAIRS, _TOKENS = "probes.networks.pair_networks", "probes.networks.layerwise_networks"
_COSINES = EpochOptions(batch_size=64, max_epochs=100, patience=20)
_ENTRIES = (
    pair_head(
        "layer-cosine",
        later(f"{_PAIRS}:LayerCosine"),
        None,
        "raw and standardised cosine of each layer; the best on validation is the score",
    ),
    pair_head(
        "joined-cosine",
        later(f"{_PAIRS}:JoinedCosine"),
        None,
        "mean of the cosines of several views, a layer of each, chosen together on validation; no training",
    ),
    pair_head("cosine-mlp", later(f"{_PAIRS}:CosineMLP"), _COSINES, "standardised layer cosines -> 128 -> 1"),
    pair_head(
        "cosine-linear",
        later(f"{_PAIRS}:CosineLinear"),
        _COSINES,
        "standardised layer cosines -> 1: a weight for each layer",
    ),
    pair_head(
        "siamese-cosine",
        later(f"{_PAIRS}:SiameseCosine"),
        EpochOptions(batch_size=128, max_epochs=150, patience=15),
        "layer-wise encoders -> cosines -> 512-512-512-1, log-variance, MSE or CoSENT loss",
    ),
    _layer_head(
        "logistic-probe",
        "classes",
        "L2 logistic regression by L-BFGS, every layer and C; the best on validation",
        "probes.heads.linear_probes LogisticHead LinearProbe ProbeOptions",
        oldest_schema=3,
        gives_probabilities=True,
    ),
    _layer_head(
        "cosine-threshold",
        "classes",
        "two classes of text pairs by a threshold on the cosine of a layer",
        "probes.heads.class_heads ThresholdHead CosineThreshold ThresholdOptions",
        oldest_schema=3,
    ),
    _layer_head(
        "nearest-centroid",
        "classes",
        "the nearest class mean, every layer, by cosine or distance; the best on validation",
        "probes.heads.class_heads CentroidHead NearestCentroid",
        oldest_schema=3,
    ),
    _layer_head(
        "few-shot-probe",
        "classes",
        "logistic regression on 8 rows of each class, the mean over 10 draws (mteb)",
        "probes.heads.linear_probes FewShotHead FewShotProbe FewShotOptions",
    ),
    _layer_head(
        "ridge-probe",
        "numbers",
        "ridge regression in closed form, every layer and alpha; the best on validation",
        "probes.heads.linear_probes RidgeHead RidgeProbe RidgeOptions",
        oldest_schema=3,
    ),
    token_head(
        "token-classifier",
        later(f"{_TOKENS}:TokenClassifier"),
        "dropout and linear on each layer, all layers at once; the best on validation",
    ),
    token_head(
        "token-logistic",
        later(f"{_TOKENS}:TokenClassifier"),
        "L2 logistic regression by L-BFGS on each layer; the best on validation",
        options=later("probes.heads.word_fits:LogisticOptions"),
        fit=later("probes.heads.word_fits:fit_token_logistic"),
    ),
    token_head("token-normed", later(f"{_TOKENS}:TokenNormed"), "the same on layer-normed latents"),
    token_head(
        "token-mix",
        later(f"{_TOKENS}:TokenMix"),
        "the same on a softmax-weighted sum of layer-normed layers with a scale",
    ),
    zero_shot_head("layer-search", "retrieval", "documents by similarity to the query, every layer", "SearchHead"),
    zero_shot_head("layer-rerank", "reranking", "candidates by similarity to the query, every layer", "RerankHead"),
    zero_shot_head(
        "layer-clusters",
        "clustering",
        "k-means with as many clusters as labels, every layer and seed",
        "ClusterHead",
        options="ClusterOptions",
    ),
    zero_shot_head(
        "layer-alike", "pair-classification", "pairs by similarity and a threshold, every layer", "AlikeHead"
    ),
    zero_shot_head("layer-translate", "bitext", "the nearest text of the other language, every layer", "TranslateHead"),
    zero_shot_head(
        "layer-odd",
        "odd-one-out",
        "the word farthest from the others, every layer, Euclidean and cosine",
        "OddHead",
        options="OddOptions",
    ),
)
HEADS: dict[str, HeadEntry] = {entry.name: entry for entry in _ENTRIES}
SHIPPED = tuple(HEADS)


def register_head(entry: HeadEntry) -> HeadEntry:
    """Add a head, which configs may then name.

    Its code is part of what a fit is: once edited, it is fitted again. A run with it is read back in another process
    where its module can be imported.

    Args:
        entry: A row as `pair_head` and `token_head` make it from a network, or a `HeadEntry`; the same name again
            replaces it.

    Raises:
        InputError: A name of the library, or an object that is no row.

    Example:
        >>> from probes.networks.pair_networks import CosineLinear
        >>> class Steps(CosineLinear):
        ...     "My head."
        >>> register_head(pair_head("cosine-steps", Steps, EpochOptions(), "weights of layers, my way")).kind
        'pairs'
    """
    if not isinstance(entry, HeadEntry):
        raise InputError(f"a head is {str(entry)[:60]!r}; allowed: what pair_head, token_head or HeadEntry make.")
    add_own("head", entry.name, entry, shipped=SHIPPED)
    HEADS[entry.name] = entry
    return entry


def _register_as(name: str, entry: HeadEntry) -> None:
    register_head(replace(entry, name=name) if isinstance(entry, HeadEntry) else entry)


def find_head(name: str) -> bool:
    """Whether there is such a head; a user's module is imported for it."""
    find_own("head", name, known=HEADS, add=_register_as)
    return name in HEADS


def head_entry(name: str, *, kind: str = "", task: str = "") -> HeadEntry:
    """Look up a head, for one kind of task where that is named; messages name the task."""
    find_head(name)
    table = {key: entry for key, entry in HEADS.items() if kind in ("", entry.kind)}
    if name not in table:
        hint = f"These are the heads for tasks of {kind}, such as {task!r}." if kind and task else ""
        raise unknown_name("head", name, table, hint=hint)
    return table[name]


def check_head(name: str, options: Options | None, *, kind: str = "", task: str = "") -> None:
    """Refuse an unknown head or option before anything is imported; arguments and errors as of `resolve_head`."""
    require_known(name, head_entry(name, kind=kind, task=task).sources, options or {}, others=DATA_OPTIONS)


def resolve_head(
    name: str, options: Options | None, *, protocol: str = "icecore", kind: str = "", task: str = ""
) -> HeadOptions:
    """Check the options of a head; options that are missing are the protocol's, then the head's defaults.

    `kind` is the kind of task that the head must be for (any where empty), and `task` names the task in messages.

    Example:
        >>> resolve_head("token-classifier", {"learning_rate": "3e-3"}).options.learning_rate
        0.003
        >>> resolve_head("siamese-cosine", {"bottleneck": 64, "patience": 3}).options
        {'bottleneck': 64}
    """
    entry = head_entry(name, kind=kind, task=task)
    merged = find_protocol(protocol).options_of(name, options or {})
    others, pooling, layers = split_data_options(name, merged)
    resolved = HeadOptions(name, resolve_sources(name, entry.sources, others, others=DATA_OPTIONS), pooling, layers)
    entry.check_options(resolved)
    return resolved


AUTOENCODER = "autoencoder"
"""The name of the layer-wise autoencoders."""
DEFAULTS = FitOptions(batch_size=64, max_epochs=20, patience=5)
SOURCES = (later("probes.networks.layerwise_networks:LayerAutoencoder"), DEFAULTS)
"""What declares their options."""


# --- Kinds of tasks ---


class TaskKind:
    """A kind of task: rows of one text or several, whose heads are fitted on train and predict a number or a name."""

    name: str
    needs_train: ClassVar[bool] = True
    """Whether heads are fitted on train; otherwise validation is what a task must have."""
    reads_words: ClassVar[bool] = False
    """Whether latents are those of words, not of whole texts."""
    texts_per_row: ClassVar[int] = 1
    """Texts of a new row, unless a head was fitted on pairs."""
    predicts_rows: ClassVar[bool] = True
    """Whether a row has a prediction without the others."""
    predicts: ClassVar[str] = "prediction"
    """What the prediction of a row is called."""
    predicts_numbers: ClassVar[bool] = False
    """Whether predictions are numbers in the units of the gold."""
    gold_column: ClassVar[str] = ""
    """The column whose labels a control replaces; a kind without controls names none."""
    tasks: "ClassVar[tuple[TaskEntry, ...]]" = ()
    """Its tasks that are not in `probes.data.task_table`."""
    heads: "ClassVar[tuple[HeadEntry, ...]]" = ()
    """Its heads that are not in `probes.heads.head_table`."""
    zero_shot_head: ClassVar[str] = ""
    """The head without training that every sweep fits beside the others; none where empty."""

    @property
    def report(self) -> "KindReport":
        """What is particular to its reports."""
        raise NotImplementedError

    def row_texts(self, task: "Task", split: str) -> list[tuple[Any, ...]]:
        """Give the texts of each row of a split."""
        return list(zip(*(task.rows(split)[column] for column in task.text_columns), strict=True))

    def check_config(self, config: "RunConfig", resolved: "HeadOptions") -> None:
        """Refuse a head's options that contradict the configuration."""

    def describe(self, task: "Task", cache: "LatentCache") -> "TaskInfo":
        """Describe the task of a run, with what only the cache knows of it."""
        del cache
        return task.describe()

    def fewest_rows(self, task: "Task", folds: int) -> int:
        """Return the fewest rows per split that a search may draw, for a number of folds of cross-validation."""
        del task, folds
        return 0

    def zero_shot(self, result: "HeadResult") -> dict[str, dict[str, float]]:
        """Return split to metric to the score that the head without training has at the final norm."""
        del result
        return {}

    def baselines(self, task: "Task") -> "Baselines":
        """Predict a task without a decoder, for heads to be compared with; a kind needs none."""
        del task
        return {}

    # Which layers matter (`icecore layers`).

    @property
    def layer_rows(self) -> "Callable[..., LayerRows] | None":
        """What reads the rows of a run for probes of layers (`probes.layers.views`); None for a kind without them."""
        return None

    def control_labels(self, task: "Task", control: str, seed: int) -> Mapping[str, Sequence[object]]:
        """Draw labels that say nothing about the texts, by split, for `gold_column`."""
        raise NotImplementedError

    # New rows, scored by saved heads.

    def n_texts(self, record: "FitRecord") -> int:
        """Count the texts of a row, from the record of a head."""
        return 2 if record.details.get("is_pairs") else self.texts_per_row

    def check_record(self, record: "FitRecord") -> None:
        """Read what scoring takes from the record of a head; any error says that it cannot."""

    def score(self, heads: "Heads", rows: Sequence[Any], decoder: "Decoder", spec: "ExtractionSpec") -> Any:
        """Predict rows with a head whose latents the spec extracts, and no others; gives as many predictions."""
        return later("probes.heads.layer_head:score_texts")(heads, rows, decoder, spec)

    def fields(self, row: Any, prediction: Any) -> dict[str, Any]:
        """Name what a scored row holds: the prediction, and the texts as `text`, or `text1`, `text2` and so on.

        Where values are lists, all of a row are equally long.
        """
        texts = {"text": row} if isinstance(row, str) else {f"text{k}": text for k, text in enumerate(row, start=1)}
        return {self.predicts: prediction if isinstance(prediction, str) else float(prediction), **texts}
