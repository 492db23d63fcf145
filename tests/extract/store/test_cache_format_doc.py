"""The code of docs/cache_format.md, run as a reader would run it, and its tables, held against the code."""

import csv
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.inputs.joined_text import JoinedText, join_words
from extract.inputs.template import InputTemplate
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache, ShardedCache
from extract.store.format import CERTIFICATE_BYTES, array_shapes, checked_arrays
from extract.store.items import keep_texts
from extract.store.manifest import SCHEMA, flatten
from extract.wiring.batch_proof import RARE
from tests.extract.tiny_decoders import make_manifest, write_cache, write_shards
from tests.extract.word_stores import make_word_manifest, write_word_cache

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cache_format.md"
FIELDS = [PAGE.parent / "tables" / f"cache_{part}.csv" for part in ("identity", "certificate")]
TEXT = "Ice floats on water."  # the text and the file that the page's code names
FILE = Path("caches", "example.h5")
TEXTS = ["snow", TEXT, "Eis schwimmt: über dem Wasser, 氷.", "a"]
SHARDS = Path("caches", "shards")
WORDS_FILE = Path("caches", "words.h5")
WORD_TEXTS = [
    join_words(["Is", "it", "?"], [True, False, False]),
    JoinedText("Eis: 氷 ist\u00a0kalt", ((0, 3), (3, 4), (5, 6), (7, 10), (11, 15))),
    join_words(["Is", "it?"], [True, False]),
]
PIECES = [(1, 3, 2), (0, 0, 3), (1, 0, 3), (2, 0, 2)]
FLAGS = np.array([0, 1, 0, 0, 2, 0, 4, 0, 0, 3], np.uint8)
ALLOWED_IMPORTS = {"gzip", "hashlib", "json", "h5py", "numpy", "zlib"}


def blocks() -> list[str]:
    """Return the Python blocks of the page, in their order."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run_page() -> dict[str, Any]:
    """Run all blocks of the page in one namespace, in the current folder."""
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(), 1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    return names


def write_example(folder: Path, **changes: Any) -> None:
    """Write the caches that the page reads."""
    (folder / FILE.parent).mkdir()
    write_cache(folder / FILE, TEXTS, **changes)
    keep_texts(folder / FILE, TEXTS)
    write_shards(folder / SHARDS, TEXTS, window=3, **changes)
    write_word_cache(folder / WORDS_FILE, WORD_TEXTS, PIECES, flags=FLAGS, **changes)


def described(head: str, *, after: str = "# ") -> list[str]:
    """Return the names in the first column of the table under a head."""
    page = PAGE.read_text(encoding="utf-8").partition(after)[2]
    rows = page.partition(f"| {head} |")[2].split("\n\n")[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_the_page_needs_no_icecore() -> None:
    imported = set(re.findall(r"^(?:import|from) (\w+)", "\n".join(blocks()), re.MULTILINE))
    assert imported == ALLOWED_IMPORTS


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_page_reads_what_the_library_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    write_example(tmp_path, storage_dtype=dtype)
    monkeypatch.chdir(tmp_path)
    names = run_page()
    cache = LatentCache(FILE)
    for text in TEXTS:
        rows = cache.rows_of([text])
        for pooling in cache.poolings:
            for layer, expected in zip(cache.layers, cache.gather(rows, pooling), strict=True):
                found = names["read_latent"](FILE, text, layer, pooling)
                assert found.dtype == np.float32
                assert np.array_equal(found, expected[0].numpy())
    assert np.array_equal(names["latent"], cache.gather(cache.rows_of([TEXT]), "mean", layers="block_02")[0, 0].numpy())
    assert names["is_whole"]
    shards = ShardedCache(SHARDS)
    stored = shards.layer("block_02", "mean")
    raw = stored.view(torch.uint16) if dtype == "bfloat16" else stored
    assert names["latents"].tobytes() == raw.numpy().tobytes()
    assert set(names["index"]["shards"][0]) == set(described("field of a shard"))
    assert {*names["index"], "digest"} == set(described("field", after="## Shards"))
    assert names["certificate"] == cache.certificate
    assert [names["text_of_row"][row] for row in range(len(cache))] == list(cache.texts)
    assert hashlib.sha256(names["canonical"].encode()).hexdigest() == cache.manifest.id


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_page_reads_the_words_that_the_library_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    write_example(tmp_path, storage_dtype=dtype)
    monkeypatch.chdir(tmp_path)
    names = run_page()
    cache = LatentCache(WORDS_FILE)
    for text in WORD_TEXTS:
        places = cache.words_of([text])
        for pooling in cache.poolings:
            for layer, expected in zip(cache.layers, cache.gather(places.positions, pooling), strict=True):
                found, flags = names["read_words"](WORDS_FILE, text.text, text.spans, layer, pooling)
                assert found.dtype == np.float32
                assert np.array_equal(found, expected.numpy())
                assert flags.tolist() == places.flags.tolist()
    assert (names["words"].shape, names["flags"].tolist()) == ((3, 6), FLAGS[2:5].tolist())
    with pytest.raises(KeyError, match="holds not all words of 'Is it'"):
        names["read_words"](WORDS_FILE, "Is it", [[0, 5]], "block_02", "mean")


def test_the_page_refuses_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = run_page()
    write_cache(tmp_path / "half.h5", TEXTS, is_whole=False)
    with pytest.raises(KeyError, match="holds no latent of 'thunder'"):
        names["read_latent"](FILE, "thunder", "block_02", "mean")
    with pytest.raises(KeyError, match=f"holds no latent of {TEXTS[-1]!r}"):
        names["read_latent"]("half.h5", TEXTS[-1], "block_02", "mean")


def test_every_array_and_number_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"schema {SCHEMA}\n" in page
    texts, words = make_manifest(TEXTS), make_word_manifest(WORD_TEXTS, len(TEXTS))
    letters = {len(TEXTS): "N", len(FLAGS): "W", 6: "D", **{len(checked_arrays(each)): "A" for each in (texts, words)}}
    for path, array in (*array_shapes(texts).items(), *array_shapes(words).items()):
        general = re.sub(r"^/(latents|words)/\w+/\w+$", r"/\1/<pooling>/<layer>", path)
        row = next(line for line in page.splitlines() if line.startswith(f"| `{general}` "))
        told = row.split("|")[2].strip().strip("`")
        assert told == str(tuple(letters.get(n, n) for n in array.shape)).replace("'", ""), path
        assert f"`{array.dtype}`" in row
    assert f"{CERTIFICATE_BYTES:,} bytes" in page


def test_every_identity_and_certificate_field_is_on_the_page(decoder: Decoder, tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    cache = extract_latents(decoder, TEXTS, spec=ExtractionSpec(), folder=tmp_path)
    assert all(f":file: tables/{path.name}" in page for path in FIELDS)
    identity, certificate = (
        {row["field"]: row["what"] for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())}
        for path in FIELDS
    )
    spec = ExtractionSpec(template=InputTemplate(on_long="windows"))
    words = extract_latents(decoder, WORD_TEXTS, spec=spec, folder=tmp_path)
    assert set(flatten({**cache.identity.to_plain(), "versions": ""})) <= identity.keys()
    assert set(flatten({**words.identity.to_plain(), "versions": ""})) <= identity.keys()
    assert all(f"`{package}`" in identity["versions"] for package in cache.identity.versions)
    assert set(flatten(cache.certificate)) <= certificate.keys()
    assert {f"batches.{name}" for name in RARE} <= certificate.keys()
    assert all(f"`{key.split('.')[-1]}`" in page for key in flatten(cache.manifest.provenance) if "decoder" not in key)
    extra = cache.manifest.provenance["decoder"].keys() - cache.identity.decoder.keys()
    assert extra == {"name", "source", "n_parameters", "window"}
    assert cache.path.name == f"in-memory-causal-{cache.manifest.id[:12]}.h5"
    assert json.loads(cache.manifest.to_json())["identity"] == cache.identity.to_plain()
