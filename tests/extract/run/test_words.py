"""Word latents from end to end: right numbers once, the same numbers however they were come by."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import CacheIncompleteError, InputError, NonFiniteLatentError
from extract.inputs.batches import collate
from extract.inputs.joined_text import WORD_CUT, WORD_LOST, WORD_SHARED, JoinedText, join_words
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import WORD_POOLINGS
from extract.run.embed import WordEncoder, estimate_extraction
from extract.run.extraction import Workers, count_rows, describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache, cache_path
from extract.store.format import create_store
from extract.store.manifest import WordIdentity
from extract.wiring.states import pool_batch
from tests.extract.recorder import Recorder, interrupt_after
from tests.extract.tiny_decoders import (
    SENTENCES,
    assert_same_arrays,
    make_decoder,
    make_model,
    make_texts,
    make_tokenizer,
    plain_hidden_states,
)
from tests.extract.word_tokenizers import word_tokenizer

TOLERANCE = 1e-4
ALL = tuple(name for name in WORD_POOLINGS if not name.startswith(("echo", "reba")))  # see test_templates, test_fused
SPEC = ExtractionSpec(words=WordSpec(poolings=ALL), batch_tokens=64)
LONG = ExtractionSpec(
    words=WordSpec(poolings=ALL), batch_tokens=64, template=InputTemplate(max_tokens=9, on_long="windows")
)


def joined(text: str) -> JoinedText:
    """Split a text at its blanks."""
    return join_words(text.split(), [True] * len(text.split()))


@pytest.fixture(scope="module")
def words(texts: list[str]) -> list[JoinedText]:
    """Forty texts with their words."""
    return [joined(text) for text in texts]


@pytest.fixture(scope="module")
def whole(decoder: Decoder, words: list[JoinedText], tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """An uninterrupted extraction."""
    return extract_latents(decoder, words, spec=SPEC, folder=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def long(decoder: Decoder, words: list[JoinedText], tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """An uninterrupted extraction in windows."""
    return extract_latents(decoder, words, spec=LONG, folder=tmp_path_factory.mktemp("long"))


def by_hand(model: Any, tokenizer: Any, text: JoinedText, *, family: str, shift: bool = False) -> dict[str, Tensor]:
    """Pool each word of a text from plain transformers, token by token: pooling to `(L, W, D)`."""
    encoded = tokenizer(text.text, return_offsets_mapping=True)
    states = plain_hidden_states(model, encoded["input_ids"], family=family)
    pooled: dict[str, list[Tensor]] = {name: [] for name in ALL}
    for start, end in text.spans:
        tokens = [
            i - int(shift)
            for i, (first, last) in enumerate(encoded["offset_mapping"])
            if any(start <= c < end for c in range(first, last))
        ]
        own = torch.stack([layer[tokens] for layer in states.values()])
        pooled["first"].append(own[:, 0])
        pooled["last"].append(own[:, -1])
        pooled["mean"].append(own.mean(1))
    return {name: torch.stack(latents, dim=1) for name, latents in pooled.items()}


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_words_equal_those_pooled_by_hand(family: str, shift: bool) -> None:
    model = make_model(family)
    decoder = wrap_decoder(model, make_tokenizer(adds_bos=True))
    texts = [joined(text) for text in SENTENCES]
    expected = [by_hand(model, decoder.tokenizer, text, family=family, shift=shift) for text in texts]
    encoder = WordEncoder(decoder.tokenizer, InputTemplate(), window=64, words=WordSpec(shift=shift))
    rows = encoder(texts)
    sides: tuple[Literal["right", "left"], ...] = ("right", "left")
    together = {side: collate(rows, range(len(rows)), side=side, pad_id=2) for side in sides}
    got: dict[str, Tensor] = {
        side: pool_batch(decoder, batch, poolings=ALL, layers=decoder.layers) for side, batch in together.items()
    }
    alone = [pool_batch(decoder, collate([row], [0]), poolings=ALL, layers=decoder.layers) for row in rows]
    got["alone"] = torch.cat(alone, dim=2)
    for how, latents in got.items():
        for p, pooling in enumerate(ALL):
            hand = torch.cat([item[pooling] for item in expected], dim=1)
            assert latents[:, p].shape == hand.shape
            assert torch.allclose(latents[:, p], hand, atol=TOLERANCE), (how, pooling)


def test_every_word_of_every_text_is_in_the_cache(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache
) -> None:
    encoder = WordEncoder(decoder.tokenizer, InputTemplate(), window=64, words=WordSpec())
    places = whole.words_of(words)
    assert (whole.is_words, whole.n_words, len(whole), whole.poolings) == (True, len(places.positions), 40, ALL)
    assert sorted(places.positions.tolist()) == list(range(whole.n_words))
    assert np.diff(places.offsets).tolist() == [len(text.spans) for text in words]
    assert places.has_latent.all()
    for i, row in enumerate(encoder(words)):
        alone = pool_batch(decoder, collate([row], [0]), poolings=ALL, layers=decoder.layers)
        own = places.positions[places.offsets[i] : places.offsets[i + 1]]
        for p, pooling in enumerate(ALL):
            assert torch.allclose(whole.gather(own, pooling), alone[:, p], atol=TOLERANCE)
    assert whole.word_report() == {"n_words": whole.n_words, "n_shared": 0, "n_cut": 0, "n_lost": 0, "n_windows": 0}


def test_words_that_share_a_token_share_its_latent(decoder: Decoder, tmp_path: Path) -> None:
    text = join_words(["so", "mo", "u", "se"], [True, False, False, True])
    cache = extract_latents(decoder, [text], spec=SPEC, folder=tmp_path)
    places = cache.words_of([text])
    assert places.flags.tolist() == [0, 0, WORD_SHARED, WORD_SHARED]
    one, other, third = (cache.gather(places.positions[k : k + 1], "mean") for k in (1, 2, 3))
    assert torch.equal(one, other)
    assert torch.equal(one, third)
    assert cache.word_report()["n_shared"] == 2


@pytest.mark.parametrize(("plan", "resolved"), [("causal", "last"), ("backward", "first"), ("backward:2", "mean")])
def test_the_pooling_that_auto_stands_for_is_recorded(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache, tmp_path: Path, plan: str, resolved: str
) -> None:
    cache = extract_latents(decoder, words[:8], spec=ExtractionSpec(plan=plan), folder=tmp_path)
    n_words = sum(len(text.spans) for text in words[:8])
    assert cache.poolings == (resolved,)
    assert cache.identity.poolings == ()
    assert cache.identity.words == WordIdentity((resolved,), shift=False, on_lost="error", n_words=n_words)
    if plan == "causal":
        one, other = (c.gather(c.words_of(words[:8]).positions, "last") for c in (cache, whole))
        assert torch.allclose(one, other, atol=TOLERANCE)


def test_truncated_words_are_flagged_and_have_zeros(decoder: Decoder, tmp_path: Path) -> None:
    texts = [joined(text) for text in SENTENCES]
    spec = ExtractionSpec(words=WordSpec(poolings=ALL), template=InputTemplate(max_tokens=6))
    cache = extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    places = cache.words_of(texts)
    is_cut = (places.flags & WORD_CUT) > 0
    assert 0 < is_cut.sum() < len(is_cut)
    assert (places.has_latent == ~is_cut).all()
    assert cache.word_report()["n_cut"] == int(is_cut.sum())
    for pooling in ALL:
        latents = cache.gather(places.positions, pooling)
        assert not latents[:, is_cut].any()
        assert latents[:, ~is_cut].abs().amax(-1).min() > 0
    assert cache.is_truncated.sum() == sum(is_cut[a:b].any() for a, b in pairwise(places.offsets))


def test_lost_words_stop_an_extraction_or_are_counted(tmp_path: Path) -> None:
    decoder = wrap_decoder(make_model(vocab_size=500), word_tokenizer("word piece, BERT"))
    texts = [joined("the mouse"), join_words(["the", "\u200b"], [True, True]), join_words(["\u200b"], [True])]
    with pytest.raises(InputError, match=r"no token covers word 1 \('\\u200b', characters 4 to 5\) of text 1 \("):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    spec = ExtractionSpec(words=WordSpec(on_lost="count"))
    cache = extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    places = cache.words_of(texts)
    assert places.flags.tolist() == [0, 0, 0, WORD_LOST, WORD_LOST]
    assert cache.word_report()["n_lost"] == 2
    assert not cache.gather(places.positions[~places.has_latent], "last").any()


def test_repeated_texts_and_texts_of_several_rows(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache, long: LatentCache
) -> None:
    report = long.word_report()
    n_long = sum(len(decoder.tokenizer(text.text)["input_ids"]) > 9 for text in words)
    assert (report["n_windows"], report["n_cut"], report["n_words"]) == (n_long, 0, whole.n_words)
    assert len(long) > len(whole)
    some = [words[3], words[1], words[3], words[12]]
    places = long.words_of(some)
    for i, text in enumerate(some):
        own = long.words_of([text])
        assert own.offsets.tolist() == [0, len(text.spans)]
        assert places.positions[places.offsets[i] : places.offsets[i + 1]].tolist() == own.positions.tolist()
    assert sorted(long.words_of(words).positions.tolist()) == list(range(long.n_words))


def check_windows(decoder: Decoder, cache: LatentCache, text: JoinedText, encoder: WordEncoder, *, every: int) -> None:
    """Compare the words of a long text with those of its windows, each run by itself."""
    places = cache.words_of([text])
    assert places.has_latent.all()
    for row in encoder([text])[::every]:
        assert row.words is not None
        alone = pool_batch(decoder, collate([row], [0]), poolings=cache.poolings, layers=cache.layers)
        own = places.positions[row.words.start : row.words.start + len(row.words.flags)]
        for p, pooling in enumerate(cache.poolings):
            assert torch.allclose(cache.gather(own, pooling), alone[:, p], atol=TOLERANCE)


def test_words_of_long_texts_equal_those_of_their_windows(
    decoder: Decoder, words: list[JoinedText], long: LatentCache
) -> None:
    encoder = WordEncoder(decoder.tokenizer, LONG.template, window=64, words=LONG.words)
    for text in words[:8]:
        check_windows(decoder, long, text, encoder, every=1)


@pytest.mark.long
def test_every_word_of_a_very_long_sentence_has_a_latent(tmp_path: Path) -> None:
    decoder = make_decoder(adds_bos=True, max_position_embeddings=1024)
    text = joined(" ".join(make_texts(1900)))
    spec = ExtractionSpec(template=InputTemplate(on_long="windows"), layers=("block_02",))
    n_tokens = len(decoder.tokenizer(text.text)["input_ids"])
    assert n_tokens > 50_000
    cache = extract_latents(decoder, [text, joined("ice")], spec=spec, folder=tmp_path)
    assert cache.n_words == len(text.spans) + 1
    assert len(cache) == count_rows(decoder, [text, joined("ice")], spec) > 2 * n_tokens / 1024 - 2
    assert cache.word_report()["n_windows"] == 1
    encoder = WordEncoder(decoder.tokenizer, spec.template, window=1024, words=spec.words)
    check_windows(decoder, cache, text, encoder, every=10)


@pytest.mark.long
@pytest.mark.parametrize("n_batches", [1, 3, 6])
@pytest.mark.parametrize("spec", [SPEC, LONG])
def test_resumed_equals_uninterrupted(
    decoder: Decoder,
    words: list[JoinedText],
    whole: LatentCache,
    long: LatentCache,
    tmp_path: Path,
    n_batches: int,
    spec: ExtractionSpec,
) -> None:
    expected = whole if spec is SPEC else long
    with pytest.raises(KeyboardInterrupt):
        extract_latents(
            decoder, words, spec=spec, folder=tmp_path, progress=Recorder(on_advance=interrupt_after(n_batches))
        )
    (path,) = tmp_path.iterdir()
    n_done = LatentCache(path, allow_partial=True).n_done
    assert 0 < n_done < len(expected)
    recorder = Recorder()
    resumed = extract_latents(decoder, words, spec=spec, folder=tmp_path, progress=recorder)
    assert recorder.n_written == len(expected) - n_done
    assert_same_arrays(expected.path, resumed.path)


@pytest.mark.parametrize("spec", [SPEC, LONG])
def test_several_workers_write_one_store(
    decoder: Decoder,
    words: list[JoinedText],
    whole: LatentCache,
    long: LatentCache,
    tmp_path: Path,
    spec: ExtractionSpec,
) -> None:
    expected = whole if spec is SPEC else long
    # One after the other: the second ends what the first left, and alone may certify.
    for rank in (1, 0):
        workers = Workers(rank=rank, world_size=2)
        if rank == 1:
            manifest = describe_extraction(decoder, words, spec)
            create_store(cache_path(tmp_path, manifest), manifest)
            with pytest.raises(CacheIncompleteError, match="is half done"):
                extract_latents(decoder, words, spec=spec, folder=tmp_path, workers=workers)
        else:
            cache = extract_latents(decoder, words, spec=spec, folder=tmp_path, workers=workers)
    assert_same_arrays(expected.path, cache.path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_rounds_and_no_more(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache, tmp_path: Path, dtype: str
) -> None:
    spec = ExtractionSpec(words=WordSpec(poolings=ALL), batch_tokens=64, storage_dtype=dtype)
    cache = extract_latents(decoder, words, spec=spec, folder=tmp_path)
    expected = whole.layer("block_02", "mean").to(getattr(torch, dtype))
    assert torch.equal(cache.layer("block_02", "mean"), expected)
    assert torch.equal(cache.read(7, 90, "mean", layers="block_02")[0], expected[7:90].float())


@pytest.mark.long
@pytest.mark.parametrize("instruction", ["", "Snow: "])
def test_a_sweep_equals_separate_extractions(
    decoder: Decoder, words: list[JoinedText], tmp_path: Path, instruction: str
) -> None:
    """Under `auto` each plan has a pooling of its own, computed in one walk."""
    plans = [parse_plan(plan) for plan in ("causal", "backward", "backward:1", "nosink-bidirectional:2")]
    template = InputTemplate(instruction=instruction, max_tokens=12, on_long="windows")
    spec = ExtractionSpec(template=template, words=WordSpec(poolings=("auto", "first")))
    caches = sweep_latents(decoder, words, plans, spec=spec, folder=tmp_path / "together")
    assert [cache.poolings for cache in caches] == [("last", "first"), ("first",), ("mean", "first"), ("mean", "first")]
    for plan, cache in zip(plans, caches, strict=True):
        each = ExtractionSpec(plan=plan.text, template=template, words=spec.words)
        alone = extract_latents(decoder, words, spec=each, folder=tmp_path / "alone")
        assert cache.identity == alone.identity
        for pooling in cache.poolings:
            one, other = (c.gather(c.words_of(words).positions, pooling) for c in (cache, alone))
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    again = sweep_latents(decoder, words, plans, spec=spec, folder=tmp_path / "together")
    assert [cache.path for cache in again] == [cache.path for cache in caches]


@pytest.mark.parametrize("less", [("mean",), ("last", "first"), ("auto",)])
def test_further_poolings_and_layers_cover_fewer(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache, less: tuple[str, ...]
) -> None:
    spec = ExtractionSpec(words=WordSpec(poolings=less), layers=("block_02",))
    found = extract_latents(decoder, words, spec=spec, folder=whole.path.parent)
    assert found.path == whole.path
    assert (found.layers, len(found.poolings)) == (("block_02",), len(less))


@pytest.mark.parametrize(
    "other",
    [
        {"words": WordSpec(poolings=ALL, shift=True)},
        {"words": WordSpec(poolings=ALL, on_lost="count")},
        {"template": InputTemplate(on_long="windows")},
        {"plan": "backward"},
    ],
)
def test_anything_else_is_another_cache(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache, other: dict[str, Any]
) -> None:
    spec = ExtractionSpec(**{"words": SPEC.words, **other})
    assert describe_extraction(decoder, words, spec).id != whole.manifest.id


def test_the_same_text_with_other_words_is_another_cache(decoder: Decoder, tmp_path: Path) -> None:
    one, other = join_words(["ice", "core"], [False, True]), join_words(["icec", "ore"], [False, True])
    assert one.text == other.text
    cache = extract_latents(decoder, [one], spec=SPEC, folder=tmp_path)
    assert describe_extraction(decoder, [other], SPEC).id != cache.manifest.id
    assert describe_extraction(decoder, [one.text], SPEC).id != cache.manifest.id
    both = extract_latents(decoder, [one, other], spec=SPEC, folder=tmp_path)
    assert (len(both), both.n_words) == (2, 4)


@pytest.mark.parametrize(("factor", "value"), [(float("nan"), "nan"), (float("inf"), "-?inf")])
def test_a_latent_that_is_not_finite_names_its_word(
    words: list[JoinedText], tmp_path: Path, factor: float, value: str
) -> None:
    decoder = make_decoder(adds_bos=True)
    recorder = Recorder(
        on_start=lambda: decoder.blocks[1].register_forward_hook(lambda _module, _inputs, output: output * factor)
    )
    message = rf"latent {value} at layer block_02, pooling first, dimension \d+, word 0 \('\w+'\) of text \d+ \('.*'\)"
    with pytest.raises(NonFiniteLatentError, match=message):
        extract_latents(decoder, words, spec=SPEC, folder=tmp_path, progress=recorder)
    (path,) = tmp_path.iterdir()
    assert LatentCache(path, allow_partial=True).n_done == 0


def test_an_estimate_counts_words_and_their_bytes(
    decoder: Decoder, words: list[JoinedText], whole: LatentCache, long: LatentCache
) -> None:
    for cache, spec in ((whole, SPEC), (long, LONG)):
        estimate = estimate_extraction(decoder, words, spec=spec, manifest=describe_extraction(decoder, words, spec))
        assert (estimate.n_rows, estimate.n_words) == (len(cache), cache.n_words)
        assert estimate.n_tokens == int(cache.n_tokens.sum())
        assert estimate.bytes_by_pooling() == dict.fromkeys(ALL, cache.n_words * 32 * 4 * len(cache.layers))
    assert estimate.longest == 9


def test_shifted_words_under_a_plan_with_a_forced_first_token(words: list[JoinedText], tmp_path: Path) -> None:
    """MAGNET's reading, on a decoder whose tokenizer adds no BOS token by itself."""
    decoder = make_decoder()
    with pytest.raises(InputError, match=r"set template\.bos to 'force'"):
        extract_latents(decoder, words, spec=ExtractionSpec(words=WordSpec(shift=True)), folder=tmp_path)
    forced = InputTemplate(bos="force")
    plain, shifted = (
        extract_latents(
            decoder,
            words,
            spec=ExtractionSpec(template=forced, words=WordSpec(("first", "last"), shift=shift)),
            folder=tmp_path,
        )
        for shift in (False, True)
    )
    n_checked = 0
    for item in words[:8]:
        one, other = plain.words_of([item]).positions, shifted.words_of([item]).positions
        offsets = decoder.tokenizer(item.text, return_offsets_mapping=True)["offset_mapping"]
        for k in range(1, len(item.spans)):
            # Where no token of a blank stands between two words, the token before a word is the last of the one before.
            if (item.spans[k - 1][1], item.spans[k][0]) not in offsets:
                first, before = shifted.gather(other[k : k + 1], "first"), plain.gather(one[k - 1 : k], "last")
                assert torch.allclose(first, before, atol=TOLERANCE)
                n_checked += 1
    assert n_checked > 10
