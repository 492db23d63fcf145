"""What a sweep goes over: axes of named values, and the grid of points that they span. Reading it loads no torch.

A point is a whole configuration: that of the sweep with the keys of its values, as if its file had them.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from extract.decoders.decoder_spec import DecoderSpec, plain_decoder, short_name
from extract.errors import ConfigError, DecoderError, IcecoreError, UsageError, first_line, unknown_name
from extract.files import digest_json
from extract.masks.mask_plan import CAUSAL, MaskPlan
from extract.records import from_plain, given, to_plain
from extract.registry import PLACE, allow_code
from extract.run.extraction_spec import ExtractionSpec
from probes.data.task import Task
from probes.data.task_table import TASKS
from probes.fitting.fit_options import find_protocol
from probes.report.scores import label_of
from probes.runs.config_file import SECTIONS, list_keys, name_key, with_settings
from probes.runs.encoders import ENCODERS
from probes.runs.run_config import RunConfig, load_run_task
from probes.runs.task_kinds import KINDS

PLAN, PLAN_KEY, RATIO, HEADS = "plan", "extraction.plan", "ratio", "heads."
POOLINGS_KEY, WORDS_KEY = "extraction.poolings", "extraction.words.poolings"
SOURCE = "sweep"
"""Source of the values of a point, in the record of its configuration."""
MOST_POINTS = 10_000
QUOTED = re.compile(
    r"""\s*(?P<name>(?:[\w.-]+=)?)(?P<quote>["'])(?P<text>(?:(?!(?P=quote)).)*)(?P=quote)\s*(?:,|$)""", re.DOTALL
)
"""A typed value in quotes, perhaps after its name, up to the comma that ends it."""
RESERVED = (
    *("point", "slot", "record", "layer", "depth", "curve", "split", "metric", "seed", "value", "std", "low", "high"),
    *("is_chosen", "is_reference", "gap", "gap_low", "gap_high", "p_corrected", "n_tokens"),
)
"""Columns by which tables of a sweep are read, which the column of an axis would hide."""
OF_THE_SWEEP = ("name", "runs", "figures", "bootstrap")
"""Keys that a sweep has once, for all its points."""
CHOICES = ("rows", "sources")
"""What counts alike where a point is chosen on validation: every row, or every source of rows."""
BUDGET = 0.25
"""Share of a grid's cost that a search may compute, unless another is given."""
Settings = Mapping[str, object]
"""Dotted key or section of a configuration to value."""


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep: what it is called, and the settings of each of its named values."""

    name: str
    values: Mapping[str, Settings]


@dataclass(frozen=True)
class Point:
    """One point of a sweep."""

    values: Mapping[str, str]
    """Axis to the name of its value."""
    config: RunConfig
    why_not: str = ""
    """Why it cannot be computed, where its decoder was not found and its plan is a share of the depth."""

    @property
    def label(self) -> str:
        """The values of all axes as text."""
        return label_of(self.values)

    @property
    def plan(self) -> MaskPlan:
        """Its mask plan."""
        return self.config.extraction.mask_plan


@dataclass(frozen=True)
class Grid:
    """The points of a sweep."""

    axes: tuple[str, ...]
    points: tuple[Point, ...]
    reference: Mapping[str, str]
    """The point that others are compared with."""
    choose_on: str = ""
    """The task that is chosen on, where tasks are an axis; all of them when empty."""
    choose_by: str = "rows"
    """One of `CHOICES`: what counts alike on validation."""
    values: Mapping[str, Mapping[str, Settings]] = field(default_factory=lambda: MappingProxyType({}))
    """Axis to the settings of its values, for the record."""

    def __post_init__(self) -> None:
        """Refuse an unknown way to choose."""
        if self.choose_by not in CHOICES:
            raise unknown_name("choose_by", self.choose_by, CHOICES)

    @property
    def is_of_plans(self) -> bool:
        """Whether it is a sweep over mask plans alone."""
        return self.axes == (PLAN,)

    @property
    def has_default_reference(self) -> bool:
        """Whether the reference of a sweep over plans alone is causal, or the first where causal is no point."""
        names = [point.values[PLAN] for point in self.points]
        return self.reference[PLAN] == (CAUSAL if CAUSAL in names else names[0])

    @property
    def has_one_decoder(self) -> bool:
        """Whether all points are of one decoder."""
        return len({digest_json(plain_decoder(point.config.decoder)) for point in self.points}) == 1

    @property
    def unread(self) -> dict[str, str]:
        """Label to why a point cannot be computed; DecoderError where that is true of all."""
        reasons = {point.label: point.why_not for point in self.points if point.why_not}
        if len(reasons) == len(self.points):
            raise DecoderError(next(iter(reasons.values())))
        return reasons

    @cached_property
    def task_axis(self) -> str:
        """The axis along which the task changes; empty where there is none."""
        names = [axis for axis in self.axes if self._changes_task(axis)]
        if len(names) > 1:
            raise ConfigError(f"the task changes along the axes {' and '.join(names)}; put it on one of them.")
        return names[0] if names else ""

    def _changes_task(self, axis: str) -> bool:
        first = next(iter(self.values[axis]))
        rest: dict[frozenset[tuple[str, str]], list[Point]] = {}
        for point in self.points:
            rest.setdefault(frozenset(_but(point.values, axis).items()), []).append(point)
        for points in rest.values():
            at_first = [point.config.task for point in points if point.values[axis] == first]
            if any(point.config.task != task for task in at_first for point in points):
                return True
        return False

    def check_heads(self) -> "Grid":
        """Return the same grid, the values of heads' options checked at every point."""
        return replace(self, points=tuple(map(_with_checked_heads, self.points)))

    def settings(self, **search: object) -> dict[str, object]:
        """Return what the configuration does not hold, for config.yaml of the folder of a sweep or search."""
        by = {} if self.choose_by == "rows" else {"choose_by": self.choose_by}
        if self.is_of_plans:
            by |= {} if self.has_default_reference else {"reference": self.reference[PLAN]}
            return {**search, **by, "plans": [point.plan.text for point in self.points]}
        over = {
            axis: {name: dict(settings) for name, settings in values.items()} for axis, values in self.values.items()
        }
        points = [dict(point.values) for point in self.points]
        whole = [dict(zip(self.axes, names, strict=True)) for names in product(*self.values.values())]
        listed = {} if points == whole else {"points": points}
        chosen = {"reference": dict(self.reference), "choose_on": self.choose_on, **by}
        return {"sweep": {"over": over, **listed, **chosen, **search}}


def load_tasks(grid: Grid) -> dict[str, Task]:
    """Load the task of every point by its label, each task once."""
    loaded: dict[str, Task] = {}
    tasks = {}
    for point in grid.points:
        config = point.config
        changes = bool(find_protocol(config.protocol).cut)  # which may read the tokenizer
        beside = [plain_decoder(config.decoder), config.extraction.template.settings()] if changes else []
        key = digest_json([to_plain(config.task), config.protocol, beside])
        if key not in loaded:
            loaded[key] = load_run_task(config)
        tasks[point.label] = loaded[key]
    return tasks


def _but(values: Mapping[str, str], axis: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if name != axis}


# --- Axes that come with the library: `--over encoders` is the list of docs/encoders_compared.md ---


LISTED, ENCODER_AXIS = "encoders", "encoder"
"""What is typed after `--over`, and the axis that it is."""
SHARES = {"sixth": 1 / 6, "fifth": 1 / 5, "third": 1 / 3, "two fifths": 2 / 5, "half": 1 / 2, "two thirds": 2 / 3}
"""Shares of the depth of a decoder, as `{third}` in a plan, which are filled in for the decoder of each point."""
SHARE = re.compile(r"\{([a-z ]+)\}")
OF_WORDS = {"mean": "mean", "echo-mean": "echo", "reba-mean": "reba"}
"""Pooling of a text to that of a word, for tasks of words; a last token is that of a text."""
COSINES = "layer-cosine"


def encoder_settings(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return the settings of every encoder that the task and the heads of a configuration can be read with."""
    if config.views:
        raise ConfigError(
            f"an encoder reads a text one way, and there are views ({', '.join(config.views)}); leave them "
            "out, or sweep over a key of a view, as --over views.VIEW.plan=PLAN,PLAN."
        )
    reads_words = KINDS[config.task.kind].reads_words
    has_cosines = COSINES in config.heads
    settings: dict[str, dict[str, object]] = {}
    for name, encoder in ENCODERS.items():
        if (encoder.transform != "none" and not has_cosines) or (reads_words and encoder.pooling not in OF_WORDS):
            continue
        pooling = OF_WORDS[encoder.pooling] if reads_words else encoder.pooling
        template: dict[str, object] = {} if "bos" in given(config.extraction.template) else {"bos": "force"}
        template |= {"name": encoder.template} if encoder.template else {}
        template |= {"repeat": encoder.repeat} if encoder.repeat > 1 else {}
        keys: dict[str, object] = {
            WORDS_KEY if reads_words else POOLINGS_KEY: [pooling],
            "extraction.template": template,
        }
        keys |= {"extraction.plan": encoder.plan} if encoder.plan else {}
        keys |= {"extraction.layers": encoder.layers} if encoder.layers else {}
        keys |= {f"heads.{COSINES}.transform": encoder.transform} if has_cosines else {}
        settings[name] = keys
    return settings


def names_shares(value: object) -> bool:
    """Whether a value, or one inside it, names a share of the depth."""
    if isinstance(value, Mapping):
        return any(map(names_shares, value.values()))
    if isinstance(value, list | tuple):
        return any(map(names_shares, value))
    return isinstance(value, str) and SHARE.search(value) is not None


def fill_shares(settings: Settings, decoder: DecoderSpec) -> dict[str, object]:
    """Write shares of the depth in texts, as `{third}`, as numbers of blocks of a decoder; no weights are read."""
    from extract.decoders.decoder import read_n_blocks

    n_blocks = read_n_blocks(decoder)

    def count(match: re.Match[str]) -> str:
        if match[1] not in SHARES:
            raise unknown_name("share of the depth", match[1], SHARES)
        return str(round(SHARES[match[1]] * n_blocks))

    def fill(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: fill(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [fill(part) for part in value]
        return SHARE.sub(count, value) if isinstance(value, str) else value

    return {key: fill(value) for key, value in settings.items()}


# --- Axes ---


def read_axes(config: RunConfig, over: Sequence[str] = ()) -> tuple[Axis, ...]:
    """Read the axes of a sweep: those of the section `sweep` of its file, or the typed ones, `AXIS=VALUE,VALUE`.

    A typed axis takes some of the named values of the file, as `encoder=plain,echo`; without `=` all of them.
    """
    listed = [*_mapping(config.sweep.get("over", {}), "sweep.over").items()]
    listed += [
        (key, config.sweep[name]) for key, name in ((PLAN_KEY, "plans"), (RATIO, "ratios")) if name in config.sweep
    ]
    axes = _distinct([(str(name), _read_axis(str(name), values, config)) for name, values in listed])
    named = {axis.name: axis for axis in axes}
    if not over:
        return axes
    return _distinct([_read_typed(text, named, config) for text in over])


def _distinct(read: Sequence[tuple[str, Axis]]) -> tuple[Axis, ...]:
    """Name axes apart, of which options of one name in several heads have the names of their heads too."""
    names = Counter(axis.name for _, axis in read)
    axes = [
        replace(axis, name=name.removeprefix(HEADS)) if names[axis.name] > 1 and name.startswith(HEADS) else axis
        for name, axis in read
    ]
    for name, number in Counter(axis.name for axis in axes).items():
        if number > 1:
            raise ConfigError(f"the axis {name!r} is given twice; give all its values at once.")
    return tuple(axes)


def _find_axis(name: str, named: Mapping[str, Axis]) -> Axis | None:
    """Find an axis by its name, or by its key: a head's option may have the name of another head's."""
    axis = next((named[each] for each in (name, name.removeprefix(HEADS), _short(name)) if each in named), None)
    is_other = (
        axis is not None and _is_key(name) and any(_key(name) not in settings for settings in axis.values.values())
    )
    return None if is_other else axis


def _read_typed(text: str, named: Mapping[str, Axis], config: RunConfig) -> tuple[str, Axis]:
    name, equals, values = text.partition("=")
    name = name.strip()
    axis = _find_axis(name, named)
    if not equals:
        if axis is None and _is_key(name):
            raise ConfigError(f"the axis {name!r} has no values; give them, as --over {name}=VALUE,VALUE.")
        return name, axis or _read_preset(name, config, named)
    words = split_values(values)
    if axis is None and name != RATIO and not _is_key(name):
        axis = _read_preset(name, config, named)
    if axis is None:
        return name, _read_axis(name, words, config)
    missing = [word for word in words if word not in axis.values]
    if missing and not _is_key(name):
        hint = (
            ""
            if name in named
            else f"Name others in the section `sweep` of the config, as over: {{{axis.name}: {{{missing[0]}: KEYS}}}}."
        )
        raise unknown_name(f"value of the axis {name!r}", missing[0], axis.values, hint=hint)
    chosen = {word: axis.values[word] if word in axis.values else {_key(name): word} for word in words}
    return name, Axis(axis.name, chosen)


def _read_preset(name: str, config: RunConfig, named: Mapping[str, Axis]) -> Axis:
    """Read an axis that comes with the library: the list `encoders`."""
    if name in (ENCODER_AXIS, LISTED):
        return Axis(ENCODER_AXIS, encoder_settings(config))
    hint = (
        "Give the values of a key, as --over extraction.plan=causal,backward or --over "
        "heads.layer-cosine.transform=none,abtt, or name an axis of the config."
    )
    n_parts = name.count(".") + 1  # keys are written as short as the name
    keys = dict.fromkeys(".".join(key.split(".")[-n_parts:]) for key in [*SECTIONS, *(k.name for k in list_keys())])
    near = [] if _is_key(name) else get_close_matches(name, list(keys), n=3)
    raise unknown_name("axis", name, [*near, *named, LISTED], hint=hint)


def split_values(text: str, *, has_names: bool = False) -> list[str]:
    """Split typed values at commas, but not inside brackets or quotes; a quoted value keeps its blanks.

    With `has_names` a name may stand before a quoted value, as in `instruction='Read: '`.

    Example:
        >>> split_values("causal,[mean,last],{name: echo}")
        ['causal', '[mean,last]', '{name: echo}']
        >>> split_values("' Read: a, b', don't")
        [' Read: a, b', "don't"]
        >>> split_values(",echo,")
        ['', 'echo']
    """
    parts, start = list[str](), 0
    while start <= len(text):
        quoted = QUOTED.match(text, start)
        if quoted and (has_names or not quoted["name"]):
            parts.append(quoted["name"] + quoted["text"])
            start = quoted.end() + (quoted[0][-1] != ",")
            continue
        end, depth = start, 0
        while end < len(text) and (text[end] != "," or depth > 0):
            depth += (text[end] in "[{(") - (text[end] in "]})")
            end += 1
        part = text[start:end].strip()
        if part or end < len(text):  # nothing before a comma is an empty value, and after the last one none
            parts.append(part)
        start = end + 1
    return parts


def _read_axis(name: str, values: object, config: RunConfig) -> Axis:
    """Read one axis: a list of values of a key, or a mapping of names to values of it, or to sets of keys."""
    if name == RATIO:
        return _ratio_axis(values, config)
    if isinstance(values, str):
        values = split_values(values)
    if isinstance(values, Mapping):
        if "" in values:
            raise ConfigError(f"a value of the axis {name!r} has no name; give it one.")
        settings = {
            str(label): {_key(name): value}
            if _is_key(name) and not _sets_key(value, _key(name))  # as it is recorded
            else _set_of_keys(f"{name}.{label}", value)
            for label, value in values.items()
        }
    elif isinstance(values, list | tuple):
        key = _key(name)
        settings = dict(zip(_labels(values), ({key: value} for value in values), strict=True))
    else:
        raise ConfigError(
            f"axis {name!r} is {str(values)[:60]!r}; allowed: a list of values, or names with their keys."
        )
    if not settings:
        raise ConfigError(f"axis {name!r} has no value; give at least one, as --over {name}=VALUE,VALUE.")
    return Axis(_short(name), settings)


def _short(name: str) -> str:
    """Name an axis by the short form of its key; of named sets of keys as it is."""
    return short_key(_key(name)) if _is_key(name) else name


def short_key(key: str) -> str:
    """Shorten a key to the last parts that name it alone, as columns and labels show it.

    Example:
        >>> short_key("extraction.plan"), short_key("task.name"), short_key("heads.layer-cosine.transform")
        ('plan', 'task.name', 'transform')
    """
    parts = key.split(".")
    if parts[0] == "heads" and len(parts) == 3:
        return parts[2] if parts[2] not in RESERVED else f"{parts[1]}.{parts[2]}"
    names = (".".join(parts[k:]) for k in range(len(parts) - 1, -1, -1))
    return next((name for name in names if name not in RESERVED and _is_key(name) and _key(name) == key), key)


def _ratio_axis(values: object, config: RunConfig) -> Axis:
    """Read the ratios of a merge of two checkpoints: the weight of the second."""
    listed: Any = split_values(values) if isinstance(values, str) else values
    listed = listed if isinstance(listed, list | tuple) else [listed]
    try:
        ratios = [float(value) for value in listed]
    except ValueError as error:
        text = ",".join(map(str, values)) if isinstance(values, list | tuple) else str(values)
        raise ConfigError(f"--ratios is {text!r}; allowed: numbers, as 0,0.25,0.5,1.") from error
    merge = config.decoder.merge
    if len(merge) != 2:
        raise ConfigError(
            f"decoder.merge has {len(merge)} parts, and ratios are between two; set decoder.merge: "
            "[{name: A, weight: 0.5}, {name: B, weight: 0.5}]."
        )
    first, second = merge
    parts = {  # 0.1, and not 0.09999999999999998
        f"{ratio:g}": (replace(first, weight=round(1 - ratio, 12)), replace(second, weight=ratio)) for ratio in ratios
    }
    if not parts:
        raise ConfigError("there is no ratio; give some with ',' between them, as 0,0.25,0.5,0.75,1.")
    if len(parts) < len(ratios):
        raise ConfigError(f"--ratios has {len(ratios)} numbers, some of them the same to six digits; give each once.")
    return Axis(RATIO, {label: {"decoder.merge": to_plain(pair)} for label, pair in parts.items()})


def _mapping(value: object, where: str) -> dict[object, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {str(value)[:60]!r}; allowed: axes with their values, as {{plan: [causal]}}.")
    return dict(value)


def _set_of_keys(where: str, value: object) -> dict[str, object]:
    """Read a named value that sets several keys; a section may be nested."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is {str(value)[:60]!r}; allowed: keys with values, as {{poolings: [last]}}, for a named value."
        )
    return {_key(str(key)): item for key, item in value.items()}


def _sets_key(value: object, key: str) -> bool:
    """Whether a named value of the axis of a key is a set of keys, with this one in it."""
    return isinstance(value, Mapping) and any(_is_key(str(name)) and _key(str(name)) == key for name in value)


def _is_key(name: str) -> bool:
    try:
        _key(name)
    except IcecoreError:
        return False
    return True


def _key(name: str) -> str:
    """Complete the name of a key or section; options of heads and tasks, and keys of views, are free."""
    free = ("heads.", "views.", "task.options.", "pretraining.options.", "pretraining.autoencoder.")
    is_free = name.startswith(free)
    return name if is_free else name_key(name)


def _labels(values: Sequence[object]) -> list[str]:
    """Name values: texts by themselves, paths by their last part where that tells them apart."""
    whole = [value if isinstance(value, str) else json.dumps(value).replace('"', "") for value in values]
    short = [short_name(label) if re.fullmatch(r"[\w./~-]+", label) and Path(label).parts else label for label in whole]
    labels = short if len(set(short)) == len(set(whole)) else whole
    repeated = [label for label in labels if labels.count(label) > 1]
    if repeated:
        raise ConfigError(f"the value {repeated[0]!r} of an axis is given twice; give it once.")
    return labels


def _label_of_value(axis: Axis, value: object) -> str:
    """Name a value as the axis does."""
    labels = [label for label, settings in axis.values.items() if value in (label, *settings.values())]
    return labels[0] if len(labels) == 1 else str(value)


def read_search(config: RunConfig, strategy: str = "", budget: float | None = None) -> tuple[str, float]:
    """Read how a grid is searched and at what share of its cost: typed, or else from the section `sweep` of a file."""
    strategy = strategy or str(config.sweep.get("search") or "")
    share = config.sweep.get("budget") if budget is None else budget
    if share is None:
        return strategy, BUDGET
    if not strategy:
        raise UsageError("--budget does nothing by itself; give it with --search, as --search halving.")
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise ConfigError(f"sweep.budget is {str(share)[:60]!r}; allowed: a share of the full grid's cost, as 0.25.")
    return strategy, float(share)


# --- The grid ---


def make_grid(
    config: RunConfig,
    axes: Sequence[Axis],
    *,
    points: Sequence[Mapping[str, str]] = (),
    reference: str | Mapping[str, str] = "",
    choose_on: str = "",
    choose_by: str = "rows",
) -> Grid:
    """Span a grid: every combination of the values of its axes, or those in the list `points`.

    `reference` are some values of the point to compare with; of other axes it is causal where that is a value, or else
    the first one.
    """
    if not axes:
        raise ConfigError(
            "the sweep does not say what it goes over; allowed: --over KEY=VALUE,VALUE, a section `sweep` in the "
            "config, or the flags of plans (icecore sweep --help)."
        )
    _refuse_keys_of_the_sweep(axes)
    _refuse_shared_keys(axes)
    by_name = {axis.name: axis for axis in axes}
    n_points = len(points) or math.prod(len(axis.values) for axis in axes)
    if n_points > MOST_POINTS:
        raise ConfigError(f"the sweep has {n_points:,} points; allowed: {MOST_POINTS:,}.")
    if points:
        named = [{name: combination[name] for name in by_name} for combination in points]
    else:
        named = [dict(zip(by_name, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    spanned = tuple(_point(config, by_name, values) for values in named)
    _refuse_equal_points(by_name, spanned)
    default = {axis.name: CAUSAL if CAUSAL in axis.values else next(iter(axis.values)) for axis in axes}
    target = default | read_point(reference, by_name)
    if target not in named:
        if reference:
            raise ConfigError(f"the reference {label_of(target)!r} is no point of the sweep; name one that is.")
        target = named[0]
    grid = Grid(tuple(by_name), spanned, target, choose_on, choose_by, {axis.name: axis.values for axis in axes})
    return _named_by_plan(grid) if grid.is_of_plans else grid


def _named_by_plan(grid: Grid) -> Grid:
    """Name the points of a sweep over plans alone by their plans, shares of the depth filled in, as its record does."""
    names = {point.values[PLAN]: point.values[PLAN] if point.why_not else point.plan.text for point in grid.points}
    repeated = [name for name in names.values() if [*names.values()].count(name) > 1]
    if repeated:
        raise ConfigError(f"the plan {repeated[0]!r} is given twice; give it once.")
    points = tuple(replace(point, values={PLAN: names[point.values[PLAN]]}) for point in grid.points)
    values = {PLAN: {names[label]: grid.values[PLAN][label] for label in names}}
    return replace(grid, points=points, reference={PLAN: names[grid.reference[PLAN]]}, values=values)


def _refuse_keys_of_the_sweep(axes: Sequence[Axis]) -> None:
    """Refuse axes that would change nothing, and seeds, of which none may be chosen."""
    for axis in axes:
        if axis.name in RESERVED:
            raise ConfigError(f"the axis {axis.name!r} has the name of a column of every sweep; give it another name.")
        keys = {key for settings in axis.values.values() for key in settings}
        if len({json.dumps(settings.get("seeds")) for settings in axis.values.values()}) > 1 or keys == {"seeds"}:
            raise ConfigError(
                "seeds are no axis, as none of them may be chosen; --seeds 0,1,2 fits all at every point."
            )
        if fixed := sorted(keys & set(OF_THE_SWEEP)):
            raise ConfigError(f"the axis {axis.name!r} sets {fixed[0]}, which all points share; set it for the sweep.")


def _refuse_shared_keys(axes: Sequence[Axis]) -> None:
    """Refuse axes that set the same key, as one of them would be ignored."""
    keys = {axis.name: {key for settings in axis.values.values() for key in _flat_keys(settings)} for axis in axes}
    for one, other in combinations(keys, 2):
        for key, rival in product(sorted(keys[one]), sorted(keys[other])):
            if f"{key}.".startswith(f"{rival}.") or f"{rival}.".startswith(f"{key}."):
                raise ConfigError(f"the axes {one!r} and {other!r} both set {max(key, rival, key=len)}; make them one.")


def _refuse_equal_points(axes: Mapping[str, Axis], points: Sequence[Point]) -> None:
    """Refuse points that read the same, unless shares of the depth are what differs in them."""
    seen: dict[str, Point] = {}
    for point in points:
        if point.why_not or any(names_shares(axes[name].values[value]) for name, value in point.values.items()):
            continue
        views, whole = point.config.views, point.config.to_dict()
        if views:
            whole["extraction"] = {name: to_plain(view) for name, view in point.config.extraction.readings.items()}
        first = seen.setdefault(json.dumps(whole, sort_keys=True, default=str), point)
        if first is point:
            continue
        if first.label == point.label:
            raise ConfigError(f"the point {point.label} is given twice; give it once.")
        why = "; leave one out."
        if views:
            why = (
                f", as the views {', '.join(views)} set for themselves what they differ in; sweep over a key of one, "
                "as --over views.VIEW.plan=PLAN,PLAN."
            )
        raise ConfigError(f"the points {first.label} and {point.label} read the same{why}")


def _flat_keys(settings: Mapping[str, object]) -> Iterator[str]:
    """Give the keys of settings, of a section those that are in it; heads and options are replaced as a whole."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and SECTIONS.get(key) is False:
            yield from _flat_keys({f"{key}.{name}": part for name, part in value.items()})
        else:
            yield key


def plan_grid(
    config: RunConfig, plans: Sequence[MaskPlan], *, reference: str = "", choose_on: str = "", choose_by: str = "rows"
) -> Grid:
    """Span the grid of a sweep over mask plans; options are those of `make_grid`."""
    if not plans:
        raise ConfigError("no plan was given to sweep over; give at least one.")
    with allow_code([name for plan in plans for name in plan.kind_names if PLACE.fullmatch(name)]):  # read before
        axes = [Axis(PLAN, {plan.text: {PLAN_KEY: plan.text} for plan in plans})]
        return make_grid(config, axes, reference=reference, choose_on=choose_on, choose_by=choose_by)


def _point(config: RunConfig, axes: Mapping[str, Axis], values: Mapping[str, str]) -> Point:
    settings: dict[str, object] = {}
    for name, value in values.items():
        settings |= axes[name].values[value]
    try:
        try:
            return Point(values, set_point(config, settings))
        except DecoderError as error:  # it costs itself alone, as where the decoder cannot be loaded
            rest = fit_poolings(config, _but_shares(settings))
            return Point(values, with_settings(config, rest, SOURCE), first_line(error))
    except IcecoreError as error:
        raise ConfigError(f"the point {label_of(values)} of the sweep: {error}") from error


def _with_checked_heads(point: Point) -> Point:
    try:
        return replace(point, config=point.config.check_heads())
    except IcecoreError as error:
        raise ConfigError(f"the point {point.label} of the sweep: {error}") from error


def set_point(config: RunConfig, settings: Settings) -> RunConfig:
    """Return the configuration of a point: that of the sweep with its keys, shares of the depth filled in."""
    settings = fit_poolings(config, settings)
    if names_shares(settings):
        settings = fill_shares(settings, with_settings(config, _but_shares(settings), SOURCE).decoder)
    return with_settings(config, settings, SOURCE)


def fit_poolings(config: RunConfig, settings: Settings) -> Settings:
    """Name the poolings of a point as its task reads them, by `OF_WORDS`: of words where others pool whole texts.

    Those of words that a point sets beside them are left as they are; poolings that words do not have are refused.
    """
    task = settings.get("task.name", settings.get("task", config.task.name))
    name = str(task.get("name", config.task.name) if isinstance(task, Mapping) else task)
    if name not in TASKS or config.views:
        return settings  # refused later, or each view says what it reads
    reads_words, plain = KINDS[TASKS[name].kind].reads_words, ExtractionSpec()
    key, other = (POOLINGS_KEY, WORDS_KEY) if reads_words else (WORDS_KEY, POOLINGS_KEY)
    names = OF_WORDS if reads_words else {word: pooling for pooling, word in OF_WORDS.items()}
    value: object = settings.get(key)
    if value is None and KINDS[config.task.kind].reads_words != reads_words:  # those of the whole sweep
        spec = config.extraction
        value = spec.poolings if reads_words else spec.words.poolings
        value = None if value in (plain.poolings, plain.words.poolings) else value
    if value is None:
        return settings
    poolings = from_plain(tuple[str, ...], value, key)
    rest = {**settings, POOLINGS_KEY: list(plain.poolings)} if reads_words else settings
    if other in settings:
        return rest
    if set(poolings) <= set(names):
        return {**rest, other: [names[pooling] for pooling in poolings]}
    if not reads_words:
        return settings  # where `first` or `last` of a word says nothing
    raise ConfigError(
        f"{key} is [{', '.join(poolings)}], which pools whole texts, but task {name!r} is one of words; allowed: "
        f"{', '.join(names)}, which words have too, or set {other} beside it."
    )


def _but_shares(settings: Settings) -> Settings:
    return {key: value for key, value in settings.items() if not names_shares(value)}


def read_point(text: str | Mapping[str, str], axes: Mapping[str, Axis]) -> dict[str, str]:
    """Read some values of a point: a mapping, `axis=value,axis=value`, or a value that only one axis has."""
    pairs = text.items() if isinstance(text, Mapping) else _pairs(text, axes)
    point: dict[str, str] = {}
    for name, value in pairs:
        matches = [axis for axis in axes if f".{axis}".endswith(f".{name}")]
        if len(matches) != 1:
            raise unknown_name("axis of the sweep", name, axes)
        if str(value) not in axes[matches[0]].values:
            raise unknown_name(f"value of the axis {name!r}", value, axes[matches[0]].values)
        point[matches[0]] = str(value)
    return point


def _pairs(text: str, axes: Mapping[str, Axis]) -> Iterator[tuple[str, str]]:
    for part in split_values(text, has_names=True):
        name, equals, value = part.partition("=")
        value = value if any(value in axis.values for axis in axes.values()) else value.strip()
        owners = [axis for axis in axes.values() if part in axis.values]
        if len(owners) == 1:
            yield owners[0].name, part
        elif equals:
            yield name.strip(), value
        else:
            raise unknown_name("point", part, [value for axis in axes.values() for value in axis.values])


def grid_of(
    config: RunConfig, over: Sequence[str] = (), *, reference: str = "", choose_on: str = "", choose_by: str = ""
) -> Grid:
    """Read the whole grid of a sweep, from its file and what is typed."""
    if typed := _mapping(config.sweep.get("typed") or {}, "sweep.typed"):  # of a sweep that is run again
        settings = {f"extraction.template.{key}": value for key, value in typed.items()}
        config = replace(with_settings(config, settings, SOURCE), sweep=config.sweep)
    axes, points = read_axes(config, over), list[Mapping[str, str]]()
    listed = config.sweep.get("points", [])
    if listed and not over:
        axes, points = _read_points(listed, {axis.name: axis for axis in axes}, config)
    by_name = {axis.name: axis for axis in axes}
    of_file = config.sweep.get("reference", "")
    if isinstance(of_file, Mapping):  # typed axes may be others
        named = [(_find_axis(str(key), by_name), value) for key, value in of_file.items()]
        of_file = {axis.name: _label_of_value(axis, value) for axis, value in named if axis is not None}
    target = reference or (of_file if isinstance(of_file, dict) else str(of_file))
    chosen_on = choose_on or str(config.sweep.get("choose_on", ""))
    by = choose_by or str(config.sweep.get("choose_by", "rows"))
    return make_grid(config, axes, points=points, reference=target, choose_on=chosen_on, choose_by=by)


def _read_points(
    listed: object, named: Mapping[str, Axis], config: RunConfig
) -> tuple[tuple[Axis, ...], list[Mapping[str, str]]]:
    """Read a list of whole combinations, whose values are named in `over` or are those of keys."""
    if not (isinstance(listed, list) and all(isinstance(point, Mapping) for point in listed)):
        raise ConfigError(f"sweep.points is {str(listed)[:60]!r}; allowed: a list of points, as [{{plan: causal}}].")
    names = list(dict.fromkeys(str(name) for point in listed for name in point))
    read, chosen = list[tuple[str, Axis]](), list[list[str]]()
    for name in names:
        if any(name not in point for point in listed):
            raise ConfigError(f"a point of sweep.points has no {name!r}; give every point a value of every axis.")
        values = [point[name] for point in listed]
        axis = _find_axis(name, named)
        if axis is None:
            unique = list({json.dumps(value): value for value in values}.values())
            axis = _read_axis(name, unique, config)
            labels = dict(zip(map(json.dumps, unique), axis.values, strict=True))
        else:
            labels = {json.dumps(label): label for label in axis.values}
        for value in values:
            if json.dumps(value) not in labels:
                raise unknown_name(f"value of the axis {name!r}", value, axis.values)
        read.append((name, axis))
        chosen.append([labels[json.dumps(value)] for value in values])
    axes = _distinct(read)
    return axes, [dict(zip([axis.name for axis in axes], values, strict=True)) for values in zip(*chosen, strict=True)]
