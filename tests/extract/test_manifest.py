"""Identities decide, provenance informs, and a difference is named."""

import pytest

from extract.errors import CacheError, CacheIdentityError
from extract.manifest import Manifest, differences, require_same
from tests.extract.tiny_decoders import make_manifest

TEXTS = ["ice", "snow"]


def test_a_manifest_reads_back() -> None:
    manifest = make_manifest(TEXTS)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.short_id == manifest.id[:12]


def test_names_do_not_decide_and_weights_do() -> None:
    manifest = make_manifest(TEXTS)
    assert make_manifest(TEXTS, name="other", source="hub", n_parameters=5).id == manifest.id
    for change in ({"weight_digest": "ef"}, {"plan": "backward"}, {"storage_dtype": "float16"}, {"revision": "abc"}):
        assert make_manifest(TEXTS, **change).id != manifest.id
    assert make_manifest(TEXTS[::-1]).id != manifest.id


def test_every_difference_is_named() -> None:
    found = make_manifest(TEXTS).identity
    wanted = make_manifest(TEXTS, plan="backward", weight_digest="ef", storage_dtype="float16").identity
    assert set(differences(found, wanted)) == {"plan", "decoder.weight_digest", "storage_dtype"}
    with pytest.raises(CacheIdentityError, match=r"cache 'a\.h5' holds something else") as caught:
        require_same(found, wanted, where="'a.h5'")
    assert "plan is 'causal', expected 'backward'" in str(caught.value)
    assert "decoder.weight_digest is 'abab" in str(caught.value)
    assert "storage_dtype is 'float32', expected 'float16'" in str(caught.value)
    require_same(found, make_manifest(TEXTS).identity, where="'a.h5'")


def test_a_missing_field_is_a_difference() -> None:
    assert differences({"a": {"b": 1}}, {}) == {"a.b": (1, None)}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"identity": 3, "provenance": {}}'])
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(CacheError, match="the manifest of this file cannot be read"):
        Manifest.from_json(text)
