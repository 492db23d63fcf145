"""scores.json as typed records: of a run, a sweep, a search and a pretraining. The format is docs/scores_format.md."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from extract.files import digest_text
from extract.masks.mask_plan import MaskPlan, parse_plan
from extract.records import to_plain
from probes.heads.result import HeadResult, read_result
from probes.report.score_shapes import check_scores

SCORES_SCHEMA = 3
Values = Mapping[str, Any]
"""Plain values by name, as JSON holds them."""


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
    decoder: Values
    task: Values
    products: Mapping[str, str] = field(default_factory=dict)
    """What computed float32 products, and the CPU capability it was chosen by."""
    config_sha256: str = ""
    """Of the config.yaml beside it."""
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Poolings, mask kinds and heads that the user added: `module` and `sha256` of their code by noun and name."""

    def to_dict(self) -> Values:
        """Return the serial form."""
        return {"schema": SCORES_SCHEMA, **to_plain(self)}


@dataclass(frozen=True)
class RunScores:
    """The scores of a run."""

    header: Header
    cache: Values
    heads: Mapping[str, HeadResult]
    pretraining: Values = field(default_factory=dict)
    """Layer-wise autoencoders that heads started from; empty where there were none."""
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> Values:
        """Return the serial form."""
        heads = {name: result.to_dict() for name, result in self.heads.items()}
        values = {"cache": self.cache, "pretraining": self.pretraining, "heads": heads, "seconds": self.seconds}
        return {**self.header.to_dict(), **to_plain(values)}


@dataclass(frozen=True)
class PlanScores:
    """The heads of a configuration on one mask plan."""

    plan: MaskPlan
    cache: str
    """File name."""
    certificate: Values
    """What was certified of the cache."""
    heads: Mapping[str, HeadResult]
    zero_shot: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For pairs: split to metric to the correlation of the raw cosine at the final norm; else empty."""

    def to_dict(self) -> Values:
        """Return the serial form."""
        heads = {name: result.to_dict() for name, result in self.heads.items()}
        certified = {"cache": self.cache, "certificate": self.certificate, "zero_shot": self.zero_shot}
        return {"plan": self.plan.text, **to_plain(certified), "heads": heads}


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

    def to_dict(self) -> Values:
        """Return the serial form."""
        return {**to_plain(self), "gain": self.gain}


@dataclass(frozen=True)
class PlanChoice:
    """The plan chosen for a head."""

    plan: MaskPlan
    result: HeadResult
    """The head on it."""
    gain: PlanGain | None = None
    """None where there is nothing to compare with, or no test."""

    def to_dict(self) -> Values:
        """Return the serial form."""
        summary = self.result.to_dict()["summary"]
        gain = {} if self.gain is None else {"gain": self.gain.to_dict()}
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
    n_texts: int
    cost: int
    full_cost: int
    """Of all plans on all texts."""
    share: float
    """`cost` of `full_cost`."""
    trials: tuple[SearchTrial, ...]


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

    def to_dict(self) -> Values:
        """Return the serial form."""
        return {
            **self.header.to_dict(),
            **({"cost": to_plain(self.cost)} if self.cost else {}),
            **({"search": to_plain(self.search)} if self.search else {}),
            "test_read": self.test_read,
            "plans": [row.to_dict() for row in self.plans],
            "chosen": {name: choice.to_dict() for name, choice in self.chosen.items()},
        }


@dataclass(frozen=True)
class PretrainingScores:
    """The scores of layer-wise autoencoders that were fitted by themselves."""

    header: Header
    cache: Values
    pretraining: Values
    """Corpus, and per pooling losses and history."""

    def to_dict(self) -> Values:
        """Return the serial form."""
        return {**self.header.to_dict(), **to_plain({"cache": self.cache, "pretraining": self.pretraining})}


def seal_scores(values: Values) -> str:
    """Digest the content of scores.json, without the digest that it holds: SHA-256 in hexadecimal digits.

    Example:
        >>> seal_scores({"a": 1, "sha256": "anything"}) == seal_scores({"a": 1})
        True
    """
    rest = json.loads(json.dumps({key: value for key, value in values.items() if key != "sha256"}))
    return digest_text(json.dumps(rest, sort_keys=True))


def read_run(values: Values) -> RunScores:
    """Read the scores of a run, without predictions, back from the content of scores.json."""
    if values["schema"] != SCORES_SCHEMA or values["what"] != "run":
        raise ValueError(
            f"scores.json has schema {values['schema']} of a {values.get('what', 'run')}; this version reads schema "
            f"{SCORES_SCHEMA} of a run; run it again"
        )
    check_scores(values)
    heads = _read_heads(values["heads"])
    return RunScores(_read_header(values), values["cache"], heads, values["pretraining"], values["seconds"])


def read_plans(values: Values) -> PlansScores:
    """Read the scores of a sweep or a search back as `read_run` does those of a run; its plans are parsed."""
    check_scores(values)
    plans = [
        PlanScores(
            parse_plan(row["plan"]), row["cache"], row["certificate"], _read_heads(row["heads"]), row["zero_shot"]
        )
        for row in values["plans"]
    ]
    by_text = {row.plan.text: row for row in plans}
    chosen = {}
    for name, choice in values["chosen"].items():
        row = by_text[choice["plan"]]
        gain = {key: value for key, value in choice.get("gain", {}).items() if key != "gain"}
        chosen[name] = PlanChoice(row.plan, row.heads[name], PlanGain(**gain) if gain else None)
    cost = SweepCost(**values["cost"]) if "cost" in values else None
    search = _read_search(values["search"]) if "search" in values else None
    return PlansScores(_read_header(values), values["test_read"], tuple(plans), chosen, cost, search)


def _read_heads(values: Values) -> dict[str, HeadResult]:
    return {name: read_result(name, result) for name, result in values.items()}


def _read_search(values: Values) -> SearchCost:
    trials = [
        SearchTrial(**{**trial, "scores": {plan: math.nan if v is None else v for plan, v in trial["scores"].items()}})
        for trial in values["trials"]
    ]
    return SearchCost(**{**values, "trials": tuple(trials)})


def _read_header(values: Values) -> Header:
    earlier: dict[str, Any] = {"own": {}}  # not in runs of earlier versions
    return Header(**{key: {**earlier, **values}[key] for key in Header.__dataclass_fields__})


def tidy_rows(result: HeadResult) -> Iterator[dict[str, Any]]:
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
