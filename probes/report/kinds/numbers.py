"""The report of a run on texts with one number each."""

from collections.abc import Iterator

from probes.report import table
from probes.report.document import Context, KindReport, reported_split, text_inputs


def _errors(context: Context) -> Iterator[str]:
    yield "\n## Errors\n"
    yield "Root mean square error in the units of the gold, and that of always predicting the mean of train.\n"
    rows = []
    for name, result in context.results:
        split = reported_split(result.splits)
        found = result.extras["rmse"][split]
        rows.append((name, split, table.number(found["probe"], 3), table.number(found["mean_of_train"], 3)))
    yield table.markdown_table(rows, ("head", "split", "RMSE", "RMSE of the mean of train"))


NUMBERS_REPORT = KindReport(
    columns=(
        table.HEAD, table.POINT, table.POOLING, table.score_column("validation Pearson", "validation"),
        table.score_column("test Pearson", "test"), table.INTERVAL,
        table.score_column("test Spearman", "test", "spearman"),
    ),
    inputs=text_inputs,
    gold=lambda task, split: task.numbers(split).tolist(),
    units=lambda task, split: task.groups(split),
    resampled=lambda task: "groups" if task["has_groups"] else "rows",
    sections=(_errors,),
)  # fmt: skip
