"""The table of heads. A new head is one file, one row here, one config and one test."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from extract.errors import InputError, unknown_name
from extract.names import later
from extract.own.names import add_own, find_own
from probes.fitting.epochs import EpochOptions
from probes.fitting.protocols import find_protocol
from probes.heads.entries import HeadEntry
from probes.heads.options import DATA_OPTIONS, HeadOptions, require_known, resolve_sources, split_data_options


def pair_head(name: str, network: Any, fit: EpochOptions | None, description: str) -> HeadEntry:
    """Make the row of a pair head: a network of `PairHead`'s interface is all that a new one needs.

    `fit` holds the defaults of fitting it; None for a network without training.
    """
    return HeadEntry(
        name,
        "pairs",
        description,
        (network, fit) if fit else (network,),
        evaluate=later("probes.heads.pairs.evaluation:evaluate_pair_head", network),
        check=later("probes.heads.pairs.evaluation:check_pairs"),
        check_options=later("probes.heads.pairs.evaluation:check_network", network),
        build=network,
        oldest_schema=2,
        parts=later("probes.heads.pairs.parts:pair_parts", network),
    )


def token_head(
    name: str,
    network: Any,
    description: str,
    *,
    options: Any = later("probes.heads.words.options:TokenOptions"),  # noqa: B008 - frozen
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
        evaluate=later("probes.heads.words.evaluation:evaluate_token_head", network, fit),
        check=later("probes.heads.words.evaluation:check_words"),
        build=network,
        parts=later("probes.heads.words.parts:token_parts", network, fit),
    )


def zero_shot_head(
    name: str,
    kind: str,
    description: str,
    *,
    options: Any = later("probes.heads.zero_shot.evaluation:ZeroShotOptions"),  # noqa: B008 - frozen
) -> HeadEntry:
    """Make the row of a head without fitting, for a kind of task that has a judge."""
    return HeadEntry(
        name,
        kind,
        description,
        (options,),
        evaluate=later("probes.heads.zero_shot.evaluation:evaluate_zero_shot"),
        check=later("probes.heads.zero_shot.evaluation:check_zero_shot"),
        build=later("probes.heads.zero_shot.evaluation:ZeroShotHead"),
        parts=later("probes.heads.zero_shot.evaluation:zero_shot_parts"),
    )


_ENTRIES = (
    pair_head(
        "layer-cosine",
        later("probes.networks.layer_cosine:LayerCosine"),
        None,
        "raw and standardised cosine of each layer; the best on validation is the score",
    ),
    pair_head(
        "cosine-mlp",
        later("probes.networks.cosine_heads:CosineMLP"),
        EpochOptions(batch_size=64, max_epochs=100, patience=20),
        "standardised layer cosines -> 128 -> 1",
    ),
    pair_head(
        "cosine-linear",
        later("probes.networks.cosine_heads:CosineLinear"),
        EpochOptions(batch_size=64, max_epochs=100, patience=20),
        "standardised layer cosines -> 1: a weight for each layer",
    ),
    pair_head(
        "siamese-cosine",
        later("probes.networks.siamese_cosine:SiameseCosine"),
        EpochOptions(batch_size=128, max_epochs=150, patience=15),
        "layer-wise encoders -> cosines -> 512-512-512-1, log-variance, MSE or CoSENT loss",
    ),
    HeadEntry(
        "logistic-probe",
        "classes",
        "L2 logistic regression by L-BFGS, every layer and C; the best on validation",
        (later("probes.heads.classes.solving:ProbeOptions"),),
        evaluate=later("probes.heads.classes.logistic_probe:evaluate_probe"),
        check=later("probes.heads.classes.logistic_probe:check_probe"),
        build=later("probes.heads.classes.logistic_probe:LinearProbe"),
        oldest_schema=3,
        gives_probabilities=True,
    ),
    HeadEntry(
        "cosine-threshold",
        "classes",
        "two classes of text pairs by a threshold on the cosine of a layer",
        (later("probes.heads.classes.cosine_threshold:ThresholdOptions"),),
        evaluate=later("probes.heads.classes.cosine_threshold:evaluate_threshold"),
        check=later("probes.heads.classes.cosine_threshold:check_threshold"),
        build=later("probes.heads.classes.cosine_threshold:CosineThreshold"),
        oldest_schema=3,
    ),
    HeadEntry(
        "nearest-centroid",
        "classes",
        "the nearest class mean, every layer, by cosine or distance; the best on validation",
        (),
        evaluate=later("probes.heads.classes.nearest_centroid:evaluate_centroids"),
        check=later("probes.heads.classes.nearest_centroid:check_centroids"),
        build=later("probes.heads.classes.nearest_centroid:NearestCentroid"),
        oldest_schema=3,
    ),
    HeadEntry(
        "few-shot-probe",
        "classes",
        "logistic regression on 8 rows of each class, the mean over 10 draws (mteb)",
        (later("probes.heads.classes.few_shot_probe:FewShotOptions"),),
        evaluate=later("probes.heads.classes.few_shot_probe:evaluate_few_shot"),
        check=later("probes.heads.classes.few_shot_probe:check_few_shot"),
        build=later("probes.heads.classes.few_shot_probe:FewShotProbe"),
    ),
    HeadEntry(
        "ridge-probe",
        "numbers",
        "ridge regression in closed form, every layer and alpha; the best on validation",
        (later("probes.heads.numbers.ridge_probe:RidgeOptions"),),
        evaluate=later("probes.heads.numbers.ridge_probe:evaluate_ridge"),
        check=later("probes.heads.numbers.ridge_probe:check_ridge"),
        build=later("probes.heads.numbers.ridge_probe:RidgeProbe"),
        oldest_schema=3,
    ),
    token_head(
        "token-classifier",
        later("probes.networks.token_heads:TokenClassifier"),
        "dropout and linear on each layer, all layers at once; the best on validation",
    ),
    token_head(
        "token-logistic",
        later("probes.networks.token_heads:TokenClassifier"),
        "L2 logistic regression by L-BFGS on each layer; the best on validation",
        options=later("probes.heads.words.options:LogisticOptions"),
        fit=later("probes.heads.words.logistic:fit_token_logistic"),
    ),
    token_head("token-normed", later("probes.networks.token_heads:TokenNormed"), "the same on layer-normed latents"),
    token_head(
        "token-mix",
        later("probes.networks.token_heads:TokenMix"),
        "the same on a softmax-weighted sum of layer-normed layers with a scale",
    ),
    zero_shot_head("layer-search", "retrieval", "documents by similarity to the query, every layer"),
    zero_shot_head("layer-rerank", "reranking", "candidates by similarity to the query, every layer"),
    zero_shot_head(
        "layer-clusters",
        "clustering",
        "k-means with as many clusters as labels, every layer and seed",
        options=later("probes.heads.zero_shot.evaluation:ClusterOptions"),
    ),
    zero_shot_head("layer-alike", "pair-classification", "pairs by similarity and a threshold, every layer"),
    zero_shot_head("layer-translate", "bitext", "the nearest text of the other language, every layer"),
    zero_shot_head(
        "layer-odd",
        "odd-one-out",
        "the word farthest from the others, every layer, Euclidean and cosine",
        options=later("probes.heads.zero_shot.evaluation:OddOptions"),
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
        InputError: A name of the library, or something else than a row.

    Example:
        >>> from probes.networks.cosine_heads import CosineLinear
        >>> class Steps(CosineLinear):
        ...     "A head of its own."
        >>> register_head(pair_head("cosine-steps", Steps, EpochOptions(), "weights of layers, my way")).kind
        'pairs'
    """
    if not isinstance(entry, HeadEntry):
        raise InputError(f"a head is {str(entry)[:60]!r}; allowed: what pair_head, token_head or HeadEntry make.")
    add_own("head", entry.name, entry, shipped=SHIPPED)
    HEADS[entry.name] = entry
    return entry


def _register_as(name: str, entry: Any) -> None:
    register_head(replace(entry, name=name) if isinstance(entry, HeadEntry) else entry)


def find_head(name: str) -> bool:
    """Whether there is such a head; one of the user's is imported for it."""
    find_own("head", name, known=HEADS, add=_register_as)
    return name in HEADS


def head_entry(name: str, *, kind: str = "", task: str = "") -> HeadEntry:
    """Look up a head, for one kind of task where that is named; messages name the task.

    Raises:
        UnknownNameError: Another name, or a head for another kind of task.
    """
    find_head(name)
    table = {key: entry for key, entry in HEADS.items() if kind in ("", entry.kind)}
    if name not in table:
        hint = f"These are the heads for tasks of {kind}, such as {task!r}." if kind and task else ""
        raise unknown_name("head", name, table, hint=hint)
    return table[name]


def check_head(name: str, options: Mapping[str, Any] | None, *, kind: str = "", task: str = "") -> None:
    """Refuse an unknown head or option before anything is imported; arguments and errors as of `resolve_head`."""
    require_known(name, head_entry(name, kind=kind, task=task).sources, options or {}, others=DATA_OPTIONS)


def resolve_head(
    name: str, options: Mapping[str, Any] | None, *, protocol: str = "icecore", kind: str = "", task: str = ""
) -> HeadOptions:
    """Check the options of a head; those that are not given are the protocol's, then the head's defaults.

    `kind` is the kind of task that the head must be for (any where empty), and `task` names the task in messages.

    Raises:
        UnknownNameError: An unknown head or option, or an unknown name as a value.
        ConfigError: A value of the wrong kind, or one the head cannot be built with.
        HeadError: A value out of its range.

    Example:
        >>> resolve_head("token-classifier", {"learning_rate": "3e-3"}).own[0].learning_rate
        0.003
        >>> resolve_head("siamese-cosine", {"bottleneck": 64, "patience": 3}).own[0]
        {'bottleneck': 64}
    """
    entry = head_entry(name, kind=kind, task=task)
    merged = find_protocol(protocol).options_of(name, options or {})
    own, pooling, layers = split_data_options(name, merged)
    found = HeadOptions(name, resolve_sources(name, entry.sources, own, others=DATA_OPTIONS), pooling, layers)
    entry.check_options(found)
    return found
