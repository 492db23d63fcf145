"""Views: several extractions of the same texts that are read as one cache, and what they compute once together."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import normalizers

from extract.decoders.decoder import Decoder
from extract.errors import CacheError, CacheIdentityError, ConfigError, IcecoreError, InputError, UnknownNameError
from extract.inputs.joined_text import JoinedText, join_words
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run import embed as embed_module
from extract.run import extraction as extraction_module
from extract.run.embed import embed_readings, embed_texts, embed_words
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from extract.run.shards import extract_shards, extract_views, sweep_latents
from extract.store.cache import LatentCache, ViewCache, find_cache
from extract.store.manifest import Manifest
from tests.extract.tiny_decoders import make_decoder

TEXTS = [
    " ".join(["a cup of ice", "melts on the warm stone", "slowly"][k % 3 : k % 3 + 1 + k % 2]) + f" {k}"
    for k in range(24)
]
ECHO: dict[str, object] = {
    "template": {"name": "echo", "max_tokens": 40},
    "poolings": ["echo-mean"],
    "batch_tokens": 64,
}
TWO = ExtractionSpec(views={"plain": {}, "echo": ECHO})
SENTENCES = [join_words(text.split(), [True] * len(text.split())) for text in TEXTS]


@pytest.fixture(scope="module")
def viewed(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[ViewCache, Path]:
    """Two views of some texts, and the folder of their caches."""
    folder = tmp_path_factory.mktemp("caches")
    cache = extract_latents(decoder, TEXTS, spec=TWO, folder=folder)
    assert isinstance(cache, ViewCache)
    return cache, folder


def channel_by_channel(cache: ViewCache) -> None:
    """Compare every channel with what the cache of its view, found by itself, holds of the same texts."""
    rows = cache.rows_of(TEXTS)
    for name, view in TWO.readings.items():
        [part] = [part for part in cache.parts if part.identity.poolings == view.poolings]
        own = LatentCache(part.path)
        expected = own.gather(own.rows_of(TEXTS), view.poolings[0])
        assert torch.equal(cache.gather(rows, name), expected), name
        whole = torch.empty_like(expected)
        whole[:, rows] = expected
        assert torch.equal(cache.read(0, len(cache), name), whole), name
        assert torch.equal(cache.layer("block_02", name), whole[2]), name


def test_a_channel_is_the_latent_of_its_view_text_by_text(decoder: Decoder, viewed: tuple[ViewCache, Path]) -> None:
    cache, folder = viewed
    assert len(list(folder.glob("*.h5"))) == 2
    orders = [part.rows_of(TEXTS).tolist() for part in cache.parts]
    assert orders[0] != orders[1], "views that hold their rows in one order prove nothing"
    assert (cache.poolings, cache.default_pooling) == (("plain", "echo"), "plain+echo")
    channel_by_channel(cache)
    in_memory = embed_texts(decoder, TEXTS, spec=TWO)
    for k, name in enumerate(cache.poolings):
        torch.testing.assert_close(in_memory[:, k], cache.gather(cache.rows_of(TEXTS), name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("broken", ["parts", "_positions", "both"])
def test_views_in_another_order_are_noticed(viewed: tuple[ViewCache, Path], broken: str) -> None:
    """The comparison above fails where views, or the rows of their texts, are mixed up."""
    cache: ViewCache = pickle.loads(pickle.dumps(viewed[0]))
    for field in ("parts", "_positions") if broken == "both" else (broken,):
        setattr(cache, field, getattr(cache, field)[::-1])
    with pytest.raises((AssertionError, UnknownNameError)):
        channel_by_channel(cache)


def test_views_are_found_described_and_sent_elsewhere(decoder: Decoder, viewed: tuple[ViewCache, Path]) -> None:
    cache, folder = viewed
    manifest = describe_extraction(decoder, TEXTS, TWO)
    assert cache.manifest.id == manifest.id == Manifest.from_json(manifest.to_json()).id
    found = find_cache(folder, manifest.identity)
    assert isinstance(found, ViewCache)
    assert found.manifest.id == manifest.id
    turned = describe_extraction(decoder, TEXTS, ExtractionSpec(views={"echo": ECHO, "plain": {}}))
    assert turned.id != manifest.id, "the order of channels decides a fit"
    named = describe_extraction(decoder, TEXTS, ExtractionSpec(views={"one": {}, "echo": ECHO}))
    assert named.id != manifest.id
    cache.verify()
    assert cache.n_done == len(cache) == len(TEXTS)
    assert cache.certificate["views"].keys() == {"plain", "echo"}
    assert cache.files == tuple(part.path for part in cache.parts)
    tokens = [part.n_tokens[part.rows_of(TEXTS)] for part in cache.parts]
    assert cache.n_tokens[cache.rows_of(TEXTS)].tolist() == np.sum(tokens, axis=0).tolist()
    assert find_cache(folder, replace(manifest.identity, views=manifest.identity.views[:1])) is not None  # type: ignore[index]
    lost = replace(cache.parts[1].identity, plan="backward")
    views = ({"name": "plain", **cache.parts[0].identity.to_plain()}, {"name": "echo", **lost.to_plain()})
    assert find_cache(folder, replace(manifest.identity, views=views)) is None


def count(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[Any]:
    """Record the arguments of every call of a function."""
    calls: list[Any] = []
    plain: Callable[..., Any] = getattr(where, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return plain(*args, **kwargs)

    monkeypatch.setattr(where, name, counting)
    return calls


def test_views_that_differ_in_poolings_are_one_pass(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = count(monkeypatch, extraction_module, "pool_batch")
    alone = extract_latents(decoder, TEXTS, spec=ExtractionSpec(poolings=("last",)), folder=tmp_path / "alone")
    n_batches = len(passes)
    spec = ExtractionSpec(views={"mean": {}, "end": {"poolings": ["last"]}, "start": {"poolings": "first"}})
    cache = extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert len(passes) == 2 * n_batches
    assert len(list(tmp_path.glob("*.h5"))) == 1
    rows, others = cache.rows_of(TEXTS), alone.rows_of(TEXTS)
    assert torch.equal(cache.gather(rows, "end"), alone.gather(others, "last"))
    again = extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert (again.manifest.id, len(passes)) == (cache.manifest.id, 2 * n_batches)
    one = extract_latents(decoder, TEXTS, spec=ExtractionSpec(poolings=("first",)), folder=tmp_path)
    assert one.path == cache.path, "a view alone is found in what they share"


def test_readings_of_different_layers_are_one_pass_each_to_its_own_top(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings that differ in layers and poolings run once, up to their topmost layer; a tap is as wide as it is."""
    readings = {
        "low": ExtractionSpec(layers=("block_01",)),
        "top": ExtractionSpec(layers=("block_03",), poolings=("last",)),
        "value": ExtractionSpec(layers=("block_02.value",)),
        "echo": TWO.readings["echo"].of_layer("block_01", "echo-mean"),
    }
    alone = {name: embed_texts(decoder, TEXTS, spec=spec)[:, 0] for name, spec in readings.items()}
    passes = count(monkeypatch, embed_module, "pool_batch")
    together = embed_readings(decoder, TEXTS, readings=readings)
    layers = {kwargs["layers"] for _, kwargs in passes}
    assert layers == {("block_01", "block_02.value", "block_03"), ("block_01",)}
    for name, latents in alone.items():
        torch.testing.assert_close(together[name], latents, rtol=1e-4, atol=1e-5)
    assert together["value"].shape[-1] < together["top"].shape[-1]


def test_views_that_differ_in_plans_share_their_lower_blocks(decoder: Decoder, tmp_path: Path) -> None:
    spec = ExtractionSpec(views={"plain": {}, "top": {"plan": "backward:1"}})
    cache = extract_views(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert isinstance(cache, ViewCache)
    assert all("swept_with" in part.certificate for part in cache.parts)
    alone = extract_latents(decoder, TEXTS, spec=ExtractionSpec(plan="backward:1"), folder=tmp_path / "alone")
    torch.testing.assert_close(
        cache.gather(cache.rows_of(TEXTS), "top"), alone.gather(alone.rows_of(TEXTS), "mean"), rtol=1e-4, atol=1e-5
    )
    assert cache.plan_of("top") == "backward:1"


def test_a_sweep_moves_the_views_that_name_no_plan(decoder: Decoder, tmp_path: Path) -> None:
    spec = ExtractionSpec(views={"plain": {}, "causal": {"plan": "causal", "poolings": "last"}})
    plans = [parse_plan("causal"), parse_plan("backward:2")]
    swept = sweep_latents(decoder, TEXTS, plans, spec=spec, folder=tmp_path)
    for cache, plan in zip(swept, plans, strict=True):
        assert (cache.plan_of("plain"), cache.plan_of("causal")) == (plan.text, "causal")
        assert cache.manifest.id == describe_extraction(decoder, TEXTS, spec.with_plan(plan)).id


def test_words_of_views_are_matched_word_by_word(decoder: Decoder, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"template": {"max_tokens": 12}, "batch_tokens": 64, "words": {"poolings": "first"}}
    spec = ExtractionSpec(words=WordSpec(poolings=("mean",)), views={"plain": {}, "short": changes})
    cache = extract_latents(decoder, SENTENCES, spec=spec, folder=tmp_path)
    assert isinstance(cache, ViewCache)
    places = cache.words_of(SENTENCES)
    for name, view in cache.views.items():
        own = LatentCache(view.path)
        there = own.words_of(SENTENCES)
        latents = own.gather(there.positions, own.poolings[0])
        assert torch.equal(cache.gather(places.positions, name), latents)
        spread = torch.empty_like(latents)
        spread[:, places.positions] = latents
        assert torch.equal(cache.read(0, cache.n_words, name), spread)
    short = cache.views["short"]
    is_cut = ~short.has_latent
    assert 0 < is_cut.sum() == (~cache.has_latent).sum(), "a word that one view lacks has no latent"
    words = embed_words(decoder, SENTENCES, spec=spec)
    assert words.latents.shape[1] == 2
    assert words.has_latent.tolist() == places.has_latent.tolist()
    torch.testing.assert_close(
        words.latents[:, 0][:, words.has_latent],
        cache.gather(places.positions, "plain")[:, places.has_latent],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_view_keeps_what_it_does_not_change() -> None:
    base = InputTemplate(name="prompt-eol", bos="force", max_tokens=32)
    spec = ExtractionSpec(
        plan="backward:2",
        template=base,
        words=WordSpec(shift=True),
        views={
            "same": {},
            "echo": {"template": "echo"},
            "both": {"template": {"name": "echo", "joiner": " / "}},
            "short": {"template": {"max_tokens": 8}},
            "words": {"words": {"poolings": ["first"]}},
        },
    )
    same, echo, both, short, words = spec.readings.values()
    assert same == replace(spec, views={})
    assert (echo.plan, echo.template.bos, echo.template.max_tokens) == ("backward:2", "force", 32)
    plain = InputTemplate(name="echo", bos="force", max_tokens=32)
    assert echo.template == plain, "what prompt-eol decided has no part in echo"
    assert both.template == replace(plain, joiner=" / ")
    assert short.template == replace(base, max_tokens=8)
    assert (words.words.shift, words.words.poolings) == (True, ("first",))
    assert spec.with_plan(parse_plan("causal")).readings["echo"].plan == "causal"


def refused(views: dict[str, Any], **fields: Any) -> None:
    ExtractionSpec(views=views, **fields)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ({"a/b": {}}, "a view is called 'a/b'; allowed: up to 40 letters"),
        ({"a+b": {}}, r"a view is called 'a\+b'"),
        ({"one": {"poolings": "echo-mean"}}, "view 'one': the pooling 'echo-mean' reads a further copy of a text"),
        ({"one": {"poolings": ["mean", "last"]}}, "view 'one' has the poolings mean, last; allowed: one"),
        (
            {"one": {"layers": "blocks"}},
            "views.one.layers is set, but all views have the same layers; set extraction.layers",
        ),
        ({"one": {"plam": "causal"}}, "unknown key 'views.one.plam'. Did you mean 'views.one.plan'"),
        (
            {"one": {"template": {"bso": "force"}}},
            "unknown key 'views.one.template.bso'. Did you mean 'views.one.template.bos'",
        ),
        ({"one": {"template": "ecko"}}, "unknown template 'ecko': did you mean 'echo'"),
        ({"one": {"poolings": "meen"}}, "view 'one': unknown pooling 'meen': did you mean 'mean'"),
        ({"one": {"plan": "hybrid"}}, "view 'one': the plan 'hybrid' needs spans"),
        ({"one": {"template": 3}}, "views.one.template is 3; allowed: keys with values"),
    ],
)
def test_a_view_that_makes_no_sense_is_refused(views: dict[str, Any], message: str) -> None:
    with pytest.raises(IcecoreError, match=message):
        refused(views)


def test_caches_that_are_no_views_of_each_other_are_refused(
    decoder: Decoder, viewed: tuple[ViewCache, Path], tmp_path: Path
) -> None:
    plain, echo = viewed[0].parts
    with pytest.raises(CacheError, match="there are no views to read"):
        ViewCache({})
    other = extract_latents(decoder, TEXTS[:-1], spec=ExtractionSpec(), folder=tmp_path)
    with pytest.raises(CacheIdentityError, match=r"the view 'other' holds .*: n_rows is 23, .*text_digest is"):
        ViewCache({"plain": plain, "other": other})
    layers = extract_latents(decoder, TEXTS, spec=ExtractionSpec(layers=("blocks",)), folder=tmp_path)
    with pytest.raises(CacheIdentityError, match="of the view 'blocks' holds something else: layers is"):
        ViewCache({"plain": plain, "blocks": layers})
    several = extract_latents(decoder, TEXTS, spec=ExtractionSpec(poolings=("mean", "last")), folder=tmp_path)
    with pytest.raises(CacheError, match="the view 'several' has the poolings mean, last; allowed: one"):
        ViewCache({"several": several})
    words = extract_latents(decoder, SENTENCES, spec=ExtractionSpec(), folder=tmp_path)
    with pytest.raises(CacheError, match=r"view 'words' holds something else|are of words and of whole texts"):
        ViewCache({"plain": plain, "words": words})
    same = other.shown_as(replace(other.identity, text_digest=plain.identity.text_digest, n_rows=24))
    with pytest.raises(CacheError, match="does not hold the rows of the first"):
        ViewCache({"plain": plain, "same": same})
    with pytest.raises(UnknownNameError, match=r"unknown pooling 'mean'\. Allowed: plain, echo"):
        viewed[0].gather([0], "mean")
    assert echo.poolings == ("echo-mean",)


def test_words_of_other_units_are_no_views(decoder: Decoder, tmp_path: Path) -> None:
    pieces = [JoinedText(text.text, text.spans[:-1]) for text in SENTENCES]
    whole, fewer = (
        extract_latents(decoder, part, spec=ExtractionSpec(), folder=tmp_path) for part in (SENTENCES, pieces)
    )
    with pytest.raises(CacheError, match="'fewer' holds something else: text_digest is"):
        ViewCache({"whole": whole, "fewer": fewer})
    forged = fewer.shown_as(replace(fewer.identity, text_digest=whole.identity.text_digest))
    with pytest.raises(CacheError, match=r"views differ in how many latents they have \(whole has .*, fewer has"):
        ViewCache({"whole": whole, "fewer": forged})


def test_what_reads_one_extraction_at_a_time_names_the_views(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there are the views plain, echo, but .*; leave views out"):
        extract_shards(decoder, TEXTS, spec=TWO, folder=tmp_path)


def test_a_view_with_a_pooling_of_reba_is_swept_by_itself(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    reba: dict[str, object] = {"poolings": ["reba-mean"], "template": {"repeat": 2}}
    spec = ExtractionSpec(views={"plain": None, "reba": reba})
    one = extract_views(decoder, texts, spec=spec, folder=tmp_path / "one")
    [swept] = sweep_latents(decoder, texts, [parse_plan("causal")], spec=spec, folder=tmp_path / "other")
    for view in ("plain", "reba"):
        sides = [cache.gather(cache.rows_of(texts), view) for cache in (one, swept)]
        torch.testing.assert_close(*sides, atol=1e-5, rtol=0)


def test_templates_that_read_words_by_other_poolings_are_refused_before_extraction(
    decoder: Decoder, tmp_path: Path
) -> None:
    words = [join_words(["One", "two"], [True, True])]
    spec = ExtractionSpec(template=InputTemplate(name="echo+prompt-eol"))
    with pytest.raises(InputError, match=r"read words by .*last.* and .*last; set words\.poolings"):
        extract_latents(decoder, words, spec=spec, folder=tmp_path)
    assert not list(tmp_path.glob("*.h5"))
    with pytest.raises(InputError, match=r"weighs the tokens of a word itself; set words\.shift to false"):
        ExtractionSpec(words=WordSpec(poolings=("reba",), shift=True), template=InputTemplate(repeat=2))


def test_a_text_without_tokens_beside_repeated_ones_loses_its_words_alone() -> None:
    decoder = make_decoder()
    decoder.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    words = [join_words(["One", "two"], [True, True]), join_words(["\u200b"], [True])]
    spec = ExtractionSpec(template=InputTemplate(repeat=2, bos="none"), words=WordSpec(on_lost="count"))
    latents = embed_words(decoder, words, spec=spec)
    assert latents.of(0).shape[2] == 2
    assert not latents.of(1).any()


def test_views_of_words_that_differ_in_their_poolings_are_one_pass(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: dict[str, Any] = {
        "last": {"words": {"poolings": "last"}},
        "masked": {"plan": "backward:1", "words": {"poolings": "last"}},
        "first": {"words": {"poolings": "first"}},
    }
    spec = ExtractionSpec(views=views)
    alone = {name: embed_words(decoder, SENTENCES, spec=view).latents for name, view in spec.readings.items()}
    passes: list[Any] = []
    embed = embed_module._embed

    def counted(*parts: Any) -> torch.Tensor:
        passes.append(parts[-1])
        return embed(*parts)

    monkeypatch.setattr(embed_module, "_embed", counted)
    together = embed_words(decoder, SENTENCES, spec=spec).latents
    assert passes == [("last", "first"), ("last",)]
    for number, name in enumerate(views):
        torch.testing.assert_close(together[:, [number]], alone[name])


@pytest.mark.parametrize("extract", [extract_latents, extract_views, sweep_latents])
def test_views_of_words_in_other_windows_are_refused_before_anything_is_computed(
    decoder: Decoder, tmp_path: Path, extract: Callable[..., Any]
) -> None:
    words = " ".join(["the mouse ran under the table and home to sleep"] * 6).split()
    spec = ExtractionSpec(
        template=InputTemplate(on_long="windows", max_tokens=32),
        words=WordSpec(poolings=("last",)),
        views={"plain": {}, "asked": {"template": {"instruction": "Query about this and that: "}}},
    )
    plans = ([parse_plan("causal")],) if extract is sweep_latents else ()
    with pytest.raises(CacheIdentityError, match=r"of the view 'asked' holds something else: n_rows is \d+, expected"):
        extract(decoder, [join_words(words, [True] * len(words))], *plans, spec=spec, folder=tmp_path)
    assert not [*tmp_path.iterdir()]
