"""The heads of classification tasks: how each is fitted, and its options as they stand in a config."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from extract.decoders.layers import FINAL_NORM
from extract.errors import ConfigError, unknown_name
from extract.store.cache import LatentCache
from probes.heads.classes.cosine_threshold import ThresholdOptions, check_threshold, evaluate_threshold
from probes.heads.classes.logistic_probe import ProbeResult, evaluate_probe, selection_of
from probes.heads.classes.options import ProbeOptions
from probes.tasks.classes.task import ClassTask

DATA_OPTIONS = ("pooling", "layers")


@dataclass(frozen=True)
class ClassHeadEntry:
    """A head of classification tasks."""

    options: type[Any]
    """Frozen dataclass of its options."""
    evaluate: Callable[..., ProbeResult]
    check: Callable[[ClassTask, "ClassHeadOptions"], None]
    """Refuses what is knowable before anything is extracted."""
    description: str
    needs_pairs: bool = False


def _check_probe(task: ClassTask, resolved: "ClassHeadOptions") -> None:
    one_layer = is_one_layer(resolved.layers) and "+" not in (resolved.pooling or "")
    selection_of(task, resolved.options, has_choice=len(resolved.options.Cs) > 1 or not one_layer)


def _check_threshold(task: ClassTask, resolved: "ClassHeadOptions") -> None:
    check_threshold(task, resolved.options)


CLASS_HEADS: dict[str, ClassHeadEntry] = {
    "logistic-probe": ClassHeadEntry(
        ProbeOptions, evaluate_probe, _check_probe,
        "L2 logistic regression by L-BFGS, every layer and C; the best on validation"
    ),
    "cosine-threshold": ClassHeadEntry(
        ThresholdOptions, evaluate_threshold, _check_threshold,
        "two classes of text pairs by a threshold on the cosine of a layer",
        needs_pairs=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ClassHeadOptions:
    """What a config says of one head.

    Attributes:
        options: Its own options.
        pooling: The pooling it reads; the first extracted one when None.
        layers: The layers it reads.
    """

    options: Any
    pooling: str | None
    layers: tuple[str, ...]


def resolve_class_options(name: str, options: Mapping[str, Any]) -> ClassHeadOptions:
    """Check the options of a head of classification tasks.

    Args:
        name: A key of `CLASS_HEADS`.
        options: Options by name.

    Returns:
        The options.

    Raises:
        UnknownNameError: An unknown head or option.
        ConfigError: A value of the wrong kind.

    Example:
        >>> resolve_class_options("logistic-probe", {"Cs": [1, 10]}).options.Cs
        (1.0, 10.0)
    """
    if name not in CLASS_HEADS:
        raise unknown_name("head of classification tasks", name, CLASS_HEADS)
    kind = CLASS_HEADS[name].options
    known = {item.name: item.default for item in fields(kind)}
    own: dict[str, Any] = {}
    for key, value in options.items():
        if key in DATA_OPTIONS:
            continue
        if key not in known:
            raise unknown_name(f"{name} option", key, [*known, *DATA_OPTIONS])
        own[key] = _coerce(name, key, value, known[key])
    layers = options.get("layers", "all")
    return ClassHeadOptions(
        kind(**own), options.get("pooling"), (layers,) if isinstance(layers, str) else tuple(layers)
    )


def _coerce(head: str, key: str, value: Any, default: Any) -> Any:
    """Bring a value to the kind of its default; YAML reads `1e-3` as a text."""
    kind = type(default)
    try:
        if isinstance(value, bool) is (kind is bool):
            if kind is tuple:
                return tuple(float(item) for item in (value if isinstance(value, list | tuple) else [value]))
            if kind is int and float(value).is_integer():
                return int(value)
            if kind in (float, str, bool) and (kind is not str or isinstance(value, str)):
                return kind(value)
    except (TypeError, ValueError):
        pass
    nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", tuple: "a list of numbers"}
    raise ConfigError(f"option {key} of head {head!r} is {value!r}; allowed: {nouns[kind]}.")


def is_one_layer(layers: tuple[str, ...]) -> bool:
    """Tell whether a selection names one layer, for which no cache need be asked."""
    return len(layers) == 1 and (layers[0].startswith("block_") or layers[0] in ("embedding", FINAL_NORM))


def check_class_head(name: str, resolved: ClassHeadOptions, task: ClassTask) -> None:
    """Refuse a head that cannot be fitted on a task, before anything is extracted.

    Args:
        name: A key of `CLASS_HEADS`.
        resolved: Its options.
        task: The task, cut as the protocol says.

    Raises:
        IcecoreError: One text per row for a head of pairs, a choosing split that is not there, too many or too thin
            classes; names it.
    """
    entry = CLASS_HEADS[name]
    if entry.needs_pairs and not task.is_pairs:
        raise ConfigError(
            f"head {name!r} compares two texts, but a row of task {task.name!r} holds one; use logistic-probe."
        )
    entry.check(task, resolved)


def evaluate_class_head(
    name: str,
    resolved: ClassHeadOptions,
    cache: LatentCache,
    task: ClassTask,
    *,
    device: str,
    n_resamples: int,
    folder: Path | None = None,
) -> ProbeResult:
    """Fit a head, choose on validation, and read test once.

    Args:
        name: A key of `CLASS_HEADS`.
        resolved: Its options.
        cache: Latents of every text of the task.
        task: The task.
        device: Where to compute.
        n_resamples: Bootstrap resamples behind every interval.
        folder: Where the fitted head is kept and found again; None keeps nothing.

    Returns:
        What came of it.

    Raises:
        IcecoreError: Rows or options that the head cannot work with.
    """
    check_class_head(name, resolved, task)
    return CLASS_HEADS[name].evaluate(
        cache, task, resolved.options, pooling=resolved.pooling or cache.poolings[0], layers=resolved.layers,
        device=device, n_resamples=n_resamples, folder=folder,
    )  # fmt: skip
