"""Token Prepending and KV prefixes equal what is written out on plain transformers, and certificates hold for them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import CertificateError, DecoderError, InputError, UnknownNameError
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import SPECIAL, JoinedText
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run.embed import embed_texts, embed_words, make_encoder
from extract.run.extraction import describe_extraction
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.wiring import plan_wiring as applied
from extract.wiring.attention import prefix_last
from extract.wiring.certificate import BlocksProof, check_batch_invariance, check_influence
from extract.wiring.plan_wiring import draw_placeholder, plan_in_force
from extract.wiring.states import pool_batch
from tests.extract.tiny_decoders import SENTENCES, make_decoder, make_model, make_tokenizer

TEXTS = SENTENCES[:4]
PROMPT = InputTemplate(instruction='This sentence : "', suffix='" means in one word:"', last="prompt")
SIDES: tuple[Literal["right", "left"], ...] = ("right", "left")
TOKENS, KEYS = "causal~tp1-2@3", "causal~kv2-3"


def spec_of(plan: str, template: InputTemplate = PROMPT, **more: Any) -> ExtractionSpec:
    return ExtractionSpec(plan=plan, template=template, poolings=("last", "mean"), **more)


def check_rows(decoder: Decoder, spec: ExtractionSpec, wanted: list[Tensor]) -> None:
    """Compare latents of the texts, alone and padded on either side, with states `(L, T, D)` of each."""
    rows = make_encoder(decoder, spec, has_words=False)(TEXTS)
    with plan_in_force(decoder, spec.mask_plan):
        for side in SIDES:
            batch = collate(rows, range(len(rows)), side=side, pad_id=2)
            found = pool_batch(decoder, batch, poolings=spec.poolings, layers=decoder.layers)
            for k, (row, states) in enumerate(zip(rows, wanted, strict=True)):
                pooled = torch.stack([states[:, row.last_column], states[:, row.copies > 0].mean(1)], dim=1)
                torch.testing.assert_close(found[:, :, k], pooled, atol=1e-4, rtol=1e-4)
        alone = pool_batch(decoder, collate(rows[:1], [0]), poolings=spec.poolings, layers=decoder.layers)
        torch.testing.assert_close(alone[:, :, :1], found[:, :, :1], atol=1e-4, rtol=1e-4)


def plain_states(decoder: Decoder, ids: Any) -> Tensor:
    states: list[Tensor] = []
    handles = [decoder.blocks[0].register_forward_pre_hook(lambda _, args: states.append(args[0][0]))]
    handles += [b.register_forward_hook(lambda _, __, out: states.append(_bare(out)[0])) for b in decoder.blocks]
    with torch.no_grad():
        final = decoder.module(torch.tensor([ids.tolist()]), use_cache=False).last_hidden_state[0]
    for handle in handles:
        handle.remove()
    return torch.stack([*states, final])


def _bare(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2", pytest.param("bloom", marks=pytest.mark.long)])
def test_a_placeholder_takes_the_state_of_the_last_token_of_the_prompt(family: str) -> None:
    model = make_model(family)
    decoder, spec = wrap_decoder(model, make_tokenizer()), spec_of(TOKENS)
    draw = torch.randn(32, generator=torch.Generator().manual_seed(3))
    assert torch.equal(draw_placeholder(32, 3), draw)
    wanted = []
    for row in make_encoder(decoder, spec, has_words=False)(TEXTS):
        place, last = row.placeholder, row.last_column

        def enter(_: Any, args: Any, place: Any = place) -> Any:
            return (args[0].index_copy(1, torch.tensor([place]), draw[None, None]), *args[1:])

        def leave(_: Any, __: Any, output: Any, place: Any = place, last: int = last) -> Any:
            hidden = _bare(output).index_copy(1, torch.tensor([place]), _bare(output)[:, last : last + 1])
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        handles = [decoder.blocks[0].register_forward_pre_hook(enter)]
        handles += [block.register_forward_hook(leave) for block in decoder.blocks[:2]]
        wanted.append(plain_states(decoder, row.ids))
        for handle in handles:
            handle.remove()
    check_rows(decoder, spec, wanted)
    plain = embed_texts(decoder, TEXTS, spec=spec_of("causal"))
    assert float((embed_texts(decoder, TEXTS, spec=spec)[1:] - plain[1:]).abs().amax((1, 2, 3)).min()) > 1e-3


def written_out(
    module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Attend token by token in one unpadded row, with the key and value of the last token first in upper blocks."""
    groups = query.shape[1] // key.shape[1]
    mixed = torch.zeros_like(query)
    for head in range(query.shape[1]):
        k, v = key[0, head // groups], value[0, head // groups]
        for i in range(query.shape[2]):
            seen = [-1] * (module.layer_idx >= 1) + list(range(i + 1))
            weights = (k[seen] @ query[0, head, i] * (scaling or query.shape[-1] ** -0.5)).softmax(0)
            mixed[0, head, i] = weights @ v[seen]
    return mixed.transpose(1, 2).contiguous(), None


@pytest.fixture
def reference() -> Iterator[str]:
    AttentionInterface.register("written-out", written_out)
    AttentionMaskInterface.register("written-out", lambda *_, **__: None)
    yield "written-out"
    del AttentionInterface._global_mapping["written-out"], AttentionMaskInterface._global_mapping["written-out"]


@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.long)])
def test_every_token_also_sees_the_last_key_and_value(family: str, reference: str) -> None:
    model = make_model(family)
    decoder, spec = wrap_decoder(model, make_tokenizer()), spec_of(KEYS, InputTemplate(bos="force"))
    model.set_attn_implementation(reference)
    rows = make_encoder(decoder, spec, has_words=False)(TEXTS)
    wanted = [plain_states(decoder, row.ids) for row in rows]
    model.set_attn_implementation("sdpa")
    check_rows(decoder, spec, wanted)
    plain = embed_texts(decoder, TEXTS, spec=spec_of("causal", spec.template))
    changed = (embed_texts(decoder, TEXTS, spec=spec) - plain).abs().amax((1, 2, 3))
    assert float(changed[:2].max()) < 1e-4 and float(changed[2:].min()) > 1e-3


@pytest.mark.parametrize("plan", [TOKENS, KEYS, pytest.param("backward:1~tp1-1~kv2-2", marks=pytest.mark.long)])
def test_certificates_hold(plan: str) -> None:
    decoder = make_decoder("llama")
    with plan_in_force(decoder, parse_plan(plan)):
        found = check_influence(decoder, parse_plan(plan), n_rows=3, n_tokens=9)
        assert isinstance(found, BlocksProof) and found.n_calls == 3
        assert check_batch_invariance(decoder).right < 1e-3


def test_certificates_find_a_copy_of_another_token_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, plan = make_decoder("llama"), parse_plan(TOKENS)
    with plan_in_force(decoder, plan) as wiring:
        assert wiring is not None
        begin = wiring.begin

        def begin_wrongly(batch: Batch, device: torch.device) -> None:
            begin(batch if batch.placeholder is None else replace(batch, last=batch.placeholder), device)

        monkeypatch.setattr(wiring, "begin", begin_wrongly)
        with pytest.raises(CertificateError, match="the placeholder of block_01 does not hold the last token's state"):
            check_influence(decoder, plan, n_rows=2, n_tokens=6)


@pytest.mark.parametrize(
    ("range_", "message"),
    [
        ("1-1", "the placeholder of block_02 does not hold the last token's state"),
        ("1-3", "the placeholder of block_04 does not hold the last token's state"),
        ("1-5", "the placeholder of block_06 does not hold the last token's state"),
        ("2-6", "the placeholder of block_01 does not hold the last token's state"),
        ("1-7", "the placeholder of block_07 holds the last token's state, which the plan does not copy there"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_certificates_find_another_range(
    family: str, range_: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches the placeholder is the same, however long the last token's state is copied."""
    decoder = make_decoder(family, n_layer=8) if family == "gpt2" else make_decoder(family, num_hidden_layers=8)
    plan = parse_plan("causal~tp1-6")
    with plan_in_force(decoder, plan):
        check_influence(decoder, plan, n_rows=2, n_tokens=6)
    rest, other = applied.rest_in_force, parse_plan(f"causal~tp{range_}")
    monkeypatch.setattr(applied, "rest_in_force", lambda decoder, wiring, _: rest(decoder, wiring, other))
    with plan_in_force(decoder, plan), pytest.raises(CertificateError, match=message):
        check_influence(decoder, plan, n_rows=2, n_tokens=6)


def test_certificates_find_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, plan, right = make_decoder("llama"), parse_plan(KEYS), prefix_last
    with plan_in_force(decoder, plan):
        wrong = "extract.wiring.attention.prefix_last"
        monkeypatch.setattr(wrong, lambda k, v, mask, last: right(k, v, mask, last - 1))
        with pytest.raises(CertificateError, match="did not take effect in block 2"):
            check_influence(decoder, plan, n_rows=2, n_tokens=6)


def test_the_placeholder_stands_before_the_quotation_mark_and_is_a_special() -> None:
    decoder = make_decoder("llama")
    (row,) = make_encoder(decoder, spec_of(TOKENS), has_words=False)(TEXTS[:1])
    (plain,) = make_encoder(decoder, spec_of("causal"), has_words=False)(TEXTS[:1])
    place = row.placeholder
    assert place is not None and row.roles[place] == SPECIAL and row.copies[place] == 0
    assert str(decoder.tokenizer.decode(row.ids[place + 1])).strip() == '"' and row.copies[place + 2] == 1
    np.testing.assert_array_equal(np.delete(row.ids, place), plain.ids)
    assert row.last_column == plain.last_column + 1
    (bare,) = make_encoder(decoder, spec_of(TOKENS, InputTemplate()), has_words=False)(["Ice " * 90])
    assert bare.placeholder == 0 and len(bare.ids) == decoder.description.window


def test_words_are_read_beside_the_placeholder() -> None:
    decoder, text = make_decoder("llama"), JoinedText("The mouse ran", ((0, 3), (10, 13)))
    words = WordSpec(poolings=("first",))
    causal, prepended = (
        embed_words(decoder, [text], spec=ExtractionSpec(plan=plan, words=words, layers=("embedding",)))
        for plan in ("causal", "causal~tp1-1")
    )
    torch.testing.assert_close(prepended.latents, causal.latents)
    with pytest.raises(InputError, match=r"puts a placeholder before the text, so words.shift would read it"):
        ExtractionSpec(plan="causal~tp1-1", words=WordSpec(shift=True))


def test_the_draw_is_part_of_the_identity() -> None:
    decoder = make_decoder("llama")
    found = [
        describe_extraction(decoder, TEXTS, spec_of(p)).identity.placeholder for p in (TOKENS, "causal~tp1-2", "causal")
    ]
    assert found[0] is not None and found[1] is not None and found[0]["seed"] == 3
    assert found[0]["sha256"] != found[1]["sha256"]
    assert found[2] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("causal~tp3-2", "has the blocks 3-2, which must run upwards from block 1"),
        ("causal~tp1-2~tp2-3", "has the tail 'tp2-3' beside another one of its kind"),
        ("extend/backward:1~kv1-2", "has the tail 'kv1-2' and the architecture 'extend', which do not go together"),
        ("causal~tq1-2", "ends in 'tq1-2', which is no skip, tp or kv"),
    ],
)
def test_tails_that_cannot_be_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        parse_plan(text)


def test_tails_have_one_text_and_fit_the_decoder() -> None:
    assert parse_plan(" bidirectional:2 ~ kv2-3 ~ tp1-6@0 ~ skip3@1").text == "bidirectional:2~skip3@1~tp1-6~kv2-3"
    assert parse_plan(TOKENS).text == TOKENS and not parse_plan(KEYS).is_untouched
    with pytest.raises(UnknownNameError, match="reaches up to block 6, but the decoder has 3"):
        parse_plan("causal~tp1-6").kinds(3)


def test_keys_cannot_be_prepended_past_the_interface() -> None:
    message = "'bloom' computes attention where no key can be prepended"
    with pytest.raises(DecoderError, match=message), plan_in_force(make_decoder("bloom"), parse_plan("causal~kv1-1")):
        pass
