"""The certificate refuses every broken plan that changes latents, and would not without its look at single blocks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.errors import CertificateError, DecoderError
from extract.masks.mask_plan import parse_plan
from extract.wiring.attention import Wiring, wiring_of
from extract.wiring.certificate import check_influence
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.mask_families import HYBRIDS, family_decoder
from tests.extract.wiring.mutations import (
    ARGUMENT_MUTATIONS,
    FAMILIES,
    MUTATIONS,
    PAST_INTERFACE,
    Mutation,
    certify,
    change_of,
    is_caught,
    kind_in,
    outcome,
    table,
)
from tests.thinned import thinned

QUICK = ("gemma2", "gpt_oss")  # between them: windows, a soft cap, learned sinks, shared key heads, experts
BY_ARGUMENT = (
    "ALiBi dropped in masked calls",
    "triangle of a buffer left closed",
    "mask argument of one block not replaced",
    "window lost in one block",
    "mask argument faded, not hidden",
    "one head of one block left causal",
    "causal in batches of more than nine rows",
    "padding attended to",
    "tokens mixed beside attention",
)
"""Tried on one of the two families in turn, which has what the first, second and fourth break; `long` on both."""
ONLY_IN = {"soft cap dropped in masked calls": "gemma2", "learned sinks dropped in masked calls": "gpt_oss"}
"""What one of the two families alone has; other mutations are tried on one of them in turn, and `long` on both."""
NAMES = [mutation.what for mutation in MUTATIONS]
ROOT = Path(__file__).parents[3]


def named(what: str) -> Mutation:
    return next(mutation for mutation in (*MUTATIONS, *ARGUMENT_MUTATIONS) if mutation.what == what)


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


def mutated() -> list[Any]:
    """Pair mutations with families, as test parameters."""
    turns = {what: ONLY_IN.get(what, QUICK[i % 2]) for i, what in enumerate(NAMES)}
    return [
        pytest.param(what, family, marks=() if family == turns[what] else pytest.mark.long)
        for what in NAMES
        for family in QUICK
    ]


@pytest.mark.parametrize(("what", "family"), mutated())
def test_what_changes_latents_is_caught(what: str, family: str) -> None:
    assert outcome(named(what), family) != "MISSED"


@pytest.mark.parametrize(("what", "family"), thinned(BY_ARGUMENT, PAST_INTERFACE))
def test_what_changes_latents_by_a_mask_argument_is_caught(what: str, family: str) -> None:
    assert outcome(named(what), family) != "MISSED"


@pytest.mark.long
def test_the_page_on_masks_holds_the_table() -> None:
    drawn = table()
    assert "MISSED" not in drawn
    assert len(MUTATIONS) >= 25
    for row in drawn.splitlines()[1:]:
        assert "caught" in row, row  # a mutation that is harmless everywhere proves nothing
    assert (ROOT / "docs" / "tables" / "mutations.csv").read_text(encoding="utf-8") == drawn


@pytest.mark.parametrize(("family", "plan"), thinned(FAMILIES, sorted({mutation.plan for mutation in MUTATIONS})))
def test_a_plan_that_is_not_broken_is_certified(family: str, plan: str) -> None:
    certify(family_decoder(family), plan)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("sink mask dropped on one block", r"in block 3, planned as 'nosink.*': head \d of token 1 depends on token 0"),
        ("the top block left causal", r"in block 3, planned as 'bidirectional': head \d of token 0 ignores token 1"),
        ("all heads but one of the top block left causal", r"block 3, .*: head \d of token 0 ignores token 1"),
        ("scale dropped in masked calls", r"block 2, planned as 'nosink-bidirectional': head \d differs by"),
        ("causal in batches of more than nine rows", r"block 2, .*: in 16 unpadded rows of 24 tokens"),
        ("tokens mixed beside attention", r"tokens beside its attention \(block 1: token 1 depends on token 0\)"),
    ],
)
def test_the_message_says_where(what: str, message: str) -> None:
    mutation, decoder = named(what), family_decoder("granite")
    with mutation.apply(), pytest.raises((CertificateError, DecoderError), match=message):
        certify(decoder, mutation.plan)


@pytest.mark.parametrize("what", ["sink mask dropped on one block", "causal in batches of more than nine rows"])
def test_without_the_look_at_single_blocks_it_would_be_missed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal blocks below saturate what reaches the top: the check this one replaces saw nothing."""
    monkeypatch.setattr("extract.wiring.certificate.prove_blocks", lambda *_: (0, 0.0))
    deep = Mutation(what, named(what).plan, named(what).apply)
    assert not is_caught(deep, "llama")
    assert change_of(deep, "llama") > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_what_clearly_should_move_and_does_not_is_refused_without_any_other_proof(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proofs of blocks begin batches of their own; which blocks are recurrent is known before they do."""
    monkeypatch.setattr("extract.wiring.certificate._require_equal_when_watched", lambda *_: None)
    with named("causal unless watched").apply(), pytest.raises(CertificateError, match=r"output 0 of layer .* ignores"):
        certify(family_decoder(family), "bidirectional:2")


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_one_head_that_differs_when_it_is_not_watched_is_refused(family: str) -> None:
    """Too little for what reaches the top, in a recurrent family above all: the states themselves are compared."""
    decoder, plan = family_decoder(family), parse_plan("bidirectional@3-3")
    projection = decoder.blocks[2].self_attn.v_proj  # type: ignore[union-attr]

    def change(_: object, __: object, values: Tensor) -> Tensor:
        wiring = wiring_of(decoder.blocks)
        is_watched = wiring is None or wiring.watch is not None or not {"bidirectional"} & set(kinds_of(wiring))
        return values if is_watched else torch.cat([0.5 * values[..., :8], values[..., 8:]], dim=-1)

    hook = projection.register_forward_hook(change)  # type: ignore[union-attr]
    try:
        with plan_in_force(decoder, plan), pytest.raises(CertificateError, match=r"block_03 .* are not watched"):
            check_influence(decoder, plan)
    finally:
        hook.remove()


def kinds_of(wiring: Wiring) -> list[str]:
    return [kind.name for kind in wiring.plan.kinds]


def test_an_attention_block_of_a_hybrid_left_causal_is_caught() -> None:
    decoder = family_decoder("lfm2")
    certify(decoder, HYBRIDS["lfm2"][2])
    message = r"in block 3, planned as 'bidirectional': head \d of token 0 ignores token 1"
    with kind_in("causal", 2)(), pytest.raises(CertificateError, match=message):
        certify(decoder, HYBRIDS["lfm2"][2])


def test_a_recurrent_block_that_looks_ahead_is_caught() -> None:
    """Here it does so only under a plan: the untouched decoder, and causal plans, are as they were trained."""
    decoder, plan = family_decoder("lfm2"), parse_plan(HYBRIDS["lfm2"][2])
    with plan_in_force(decoder, plan):
        mlp = decoder.blocks[0].feed_forward
        hook = mlp.register_forward_hook(lambda *call: call[2] + 0.1 * call[2].roll(-1, 1))  # type: ignore[union-attr]
        try:
            with pytest.raises(DecoderError, match=r"lets token 0 depend on the later token 1 in block 1"):
                check_influence(decoder, plan)
        finally:
            hook.remove()
