"""A checkpoint that attends to both sides by a flag works under every plan; two of them are known from transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from extract.decoders.decoder import Decoder, load_decoder
from extract.errors import DecoderError
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.wiring.certificate import check_batch_invariance, check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.mask_families import hidden_under, id_batch, random_ids, real_rows
from tests.extract.tiny_decoders import SENTENCES, SIZES, make_decoder, make_model, make_tokenizer, save_decoder

FLAG, GENERAL = "use_bidirectional_attention", "is_causal"
BOTH_WAYS: dict[str, dict[str, Any]] = {
    "gemma3_text": {FLAG: True, "sliding_window": 8},  # 5 tokens to either side, by its rule
    "gemma": {**SIZES, "head_dim": 8, FLAG: True},
    "qwen2": {GENERAL: False},
    "gpt2": {GENERAL: False},
    "bloom": {GENERAL: False},
}
PLANS = ("causal", "bidirectional", "nosink-bidirectional:1+bidirectional", "backward:2", "extra/backward:1")
OFTEN = ("gemma3_text", "qwen2")
ROWS = random_ids(9, 9, 9)
PADDED = random_ids(9, 6, 4)


def states(decoder: Decoder, rows: list[list[int]], plan: str) -> list[Tensor]:
    """Compute the hidden states `(L, T, D)` of rows under a plan, all in one batch."""
    batch = id_batch(rows)
    return real_rows(hidden_under(decoder, batch, plan), batch)


def states_of_transformers(model: Any, rows: list[list[int]]) -> list[Tensor]:
    """Compute them with transformers alone, one row after the other."""
    with torch.no_grad():
        outputs = [model.base_model(torch.tensor([row]), output_hidden_states=True, use_cache=False) for row in rows]
    return [torch.stack([*output.hidden_states])[:, 0] for output in outputs]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Compare the embedding, all blocks but the last, and the final norm; transformers does not show the last block."""
    for ours, theirs in zip(found, wanted, strict=True):
        shown = torch.cat([ours[:-2], ours[-1:]])
        assert float((shown - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("family", BOTH_WAYS)
def test_bidirectional_is_the_untouched_checkpoint(family: str, tmp_path: Path) -> None:
    folder = save_decoder(tmp_path, family=family, **BOTH_WAYS[family])
    auto: Any = AutoModelForCausalLM
    model, decoder = auto.from_pretrained(folder).eval(), load_decoder(str(folder))
    assert decoder.description.bidirectional == {
        name: value for name, value in BOTH_WAYS[family].items() if name in (FLAG, GENERAL)
    }
    for rows in (ROWS, PADDED):
        assert_equal(states(decoder, rows, "bidirectional"), states_of_transformers(model, rows))


@pytest.mark.parametrize("family", BOTH_WAYS)
def test_causal_is_the_same_weights_with_the_flag_off(family: str) -> None:
    changes = BOTH_WAYS[family]
    off = {name: value for name, value in changes.items() if name not in (FLAG, GENERAL)}
    if "sliding_window" in off:
        off["sliding_window"] = 5  # the window that transformers makes of 8 where the flag is on
    decoder, plain = make_decoder(family, **changes), make_model(family, **off)
    decoder.module.load_state_dict(plain.base_model.state_dict())
    for rows in (ROWS, PADDED):
        assert_equal(states(decoder, rows, "causal"), states_of_transformers(plain, rows))


@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize(
    "family", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in BOTH_WAYS]
)
def test_every_plan_is_certified(family: str, text: str, unchecked_shapes: None) -> None:  # noqa: ARG001
    decoder, plan = make_decoder(family, **BOTH_WAYS[family]), parse_plan(text)
    with plan_in_force(decoder, plan):
        assert check_influence(decoder, plan, n_rows=4, n_tokens=12).is_as_planned
        assert check_batch_invariance(decoder).right < 1e-3


def test_windows_of_the_general_flag_are_one_token_narrower_here() -> None:
    model = make_model("mistral", is_causal=False, sliding_window=4)
    decoder = load_decoder(model, make_tokenizer())
    short, long = random_ids(4), random_ids(5)
    assert_equal(states(decoder, short, "bidirectional"), states_of_transformers(model, short))
    with pytest.raises(AssertionError):
        assert_equal(states(decoder, long, "bidirectional"), states_of_transformers(model, long))


def test_a_model_in_memory_keeps_its_flag() -> None:
    model = make_model("gemma3_text", **BOTH_WAYS["gemma3_text"])
    before = states_of_transformers(model, ROWS)
    remarks: list[str] = []
    decoder = load_decoder(model, make_tokenizer(), report=remarks.append)
    for plan in ("causal", "bidirectional"):
        states(decoder, ROWS, plan)
    assert all(torch.equal(*pair) for pair in zip(states_of_transformers(model, ROWS), before, strict=True))
    assert remarks == [
        "in-memory was trained to attend to both sides (use_bidirectional_attention: True): the plan 'bidirectional' "
        "is the decoder as it was trained, and 'causal', the default, is not"
    ]


def test_a_cache_says_so_and_others_stay_what_they_were(tmp_path: Path) -> None:
    flagged, plain = make_decoder("qwen2", is_causal=False), make_decoder("qwen2")
    cache = extract_latents(flagged, SENTENCES, spec=ExtractionSpec(plan="bidirectional"), folder=tmp_path)
    assert cache.identity.decoder["bidirectional"] == {"is_causal": False}
    assert cache.manifest.provenance["decoder"]["bidirectional"] == {"is_causal": False}
    described = describe_extraction(plain, SENTENCES, ExtractionSpec())
    assert "bidirectional" not in described.identity.decoder
    assert "bidirectional" not in described.provenance["decoder"]


def test_words_that_no_family_reads_are_no_flag() -> None:
    assert make_decoder("llama", use_bidirectional_attention=True).description.bidirectional is None
    assert make_decoder("qwen2", is_causal=True).description.bidirectional is None


def test_an_encoder_is_refused_without_advice_that_fails() -> None:
    decoder = make_decoder("bert", **SIZES)
    with pytest.raises(DecoderError, match=r"'bert' attends to later tokens by itself, .*; no plan works for it\.$"):
        states(decoder, ROWS, "bidirectional")
