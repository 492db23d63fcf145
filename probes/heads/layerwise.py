"""What heads of one layer share: every layer is tried under every value of one option, and the best place is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from probes.heads.options import HeadOptions
from probes.heads.result import Curve, HeadResult
from probes.heads.setting import Setting
from probes.latents.channels import Channels, channels_of
from probes.metrics.bootstrap import Resampling, SeedSummary
from probes.tasks.audit import why_optimistic


def channels_read(resolved: HeadOptions, setting: Setting) -> Channels:
    """Choose the channels that a head's options name; UnknownNameError for what the cache does not have."""
    cache = setting.cache
    return channels_of(cache, resolved.pooling_of(cache.poolings), resolved.layers)


def only_channel(channels: Channels, place: int) -> Channels:
    """Take one channel, by its position."""
    pooling, layer = tuple(product(channels.poolings, channels.layers))[place]
    return Channels((pooling,), (layer,))


def best_place(surface: Float[np.ndarray, "L A"], penalties: Sequence[float] = ()) -> tuple[int, int]:
    """Choose the highest score that is not NaN; of equals the lowest layer, then the strongest penalty.

    Args:
        surface: Scores of every layer under every value of the option.
        penalties: How strong each value's penalty is; of equals the first value where there are none.

    Returns:
        Position of the layer and of the value.
    """
    order = np.argsort(-np.asarray(penalties), kind="stable") if penalties else np.arange(surface.shape[1])
    known = np.where(np.isnan(surface), -np.inf, surface)
    layer, place = np.unravel_index(int(np.argmax(known[:, order])), surface.shape)
    return int(layer), int(order[place])


def record_layer(name: str, channels: Channels, task: Any, *, layer: int, **facts: Any) -> dict[str, Any]:
    """Describe the head of a chosen layer, with facts of its own, as it is saved."""
    return {
        "name": name,
        "pooling": channels.pooling,
        "layers": [channels.names[layer]],
        "task": {"name": task.name, "digest": task.digest()},
        **facts,
    }


def record_surface(surface: Float[np.ndarray, "L A"]) -> list[list[float | None]]:
    """Write scores out as JSON can: null for NaN."""
    return [[None if np.isnan(score) else score for score in row] for row in surface.tolist()]


def layer_result(
    resolved: HeadOptions,
    setting: Setting,
    predictions: Mapping[str, NDArray[Any]],
    *,
    gold: Callable[[str], Any],
    summarise: Callable[..., SeedSummary],
    compare: Callable[[Any, Any], NDArray[np.float64]],
    reason: str = "",
    **facts: Any,
) -> HeadResult:
    """Score the predictions of every split by every metric of the task.

    Args:
        resolved: The head and its options.
        setting: What all heads of the run share.
        predictions: Split to `(N,)` predictions.
        gold: Gives the gold of a split.
        summarise: Summarises predictions by a metric, as `summarise_seeds` does.
        compare: Scores every row from its prediction and its gold.
        reason: Why the head's own choice makes its numbers optimistic; reasons of the task are added.
        facts: Other fields, those of `describe_choice` among them.
    """
    task, resampling = setting.task, Resampling(setting.n_resamples)
    golds = {split: gold(split) for split in predictions}
    return HeadResult(
        name=resolved.name,
        options=asdict(resolved.own[0]) if resolved.own else {},
        metric=task.metrics[0],
        selection_score=facts["chosen"]["score"],
        summary={
            split: {
                metric: summarise(
                    found[None], golds[split], metric=metric, groups=task.units(split), resampling=resampling
                )
                for metric in task.metrics
            }
            for split, found in predictions.items()
        },
        optimistic_because="; ".join(filter(None, (reason, why_optimistic(task)))),
        predictions=predictions,
        row_scores={split: compare(found, golds[split]) for split, found in predictions.items()},
        **facts,
    )


def describe_choice(
    channels: Channels,
    surface: Sequence[Sequence[float | None]],
    place: Sequence[int],
    *,
    metric: str,
    selection: str,
    option: str,
    values: Sequence[Any],
    **chosen: Any,
) -> dict[str, Any]:
    """Give the fields of a result that show what was chosen: channels, place, and a curve for each value.

    Args:
        channels: The `L` channels that were tried.
        surface: `(L, A)` scores; None where there is none.
        place: Position of the chosen layer and value.
        metric: What was scored.
        selection: The split that decided.
        option: Name of the option.
        values: Its `A` values, numbers or names.
        chosen: What else was chosen.
    """
    scores = np.array(surface, dtype=np.float64)  # None is NaN
    layer, column = place
    names = [value if isinstance(value, str) else f"{option} {value:g}" for value in values]
    return {
        "pooling": channels.pooling,
        "layers": channels.names,
        "selection": selection,
        "chosen": {
            "layer": channels.names[layer],
            option: values[column],
            **chosen,
            "score": float(scores[layer, column]),
        },
        "curves": tuple(
            Curve(name, selection, metric, tuple(line)) for name, line in zip(names, scores.T.tolist(), strict=True)
        ),
    }
