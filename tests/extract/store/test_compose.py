"""A cache composed of others is the cache an extraction would have written."""

from pathlib import Path

import numpy as np
import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.errors import CacheError, CacheIdentityError
from extract.files import digest_json
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import CachePart, compose_cache, sweep_latents
from extract.store.cache import LatentCache
from tests.extract.tiny_decoders import make_texts

TEXTS = make_texts(24)


def spec(storage: str = "float32", plan: str = "backward:2") -> ExtractionSpec:
    return ExtractionSpec(plan=plan, poolings=("mean", "last"), storage_dtype=storage)


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_a_composed_cache_holds_the_bits_of_its_parts(decoder: Decoder, tmp_path: Path, storage: str) -> None:
    first = extract_latents(decoder, TEXTS[:10], spec=spec(storage), folder=tmp_path)
    second = extract_latents(decoder, TEXTS[10:], spec=spec(storage), folder=tmp_path)
    manifest = describe_extraction(decoder, TEXTS, spec(storage))
    parts = [CachePart(first, TEXTS[:10]), CachePart(second, TEXTS[10:])]
    whole = compose_cache(parts, manifest=manifest, folder=tmp_path)
    assert whole.is_complete
    assert whole.manifest.id == manifest.id
    assert whole.certificate["composed_of"] == [first.manifest.id, second.manifest.id]
    assert whole.certificate["influence"] == second.certificate["influence"]
    for pooling in whole.poolings:
        got = whole.gather(whole.rows_of(TEXTS), pooling)
        expected = [part.cache.gather(part.cache.rows_of(part.texts), pooling) for part in parts]
        torch.testing.assert_close(got, torch.cat(expected, 1), rtol=0, atol=0)
    rows = whole.rows_of(TEXTS[10:]).numpy()
    np.testing.assert_array_equal(whole.n_tokens[rows], second.n_tokens[second.rows_of(TEXTS[10:]).numpy()])


def test_an_extraction_finds_it_and_agrees_up_to_rounding(decoder: Decoder, tmp_path: Path) -> None:
    parts = [
        CachePart(extract_latents(decoder, texts, spec=spec(), folder=tmp_path / "parts"), texts)
        for texts in (TEXTS[::2], TEXTS[1::2])
    ]
    manifest = describe_extraction(decoder, TEXTS, spec())
    whole = compose_cache(parts, manifest=manifest, folder=tmp_path / "whole")
    assert extract_latents(decoder, TEXTS, spec=spec(), folder=tmp_path / "whole").path == whole.path
    alone = extract_latents(decoder, TEXTS, spec=spec(), folder=tmp_path / "alone")
    got, expected = (cache.gather(cache.rows_of(TEXTS), "mean") for cache in (whole, alone))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_some_texts_of_a_larger_cache_suffice(decoder: Decoder, tmp_path: Path) -> None:
    (large,) = sweep_latents(decoder, TEXTS, [parse_plan("backward:2")], spec=spec(), folder=tmp_path)
    some = TEXTS[3:15]
    manifest = describe_extraction(decoder, some, spec())
    small = compose_cache([CachePart(large, some)], manifest=manifest, folder=tmp_path)
    assert len(small) == 12
    torch.testing.assert_close(
        small.gather(small.rows_of(some), "last"), large.gather(large.rows_of(some), "last"), rtol=0, atol=0
    )


def test_a_part_may_hold_more_layers_and_poolings(decoder: Decoder, tmp_path: Path) -> None:
    part = CachePart(extract_latents(decoder, TEXTS, spec=spec(), folder=tmp_path), TEXTS)
    fewer = ExtractionSpec(plan="backward:2", poolings=("last",), layers=("block_02",))
    less = compose_cache([part], manifest=describe_extraction(decoder, TEXTS, fewer), folder=tmp_path)
    assert (less.layers, less.poolings) == (("block_02",), ("last",))
    got, expected = (each.gather(each.rows_of(TEXTS), "last", layers="block_02") for each in (less, part.cache))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
    with pytest.raises(CacheIdentityError, match="layers"):
        compose_cache([CachePart(less, TEXTS)], manifest=part.cache.manifest, folder=tmp_path / "more")


def test_a_cache_of_very_many_parts_has_a_digest_of_their_identities(decoder: Decoder, tmp_path: Path) -> None:
    texts = [f"text {k}" for k in range(1000)]
    small = ExtractionSpec(layers=("final_norm",), poolings=("mean",))
    cache = extract_latents(decoder, texts, spec=small, folder=tmp_path)
    manifest = describe_extraction(decoder, texts[::-1], small)
    whole = compose_cache([CachePart(cache, [text]) for text in texts], manifest=manifest, folder=tmp_path / "whole")
    ids = [cache.manifest.id] * 1000
    assert whole.certificate["composed_of"] == {"n_caches": 1000, "sha256": digest_json(ids)}
    assert torch.equal(whole.gather(whole.rows_of(texts), "mean"), cache.gather(cache.rows_of(texts), "mean"))


def test_parts_of_another_plan_or_too_few_texts_are_refused(decoder: Decoder, tmp_path: Path) -> None:
    part = CachePart(extract_latents(decoder, TEXTS[:8], spec=spec(), folder=tmp_path), TEXTS[:8])
    other = describe_extraction(decoder, TEXTS[:8], spec(plan="backward:1"))
    with pytest.raises(CacheIdentityError, match="plan is 'backward:2', expected 'backward:1'"):
        compose_cache([part], manifest=other, folder=tmp_path)
    manifest = describe_extraction(decoder, TEXTS, spec())
    with pytest.raises(CacheError, match="the parts hold 8 texts, but the cache is to hold 24"):
        compose_cache([part], manifest=manifest, folder=tmp_path)
    with pytest.raises(CacheError, match="does not hold the text"):
        compose_cache([part, CachePart(part.cache, TEXTS[8:])], manifest=manifest, folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [part.cache.path.name]  # no draft is left


def test_what_a_kill_leaves_is_no_cache_and_goes_away(decoder: Decoder, tmp_path: Path) -> None:
    manifest = describe_extraction(decoder, TEXTS, spec())
    part = CachePart(extract_latents(decoder, TEXTS, spec=spec(), folder=tmp_path / "parts"), TEXTS)
    path = compose_cache([part], manifest=manifest, folder=tmp_path / "whole").path
    draft = path.with_name(f".{path.name}.new-1")
    path.rename(draft)
    again = extract_latents(decoder, TEXTS, spec=spec(), folder=tmp_path / "whole")
    assert [item.name for item in (tmp_path / "whole").iterdir()] == [path.name]
    assert "composed_of" not in LatentCache(again.path).certificate
