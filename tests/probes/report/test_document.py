"""The report of a run: every number as it is in the record, the same document and files for every kind of task."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from extract.masks.mask_plan import parse_plan
from probes.cli.screen import show_run
from probes.metrics.bootstrap import Resampling, SeedSummary, difference, paired_scores
from probes.metrics.significance import FEW_UNITS
from probes.report.blocks import (
    Caution,
    Document,
    Heading,
    Item,
    Table,
    describe_point,
    interval,
    markdown_table,
    number,
    spread,
)
from probes.report.document import (
    EVERY_PLAN,
    HEAD_WORDS,
    Context,
    KindReport,
    best_result,
    plan_score_label,
    plan_scores,
    plans_document,
    plans_lead,
    result_rows,
    run_document,
    run_lead,
    screen_table,
    search_blocks,
    summary_text,
)
from probes.report.kind_reports import REPORTS
from probes.report.page import Pictures
from probes.report.scores import (
    FailedPoint,
    Lead,
    PlanChoice,
    PlanGain,
    PlansScores,
    read_run,
    seal_scores,
    sealed_scores,
    without_nan,
)
from probes.report.style import Album
from probes.report.write import page_of_run, write_plans, write_pretraining
from probes.runs.run import lead_over_plan, leads_over_cosine
from tests.probes.report.made_plans import OVER_K, WINDOWS, make_plans, make_search
from tests.probes.report.made_runs import (
    AUTOENCODERS,
    HEADS_OF,
    NAN,
    MadeRun,
    make_pretraining,
    make_result,
    make_summary,
)


def context(made: MadeRun) -> Context:
    return Context(made.scores, made.kind.report.rows(made.task), made.kind.report)


def summary(made: MadeRun, **figures: tuple[str, ...]) -> str:
    return summary_text(run_document(context(made)), figures)


def section(text: str, title: str) -> list[str]:
    """Return the lines under a heading of Markdown."""
    return text.split(f"\n## {title}\n")[1].partition("\n## ")[0].strip().splitlines()


def rows_of(made: MadeRun) -> list[dict[str, str]]:
    titles, rows = result_rows(replace(made.scores, baselines={}), made.kind.report)
    return [dict(zip(titles, row, strict=True)) for row in rows]


def test_numbers_are_written_times_a_hundred() -> None:
    assert spread(make_summary(0.5)) == "50.0"
    assert spread(make_summary(0.5, 2)) == "50.0 ± 2.0"
    assert interval(make_summary(0.5)) == "40.0 to 60.0"
    assert [spread(None), interval(None), interval(replace(make_summary(0.5), low=NAN)), number(None)] == ["-"] * 4
    assert markdown_table([("a", "b")], ("x", "y")) == "| x | y |\n|---|---|\n| a | b |"
    assert describe_point({"layer": "block_02", "C": 0.1}) == "block_02, C 0.1"
    assert describe_point({"layer": "block_02", "kind": "raw", "threshold": 0.3}) == "block_02, raw"
    assert describe_point({}) == ""


def test_the_table_holds_the_scores_of_every_head(made: MadeRun) -> None:
    rows = rows_of(made)
    for row in rows:
        result = made.scores.heads[row["head"].split(" ")[0]]
        metric = row.get("metric", result.metric)
        name = " Pearson" if made.kind.name in ("pairs", "numbers") else ""
        assert row[f"validation{name}"] == spread(result.summary["validation"][metric])
        assert row[f"test{name}"] == spread(result.summary["test"][metric])
        assert row["95 % interval"] == interval(result.summary["test"][metric])
    assert {row["head"].split(" ")[0] for row in rows} == set(HEADS_OF[made.kind.name])


def test_rows_that_share_a_text_are_reported_in_the_summary_and_on_screen(
    made: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "test: 9 of 30 rows share a text with other rows; intervals draw the 25 sets that share no text whole"
    assert "not independent" not in summary(made)
    header = replace(made.scores.header, task={**made.scores.header.task, "shared_rows": {"test": note}})
    told = replace(made, scores=replace(made.scores, header=header))
    assert f"**Rows that are not independent**, {note}." in summary(told)
    show_run(Path("runs/made"), told.scores)
    assert f"\n{note}.\n" in capsys.readouterr().out  # on a line of its own, however narrow the screen


def test_columns_that_only_a_kind_has(pairs: MadeRun, classes: MadeRun, words: MadeRun) -> None:
    cosine, mlp = rows_of(pairs)
    chosen = pairs.scores.heads["layer-cosine"].chosen
    assert cosine["head"] == f"layer-cosine ({chosen['layer']}, {chosen['kind']})"
    assert (cosine["seeds"], cosine["epochs"], mlp["seeds"]) == ("-", "-", "2")
    assert mlp["test Spearman"] == spread(pairs.scores.heads["cosine-mlp"].summary["test"]["spearman"])
    probe = classes.scores.heads["logistic-probe"]
    first, second = (row for row in rows_of(classes) if row["head"] == "logistic-probe")
    assert (first["metric"], second["metric"]) == classes.task.metrics
    gain = 100 * (probe.mean("test") - probe.extras["default"]["scores"]["test"])
    assert (first["test, chosen - default"], second["test, chosen - default"]) == (f"{gain:+.1f}", "-")
    strict = words.with_head("token-mix", options={**words.scores.heads["token-mix"].options, "is_strict": True})
    assert [row["metric"] for row in rows_of(strict)] == ["span-f1", "span-f1 (strict)"]
    assert rows_of(words)[0]["seeds"] == "2"


def test_baselines_stand_below_the_heads_and_are_compared_with_each(made: MadeRun) -> None:
    titles, rows = result_rows(made.scores, made.kind.report)
    baselines = made.scores.baselines
    assert [row[0] for row in rows[-len(baselines) :]] == [f"{name} (baseline)" for name in baselines]
    for row, scores in zip(rows[-len(baselines) :], baselines.values(), strict=True):
        metric = next(iter(made.scores.heads.values())).metric
        title = next(title for title in titles if title.startswith("test"))
        assert row[titles.index(title)] == spread(scores.summary["test"][metric])
    text = summary(made)
    for name, scores in baselines.items():
        assert f"- `{name}`: {scores.note}" in text
        for head, gap in scores.leads.items():
            [line] = [line for line in text.splitlines() if line.startswith(f"| `{head}` | ") and " to " in line]
            assert f"{100 * gap.value:+.1f} ({100 * gap.low:+.1f} to {100 * gap.high:+.1f})" in line
    assert "the best baseline, `" in run_lead(made.scores, made.kind.report.bare, {})


def test_a_run_without_a_test_split_has_dashes(made: MadeRun) -> None:
    name = next(iter(made.scores.heads))
    kept = {split: found for split, found in made.scores.heads[name].summary.items() if split != "test"}
    row = rows_of(made.with_head(name, summary=kept))[0]
    assert [value for title, value in row.items() if title.startswith(("test", "95"))] == ["-"] * (
        2 if made.kind.name == "words" else 3
    )
    splits = (("validation", "test"), ("validation",), ("train",))
    reported = [make_result(summary={name: {} for name in names}).reported_split for names in splits]
    assert reported == ["test", "validation", "validation"]


def test_a_terminal_has_the_columns_that_fit(made: MadeRun) -> None:
    console = Console(file=StringIO(), width=200)
    console.print(screen_table(made.scores, made.kind.report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "made: planted on planted" in text
    assert "epochs" not in text
    assert all(spread(result.summary["test"][result.metric]) in text for result in made.scores.heads.values())


def test_every_kind_has_the_same_document(made: MadeRun) -> None:
    told = made.with_header(task={"is_sample": True, "notes": ["look here"]}, protocol="magnet")
    text = summary(told, **{"A figure": ("figures/a.png",)})
    name, lead, sample = text.split("\n\n")[:3]
    assert name == "# made"
    assert lead.startswith("The ")
    assert sample.startswith("> The task is a **sample** shipped with the project")
    assert "Command: `icecore run made.yaml`" in text
    assert section(text, "Data notes") == ["- look here"]
    assert section(text, "Figures") == ["![A figure](figures/a.png)"]
    used = "\n".join(section(text, "What was used"))
    for fact in (
        "Decoder: `planted` (llama, 3 blocks, width 12, float32, weights `wwwwwwwwwwww`, revision `local`)",
        "Plan `causal`, poolings mean",
        "BOS policy `auto`, instruction ''",
        "0 truncated",
        "Task: `planted`, made up; train 48, validation 32, test 32",
        "Commit `not a checkout`, device `cpu`, float32 products by oneDNN, AVX512, torch 2",
    ):
        assert fact in used
    for name, result in made.scores.heads.items():
        assert f"`{name}` on {result.selection}" in text
    assert "100-fold bootstrap over test" in text
    assert "(protocol `magnet`, docs/protocol.md)" in text
    assert "benchmark" not in summary(made)
    assert "Data notes" not in summary(made)


def test_an_optimistic_head_is_marked(made: MadeRun) -> None:
    assert "nothing was chosen on test (protocol `icecore`" in summary(made)
    name = next(iter(made.scores.heads))
    changed = made.with_head(name, optimistic_because="the epoch is chosen on test", departures=("words are cut",))
    text = summary(changed)
    assert f"> `{name}` is **optimistic**: the epoch is chosen on test." in text
    assert "nothing was chosen on test" not in text
    assert section(text, "Departures from the protocol `icecore`") == [f"- `{name}`: words are cut"]
    assert [row["head"].endswith("(optimistic)") for row in rows_of(changed)] == [
        row["head"].startswith(name) for row in rows_of(changed)
    ]


def subset(n: int, mean: float | None = None) -> dict[str, Any]:
    return {"n": n} if mean is None else {"n": n, "pearson": asdict(make_summary(mean, 2))}


def test_subsets_that_have_rows_are_scored(pairs: MadeRun) -> None:
    subsets = {"full": subset(40), "clean": subset(33, 0.3), "leaked": subset(7), "repeated": subset(0)}
    for name, result in pairs.scores.heads.items():
        pairs = pairs.with_head(name, extras={**result.extras, "subsets": subsets})
    lines = section(summary(pairs), "Subsets of test")
    assert "| head | clean, 33 rows | leaked, 7 rows |" in lines  # not the whole, nor what is empty
    assert "| cosine-mlp | 30.0 ± 2.0 (20.0 to 40.0) | - |" in lines
    assert "- clean: no sentence of the row is in train" in lines
    assert not any("repeated" in line or "full" in line for line in lines)
    for empty in ({}, {"full": subset(8), "leaked": subset(0)}):
        for name, result in pairs.scores.heads.items():
            pairs = pairs.with_head(name, extras={**result.extras, "subsets": empty})
        assert "Subsets of test" not in summary(pairs)


def test_the_summary_shows_where_pair_heads_are_wrong(pairs: MadeRun) -> None:
    wrong = {
        "bias": -0.25,
        "mean_absolute": 0.5,
        "root_mean_square": 0.75,
        "gold_against_overlap": 0.5,
        "size_against": {"n_words": 0.125, "overlap": -0.5, "gold": NAN},
        "prediction_against_overlap": 0.75,
        "quarters": {
            "n_words": [{"low": 2.0, "high": 11.0, "n": 39, "pearson": 0.625, "mean_absolute": 0.25}],
            "overlap": [{"low": 0.0, "high": 0.5, "n": 1, "pearson": NAN, "mean_absolute": 1.0}],
        },
    }
    best = pairs.scores.heads["layer-cosine"]
    both = {"test": wrong, "validation": {**wrong, "bias": 9.0}}
    made = pairs.with_head("layer-cosine", extras={**best.extras, "residuals": both})
    lines = section(summary(made), "Where the heads are wrong")
    assert "| layer-cosine | test | 0.50 | 0.75 | -0.25 | +0.12 | -0.50 | - | +0.75 (+0.50) |" in lines
    assert "| words of the pair | 2 to 11 | 39 | 62.5 | 0.25 |" in lines
    assert "| lexical overlap | 0.00 to 0.50 | 1 | - | 1.00 |" in lines
    assert any("stay together), `layer-cosine` on test:" in line for line in lines)
    [worst] = (line for line in lines[lines.index("|---|---|---|---|") + 1 :][:1])
    gold = np.array(pairs.task.splits["test"]["score"])
    row = int(np.argmax(np.abs(best.predictions["test"] - gold)))
    found = best.predictions["test"][row]
    assert worst == f"| {gold[row]:.1f} | {found:.1f} | test {row} left | test {row} right |"
    assert "Furthest off, `cosine-mlp`" in summary(made.with_head("layer-cosine", selection_score=NAN))


def test_a_prediction_that_depends_on_the_text_has_no_number(pairs: MadeRun) -> None:
    first, second = pairs.scores.heads["cosine-mlp"].seeds
    seeds = ({**first, "identical_similarity": 0.875}, {**second, "identical_similarity": None})
    text = summary(pairs.with_head("cosine-mlp", seeds=seeds))
    assert "- `cosine-mlp`: 0.875, depends on the text" in text
    assert "- `layer-cosine`: 1.000" in text


def test_the_summary_of_classes_has_the_facts_of_the_solver(classes: MadeRun) -> None:
    probe = classes.scores.heads["logistic-probe"]
    found = probe.extras["convergence"]
    text = summary(classes)
    assert "The default of `logistic-probe` is final_norm, C 1: the highest layer and the C nearest 1." in text
    used = "\n".join(section(text, "What was used"))
    assert f"- `logistic-probe`: {found['n_converged']} of {found['n_problems']} problems converged" in used
    assert "SMOTE (`times-5`) added 192 rows to 48; 0 classes have fewer than 5 neighbours, 0 have one row" in used
    assert "- Classes: 2" in used
    assert "the released code's limit" not in text
    released = summary(classes.with_header(protocol="look-both-ways"))
    took = f"it took {found['chosen']['n_iterations']} and converged"
    limit = probe.options["max_iterations"]
    assert f"> `logistic-probe` may take {limit} iterations, the released code's limit; {took}." in released
    extras = {**probe.extras, "oversampled": {**probe.extras["oversampled"], "clipped": ["a"], "duplicated": ["b"]}}
    assert "1 classes have fewer than 5 neighbours, 1 have one" in summary(
        classes.with_head("logistic-probe", extras=extras)
    )
    assert "test groups" in summary(classes.with_header(task={"has_groups": True}))


def test_the_summary_of_words_has_its_tables(words: MadeRun) -> None:
    text = summary(words)
    result, mix = words.scores.heads["token-classifier"], words.scores.heads["token-mix"].extras["mix"]
    decoded = section(text, "How tags are decoded")
    scores = " | ".join(f"{100 * value:.1f}" for value in result.extras["decoding"]["test"].values())
    way = result.chosen["decoding"]
    assert f"| token-classifier | test | {way} | {scores} |" in decoded
    lead = next(line for line in text.splitlines() if line.startswith("| token-classifier"))
    assert f"| {result.chosen['layer']}, {way} tags |" in lead
    assert not any("| train |" in line for line in decoded)
    row = result.extras["by_type"]["test"][0]
    shares = " | ".join(f"{100 * row[key]:.1f}" for key in ("precision", "recall", "f1"))
    assert f"| {row['type']} | {shares} | {row['n_gold']} |" in section(text, "`token-classifier` by type, test")
    wrong = result.extras["errors"]["test"][0]
    lines = section(text, "Most frequent errors of `token-classifier`, test, first seed")
    assert lines[2] == (f"| {wrong['gold']} | {wrong['predicted']} | {wrong['n']} | {', '.join(wrong['words'])} |")
    [curve] = result.curves
    layers = section(text, "`token-classifier`: every layer, validation")
    assert f"| block_02 | {100 * curve.values[2]:.1f} ± {100 * curve.spread[2]:.1f} |" in layers
    assert "`token-mix`: every layer" not in text
    weights = section(text, "What each layer gives `token-mix`")
    assert any(line.startswith(f"| embedding | {mix['weights'][0]:.3f} | ") for line in weights)
    used = "\n".join(section(text, "What was used"))
    assert "2 cut off, 0 covered by no token, 0 begin inside a token; 0 sentences read in windows" in used
    n_words = {split: sum(map(len, rows["words"])) for split, rows in words.task.splits.items()}
    assert f"- Words: train {n_words['train']}, validation {n_words['validation']}, test {n_words['test']}" in used
    assert f"words without a latent: train 1 of {n_words['train']}, validation 1 of" in used


def test_what_breaks_a_table_is_escaped(words: MadeRun) -> None:
    result = words.scores.heads["token-mix"]
    errors = {"test": [{"gold": "O", "predicted": "B|X", "n": 3, "words": ["a|b", "`c`"]}]}
    text = summary(words.with_head("token-mix", extras={**result.extras, "errors": errors}))
    assert "| O | B\\|X | 3 | a\\|b, 'c' |" in text


@pytest.mark.parametrize(
    ("left_out", "line"),
    [
        ((False, False), "A word without a latent is an error."),
        ((True, True), "Words without a latent are left out of the scores."),
        ((False, True), "A word without a latent is an error; `token-mix` leaves such words out of its scores."),
    ],
)
def test_words_without_a_latent(words: MadeRun, left_out: tuple[bool, bool], line: str) -> None:
    for (name, result), leaves_out_cut in zip(words.scores.heads.items(), left_out, strict=True):
        words = words.with_head(name, options={**result.options, "leaves_out_cut": leaves_out_cut})
    rules = "Spans are counted by the rules of conlleval, unless marked strict."
    assert list(words.kind.report.remarks(context(words))) == [f"{rules} {line}"]
    assert line in summary(words)


def test_the_losses_of_autoencoders_are_reported(pairs: MadeRun, tmp_path: Path) -> None:
    assert "Layer-wise autoencoders" not in summary(pairs)
    begun = replace(pairs, scores=replace(pairs.scores, pretraining={"autoencoders": AUTOENCODERS}))
    write_pretraining(tmp_path, make_pretraining())
    write_pretraining(tmp_path, make_pretraining())  # once more into the same folder
    alone = (tmp_path / "summary.md").read_text(encoding="utf-8")
    for text in (summary(begun), alone):
        [line] = section(text, "Layer-wise autoencoders")
        assert line.startswith("- `mean+last`: codes of 4, 8, 1,900 texts, epochs 1 to 2 of 2")
        assert "on 100 held-out texts: 0.500 on average, 0.250 (mean/block_01) to 0.750 (mean/final_norm)" in line
    assert "Command: `icecore run made.yaml`" in alone
    for stem in ("autoencoder_mean_last", "autoencoder_mean_last_history"):
        assert f"](figures/{stem}.png)" in alone
        assert (tmp_path / "figures" / f"{stem}.png").is_file()


FIGURES = {
    "pairs": [
        "layer_cosine_curve",
        "layer_cosine_residuals",
        "cosine_mlp_layers",
        "cosine_mlp_history",
        "cosine_mlp_residuals",
        "layer_cosine_rows",
        "cosine_mlp_rows",
    ],
    "classes": [
        "logistic_probe_layers",
        "logistic_probe_confusion",
        "cosine_threshold_layers",
        "cosine_threshold_confusion",
    ],
    "numbers": ["ridge_probe_curve", "ridge_probe_rows"],
    "words": [
        "token_classifier_layers",
        "token_classifier_confusion",
        "token_classifier_history",
        "token_mix_weights",
        "token_mix_confusion",
        "token_mix_history",
        "token_classifier_rows",
        "token_mix_rows",
    ],
}


def test_a_run_folder_is_whole(
    made: MadeRun, folder: Path, listing: Callable[[Path], list[str]], read_json: Callable[[Path], Any]
) -> None:
    files = ["predictions.csv", "report.drawn.json", "report.html", "scores.json", "summary.md"]
    files += ["predictions_scored.csv"] * (made.kind.name in ("pairs", "words"))  # of every seed
    conll = [f"predictions/{split}.conll" for split in made.task.splits if made.kind.name == "words"]
    figures = [f"figures/{stem}.png" for stem in FIGURES[made.kind.name]]
    assert listing(folder) == sorted([*files, *conll, *figures])
    text = (folder / "summary.md").read_text(encoding="utf-8")
    for file in figures:
        assert f"]({file})" in text
        with Image.open(folder / file) as image:
            assert min(image.size) > 300
            assert np.ptp(np.asarray(image.convert("L"))) > 100
    written = read_json(folder / "scores.json")
    assert written == sealed_scores(made.scores.to_dict())
    assert written.pop("sha256") == seal_scores(written)
    assert written == without_nan(made.scores.to_dict())
    assert without_nan(read_run(written).to_dict()) == written
    assert {key: written[key] for key in ("schema", "what", "kind")} == {
        "schema": 3,
        "what": "run",
        "kind": made.kind.name,
    }


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{", "", '{"sha256": "x"}'])
def test_scores_json_that_is_damaged_is_written_again(
    text: str, tmp_path: Path, read_json: Callable[[Path], Any]
) -> None:
    write_pretraining(tmp_path, make_pretraining())
    written = read_json(tmp_path / "scores.json")
    (tmp_path / "scores.json").write_text(text, encoding="utf-8")
    write_pretraining(tmp_path, make_pretraining())
    assert read_json(tmp_path / "scores.json") == written


def test_a_missing_number_is_null_in_json() -> None:
    result = make_result(score=NAN, extras={"alone": [0.1, NAN], "inner": ({"x": float("inf")},)})
    found = without_nan(result.to_dict())
    assert found["selection_score"] is found["summary"]["test"]["accuracy"]["mean"] is None
    assert found["extras"] == {"alone": [0.1, None], "inner": [{"x": None}]}


def test_scores_of_another_schema_are_refused(pairs: MadeRun) -> None:
    values = pairs.scores.to_dict()
    with pytest.raises(ValueError, match=r"scores\.json has schema 2 of a run; this version reads schema 3"):
        read_run({**values, "schema": 2})
    with pytest.raises(ValueError, match="schema 3 of a sweep"):
        read_run({**values, "what": "sweep"})


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


INPUTS = {
    "pairs": ["sentence1", "sentence2"],
    "classes": ["text1", "text2"],
    "numbers": ["text"],
    "words": ["position", "word"],
}


def test_predictions_have_one_format(made: MadeRun, folder: Path) -> None:
    rows = read_rows(folder)
    assert list(rows[0]) == ["split", "row", *INPUTS[made.kind.name], "gold", *made.scores.heads]
    for split in made.task.splits:
        part = [row for row in rows if row["split"] == split]
        if made.kind.name != "words":
            table = made.task.splits[split]
            assert [int(row["row"]) for row in part] == list(range(len(table)))
            for column in INPUTS[made.kind.name]:
                assert [row[column] for row in part] == list(table[column])
        gold = made.kind.report.gold(made.task, split)
        assert [row["gold"] for row in part] == [str(value) for value in gold]
        for name, result in made.scores.heads.items():
            found = result.predictions[split]
            assert len(part) == len(found)
            if result.names:
                names = (*result.names[split], "")  # -1 is no prediction
                assert [row[name] for row in part] == [names[k] for k in found]
            else:
                np.testing.assert_allclose([float(row[name]) for row in part], found, atol=5e-5)


def test_predictions_of_words_name_sentence_and_position(words: MadeRun, write_once: Callable[[str], Path]) -> None:
    folder = write_once("words")
    rows = read_rows(folder)
    sentences = words.task.splits["test"]
    wanted = [
        (str(row), str(position), word, tag)
        for row, (names, tags) in enumerate(zip(sentences["words"], sentences["tags"], strict=True))
        for position, (word, tag) in enumerate(zip(names, tags, strict=True))
    ]
    found = [(row["row"], row["position"], row["word"], row["gold"]) for row in rows if row["split"] == "test"]
    assert found == wanted
    assert [row["token-mix"] for row in rows if row["split"] == "train"][1] == ""  # the word that was cut
    lines = (folder / "predictions" / "train.conll").read_text(encoding="utf-8").split("\n")
    tagged = [line.split("\t") for line in lines if line]
    assert tagged[1][2:] == [".", "."]
    assert [row[0] for row in tagged] == [row["word"] for row in rows if row["split"] == "train"]


def test_a_head_that_records_nothing_more_than_its_scores_is_reported(made: MadeRun, tmp_path: Path) -> None:
    """As one that a user registered: no extras, no baselines, and of its seeds their numbers alone."""
    for name in made.scores.heads:
        bare = made.with_head(
            name, extras={}, baselines={}, seeds=({"seed": 0},), options={}, row_scores={}, curves=(), chosen={}
        )
        page, document = page_of_run(tmp_path, Album(tmp_path / name, ("png",)), Pictures(), context(bare))
        assert (
            f"`{name}`" in page.answers[0]
            or HEAD_WORDS.get(name, name) in page.answers[0]
            or len(made.scores.heads) > 1
        )
        assert f"`{name}`" in document.answer or len(made.scores.heads) > 1
        assert any(name in row[0] for block in document.blocks if isinstance(block, Table) for row in block.rows)


def lead(made: MadeRun) -> str:
    return run_lead(replace(made.scores, baselines={}), made.kind.report.bare, made.kind.report.rows(made.task))


def test_every_kind_has_two_sentences(made: MadeRun) -> None:
    first, second = re.split(r"\. (?=On )", lead(made))
    best = best_result(made.scores.heads.values())
    assert f"head is `{best.name}` (" in first
    assert "under the plan `causal`: " in first
    assert f" {100 * best.mean('validation'):.1f}" in first
    assert ("the next head, `" in first) is (len(made.scores.heads) > 1)
    found = best.summary["test"][best.metric]
    interval = f" (95 % interval {100 * found.low:.1f} to {100 * found.high:.1f})"
    if found.low == 1:
        interval = " (every row is right, so resampling says nothing about new ones)"
    assert re.match(rf"On test it has {100 * found.mean:.1f}( ± [\d.]+)?{re.escape(interval)}[,.]", second)


@pytest.mark.parametrize(("value", "says"), [(1.0, "100.0 (every row"), (0.0, "0.0 (no row")])
def test_an_interval_without_width_is_not_reported(classes: MadeRun, value: float, says: str) -> None:
    best = best_result(classes.scores.heads.values())
    summary = SeedSummary(value, 0.0, value, value, 0.95, (value,))
    made = classes.with_head(best.name, summary={**best.summary, "test": {best.metric: summary}})
    assert f"On test it has {says} is right, so resampling says nothing about new ones)" in lead(made)
    assert "95 % interval" not in lead(made).partition("On test")[2]


def of_earlier_version(made: MadeRun) -> MadeRun:
    return replace(made, scores=replace(made.scores, over_cosine={}))


@pytest.mark.parametrize("kind", ["raw", "standardised"])
def test_pairs_stand_beside_the_cosine_of_the_top_layer_of_the_same_kind(pairs: MadeRun, kind: str) -> None:
    cosine = pairs.scores.heads["layer-cosine"]
    made = pairs.with_head("layer-cosine", chosen={**cosine.chosen, "kind": kind}, selection_score=2.0)
    [score] = [
        curve.values[-1]
        for curve in cosine.curves
        if (curve.name, curve.split, curve.metric) == (kind, "test", "pearson")
    ]
    text = f", where the {kind} cosine of the top layer has {100 * score:.1f}."
    assert text in lead(of_earlier_version(made))
    assert text not in lead(made)
    constant = tuple(replace(curve, values=(NAN,) * len(curve.values)) for curve in cosine.curves)
    assert lead(made.with_head("layer-cosine", curves=constant)).endswith(").")
    top = made.with_head("layer-cosine", chosen={"kind": kind, "layer": cosine.layers[-1]}, selection_score=2.0)
    assert f", which is the {kind} cosine of the top layer." in lead(top)


@pytest.mark.parametrize(("is_standardised", "kind"), [(True, "standardised"), (False, "raw")])
def test_a_trained_head_stands_beside_latents_prepared_as_its_own(
    pairs: MadeRun, is_standardised: bool, kind: str
) -> None:
    options = {"standardises_latents": is_standardised}
    made = pairs.with_head("cosine-mlp", options=options, selection_score=2.0)
    assert f", where the {kind} cosine of the top layer has " in lead(of_earlier_version(made))


@pytest.mark.parametrize(("is_standardised", "kind"), [(True, "standardised"), (False, "raw")])
def test_the_lead_over_the_cosine_of_the_top_layer_has_a_paired_interval(
    pairs: MadeRun, is_standardised: bool, kind: str
) -> None:
    """By the library's own paired bootstrap, called by hand on latents that are read and prepared by hand."""
    made = pairs.with_head("cosine-mlp", options={"standardises_latents": is_standardised}, selection_score=2.0)
    head, rows, cache = made.scores.heads["cosine-mlp"], pairs.task.splits["test"], pairs.cache
    train = pairs.task.splits["train"]
    texts = list(dict.fromkeys([*train["sentence1"], *train["sentence2"]]))
    fitted_on = cache.gather(cache.rows_of(texts), head.pooling, layers=[head.layers[-1]])[0]
    one, other = (
        cache.gather(cache.rows_of(list(rows[column])), head.pooling, layers=[head.layers[-1]])[0]
        for column in ("sentence1", "sentence2")
    )
    if is_standardised:
        mean, scale = fitted_on.mean(0), fitted_on.std(0, correction=0)
        one, other = (one - mean) / scale, (other - mean) / scale
    cosine = torch.nn.functional.cosine_similarity(one, other).numpy()
    units = pairs.task.units("test") or [str(row) for row in range(len(cosine))]
    values, resampled = paired_scores(
        [*head.scored["test"], cosine],
        list(rows["score"]),
        metric="pearson",
        units=list(map(str, units)),
        resampling=Resampling(100),
    )
    scores, draws = np.array([values[:-1].mean(), values[-1]]), np.stack([resampled[:-1].mean(0), resampled[-1]])
    gap = difference(scores, draws, 0, 1, n_units=len(set(units)))
    leads = leads_over_cosine(made.scores.heads, task=pairs.task, report=pairs.kind.report, n_resamples=100)
    found = leads["cosine-mlp"]
    np.testing.assert_allclose((found.value, found.low, found.high), (gap.value, gap.low, gap.high), atol=2e-5)
    assert found.n_units == gap.n_units
    made = replace(made, scores=replace(made.scores, over_cosine=leads))
    name = f"the {kind} cosine of the top layer"
    assert re.search(rf"{name} \({100 * values[-1]:.1f}[;)]", lead(made))
    if found.n_units >= FEW_UNITS:
        assert f"{100 * found.value:+.1f}" in lead(made)


@pytest.mark.parametrize(
    ("ends", "n", "text"),
    [
        ((0.01, 0.09), 60, ", +5.0 (+1.0 to +9.0, n = 60) over the standardised cosine of the top layer ("),
        ((-0.01, 0.11), 60, ", statistically tied with the standardised cosine of the top layer ("),
        ((-0.09, -0.01), 60, ", -5.0 (-9.0 to -1.0, n = 60) and **worse** than the standardised cosine of the top"),
        (
            (0.01, 0.09),
            8,
            ", too few rows (8, fewer than 30) to claim a difference from the standardised cosine of",
        ),
    ],
)
def test_what_a_head_adds_to_the_cosine_of_the_top_layer_is_said(
    pairs: MadeRun, ends: tuple[float, float], n: int, text: str
) -> None:
    made = pairs.with_head("cosine-mlp", selection_score=2.0)
    over = {"cosine-mlp": Lead(sum(ends) / 2, *ends, n)}
    assert text in lead(replace(made, scores=replace(made.scores, over_cosine=over)))


def test_the_margin_over_the_next_head_has_a_paired_interval(pairs: MadeRun) -> None:
    """By the library's own paired bootstrap, called by hand, around the difference of the scores."""
    heads = pairs.scores.heads
    best = best_result(heads.values())
    [other] = [result for result in heads.values() if result is not best]
    gold = list(pairs.task.splits["validation"]["score"])
    predicted = [result.predictions["validation"] for result in (best, other)]
    units = [str(k) for k in range(len(gold))]
    values, resampled = paired_scores(predicted, gold, metric="pearson", units=units, resampling=Resampling(100))
    gap = difference(values, resampled, 0, 1, n_units=len(gold))
    value, reach = best.mean("validation") - other.mean("validation"), gap.high - gap.value
    ends = f"{100 * (value - reach):+.1f} to {100 * (value + reach):+.1f}, n = {len(gold)}"
    text, score = lead(pairs), f"{100 * other.mean('validation'):.1f}"
    if value > reach:
        assert f", {100 * value:+.1f} ({ends}) over the next head, `{other.name}` ({score})." in text
    else:
        assert (
            f", statistically tied with the next head, `{other.name}` ({score}; difference {100 * value:+.1f}, {ends})."
            in text
        )


def test_a_clear_margin_a_tie_and_too_few_rows_are_said_as_such(classes: MadeRun) -> None:
    best = best_result(classes.scores.heads.values())
    [name] = [name for name in classes.scores.heads if name != best.name]
    gold, names = classes.task.labels("validation"), tuple(classes.task.class_names)  # type: ignore[attr-defined]
    right = classes.with_head(best.name, predictions={"validation": gold}, names={"validation": names})
    zero = {split: {best.metric: make_summary(0.0)} for split in best.summary}
    wrong = right.with_head(
        name, predictions={"validation": 1 - gold}, names={"validation": names}, summary=zero, selection_score=0.0
    )
    assert re.search(rf", \+[\d.]+ \(.*, n = {len(gold)}\) over the next head, `{name}`", lead(wrong))
    same = right.with_head(
        name, predictions={"validation": gold}, names={"validation": names}, summary=best.summary, selection_score=0.0
    )
    assert re.search(rf", statistically tied with the next head, `{name}` \(.*difference \+0\.0, ", lead(same))
    few = {
        split: replace(rows, units=[str(k % (FEW_UNITS - 1)) for k in range(len(rows.gold))])
        for split, rows in wrong.kind.report.rows(wrong.task).items()
    }
    text = run_lead(wrong.scores, wrong.kind.report.bare, few)
    assert re.search(
        rf", too few rows \(29, fewer than 30\) to claim a difference from the next head, `{name}` \([\d.]+\)", text
    )
    assert f", the next head, `{name}`, has " in run_lead(wrong.scores, wrong.kind.report.bare, {})


def test_a_head_without_test_or_with_folds_is_told_as_it_was_chosen(numbers: MadeRun) -> None:
    probe = numbers.scores.heads["ridge-probe"]
    kept = {"validation": probe.summary["validation"]}
    rmse = {"rmse": {"validation": {"probe": 0.5, "mean_of_train": 1.25}}}
    text = lead(numbers.with_head("ridge-probe", summary=kept, extras=rmse))
    assert text.endswith("with an RMSE of 0.500 where always predicting the mean has 1.250.")
    assert ". On validation it has " in text
    folds = numbers.with_head("ridge-probe", selection="5-fold cross-validation on train", selection_score=0.625)
    assert ": Pearson 62.5 on 5-fold cross-validation on train. On test" in lead(folds)


def test_the_answer_marks_an_optimistic_head(classes: MadeRun) -> None:
    best = best_result(classes.scores.heads.values())
    assert lead(classes.with_head(best.name, optimistic_because="x")).endswith(", which is optimistic.")


def test_what_has_no_score_or_interval_is_told_so() -> None:
    plans = make_plans(OVER_K)
    for summary, end in ((make_summary(NAN), " no score."), (replace(make_summary(0.5), low=NAN), " 50.0.")):
        result = make_result(summary={"validation": {"accuracy": make_summary(0.5)}, "test": {"accuracy": summary}})
        chosen = {"head": PlanChoice(plans.plans[0].plan, result)}
        assert plans_lead(replace(plans, chosen=chosen)).endswith(f"On test it has{end}")


def test_a_head_without_a_score_is_the_last_choice() -> None:
    assert best_result([make_result("a", NAN), make_result("b", -0.5), make_result("c", -0.5)]).name == "b"


def test_a_sweep_names_its_plan_the_next_one_and_the_gain() -> None:
    plans = make_plans([("causal", 0.5), ("backward:1", 0.6), ("backward:2", 0.75)])
    assert plans_lead(plans) == (
        "The best of 3 plans is `backward:2`, with the head `head` (final_norm, pooling mean): accuracy 75.0 on "
        "validation; the next plan, `backward:1`, has 60.0. On test it has 75.0 (95 % interval 65.0 to 85.0), "
        "+25.0 (+20.0 to +30.0, n = 60) over the plan `causal` (50.0)."
    )
    [(name, choice)] = plans.chosen.items()
    earlier = plans_lead(replace(plans, chosen={name: replace(choice, lead=None)}))
    assert earlier.endswith(" 65.0 to 85.0), where the plan `causal` has 50.0.")
    untouched = PlanChoice(plans.plans[0].plan, make_result("head", 0.9), PlanGain("accuracy", "causal", 0.9, 0.9))
    text = plans_lead(replace(plans, chosen={"head": untouched}))
    assert text.endswith("), and is the plan one would take without choosing.")


@pytest.mark.parametrize("score", [0.75, 0.5])
def test_a_search_names_what_it_found_and_what_it_cost(score: float) -> None:
    plans = make_plans([("causal", score)], search=make_search(["causal", "backward:1"]), cost=None)
    assert plans.search
    assert plans_lead(plans).startswith(
        "Of 2 plans the search found `causal` at 0.50 of the cost of scoring all, with the head `head` (final_norm, "
        f"pooling mean): accuracy {100 * score:.1f} on validation. On test it has {100 * score:.1f} (95 % interval "
    )


def test_a_search_says_how_many_points_failed() -> None:
    search = replace(make_search(["causal", "backward:1"]), n_asked=3)
    failed = (FailedPoint({"plan": "backward:9"}, "it has 6 blocks"),)
    plans = replace(make_plans([("causal", 0.75)], search=search, cost=None), failed=failed)
    assert plans_lead(plans).startswith("Of 3 plans, of which 1 failed, the search found `causal` at 0.50 of the cost ")
    assert next(search_blocks(search, "causal", "plan")).startswith(  # type: ignore[union-attr]
        "Strategy `halving` over 2 of 3 plans (the others failed), by `head`: 1,040 block passes times texts, 0.500 of "
        "the 2,080 that all of them on all 4,000 texts of train and validation cost (budget 0.5)."
    )


def test_the_best_head_of_a_sweep_opens_its_summary() -> None:
    plans = make_plans(OVER_K)
    rows = tuple(replace(row, heads={**row.heads, "other": make_result("other", 0.9)}) for row in plans.plans)
    other = PlanChoice(rows[1].plan, make_result("other", 0.9, summary={"validation": {"accuracy": make_summary(0.9)}}))
    text = plans_lead(replace(plans, plans=rows, chosen={**plans.chosen, "other": other}))
    assert text.startswith("The best of 4 plans is `backward:1`, with the head `other` (final_norm, pooling mean): ")
    assert text.endswith(". On validation it has 90.0 (95 % interval 80.0 to 100.0).")


def sweep_summary(scores: PlansScores, report: KindReport, figures: Mapping[str, Sequence[str]]) -> str:
    return summary_text(plans_document(scores, report), figures)


def test_the_gain_of_a_plan_has_a_paired_interval_over_rows_and_all_fits(pairs: MadeRun) -> None:
    """By the library's own paired bootstrap, called by hand; the two plans are played by two heads."""
    one, other = (pairs.scores.heads[name] for name in ("cosine-mlp", "layer-cosine"))
    gold = list(pairs.task.splits["test"]["score"])
    units = list(map(str, pairs.task.units("test") or range(len(gold))))
    fits = [*one.scored["test"], *other.scored["test"]]
    values, resampled = paired_scores(fits, gold, metric="pearson", units=units, resampling=Resampling(100))
    n = len(one.scored["test"])
    assert n == 2
    draws = np.stack([resampled[:n].mean(0), resampled[n:].mean(0)])
    gap = difference(np.array([values[:n].mean(), values[n:].mean()]), draws, 0, 1, n_units=len(set(units)))
    found = lead_over_plan(one, other, task=pairs.task, report=pairs.kind.report, n_resamples=100)
    assert found.value == one.mean("test") - other.mean("test")
    np.testing.assert_allclose((found.value, found.low, found.high), (gap.value, gap.low, gap.high), atol=1e-6)
    assert found.n_units == gap.n_units


def test_pairs_are_drawn_by_their_zero_shot_score() -> None:
    scores = make_plans(OVER_K)
    assert list(plan_scores(scores, REPORTS["pairs"]).values()) == pytest.approx([25, 30, 35, 27.5])
    assert plan_score_label(scores, REPORTS["pairs"]) == ("Zero-shot, final norm", "Spearman")
    assert plan_score_label(scores, REPORTS["classes"]) == ("head, best layer", "accuracy")
    assert "| plan | zero-shot Spearman, final norm | head accuracy |" in sweep_summary(scores, REPORTS["pairs"], {})
    assert "| `backward:2` | 35.0 | 70.0 |" in sweep_summary(scores, REPORTS["pairs"], {})


def test_a_sweep_is_summarised() -> None:
    text = sweep_summary(make_plans(OVER_K), REPORTS["classes"], {"A sweep": ("sweep.svg", "sweep.pdf")})
    assert "its scores are no benchmark result" in text
    assert "4 plans, 5 block passes per batch instead of 20 (0.25)." in text
    assert "| head | plan | validation accuracy | test accuracy | 95 % interval | test, chosen - causal |" in text
    assert "| head | `bidirectional:1`, final_norm | 55.0 | 55.0 | 45.0 to 65.0 | +5.0 (+0.0 to +10.0) |" in text
    assert "Test was read for bidirectional:1, after everything was chosen." in text
    assert "| plan | head accuracy |\n" in text
    assert "| `backward:1` | 60.0 |\n" in text
    assert "![A sweep](sweep.svg) [pdf](sweep.pdf)\n" in text
    every = sweep_summary(make_plans(OVER_K, test_read=EVERY_PLAN), REPORTS["classes"], {"A sweep": ("sweep.pdf",)})
    assert "A sweep: [pdf](sweep.pdf)\n" in every
    assert "a plan picked by its test score is a choice on test" in every
    assert "| plan | head accuracy | test, head accuracy |" in every
    assert "| `backward:1` | 60.0 | 60.0 |" in every


def test_a_choice_without_test_has_dashes() -> None:
    scores = make_plans(OVER_K)
    result = make_result("head", 0.7, summary={"validation": {"accuracy": make_summary(0.7)}})
    chosen = {"head": PlanChoice(parse_plan("backward:2"), result)}
    text = sweep_summary(replace(scores, chosen=chosen, test_read="no plan"), REPORTS["classes"], {})
    assert "| head | `backward:2`, final_norm | 70.0 | - | - | - |" in text


@pytest.mark.parametrize(
    "plans", [["backward:1", "backward:2", "causal"], ["bidirectional:1", "nosink-bidirectional:1+bidirectional:1"]]
)
def test_a_search_is_reported(plans: list[str], tmp_path: Path) -> None:
    scores = make_plans([(plans[-1], 0.9)], search=make_search(plans), cost=None)
    write_plans(tmp_path, scores, REPORTS["classes"])
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert f"Strategy `halving` over {len(plans)} plans, by `head`: 1,040 block passes times texts, 0.500 of" in text
    assert f"| 1 | {len(plans)} | 16 | 1,600 | 0.014 | `{plans[-1]}` | {10 * (len(plans) - 1):.1f} |" in text
    assert f"| 2 | 1 | 2,000 | 4,000 | 0.005 | `{plans[-1]}` | 90.0 |" in text
    assert f"| `{plans[0]}` | 0.0 | - |" in text
    assert_drawn(tmp_path / "search.png")


def test_a_sweep_writes_its_folder(tmp_path: Path) -> None:
    write_plans(tmp_path, make_plans(WINDOWS), REPORTS["classes"])
    files = ["report.drawn.json", "report.html", "scores.json", "summary.md", "sweep.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert_drawn(tmp_path / "sweep.png")


def assert_drawn(path: Path) -> None:
    with Image.open(path) as image:
        assert np.ptp(np.asarray(image.convert("L"))) > 100


def test_a_summary_holds_no_html() -> None:
    """Programs that show Markdown run the HTML in it."""
    bad = "<img src=x onerror=alert(1)>"
    document = Document(bad, bad, bad, [bad, Heading(bad), Item(bad), Caution(bad), Table([bad], [[f"``` {bad} `"]])])
    text = summary_text(document, {bad: ["figure.png", bad]})
    assert "<" not in text
    assert text.count("&lt;img src=x") == 11
    assert "\n> &lt;img" in text
