"""The report of a run on texts with one number each."""

from collections.abc import Iterator
from typing import Any

from probes.heads.result import HeadResult
from probes.report import table
from probes.report.blocks import Block, Heading, Table
from probes.report.document import Context, KindReport, text_inputs


def _errors(context: Context) -> Iterator[Block]:
    rows = []
    for name, result, errors in context.with_extra("rmse"):
        split = result.reported_split
        of_probe, of_mean = (table.number(errors[split][key], 3) for key in ("probe", "mean_of_train"))
        rows.append((name, split, of_probe, of_mean))
    if not rows:
        return
    yield Heading("Errors")
    yield "Root mean square error in the units of the gold, and that of always predicting the mean of train."
    yield Table(("head", "split", "RMSE", "RMSE of the mean of train"), rows)


def _error_of_mean(_: Any, result: HeadResult, split: str) -> str:
    """Compare the error of a head with that of the mean of train, which has no correlation."""
    if "rmse" not in result.extras:
        return ""
    found = result.extras["rmse"][split]
    return f"with an RMSE of {found['probe']:.3f} where always predicting the mean has {found['mean_of_train']:.3f}"


NUMBERS_REPORT = KindReport(
    columns=(
        table.HEAD, table.POINT, table.POOLING, table.score_column("validation Pearson", "validation"),
        table.score_column("test Pearson", "test"), table.INTERVAL,
        table.score_column("test Spearman", "test", "spearman"),
    ),
    inputs=text_inputs,
    gold=lambda task, split: task.numbers(split).tolist(),
    units=lambda task, split: task.units(split),
    resampled=lambda task: "groups" if task["has_groups"] else "rows",
    sections=(_errors,),
    bare=_error_of_mean,
)  # fmt: skip
