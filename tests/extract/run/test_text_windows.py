"""Long plain texts in overlapping windows, joined into one latent: against a plain loop over the windows."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import InputError
from extract.inputs.batches import BatchWindows, collate, collate_group, group_texts
from extract.inputs.joined_text import ELSEWHERE, TEXT
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, TextEncoder
from extract.masks.mask_plan import parse_plan
from extract.poolings.poolings import JOINS, Joiner
from extract.run.embed import embed_texts, estimate_extraction
from extract.run.extraction import Extraction, Session, describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache
from extract.store.writer import StoreWriter
from extract.wiring.plan_wiring import plan_in_force, run_batch
from extract.wiring.states import attention_maps, pool_batch
from tests.extract.recorder import Recorder, interrupt_after
from tests.extract.tiny_decoders import (
    SENTENCES,
    assert_same_arrays,
    make_model,
    make_tokenizer,
    plain_hidden_states,
)

TOLERANCE = 1e-4
ALL = tuple(JOINS)
MOST = 12
LONG = InputTemplate(max_tokens=MOST, on_long="windows")
SPEC = ExtractionSpec(poolings=ALL, template=LONG, batch_tokens=40)
TEXTS = ["Ice!", "a", SENTENCES[0], " ".join(SENTENCES[:3])]  # three that fit, and one of four or five windows


def windows_of(n_tokens: int, room: int) -> list[tuple[int, list[int]]]:
    """Lay windows over tokens one by one: where each begins, and the tokens that have most context in it."""
    starts = [*range(0, n_tokens - room, max(1, room // 2)), n_tokens - room]
    owned: dict[int, list[int]] = {}
    for token in range(n_tokens):
        context = {}
        for start in starts:
            if start <= token < start + room:
                before = n_tokens if start == 0 else token - start
                after = n_tokens if start + room == n_tokens else start + room - token - 1
                context[start] = min(before, after)
        best = max(context, key=lambda start: (context[start], -start))
        owned.setdefault(best, []).append(token)
    return [(start, owned[start]) for start in starts if start in owned]


def by_hand(tokenizer: Any, text: str, states_of: Any, *, most: int = MOST, head: str = "") -> dict[str, Tensor]:
    """Pool a text from the hidden states `(L, T, D)` of its rows, one at a time: pooling to `(L, D)`."""
    encoded = tokenizer(head + text, return_special_tokens_mask=True, return_offsets_mapping=True)
    ids = np.array(encoded["input_ids"])
    is_text = ~np.array(encoded["special_tokens_mask"], bool) & (np.array(encoded["offset_mapping"])[:, 1] > len(head))
    columns, others = np.flatnonzero(is_text), np.flatnonzero(~is_text)
    n = len(columns)
    room = most - len(others)
    kept: dict[int, Tensor] = {}
    final = torch.empty(0)
    for start, owned in [(0, list(range(n)))] if len(ids) <= most else windows_of(n, room):
        row = sorted([*others, *columns[start : start + room]])
        states = states_of(ids[row].tolist())
        kept |= {token: states[:, row.index(columns[token])] for token in owned}
        final = states[:, -1]
    tokens = torch.stack([kept[token] for token in range(n)], dim=1)
    ranks = torch.arange(1, n + 1.0)[:, None]
    pooled = {"mean": tokens.mean(1), "weighted-mean": (tokens * ranks).sum(1) / ranks.sum(), "max": tokens.amax(1)}
    return {**pooled, "first": tokens[:, 0], "last": final}


def assert_equal_by_hand(latents: Tensor, expected: list[dict[str, Tensor]]) -> None:
    """Compare latents `(L, P, N, D)` of all poolings with those pooled by hand."""
    for p, pooling in enumerate(ALL):
        hand = torch.stack([item[pooling] for item in expected], dim=1)
        assert torch.allclose(latents[:, p], hand, atol=TOLERANCE), pooling


@pytest.fixture(scope="module")
def whole(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """An uninterrupted extraction in windows."""
    return extract_latents(decoder, TEXTS, spec=SPEC, folder=tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("family", "special", "head"),
    [("llama", {"adds_bos": True}, ""), ("gpt2", {"adds_eos": True}, "Say: ")],
)
def test_long_texts_equal_a_plain_loop_over_their_windows(family: str, special: dict[str, bool], head: str) -> None:
    model = make_model(family)
    decoder = wrap_decoder(model, make_tokenizer(**special))
    template = InputTemplate(instruction=head, max_tokens=MOST, on_long="windows")

    def states_of(ids: list[int]) -> Tensor:
        return torch.stack(list(plain_hidden_states(model, ids, family=family).values()))

    expected = [by_hand(decoder.tokenizer, text, states_of, head=head) for text in TEXTS]
    for batch_tokens in (1, 40):  # a window at a time, and three
        spec = ExtractionSpec(poolings=ALL, template=template, batch_tokens=batch_tokens)
        assert_equal_by_hand(embed_texts(decoder, TEXTS, spec=spec), expected)


def test_windows_under_a_plan_equal_a_loop_over_them(decoder: Decoder, tmp_path: Path) -> None:
    plan = "nosink-bidirectional:2"
    seen: list[Tensor] = []

    def states_of(ids: list[int]) -> Tensor:
        item = EncodedText(np.array(ids), np.full(len(ids), TEXT, np.int8), is_truncated=False)
        seen.clear()
        run_batch(decoder, collate([item], [0]), lambda _, hidden: seen.append(hidden[0].clone()))
        return torch.stack(seen)

    with plan_in_force(decoder, parse_plan(plan)):
        expected = [by_hand(decoder.tokenizer, text, states_of) for text in TEXTS]
    cache = extract_latents(decoder, TEXTS, spec=SPEC.with_plan(parse_plan(plan)), folder=tmp_path)
    rows = cache.rows_of(TEXTS)
    assert_equal_by_hand(torch.stack([cache.gather(rows, name) for name in ALL], dim=1), expected)


def test_a_text_is_one_row_whole_and_not_truncated(decoder: Decoder, whole: LatentCache) -> None:
    rows = whole.rows_of(TEXTS)
    assert sorted(rows.tolist()) == list(range(len(TEXTS)))
    assert not whole.is_truncated.any()
    lengths = [len(decoder.tokenizer(text)["input_ids"]) for text in TEXTS]
    assert whole.n_tokens[rows].tolist() == lengths
    assert max(lengths) > 2 * MOST


def test_texts_that_fit_have_the_very_bits_that_truncate_gives(decoder: Decoder, tmp_path: Path) -> None:
    short = [text for text in TEXTS if len(decoder.tokenizer(text)["input_ids"]) <= MOST]
    assert len(short) > 1
    cut = ExtractionSpec(poolings=ALL, template=InputTemplate(max_tokens=MOST), batch_tokens=40)
    one = extract_latents(decoder, short, spec=SPEC, folder=tmp_path / "windows")
    other = extract_latents(decoder, short, spec=cut, folder=tmp_path / "truncate")
    assert one.path.name != other.path.name
    assert_same_arrays(one.path, other.path)


def test_a_resumed_extraction_equals_an_uninterrupted_one(decoder: Decoder, whole: LatentCache, tmp_path: Path) -> None:
    """The longest text takes several batches; it is computed again where it was not whole."""
    with pytest.raises(KeyboardInterrupt):
        extract_latents(decoder, TEXTS, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=interrupt_after(2)))
    recorder = Recorder()
    again = extract_latents(decoder, TEXTS, spec=SPEC, folder=tmp_path, progress=recorder)
    assert 0 < recorder.n_done < len(TEXTS)
    assert_same_arrays(again.path, whole.path)


@pytest.mark.long
def test_a_sweep_reads_windows_as_separate_extractions_do(decoder: Decoder, whole: LatentCache, tmp_path: Path) -> None:
    plans = [parse_plan("causal"), parse_plan("nosink-bidirectional:1")]
    caches = sweep_latents(decoder, TEXTS, plans, spec=SPEC, folder=tmp_path / "swept")
    alone = extract_latents(decoder, TEXTS, spec=SPEC.with_plan(plans[1]), folder=tmp_path / "alone")
    rows = whole.rows_of(TEXTS)
    for swept, one in zip(caches, (whole, alone), strict=True):
        for name in ALL:
            torch.testing.assert_close(swept.gather(rows, name), one.gather(rows, name), atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_moves_no_window(decoder: Decoder, side: Literal["right", "left"]) -> None:
    (item,) = TextEncoder(decoder.tokenizer, LONG, window=64)(TEXTS[-1:])
    expected = embed_texts(decoder, TEXTS[-1:], spec=SPEC)
    joiner, found = Joiner(ALL), None
    for batch in collate_group([item], [0], batch_tokens=40):
        assert batch.windows is not None
        some = item.windows[batch.windows.first : batch.windows.first + len(batch.rows)]
        padded = collate(some, batch.rows.tolist(), side=side, width=MOST + 5, pad_id=7)
        padded = replace(padded, windows=batch.windows)
        found = joiner.add(batch, pool_batch(decoder, padded, poolings=ALL, layers=decoder.layers))
    assert found is not None
    torch.testing.assert_close(found[1], expected, atol=TOLERANCE, rtol=0)


def test_every_token_counts_in_one_window_and_a_batch_is_bounded(decoder: Decoder) -> None:
    encoder = TextEncoder(decoder.tokenizer, LONG, window=64)
    (item,) = encoder(["ice " * 500])
    rows = [int((window.roles == TEXT).sum()) for window in item.windows]
    assert sum(rows) == int((item.roles == TEXT).sum())
    assert {len(window.ids) for window in item.windows} == {MOST}
    assert all((window.roles == ELSEWHERE).any() for window in item.windows)
    batches = list(collate_group([item], [3], batch_tokens=40))
    assert max(batch.ids.numel() for batch in batches) == 3 * MOST
    assert {int(row) for batch in batches for row in batch.rows} == {3}
    assert group_texts([item, *encoder(["a", "b"])], batch_tokens=40, min_tokens=0) == [[0], [1, 2]]


def test_the_estimate_counts_the_tokens_of_windows(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extract.run.embed.TIMED_TOKENS", 8)
    found = estimate_extraction(decoder, TEXTS, spec=SPEC, manifest=describe_extraction(decoder, TEXTS, SPEC))
    encoded = TextEncoder(decoder.tokenizer, LONG, window=64)(TEXTS)
    assert (found.n_rows, found.n_truncated) == (len(TEXTS), 0)
    assert found.n_tokens == sum(len(row.ids) for item in encoded for row in item.rows)
    assert found.n_tokens > sum(len(item.ids) for item in encoded)
    assert found.longest == max(len(item.ids) for item in encoded)


def test_the_plan_is_proved_on_a_batch_of_windows(decoder: Decoder, whole: LatentCache) -> None:
    """And not on one as long as the longest text."""
    writer = StoreWriter(whole.path)
    assert Extraction(decoder, TEXTS, SPEC, writer, Session(decoder)).largest_batch() == (3, MOST)
    writer.close()


def test_attention_of_a_long_text_is_that_of_its_first_window(decoder: Decoder) -> None:
    maps = [
        attention_maps(decoder, TEXTS[-1:], parse_plan("causal"), template=template)
        for template in (LONG, InputTemplate(max_tokens=MOST))
    ]
    assert maps[0].tokens == maps[1].tokens
    assert torch.equal(maps[0].maps, maps[1].maps)


@pytest.mark.parametrize("name", ["median", "last:2", "role:text"])
def test_poolings_that_cannot_be_joined_are_refused_by_name(decoder: Decoder, name: str, tmp_path: Path) -> None:
    spec = ExtractionSpec(poolings=("mean", name), template=LONG)
    with pytest.raises(InputError, match=rf"the pooling '{name}' .* cannot be joined .* allowed: last, mean, weighted"):
        extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_plan_with_a_placeholder_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    spec = replace(SPEC, plan="causal~tp1-2", poolings=("mean",))
    with pytest.raises(InputError, match=r"on_long is 'windows', but the plan 'causal~tp1-2' puts a placeholder"):
        extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_instruction_without_room_for_windows_is_refused(decoder: Decoder) -> None:
    template = InputTemplate(instruction="Represent this sentence: ", max_tokens=4, on_long="windows")
    with pytest.raises(InputError, match=r"instruction and specials take \d+ of 4 tokens"):
        TextEncoder(decoder.tokenizer, template, window=64)(TEXTS[:1])


def test_windows_that_do_not_count_may_hold_anything() -> None:
    """A pooling that takes one window is not spoilt by what another holds."""
    row = EncodedText(np.zeros(3, np.int64), np.full(3, TEXT, np.int8), is_truncated=False)
    batch = replace(collate([row, row], [0, 0]), windows=BatchWindows(np.array([2, 1]), 0, 5))
    latents = torch.tensor([[float("nan")], [2.0]]).expand(1, 3, 2, 1)
    found = Joiner(("last", "mean", "max")).add(batch, latents)
    assert found is not None
    assert found[1][0, 0, 0, 0] == 2
    assert found[1][0, 1:, 0, 0].isnan().all()
