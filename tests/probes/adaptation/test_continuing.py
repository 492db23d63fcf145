"""Causal text: windows, greedy continuations and repetition."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from extract.errors import ConfigError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from probes.adaptation.infilling import continue_greedily, cut_windows, first_words, rep_n, rep_sentences, score_rows
from probes.adaptation.objectives import LanguageModel, load_language_model
from tests.extract.tiny_decoders import make_model, make_tokenizer

TEXT = "A cold core was drilled through the ice sheet of Greenland in 1993. Snow fell on the quiet <unk>."


def make(family: str = "llama", *, adds_bos: bool = False) -> LanguageModel:
    return load_language_model(make_model(family), make_tokenizer(adds_bos=adds_bos))


@pytest.mark.parametrize("adds_bos", [False, True])
def test_windows_hold_every_token_once_and_score_all_but_the_first(*, adds_bos: bool) -> None:
    model = make(adds_bos=adds_bos)
    ids = model.decoder.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    windows = [*cut_windows(model.decoder, TEXT, n_tokens=10)]
    assert np.concatenate([row.encoded.ids[adds_bos:] for row in windows]).tolist() == ids
    assert all(row.encoded.ids[0] == 1 for row in windows if adds_bos)
    assert all(len(row.encoded.ids) == 10 for row in windows[:-1])
    assert [row.targets.tolist() for row in windows[:2]] == [[*range(1, 10)]] * 2
    scored = [model.decoder.tokenizer.decode(row.encoded.ids[row.targets].tolist()) for row in windows]
    assert "." in scored[-1]
    assert not set("<uk>") & set(scored[-1])


def test_the_loss_of_a_window_is_the_model_s_own() -> None:
    model = make()
    window = next(cut_windows(model.decoder, TEXT, n_tokens=12))
    ids = torch.from_numpy(window.encoded.ids).unsqueeze(0)
    with torch.no_grad():
        expected = model.model(input_ids=ids, labels=ids).loss.item()
    [losses] = score_rows(model, [window], parse_plan("causal"))
    assert losses.mean() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n_tokens", [1, 65])
def test_a_window_that_does_not_fit_is_refused(n_tokens: int) -> None:
    with pytest.raises(ConfigError, match=rf"a window of {n_tokens} tokens.*allowed: 2 to 64"):
        next(cut_windows(make().decoder, TEXT, n_tokens=n_tokens))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_continuations_take_the_best_token_at_every_step(family: str) -> None:
    model = make(family)
    prefixes = ["The mouse ran", "Snow fell on the quiet", "The mouse sat"]
    # what a checkpoint brings along for chats does not count
    model.model.generation_config = GenerationConfig(repetition_penalty=5.0, do_sample=True, eos_token_id=2, top_k=3)  # type: ignore[no-untyped-call]
    for prefix, tokens in zip(prefixes, continue_greedily(model, prefixes, n_tokens=6), strict=True):
        ids = model.decoder.tokenizer(prefix)["input_ids"]
        for token in tokens:
            with torch.no_grad():
                scores = model.model(input_ids=torch.tensor([ids])).logits[0, -1]
            scores[2] = -torch.inf  # the end of sequence
            assert token == int(scores.argmax())
            ids.append(token)
        assert len(tokens) == 6
    assert model.model.generation_config.repetition_penalty == 5.0


def test_the_end_of_sequence_is_never_generated() -> None:
    whole = make_model("llama")
    whole.generation_config = GenerationConfig(eos_token_id=2)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        whole.lm_head.weight[2] = 0  # alone
    ends = whole.lm_head.weight.detach().clone()
    model = load_language_model(whole, make_tokenizer())
    free = continue_greedily(model, ["The mouse"], n_tokens=8)[0]
    with torch.no_grad():
        whole.lm_head.weight[2] = 10 * ends[free[3]]
    tokens = continue_greedily(model, ["The mouse"], n_tokens=8, template=InputTemplate(eos="force"))[0]
    assert len(tokens) == 8
    assert 2 not in tokens


@pytest.mark.parametrize("family", ["llama", "gpt2"])  # of which the second has no position past its window
def test_a_continuation_fills_the_window_and_goes_no_further(family: str) -> None:
    model, prefix = make(family), "The mouse ran under the table"
    room = 64 - len(model.decoder.tokenizer(prefix)["input_ids"])
    assert [len(tokens) for tokens in continue_greedily(model, [prefix], n_tokens=room)] == [room]
    complaint = rf"{room + 1} new tokens after a prefix of {64 - room} do not fit .* of 64; allowed: at most {room} new"
    with pytest.raises(ConfigError, match=complaint):
        continue_greedily(model, ["The", prefix], n_tokens=room + 1)


@pytest.mark.parametrize(
    ("tokens", "share"), [([1] * 8, 0.8), ([1, 2, 3, 4, 1, 2, 3, 4], 0.2), ([*range(9)], 0.0), ([1, 2], 0.0)]
)
def test_repeated_4_grams(tokens: list[int], share: float) -> None:
    assert rep_n(tokens) == pytest.approx(share)


def test_repeated_sentences() -> None:
    assert rep_sentences("It is. It is. It is. No.") == 0.5
    assert rep_sentences("") == 0.0


def test_a_prefix_is_whole_words_without_gaps() -> None:
    assert first_words("one two  three four", 3) == "one two three"
    assert first_words("one two", 3) == ""
    assert first_words("one <unk> three four", 3) == ""
