"""Texts that are kept beside a cache are those of its rows, whenever and wherever they were written."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from extract.decoders.decoder import Decoder
from extract.errors import CacheError
from extract.inputs.joined_text import JoinedText, digest_texts, join_words
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec
from extract.run.shards import CachePart, compose_cache, extract_shards, sweep_latents
from extract.store.cache import LatentCache, ShardedCache, open_cache
from extract.store.items import SUFFIX, texts_file

SPEC = ExtractionSpec(batch_tokens=64, layers=("embedding", "final_norm"))
ODD = ['a "quoted" one', "two\nlines", "tab\tand \\ slash", "naïve 漢字 🙂", "\u2028 and \x85 split no line"]
JOINED = [join_words(["Is", "n't", "it", "?"], [False, True, False, False]), join_words(["Yes", "."], [False, False])]

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(scope="module")
def some(texts: list[str]) -> list[str]:
    return [*texts[:15], *ODD]


def require_rows(cache: LatentCache) -> None:
    """Require of every row that its text has its digest."""
    stored = cache._file.map("/rows/digest")
    assert len(cache.texts) == len(cache)
    np.testing.assert_array_equal(digest_texts(cache.texts), stored)


def kept_of(cache: LatentCache) -> Path:
    return cache.path.with_name(texts_file(cache.path.name))


def test_texts_come_back_row_by_row_and_the_identity_stays(decoder: Decoder, some: list[str], tmp_path: Path) -> None:
    plain = extract_latents(decoder, some, spec=SPEC, folder=tmp_path / "plain")
    kept = extract_latents(decoder, some, spec=SPEC, folder=tmp_path / "kept", store_texts=True)
    assert plain.manifest.id == kept.manifest.id
    assert plain.path.read_bytes()[:4096] == kept.path.read_bytes()[:4096]
    cache = LatentCache(kept.path)
    require_rows(cache)
    assert sorted(map(str, cache.texts)) == sorted(some)
    cache.verify()
    assert pickle.loads(pickle.dumps(cache)).texts == cache.texts
    np.testing.assert_array_equal(np.asarray(cache), np.asarray(kept))  # in the order of the extraction
    with pytest.raises(CacheError, match=r"holds digests of its texts.*--extraction.store_texts true"):
        LatentCache(plain.path).texts  # noqa: B018
    assert set(plain.texts) == set(some)  # those of the extraction that has just been made


def test_texts_are_added_to_a_cache_that_is_there_and_nothing_is_computed(
    decoder: Decoder, some: list[str], tmp_path: Path
) -> None:
    class Counting(ExtractionProgress):
        n_batches = 0

        def advance(self, *, n_rows: int, n_tokens: int) -> None:
            del n_rows, n_tokens
            self.n_batches += 1

    progress = Counting()
    first = extract_latents(decoder, some, spec=SPEC, folder=tmp_path)
    before = first.path.stat().st_mtime_ns
    again = extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True, progress=progress)
    assert (again.path.stat().st_mtime_ns, progress.n_batches) == (before, 0)
    require_rows(LatentCache(again.path))
    written = kept_of(again).stat().st_mtime_ns
    extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True)
    assert kept_of(again).stat().st_mtime_ns == written


def test_an_extraction_that_was_stopped_keeps_them_when_it_ends(
    decoder: Decoder, some: list[str], tmp_path: Path
) -> None:
    class Stopping(ExtractionProgress):
        def advance(self, *, n_rows: int, n_tokens: int) -> None:
            del n_rows, n_tokens
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True, progress=Stopping())
    assert list(tmp_path.glob("*.h5"))
    assert not list(tmp_path.glob(f"*{SUFFIX}"))
    require_rows(LatentCache(extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True).path))


def test_words_come_back_with_their_spans(decoder: Decoder, tmp_path: Path) -> None:
    path = extract_latents(decoder, JOINED, spec=SPEC, folder=tmp_path, store_texts=True).path
    cache = LatentCache(path)
    require_rows(cache)
    assert set(cache.texts) == set(JOINED)
    frame = cache.to_frame()
    words = {(row.text, row.word_number): row.word for row in frame.itertuples()}
    assert words[("Isn't it?", 1)] == "n't"
    assert words[("Yes.", 0)] == "Yes"
    assert all(isinstance(text, JoinedText) for text in cache.texts)


@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "added"])
def test_shards_have_a_file_each(decoder: Decoder, some: list[str], tmp_path: Path, is_late: bool) -> None:
    repeated = [*some, *some[:3]]
    if is_late:
        extract_shards(decoder, repeated, folder=tmp_path, spec=SPEC, window=8)
        assert not ShardedCache(tmp_path).keeps_texts
    extract_shards(decoder, repeated, folder=tmp_path, spec=_keeping(), window=8)
    cache = open_cache(tmp_path)
    require_rows(cache)
    cache.verify()
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == 3
    next(tmp_path.glob(f"*{SUFFIX}")).unlink()
    with pytest.raises(CacheError, match="holds digests of its texts"):
        open_cache(tmp_path).texts  # noqa: B018


def _keeping() -> ExtractionSpec:
    return ExtractionSpec(batch_tokens=64, layers=("embedding", "final_norm"), store_texts=True)


def test_plans_of_a_sweep_and_a_cache_made_of_parts_keep_them(
    decoder: Decoder, some: list[str], tmp_path: Path
) -> None:
    plans = [_keeping().mask_plan, _keeping().with_plan(ExtractionSpec(plan="backward").mask_plan).mask_plan]
    for cache in sweep_latents(decoder, some, plans, spec=_keeping(), folder=tmp_path / "swept"):
        require_rows(LatentCache(cache.path))
    parts = [some[:9], some[9:]]
    made = [extract_latents(decoder, part, spec=_keeping(), folder=tmp_path / "parts") for part in parts]
    manifest = describe_extraction(decoder, some, SPEC)
    cached = [CachePart(LatentCache(cache.path), part) for cache, part in zip(made, parts, strict=True)]
    require_rows(LatentCache(compose_cache(cached, manifest=manifest, folder=tmp_path / "whole").path))


@pytest.mark.parametrize("damage", ["letter", "line", "cut", "other"])
def test_damage_is_named_and_written_anew(decoder: Decoder, some: list[str], tmp_path: Path, damage: str) -> None:
    cache = LatentCache(extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True).path)
    path = kept_of(cache)
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    if damage == "letter":
        lines[3] = lines[3].replace(lines[3][2], "#")
    content = gzip.compress("\n".join(lines[1:] if damage == "line" else lines).encode())
    path.write_bytes({"cut": content[:-20], "other": gzip.compress(b"3\n")}.get(damage, content))
    for ask in (lambda: cache.texts, cache.verify):
        with pytest.raises(CacheError, match=r"cannot be read|lack those of 1 of"):
            ask()
    extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True)
    require_rows(LatentCache(cache.path))
    LatentCache(cache.path).verify()


def test_exports_have_a_column_of_them(decoder: Decoder, some: list[str], tmp_path: Path) -> None:
    cache = LatentCache(extract_latents(decoder, some, spec=SPEC, folder=tmp_path, store_texts=True).path)
    table = cache.to_frame()
    assert table["text"].tolist() == list(cache.texts)
