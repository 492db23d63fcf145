"""A cache is found by what it holds: the same, or more; never something else."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from extract.decoders.decoder import digest_custom_code, load_decoder
from extract.errors import CacheError, CacheWarning, DecoderError, UnknownNameError
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import extract_shards
from extract.store.cache import LatentCache, ViewCache, find_cache
from extract.store.manifest import CacheIdentity, Manifest, view_identity
from extract.wiring.plan_wiring import plan_in_force
from tests.extract.tiny_decoders import (
    FAMILIES,
    make_decoder,
    make_manifest,
    make_model,
    make_texts,
    make_tokenizer,
    write_cache,
)

TEXTS = make_texts(5)


def wanted(**changes: Any) -> CacheIdentity:
    """Return the identity to look for."""
    return make_manifest(TEXTS, **changes).identity


def test_the_same_is_found_first(tmp_path: Path) -> None:
    write_cache(tmp_path / "a-more.h5", TEXTS, poolings=["mean", "last", "max"])
    write_cache(tmp_path / f"z-{make_manifest(TEXTS).short_id}.h5", TEXTS)
    found = find_cache(tmp_path, wanted())
    assert found is not None
    assert found.path == tmp_path / f"z-{make_manifest(TEXTS).short_id}.h5"


@pytest.mark.parametrize(
    "less",
    [
        {"poolings": ["last"]},
        {"layers": ["block_02"]},
        {"poolings": ["last", "mean"]},
        {"poolings": ["mean"], "layers": ["embedding"]},
    ],
)
def test_more_covers_less(tmp_path: Path, less: dict[str, list[str]]) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    found = find_cache(tmp_path, wanted(**less))
    assert found is not None
    assert found.path == tmp_path / "a.h5"
    identity = wanted(**less)
    assert (found.layers, found.poolings) == (identity.layers, identity.poolings)
    assert (found.identity, found.manifest.id) == (identity, Manifest(identity).id), "a fit on it would be another one"
    pooling, layer, whole = found.poolings[0], found.layers[0], LatentCache(found.path)
    assert torch.equal(found.gather([3, 0], pooling)[0], whole.gather([3, 0], pooling, layers=[layer])[0])
    for name in set(whole.layers) - set(found.layers):
        with pytest.raises(UnknownNameError, match="unknown layer"):
            found.layer(name, pooling)


@pytest.mark.parametrize(
    "other",
    [
        {"poolings": ["mean", "max"]},
        {"layers": ["block_03"]},
        {"plan": "backward"},
        {"weight_digest": "ef" * 32},
        {"tokenizer_digest": "ef" * 32},
        {"dtype": "bfloat16"},
        {"storage_dtype": "float16"},
        {"text_digest": "ef" * 32},
        {"n_rows": 4},
        {"poolings": ["mean"], "plan": "backward"},
    ],
)
def test_another_identity_is_never_found(tmp_path: Path, other: dict[str, Any]) -> None:
    write_cache(tmp_path / "a.h5", TEXTS)
    assert find_cache(tmp_path, wanted()) is not None
    assert find_cache(tmp_path, wanted(**other)) is None


@pytest.mark.parametrize(("plan", "is_kept"), [("nosink3-causal:2", False), ("nosink-causal:2", True)])
def test_a_cache_of_hidden_tokens_by_the_old_rule_is_not_found(tmp_path: Path, plan: str, is_kept: bool) -> None:
    decoder = make_decoder()
    spec = ExtractionSpec(plan=plan)
    manifest = describe_extraction(decoder, TEXTS, spec)
    old = replace(manifest.identity, rules=None)
    assert (Manifest(old).id == manifest.id) is is_kept
    extract_latents(decoder, TEXTS, spec=spec, folder=tmp_path)
    assert find_cache(tmp_path, manifest.identity) is not None
    assert (find_cache(tmp_path, old) is not None) is is_kept


def test_half_done_foreign_and_damaged_files_are_passed_over(tmp_path: Path) -> None:
    write_cache(tmp_path / "a.h5", TEXTS, is_whole=False)
    (tmp_path / "b.h5").write_text("no cache")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["x"] = [1]
    write_cache(tmp_path / "d.h5", TEXTS)
    with h5py.File(tmp_path / "d.h5", "r+") as file:
        file.attrs["manifest"] = file.attrs["manifest"].replace('"float32"', '"float8"')
    os.mkfifo(tmp_path / "f.h5")
    (tmp_path / "g.h5").mkdir()
    (tmp_path / "h.h5").symlink_to("nowhere")
    with pytest.warns(CacheWarning) as warned:
        assert find_cache(tmp_path, wanted()) is None
    assert [str(each.message)[:4] for each in warned] == ["b.h5", "c.h5", "d.h5", "f.h5", "g.h5", "h.h5"]
    assert all("in the caches folder is passed over: " in str(each.message) for each in warned)
    assert find_cache(tmp_path / "nowhere", wanted()) is None
    write_cache(tmp_path / "e.h5", TEXTS)
    with pytest.warns(CacheWarning):
        found = find_cache(tmp_path, wanted())
    assert found is not None
    assert found.path.name == "e.h5"


def test_drafts_of_killed_layouts_are_swept(tmp_path: Path) -> None:
    old, young, pipe = (tmp_path / f".x{i}.h5.new-1" for i in range(3))
    old.touch()
    young.touch()
    os.mkfifo(pipe)
    for path in (old, pipe):
        os.utime(path, (0, 0))
    write_cache(tmp_path / "a.h5", TEXTS)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize(
    ("family", "change"), [("mistral", {"sliding_window": 8}), ("llama", {"rms_norm_eps": 0.1}), ("gemma2", {})]
)
def test_the_same_weights_under_another_configuration_are_another_decoder(
    tmp_path: Path, family: str, change: dict[str, Any]
) -> None:
    one, other = make_decoder(family), make_decoder(family, **change)
    assert one.description.weight_digest == other.description.weight_digest
    caches = [extract_latents(decoder, TEXTS, folder=tmp_path) for decoder in (one, other, one)]
    assert len({cache.path for cache in caches}) == 1 + bool(change)
    first, second, again = (cache.gather(cache.rows_of(TEXTS), "mean") for cache in caches)
    assert torch.equal(first, again)
    assert torch.equal(first, second) is not bool(change)


def test_what_changes_no_latent_keeps_the_cache(tmp_path: Path) -> None:
    decoder = make_decoder()
    path = extract_latents(decoder, TEXTS, folder=tmp_path).path
    other = make_decoder(use_cache=False, initializer_range=0.5, attention_dropout=0.1)
    assert extract_latents(other, TEXTS, folder=tmp_path).path == path


def test_an_early_cache_without_a_digest_of_the_configuration_serves(tmp_path: Path) -> None:
    decoder = make_decoder()
    early = replace(decoder, description=replace(decoder.description, config_digest=""))
    path = extract_latents(early, TEXTS, folder=tmp_path).path
    cache = extract_latents(decoder, TEXTS, folder=tmp_path)
    assert (cache.path, "config_digest" in cache.identity.decoder) == (path, False), "heads on it are found by that"
    view = extract_latents(decoder, TEXTS, folder=tmp_path, spec=ExtractionSpec(plan="backward"))
    assert view_identity({"early": wanted_of(cache), "new": wanted_of(view)}).views


def test_what_was_begun_without_a_digest_of_the_configuration_goes_on_as_it_is(tmp_path: Path) -> None:
    decoder = make_decoder()
    early = replace(decoder, description=replace(decoder.description, config_digest=""))
    shards = extract_shards(early, TEXTS[:4], folder=tmp_path / "shards", window=2)
    more = extract_shards(decoder, TEXTS, folder=tmp_path / "shards", window=2)
    assert (len(shards), len(more), more.identity.decoder) == (4, 5, shards.identity.decoder)
    mean = ExtractionSpec(template=InputTemplate(name="prompt-eol+pretended-cot"))
    parts = [extract_latents(each, TEXTS, folder=tmp_path, spec=mean) for each in (early, decoder)]
    assert parts[0].manifest.id == parts[1].manifest.id


def steer(by: Any, *call: Any) -> Any:
    """Shift the output of a block."""
    return call[2] + by


class Doubled(LlamaMLP):
    """A user's own part of a decoder."""

    def forward(self, x: Any) -> Any:
        """Double the output."""
        return 2 * super().forward(x)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("change", ["hook", "hook before", "class", "forward"])
def test_a_decoder_that_runs_code_of_the_user_is_another_one(tmp_path: Path, change: str) -> None:
    plain, decoder = make_decoder(), make_decoder()
    first = extract_latents(plain, TEXTS, folder=tmp_path)
    block, mlp = decoder.blocks[0], decoder.blocks[0].get_submodule("mlp")
    if change == "hook":
        block.register_forward_hook(partial(steer, 3.0))
    elif change == "hook before":
        block.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2, *inputs[1:]))
    elif change == "class":
        mlp.__class__ = Doubled
    else:
        mlp.forward = lambda x: x
    second = extract_latents(decoder, TEXTS, folder=tmp_path)
    assert first.path != second.path
    assert "code_digest" not in first.identity.decoder
    assert not torch.equal(first.layer("block_02", "mean"), second.layer("block_02", "mean"))
    assert extract_latents(decoder, TEXTS, folder=tmp_path).path == second.path
    assert extract_latents(plain, TEXTS, folder=tmp_path).path == first.path


def test_another_hook_is_another_decoder_and_none_is_the_plain_one() -> None:
    decoder = make_decoder()
    digests = [digest_custom_code(decoder)]
    for by in (1.0, 2.0):
        handle = decoder.blocks[0].register_forward_hook(partial(steer, by))
        digests.append(digest_custom_code(decoder))
        handle.remove()
    assert len({*digests}) == 3
    assert digests[0] == digest_custom_code(decoder) == ""
    decoder.blocks[0].register_forward_hook(partial(steer, torch.ones(1, device="meta")))
    with pytest.raises(DecoderError, match="the code that 'in-memory' runs beside installed packages cannot be diges"):
        digest_custom_code(decoder)


def test_views_of_a_decoder_whose_hook_notes_what_it_sees_are_of_one_decoder(tmp_path: Path) -> None:
    decoder, kept = make_decoder(), list[Any]()
    decoder.blocks[0].register_forward_hook(lambda *_: kept.append(len(kept)))
    views = ExtractionSpec(views={"plain": {}, "last": {"plan": "backward:1"}})
    cache = extract_latents(decoder, TEXTS, folder=tmp_path, spec=views)
    assert kept
    assert isinstance(cache, ViewCache)
    assert {view.identity.decoder["code_digest"] for view in cache.views.values()} != {""}
    spec = ExtractionSpec(template=InputTemplate(name="prompt-eol+pretended-cot"))
    assert len(extract_latents(decoder, TEXTS, folder=tmp_path, spec=spec)) == len(TEXTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_of_transformers_runs_no_other_code(family: str) -> None:
    decoder = make_decoder(family)
    with plan_in_force(decoder, parse_plan("backward:1")):
        assert digest_custom_code(decoder) == ""


@pytest.mark.parametrize("revision", ["", "1234"])
def test_code_of_a_checkpoint_counts_unless_its_revision_tells_it(
    revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = make_decoder()
    decoder = replace(decoder, description=replace(decoder.description, revision=revision))
    decoder.blocks[0].get_submodule("mlp").__class__ = Doubled
    assert digest_custom_code(decoder)
    monkeypatch.setattr(Doubled, "__module__", "transformers_modules.model.code")
    monkeypatch.setattr(Doubled.forward, "__module__", "transformers_modules.model.code")
    assert bool(digest_custom_code(decoder)) is not bool(revision)


def test_a_configuration_that_is_no_json_is_refused_in_one_sentence() -> None:
    model = make_model()
    model.config.own = {1, 2}
    with pytest.raises(DecoderError, match=r"the configuration of the family 'llama' cannot be written as JSON"):
        load_decoder(model, make_tokenizer())


def wanted_of(cache: LatentCache) -> CacheIdentity:
    """Return the identity of a cache with its mean alone."""
    return replace(cache.identity, poolings=("mean",))


def test_a_certificate_that_nests_too_deeply_is_passed_over(tmp_path: Path) -> None:
    decoder = make_decoder()
    path = extract_latents(decoder, TEXTS, folder=tmp_path).path
    with h5py.File(path, "r+") as file:
        n_bytes = file["certificate"].shape[0]
        file["certificate"][:] = np.frombuffer(b"[" * n_bytes, np.uint8)
    with pytest.raises(CacheError, match="is damaged"):
        LatentCache(path).certificate  # noqa: B018
