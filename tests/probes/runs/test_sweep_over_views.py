"""A sweep over views: what it says that it costs is what the decoder runs, and no view is read twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.decoders.decoder import Decoder, load_decoder
from extract.run import extraction, shards
from extract.run.extraction import unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.wiring.states import pool_batch, walk_plans
from probes.report.scores import PlansScores
from probes.runs import sweep_caches
from probes.runs.run import RunResult, run
from probes.runs.run_config import load_run_task
from probes.runs.sweep_run import sweep
from tests.probes.runs.small_grid import config_in

ECHO: dict[str, Any] = {"template": "echo", "poolings": ["echo-mean"]}
PLANS = ["causal", "backward:1", "bidirectional:2"]  # of 3 blocks: 3 + 1 + 2 passes, and 9 apart
VIEWS: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    "each view is swept": ({"plain": {}, "echo": ECHO}, {"plan": PLANS}, 2 * 6, 2 * 9),
    "one has a plan of its own": ({"plain": {}, "echo": {**ECHO, "plan": "causal"}}, {"plan": PLANS}, 6 + 3, 18),
    "the axis is a key of one": ({"plain": {}, "echo": ECHO}, {"views.echo.plan": PLANS}, 3 + 6, 18),
    "views differ in poolings alone": ({"plain": {}, "last": {"poolings": "last"}}, {"plan": PLANS}, 6, 9),
    "views differ in plans alone": ({"plain": {}, "top": {"plan": "backward:1"}}, {"plan": PLANS}, 6, 4 + 3 + 5),
    "a mean of templates": ({"plain": {}, "said": {"template": "prompt-eol+knowledge"}}, {"plan": PLANS}, 18, 27),
    "templates beside": (
        {"plain": {}, "said": {"poolings": "last"}},
        {"views.said.template": ["echo", "prompt-eol"], "views.plain.plan": PLANS[:2]},
        4 + 2 * 3,
        2 * (3 + 3) + 2 * (3 + 3),
    ),
}


@contextmanager
def counted_passes() -> Iterator[list[int]]:
    """Count the rows of every batch that passes a block while latents are computed, proofs aside."""
    rows: list[int] = []
    is_running = [False]

    def hook(_: Any, args: tuple[Any, ...]) -> None:
        if is_running[0]:
            rows.append(len(args[0]))

    def loading(*args: Any, **options: Any) -> Decoder:
        decoder = load_decoder(*args, **options)
        for block in decoder.blocks:  # which a sweep runs again without hooks of its own
            block.get_submodule("mlp").register_forward_pre_hook(hook)
        return decoder

    def running(compute: Callable[..., Any]) -> Callable[..., Any]:
        def compute_and_count(*args: Any, **options: Any) -> Any:
            is_running[0] = True
            try:
                return compute(*args, **options)
            finally:
                is_running[0] = False

        return compute_and_count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_caches, "load_decoder", loading)
        patch.setattr(shards, "walk_plans", running(walk_plans))
        patch.setattr(extraction, "pool_batch", running(pool_batch))
        yield rows


def swept(folder: Path, decoder: Path, case: str, **options: Any) -> tuple[RunResult[PlansScores], int, int]:
    """Sweep views; return the result, the texts of its task, and the times that one of them passed a block."""
    views, over, *_ = VIEWS[case]
    config = config_in(folder, decoder, extraction=ExtractionSpec(views=views))
    with counted_passes() as rows:
        result = sweep(config, over, **options)
    return result, len(unique_texts(load_run_task(config).texts())), sum(rows)


@pytest.mark.parametrize("case", VIEWS)
def test_the_cost_of_a_sweep_is_what_the_decoder_runs(case: str, tmp_path: Path, decoder_folder: Path) -> None:
    result, n_texts, n_run = swept(tmp_path, decoder_folder, case)
    _, over, passes, apart = VIEWS[case]
    cost = result.record.cost
    assert cost is not None
    n = 1 if list(over) == ["plan"] else n_texts  # over plans alone it is that of one text
    assert (cost.block_passes, cost.apart) == (passes * n, apart * n)
    assert n_run == passes * n_texts


def test_a_search_over_views_pays_for_all_of_them(tmp_path: Path, decoder_folder: Path) -> None:
    case = "the axis is a key of one"
    result, n_texts, n_run = swept(tmp_path, decoder_folder, case, search="halving", budget=1.0)
    search = result.record.search
    assert search is not None
    assert search.full_cost == (3 + 6) * search.n_texts
    [choice] = result.record.chosen.values()
    plan = choice.point["views.echo.plan"]  # read with the texts of test in the end, as the reference is
    assert n_run == search.cost + {"causal": 6, "backward:1": 7, "bidirectional:2": 8}[plan] * n_texts


def test_points_of_a_sweep_over_views_are_those_of_runs(tmp_path: Path, decoder_folder: Path) -> None:
    views, *_ = VIEWS["the axis is a key of one"]
    result, *_ = swept(tmp_path, decoder_folder, "the axis is a key of one", test="all")
    for row in result.record.plans:
        plan = next(iter(row.point.values()))
        alone = {**views, "echo": {**views["echo"], "plan": plan}}
        config = config_in(tmp_path / "alone", decoder_folder, name=plan.replace(":", "-"))
        one = run(replace(config, extraction=ExtractionSpec(views=alone))).record.heads["layer-cosine"]
        here = row.heads["layer-cosine"]
        for mine, theirs in zip(here.curves, one.curves, strict=True):
            np.testing.assert_allclose(mine.values, theirs.values, atol=1e-4)


def test_a_view_that_cannot_be_read_costs_its_own_points_alone(tmp_path: Path, decoder_folder: Path) -> None:
    config = config_in(tmp_path, decoder_folder, extraction=ExtractionSpec(views={"plain": {}, "other": ECHO}))
    short = {"template": {"name": "echo", "max_tokens": 3, "on_long": "error"}, "poolings": ["echo-mean"]}
    record = sweep(config, {"reading": {"whole": {}, "short": {"views.other": short}}}).record
    assert record.grid is not None
    assert [dict(failure.point) for failure in record.grid.failed] == [{"reading": "short"}]
    assert [row.point["reading"] for row in record.plans] == ["whole"]
