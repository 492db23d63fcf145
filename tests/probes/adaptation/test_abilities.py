"""Abilities: numbers of sums, intervals over units, folders, and comparisons on the same rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import HeadError
from probes.adaptation.abilities import (
    Ability,
    AbilityScores,
    compare_abilities,
    compare_scores,
    holds_abilities,
    load_abilities,
    verdict,
    write_scores,
)
from probes.metrics.bootstrap import Resampling

N = 60


def make(
    plan: str = "causal", *, name: str = "infilling-perplexity", shift: float = 0.0, n_units: int = N, seed: int = 0
) -> Ability:
    """Make losses of texts, 10 tokens each; two with one seed differ by the shift in every token."""
    losses = np.random.default_rng(seed).normal(3.0, 0.5, N) + shift
    units = tuple(f"article {k % n_units}" for k in range(N))
    rows = tuple(f"text {k}" for k in range(N))
    return Ability(name, plan, units, rows, ("1-10",) * N, 10 * losses, np.full(N, 10.0))


def scores(*abilities: Ability, name: str = "tiny") -> AbilityScores:
    return AbilityScores(name, {"name": name}, "texts.txt", {"rows": N}, abilities, {"commit": ""}, ("a note",))


def test_a_perplexity_is_exp_of_the_mean_loss_of_all_tokens_and_not_the_mean_of_texts() -> None:
    ability = Ability("infilling-perplexity", "causal", ("a", "b"), ("x", "y"), ("", ""), *np.array([[8, 1], [4, 1.0]]))
    assert ability.value == pytest.approx(np.exp(9 / 5))
    share = replace(ability, name="rep-4", sums=np.array([0.5, 1.0]), counts=np.ones(2))
    assert share.value == 0.75


def test_an_interval_draws_whole_units() -> None:
    ability = make(n_units=6)
    sums = ability.by_unit
    assert sums.shape == (6, 2)
    drawn = np.random.default_rng(0).integers(0, 6, (100, 6))
    values = np.exp(sums[drawn, 0].sum(1) / sums[drawn, 1].sum(1))
    summary = ability.summarise(Resampling(100))
    np.testing.assert_allclose((summary.low, summary.high), np.quantile(values, (0.025, 0.975)))
    alone = make().summarise()
    assert alone.low < alone.mean < alone.high


def test_nothing_counted_has_no_value() -> None:
    assert np.isnan(replace(make(), counts=np.zeros(N)).value)


def test_a_paired_difference_is_sharper_than_two_intervals() -> None:
    first, second = compare_scores([scores(make(), make("hybrid", shift=0.1))], ["tiny"])
    assert first.over_first is None
    gap = second.over_first
    assert gap is not None
    assert gap.value == pytest.approx(second.score.mean - first.score.mean)
    assert gap.low > 0
    assert second.score.low < first.score.high  # the intervals overlap
    assert second.p_value < 0.01
    assert verdict(second, first).startswith("infilling perplexity: tiny under hybrid is worse than tiny under causal")
    same = compare_scores([scores(make(), make("hybrid"))], ["tiny"])[1]
    assert "is statistically tied with" in verdict(same, first)
    better = compare_scores([scores(make(), make("hybrid", shift=-0.1))], ["tiny"])[1]
    assert "is better than" in verdict(better, first)
    few = compare_scores([scores(make(n_units=9), make("hybrid", shift=1.0, n_units=9))], ["tiny"])[1]
    assert "too few articles or texts" in verdict(few, first)


def test_of_a_share_more_is_better_where_it_is_accuracy() -> None:
    parts = [replace(make(name="choice-accuracy"), sums=np.full(N, x), counts=np.ones(N)) for x in (0.2, 0.4)]
    first, second = compare_scores([scores(parts[0], replace(parts[1], plan="hybrid"))], ["tiny"])
    assert "is better than" in verdict(second, first)
    assert "+20.0" in verdict(second, first)


def test_folders_are_compared_by_plan_too(tmp_path: Path) -> None:
    for name, shift in (("base", 0.0), ("adapted", -0.3)):
        (tmp_path / name).mkdir()
        write_scores(tmp_path / name, scores(make(shift=0.1 + shift), make("hybrid", shift=0.6 + 2 * shift)))
    rows = compare_abilities([tmp_path / "base", tmp_path / "adapted"], n_resamples=50)
    assert [(row.folder, row.plan) for row in rows] == [
        ("base", "causal"),
        ("base", "hybrid"),
        ("adapted", "causal"),
        ("adapted", "hybrid"),
    ]
    assert [row.over_first is None for row in rows] == [True, False, False, False]
    assert [row.over_plan is None for row in rows] == [True, True, True, False]
    last = rows[3].over_plan
    assert last is not None
    assert last.value == pytest.approx(rows[3].score.mean - rows[1].score.mean)


def test_a_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    ability = replace(make(), units=("=1+1", *make().units[1:]))  # which a spreadsheet would run
    written = scores(ability, make("hybrid"))
    write_scores(tmp_path, written)
    assert ",'=1+1," in (tmp_path / "rows.csv").read_text(encoding="utf-8")
    assert holds_abilities(tmp_path)
    read = load_abilities(tmp_path)
    assert read.to_dict() == written.to_dict()
    for one, other in zip(read.abilities, written.abilities, strict=True):
        assert one.is_on_same_rows(other)
        assert (one.sums == other.sums).all()
    values = json.loads((tmp_path / "scores.json").read_text())
    assert values["what"] == "abilities"
    assert values["scores"][0]["value"] == ability.value
    assert list(read.table()["plan"]) == ["causal", "hybrid"]


@pytest.mark.parametrize("field", ["rows", "asked", "units"])
def test_other_texts_spans_or_articles_are_refused(field: str) -> None:
    changes: Any = {field: ("another", *getattr(make(), field)[1:])}
    other = replace(make(), **changes)
    with pytest.raises(HeadError, match=r"'b' under 'causal' and 'a' .* are not of the same texts and spans"):
        compare_scores([scores(make()), scores(other)], ["a", "b"])


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("rows.csv", "text 7", "text 8", "was changed"),
        ("scores.json", '"value": ', '"value": 1', "was changed"),
        ("scores.json", '"schema": 1', '"schema": 9', "schema 9 of abilities, this version reads schema 1"),
        ("scores.json", '"what": "abilities"', '"what": "run"', "of run"),
    ],
)
def test_a_changed_folder_is_refused(tmp_path: Path, file: str, old: str, new: str, complaint: str) -> None:
    write_scores(tmp_path, scores(make()))
    path = tmp_path / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(HeadError, match=complaint):
        load_abilities(tmp_path)


def test_a_folder_without_scores_is_refused(tmp_path: Path) -> None:
    assert not holds_abilities(tmp_path)
    with pytest.raises(HeadError, match=r"holds no abilities.*icecore infill"):
        load_abilities(tmp_path)
