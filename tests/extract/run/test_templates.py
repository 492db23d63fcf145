"""Templates from texts to latents, beside plain transformers and a loop over tokens; means over several templates."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import Decoder, wrap_decoder
from extract.errors import CacheError, CacheIdentityError, InputError, UnknownNameError
from extract.inputs.batches import collate
from extract.inputs.joined_text import WORD_CUT, JoinedText, join_words
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TokenisedText
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import WORD_POOLINGS
from extract.run.embed import embed_texts, embed_words, make_encoder
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache, MeanCache, find_cache
from extract.store.manifest import Manifest
from extract.wiring.states import pool_batch
from tests.extract.tiny_decoders import SENTENCES, make_model, make_tokenizer, plain_hidden_states

LAYERS = ("embedding", "block_02", "final_norm")
SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
BEFORE, JOINER, AFTER = "Say: ", ", again: ", " So"
TEMPLATE = InputTemplate(
    bos="force", eos="force", instruction=BEFORE, joiner=JOINER, suffix=AFTER, repeat=3, last="prompt"
)
MEANT = InputTemplate(name="pretended-cot+prompt-eol")
WORDS = WordSpec(poolings=("first", "last", "mean", "echo", "echo-first", "echo-last"))


@pytest.fixture(scope="module")
def model() -> Any:
    """A random decoder of the Llama type with room for repeated texts."""
    return make_model("llama", max_position_embeddings=160)


@pytest.fixture(scope="module")
def decoder(model: Any) -> Decoder:
    """The same, wrapped."""
    return wrap_decoder(model, make_tokenizer())


def characters(decoder: Decoder, text: str) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """Write a text as the template does, by hand: ids, characters of each token, and where each copy begins."""
    whole = BEFORE + JOINER.join([text] * 3) + AFTER
    found: Any = decoder.tokenizer(whole, return_offsets_mapping=True)
    starts = [len(BEFORE) + k * len(text + JOINER) for k in range(3)]
    return [1, *found["input_ids"], 2], [(-1, -1), *found["offset_mapping"], (-1, -1)], starts


def in_copy(offsets: list[tuple[int, int]], start: int, end: int) -> list[int]:
    """Find the tokens that hold a character from `start` to `end`."""
    return [k for k, (first, last) in enumerate(offsets) if first < end and last > start]


@pytest.mark.parametrize("name", ["mean", "echo-mean", "echo-last", "last", "token:-2", "role:suffix", "last:4"])
def test_repeated_texts_are_pooled_as_by_hand(model: Any, decoder: Decoder, name: str) -> None:
    spec = ExtractionSpec(template=TEMPLATE, poolings=(name,))
    texts = SENTENCES[:3]
    rows = make_encoder(decoder, spec, has_words=False)(texts)
    how: dict[str, Any] = {"poolings": (name,), "layers": LAYERS}
    together = [pool_batch(decoder, collate(rows, range(3), side=side, pad_id=2), **how) for side in SIDES]
    for t, text in enumerate(texts):
        ids, offsets, starts = characters(decoder, text)
        assert rows[t].ids.tolist() == ids
        copies = [in_copy(offsets, start, start + len(text)) for start in starts]
        n = len(ids)
        columns = {
            "mean": [k for copy in copies for k in copy],
            "echo-mean": copies[1] + copies[2],
            "echo-last": copies[2][-1:],
            "last": [n - 2],
            "token:-2": copies[2][-2:-1],
            "role:suffix": [k for k in range(1, n - 1) if offsets[k][0] >= starts[2] + len(text)],
            "last:4": list(range(n - 5, n - 1)),
        }[name]
        states = plain_hidden_states(model, ids, family="llama")
        alone = pool_batch(decoder, collate([rows[t]], [0]), **how)
        for k, layer in enumerate(LAYERS):
            wanted = states[layer][columns].mean(0)
            for found in (alone[k, 0, 0], together[0][k, 0, t], together[1][k, 0, t]):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def joined(text: str) -> JoinedText:
    """Split a text at its blanks."""
    return join_words(text.split(), [True] * len(text.split()))


def test_words_are_read_in_the_first_copy_and_their_echo_in_the_last(model: Any, decoder: Decoder) -> None:
    spec = ExtractionSpec(template=TEMPLATE, words=WORDS)
    texts = [joined(text) for text in SENTENCES[:2]]
    rows = make_encoder(decoder, spec, has_words=True)(texts)
    how: dict[str, Any] = {"poolings": WORDS.poolings, "layers": ("block_02",)}
    together = [pool_batch(decoder, collate(rows, range(2), side=side, pad_id=2), **how) for side in SIDES]
    place = 0
    for t, text in enumerate(texts):
        ids, offsets, starts = characters(decoder, text.text)
        states = plain_hidden_states(model, ids, family="llama")["block_02"]
        alone = pool_batch(decoder, collate([rows[t]], [0]), **how)
        for w, (start, end) in enumerate(text.spans):
            for p, name in enumerate(WORDS.poolings):
                begin = starts[2 if name.startswith("echo") else 0]
                tokens: Tensor = states[in_copy(offsets, begin + start, begin + end)]
                pick = name.removeprefix("echo-")
                wanted = tokens[0] if pick == "first" else tokens[-1] if pick == "last" else tokens.mean(0)
                for found in (alone[0, p, w], together[0][0, p, place], together[1][0, p, place]):
                    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
            place += 1


def test_words_of_a_cut_text_are_whole_in_every_copy_or_have_no_latent(decoder: Decoder) -> None:
    text = joined(SENTENCES[1])
    (whole,) = make_encoder(decoder, ExtractionSpec(template=TEMPLATE, words=WORDS), has_words=True)([text])
    short = replace(TEMPLATE, max_tokens=len(whole.ids) - 20)
    (row,) = make_encoder(decoder, ExtractionSpec(template=short, words=WORDS), has_words=True)([text])
    assert row.is_truncated
    assert row.words is not None
    assert row.words.echo is not None
    is_cut = (row.words.flags & WORD_CUT) > 0
    n_read = int((~is_cut).sum())
    assert 0 < n_read < len(text.spans)
    assert is_cut.tolist() == [False] * n_read + [True] * (len(text.spans) - n_read)
    for word, (start, end) in enumerate(text.spans[:n_read]):
        for columns in (row.words.columns[word], row.words.echo[word]):
            assert str(decoder.tokenizer.decode(row.ids[slice(*columns)].tolist())).strip() == text.text[start:end]
    assert not row.words.columns[n_read:].any()
    assert not row.words.echo[n_read:].any()


def test_shifted_words_are_read_before_their_echo(decoder: Decoder) -> None:
    text = joined(SENTENCES[0])
    plain, shifted = (
        make_encoder(decoder, ExtractionSpec(template=TEMPLATE, words=replace(WORDS, shift=shift)), has_words=True)
        for shift in (False, True)
    )
    (one,), (other,) = plain([text]), shifted([text])
    assert one.words is not None
    assert other.words is not None
    assert other.words.columns.tolist() == (one.words.columns - 1).tolist()
    assert np.asarray(other.words.echo).tolist() == (np.asarray(one.words.echo) - 1).tolist()


def test_a_word_that_only_the_first_copy_has_is_refused(monkeypatch: pytest.MonkeyPatch, decoder: Decoder) -> None:
    def two_tokens(item: TokenisedText) -> Any:
        return item.text_columns[:2], item.offsets[item.text_columns[:2]]

    monkeypatch.setattr(TokenisedText, "last_copy", two_tokens)
    with pytest.raises(InputError, match=r"no token covers word 2 \('ran'.* in the last copy"):
        make_encoder(decoder, ExtractionSpec(template=TEMPLATE, words=WORDS), has_words=True)([joined(SENTENCES[0])])


def test_echo_needs_another_copy(decoder: Decoder) -> None:
    (row,) = make_encoder(decoder, ExtractionSpec(), has_words=True)([joined("ice")])
    with pytest.raises(InputError, match=r"a further copy of their text, and there is none; set template\.repeat"):
        pool_batch(decoder, collate([row], [0]), poolings=("echo",), layers=LAYERS)
    assert {"echo", "echo-first", "echo-last"} <= set(WORD_POOLINGS)


def test_text_poolings_that_find_no_token_are_refused_before_anything_is_written(
    decoder: Decoder, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"pooling 'token:5' finds no such token in text 1 \('a'\)"):
        extract_latents(decoder, [SENTENCES[0], "a"], spec=ExtractionSpec(poolings=("token:5",)), folder=tmp_path)
    assert not list(tmp_path.glob("*.h5"))


@pytest.fixture(scope="module")
def meant(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[MeanCache, Path]:
    """The mean of two prompts over some texts of mixed lengths, and the folder of its parts."""
    folder = tmp_path_factory.mktemp("caches")
    spec = ExtractionSpec(template=MEANT, poolings=("last", "mean"), batch_tokens=256)
    cache = extract_latents(decoder, SENTENCES, spec=spec, folder=folder)
    assert isinstance(cache, MeanCache)
    return cache, folder


def test_a_mean_is_that_of_its_parts_text_by_text(decoder: Decoder, meant: tuple[MeanCache, Path]) -> None:
    cache, folder = meant
    assert len(list(folder.glob("*.h5"))) == 2, "the mean has no file of its own"
    parts = [LatentCache(part.path) for part in cache.parts]
    rows = cache.rows_of(SENTENCES)
    for pooling in ("last", "mean"):
        wanted = torch.stack([part.gather(part.rows_of(SENTENCES), pooling) for part in parts]).mean(0)
        torch.testing.assert_close(cache.gather(rows, pooling), wanted)
        whole = torch.empty_like(wanted)
        whole[:, rows] = wanted
        torch.testing.assert_close(cache.read(0, len(cache), pooling), whole)
        out = torch.empty(1, 3, cache.width)
        assert cache.read(2, 5, pooling, layers="block_02", out=out) is out
        assert cache.storage_dtype == "float32"
        torch.testing.assert_close(out[0], cache.layer("block_02", pooling)[2:5])
    spec = ExtractionSpec(template=MEANT, poolings=("last", "mean"))
    in_memory = embed_texts(decoder, SENTENCES, spec=spec)
    torch.testing.assert_close(in_memory[:, 0], cache.gather(rows, "last"), rtol=1e-4, atol=1e-4)


def test_a_mean_is_found_described_and_sent_elsewhere(decoder: Decoder, meant: tuple[MeanCache, Path]) -> None:
    cache, folder = meant
    spec = ExtractionSpec(template=MEANT, poolings=("last", "mean"), batch_tokens=256)
    manifest = describe_extraction(decoder, SENTENCES, spec)
    assert cache.manifest.id == manifest.id
    found = find_cache(folder, manifest.identity)
    assert isinstance(found, MeanCache)
    assert found.manifest.id == manifest.id
    [part] = [p for p in cache.parts if "step by step" in p.identity.template["instruction"]]
    assert part.identity.template["last"] == "prompt"
    assert Manifest.from_json(manifest.to_json()).id == manifest.id
    sent: MeanCache = pickle.loads(pickle.dumps(cache))
    assert torch.equal(sent.layer("block_01", "last"), cache.layer("block_01", "last"))
    assert cache.shown_as(replace(cache.identity, layers=("block_01",))).layers == ("block_01",)
    cache.verify()
    assert cache.is_complete
    assert cache.n_done == len(cache) == len(SENTENCES)
    parts = [part.n_tokens[part.rows_of(SENTENCES)] for part in cache.parts]
    assert cache.n_tokens[cache.rows_of(SENTENCES)].tolist() == np.sum(parts, axis=0).tolist()
    assert not cache.is_truncated.any()
    assert cache.certificate["mean_of"] == [part.manifest.id for part in cache.parts]
    lacking = replace(manifest.identity, text_digest="0")
    assert find_cache(folder, lacking) is None


def test_a_mean_refuses_what_it_does_not_hold(meant: tuple[MeanCache, Path]) -> None:
    cache, _ = meant
    with pytest.raises(UnknownNameError, match="unknown pooling 'first'"):
        cache.gather([0], "first")
    with pytest.raises(CacheError, match="range 3-99 is outside this cache"):
        cache.read(3, 99, "last")
    with pytest.raises(CacheError, match=r"the memory to fill is \(1, 2, 32\) torch.float32; needed: \(1, 3, 32\)"):
        cache.read(0, 3, "last", layers="block_02", out=torch.empty(1, 2, 32))
    with pytest.raises(CacheError, match="row 99 is outside this cache"):
        cache.gather([99], "last")
    with pytest.raises(CacheError, match="there are no caches to take the mean of"):
        MeanCache([])


def test_a_mean_of_other_texts_or_plans_is_refused(
    decoder: Decoder, meant: tuple[MeanCache, Path], tmp_path: Path
) -> None:
    cache, _ = meant
    spec = ExtractionSpec(template=MEANT.members[0], poolings=("last", "mean"), batch_tokens=256)
    other = extract_latents(decoder, [text + "!" for text in SENTENCES], spec=spec, folder=tmp_path)
    with pytest.raises(CacheIdentityError, match="text_digest is"):
        MeanCache([cache.parts[0], other])
    same = other.shown_as(replace(other.identity, text_digest=cache.identity.text_digest))
    with pytest.raises(CacheError, match="does not hold the rows of the first"):
        MeanCache([cache.parts[0], same])


def test_words_are_averaged_too_and_cut_where_any_part_is(decoder: Decoder, tmp_path: Path) -> None:
    template = replace(MEANT, max_tokens=75)
    spec = ExtractionSpec(template=template, words=WordSpec(poolings=("mean",)), storage_dtype="float32")
    texts = [joined(text) for text in SENTENCES[:2]]
    cache = extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    assert isinstance(cache, MeanCache)
    places = cache.words_of(texts)
    parts = [part.words_of(texts) for part in cache.parts]
    assert places.flags.tolist() == np.bitwise_or(*(part.flags for part in parts)).tolist()
    assert 0 < places.has_latent.sum() < places.n_words
    assert (parts[0].flags != parts[1].flags).any(), "one prompt leaves room for more words"
    assert cache.has_latent[places.positions].tolist() == places.has_latent.tolist()
    assert cache.word_report()["n_cut"] == int((~places.has_latent).sum())
    found = [part.gather(at.positions, "mean") for part, at in zip(cache.parts, parts, strict=True)]
    wanted = torch.stack(found).mean(0)
    torch.testing.assert_close(cache.gather(places.positions, "mean"), wanted)
    in_memory = embed_words(decoder, texts, spec=spec)
    torch.testing.assert_close(in_memory.latents[:, 0], wanted, rtol=1e-4, atol=1e-4)
    assert in_memory.flags.tolist() == places.flags.tolist()


@pytest.mark.long
def test_sweeps_average_plan_by_plan(decoder: Decoder, meant: tuple[MeanCache, Path]) -> None:
    cache, folder = meant
    plans = [parse_plan("causal"), parse_plan("backward:1")]
    spec = ExtractionSpec(template=MEANT, poolings=("last", "mean"), batch_tokens=256)
    causal, backward = sweep_latents(decoder, SENTENCES, plans, spec=spec, folder=folder)
    assert causal.manifest.id == cache.manifest.id
    assert isinstance(backward, MeanCache)
    assert [part.identity.plan for part in backward.parts] == ["backward:1"] * 2


def test_a_chat_template_is_part_of_the_identity(model: Any) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    decoder = wrap_decoder(model, tokenizer)
    spec = ExtractionSpec(template=InputTemplate(chat="user"))
    one = describe_extraction(decoder, ["ice"], spec).identity
    assert "chat" not in describe_extraction(decoder, ["ice"], ExtractionSpec()).identity.to_plain()
    tokenizer.chat_template += "!"
    other = describe_extraction(decoder, ["ice"], spec).identity
    assert one.chat != other.chat
    assert replace(one, chat="") == replace(other, chat="")
