"""Masks of unpadded rows are built once for each length, and are the very same as if they were built again."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from extract.inputs.batches import collate
from extract.masks import mask_rules
from extract.masks.mask_plan import MaskKind, parse_kind, parse_plan
from extract.masks.mask_rules import additive, batch_mask
from extract.poolings.memory import CPU
from extract.wiring import attention
from extract.wiring.attention import WiredPlan, Wiring
from extract.wiring.plan_wiring import encode_ids, plain_batch, plan_in_force
from extract.wiring.states import pool_batch
from tests.extract.tiny_decoders import make_decoder

KINDS = ("nosink-causal", "nosink-bidirectional", "local")


def real(n_rows: int, n_tokens: int, *, n_padding: int = 0) -> Tensor:
    """Say which tokens of a batch are real; the first row ends in padding."""
    made = torch.ones(n_rows, n_tokens, dtype=torch.bool)
    made[0, n_tokens - n_padding :] = False
    return made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    """Count the masks that are built, by kind and shape."""
    found: Counter[Any] = Counter()

    def build(kind: MaskKind, is_real: Tensor, **how: Any) -> Tensor:
        found[kind.text, tuple(is_real.shape), how.get("window")] += 1
        return batch_mask(kind, is_real, **how)

    monkeypatch.setattr(mask_rules, "batch_mask", build)
    monkeypatch.setattr(attention, "batch_mask", build)
    return found


def masks_of(wiring: Wiring, *batches: Tensor, window: int | None = None) -> list[Tensor | str]:
    """Take the mask of the first block in batches, one after the other."""
    taken = []
    for is_real in batches:
        rows = [encode_ids(torch.zeros(int(n_tokens), dtype=torch.long)) for n_tokens in is_real.sum(1)]
        wiring.begin(collate(rows, range(len(rows))), CPU)
        taken.append(wiring.mask(0, window))
    return taken


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_is_built_once_for_each_length(built: Counter[Any], kind: str, window: int | None) -> None:
    wiring = Wiring(WiredPlan([parse_kind(kind)]))
    lengths = (5, 7, 5, 5, 7)
    found = masks_of(wiring, *(real(k + 1, n) for k, n in enumerate(lengths)), window=window)
    assert dict(built) == {(kind, (1, 5), window): 1, (kind, (1, 7), window): 1}
    for mask, n_tokens in zip(found, lengths, strict=True):
        fresh = batch_mask(parse_kind(kind), real(1, n_tokens), window=window).unsqueeze(1)
        assert torch.equal(torch.as_tensor(mask), fresh)


def test_padded_rows_and_other_kinds_get_masks_of_their_own(built: Counter[Any]) -> None:
    wiring = Wiring(WiredPlan([parse_kind("nosink-causal")]))
    whole, padded, other = masks_of(wiring, real(2, 6), real(2, 6, n_padding=2), real(2, 6, n_padding=1))
    assert not torch.equal(torch.as_tensor(padded), torch.as_tensor(other))
    wiring.plan.kinds = [parse_kind("local")]
    (local,) = masks_of(wiring, real(2, 6))
    assert not torch.equal(torch.as_tensor(whole), torch.as_tensor(local))
    assert sum(built.values()) == 4


def test_what_is_kept_is_bounded(built: Counter[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_rules, "CACHED_BYTES", 5 * 5 + 6 * 6)
    wiring = Wiring(WiredPlan([parse_kind("nosink-causal")]))
    masks_of(wiring, real(1, 5), real(1, 6), real(1, 5), real(1, 4), real(1, 5))
    assert [n_tokens for (_, (_, n_tokens), _) in built.elements()] == [5, 6, 4]
    masks_of(wiring, real(1, 6), real(1, 50), real(1, 50))  # 6 was not used for longest; 50 is too large alone
    assert built["nosink-causal", (1, 6), None] == 2
    assert built["nosink-causal", (1, 50), None] == 1


def test_the_bias_of_a_mask_is_made_once_for_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []

    def make(mask: Tensor, dtype: torch.dtype) -> Tensor:
        made.append(additive(mask, dtype))
        return made[-1]

    monkeypatch.setattr(attention, "additive", make)
    wiring = Wiring(WiredPlan([parse_kind("nosink-causal")]))
    (mask,) = masks_of(wiring, real(2, 6))
    assert isinstance(mask, Tensor)
    first, second, wide = (wiring.current.bias(mask, dtype) for dtype in (torch.float32, torch.float32, torch.float64))
    assert first is second
    assert (len(made), wide.dtype) == (2, torch.float64)
    assert torch.equal(first, additive(mask, torch.float32))


@pytest.mark.parametrize("plan", ["nosink-bidirectional", "nosink-causal:2", "local:1"])
def test_latents_of_a_kept_mask_are_those_of_a_new_one(plan: str) -> None:
    decoder = make_decoder()
    batches = [plain_batch(torch.randint(3, 300, (n, 7), generator=torch.Generator().manual_seed(n))) for n in (2, 3)]

    def latents(which: Sequence[int]) -> Tensor:
        with plan_in_force(decoder, parse_plan(plan)):
            found = [pool_batch(decoder, batches[k], poolings=("mean", "last"), layers=decoder.layers) for k in which]
        return found[-1]

    assert torch.equal(latents([0, 1, 1]), latents([1]))
