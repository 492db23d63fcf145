"""Runs compared: what is paired, what cannot be told apart, and what is no comparison."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from extract.errors import HeadError, UnknownNameError
from probes.cli.main import main
from probes.metrics.bootstrap import Difference, Resampling, difference, paired_scores
from probes.metrics.prediction_metrics import count_tag_spans, score_spans
from probes.report.predictions import SCORED
from probes.runs.compare import ComparedPart, Comparison, compare
from tests.probes.finished_run import Finished

pytestmark = pytest.mark.long

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def other(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run under another plan, in a folder that says so, beside a copy of it."""
    base = tmp_path_factory.mktemp("other")
    runs = Path(shutil.copytree(finished.folder.parent, base / "runs"))
    places = ["--caches", str(base / "caches"), "--runs", str(runs)]
    assert main(["run", str(finished.config), "--extraction.plan", "backward:1", *places]) == 0
    return runs / "tiny-backward-1"


def edit_predictions(
    folder: Path, change: Callable[[list[dict[str, str]]], object], name: str = "predictions.csv"
) -> None:
    """Change the rows of predictions.csv, or of another file."""
    path = folder / name
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    change(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_two_plans_are_compared_on_the_same_rows(
    finished: Finished, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare([finished.folder, other], head="cosine-mlp", n_resamples=200)
    assert [run.plan for run in found.runs] == ["causal", "backward:1"]
    assert [run.label for run in found.runs] == ["tiny", "tiny-backward-1"]
    [gain] = found.differences
    means = [run.result.mean("test") for run in found.runs]
    assert gain.value == pytest.approx(means[1] - means[0], abs=1e-6)
    copies = [Path(shutil.copytree(run.folder.path, tmp_path / run.label)) for run in found.runs]
    for folder in copies:
        (folder / SCORED).unlink()
    [clipped] = compare(copies, head="cosine-mlp", n_resamples=200).differences
    assert clipped.value != pytest.approx(means[1] - means[0], abs=1e-3)  # averaged over seeds, and clipped
    assert gain.low <= gain.value <= gain.high
    assert gain.n_units == 32
    assert list(found.table["test"]) == pytest.approx(means)
    assert set(found.curves["run"]) == {"tiny", "tiny-backward-1"}
    assert main(["compare", str(finished.folder), str(other), "--out", str(tmp_path / "c"), "--resamples", "200"]) == 0
    shown = capsys.readouterr().out
    assert "tiny-backward-1" in shown
    assert max(len(line) for line in shown.splitlines() if "written" not in line and "tiny" not in line) <= 80
    written = (tmp_path / "c" / "comparison.md").read_text(encoding="utf-8")
    assert "| run | over tiny | 95 % interval | units |" in written
    assert written.endswith("\n\n![Layers](layers.png)\n")
    assert written.split(".\n", 1)[0] in shown  # the verdict
    assert {path.name for path in (tmp_path / "c").iterdir()} == {
        "report.html",
        "report.drawn.json",
        "comparison.md",
        "curves.csv",
        "layers.png",
    }
    assert [path.name for path in found.draw(tmp_path / "again", formats=("svg", "pdf"))] == [
        "layers.svg",
        "layers.pdf",
    ]


def test_a_run_cannot_be_told_from_itself(finished: Finished, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished.folder, tmp_path / "tiny"))
    found = compare([finished.folder, copy], head="siamese-cosine", n_resamples=100)
    assert found.differences[0][:3] == (0.0, 0.0, 0.0)
    assert found.verdicts()[0].endswith("tiny: +0.0 (+0.0 to +0.0; n = 32)")
    assert found.notes()[0].endswith("/tiny has the same settings.")
    assert len({run.label for run in found.runs}) == 2  # equal names, so folders tell them apart


def test_constant_predictions_have_no_interval(finished: Finished, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished.folder, tmp_path / "copy"))
    edit_predictions(
        copy, lambda rows: [row.update({"cosine-mlp:1": "1.0", "cosine-mlp:2": "1.0"}) for row in rows], SCORED
    )
    found = compare([finished.folder, copy], head="cosine-mlp", n_resamples=100)
    assert np.isnan(found.differences[0].low)
    assert found.verdicts() == [
        "copy cannot be compared with tiny: one of them has no Pearson, which is undefined where all predictions "
        "are the same"
    ]


def test_what_is_no_comparison_is_refused(finished: Finished, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished.folder, tmp_path / "copy"))
    with pytest.raises(HeadError, match="a comparison takes two run folders or more, not 1"):
        compare([copy])
    with pytest.raises(UnknownNameError, match="unknown head of the run 'copy' 'nothing'"):
        compare([copy, finished.folder], head="nothing")
    with pytest.raises(UnknownNameError, match="unknown split of the run 'copy' 'dev'"):
        compare([copy, finished.folder], split="dev")
    edit_predictions(copy, lambda rows: rows[-1].update(gold="0.0123"))
    with pytest.raises(HeadError, match=r"differ in 'gold' of test \(32 and 32 rows\)"):
        compare([finished.folder, copy])
    (copy / "predictions.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(HeadError, match=r"cannot be read .*; run its config again"):
        compare([finished.folder, copy])
    assert main(["compare", str(copy), str(finished.folder)]) == 1
    shutil.copy(finished.folder / "predictions.csv", copy)
    lines = (copy / SCORED).read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / SCORED).write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(HeadError, match=r"has other rows than predictions\.csv; run its config again"):
        compare([finished.folder, copy])


def test_runs_without_scored_predictions_are_compared_by_those_that_they_show(
    finished: Finished, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(finished.folder, tmp_path / "copy"))
    (copy / SCORED).unlink()
    assert compare([copy, copy / "../copy"], head="siamese-cosine", n_resamples=100).differences[0].value == 0


def test_correlations_are_paired_by_row_and_by_group() -> None:
    gold = RNG.normal(size=60)
    noise = RNG.normal(size=60)
    systems = [(gold + noise).tolist(), (gold + 0.9 * noise).tolist()]
    values, resampled = paired_scores(systems, gold.tolist(), metric="pearson", units=[str(k) for k in range(60)])
    gain = difference(values, resampled, 1, 0, n_units=60)
    assert values[1] == pytest.approx(np.corrcoef(systems[1], gold)[0, 1])
    assert 0 < gain.low < gain.value < gain.high  # paired: far narrower than either score's own interval
    assert gain.high - gain.low < 0.3 * np.ptp(np.quantile(resampled[0], [0.025, 0.975]))
    groups = [str(k // 6) for k in range(60)]
    _, grouped = paired_scores(systems, gold.tolist(), metric="pearson", units=groups, resampling=Resampling(50))
    assert grouped.shape == (2, 50)


def test_spans_are_counted_in_sentences_and_drawn_in_documents() -> None:
    gold = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-PER", "O", "O"]
    right, wrong = list(gold), ["B-PER", "O", "O", "B-LOC", "", "O", "O", "B-LOC"]
    sentences = ["0", "0", "0", "1", "1", "2", "2", "2"]
    documents = ["a", "a", "a", "a", "a", "b", "b", "b"]
    values, resampled = paired_scores(
        [right, wrong], gold, metric="span-f1", units=documents, sentences=sentences, resampling=Resampling(40)
    )
    tags: list[list[str | None]] = [["B-PER", "O", "O"], ["B-LOC", None], ["O", "O", "B-LOC"]]
    expected = score_spans(count_tag_spans([gold[:3], gold[3:5], gold[5:]], tags)).micro.f1
    assert values.tolist() == [1.0, pytest.approx(expected)]
    assert set(np.round(resampled[1], 6).tolist()) == {0.0, 0.333333, 0.5}  # b twice, both, a twice
    accuracy, _ = paired_scores([right, wrong], gold, metric="accuracy", units=sentences)
    assert accuracy.tolist() == [1.0, 0.5]


def test_sweeps_compare_their_plans_themselves(finished: Finished, tmp_path: Path) -> None:
    from probes.report.scores import seal_scores

    copy = Path(shutil.copytree(finished.folder, tmp_path / "copy"))
    values: dict[str, Any] = json.loads((copy / "scores.json").read_text(encoding="utf-8"))
    values |= {"what": "sweep", "plans": [], "chosen": {}}
    values["sha256"] = seal_scores(values)
    (copy / "scores.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(HeadError, match="is a sweep, which compares its own points; give runs, or --across"):
        compare([copy, finished.folder])


def test_units_stand_in_the_predictions_where_groups_are_drawn(
    tmp_path: Path, decoder_folder: Path, finished: Finished
) -> None:
    with (finished.folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        assert "unit" not in next(csv.reader(file))
    lines = ["text,label,group,split"]
    for split, n in (("train", 24), ("validation", 12), ("test", 12)):
        for k in range(n):
            word, label = ("Snow", "cold") if k % 2 else ("Sun", "warm")
            lines.append(f"{word} of {split} {k},{label},{split}{k // 3},{split}")
    (tmp_path / "texts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = {"files": str(tmp_path / "texts.csv"), "group": "group", "split_column": "split"}
    config = {
        "name": "grouped",
        "decoder": {"name": str(decoder_folder), "device": "cpu"},
        "task": {"name": "class-files", "options": options},
        "heads": {"nearest-centroid": {}},
        "bootstrap": 100,
        "caches": str(tmp_path / "caches"),
        "runs": str(tmp_path / "runs"),
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["run", str(tmp_path / "c.yaml")]) == 0
    first = tmp_path / "runs" / "grouped"
    found = compare([first, Path(shutil.copytree(first, tmp_path / "again"))], n_resamples=100)
    assert found.differences[0].n_units == 4


@pytest.fixture(scope="module")
def two_with_sources(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two plans of a task whose rows name their source."""
    base = tmp_path_factory.mktemp("sources")
    lines = (finished.base / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    names = ["film" if row % 2 else "news" for row in range(len(lines) - 1)]
    names[-3:] = ["rare"] * 3
    rows = [f"{line}\t{name}" for line, name in zip(lines, ["source", *names], strict=True)]
    (base / "pairs.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    config = yaml.safe_load(finished.config.read_text(encoding="utf-8"))
    config["task"]["options"] |= {"files": str(base / "pairs.tsv"), "source": "source"}
    config |= {"heads": {"layer-cosine": {}, "cosine-mlp": config["heads"]["cosine-mlp"]}, "runs": str(base / "runs")}
    (base / "s.yaml").write_text(yaml.safe_dump(config | {"caches": str(base / "caches")}), encoding="utf-8")
    for plan in ("causal", "backward:1"):
        assert main(["run", str(base / "s.yaml"), "--extraction.plan", plan, "--name", plan.replace(":", "-")]) == 0
    return base / "runs" / "causal", base / "runs" / "backward-1"


def test_rows_of_every_value_are_compared_apart(
    two_with_sources: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare(two_with_sources, head="layer-cosine", by="source", n_resamples=200)
    assert [part.value for part in comparison.parts] == ["news", "film"]  # `rare` has too few rows
    predicted = []
    for folder in two_with_sources:
        with (folder / SCORED).open(encoding="utf-8", newline="") as file:
            test = [row for row in csv.DictReader(file) if row["split"] == "test"]
        predicted.append([float(row["layer-cosine:1"]) for row in test])
    with (two_with_sources[0] / "predictions.csv").open(encoding="utf-8", newline="") as file:
        gold = [float(row["gold"]) for row in csv.DictReader(file) if row["split"] == "test"]
    for part, kept in zip(comparison.parts, (slice(0, 29, 2), slice(1, 29, 2)), strict=True):
        scores = [np.corrcoef(gold[kept], system[kept])[0, 1] for system in predicted]
        assert part.scores == pytest.approx(scores, abs=1e-6)
        [gain] = part.differences
        assert gain.value == pytest.approx(scores[1] - scores[0], abs=1e-6)
        assert gain.low <= gain.value <= gain.high
    [_, sentence] = comparison.verdicts()
    n_above = sum(part.differences[0].value > 0 for part in comparison.parts)
    said = f"By source, backward-1 has more than causal on {n_above} of 2 values, for certain on none (intervals"
    assert sentence.startswith(said)  # of so few rows nothing is
    assert comparison.notes()[-1] == "1 value of source left out: fewer than 8 units, or no score."
    out = tmp_path / "out"
    assert main(["compare", *map(str, two_with_sources), "--by", "source", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "Pearson x 100 by source" in shown
    assert max(len(line) for line in shown.splitlines() if line.startswith("  ")) <= 80
    assert "| source | run | units | the first | score |" in (out / "comparison.md").read_text(encoding="utf-8")
    with (out / "parts.csv").open(encoding="utf-8", newline="") as file:
        assert [row["value"] for row in csv.DictReader(file)] == ["news", "news", "film", "film"]


def test_groups_need_a_column_with_rows_that_are_those_of_the_run(two_with_sources: tuple[Path, Path]) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown column of tiny-pairs 'sorce': did you mean 'source'"):
        compare(two_with_sources, by="sorce")
    with pytest.raises(HeadError, match=r"no value of 'sentence1' has 8 units of test and a score; choose another"):
        compare(two_with_sources, by="sentence1")
    table = two_with_sources[0].parents[1] / "pairs.tsv"
    before = table.read_text(encoding="utf-8")
    table.write_text(before.replace("train\t", "train\tNot so: ", 1), encoding="utf-8")
    try:
        with pytest.raises(HeadError, match=r"has other rows now than when it ran; run its config again"):
            compare(two_with_sources, by="source")
    finally:
        table.write_text(before, encoding="utf-8")


def test_a_group_of_many_rows_can_be_certain() -> None:
    sure, few, lost = (Difference(0.2, 0.1, 0.3, 40), Difference(0.2, 0.1, 0.3, 20), Difference(-0.2, -0.3, -0.1, 40))
    parts = tuple(ComparedPart(name, (0.5, 0.7), (gap,)) for name, gap in (("a", sure), ("b", few), ("c", lost)))
    runs: Any = (SimpleNamespace(label="one"), SimpleNamespace(label="two"))
    comparison = Comparison(runs, "test", "pearson", (sure,), (0.01,), ({},), "source", parts)
    assert comparison._part_verdict(0) == (
        "By source, two has more than one on 2 of 3 values, for certain on a, and less for certain on c (intervals not "
        "corrected for their number)"
    )
    assert list(comparison.part_table["value"]) == ["a", "a", "b", "b", "c", "c"]
    assert len(comparison.parts_to_screen().columns) == 6
    more: Any = (*runs, SimpleNamespace(label="three"))
    three = replace(comparison, runs=more, parts=())
    assert [column.header for column in three.parts_to_screen().columns][:2] == ["source", "run"]
