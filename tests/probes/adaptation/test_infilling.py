"""Infilling: what a span token may see, which tokens are scored, and what is chosen and filled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from extract.errors import ConfigError
from extract.inputs.batches import collate
from extract.inputs.joined_text import CONTEXT, GivenSpans
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.wiring.plan_wiring import plan_in_force, run_batch
from probes.adaptation.infilling import (
    LEFT_OUT,
    DrawnSpans,
    ScoredRow,
    choose,
    draw_stretches,
    encode_rows,
    infill,
    is_unread,
    require_no_leak,
    score_rows,
)
from probes.adaptation.objectives import LanguageModel, load_language_model
from probes.data.sources import Article
from tests.extract.tiny_decoders import N_VOCABULARY, make_model, make_tokenizer

TEXTS = (
    "A cold core was drilled through the ice sheet of Greenland in 1993.",
    "Snow fell on the quiet harbour, and nobody spoke until the boat came.",
    "The drill stopped at a depth of 3053 metres under the table.",
)
SPANS = DrawnSpans(most=2, shortest=3, longest=6)
PLANS = ("causal", "hybrid", "nosink-causal")


def make(family: str = "llama", *, adds_bos: bool = False) -> LanguageModel:
    return load_language_model(make_model(family), make_tokenizer(adds_bos=adds_bos))


def losses_of(model: LanguageModel, row: ScoredRow, plan: str) -> NDArray[np.float64]:
    [losses] = score_rows(model, [row], parse_plan(plan))
    return losses


def with_token(row: ScoredRow, column: int) -> ScoredRow:
    """Change one token of a row."""
    ids = row.encoded.ids.copy()
    ids[column] = (ids[column] - 3 + 7) % (N_VOCABULARY - 3) + 3
    return ScoredRow(replace(row.encoded, ids=ids), row.targets)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return make()


@pytest.fixture(scope="module")
def row(model: LanguageModel) -> ScoredRow:
    """A row with the spans 5-8 and 11-13."""
    [plain] = encode_rows(model.decoder, TEXTS[:1], GivenSpans({}))
    numbers = np.full(len(plain.encoded.ids), CONTEXT)
    numbers[5:9], numbers[11:14] = 0, 1
    assert len(numbers) > 16
    return ScoredRow(replace(plain.encoded, spans=numbers), np.flatnonzero(numbers != CONTEXT))


@pytest.mark.parametrize("plan", PLANS)
def test_no_span_token_is_seen_where_it_or_an_earlier_one_is_predicted(
    model: LanguageModel, row: ScoredRow, plan: str
) -> None:
    before = losses_of(model, row, plan)
    for k, column in enumerate(row.targets[:4]):
        after = losses_of(model, with_token(row, int(column)), plan)
        np.testing.assert_allclose(after[:k], before[:k], rtol=1e-5)
        assert abs(after[k] - before[k]) > 1e-4  # another target
        if k < 3:
            assert (np.abs(after[k + 1 : 4] - before[k + 1 : 4]) > 1e-4).all()  # later ones see it


def test_context_to_the_right_counts_under_the_hybrid_mask_alone(model: LanguageModel, row: ScoredRow) -> None:
    changed = with_token(row, len(row.encoded.ids) - 1)
    assert (np.abs(losses_of(model, changed, "hybrid") - losses_of(model, row, "hybrid")) > 1e-5).all()
    np.testing.assert_allclose(losses_of(model, changed, "causal"), losses_of(model, row, "causal"), rtol=1e-5)


def test_under_the_hybrid_mask_no_other_span_is_seen(model: LanguageModel, row: ScoredRow) -> None:
    changed = with_token(row, 6)
    np.testing.assert_allclose(losses_of(model, changed, "hybrid")[4:], losses_of(model, row, "hybrid")[4:], rtol=1e-5)
    assert (np.abs(losses_of(model, changed, "causal") - losses_of(model, row, "causal"))[4:] > 1e-5).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_losses_are_those_of_the_model_itself(family: str) -> None:
    model = make(family)
    rows = encode_rows(model.decoder, TEXTS, SPANS)
    together = score_rows(model, rows, parse_plan("causal"))
    for row, losses in zip(rows, together, strict=True):
        ids = torch.from_numpy(row.encoded.ids).unsqueeze(0)
        with torch.no_grad():
            scores = model.model(input_ids=ids).logits[0].log_softmax(-1)
        expected = [-scores[column - 1, ids[0, column]].item() for column in row.targets]
        np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_rows_together_are_rows_alone(model: LanguageModel) -> None:
    rows = encode_rows(model.decoder, TEXTS, SPANS)
    for row, losses in zip(rows, score_rows(model, rows, parse_plan("hybrid")), strict=True):
        np.testing.assert_allclose(losses, losses_of(model, row, "hybrid"), rtol=1e-4)


@pytest.mark.parametrize("plan", PLANS)
def test_an_ignorant_decoder_has_the_perplexity_of_guessing(plan: str) -> None:
    whole = make_model("llama")
    whole.lm_head.weight.data *= 1e-3
    model = load_language_model(whole, make_tokenizer())
    losses = np.concatenate(score_rows(model, encode_rows(model.decoder, TEXTS, SPANS), parse_plan(plan)))
    assert np.exp(losses.mean()) == pytest.approx(N_VOCABULARY, rel=0.01)


@pytest.mark.parametrize(
    "plan",
    [
        "bidirectional",
        "backward:1",
        "local",
        "hybrid:1",
        "hybrid:2",
        "extend/backward:1",
        "causal~tp1-2",
        "causal~kv1-2",
    ],
)
def test_a_plan_that_shows_the_target_is_refused(model: LanguageModel, row: ScoredRow, plan: str) -> None:
    with pytest.raises(ConfigError, match="tokens of a span are seen where they are predicted"):
        score_rows(model, [row], parse_plan(plan))


@pytest.mark.parametrize("plan", [*PLANS, "nosink3-causal:1", "causal~skip2@1"])
def test_a_plan_that_hides_it_is_allowed(plan: str) -> None:
    require_no_leak(parse_plan(plan), 3)


def test_what_a_refused_plan_would_have_shown(model: LanguageModel, row: ScoredRow) -> None:
    """Under hybrid on causal blocks a later span token does change the state that predicts an earlier one."""
    states = []
    for some in (row, with_token(row, 8)):
        with plan_in_force(model.decoder, parse_plan("hybrid:1")):
            run_batch(
                model.decoder, collate([some.encoded], [0]), lambda _, hidden: states.append(hidden[0, 4].clone())
            )
    top = len(states) // 2 - 1
    assert (states[top] - states[-1]).abs().max() > 1e-4


def test_spans_are_drawn_by_seed_and_text() -> None:
    offsets = np.zeros((60, 2), np.int64)
    numbers = DrawnSpans().assign("a text", offsets)
    assert (numbers == DrawnSpans().assign("a text", offsets)).all()
    assert (numbers != DrawnSpans().assign("another", offsets)).any()
    assert (numbers != DrawnSpans(seed=1).assign("a text", offsets)).any()


@pytest.mark.parametrize("n_tokens", [1, 2, 7, 16, 17, 30, 60, 200])
def test_spans_leave_context_on_both_sides_and_between(n_tokens: int) -> None:
    lengths = []
    for seed in range(200):
        numbers = DrawnSpans(seed=seed).assign("text", np.zeros((n_tokens, 2), np.int64))
        assert numbers[0] == CONTEXT
        assert numbers[-1] == CONTEXT
        assert (numbers != CONTEXT).sum() <= n_tokens / 2
        borders = np.flatnonzero(np.diff(numbers))
        assert all(CONTEXT in (numbers[k], numbers[k + 1]) for k in borders)
        lengths += [int((numbers == k).sum()) for k in range(3) if (numbers == k).any()]
    assert (min(lengths) >= 8 and max(lengths) <= 32) if n_tokens > 20 else not lengths or max(lengths) <= n_tokens / 2
    assert not lengths if n_tokens < 16 else lengths
    if n_tokens == 200:
        assert (min(lengths), max(lengths)) == (8, 32)


def test_lengths_that_no_span_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 spans of 9 to 8 tokens"):
        DrawnSpans(shortest=9, longest=8)


def test_a_span_may_begin_with_the_first_token_behind_bos_only() -> None:
    spans = GivenSpans({TEXTS[0]: [(0, 12)]})
    for adds_bos in (False, True):
        [row] = encode_rows(make(adds_bos=adds_bos).decoder, TEXTS[:1], spans)
        assert row.targets[0] == 1


def test_what_stands_for_rare_words_is_not_scored(model: LanguageModel) -> None:
    text = "The mouse <unk> ran under the table."
    [row] = encode_rows(model.decoder, [text], GivenSpans({text: [(4, 23)]}))
    tokens = [model.decoder.tokenizer.decode([row.encoded.ids[k]]) for k in row.targets]
    assert "".join(map(str, tokens)).replace(" ", "") == "mouseranunder"
    assert row.asked.count("-") == 2
    assert is_unread("a <formula>", np.array([[0, 1], [1, 5], [5, 11]])).tolist() == [False, True, True]


def test_a_text_longer_than_a_row_loses_its_end(model: LanguageModel) -> None:
    [row] = encode_rows(model.decoder, TEXTS[:1], SPANS, template=InputTemplate(max_tokens=10))
    assert row.encoded.is_truncated
    assert len(row.encoded.ids) == 10


@pytest.mark.parametrize("plan", ["causal", "hybrid"])
def test_greedy_infilling_takes_the_best_token_at_every_step(model: LanguageModel, plan: str) -> None:
    rows = encode_rows(model.decoder, TEXTS, SPANS)
    filled = infill(model, rows, parse_plan(plan))
    for row, text in zip(rows, filled, strict=True):
        assert row.encoded.spans is not None
        columns = np.flatnonzero(row.encoded.spans == row.encoded.spans[row.targets[0]])
        best = []
        spans = np.full(len(row.encoded.ids), CONTEXT)
        spans[columns] = 0
        ids = row.encoded.ids.copy()
        for column in columns:
            by_token = []
            for token in range(N_VOCABULARY):
                ids[column] = token
                by_token.append(ScoredRow(replace(row.encoded, ids=ids.copy(), spans=spans), np.array([column])))
            ids[column] = int(np.argmin(np.concatenate(score_rows(model, by_token, parse_plan(plan)))))
            best.append(int(ids[column]))
            if len(best) == 2:
                break
        start = str(model.decoder.tokenizer.decode(best))
        assert text.startswith(start.rstrip("\N{REPLACEMENT CHARACTER}"))


def test_a_row_without_a_span_is_left_alone(model: LanguageModel) -> None:
    rows = encode_rows(model.decoder, TEXTS[:1], GivenSpans({}))
    assert infill(model, rows, parse_plan("hybrid")) == [""]
    assert [len(part) for part in score_rows(model, rows, parse_plan("hybrid"))] == [0]


# --- Choosing ---

SENTENCES = [
    f"The {animal} ran under the {place}."
    for animal in ("mouse", "dog", "cat", "owl")
    for place in ("sea", "ice", "sky", "roof")
]
ARTICLE = Article("mice", (" ".join(SENTENCES[:7]), " ".join(SENTENCES[7:])))


def test_stretches_are_of_five_sentences_and_others_of_the_article_outside() -> None:
    stretches = draw_stretches([("1 mice", ARTICLE)], most=10)
    assert len(stretches) == 2
    for stretch, start in zip(stretches, (0, 7), strict=True):
        assert stretch.texts[0] == " ".join(SENTENCES[start : start + 5])
        assert stretch.candidates[0] == SENTENCES[start + LEFT_OUT]
        assert len(set(stretch.candidates)) == 5
        assert not set(stretch.candidates[1:]) & set(SENTENCES[start : start + 5])
        for text, (first, end), candidate in zip(stretch.texts, stretch.places, stretch.candidates, strict=True):
            assert text[first:end] == candidate
    assert draw_stretches([("1 mice", ARTICLE)], most=10) == stretches
    assert len(draw_stretches([("1 mice", ARTICLE)], most=1)) == 1
    assert draw_stretches([("1 short", Article("short", (" ".join(SENTENCES[:8]),)))], most=10) == []


def test_the_candidate_with_the_lowest_loss_is_chosen() -> None:
    model = load_language_model(make_model("llama", max_position_embeddings=256), make_tokenizer())
    stretches = draw_stretches([("1 mice", ARTICLE)], most=10)
    for plan in ("causal", "hybrid"):
        choices = choose(model, stretches, parse_plan(plan))
        assert choices.stretches == tuple(stretches)
        for stretch, by_mean, by_sum in zip(stretches, choices.by_mean, choices.by_sum, strict=True):
            spans = GivenSpans({text: [place] for text, place in zip(stretch.texts, stretch.places, strict=True)})
            losses = score_rows(model, encode_rows(model.decoder, stretch.texts, spans), parse_plan(plan))
            assert by_mean == (np.argmin([part.mean() for part in losses]) == 0)
            assert by_sum == (np.argmin([part.sum() for part in losses]) == 0)
        assert (choices.onwards is None) == (plan == "hybrid")


def test_a_stretch_that_is_longer_than_a_row_is_left_out(model: LanguageModel) -> None:
    choices = choose(model, draw_stretches([("1 mice", ARTICLE)], most=10), parse_plan("causal"))
    assert choices.stretches == ()
    assert choices.by_mean.shape == (0,)
