"""Measuring abilities: which texts are drawn, and what comes out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extract.errors import ConfigError, InputError, TaskError
from extract.masks.mask_plan import parse_plan
from probes.adaptation.abilities import write_measured
from probes.adaptation.infilling import DrawnSpans, encode_rows, score_rows
from probes.adaptation.measuring import AbilityOptions, measure_abilities
from probes.adaptation.objectives import LanguageModel, load_language_model
from tests.extract.tiny_decoders import make_model, make_texts, make_tokenizer

SPANS = DrawnSpans(most=2, shortest=2, longest=4)
WIKITEXT = "".join(
    f"\n = Article {k} = \n \n"
    + "".join(
        f" The {one} ran under the {other} of {k} . The {one} stopped at a depth . Snow fell on the {other} in {k} . "
        f"A cold {one} was drilled through it . The {other} spoke of the {one} . \n"
        for one, other in (("mouse", "table"), ("core", "sheet"))
    )
    for k in range(5)
)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_language_model(make_model("llama", max_position_embeddings=256), make_tokenizer())


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(make_texts(24)), encoding="utf-8")
    return path


@pytest.fixture
def wikitext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "wikitext2"
    folder.mkdir(parents=True)
    (folder / "wiki.test.tokens").write_text(WIKITEXT, encoding="utf-8")
    monkeypatch.setenv("ICECORE_DATA", str(tmp_path / "data"))


def test_the_perplexity_is_that_of_the_spans_of_the_texts(model: LanguageModel, texts: Path) -> None:
    scores = measure_abilities(model, AbilityOptions(texts=str(texts), spans=SPANS)).scores
    assert [(one.name, one.plan) for one in scores.abilities] == [
        ("infilling-perplexity", "causal"),
        ("infilling-perplexity", "hybrid"),
    ]
    used = [text for text in make_texts(24) if len(text.split()) >= 4]
    rows = [row for row in encode_rows(model.decoder, used, SPANS) if len(row.targets)]
    for ability in scores.abilities:
        losses = score_rows(model, rows, parse_plan(ability.plan))
        assert ability.value == pytest.approx(np.exp(np.concatenate(losses).mean()), rel=1e-5)
        assert ability.asked == tuple(row.asked for row in rows)
        assert ability.counts.sum() == sum(len(row.targets) for row in rows)
    assert scores.texts == "texts.txt"
    assert scores.decoder["name"] == "in-memory"


@pytest.mark.usefixtures("wikitext")
def test_everything_is_measured_on_wikitext_with_articles_as_units(model: LanguageModel) -> None:
    options = AbilityOptions(
        spans=SPANS, rows=8, choices=6, infillings=2, window=16, continuations=3, new_tokens=8, max_tokens=200
    )
    measured = measure_abilities(model, options)
    names = [(one.name, one.plan) for one in measured.scores.abilities]
    assert names == [
        ("infilling-perplexity", "causal"),
        ("infilling-perplexity", "hybrid"),
        ("choice-accuracy", "causal"),
        ("choice-accuracy-sum", "causal"),
        ("choice-accuracy-onwards", "causal"),
        ("choice-accuracy", "hybrid"),
        ("choice-accuracy-sum", "hybrid"),
        ("causal-perplexity", "causal"),
        ("rep-sen", "causal"),
        ("rep-4", "causal"),
    ]
    parts = dict(zip(names, measured.scores.abilities, strict=True))
    infilling = parts["infilling-perplexity", "hybrid"]
    assert len(infilling.rows) == 8
    assert set(infilling.units) <= {f"{k + 1} Article {k}" for k in range(5)}
    assert len(parts["choice-accuracy", "causal"].rows) == 6
    assert set(parts["choice-accuracy", "causal"].sums) <= {0.0, 1.0}
    assert len(parts["causal-perplexity", "causal"].rows) == 8
    assert [set(one.by_plan) for one in measured.infillings] == [{"causal", "hybrid"}] * 2
    assert [len(one.prefix.split()) for one in measured.continuations] == [5, 5, 5]
    assert parts["rep-4", "causal"].sums.tolist() == [one.rep_4 for one in measured.continuations]
    again = measure_abilities(model, options).scores
    assert all(one.is_on_same_rows(two) for one, two in zip(measured.scores.abilities, again.abilities, strict=True))
    other = measure_abilities(model, AbilityOptions(spans=DrawnSpans(2, 2, 4, seed=1), rows=8)).scores
    assert not other.abilities[0].is_on_same_rows(infilling)


def test_texts_without_a_span_are_counted_and_left_out(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("The mouse ran under the table of the house.\n<unk> <unk> <unk> <unk>\n", encoding="utf-8")
    scores = measure_abilities(model, AbilityOptions(texts=str(path), spans=SPANS, plans=("causal",))).scores
    assert scores.notes == ("1 of 2 texts have no span and do not count.",)
    assert len(scores.abilities[0].rows) == 1


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"plans": ("bidirectional",)}, ConfigError, "under the plan 'bidirectional' tokens of a span are seen"),
        (
            {"spans": DrawnSpans(1, 100, 100)},
            InputError,
            r"none of 24 texts of texts.txt is long .* span of 100",
        ),
        ({"choices": 3}, InputError, "texts.txt holds no paragraph of five sentences"),
        ({"window": 400}, ConfigError, "a window of 400 tokens cannot be scored; allowed: 2 to 256"),
        ({"continuations": 3, "prefix_words": 50}, InputError, "no text of texts.txt begins with 50 words"),
        ({"rows": 0}, ConfigError, "rows is 0; allowed: a whole number of at least 1"),
        ({"choices": -1}, ConfigError, "choices is -1; allowed: a whole number of at least 0"),
        ({"continuations": -1}, ConfigError, "continuations is -1; allowed: a whole number of at least 0"),
        ({"spans": DrawnSpans(seed=-1)}, ConfigError, "seed is -1; allowed: 0 or more"),
        (
            {"continuations": 2, "new_tokens": 256},
            ConfigError,
            r"256 new tokens after a prefix of \d+ do not fit into the decoder's window of 256; allowed: at most 2\d\d",
        ),
        ({"plans": ()}, ConfigError, "no plan is given"),
    ],
)
def test_what_measures_nothing_is_refused(
    model: LanguageModel, texts: Path, changes: dict[str, object], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        options = {"texts": str(texts), "spans": SPANS, "plans": ("causal",), **changes}
        measure_abilities(model, AbilityOptions(**options))  # type: ignore[arg-type]


def test_wikitext_needs_its_folder(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ICECORE_DATA", raising=False)
    with pytest.raises(TaskError, match="ICECORE_DATA is not set"):
        measure_abilities(model)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 9999},
        {"choices": 3},
        {"continuations": 1, "new_tokens": 999},
        {"continuations": 1, "new_tokens": 250},  # fits alone, and not after its prefix
        {"continuations": 1, "prefix_words": 50},
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    model: LanguageModel, texts: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.adaptation.measuring.score_rows", None)  # calling it would be a TypeError
    with pytest.raises((ConfigError, InputError)):
        measure_abilities(model, AbilityOptions(texts=str(texts), spans=SPANS, **changes))


def test_tables_of_an_earlier_measurement_do_not_stay(model: LanguageModel, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    many: dict[str, Any] = {"infillings": 2, "continuations": 2, "new_tokens": 4}
    for counts in (many, {}):
        options = AbilityOptions(texts=str(texts), spans=SPANS, plans=("causal",), **counts)
        write_measured(tmp_path / "out", measure_abilities(model, options))
        for name in ("infillings", "continuations"):
            assert (tmp_path / "out" / f"{name}.csv").exists() == bool(counts)
