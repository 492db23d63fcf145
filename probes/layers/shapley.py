"""Shapley values of layers, and control labels with the selectivity of a head."""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import factorial
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float

from extract.errors import InputError, TaskError, unknown_name
from probes.data.task import Same, Task
from probes.heads.head_table import HEADS, HeadOptions
from probes.heads.layer_head import FitContext, HeadParts, Reporter, take_apart
from probes.heads.result import HeadResult
from probes.heads.task_kind import TaskKind
from probes.layers.findings import Resampled, ViewCurve
from probes.metrics.bootstrap import Resampling
from probes.metrics.prediction_metrics import convert_tags, split_tag

Label = TypeVar("Label")
Worth = Callable[[Bool[np.ndarray, "M L"]], Float[np.ndarray, "M *R"]]
"""Scores `M` sets of players; further axes are seeds and resamples of the same score."""
UNREAD_RESAMPLES = 2
"""Resamples for intervals that are not reported."""
MOST_EXACT = 12
"""Most players for which all sets are scored."""


@dataclass(frozen=True, eq=False)
class Shapley:
    """Shapley values, which sum to `all - none`; errors are those of drawing orders, 0 where all sets were scored."""

    values: Float[np.ndarray, "L *R"]
    errors: Float[np.ndarray, "L *R"]
    none: Float[np.ndarray, "*R"]
    all: Float[np.ndarray, "*R"]
    n_sets: int


def shapley_values(worth: Worth, n_players: int, *, n_orders: int = 200, seed: int = 0) -> Shapley:
    """Compute the Shapley value of every player: exactly up to 12 of them, else from drawn orders.

    Orders are drawn in pairs, each with its reverse, which removes most of the noise (Castro et al. 2009 for drawn
    orders; Mitchell et al. 2022 for antithetic ones).

    Example:
        >>> sums = lambda masks: masks @ np.array([1.0, 2.0, 4.0])
        >>> shapley_values(sums, 3).values.round(6).tolist()
        [1.0, 2.0, 4.0]
    """
    if n_orders < 4 or n_orders % 2:
        raise InputError(f"the number of orders is {n_orders}; allowed: an even number of at least 4.")
    if n_players <= MOST_EXACT:
        return _exact(worth, n_players)
    rng = np.random.default_rng(seed)
    permutations = [rng.permutation(n_players) for _ in range(n_orders // 2)]
    orders = np.array([order for one in permutations for order in (one, one[::-1])])
    ranks = orders.argsort(1)
    masks = ranks[:, None, :] < np.arange(n_players + 1)[:, None]  # orders, sizes, players
    unique, rows = np.unique(masks.reshape(-1, n_players), axis=0, return_inverse=True)
    scores = worth(unique)[rows.reshape(len(orders), n_players + 1)]
    gains = np.diff(scores, axis=1)  # orders, steps, ...
    steps = ranks.reshape(*ranks.shape, *[1] * (gains.ndim - 2))
    by_player = np.take_along_axis(gains, np.broadcast_to(steps, gains.shape), axis=1)
    pairs = (by_player[::2] + by_player[1::2]) / 2
    errors = pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs))
    return Shapley(pairs.mean(0), errors, np.asarray(scores[0, 0]), np.asarray(scores[0, -1]), len(unique))


def _exact(worth: Worth, n: int) -> Shapley:
    masks = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1
    scores = worth(masks)
    sizes, weights = masks.sum(1), np.array([factorial(s) * factorial(n - s - 1) / factorial(n) for s in range(n)])
    values = []
    for player in range(n):
        without = np.flatnonzero(~masks[:, player])
        gains = scores[without | (1 << player)] - scores[without]
        values.append(np.tensordot(weights[sizes[without]], gains, 1))
    stacked = np.stack(values)
    return Shapley(stacked, np.zeros_like(stacked), np.asarray(scores[0]), np.asarray(scores[-1]), len(masks))


def group_layers(layers: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Group layers: the embedding, the lower, middle and upper third of the blocks, and the final norm.

    Example:
        >>> group_layers(("embedding", "block_01", "block_02", "block_03", "final_norm"))
        {'embedding': (0,), 'lower third': (1,), 'middle third': (2,), 'upper third': (3,), 'final_norm': (4,)}
    """
    names = [name.rpartition("/")[2] for name in layers]
    blocks = [k for k, name in enumerate(names) if name.startswith("block_")]
    order = sorted(blocks, key=lambda k: (names[k], k))
    thirds = np.array_split(np.array(order, int), 3)
    labelled = zip(("lower third", "middle third", "upper third"), thirds, strict=True)
    groups = {"embedding": tuple(k for k, name in enumerate(names) if name == "embedding")}
    groups |= {label: tuple(sorted(part.tolist())) for label, part in labelled}
    groups |= {"final_norm": tuple(k for k, name in enumerate(names) if name == "final_norm")}
    return {label: part for label, part in groups.items() if part}


def worth_of_groups(worth: Worth, groups: tuple[tuple[int, ...], ...], n_layers: int) -> Worth:
    """Turn a score of sets of layers into one of sets of groups."""
    table = np.zeros((len(groups), n_layers), bool)
    for row, layers in zip(table, groups, strict=True):
        row[list(layers)] = True
    return lambda masks: worth(masks @ table)


CONTROLS = {
    "type": "the label of a word type: of the word itself, of the first word of a text, of those of a pair",
    "text": "the label of a text; of a word, at its place in its sentence",
    "shuffled": "the gold of train in random order; that of the other splits stays",
}


def control_task(task: Same, kind: TaskKind, control: str = "type", seed: int = 0) -> Same:
    """Replace the labels of a task by ones that say nothing about the texts (Hewitt and Liang 2019).

    Under `type` and `text` a label is drawn from the gold of train, as often as it occurs there, by the seed and the
    type or text alone: it is the same in every split and on every machine. Spans of a control are of one word each,
    so that no tag depends on the next. A text that train does not share has an arbitrary label, so a control by text
    is at chance outside train. `TaskError` for a kind without controls.

    Example:
        >>> from icecore import load_task
        >>> from probes.runs.task_kinds import KINDS
        >>> control = control_task(load_task("class-sample"), KINDS["classes"], "type", seed=1)
        >>> control.name, control.n_classes
        ('class-sample, control by type (seed 1)', 6)
    """
    if control not in CONTROLS:
        raise unknown_name("control", control, CONTROLS)
    require_controls(kind)
    if "train" not in task.splits:
        raise TaskError(f"task {task.name!r} has no split 'train', whose gold the labels of a control are drawn from.")
    gold = kind.gold_column
    labels = kind.control_labels(task, control, seed)
    names = task.rows("train").column_names
    columns = {
        split: {**rows.select_columns(names)[:], gold: labels.get(split, rows[gold])}
        for split, rows in task.splits.items()
    }
    splits = task.hold(columns)
    name = f"{task.name}, control by {control} (seed {seed})"
    return task.replace_splits(splits, note=f"a control: {CONTROLS[control]} (seed {seed})", name=name)


def require_controls(kind: TaskKind) -> None:
    """Refuse controls of a kind of task without any."""
    if not kind.gold_column:
        raise TaskError(
            f"controls refit a head on other labels, and tasks of {kind.name} name no labels to replace; leave "
            "controls out."
        )


def text_labels(task: Task, gold: str, control: str, seed: int) -> Mapping[str, Sequence[object]]:
    """Draw the label of every text, or of every first word; or permute the gold of train."""
    pool = list(task.rows("train")[gold])
    if control == "shuffled":
        return {"train": [pool[row] for row in np.random.default_rng(seed).permutation(len(pool))]}
    pool = sorted(pool)
    return {split: [_draw(key, pool, seed) for key in _text_keys(task, split, control)] for split in task.splits}


def word_labels(task: Task, gold: str, control: str, seed: int) -> Mapping[str, Sequence[object]]:
    """Draw the tag of every word, or of every word of a sentence; or permute the tags of train over all its words."""
    tags = list(task.rows("train")[gold])
    flat, is_spans = [tag for sentence in tags for tag in sentence], task.metrics[0] == "span-f1"
    if control == "shuffled":
        mixed = iter([flat[row] for row in np.random.default_rng(seed).permutation(len(flat))])
        rows = [[next(mixed) for _ in sentence] for sentence in tags]
        return {"train": [convert_tags(sentence) for sentence in rows] if is_spans else rows}
    pool = sorted(_as_one_word(tag) if is_spans else tag for tag in flat)
    return {
        split: [
            [
                _draw(word if control == "type" else (position, *words), pool, seed)
                for position, word in enumerate(words)
            ]
            for words in rows["words"]
        ]
        for split, rows in task.splits.items()
    }


def _text_keys(task: Task, split: str, control: str) -> list[tuple[str, ...]]:
    """Name each row by its texts, or by their first words; a pair in either order is the same."""
    columns = [task.rows(split)[column] for column in task.text_columns]
    if control == "type":
        columns = [[(text.split() or [""])[0] for text in texts] for texts in columns]
    return [tuple(sorted(texts)) for texts in zip(*columns, strict=True)]


def _draw(key: Hashable, pool: Sequence[Label], seed: int) -> Label:
    """Draw from a pool by seed and key alone, the same on every machine."""
    digest = hashlib.sha256(repr((seed, key)).encode()).digest()
    return pool[int.from_bytes(digest[:8], "big") * len(pool) >> 64]


def _as_one_word(tag: str) -> str:
    """Turn a tag into that of a span of one word."""
    return tag if tag == "O" else f"B-{split_tag(tag)[1]}"


def selectivity(
    resolved: HeadOptions,
    setting: FitContext,
    result: HeadResult,
    kind: TaskKind,
    *,
    split: str,
    watch: Reporter,
    control: str = "type",
    seeds: Sequence[int] = (0,),
    resampling: Resampling = Resampling(),  # noqa: B008 - frozen
) -> tuple[ViewCurve, ViewCurve]:
    """Fit a head on control labels, on every layer alone, and take its score there from its score on the task."""
    parts = take_apart(resolved, setting, result, split, watch)
    scores = _score_layers(parts, resampling)
    refits = [
        _score_layers(_control_parts(resolved, setting, kind, split, watch, control=control, seed=seed), resampling)
        for seed in seeds
    ]
    values = np.stack([refit.value for refit in refits], axis=1)
    refitted = Resampled(values.mean(1), values, np.mean([refit.draws for refit in refits], axis=0))
    gain = Resampled(scores.value - refitted.value, values, scores.draws - refitted.draws)
    note = f"{CONTROLS[control]}; {len(seeds)} seeds of labels"
    metric, confidence = parts.scorer.metric, resampling.confidence
    return (
        refitted.curve("control", metric, parts.layers, confidence=confidence, name=control, note=note),
        gain.curve("selectivity", metric, parts.layers, confidence=confidence, name=control, note=note),
    )


def _control_parts(
    resolved: HeadOptions,
    setting: FitContext,
    kind: TaskKind,
    split: str,
    watch: Reporter,
    *,
    control: str,
    seed: int,
) -> HeadParts:
    task = control_task(setting.task, kind, control, seed)
    folder = setting.folder / "controls" / f"{control}_{seed}"
    setting = replace(setting, task=task, folder=folder, n_resamples=UNREAD_RESAMPLES, has_details=False)
    result = HEADS[resolved.name].evaluate(resolved, setting, watch)
    return take_apart(resolved, setting, result, split, watch)


def _score_layers(parts: HeadParts, resampling: Resampling) -> Resampled:
    """Score every layer alone, the mean over seeds; constant predictions have a correlation of 0."""
    by_seed = [Resampled.of(parts.scorer, rows, resampling).without_nan() for rows in parts.alone]
    values, draws = (np.mean([getattr(scores, name) for scores in by_seed], axis=0) for name in ("value", "draws"))
    return Resampled(values, np.zeros((len(values), 0)), draws)
