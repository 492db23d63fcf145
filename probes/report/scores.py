"""scores.json as typed records: of a run, a sweep, a search and a pretraining. The format is docs/scores_format.md.

The file may come from anybody: it is read by the annotations below, and a field of the wrong kind is refused.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, Required, TypedDict

from extract.files import digest_text
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.records import from_json, to_plain
from probes.heads.result import Curve, HeadResult
from probes.metrics.bootstrap import SeedSummary
from probes.metrics.significance import FEW_UNITS

SCORES_SCHEMA = 3
Plain = Mapping[str, object]
"""Plain values by name, as JSON holds them."""
UNREAD: Plain = {"command": "", "commit": "", "versions": {}, "device": "", "n_resamples": 0}
"""Fields of a header that tables of results do without."""


class DecoderInfo(TypedDict, total=False):
    """The decoder of a run, as `DecoderDescription` writes it."""

    name: Required[str]
    n_layers: int
    width: int
    family: str
    dtype: str
    weight_digest: str
    revision: str | None


class TaskRecord(TypedDict, total=False):
    """The task of a run; the fields after `notes` depend on its kind."""

    kind: str
    name: Required[str]
    source: str
    is_sample: bool
    metrics: Sequence[str]
    n_rows: Mapping[str, int]
    digest: str
    notes: Sequence[str]
    score_range: Sequence[float]
    n_pairs: Mapping[str, int]
    licence: str
    n_classes: int
    class_names: Sequence[str]
    shared_rows: Mapping[str, str]
    """Split to what to say of rows of it that share a text."""
    has_groups: bool
    tags: Sequence[str]
    has_documents: bool
    resampled: Mapping[str, str]
    """Split to what intervals draw."""
    n_sentences: Mapping[str, int]
    n_words: Mapping[str, int]
    words_in_cache: Mapping[str, int]


class ViewInfo(TypedDict):
    """One of the views that a run read as its cache."""

    plan: str
    template: Plain
    pooling: str
    n_tokens: int
    """Of all texts, which is what the view costs."""


class CacheInfo(TypedDict, total=False):
    """The cache that a run read."""

    file: str
    id: str
    plan: Required[str]
    template: Plain
    poolings: Sequence[str]
    storage_dtype: str
    n_rows: int
    n_truncated: int
    certificate: Plain
    views: Mapping[str, ViewInfo]


def plans_read(cache: CacheInfo, pooling: str) -> list[str]:
    """List the plans of the views that a head with a pooling reads, or the one plan of a cache without views."""
    views = cache.get("views", {})
    read = [name for name in pooling.split("+") if name in views] or list(views)
    return list(dict.fromkeys(views[name]["plan"] for name in read)) or [cache["plan"]]


class AutoencoderInfo(TypedDict, total=False):
    """The autoencoders of a pooling; lists are over its layers."""

    layers: Sequence[str]
    codes: Sequence[int]
    best_epochs: Sequence[int]
    held_out_losses: Sequence[float]
    held_out_squared_errors: Sequence[float]
    standardises_latents: bool
    history: Sequence[Mapping[str, float]]
    n_texts: Mapping[str, int]


class PretrainingInfo(TypedDict, total=False):
    """Autoencoders that heads started from."""

    corpus: Plain
    cache: Plain
    autoencoders: Mapping[str, AutoencoderInfo]
    """By pooling."""


class ChosenView(TypedDict):
    """What was chosen for one of the views that a head reads together."""

    layer: str
    kind: str


class Chosen(TypedDict, total=False):
    """What was chosen for a head."""

    layer: str
    kind: str
    C: float
    decoding: str
    threshold: float
    alpha: float
    score: float
    views: Sequence[ChosenView]


class SeedInfo(TypedDict, total=False):
    """One seed of a head."""

    seed: Required[int]
    best_epoch: int
    seconds: float
    history: Sequence[Mapping[str, float | None]]
    scores: Mapping[str, Mapping[str, float]]
    identical_similarity: float | None


class Counted(TypedDict):
    """What begins with a number of rows."""

    n: int


class ResidualInfo(Counted):
    """Residuals of a split, by `Residuals.to_dict`."""

    quarters: NotRequired[Mapping[str, Sequence[Mapping[str, float | None]]]]


class Extras(TypedDict, total=False):
    """What only some heads have."""

    subsets: Mapping[str, Counted]
    residuals: Mapping[str, ResidualInfo]


class HeadInfo(TypedDict):
    """The serial form of a `HeadResult`, by its fields."""

    pooling: str
    layers: tuple[str, ...]
    options: Plain
    metric: str
    selection: str
    selection_score: float
    chosen: Chosen
    summary: Mapping[str, Mapping[str, SeedSummary]]
    curves: tuple[Curve, ...]
    seeds: tuple[SeedInfo, ...]
    baselines: Mapping[str, Mapping[str, float]]
    optimistic_because: str
    departures: tuple[str, ...]
    extras: Extras


@dataclass(frozen=True)
class Lead:
    """The lead of a head over a baseline on the same rows."""

    value: float
    low: float
    """Lower end of the paired interval."""
    high: float
    n_units: int
    """Units that were resampled."""


@dataclass(frozen=True)
class BaselineScores:
    """What a baseline scores on the rows of a run."""

    note: str
    """How it predicts and what it is fitted on, in a clause."""
    summary: Mapping[str, Mapping[str, SeedSummary]]
    """Split to metric to score, of validation and test."""
    leads: Mapping[str, Lead]
    """Head to its lead over the baseline on the split that it reports, with the paired interval."""

    def result(self, name: str) -> HeadResult:
        """Return it as the result of a head without layers, for tables."""
        metric = next(iter(next(iter(self.summary.values()))))
        score = next(iter(self.summary.values()))[metric].mean
        return HeadResult(f"{name} (baseline)", "-", (), {}, metric, "validation", score, {}, self.summary)


class RunInfo(TypedDict):
    """The content of scores.json of a run after its header."""

    cache: CacheInfo
    heads: Mapping[str, Plain]
    pretraining: NotRequired[PretrainingInfo]
    seconds: NotRequired[Mapping[str, float]]


class PlanInfo(TypedDict):
    """A plan of a sweep or a search."""

    plan: str
    cache: NotRequired[str]
    certificate: NotRequired[Plain]
    zero_shot: NotRequired[Mapping[str, Mapping[str, float]]]
    heads: Mapping[str, Plain]
    point: NotRequired[Mapping[str, str]]
    task: NotRequired[str]
    decoder: NotRequired[DecoderInfo]
    n_tokens: NotRequired[int]


@dataclass(frozen=True)
class Header:
    """What every scores.json begins with."""

    what: str
    """`run`, `sweep`, `search` or `pretraining`."""
    kind: str
    """Kind of task; empty for a pretraining, as is `task`."""
    protocol: str
    name: str
    """Name of the folder."""
    command: str
    """The command line; empty when run from Python."""
    commit: str
    """Commit of the checkout; empty when installed from a wheel."""
    versions: Mapping[str, str]
    device: str
    """Where heads were fitted."""
    n_resamples: int
    """Bootstrap resamples behind every interval."""
    decoder: DecoderInfo
    task: TaskRecord
    products: Mapping[str, str] = field(default_factory=dict)
    """What computed float32 products, and the CPU capability it was chosen by."""
    config_sha256: str = ""
    """Of the config.yaml beside it."""
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Poolings, mask kinds and heads that the user added: `module` and `sha256` of their code by noun and name."""

    def to_dict(self) -> Plain:
        """Return the serial form."""
        return {"schema": SCORES_SCHEMA, **to_plain(self)}


@dataclass(frozen=True)
class RunScores:
    """The scores of a run."""

    header: Header
    cache: CacheInfo
    heads: Mapping[str, HeadResult]
    pretraining: PretrainingInfo = field(default_factory=PretrainingInfo)
    """Layer-wise autoencoders that heads started from; empty where there were none."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, BaselineScores] = field(default_factory=dict)
    """By name; empty where the kind of task has none, and in runs of earlier versions."""
    over_cosine: Mapping[str, Lead] = field(default_factory=dict)
    """Head on pairs to its lead over the cosine of the top layer of latents prepared as its own; empty without
    `layer-cosine`, and in runs of earlier versions."""

    def to_dict(self) -> Plain:
        """Return the serial form."""
        heads = {name: result.to_dict() for name, result in self.heads.items()}
        values = {"cache": self.cache, "pretraining": self.pretraining, "heads": heads, "seconds": self.seconds}
        over_cosine = {"over_cosine": to_plain(self.over_cosine)} if self.over_cosine else {}
        return {**self.header.to_dict(), **to_plain(values), **_baselines(self.baselines), **over_cosine}


def _baselines(baselines: Mapping[str, BaselineScores]) -> Plain:
    """Write baselines, where there are any."""
    return {"baselines": to_plain(baselines)} if baselines else {}


@dataclass(frozen=True)
class PlanScores:
    """The heads of a configuration on one mask plan."""

    plan: MaskPlan
    cache: str
    """File name."""
    certificate: Plain
    """What was certified of the cache."""
    heads: Mapping[str, HeadResult]
    zero_shot: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For pairs: split to metric to the correlation of the raw cosine at the final norm; else empty."""
    point: Mapping[str, str] = field(default_factory=dict)
    """Axis to the name of its value; empty in a sweep over plans alone."""
    task: str = ""
    """Name of its task in a sweep over axes."""
    decoder: DecoderInfo | None = None
    """Its decoder in a sweep over axes."""
    n_tokens: int = 0
    """What the decoder reads of all texts in a sweep over axes, as if for this point alone; 0 in earlier versions."""

    @property
    def label(self) -> str:
        """The values of the axes, or else the plan."""
        return label_of(self.point) or self.plan.text

    def to_dict(self) -> Plain:
        """Return the serial form."""
        heads = {name: result.to_dict() for name, result in self.heads.items()}
        certified: Plain = {"cache": self.cache, "certificate": self.certificate, "zero_shot": self.zero_shot}
        where: Plain = {}
        if self.point:
            where = {"point": self.point, "task": self.task, "decoder": self.decoder, "n_tokens": self.n_tokens}
        return {"plan": self.plan.text, **to_plain(where), **to_plain(certified), "heads": heads}


def label_of(point: Mapping[str, str]) -> str:
    """Write a point of a sweep as text.

    Example:
        >>> label_of({"plan": "causal", "encoder": "echo"})
        'plan=causal, encoder=echo'
        >>> label_of({"instruction": "Read: "})
        "instruction='Read: '"
    """
    return ", ".join(f"{axis}={_quoted(value)}" for axis, value in point.items())


def _quoted(value: str) -> str:
    return repr(value) if value != value.strip() or "," in value else value


@dataclass(frozen=True)
class Ties:
    """The points that validation does not tell from the chosen one."""

    points: tuple[str, ...]
    """Their labels."""
    n_compared: int
    """Points that were compared with it."""


LEVEL = 0.05
"""Corrected p-values below it tell points of a sweep apart."""


@dataclass(frozen=True)
class PointGap:
    """What a head scores at one point of a sweep above the reference, on the same rows."""

    point: Mapping[str, str]
    head: str
    """The head's name in `chosen`."""
    split: str
    value: float
    low: float
    """Lower end of the paired interval."""
    high: float
    p_value: float
    """Of the paired bootstrap."""
    p_corrected: float
    """Corrected by Holm over the points of this head and task, after a search by Bonferroni over all its points."""
    n_units: int

    @property
    def is_certain(self) -> bool:
        """Whether enough units tell the two apart."""
        return self.p_corrected < LEVEL and self.n_units >= FEW_UNITS


@dataclass(frozen=True)
class PartGain:
    """What a chosen point has above the reference on one task, or on the rows of one source."""

    name: str
    point: Mapping[str, str]
    """The point that is compared."""
    metric: str
    split: str
    chosen: float
    """Its score."""
    reference: float
    value: float
    """The gain."""
    low: float
    high: float
    rank: float
    """Normalised rank of the point among all on this part, 0 the best; NaN where ranks were not taken."""
    n_units: int
    is_chosen_on: bool = False
    """Whether this task is the one that the point was chosen on."""

    @property
    def counts(self) -> bool:
        """Whether it is part of the mean: it has a gain, and did not choose the point."""
        return math.isfinite(self.value) and not self.is_chosen_on


@dataclass(frozen=True)
class Transfer:
    """Whether the gain of a choice is seen on more than one task, or source of rows."""

    head: str
    """The head's name in `chosen`."""
    over: str
    """What the parts are: `tasks`, `sources`, or `sources, each left out of the choice`."""
    chosen_on: str
    """Where the point was chosen, in words."""
    parts: tuple[PartGain, ...]
    value: float
    """Mean gain over the parts that count, those that did not choose the point."""
    low: float
    """Lower end of its Student interval, which reflects the draw of parts as well as of rows; NaN for one part."""
    high: float
    spread: float
    """Standard deviation of these gains."""


@dataclass(frozen=True)
class SourceCurve:
    """The layers of a head that needs no training, at one point, on the validation rows of one source."""

    point: Mapping[str, str]
    head: str
    """The head's name in `chosen`."""
    source: str
    metric: str
    layers: tuple[str, ...]
    values: tuple[float, ...]
    """The best of the head's values at each layer."""
    n_rows: int


@dataclass(frozen=True)
class FailedPoint:
    """A point of a sweep that could not be computed."""

    point: Mapping[str, str]
    why: str


@dataclass(frozen=True)
class PlanGain:
    """What choosing a plan gained on test."""

    metric: str
    over: str
    """The plan one would take without choosing."""
    default: float
    """Its test score."""
    chosen: float
    """The test score of the chosen plan."""

    @property
    def gain(self) -> float:
        """Chosen minus default."""
        return self.chosen - self.default


@dataclass(frozen=True)
class PlanChoice:
    """The plan chosen for a head."""

    plan: MaskPlan
    result: HeadResult
    """The head on it."""
    gain: PlanGain | None = None
    """None where there is nothing to compare with, or no test."""
    lead: Lead | None = None
    """The gain with its paired interval; None without a gain, for the default plan itself, and in earlier versions."""
    point: Mapping[str, str] = field(default_factory=dict)
    """The chosen point; empty in a sweep over plans alone."""

    def to_dict(self) -> Plain:
        """Return the serial form."""
        summary = self.result.to_dict()["summary"]
        gain: dict[str, object] = {} if self.gain is None else {"gain": {**to_plain(self.gain), "gain": self.gain.gain}}
        gain |= {} if self.lead is None else {"lead": to_plain(self.lead)}
        gain |= {"point": to_plain(self.point), "head": self.result.name} if self.point else {}
        return {"plan": self.plan.text, "chosen": dict(self.result.chosen), "summary": summary, **gain}


@dataclass(frozen=True)
class SweepCost:
    """What a sweep cost, in blocks that a batch passes."""

    block_passes: int
    apart: int
    """Of separate extractions of all plans."""
    ratio: float


@dataclass(frozen=True)
class SearchTrial:
    """Plans that a search scored on the same rows."""

    n_rows: int
    """Of each split, at most."""
    n_texts: int
    cost: int
    """Block passes times texts."""
    scores: Mapping[str, float]
    """By plan."""


@dataclass(frozen=True)
class SearchCost:
    """What a search tried and what it cost, in block passes times texts of train and validation."""

    strategy: str
    budget: float
    by: str
    """The head that scored."""
    n_plans: int
    """Points that could be computed, among which it searched."""
    n_texts: int
    cost: int
    full_cost: int
    """Of all plans on all texts."""
    share: float
    """`cost` of `full_cost`."""
    trials: tuple[SearchTrial, ...]
    n_asked: int = 0
    """Points of the grid, those included that failed before anything was computed; 0 in an early record."""


@dataclass(frozen=True)
class GridScores:
    """What a sweep has beside its points."""

    axes: tuple[str, ...]
    """Names of the axes, in order."""
    reference: Mapping[str, str]
    """The point that others are compared with."""
    gaps: tuple[PointGap, ...] = ()
    """Every point against the reference: on test where it was read for all, else on validation."""
    failed: tuple[FailedPoint, ...] = ()
    task_axis: str = ""
    """The axis along which the task changes; a choice holds for all its values."""
    transfers: tuple[Transfer, ...] = ()
    """Gains of the choices over tasks, and over the sources of rows."""
    source_curves: tuple[SourceCurve, ...] = ()
    """Of the choices and the reference, where rows name their source."""
    choose_by: str = "rows"
    """What counted alike where points were chosen: every row, or every source of rows (`sources`)."""
    by_source: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """With `sources`, by head and label of a point: its mean score over the sources of validation, which decided."""
    tied: Mapping[str, Ties] = field(default_factory=dict)
    """By head, where validation alone decides and has rows: the points that it does not tell from the chosen one."""


@dataclass(frozen=True)
class PlansScores:
    """The scores of a sweep or of a search."""

    header: Header
    test_read: str
    """The plans that test was read for, in words."""
    plans: tuple[PlanScores, ...]
    """Every plan that was scored on all rows."""
    chosen: Mapping[str, PlanChoice]
    """By head."""
    cost: SweepCost | None = None
    """Of a sweep."""
    search: SearchCost | None = None
    """Of a search."""
    baselines: Mapping[str, BaselineScores] = field(default_factory=dict)
    """As those of a run; leads are of the heads on their chosen plans."""
    grid: GridScores | None = None
    """What a sweep has beside its points; None for a search over plans alone."""
    failed: tuple[FailedPoint, ...] = ()
    """Points that failed where there is no `grid`."""

    def to_dict(self) -> Plain:
        """Return the serial form."""
        return {
            **self.header.to_dict(),
            **({"grid": to_plain(self.grid)} if self.grid else {}),
            **({"cost": to_plain(self.cost)} if self.cost else {}),
            **({"search": to_plain(self.search)} if self.search else {}),
            **({"failed": to_plain(self.failed)} if self.failed else {}),
            "test_read": self.test_read,
            "plans": [row.to_dict() for row in self.plans],
            "chosen": {name: choice.to_dict() for name, choice in self.chosen.items()},
            **_baselines(self.baselines),
        }


@dataclass(frozen=True)
class PretrainingScores:
    """The scores of layer-wise autoencoders that were fitted by themselves."""

    header: Header
    cache: CacheInfo
    pretraining: PretrainingInfo
    """Corpus, and per pooling losses and history."""

    def to_dict(self) -> Plain:
        """Return the serial form."""
        return {**self.header.to_dict(), **to_plain({"cache": self.cache, "pretraining": self.pretraining})}


class ChoiceInfo(TypedDict):
    """The plan chosen for a head, whose scores are those of the plan."""

    plan: str
    gain: NotRequired[PlanGain]
    lead: NotRequired[Lead]
    point: NotRequired[Mapping[str, str]]
    head: NotRequired[str]


class PlansInfo(TypedDict):
    """The content of scores.json of a sweep or a search after its header."""

    test_read: NotRequired[str]
    plans: Sequence[PlanInfo]
    chosen: NotRequired[Mapping[str, ChoiceInfo]]
    cost: NotRequired[SweepCost]
    search: NotRequired[SearchCost]
    grid: NotRequired[GridScores]
    failed: NotRequired[tuple[FailedPoint, ...]]


def sealed_scores(values: Plain) -> Plain:
    """Return the content of scores.json as it is read back, null where a number is missing, with its digest."""
    plain = json.loads(json.dumps(without_nan(values)))
    return {**plain, "sha256": seal_scores(plain)}


def seal_scores(values: Plain) -> str:
    """Digest the content of scores.json as it is read, without the digest in it: SHA-256 in hexadecimal digits.

    Example:
        >>> seal_scores({"a": 1, "sha256": "anything"}) == seal_scores({"a": 1})
        True
    """
    return digest_text(json.dumps({key: value for key, value in values.items() if key != "sha256"}, sort_keys=True))


def check_scores(values: Plain) -> None:
    """Check the content of scores.json of a run, sweep or search, of this schema."""
    from_json(Header, {**UNREAD, **values})
    read_baselines(values)
    if values["what"] == "run":
        run: RunInfo = from_json(RunInfo, values)
        _read_heads("heads", run["heads"])
    else:
        plans: PlansInfo = from_json(PlansInfo, values)
        for number, row in enumerate(plans["plans"]):
            _read_heads(f"plans[{number}].heads", row["heads"])


def read_run(values: Plain) -> RunScores:
    """Read the scores of a run, without predictions, back from the content of scores.json."""
    if values["schema"] != SCORES_SCHEMA or values["what"] != "run":
        raise ValueError(
            f"scores.json has schema {values['schema']} of a {values.get('what', 'run')}; this version reads schema "
            f"{SCORES_SCHEMA} of a run; run it again"
        )
    run: RunInfo = from_json(RunInfo, values)
    heads = _read_heads("heads", run["heads"])
    return RunScores(
        from_json(Header, values),
        run["cache"],
        heads,
        run["pretraining"],
        run["seconds"],
        read_baselines(values),
        from_json(Mapping[str, Lead], values.get("over_cosine", {}), "over_cosine"),
    )


def read_plans(values: Plain) -> PlansScores:
    """Read the scores of a sweep or a search back as `read_run` does those of a run; its plans are parsed."""
    record: PlansInfo = from_json(PlansInfo, values)
    plans = []
    for number, row in enumerate(record["plans"]):
        heads = _read_heads(f"plans[{number}].heads", row["heads"])
        plan = PlanScores(parse_plan(row["plan"]), row["cache"], row["certificate"], heads, row["zero_shot"])
        point, task, decoder = row.get("point", {}), row.get("task", ""), row.get("decoder")
        plans.append(replace(plan, point=point, task=task, decoder=decoder, n_tokens=row.get("n_tokens", 0)))
    by_label = {row.label: row for row in plans}
    chosen = {}
    for name, choice in record["chosen"].items():
        point = choice.get("point", {})
        best = by_label[label_of(point) or choice["plan"]]
        result = best.heads[choice.get("head", name)]
        chosen[name] = PlanChoice(best.plan, result, choice.get("gain"), choice.get("lead"), point)
    header: Header = from_json(Header, values)
    costs = record.get("cost"), record.get("search")
    grid, failed = record.get("grid"), record.get("failed", ())
    return PlansScores(header, record["test_read"], tuple(plans), chosen, *costs, read_baselines(values), grid, failed)


def read_baselines(values: Plain) -> Mapping[str, BaselineScores]:
    """Read the baselines of a run, sweep or search back; none where there are none."""
    hint = Mapping[str, BaselineScores]
    baselines: Mapping[str, BaselineScores] = from_json(hint, values.get("baselines", {}), "baselines")
    for name, scores in baselines.items():
        if not scores.summary or not all(scores.summary.values()):
            raise ValueError(f"`baselines.{name}.summary` has no score")
    return baselines


def _read_heads(where: str, heads: Mapping[str, Plain]) -> dict[str, HeadResult]:
    if not heads:
        raise ValueError(f"`{where}` has no head")
    return {name: read_result(name, values, f"{where}.{name}") for name, values in heads.items()}


def read_result(name: str, values: Plain, where: str = "") -> HeadResult:
    """Read the result of a head back from its serial form, without predictions; its parts have to fit each other."""
    head: HeadInfo = from_json(HeadInfo, values, where)
    n_layers = len(head["layers"])
    for number, curve in enumerate(head["curves"]):
        lists = [curve.values, *([curve.spread] if curve.spread else []), *curve.by_seed]
        if any(len(scores) != n_layers for scores in lists):
            raise ValueError(f"`{where}.curves[{number}]` has not a score for each of {n_layers} layers")
    for split, scores in head["summary"].items():
        if head["metric"] not in scores:
            raise ValueError(f"`{where}.summary.{split}` has no {head['metric']!r}, by which the head was chosen")
    read = {*head["layers"], *(name.rpartition("/")[2] for name in head["layers"])}
    chosen = {f"views[{k}].layer": view["layer"] for k, view in enumerate(head["chosen"].get("views", ()))}
    if (layer := head["chosen"].get("layer")) is not None:  # of several poolings the channel, or its layer
        chosen["layer"] = layer
    for key, one in chosen.items():
        if one not in read:
            known = ", ".join(head["layers"])
            raise ValueError(f"`{where}.chosen.{key}` is {one!r}, which the head does not read; its layers are {known}")
    fields_of_head: Any = {key: value for key, value in head.items() if key in HeadInfo.__annotations__}
    return HeadResult(name, **fields_of_head)


NUMBER_COLUMNS = ("record", "layer", "curve", "split", "metric", "seed", "value", "std", "low", "high")
"""Columns of `tidy_rows` and `baseline_rows`."""


def baseline_rows(baselines: Mapping[str, BaselineScores]) -> Iterator[dict[str, object]]:
    """Give the rows of `icecore.results` for baselines, without the columns that say what they are of."""
    for name, scores in baselines.items():
        for split, metrics in scores.summary.items():
            for metric, summary in metrics.items():
                intervals = {"value": summary.mean, "low": summary.low, "high": summary.high}
                yield {"record": "baseline", "curve": name, "split": split, "metric": metric, **intervals}


def tidy_rows(result: HeadResult) -> Iterator[dict[str, object]]:
    """Give the rows of `icecore.results` for one head, without the columns that say what it is of."""
    layer = result.chosen.get("layer")
    numbers = [seed["seed"] for seed in result.seeds]
    for split, metrics in result.summary.items():
        for metric, summary in metrics.items():
            where = {"layer": layer, "split": split, "metric": metric}
            intervals = {"value": summary.mean, "std": summary.std, "low": summary.low, "high": summary.high}
            yield {"record": "score", **where, **intervals}
            if len(summary.values) == len(numbers) > 1:
                for seed, value in zip(numbers, summary.values, strict=True):
                    yield {"record": "seed", **where, "seed": seed, "value": value}
    for curve in result.curves:
        spread = curve.spread or (None,) * len(curve.values)
        for name, value, std in zip(result.layers, curve.values, spread, strict=True):
            where = {"layer": name, "curve": curve.name, "split": curve.split, "metric": curve.metric}
            yield {"record": "curve", **where, "value": value, "std": std}
    for name, by_split in result.baselines.items():
        for split, value in by_split.items():
            yield {"record": "baseline", "curve": name, "split": split, "metric": result.metric, "value": value}


def without_nan(value: Any) -> Any:
    """Put null where a number is missing: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
