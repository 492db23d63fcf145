"""What a comparison says of the settings that differ, of plans that change nothing that is read, and of few rows."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from extract.errors import HeadError
from probes.heads.result import Curve
from probes.metrics.bootstrap import Difference
from probes.runs.compare import ComparedRun, Comparison, _settings_that_differ
from probes.runs.folder import RunFolder
from tests.probes.report.made_runs import make_result

LAYERS = ("embedding", "block_01", "block_02", "block_03", "final_norm")
VALIDATION = {"causal": (0.5, 0.9, 0.6, 0.4, 0.3), "bidirectional:2": (0.5, 0.9, 0.7, 0.8, 0.2)}


def make_run(
    folder: Path,
    plan: str,
    *,
    layer: str = "block_01",
    pooling: str = "mean",
    reads: tuple[str, ...] = LAYERS,
    **config: Any,
) -> ComparedRun:
    """Make a finished run of three blocks, as far as a comparison looks at it."""
    settings = {
        "name": folder.name,
        "extraction": {"plan": plan, "template": {"bos": config.pop("bos", "auto")}},
        "heads": {"made": {"seed": 0}, "unread": {}},
        **config,
    }
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    curve = Curve("", "validation", "accuracy", VALIDATION.get(plan, VALIDATION["causal"]))
    result = make_result(layers=reads, chosen={"layer": layer} if layer else {}, curves=(curve,), pooling=pooling)
    run = RunFolder(folder)
    vars(run)["values"] = {"cache": {"plan": plan}, "decoder": {"name": "d", "n_layers": 3}}
    return ComparedRun(folder.name, run, result)


def compared(first: ComparedRun, run: ComparedRun, *, n_units: int = 500) -> Comparison:
    gain = Difference(0.1, 0.05, 0.15, n_units)
    return Comparison((first, run), "test", "accuracy", (gain,), (0.01,), (_settings_that_differ(first, run),))


def test_every_setting_that_differs_is_named_and_two_are_warned_of(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", "causal")
    both = make_run(tmp_path / "b", "bidirectional:2", bos="force", heads={"made": {"seed": 0}})
    [note] = compared(first, both).notes()
    assert note.startswith("Warning: b differs in 2 settings: extraction.plan (causal and bidirectional:2), ")
    assert "extraction.template.bos (auto and force). A difference cannot be put down to one of them" in note
    one = make_run(tmp_path / "c", "bidirectional:2")
    assert compared(first, one).notes() == ["c differs in one setting: extraction.plan (causal and bidirectional:2)."]
    same = make_run(tmp_path / "d", "causal", caches="elsewhere")
    assert compared(first, same).notes() == ["d has the same settings."]
    option = make_run(tmp_path / "e", "causal", heads={"made": {"seed": 1}})
    assert compared(first, option).notes() == ["e differs in one setting: heads.made.seed (0 and 1)."]


def test_a_run_without_settings_is_refused(tmp_path: Path) -> None:
    first, run = make_run(tmp_path / "a", "causal"), make_run(tmp_path / "b", "causal")
    (run.folder.path / "config.yaml").write_text("[", encoding="utf-8")
    with pytest.raises(HeadError, match=r"config\.yaml' cannot be read .*; run its config again"):
        compared(first, run)


def test_plans_that_agree_on_what_is_read_are_no_comparison(tmp_path: Path) -> None:
    """Two of three blocks are converted, so block 1 is computed alike, and what lies above is shown instead."""
    first, run = make_run(tmp_path / "a", "causal"), make_run(tmp_path / "b", "bidirectional:2")
    assert compared(first, run).verdicts() == [
        "b and a read the same latents: both chose block_01, and the plans differ only from block_02 on, so this says "
        "nothing about the plans. Of the layers they change, block_03 is the best on validation: 80.0 under "
        "bidirectional:2, 40.0 under causal (`icecore compare --by-layer` has all of them on test, with intervals)"
    ]


def test_runs_that_pool_otherwise_are_a_comparison_also_below_what_their_plans_change(tmp_path: Path) -> None:
    """As heads of words are under two plans, of which each has its own pooling where none is named."""
    first = make_run(tmp_path / "a", "causal", pooling="last")
    run = make_run(tmp_path / "b", "bidirectional:2", pooling="mean")
    assert compared(first, run).verdicts() == ["b is better than a by 10.0 accuracy (+5.0 to +15.0; n = 500)"]


def test_heads_that_choose_no_layer_may_read_the_same_latents_too(tmp_path: Path) -> None:
    reads = ("embedding", "block_01")
    first = make_run(tmp_path / "a", "causal", layer="", reads=reads)
    run = make_run(tmp_path / "b", "bidirectional:2", layer="", reads=reads)
    [verdict] = compared(first, run, n_units=5).verdicts()
    assert verdict.startswith("b and a read the same latents: both read embedding, block_01, and the plans differ only")
    first, run = (make_run(tmp_path / n, p, layer="") for n, p in (("c", "causal"), ("d", "bidirectional:2")))
    assert compared(first, run).verdicts() == ["d is better than c by 10.0 accuracy (+5.0 to +15.0; n = 500)"]


@pytest.mark.parametrize(
    ("plan", "changed"),
    [
        ("bidirectional:2", {"layer": "block_02"}),
        ("bidirectional:3", {}),
        ("extend/bidirectional:1", {}),
        ("causal~tp1-2", {}),
        ("bidirectional:2", {"bos": "force"}),
        ("bidirectional:2", {"pooling": "reba-mean"}),
    ],
)
def test_other_latents_are_compared(plan: str, changed: dict[str, Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "b", plan, **changed)
    first = make_run(tmp_path / "a", "causal", layer=changed.get("layer", "block_01"))
    assert compared(first, run).verdicts() == ["b is better than a by 10.0 accuracy (+5.0 to +15.0; n = 500)"]


def test_few_rows_are_too_few_to_tell(tmp_path: Path) -> None:
    first, run = make_run(tmp_path / "a", "causal"), make_run(tmp_path / "b", "bidirectional:3")
    assert compared(first, run, n_units=29).verdicts() == [
        "b against a: too few rows (29, fewer than 30) to claim a difference, +10.0 (+5.0 to +15.0)"
    ]
    assert "is better" in compared(first, run, n_units=30).verdicts()[0]
