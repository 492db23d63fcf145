"""The report of a run on a task without fitting."""

from collections.abc import Mapping

from probes.heads.result import HeadResult
from probes.report import table
from probes.report.document import KindReport


def _beside_chance(_: Mapping[str, HeadResult], result: HeadResult, split: str) -> str:
    if "chance" not in result.baselines:
        return ""
    return f"where chance has {table.percent(result.baselines['chance'][split])}"


def zero_shot_report(kind: str) -> KindReport:
    """Make the report of a kind."""
    unit = {"clustering": "texts", "pair-classification": "pairs", "bitext": "pairs", "odd-one-out": "questions"}
    return KindReport(
        columns=(table.HEAD, table.POINT, table.METRIC, *table.SCORES, table.POOLING),
        inputs=lambda task, split: task.inputs_shown(split),
        gold=lambda task, split: task.gold_shown(split),
        units=lambda task, split: task.units(split),
        resampled=lambda task: "groups" if task["has_groups"] else unit.get(kind, "queries"),
        metrics=lambda result: tuple(result.summary[result.reported_split]),
        bare=_beside_chance,
    )
