"""The report of a run on a task without fitting."""

from collections.abc import Mapping, Sequence
from typing import Any

from probes.heads.result import HeadResult
from probes.report import table
from probes.report.document import KindReport


def _inputs(task: Any, split: str) -> dict[str, Sequence[Any]]:
    rows = task.rows(split)
    columns = ("id", *task.text_columns) if "id" in task.columns else task.text_columns
    found = {"row": range(len(rows)), **{column: list(rows[column]) for column in columns}}
    if task.kind == "odd-one-out":
        found["sentences"] = [
            " | ".join(f"{one.text[:a]}[{one.text[a:b]}]{one.text[b:]}" for one in question for a, b in one.spans)
            for question in task.marked(split)
        ]
    return found


def _gold(task: Any, split: str) -> list[Any]:
    """Give what a perfect head predicts: a name, 1 or 0 for pairs, or a score of 1."""
    rows = task.rows(split)
    if task.kind == "clustering":
        return list(rows["label"])
    if task.kind == "pair-classification":
        return list(rows["label"])
    if task.kind == "odd-one-out":
        return [f"sentence {answer + 1}" for answer in task.answers(split)]
    return [1.0] * len(rows)


def _over_chance(_: Mapping[str, HeadResult], result: HeadResult, split: str) -> str:
    if "chance" not in result.baselines:
        return ""
    return table.over(result.mean(split), "chance", result.baselines["chance"][split])


def zero_shot_report(kind: str) -> KindReport:
    """Make the report of a kind."""
    unit = {"clustering": "texts", "pair-classification": "pairs", "bitext": "pairs", "odd-one-out": "questions"}
    return KindReport(
        columns=(table.HEAD, table.POINT, table.METRIC, *table.SCORES, table.POOLING),
        inputs=_inputs,
        gold=_gold,
        units=lambda task, split: task.groups(split),
        resampled=lambda task: "groups" if task["has_groups"] else unit.get(kind, "queries"),
        metrics=lambda result: tuple(result.summary[result.reported_split]),
        bare=_over_chance,
    )
