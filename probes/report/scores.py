"""scores.json as typed records: of a run, a sweep, a search and a pretraining. The format is docs/scores_format.md."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from probes.heads.result import HeadResult, read_result

SCORES_SCHEMA = 3


@dataclass(frozen=True)
class Header:
    """What every scores.json begins with.

    Attributes:
        what: `run`, `sweep`, `search` or `pretraining`.
        kind: Kind of task; empty for a pretraining.
        protocol: The protocol.
        name: Name of the folder.
        command: The command line; empty when run from Python.
        commit: Commit of the checkout; empty when installed from a wheel.
        versions: Package to version.
        products: What computed float32 products, and the CPU capability it was chosen by.
        device: Where heads were fitted.
        n_resamples: Bootstrap resamples behind every interval.
        decoder: The decoder.
        task: The task; empty for a pretraining.
    """

    what: str
    kind: str
    protocol: str
    name: str
    command: str
    commit: str
    versions: Mapping[str, str]
    device: str
    n_resamples: int
    decoder: Mapping[str, Any]
    task: Mapping[str, Any]
    products: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {"schema": SCORES_SCHEMA, **asdict(self)}


@dataclass(frozen=True)
class RunScores:
    """The scores of a run.

    Attributes:
        header: What every scores.json begins with.
        cache: The cache that was read.
        heads: Head to its result.
        pretraining: Layer-wise autoencoders that heads started from; empty where there were none.
        seconds: Durations.
    """

    header: Header
    cache: Mapping[str, Any]
    heads: Mapping[str, HeadResult]
    pretraining: Mapping[str, Any] = field(default_factory=dict)
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
    """The heads of a configuration on one mask plan.

    Attributes:
        plan: The plan's text.
        cache: File name of its cache.
        certificate: What was certified of it.
        heads: Head to its result.
        zero_shot: For pairs: split to metric to the correlation of the raw cosine at the final norm; else empty.
    """

    plan: str
    cache: str
    certificate: Mapping[str, Any]
    heads: Mapping[str, HeadResult]
    zero_shot: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        heads = {name: result.to_dict() for name, result in self.heads.items()}
        return {
            "plan": self.plan, "cache": self.cache, "certificate": dict(self.certificate),
            "zero_shot": {split: dict(found) for split, found in self.zero_shot.items()}, "heads": heads,
        }  # fmt: skip


@dataclass(frozen=True)
class PlanGain:
    """What choosing a plan gained on test.

    Attributes:
        metric: The metric.
        over: The plan one would take without choosing.
        default: Its test score.
        chosen: The test score of the chosen plan.
    """

    metric: str
    over: str
    default: float
    chosen: float

    @property
    def gain(self) -> float:
        """Chosen minus default."""
        return self.chosen - self.default

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {**asdict(self), "gain": self.gain}


@dataclass(frozen=True)
class PlanChoice:
    """The plan chosen for a head.

    Attributes:
        plan: The plan's text.
        result: The head on it.
        gain: What choosing gained; None where there is nothing to compare with, or no test.
    """

    plan: str
    result: HeadResult
    gain: PlanGain | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        summary = self.result.to_dict()["summary"]
        gain = {} if self.gain is None else {"gain": self.gain.to_dict()}
        return {"plan": self.plan, "chosen": dict(self.result.chosen), "summary": summary, **gain}


@dataclass(frozen=True)
class PlansScores:
    """The scores of a sweep or of a search.

    Attributes:
        header: What every scores.json begins with.
        test_read: The plans that test was read for, in words.
        plans: Every plan that was scored on all rows.
        chosen: Head to the plan chosen for it.
        cost: Of a sweep: block passes, and what separate extractions would take.
        search: Of a search: strategy, budget, cost and every trial.
    """

    header: Header
    test_read: str
    plans: tuple[PlanScores, ...]
    chosen: Mapping[str, PlanChoice]
    cost: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)

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
    """The scores of layer-wise autoencoders that were fitted by themselves.

    Attributes:
        header: What every scores.json begins with.
        cache: The cache that was read.
        pretraining: Corpus, and per pooling losses and history.
    """

    header: Header
    cache: Mapping[str, Any]
    pretraining: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the serial form."""
        return {**self.header.to_dict(), "cache": dict(self.cache), "pretraining": dict(self.pretraining)}


def read_run(values: Mapping[str, Any]) -> RunScores:
    """Read the scores of a run back from their serial form.

    Args:
        values: The content of scores.json.

    Returns:
        The scores, without predictions.

    Raises:
        KeyError: A field is missing.
        TypeError: A field is of the wrong kind.
        ValueError: Another schema, or not the scores of a run.
    """
    if values["schema"] != SCORES_SCHEMA or values["what"] != "run":
        found = f"schema {values['schema']} of a {values.get('what', 'run')}"
        raise ValueError(f"scores.json has {found}; this version reads schema {SCORES_SCHEMA} of a run; run it again")
    header = Header(**{key: values[key] for key in Header.__dataclass_fields__})
    heads = {name: read_result(name, each) for name, each in values["heads"].items()}
    return RunScores(header, values["cache"], heads, values["pretraining"], values["seconds"])
