"""The report of a run on texts, or pairs of texts, of one class each."""

from collections.abc import Iterator

from probes.fitting.protocols import LBW
from probes.report import table
from probes.report.blocks import Block, Caution, Item
from probes.report.document import Context, KindReport, text_inputs
from probes.tasks.classes.task import ClassTask


def _gain(row: table.Row) -> str:
    """Say what choosing layer and C gained over the default point, on test."""
    default = row.result.extras.get("default")
    if default is None or not row.is_first or row.summary("test") is None:
        return table.NOTHING
    return table.percent(row.result.mean("test") - default["scores"]["test"], sign="+")


def _defaults(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        if default := result.extras.get("default"):
            yield (
                f"The default of `{name}` is {default['layer']}, C {default['C']:g}: the highest layer and the C "
                "nearest 1."
            )


def _released_limit(context: Context) -> Iterator[Block]:
    """Say how the chosen probe ended under the limit of iterations of the released code."""
    for name, result in context.results:
        found = result.extras.get("convergence")
        if found and context.scores.header.protocol == LBW:
            own, limit = found["chosen"], result.options["max_iterations"]
            yield Caution(
                f"`{name}` may take {limit} iterations, the released code's limit; it took {own['n_iterations']} "
                f"and {'converged' if own['is_converged'] else 'did not converge'}. The released code's solver often "
                "stops at that limit unconverged, so where ours converges its weights are a better minimum, not the "
                "same."
            )


def _convergence(context: Context) -> Iterator[Block]:
    for name, result in context.results:
        if found := result.extras.get("convergence"):
            yield Item(
                f"`{name}`: {found['n_converged']:,} of {found['n_problems']:,} problems converged, largest gradient "
                f"norm {found['largest_gradient_norm']:.1e}, {found['n_iterations']:,} iterations"
            )


def _growth(context: Context) -> Iterator[Block]:
    """Say what SMOTE added, and which classes were too small for its neighbours."""
    for name, result in context.results:
        if found := result.extras.get("oversampled"):
            yield Item(
                f"`{name}`: SMOTE (`{found['mode']}`) added {found['n_synthetic']:,} rows to {found['n_rows']:,}; "
                f"{len(found['clipped'])} classes have fewer than 5 neighbours, {len(found['duplicated'])} have one "
                "row, which is repeated"
            )


def _classes(context: Context) -> Iterator[Block]:
    yield Item(f"Classes: {context.scores.header.task['n_classes']}")


def _gold(task: ClassTask, split: str) -> list[str]:
    return [task.class_names[label] for label in task.labels(split)]


CLASSES_REPORT = KindReport(
    columns=(
        table.HEAD, table.POINT, table.METRIC, *table.SCORES, table.majority_column("majority class on test"),
        table.Column("test, chosen - default", _gain, on_screen=False),
    ),
    inputs=text_inputs,
    gold=_gold,
    units=lambda task, split: task.units(split),
    resampled=lambda task: "groups" if task["has_groups"] else "rows",
    metrics=lambda result: tuple(result.summary[result.reported_split]),
    remarks=(_defaults, _released_limit),
    used=(_classes, _convergence, _growth),
    bare=table.beside_majority("the majority class"),
)  # fmt: skip
