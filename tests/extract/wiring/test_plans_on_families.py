"""Theorems of the mask plans, on every family they work for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch
from extract.masks.mask_plan import CAUSAL_KIND, MaskPlan, parse_kind, parse_plan
from extract.masks.mask_rules import kind_matrix
from extract.masks.truth import expected_reach
from extract.wiring.attention import ScoreWatch, Wiring
from extract.wiring.certificate import check_batch_invariance, check_influence, influence
from extract.wiring.plan_wiring import masks_in_force, plan_in_force, probe_spans
from tests.extract.mask_families import (
    ALSO_WORKING,
    BY_ARGUMENT,
    HYBRIDS,
    SIDES,
    WORKING,
    drift,
    family_decoder,
    hidden_through_wiring,
    hidden_under,
    id_batch,
    random_ids,
    real_rows,
    run_layers,
)
from tests.extract.tiny_decoders import make_decoder
from tests.thinned import shared_out

TOLERANCE = 1e-5
OFTEN = (*WORKING, "bloom", "gpt_neo", "gptj")
"""Families of the default suite: those with an attention of their own kind; the others are `long`."""
OTHERS = [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in (*ALSO_WORKING, *BY_ARGUMENT)
]
ALL = [*WORKING, *OTHERS]
KINDS = (
    "causal",
    "backward",
    "bidirectional",
    "nosink-causal",
    "nosink3-bidirectional",
    "hybrid",
)
ARCHITECTURES = ("inter-stack/backward:2", "inter-block/nosink-bidirectional:2", "extra/hybrid:2", "extend/backward:2")
MIXED = ("backward:1", "bidirectional:2", "nosink-bidirectional:1+bidirectional:1", "backward@2-2", *ARCHITECTURES)
CERTIFIED = ("nosink-bidirectional:2", "backward")
N_TOKENS = 6
TENSORS = ("ids", "is_real", "roles", "copies", "last", "spans")
ROWS = random_ids(9, 6, 3)
SPANS = [[-1, 0, 0, 0, -1, 1, 1, -1, -1], [0, 0, 0, -1, -1, 1], [-1, -1, 0]]


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


def measured_reach(decoder: Decoder, *, is_padded: bool) -> Tensor:
    """Measure which tokens move which, `(S, L, T, T)`: in rows of one length, or padded on either side."""
    (base,), (other,) = random_ids(N_TOKENS, seed=1), random_ids(N_TOKENS, seed=2)
    changed = [[*base[:j], other[j], *base[j + 1 :]] for j in range(N_TOKENS)]
    rows, spans = [base, *changed], [probe_spans(N_TOKENS).tolist()] * (N_TOKENS + 1)
    batches = [id_batch(rows, spans=spans)]
    if is_padded:
        rows, spans = [*rows, *random_ids(9, seed=3)], [*spans, SPANS[0]]
        batches = [id_batch(rows, side=side, spans=spans) for side in SIDES]
    whole = batches[0] if len(batches) == 1 else joined(*batches)
    hidden = real_rows(run_layers(decoder, whole), whole)
    found = []
    for first in range(0, len(hidden), len(rows)):
        variants = torch.stack(hidden[first : first + N_TOKENS + 1])
        scale = variants[0].abs().amax(-1)
        found.append(((variants[1:] - variants[0]).abs().amax(-1) / scale > 2e-6).permute(1, 2, 0))
    return torch.stack(found)


def joined(one: Batch, other: Batch) -> Batch:
    """Put two batches of one width into one."""
    both: dict[str, Any] = {name: torch.cat([getattr(one, name), getattr(other, name)]) for name in TENSORS}
    rows = np.arange(len(both["ids"]))
    return replace(one, rows=rows, positions=rows, n_tokens=np.concatenate([one.n_tokens, other.n_tokens]), **both)


def assert_reach(decoder: Decoder, *plans: str) -> None:
    """Compare what moves under plans with the product of their masks, at every layer."""
    n_blocks = len(decoder.blocks)
    parsed = [parse_plan(plan) for plan in plans]

    def compare(plan: MaskPlan, wiring: Wiring) -> None:
        for is_padded in (False, True):
            moved = measured_reach(decoder, is_padded=is_padded)
            windows = [wiring.windows[block] for block in range(n_blocks)]
            expected = expected_reach(plan, n_blocks, N_TOKENS, windows=windows, spans=probe_spans(N_TOKENS))
            wrong = (moved != expected).nonzero()
            assert not len(wrong), (plan.text, is_padded, wrong[:3].tolist())

    with masks_in_force(decoder, [CAUSAL_KIND] * n_blocks) as wiring:  # once for all that swap masks and no more
        for plan in parsed:
            if plan.architecture == "inplace":
                wiring.plan.kinds = list(plan.kinds(n_blocks))
                compare(plan, wiring)
    for plan in parsed:
        if plan.architecture != "inplace":
            with plan_in_force(decoder, plan) as chosen:
                assert chosen is not None
                compare(plan, chosen)


@pytest.mark.parametrize("name", ALL)
def test_the_causal_plan_equals_the_untouched_model(name: str) -> None:
    decoder = family_decoder(name)
    batches = [id_batch(ROWS, side=side) for side in SIDES] + [id_batch(ROWS[:1])]
    for batch in batches:
        untouched = hidden_under(decoder, batch, "causal")
        through = hidden_through_wiring(decoder, batch, ["causal"] * len(decoder.blocks))
        for one, other in zip(real_rows(through, batch), real_rows(untouched, batch), strict=True):
            assert drift(one, other) <= TOLERANCE


@pytest.mark.parametrize(("name", "plans"), shared_out([*WORKING], (*KINDS, *MIXED), n=4))
def test_influence_is_exactly_what_the_masks_allow(name: str, plans: list[str]) -> None:
    assert_reach(family_decoder(name), *plans)


@pytest.mark.parametrize("name", OTHERS)
def test_influence_in_other_families(name: str) -> None:
    assert_reach(family_decoder(name), "backward", "nosink-bidirectional:2", "hybrid", "extra/bidirectional:1")


@pytest.mark.parametrize(("name", "plans"), shared_out([*WORKING], (*KINDS, *ARCHITECTURES), n=3))
def test_latents_do_not_depend_on_the_batch(name: str, plans: list[str]) -> None:
    assert_batch_invariance(name, *plans)


@pytest.mark.parametrize("name", OTHERS)
def test_latents_in_other_families_do_not_depend_on_the_batch(name: str) -> None:
    assert_batch_invariance(name, "backward", "nosink-bidirectional")


def assert_batch_invariance(name: str, *plans: str) -> None:
    """Compare rows of a padded batch under plans with each row alone."""
    decoder = family_decoder(name)
    for plan in plans:
        batches = {side: id_batch(ROWS, side=side, spans=SPANS) for side in SIDES}
        with plan_in_force(decoder, parse_plan(plan)):
            alone = [
                run_layers(decoder, id_batch([row], spans=[spans]))[:, 0]
                for row, spans in zip(ROWS, SPANS, strict=True)
            ]
            by_side = {side: run_layers(decoder, batch) for side, batch in batches.items()}
        for side, together in by_side.items():
            batch = batches[side]
            assert batch.is_padded
            assert bool(together.isfinite().all())  # the padded tokens too
            for one, other in zip(real_rows(together, batch), alone, strict=True):
                assert drift(one, other) <= TOLERANCE, (plan, side)


@pytest.mark.parametrize(("name", "plans"), shared_out([*WORKING], CERTIFIED, n=1))
def test_the_certificates_agree(name: str, plans: list[str]) -> None:
    assert_certificates(name, *plans)


@pytest.mark.parametrize("name", OTHERS)
def test_the_certificates_of_other_families_agree(name: str) -> None:
    assert_certificates(name, *CERTIFIED)


def assert_certificates(name: str, *plans: str) -> None:
    """Compare what the certificates measure under plans with the product of their masks."""
    decoder = family_decoder(name)
    for plan in map(parse_plan, plans):
        with plan_in_force(decoder, plan) as chosen:
            assert chosen is not None
            assert check_influence(decoder, plan, n_rows=8, n_tokens=16).is_as_planned
            assert max(vars(check_batch_invariance(decoder))[side] for side in SIDES) <= TOLERANCE
            windows = [chosen.windows[block] for block in range(3)]
            expected = expected_reach(plan, 3, N_TOKENS, windows=windows, spans=probe_spans(N_TOKENS))
            assert torch.equal(influence(decoder), expected)


@pytest.mark.parametrize("name", WORKING)
def test_no_converted_block_is_causal(name: str) -> None:
    decoder, batch = family_decoder(name), id_batch(ROWS)
    for plan in ("backward:0", "nosink-bidirectional:0", "extend/backward:0"):
        assert torch.equal(hidden_under(decoder, batch, plan), hidden_under(decoder, batch, "causal"))


def as_trained(decoder: Decoder) -> Decoder:
    """Leave the flag by which a checkpoint attends to both sides on while the decoder runs."""
    return replace(decoder, description=replace(decoder.description, bidirectional=None))


@pytest.mark.parametrize("name", WORKING)
def test_bidirectional_everywhere_is_the_library_s_own_mode(name: str) -> None:
    family, config = WORKING[name]
    # The library bounds a window in both directions by `<=`, and causal ones by `<`.
    window = {"sliding_window": config["sliding_window"] - 1} if "sliding_window" in config else {}
    own = as_trained(make_decoder(family, **{**config, **window, "is_causal": False, "attn_implementation": "eager"}))
    decoder = family_decoder(name)
    assert own.description.weight_digest == decoder.description.weight_digest
    for batch in (id_batch(ROWS[:1]), *(id_batch(ROWS, side=side) for side in SIDES)):
        expected = real_rows(run_layers(own, batch), batch)
        causal = real_rows(hidden_under(decoder, batch, "causal"), batch)
        for b, hidden in enumerate(real_rows(hidden_under(decoder, batch, "bidirectional"), batch)):
            assert drift(hidden, expected[b]) <= TOLERANCE
            assert drift(hidden, causal[b]) > 1e-2


def test_gemma3_attends_as_its_embedding_models_do() -> None:
    family, config = WORKING["gemma3_text"]
    decoder = make_decoder(family, **{**config, "sliding_window": 5})
    own = as_trained(make_decoder(family, **{**config, "sliding_window": 8, "use_bidirectional_attention": True}))
    batch = id_batch(ROWS, side="left")
    both = (hidden_under(decoder, batch, "bidirectional"), run_layers(own, batch))
    for one, other in zip(*(real_rows(hidden, batch) for hidden in both), strict=True):
        assert drift(one, other) <= TOLERANCE


def test_backward_is_causal_on_the_reversed_text() -> None:
    decoder = make_decoder("gpt2")
    decoder.module.wpe.weight.data.zero_()  # type: ignore[union-attr, operator]
    batch, reversed_batch = id_batch(ROWS[:1]), id_batch([ROWS[0][::-1]])
    causal = hidden_under(decoder, batch, "causal")
    assert drift(hidden_under(decoder, reversed_batch, "backward").flip(2), causal) <= TOLERANCE
    for side in SIDES:
        padded = id_batch([row[::-1] for row in ROWS], side=side)
        backward = real_rows(hidden_under(decoder, padded, "backward"), padded)
        assert drift(backward[0].flip(1), causal[:, 0]) <= TOLERANCE


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_converts_its_attention_blocks_alone(name: str) -> None:
    decoder, plan = family_decoder(name), parse_plan(HYBRIDS[name][2])
    batch = id_batch(ROWS)
    causal, converted = hidden_under(decoder, batch, "causal"), hidden_under(decoder, batch, plan.text)
    assert torch.equal(converted[1], causal[1])  # the first block is recurrent, as it was trained
    assert drift(converted[2], causal[2]) > 1e-2
    with plan_in_force(decoder, plan):
        assert check_influence(decoder, plan, n_rows=4, n_tokens=12).is_as_planned
        check_batch_invariance(decoder)
        # Whatever the plan hides stays hidden, and what moves moves nothing before it in recurrent blocks.
        assert not bool((influence(decoder)[1] & ~torch.ones(N_TOKENS, N_TOKENS, dtype=torch.bool).tril()).any())


def test_alibi_stays_what_it_is_under_a_plan() -> None:
    """With queries and keys of zero, scores are the bias alone: the family's own, above the diagonal too."""
    decoder = make_decoder("falcon", alibi=True)
    for block in decoder.blocks:
        block.self_attention.query_key_value.weight.data.zero_()  # type: ignore[union-attr, operator]
    batch, seen = id_batch(ROWS[:1]), list[Tensor]()
    with plan_in_force(decoder, parse_plan("nosink-bidirectional")) as wiring:
        assert wiring is not None
        with ScoreWatch(wiring, lambda _block, scores, _weights: seen.append(scores)):
            run_layers(decoder, batch)
    bias = build_alibi_tensor(torch.ones(1, 9), 4, torch.float32).reshape(1, 4, 1, 9) * 8**-0.5
    hidden = ~kind_matrix(parse_kind("nosink-bidirectional"), 9)
    assert len(seen) == 3
    for scores in seen:
        assert torch.allclose(scores, bias.expand_as(scores).masked_fill(hidden, -torch.inf))


def test_spans_belong_to_the_batch() -> None:
    decoder = family_decoder("llama")
    batch = id_batch(ROWS, spans=SPANS)
    with_spans = hidden_under(decoder, batch, "hybrid")
    without = hidden_under(decoder, replace(batch, spans=None), "hybrid")
    assert torch.equal(without, hidden_under(decoder, batch, "bidirectional"))
    assert drift(with_spans, without) > 1e-2
    all_one = id_batch(ROWS, spans=[[0] * len(row) for row in ROWS])
    causal = hidden_through_wiring(decoder, batch, ["causal"] * 3)
    assert torch.equal(hidden_under(decoder, all_one, "hybrid"), causal)
