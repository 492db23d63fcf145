"""The tables of encoders without training are those of the committed JSON, of encoders that the preset still has."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.training_free_page import (
    ENCODERS,
    HEADS,
    PAGE,
    SOME,
    TABLE,
    blocks,
    command_of,
    csv_text,
    filled,
    read_sweep,
    read_tables,
)
from probes.report.document import EVERY_PLAN
from probes.report.scores import sealed_scores
from probes.runs.config_file import read_config
from probes.runs.grid import grid_of
from probes.runs.run_config import RunConfig, TaskSpec
from tests.probes.report.made_grid import make_grid

RESULTS = read_tables()


def test_the_tables_are_those_of_the_json() -> None:
    text, tables = PAGE.read_text(encoding="utf-8"), blocks(RESULTS)
    assert [name for name in tables if f"<!-- table: {name} -->" not in text] == []
    assert filled(text, tables) == text
    assert TABLE.read_text(encoding="utf-8") == csv_text(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_the_preset_is_what_was_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, task = name.split()
    monkeypatch.setattr("extract.decoders.decoder.read_n_blocks", lambda _: 30 if "smollm2" in decoder else 18)
    rows = RESULTS[name]["encoders"]
    points = grid_of(RunConfig(task=TaskSpec(task), heads={HEADS[task]: {}}), ["encoders"]).points
    assert [ENCODERS[point.values["encoder"]] for point in points] == list(rows)
    for point in points:
        row = rows[ENCODERS[point.values["encoder"]]]
        words = shlex.split(command_of(row))[2:]
        keys = [word.removeprefix("--") for word in words[::2]]
        typed = read_config(list(zip(keys, words[1::2], strict=True)))
        assert point.config.extraction.plan == typed.extraction.plan
        assert point.config.extraction.template == typed.extraction.template
        assert point.config.extraction.layers == typed.extraction.layers
        read = re.search(r"pooling: ([\w-]+)", row["options"])
        assert read is not None
        [head], [options] = point.config.heads, point.config.heads.values()
        poolings = point.config.extraction.words.poolings if task == "odd-sample" else point.config.extraction.poolings
        assert (head, poolings) == (HEADS[task], (read[1],))
        if head == "layer-cosine":
            assert (options or {})["transform"] == (typed.heads[head] or {})["transform"]
        assert row["test"]["low"] <= row["test"]["mean"] <= row["test"]["high"]


@pytest.mark.parametrize(("task", "times", "less"), [("stsb", 1, 0), ("snli-triples", 2, 1)])
def test_a_sweep_is_taken_in_as_the_page_has_it(task: str, times: int, less: int, tmp_path: Path) -> None:
    scores = make_grid({"encoder": ("mean", "echo-mean")})
    rows = [replace(row, n_tokens=10 + number) for number, row in enumerate(scores.plans)]
    header = replace(scores.header, task={**scores.header.task, "name": task, "n_rows": {"test": 60}})
    assert scores.grid is not None
    gaps = tuple(replace(gap, split="test") for gap in scores.grid.gaps)
    whole = replace(scores, header=header, plans=tuple(rows), test_read=EVERY_PLAN)
    made = replace(whole, grid=replace(scores.grid, gaps=gaps, failed=()))
    (tmp_path / "scores.json").write_text(json.dumps(sealed_scores(made.to_dict())), encoding="utf-8")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"task": {"name": task, "pairs": 60}}), encoding="utf-8")
    options = "--task.name x --task.pairs 4 --heads y"
    before = {"encoders": {name: {"options": options} for name in ("mean", "echo, mean")}} if times == 1 else None
    taken = read_sweep(tmp_path, before)
    assert (taken["rows_per_split"], taken["n_test"], list(taken["encoders"])) == (60, 60, ["mean", "echo, mean"])
    mean, echo = taken["encoders"].values()
    assert mean.get("options", "") == ("" if times == 2 else "--task.name x --task.pairs 60 --heads y")
    assert "difference" not in mean
    assert echo["test"]["mean"] == pytest.approx(times * rows[1].heads["head"].mean("test") - less)
    assert echo["difference"] == pytest.approx(times * gaps[0].value)
    assert (echo["low"], echo["high"], echo["bootstrap_corrected"]) == (0.0, times * 0.1, gaps[0].p_corrected)
    assert (mean["n_tokens"], echo["n_tokens"]) == (10, 11)
    (tmp_path / "scores.json").write_text(json.dumps(sealed_scores(scores.to_dict())), encoding="utf-8")
    with pytest.raises(ValueError, match="has points that failed or were not read on test; run it with --test all"):
        read_sweep(tmp_path, before)


def test_the_page_says_what_triples_gain_over_words() -> None:
    page, some = " ".join(PAGE.read_text(encoding="utf-8").split()), json.loads(SOME.read_text(encoding="utf-8"))
    smol, gemma = (some[f"{decoder} snli-triples"] for decoder in ("smollm2-135m-instruct", "gemma-3-270m-q4_k_m"))
    assert {task["n_test"] for task in (smol, gemma)} == {2921}
    means = [100 * task["encoders"]["mean"]["test"]["mean"] for task in (smol, gemma)]
    words = 100 * smol["baselines"]["tf-idf"]["test"]
    assert f"The plain means have {means[0]:.1f} and {means[1]:.1f}, and tf-idf {words:.1f}:" in page
    tied, ahead = (task["baselines"]["tf-idf"]["chosen_over_it"]["layer-rerank"] for task in (smol, gemma))
    assert tied["low"] < 0 < tied["high"]
    value, low, high = (100 * ahead[end] for end in ("value", "low", "high"))
    assert f"that on Gemma has {value:.1f} points more ({low:.1f} to {high:.1f})" in page
    echo = some["smollm2-135m-instruct pubmedqa"]["encoders"]["echo, mean"]
    value, low, high = (100 * echo[end] for end in ("difference", "low", "high"))
    assert f"echo has {-value:.1f} points less than the mean ({low:.1f} to {high:.1f})" in page


def test_the_page_says_what_the_choices_gain_over_words() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    decoders, said = ("smollm2-135m-instruct", "gemma-3-270m-q4_k_m"), dict[str, list[str]]()
    for task, name in (("banking77-clusters", "tf-idf"), ("banking77", "bag-of-words")):
        words = [RESULTS[f"{decoder} {task}"]["baselines"][name] for decoder in decoders]
        assert len({baseline["test"] for baseline in words}) == 1
        gaps = [100 * np.array([*baseline["chosen_over_it"][HEADS[task]].values()]) for baseline in words]
        said[name] = [
            f"{100 * words[0]['test']:.1f}",
            *(f"{gap:.1f} ({low:.1f} to {high:.1f})" for gap, low, high in gaps),
        ]
    score, smol, gemma = said["tf-idf"]
    assert f"tf-idf has {score}, from which what validation chooses differs by {smol} on SmolLM2 and by {gemma}" in page
    score, smol, gemma = said["bag-of-words"]
    more = gemma.replace(" (", " points more (")
    assert f"a bag of words has {score}, and the choices {smol} and {more}." in page


def test_the_page_says_where_echo_is_certain() -> None:
    page, some = " ".join(PAGE.read_text(encoding="utf-8").split()), json.loads(SOME.read_text(encoding="utf-8"))
    unsure = []
    for encoder in ("echo, mean", "no sink, top third, echo, mean"):
        for decoder in ("smollm2-135m-instruct", "gemma-3-270m-q4_k_m"):
            for task in ("stsb", "snli-triples", "banking77", "banking77-clusters"):
                row = (RESULTS | some)[f"{decoder} {task}"]["encoders"][encoder]
                assert row["low"] > 0
                if row["bootstrap_corrected"] >= 0.05:
                    unsure.append((encoder, decoder, task, f"(p = {row['bootstrap_corrected']:.2f})"))
    [(_, *where, alone), (_, *where_too, under_masks)] = unsure
    assert where == ["gemma-3-270m-q4_k_m", "banking77-clusters"]
    assert where_too == ["smollm2-135m-instruct", "banking77-clusters"]
    assert (
        f"that of clusters on Gemma {alone}, and one of echo under the masks, that of clusters on SmolLM2 {under_masks}"
        in page
    )


@pytest.mark.parametrize(
    ("decoder", "sentence"),
    [
        ("smollm2-135m-instruct", "for certain on two, and loses {loss:.1f} points on MSRpar"),
        ("gemma-3-270m-q4_k_m", "they gain on five sources of six and lose on MSRpar ({loss:.1f} points)"),
    ],
)
def test_the_page_says_where_the_choice_on_pairs_does_not_hold(decoder: str, sentence: str) -> None:
    [transfer] = RESULTS[f"{decoder} stsb"]["by_source"]
    gains = {part["name"]: part for part in transfer["parts"]}
    assert {part["point"]["encoder"] for part in gains.values()} == {"nosink-third-standardised"}
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    certain = [name for name, part in gains.items() if part["low"] > 0]
    assert (len(gains), sum(part["value"] > 0 for part in gains.values())) == (6, 5)
    assert len(certain) == 2 or "for certain" not in sentence
    loss = gains["MSRpar"]
    assert loss["high"] < 0
    assert sentence.format(loss=-100 * loss["value"]) in page
