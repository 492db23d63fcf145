"""Rows that begin with the same tokens of a template share them: equal to rows that do not, and proved on that path."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import CertificateError
from extract.inputs.batches import Batch, collate
from extract.inputs.joined_text import INSTRUCTION, SPECIAL, TEXT, JoinedText
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText
from extract.masks.mask_plan import parse_plan
from extract.masks.mask_rules import is_closed
from extract.poolings.pooling_table import POOLINGS
from extract.run import extraction_spec
from extract.run.embed import embed_texts, embed_words
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache
from extract.wiring.attention import SharedPrefix
from extract.wiring.plan_wiring import plan_in_force, shared_prefix
from extract.wiring.states import pool_batch
from tests.extract.mask_families import (
    ALSO_WORKING,
    BY_ARGUMENT,
    HYBRIDS,
    REFUSED,
    WORKING,
    drift,
    family_decoder,
    hidden_under,
    run_layers,
)
from tests.extract.tiny_decoders import encode_batch, make_decoder, make_model, make_texts, make_tokenizer

EQUAL = 1e-5
"""Largest difference of latents, relative to the largest of the layer."""
BEFORE = InputTemplate(instruction="The mouse ran under the table: ", suffix=" ice", bos="force")
N_BEFORE = 10  # BOS and the tokens of the instruction, but for the blank at its end, which some texts take up
TEXTS = make_texts(24)
SPEC = ExtractionSpec(poolings=("last", "mean"), template=BEFORE, batch_tokens=512)
DEEP: dict[str, Any] = {"num_hidden_layers": 5}
PLANS = {
    "causal": 5,
    "bidirectional:2": 3,
    "nosink-bidirectional:3": 2,
    "nosink-bidirectional:1+nosink-causal": 4,
    "backward:1": 4,
    "backward@2-2": 1,
    "hybrid:2": 3,
    "local:2": 3,
    "bidirectional": 0,
}
"""Of five blocks, how many share: those below the first in which the template sees the text."""


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few texts share, too."""
    monkeypatch.setattr(extraction_spec, "FEWEST_SHARING", 2)


def rows_after(n_shared: int, *lengths: int) -> Batch:
    """Make a batch whose rows have some tokens of a template in common, and so many of their own."""
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> np.ndarray:
        return torch.randint(3, 320, (n,), generator=generator).numpy()

    first = draw(n_shared)
    rows = [np.concatenate([first, draw(n)]) for n in lengths]
    roles = np.array([INSTRUCTION, TEXT], np.int8)
    return collate([EncodedText(ids, roles.repeat([n_shared, len(ids) - n_shared]), False) for ids in rows], range(4))


BATCHES = {
    "padded": rows_after(5, 9, 7, 3, 12),
    "unpadded": rows_after(6, 4, 4, 4, 4),
    "one": rows_after(1, 2, 2, 1, 1),
}


@pytest.mark.parametrize("plan", ["causal", "nosink-bidirectional:1"])
@pytest.mark.parametrize("family", [*WORKING, *(pytest.param(name, marks=pytest.mark.long) for name in ALSO_WORKING)])
def test_every_family_computes_the_same_with_a_shared_prefix(family: str, plan: str) -> None:
    decoder = family_decoder(family)
    for batch in BATCHES.values():
        apart = hidden_under(decoder, batch, plan)
        with plan_in_force(decoder, parse_plan(plan), shares=True) as wiring:
            assert shared_prefix(wiring, batch) is not None
            together = run_layers(decoder, batch)
        assert drift(together[:, batch.is_real], apart[:, batch.is_real]) < EQUAL


@pytest.mark.parametrize(
    ("family", "plan"),
    [*(("llama", plan) for plan in PLANS), ("gemma3_text", "nosink-bidirectional:3"), ("gpt2", "backward:1")],
)
def test_every_layer_and_pooling_is_that_of_rows_apart(family: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder(family, **({"n_layer": 5} if family == "gpt2" else DEEP))
    poolings = (*(name for name in POOLINGS if "-" not in name), "weighted-mean", "role:instruction", "last:40")
    template = replace(BEFORE, spans="random:1" if "hybrid" in plan else "")
    spec = replace(SPEC, plan=plan, poolings=poolings, template=template)
    batch = encode_batch(decoder, TEXTS, template=template)
    with plan_in_force(decoder, spec.mask_plan, shares=True) as wiring:
        found = shared_prefix(wiring, batch)
    assert (0 if found is None else found.n_blocks) == PLANS[plan]
    assert found is None or found.n_tokens == N_BEFORE
    together = embed_texts(decoder, TEXTS, spec=spec)
    monkeypatch.setattr(extraction_spec, "FEWEST_SHARING", 1000)
    apart = embed_texts(decoder, TEXTS, spec=spec)
    assert drift(together, apart) < EQUAL
    assert together.shape[:2] == (7, len(poolings))


def test_words_after_a_prefix_are_those_of_rows_apart(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [JoinedText(text, ((0, 3), (4, len(text)))) for text in TEXTS if text[3:4] == " "]
    spec = replace(SPEC, words=WordSpec(("first", "mean")), plan="bidirectional:1")
    together = embed_words(decoder, texts, spec=spec)
    monkeypatch.setattr(extraction_spec, "FEWEST_SHARING", 1000)
    apart = embed_words(decoder, texts, spec=spec)
    assert len(texts) > 5
    assert drift(together.latents, apart.latents) < EQUAL


@pytest.mark.parametrize(("plan", "n_blocks"), PLANS.items())
def test_shared_tokens_go_once_through_the_blocks_that_share_them(plan: str, n_blocks: int) -> None:
    decoder, batch = make_decoder(**DEEP), BATCHES["padded"]
    counts = [0] * 5

    def counting(block: int) -> Callable[..., None]:
        def count(_: Any, args: tuple[Tensor, ...]) -> None:
            counts[block] += args[0].shape[0] * args[0].shape[1]

        return count

    hooks = [
        block.get_submodule("mlp").register_forward_pre_hook(counting(k)) for k, block in enumerate(decoder.blocks)
    ]
    with plan_in_force(decoder, parse_plan(plan), shares=True):
        counts[:] = [0] * 5
        pool_batch(decoder, batch, poolings=("mean",), layers=decoder.layers)
    for hook in hooks:
        hook.remove()
    n_rows, n_columns = batch.ids.shape
    once, apart = 5 + n_rows * (n_columns - 5), n_rows * n_columns
    assert counts == [once] * n_blocks + [apart] * (5 - n_blocks)


def test_what_rows_begin_with_ends_where_a_row_differs_or_its_text_begins() -> None:
    roles = np.array([SPECIAL, INSTRUCTION, INSTRUCTION, TEXT, TEXT, TEXT], np.int8)
    rows = [EncodedText(np.array(ids), roles[: len(ids)], False) for ids in ([1, 5, 6, 7, 8, 9], [1, 5, 6, 7, 8])]
    assert collate(rows, range(2)).n_shared == 3  # equal texts are not the template's
    other = replace(rows[1], ids=np.array([1, 5, 4, 7, 8]))
    assert collate([rows[0], other], range(2)).n_shared == 2
    short = EncodedText(np.array([1, 5]), roles[:2], False)
    assert collate([rows[0], short], range(2)).n_shared == 2
    assert collate(rows, range(2), side="left").n_shared == 0
    assert collate([short, short], range(2)).n_shared == 1  # a row is never shared whole


def test_kinds_under_which_the_first_tokens_see_no_later_one() -> None:
    closed = {"causal", "nosink-causal", "nosink3-causal"}
    kinds = (*closed, "backward", "bidirectional", "nosink-bidirectional", "hybrid", "local")
    for n_first in (1, 2, 5):
        seen = {kind for kind in kinds if is_closed(parse_plan(kind).segments[0].kind, n_first, 9)}
        assert seen == closed


def test_a_cache_says_what_its_rows_shared_and_is_the_one_that_rows_apart_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = make_decoder(**DEEP)
    spec = replace(SPEC, plan="bidirectional:2")
    together = extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path / "together")
    monkeypatch.setattr(extraction_spec, "FEWEST_SHARING", 1000)
    apart = extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path / "apart")
    assert together.manifest.id == apart.manifest.id
    facts = together.certificate["batches"]
    assert N_BEFORE <= facts["n_prefix"] <= N_BEFORE + 1
    assert facts["n_prefix_blocks"] == 3
    assert 0 < facts["n_sharing"] <= facts["n_batches"]
    assert facts["largest_error"] < EQUAL
    assert not {"n_sharing", "n_prefix", "n_prefix_blocks"} & set(apart.certificate["batches"])
    with h5py.File(together.path) as one, h5py.File(apart.path) as other:
        for layer in together.layers:
            states = [torch.from_numpy(file[f"latents/mean/{layer}"][:]) for file in (one, other)]
            assert drift(states[0][None], states[1][None]) < EQUAL


@pytest.mark.parametrize(
    ("names", "shared"),
    [
        (("nosink-bidirectional:0", "nosink-bidirectional:2", "inter-block/backward:2"), (3, 1, 3)),
        (("backward", "backward:2", "causal"), (0, 1, 3)),  # the first of which comes before causal in the alphabet
    ],
)
def test_a_sweep_shares_too(
    names: Sequence[str], shared: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, plans = make_decoder(), [parse_plan(name) for name in names]
    swept = sweep_latents(decoder, TEXTS, plans, spec=SPEC, folder=tmp_path / "together")
    monkeypatch.setattr(extraction_spec, "FEWEST_SHARING", 1000)
    for plan, n_blocks, cache in zip(plans, shared, swept, strict=True):
        assert cache.certificate["batches"].get("n_prefix_blocks", 0) == n_blocks
        apart = extract_latents(decoder, TEXTS, spec=SPEC.with_plan(plan), folder=tmp_path / "apart")
        states = [each.gather(each.rows_of(TEXTS), "mean", layers="all") for each in (cache, apart)]
        assert drift(states[0], states[1]) < EQUAL


def test_half_precision_shares_within_its_rounding_unless_its_batches_are_not_proved(tmp_path: Path) -> None:
    decoder = wrap_decoder(make_model().to(torch.bfloat16), make_tokenizer())
    cache = extract_latents(decoder, TEXTS, spec=SPEC, folder=tmp_path)
    assert cache.certificate["batches"]["n_sharing"]
    assert cache.certificate["batches"]["largest_error"] < 0.05
    experts = wrap_decoder(make_model("qwen3_moe").to(torch.bfloat16), make_tokenizer())
    with plan_in_force(experts, parse_plan("causal"), shares=True) as wiring:
        assert wiring is None


def test_a_causal_plan_that_shares_is_certified_as_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = extract_latents(make_decoder(), TEXTS, spec=SPEC, folder=tmp_path / "together").certificate
    monkeypatch.setattr(extraction_spec, "FEWEST_SHARING", 1000)
    apart = extract_latents(make_decoder(), TEXTS, spec=SPEC, folder=tmp_path / "apart").certificate
    assert together["batches"]["n_sharing"]
    assert together["influence"] == apart["influence"]


def test_few_texts_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [SPEC.shares_prefix(n) for n in (1, 127, 128)] == [False, False, True]
    assert not replace(SPEC, template=InputTemplate(bos="force", suffix=" ice")).shares_prefix(128)
    assert replace(SPEC, template=InputTemplate(chat="user")).shares_prefix(128)


PLAIN = {
    "one row a batch": replace(SPEC, batch_tokens=8),
    "no template": replace(SPEC, template=InputTemplate(bos="force")),
    "a template that ends the row": replace(SPEC, template=InputTemplate(suffix=" under the table")),
    "a skip": replace(SPEC, plan="bidirectional:1~skip1@1"),
    "a placeholder": replace(SPEC, plan="causal~tp1-2"),
    "a key of the last token": replace(SPEC, plan="causal~kv1-2"),
    "another architecture": replace(SPEC, plan="inter-block/backward:2"),
    "taps": replace(SPEC, layers=("all", "taps:mid")),
    "ReBA": replace(SPEC, poolings=("reba-mean",), template=replace(BEFORE, repeat=2)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_not_proved_right_is_not_shared(name: str, tmp_path: Path) -> None:
    cache = extract_latents(make_decoder(), TEXTS, spec=PLAIN[name], folder=tmp_path)
    assert "n_sharing" not in cache.certificate["batches"]


@pytest.mark.parametrize("family", ["bloom", "gpt_neo", *(p for p in HYBRIDS if p != "qwen3_next"), "mamba"])
def test_families_past_the_interface_and_recurrent_ones_share_nothing(family: str) -> None:
    decoder = family_decoder(family)
    assert family in BY_ARGUMENT or family in REFUSED
    with plan_in_force(decoder, parse_plan("causal"), shares=True) as wiring:
        assert wiring is None


def test_a_sparse_indexer_shares_nothing() -> None:
    decoder = make_decoder()
    vars(decoder)["longest_dense_row"] = 32
    with plan_in_force(decoder, parse_plan("causal"), shares=True) as wiring:
        assert wiring is None


PACK, SPLIT, UNPACK, ATTEND = SharedPrefix.pack, SharedPrefix.split, SharedPrefix.unpack, SharedPrefix.attend
Mutation = Callable[[pytest.MonkeyPatch, Callable[[SharedPrefix], bool]], None]


def of_positions(change: Callable[[Tensor], Tensor]) -> Mutation:
    """Change the rotations of tokens, `(1, T, H)`, as they are packed."""

    def mutate(patch: pytest.MonkeyPatch, acts: Callable[[SharedPrefix], bool]) -> None:
        def pack(shared: SharedPrefix, x: Tensor) -> Tensor:
            return PACK(shared, change(x) if acts(shared) and x.shape[-1] == 8 else x)

        patch.setattr(SharedPrefix, "pack", pack)

    return mutate


def of_attention(change: Callable[[SharedPrefix, dict[str, Tensor]], None]) -> Mutation:
    """Change what attention of packed rows is computed of: `change(shared, arguments)`."""

    def mutate(patch: pytest.MonkeyPatch, acts: Callable[[SharedPrefix], bool]) -> None:
        def attend(shared: SharedPrefix, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
            given = {"query": query, "key": key.clone(), "value": value.clone(), **how}
            if acts(shared):
                change(shared, given)
            return ATTEND(shared, **given)

        patch.setattr(SharedPrefix, "attend", attend)

    return mutate


def drop_a_key(shared: SharedPrefix, given: dict[str, Tensor]) -> None:
    """Hide the last shared token from every token of a text."""
    bias = given["bias"].clone()
    bias[:, :, shared.n_tokens :, shared.n_tokens - 1] = float("-inf")
    given["bias"] = bias


def of_the_last_key_alone(shared: SharedPrefix, given: dict[str, Tensor]) -> None:
    """Put the first shared value in the place of the last."""
    given["value"][:, :, shared.n_tokens - 1] = given["value"][:, :, 0]


def turn_rows(patch: pytest.MonkeyPatch, acts: Callable[[SharedPrefix], bool]) -> None:
    """Give every row the tokens of another as they are written out."""

    def unpack(shared: SharedPrefix, x: Tensor) -> Tensor:
        whole = UNPACK(shared, x)
        return whole.roll(1, 0) if acts(shared) else whole

    patch.setattr(SharedPrefix, "unpack", unpack)


def keep_the_first_prefix(patch: pytest.MonkeyPatch, _: Callable[[SharedPrefix], bool]) -> None:
    """Share in blocks in which the template sees the text."""
    patch.setattr("extract.wiring.plan_wiring._try_sharing", lambda decoder, *_: len(decoder.blocks))
    patch.setattr(
        "extract.wiring.plan_wiring.is_closed", lambda kind, n, width: width > 14 or is_closed(kind, n, width)
    )


MUTATIONS: dict[str, Mutation] = {
    "positions of texts begin at 0": of_positions(lambda x: torch.cat([x[:, :8], x[:, : x.shape[1] - 8]], dim=1)),
    "positions off by one": of_positions(lambda x: x.roll(1, 1)),
    "a key dropped": of_attention(drop_a_key),
    "a value of another token": of_attention(of_the_last_key_alone),
    "rows exchanged": turn_rows,
    "shared beyond the shared blocks": keep_the_first_prefix,
}


@pytest.mark.parametrize("plan", ["causal", "nosink-bidirectional:2"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_what_goes_wrong_in_batches_of_the_extraction_alone_is_caught(
    name: str, plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plan == "causal" and MUTATIONS[name] is keep_the_first_prefix:
        pytest.skip("a causal plan shares every block")
    n_acted = 0

    def acts(shared: SharedPrefix) -> bool:
        nonlocal n_acted
        n_acted += shared.shape[1] > 14
        return shared.shape[1] > 14  # longer than the rows that sharing is tried on

    monkeypatch.setattr("extract.run.extraction.SHARE", 0.0)  # nothing is closed before the end
    MUTATIONS[name](monkeypatch, acts)
    with pytest.raises(CertificateError, match=r"in a batch of \d+ rows of \d+ tokens: latents of text"):
        extract_latents(make_decoder(), TEXTS, spec=replace(SPEC, plan=plan), folder=tmp_path)
    assert n_acted or MUTATIONS[name] is keep_the_first_prefix
    (path,) = tmp_path.glob("*.h5")
    assert LatentCache(path, allow_partial=True).n_done == 0


@pytest.mark.parametrize("name", list(MUTATIONS)[:-1])
def test_what_goes_wrong_everywhere_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder()
    apart = hidden_under(decoder, BATCHES["padded"], "bidirectional:1")
    MUTATIONS[name](monkeypatch, lambda _: True)
    with plan_in_force(decoder, parse_plan("bidirectional:1"), shares=True) as wiring:
        assert wiring is not None
        assert wiring.n_sharing == 0
        assert torch.equal(run_layers(decoder, BATCHES["padded"]), apart)
