"""scores.json as typed records: of a run, a sweep, a search and a pretraining. The format is docs/scores_format.md."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from extract.digest import digest_text
from extract.masks.plan import MaskPlan, parse_plan
from probes.heads.result import HeadResult, read_result
from probes.report.score_shapes import check_scores

SCORES_SCHEMA = 3


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
    decoder: Mapping[str, Any]
    task: Mapping[str, Any]
    products: Mapping[str, str] = field(default_factory=dict)
    """What computed float32 products, and the CPU capability it was chosen by."""
    config_sha256: str = ""
    """Of the config.yaml beside it."""
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Poolings, mask kinds and heads that the user added: `module` and `sha256` of their code by noun and name."""

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {"schema": SCORES_SCHEMA, **asdict(self)}


@dataclass(frozen=True)
class RunScores:
    """The scores of a run."""

    header: Header
    cache: Mapping[str, Any]
    heads: Mapping[str, HeadResult]
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    """Layer-wise autoencoders that heads started from; empty where there were none."""
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {
            **self.header.to_dict(),
            "cache": dict(self.cache),
            "pretraining": dict(self.pretraining),
            "heads": {name: result.to_dict() for name, result in self.heads.items()},
            "seconds": dict(self.seconds),
        }


@dataclass(frozen=True)
class PlanScores:
    """The heads of a configuration on one mask plan."""

    plan: MaskPlan
    cache: str
    """File name."""
    certificate: Mapping[str, Any]
    """What was certified of the cache."""
    heads: Mapping[str, HeadResult]
    zero_shot: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For pairs: split to metric to the correlation of the raw cosine at the final norm; else empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        heads = {name: result.to_dict() for name, result in self.heads.items()}
        return {
            "plan": self.plan.text, "cache": self.cache, "certificate": dict(self.certificate),
            "zero_shot": {split: dict(found) for split, found in self.zero_shot.items()}, "heads": heads,
        }  # fmt: skip


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

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {**asdict(self), "gain": self.gain}


@dataclass(frozen=True)
class PlanChoice:
    """The plan chosen for a head."""

    plan: MaskPlan
    result: HeadResult
    """The head on it."""
    gain: PlanGain | None = None
    """None where there is nothing to compare with, or no test."""

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        summary = self.result.to_dict()["summary"]
        gain = {} if self.gain is None else {"gain": self.gain.to_dict()}
        return {"plan": self.plan.text, "chosen": dict(self.result.chosen), "summary": summary, **gain}


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
    cost: Mapping[str, Any] = field(default_factory=dict)
    """Of a sweep: block passes, and what separate extractions would take."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Of a search: strategy, budget, cost and every trial."""

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {
            **self.header.to_dict(),
            **({"cost": dict(self.cost)} if self.cost else {}),
            **({"search": dict(self.search)} if self.search else {}),
            "test_read": self.test_read,
            "plans": [row.to_dict() for row in self.plans],
            "chosen": {name: choice.to_dict() for name, choice in self.chosen.items()},
        }


@dataclass(frozen=True)
class PretrainingScores:
    """The scores of layer-wise autoencoders that were fitted by themselves."""

    header: Header
    cache: Mapping[str, Any]
    pretraining: Mapping[str, Any]
    """Corpus, and per pooling losses and history."""

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {**self.header.to_dict(), "cache": dict(self.cache), "pretraining": dict(self.pretraining)}


def seal_scores(values: Mapping[str, Any]) -> str:
    """Digest the content of scores.json, without the digest that it holds: SHA-256 in hexadecimal digits.

    Example:
        >>> seal_scores({"a": 1, "sha256": "anything"}) == seal_scores({"a": 1})
        True
    """
    rest = json.loads(json.dumps({key: value for key, value in values.items() if key != "sha256"}))
    return digest_text(json.dumps(rest, sort_keys=True))


def read_run(values: Mapping[str, Any]) -> RunScores:
    """Read the scores of a run, without predictions, back from the content of scores.json.

    Raises:
        KeyError: A field is missing.
        TypeError: A field is of the wrong kind.
        ValueError: Another schema, or not the scores of a run.
    """
    if values["schema"] != SCORES_SCHEMA or values["what"] != "run":
        found = f"schema {values['schema']} of a {values.get('what', 'run')}"
        raise ValueError(f"scores.json has {found}; this version reads schema {SCORES_SCHEMA} of a run; run it again")
    check_scores(values)
    heads = {name: read_result(name, each) for name, each in values["heads"].items()}
    return RunScores(_read_header(values), values["cache"], heads, values["pretraining"], values["seconds"])


def read_plans(values: Mapping[str, Any]) -> PlansScores:
    """Read the scores of a sweep or a search back as `read_run` does those of a run; its plans are parsed."""
    check_scores(values)
    plans = tuple(
        PlanScores(
            parse_plan(row["plan"]), row["cache"], row["certificate"],
            {name: read_result(name, each) for name, each in row["heads"].items()}, row["zero_shot"],
        )
        for row in values["plans"]
    )  # fmt: skip
    by_text = {row.plan.text: row for row in plans}
    chosen = {
        name: PlanChoice(
            by_text[each["plan"]].plan, by_text[each["plan"]].heads[name],
            PlanGain(**{key: each["gain"][key] for key in PlanGain.__dataclass_fields__}) if "gain" in each else None,
        )
        for name, each in values["chosen"].items()
    }  # fmt: skip
    return PlansScores(
        _read_header(values), values["test_read"], plans, chosen, values.get("cost", {}), values.get("search", {})
    )


def _read_header(values: Mapping[str, Any]) -> Header:
    before: dict[str, Any] = {"own": {}}  # not in runs of earlier versions
    return Header(**{key: {**before, **values}[key] for key in Header.__dataclass_fields__})
