"""The report of a sweep over axes: which point is best and whether that is certain, every score, what was chosen."""

import math
from collections.abc import Iterator

from probes.data.task import TOO_NARROW
from probes.data.task_table import task_title
from probes.metrics.significance import FEW_UNITS
from probes.report.blocks import (
    NOTHING,
    Block,
    Document,
    Heading,
    Item,
    Table,
    cell,
    describe_point,
    interval,
    metric_label,
    number,
    percent,
    signed_interval,
    spread,
)
from probes.report.document import (
    EVERY_PLAN,
    baseline_blocks,
    best_result,
    count_asked,
    machine_line,
    margin,
    opening,
    over_baseline,
    search_blocks,
    sweep_cautions,
    which_failed,
)
from probes.report.scores import PlanChoice, PlansScores, PointGap, Transfer, label_of
from probes.report.sweep_frames import PLAN_AXIS, axes_of, found_name, point_of, slots_of


def grid_document(scores: PlansScores) -> Document:
    """Write the report of a sweep over axes."""
    header, axes, search = scores.header, axes_of(scores), scores.search
    cost = scores.cost
    passes = ""
    if cost:
        passes = (
            f"; the decoder passed texts through {cost.block_passes:,} blocks in all, {cost.ratio:.2f} of the "
            f"{cost.apart:,} of separate extractions"
        )
    plain = f"{count_points(scores)}{passes}."
    summary, *costs = search_blocks(search, found_name(scores)) if search else (plain,)
    question = (
        f"At which of {count_points(scores)} ({' x '.join(axes)}) is {header.decoder['name']} the best encoder "
        f"for {task_title(header.task['name'])}?"
    )
    blocks = [
        *opening(header),
        summary,
        *sweep_cautions(scores),
        *_choices(scores),
        *transfer_blocks(scores),
        *every_point(scores),
        *costs,
    ]
    blocks += [*baseline_blocks(scores.baselines), Heading("What was used"), machine_line(header)]
    return Document(header.name, question, grid_lead(scores), blocks)


def grid_lead(scores: PlansScores) -> str:
    """Name the best point, whether its lead over the reference is certain, and how many points are tied with it."""
    result = best_result(choice.result for choice in scores.chosen.values())
    name, choice = next(item for item in scores.chosen.items() if item[1].result is result)
    split = result.reported_split
    where = describe_point(result.chosen)
    head = f"the head `{result.name}`" + f" at {where}" * bool(where)
    by = ", by the mean over sources," * (scores.grid is not None and scores.grid.choose_by == "sources")
    text = f"The best of {count_points(scores)}{by} is `{label_of(choice.point)}`, with {head}: "
    if scores.search:
        share = f"at {scores.search.share:.2f} of the cost of scoring all"
        points = f"{count_points(scores)}{which_failed(scores)}"
        text = f"Of {points} the search found `{label_of(choice.point)}` {share}, with {head}: "
    task = scores.grid.task_axis if scores.grid else ""
    rows = f"{split} of `{choice.point[task]}`" if task else split
    text += f"{metric_label(result.metric)} {spread(result.summary[split][result.metric])} on {rows}, "
    text += f"{_certainty(scores, name, choice)}."
    transfers = _transfers_with_gains(scores)
    seen = [seen_on(part) for part in transfers if part.head == name and part.over in ("tasks", "sources")]
    return " ".join(filter(None, [text, _ties(scores, name, choice), *seen, over_baseline(result, scores.baselines)]))


def count_points(scores: PlansScores) -> str:
    """Count the points, which tasks do not multiply."""
    axis = scores.grid.task_axis if scores.grid else ""
    systems = {tuple(value for name, value in row.point.items() if name != axis) for row in scores.plans}
    n = count_asked(scores.search) if scores.search else len(systems)
    tasks = f" on {len({row.point[axis] for row in scores.plans})} tasks" if axis else ""
    return f"{n:,} point{'s' * (n != 1)}{tasks}"


def seen_on(transfer: Transfer) -> str:
    """Say on how many sets a gain was seen, those aside on which the point was chosen."""
    parts = [part for part in transfer.parts if part.counts]
    n, over = len(parts), transfer.over.partition(",")[0]
    if not n:
        return f"No gain was measured on {over} other than those that chose."
    n_gained = sum(part.value > 0 for part in parts)
    n_certain = sum(part.low > 0 and part.n_units >= FEW_UNITS for part in parts)
    chosen = f"chosen on {transfer.chosen_on}"
    where = f"Over {n} {transfer.over}, {chosen}"
    if any(part.is_chosen_on for part in transfer.parts):
        where = f"With the point {chosen}, over {f'the {n} other tasks' if n > 1 else 'the other task'}"
    text = f"{where}, a gain was seen on {n_gained} of {n} and is certain, each by itself, on {n_certain}"
    if n == 1:
        return f"{text}: {percent(parts[0].value, sign='+')} ({signed_interval(parts[0].low, parts[0].high)})."
    reach = f"{signed_interval(transfer.low, transfer.high)} over {over} and rows"
    mixed = ", in points of different metrics" * (len({part.metric for part in parts}) > 1)
    mean = f"{percent(transfer.value, sign='+')} on average{mixed}"
    return f"{text}: {mean}, spread {percent(transfer.spread)} ({reach})."


def _transfers_with_gains(scores: PlansScores) -> list[Transfer]:
    """Leave out gains of the reference over itself."""
    transfers = scores.grid.transfers if scores.grid else ()
    return [transfer for transfer in transfers if any(part.value != 0 for part in transfer.parts)]


def _ties(scores: PlansScores, name: str, choice: PlanChoice) -> str:
    """Say how many points validation cannot tell from the chosen one, where they were compared with it."""
    grid = scores.grid
    if grid is None or name not in grid.tied:
        return ""
    ties = grid.tied[name]
    n_tied, n_others = len(ties.points), ties.n_compared
    rows = f"validation of `{choice.point[grid.task_axis]}`" if grid.task_axis else "validation"
    if n_others == 1:
        return f"On {rows}, the other point is {'not ' * (not n_tied)}statistically tied with it."
    verb = "is" if n_tied == 1 else "are"
    tied = f"On {rows}, {n_tied} of the {n_others} other points {verb} statistically tied with it"
    return f"{tied} (paired, corrected by Holm)."


def transfer_blocks(scores: PlansScores) -> Iterator[Block]:
    """Write the gains over tasks and over sources of rows."""
    for transfer in _transfers_with_gains(scores):
        yield Heading(f"Does it transfer? {transfer.head} over {transfer.over}")
        yield seen_on(transfer)
        columns = ("part", "point", "metric", "split", "reference", "chosen", "gain", "95 % interval", "rank", "n")
        rows = [
            (
                cell(part.name) + ", which chose" * part.is_chosen_on,
                f"`{label_of(part.point)}`",
                metric_label(part.metric),
                part.split,
                percent(part.reference),
                percent(part.chosen),
                percent(part.value, sign="+"),
                signed_interval(part.low, part.high),
                number(part.rank, 2),
                f"{part.n_units:,}",
            )
            for part in transfer.parts
        ]
        yield Table(columns, rows)


def _reference_of(scores: PlansScores, choice: PlanChoice) -> dict[str, str]:
    """Return the point that a choice is compared with: where tasks are an axis, the reference on the task of it."""
    grid = scores.grid
    if grid is None:
        return {}
    axis = grid.task_axis
    return {**grid.reference, **({axis: choice.point[axis]} if axis else {})}


def _certainty(scores: PlansScores, name: str, choice: PlanChoice) -> str:
    """Say whether the lead of the chosen point over the reference is certain."""
    grid = scores.grid
    compared = _reference_of(scores, choice)
    if grid is None or dict(choice.point) == compared:
        return "which is the reference itself: nothing was gained by choosing"
    reference = f"the reference, `{label_of(compared)}`"
    if choice.lead is not None and choice.gain is not None:
        text = margin(reference, choice.gain.default, choice.lead)
        if choice.lead.value <= 0:
            return f"{text}, so choosing gained nothing"
        is_certain = choice.lead.n_units >= FEW_UNITS and choice.lead.low > 0
        if is_certain and any(note.endswith(TOO_NARROW) for note in scores.header.task.get("shared_rows", {}).values()):
            return f"{text}, a gain whose interval is {TOO_NARROW}, as most rows share texts"
        return text + (", a certain gain" if is_certain else ", so the gain is **not certain**")
    gap = next((gap for gap in grid.gaps if gap.head == name and dict(gap.point) == dict(choice.point)), None)
    if gap is None:
        return f"compared with {reference}"
    certain = "a certain" if gap.is_certain else "not a certain"
    return f"{_gap_text(gap)} over {reference} on {gap.split}, {certain} difference"


def _choices(scores: PlansScores) -> Iterator[Block]:
    """Write the point chosen for every head, and the points that test was read for."""
    reference, rows = "", []
    if grid := scores.grid:
        system = {axis: value for axis, value in grid.reference.items() if axis != grid.task_axis}
        reference = label_of(system or grid.reference)
    for name, choice in scores.chosen.items():
        result = choice.result
        gain = percent(choice.gain.gain, sign="+") if choice.gain else NOTHING
        if choice.lead is not None:
            gain += f" ({signed_interval(choice.lead.low, choice.lead.high)})"
        point = describe_point(result.chosen)
        rows.append(
            (
                name if name == result.name else f"{name}, there {result.name}",
                f"`{label_of(choice.point)}`" + f", {point}" * bool(point),
                metric_label(result.metric),
                percent(result.selection_score),
                percent(result.mean("test")),
                interval(result.summary.get("test", {}).get(result.metric)),
                gain,
            )
        )
    yield Heading("Chosen on validation")
    yield Table(("head", "point", "metric", "validation", "test", "95 % interval", "test, chosen - reference"), rows)
    yield f"The reference is `{reference}`."
    if scores.test_read == EVERY_PLAN:
        yield (
            "Test was read for **every point**, as was asked for. The point is chosen on validation all the same; one "
            "picked by its test score is a choice on test."
        )
    else:
        yield f"Test was read for {scores.test_read}, after everything was chosen."


def every_point(scores: PlansScores) -> Iterator[Block]:
    """Write the scores of every point, a column per axis, with its difference from the reference.

    Scores of plans alone have a table already, and here their differences.
    """
    axes, reference = axes_of(scores), label_of(scores.grid.reference) if scores.grid else ""
    is_of_plans = axes == (PLAN_AXIS,)
    gaps = {(label_of(gap.point), gap.head): gap for gap in (scores.grid.gaps if scores.grid else ())}
    split = next((gap.split for gap in gaps.values()), "validation")
    costs = dict(_relative_tokens(scores))
    for slot in scores.chosen:
        rows, by_source = [], scores.grid.by_source.get(slot, {}) if scores.grid else {}
        for row in scores.plans:
            result = slots_of(scores, row)[slot]
            gap = gaps.get((label_of(point_of(row)), slot))
            rows.append(
                (
                    *(point_of(row)[axis] for axis in axes),
                    *([costs[row.label]] if costs else []),
                    describe_point(result.chosen) or NOTHING,
                    *([percent(by_source.get(row.label, math.nan))] if by_source else []),
                    *([] if is_of_plans else [percent(result.selection_score), percent(result.mean("test"))]),
                    _gap_text(gap) if gap else NOTHING,
                    f"{gap.p_corrected:.3f}" if gap else NOTHING,
                )
            )
        title = f"Over `{reference}`" if is_of_plans else "On all rows" if scores.search else "Every point"
        yield Heading(f"{title}: {slot}")
        decided = ["mean over sources"] * bool(by_source)
        columns = (*axes, *["tokens"] * bool(costs), "chosen", *decided, *["validation", "test"] * (not is_of_plans))
        yield Table((*columns, f"over the reference, {split}", "p, corrected"), rows)
    if gaps:
        family = "for all other points of a task"
        correction = "by Bonferroni for all points of the search" if scores.search else f"by Holm {family}"
        yield Item(
            f"Differences from the reference are paired, on the same rows; p-values are corrected {correction}, "
            "each head apart."
        )


def _relative_tokens(scores: PlansScores) -> Iterator[tuple[str, str]]:
    """Give what the decoder reads at every point, as a multiple of the least on the same task, where points differ."""
    task, least = scores.grid.task_axis if scores.grid else "", dict[str, int]()
    for row in scores.plans:
        of = row.point.get(task, "")
        least[of] = min(row.n_tokens, least.get(of, row.n_tokens))
    times = {row.label: row.n_tokens / max(1, least[row.point.get(task, "")]) for row in scores.plans}
    if min(least.values(), default=0) > 0 and max(times.values()) > 1:
        yield from ((label, f"{of_least:.1f}x") for label, of_least in times.items())


def _gap_text(gap: PointGap) -> str:
    return f"{percent(gap.value, sign='+')} ({signed_interval(gap.low, gap.high)}, n = {gap.n_units:,})"
