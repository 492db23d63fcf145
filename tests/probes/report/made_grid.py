"""A sweep over axes made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from extract.masks.mask_plan import parse_plan
from probes.heads.result import Curve
from probes.report.scores import (
    DecoderInfo,
    FailedPoint,
    GridScores,
    Lead,
    PartGain,
    PlanChoice,
    PlanGain,
    PlanScores,
    PlansScores,
    PointGap,
    SourceCurve,
    SweepCost,
    Ties,
    Transfer,
)
from tests.probes.report.made_runs import make_header, make_result

LAYERS = ("embedding", "block_01", "block_02", "final_norm")
AXES: Mapping[str, Sequence[str]] = {"plan": ("causal", "backward:1"), "encoder": ("plain", "echo", "last")}


def make_grid(axes: Mapping[str, Sequence[str]] = AXES) -> PlansScores:
    """Make a sweep over axes, each point a hundredth better than the one before at a layer of its own.

    The last point is chosen, and the first is the reference.
    """
    points: list[dict[str, str]] = [{}]
    for axis, names in axes.items():
        points = [{**point, axis: name} for point in points for name in names]
    rows = []
    for number, point in enumerate(points):
        score = 0.5 + number / 100
        values = [0.3, 0.35, 0.4, 0.3]
        values[number % 4] = score
        result = replace(
            make_result("head", score),
            layers=LAYERS,
            chosen={"layer": LAYERS[number % 4]},
            curves=(Curve("", "validation", "accuracy", tuple(values)), Curve("", "test", "accuracy", (0.9,) * 4)),
        )
        decoder: DecoderInfo = {"name": "tiny", "n_layers": 2}
        rows.append(PlanScores(parse_plan(point.get("plan", "causal")), "c.h5", {}, {"head": result}, {}, point, "toy"))
        rows[-1] = replace(rows[-1], decoder=decoder)
    first, last = rows[0], rows[-1]
    gain = PlanGain("accuracy", first.label, 0.5, last.heads["head"].mean("test"))
    choice = PlanChoice(last.plan, last.heads["head"], gain, Lead(gain.gain, 0.01, 0.2, 60), last.point)
    gaps = [
        PointGap(row.point, "head", "validation", 0.01 * number, 0.0, 0.1, 0.02, 0.1, 60)
        for number, row in enumerate(rows)
        if number
    ]
    parts = [
        PartGain(name, last.point, "accuracy", "test", 0.6, 0.6 - value, value, value - 0.1, value + 0.1, 0.0, 60)
        for name, value in (("one", 0.2), ("other", 0.05), ("third", -0.1))
    ]
    grid = GridScores(
        tuple(axes),
        first.point,
        tuple(gaps),
        (FailedPoint({"plan": "causal", "encoder": "broken"}, "it has no weights"),),
        "",
        (Transfer("head", "tasks", "the task one", tuple(parts), 0.05, -0.1, 0.2, 0.15),),
        tuple(
            SourceCurve(row.point, "head", source, "accuracy", LAYERS, (low, 0.4, 0.5, 0.45), 20)
            for row in (first, last)
            for source, low in (("news", 0.2), ("forums", 0.3))
        ),
        tied={"head": Ties((first.label,), 5)},
    )
    header = make_header("classes", {"name": "toy", "is_sample": True}, "sweep")
    return PlansScores(header, last.label, tuple(rows), {"head": choice}, SweepCost(5, 20, 0.25), grid=grid)
