"""Identities decide, provenance informs, and a difference is named."""

import json

import pytest

from extract.errors import CacheError, CacheIdentityError
from extract.store.manifest import Manifest, WordIdentity, differences, require_same
from tests.extract.tiny_decoders import make_manifest
from tests.extract.word_stores import make_word_manifest, words

TEXTS = ["ice", "snow"]


def test_a_manifest_reads_back() -> None:
    manifest = make_manifest(TEXTS)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.short_id == manifest.id[:12]


def test_a_manifest_of_words_reads_back_with_the_same_id() -> None:
    manifest = make_word_manifest([words(["ice", "floats"])], 1, rules={"nosink": 2}, widths={"block_01.value": 4})
    read = Manifest.from_json(manifest.to_json())
    assert (read, read.id) == (manifest, manifest.id)
    assert read.words == WordIdentity(("mean", "last"), shift=False, on_lost="error", n_words=2)
    assert (read.width("block_01.value"), read.width("block_01")) == (4, 6)


@pytest.mark.parametrize(("key", "wrong"), [("x", 1), ("n_rows", "many"), ("layers", {}), ("words", 3)])
def test_an_identity_with_a_field_of_another_kind_is_refused(key: str, wrong: object) -> None:
    value = json.loads(make_manifest(TEXTS).to_json())
    value["identity"][key] = wrong
    with pytest.raises(CacheError, match=rf"the manifest of this file cannot be read \(.*{key}"):
        Manifest.from_json(json.dumps(value))


def test_names_do_not_decide_and_weights_do() -> None:
    manifest = make_manifest(TEXTS)
    assert make_manifest(TEXTS, name="other", source="hub", n_parameters=5).id == manifest.id
    for change in ({"weight_digest": "ef"}, {"plan": "backward"}, {"storage_dtype": "float16"}, {"revision": "abc"}):
        assert make_manifest(TEXTS, **change).id != manifest.id
    assert make_manifest(TEXTS[::-1]).id != manifest.id


def test_the_identity_of_a_cache_of_texts_stays_what_it_is() -> None:
    """Caches that lie on people's disks must go on being found: what words brought has no part in them."""
    manifest = make_manifest(["snow", "Ice floats on water."])
    decoder = {
        "revision": "",
        "adapter": "",
        "family": "llama",
        "n_layers": 2,
        "width": 6,
        "dtype": "float32",
        "attention": "sdpa",
        "weight_digest": "ab" * 32,
        "tokenizer_digest": "cd" * 32,
    }
    assert manifest.identity.to_plain() == {
        "schema": 1,
        "decoder": decoder,
        "plan": "causal",
        "architecture": "inplace",
        "template": {"bos": "auto", "instruction": "", "max_tokens": None, "on_long": "truncate", "spans": ""},
        "poolings": ["mean", "last"],
        "layers": ["embedding", "block_01", "block_02", "final_norm"],
        "storage_dtype": "float32",
        "n_rows": 2,
        "text_digest": "f63ee8d11b791b2996b99976c8b4650262d63bc1768a9196b422723b01f60068",
        "versions": {"icecore": "0.1.0"},
    }
    assert manifest.id == "205de477f2589eee1a80e41694ede66a4b9e6383cd53675b7d521af8b493d54a"
    assert manifest.words is None
    assert manifest.poolings == ("mean", "last")


def test_every_difference_is_named() -> None:
    found = make_manifest(TEXTS).identity.to_plain()
    wanted = make_manifest(TEXTS, plan="backward", weight_digest="ef", storage_dtype="float16").identity.to_plain()
    assert set(differences(found, wanted)) == {"plan", "decoder.weight_digest", "storage_dtype"}
    with pytest.raises(CacheIdentityError, match=r"cache 'a\.h5' holds something else") as caught:
        require_same(found, wanted, where="'a.h5'")
    assert "plan is 'causal', expected 'backward'" in str(caught.value)
    assert "decoder.weight_digest is 'abab" in str(caught.value)
    assert "storage_dtype is 'float32', expected 'float16'" in str(caught.value)
    require_same(found, make_manifest(TEXTS).identity.to_plain(), where="'a.h5'")


def test_a_missing_field_is_a_difference() -> None:
    assert differences({"a": {"b": 1}}, {}) == {"a.b": (1, None)}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"identity": 3, "provenance": {}}'])
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(CacheError, match="the manifest of this file cannot be read"):
        Manifest.from_json(text)
