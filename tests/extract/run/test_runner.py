"""An extraction: right numbers once, the same numbers however often it was stopped."""

import hashlib
import re
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from extract.decoders.decoder import Decoder, load_decoder, wrap_decoder
from extract.errors import (
    CacheError,
    CacheIdentityError,
    CacheWarning,
    CertificateError,
    InputError,
    NonFiniteLatentError,
    TruncationWarning,
    UnknownNameError,
)
from extract.inputs.template import InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.run.embed import embed_texts
from extract.run.extraction import TRIM_ITEMS, describe_extraction, extract_latents, unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.run.shards import sweep_latents
from extract.store.cache import LatentCache, cache_path
from extract.store.manifest import Manifest
from extract.store.writer import StoreWriter
from extract.wiring.states import pool_batch
from tests.extract.recorder import Recorder, interrupt_after
from tests.extract.tiny_decoders import (
    SENTENCES,
    assert_same_arrays,
    encode_batch,
    make_decoder,
    make_model,
    make_texts,
    make_tokenizer,
    read_arrays,
    save_decoder,
)

SPEC = ExtractionSpec(poolings=("last", "mean"), batch_tokens=64)


def only_file(folder: Path) -> Path:
    """Return the one file of a folder."""
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def whole(decoder: Decoder, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> LatentCache:
    """An uninterrupted extraction."""
    return extract_latents(decoder, texts, spec=SPEC, folder=tmp_path_factory.mktemp("whole"))


def test_every_text_has_its_latents(decoder: Decoder, texts: list[str], whole: LatentCache) -> None:
    rows = whole.rows_of(texts)
    assert sorted(rows.tolist()) == list(range(40))
    for p, pooling in enumerate(SPEC.poolings):
        got = whole.gather(rows, pooling)
        for i, text in enumerate(texts):
            alone = pool_batch(decoder, encode_batch(decoder, [text]), poolings=SPEC.poolings, layers=decoder.layers)
            assert torch.allclose(got[:, i], alone[:, p, 0], atol=1e-4), (pooling, text)
    n_tokens = [len(decoder.tokenizer(text)["input_ids"]) for text in texts]
    assert whole.n_tokens[rows.numpy()].tolist() == n_tokens


def test_the_certificate_is_there(whole: LatentCache, decoder: Decoder) -> None:
    certificate = whole.certificate
    assert set(certificate) == {"influence", "batch_invariance", "batches", "frozen", "seconds"}
    assert certificate["frozen"] == {"is_bit_identical": True, "weight_digest": decoder.description.weight_digest}
    assert certificate["influence"]["is_as_planned"] is True
    assert 0 <= certificate["batch_invariance"]["left"] < certificate["batch_invariance"]["allowed"]


def test_the_heap_is_trimmed_now_and_then(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[None] = []
    monkeypatch.setattr("extract.run.extraction.trim_heap", lambda: trims.append(None))
    monkeypatch.setattr("extract.run.extraction.SHARE", 0.0)  # closing rows is an item for the writer as well
    recorder = Recorder()
    extract_latents(decoder, texts, spec=ExtractionSpec(batch_tokens=32), folder=tmp_path, progress=recorder)
    assert len(trims) == recorder.n_batches // TRIM_ITEMS > 0


def test_repeats_are_stored_once(decoder: Decoder, tmp_path: Path) -> None:
    cache = extract_latents(decoder, [*SENTENCES, *SENTENCES[::-1]], spec=SPEC, folder=tmp_path)
    assert len(cache) == len(SENTENCES)


def test_two_runs_give_the_same_bits(decoder: Decoder, texts: list[str], whole: LatentCache, tmp_path: Path) -> None:
    again = extract_latents(decoder, iter(texts), spec=SPEC, folder=tmp_path)
    assert_same_arrays(whole.path, again.path)


@pytest.mark.long
@pytest.mark.parametrize("n_batches", [1, 2, 5, 8])
def test_resumed_equals_uninterrupted(
    decoder: Decoder, texts: list[str], whole: LatentCache, tmp_path: Path, n_batches: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        extract_latents(
            decoder, texts, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=interrupt_after(n_batches))
        )
    n_done = LatentCache(only_file(tmp_path), allow_partial=True).n_done
    assert 0 < n_done < 40
    recorder = Recorder()
    # The batching is the store's, whatever the resuming run asks for.
    other = ExtractionSpec(poolings=SPEC.poolings, batch_tokens=1000)
    resumed = extract_latents(decoder, texts, spec=other, folder=tmp_path, progress=recorder)
    assert (recorder.n_rows, recorder.n_done, recorder.n_written) == (40, n_done, 40 - n_done)
    assert recorder.n_finished == 1
    assert_same_arrays(whole.path, resumed.path)
    assert resumed.manifest.provenance["batching"]["batch_tokens"] == 64


@pytest.mark.long
def test_interrupted_again_and_again(decoder: Decoder, tmp_path: Path) -> None:
    n_runs = 0
    while True:
        n_runs += 1
        recorder = Recorder(on_advance=interrupt_after(1))
        try:
            cache = extract_latents(decoder, SENTENCES, spec=SPEC, folder=tmp_path / "resumed", progress=recorder)
        except KeyboardInterrupt:
            assert recorder.n_finished == 1
            continue
        break
    assert n_runs > 3
    assert_same_arrays(extract_latents(decoder, SENTENCES, spec=SPEC, folder=tmp_path / "whole").path, cache.path)


def test_stopped_before_the_certificate(
    decoder: Decoder, texts: list[str], whole: LatentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "write_certificate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert not LatentCache(only_file(tmp_path), allow_partial=True).is_complete
    recorder = Recorder()
    cache = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=recorder)
    assert (recorder.n_done, recorder.n_batches) == (40, 0)
    assert_same_arrays(whole.path, cache.path)


@pytest.mark.parametrize(
    "less", [{}, {"poolings": ("mean",)}, {"layers": ("block_02", "final_norm")}, {"batch_tokens": 9}]
)
def test_reuse_computes_nothing(decoder: Decoder, texts: list[str], whole: LatentCache, less: dict[str, Any]) -> None:
    calls: list[int] = []
    handle = register_module_forward_pre_hook(lambda *_: calls.append(1))  # one of the decoder's would be part of it
    spec = ExtractionSpec(**{"poolings": SPEC.poolings, "batch_tokens": 64, **less})
    cache = extract_latents(decoder, texts, spec=spec, folder=whole.path.parent)
    handle.remove()
    assert cache.path == whole.path
    assert calls == []


@pytest.mark.parametrize(
    "other",
    [
        {"poolings": ("max",)},
        {"storage_dtype": "bfloat16"},
        {"template": InputTemplate(instruction="Query: ")},
        {"template": InputTemplate(bos="none")},
    ],
)
def test_anything_else_is_another_cache(
    decoder: Decoder, texts: list[str], whole: LatentCache, other: dict[str, Any]
) -> None:
    manifest = describe_extraction(decoder, texts, ExtractionSpec(**{"poolings": SPEC.poolings, **other}))
    assert manifest.id != whole.manifest.id
    assert cache_path(Path(), manifest) != Path(whole.path.name)
    reordered = describe_extraction(decoder, texts[::-1], SPEC)
    assert reordered.id != whole.manifest.id
    assert describe_extraction(make_decoder(seed=1, adds_bos=True), texts, SPEC).id != whole.manifest.id


def test_the_identity_of_a_cache_of_texts_has_the_fields_it_always_had(decoder: Decoder, texts: list[str]) -> None:
    identity = describe_extraction(decoder, texts, SPEC).identity
    fields = ["schema", "decoder", "plan", "architecture", "template", "poolings", "layers", "storage_dtype"]
    assert list(identity.to_plain()) == [*fields, "n_rows", "text_digest", "versions"]
    template = {"bos": "auto", "instruction": "", "max_tokens": None, "on_long": "truncate", "spans": "", "window": 64}
    assert identity.template == template
    joined = hashlib.sha256(b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts))
    assert (identity.n_rows, identity.text_digest) == (40, joined.hexdigest())


def test_truncated_rows_are_flagged(decoder: Decoder, tmp_path: Path) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=6))
    cache = extract_latents(decoder, SENTENCES, spec=spec, folder=tmp_path)
    rows = cache.rows_of(SENTENCES).numpy()
    n_tokens = np.array([len(decoder.tokenizer(text)["input_ids"]) for text in SENTENCES])
    assert cache.is_truncated[rows].tolist() == (n_tokens > 6).tolist()
    assert cache.n_tokens[rows].tolist() == n_tokens.clip(max=6).tolist()
    assert 0 < int(cache.is_truncated.sum()) < len(SENTENCES)


def test_truncated_texts_are_counted_in_one_warning(decoder: Decoder, tmp_path: Path) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=6), layers=("block_01",))
    for _ in range(2):  # extracted, and found again
        with pytest.warns(TruncationWarning) as caught:
            cache = extract_latents(decoder, SENTENCES, spec=spec, folder=tmp_path)
        [warning] = caught
        assert str(warning.message) == (
            f"{int(cache.is_truncated.sum())} of {len(SENTENCES)} texts have more than 6 tokens, and their ends were "
            "left out; raise template.max_tokens (this decoder takes 64), or set template.on_long to 'error'."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract_latents(decoder, SENTENCES, spec=ExtractionSpec(layers=("block_01",)), folder=tmp_path)


def test_a_cache_is_the_same_whether_layers_are_named_or_numbered(decoder: Decoder, tmp_path: Path) -> None:
    texts = SENTENCES[:2]
    named = extract_latents(decoder, texts, spec=ExtractionSpec(layers=("block_02", "final_norm")), folder=tmp_path)
    for layers in (("2", "-1"), ("-1", "block_02"), ("02", "final_norm")):
        found = extract_latents(decoder, texts, spec=ExtractionSpec(layers=layers), folder=tmp_path)
        assert (found.path, found.manifest.id) == (named.path, named.manifest.id)


def test_a_column_of_a_dataset_is_a_sequence_of_texts(decoder: Decoder, tmp_path: Path) -> None:
    from datasets import Dataset

    column: Any = Dataset.from_dict({"text": SENTENCES[:3]})["text"]
    cache = extract_latents(decoder, column, spec=ExtractionSpec(layers=("block_01",)), folder=tmp_path)
    assert cache.rows_of(column).tolist() == cache.rows_of(SENTENCES[:3]).tolist()
    torch.testing.assert_close(
        embed_texts(decoder, column, spec=ExtractionSpec()), embed_texts(decoder, SENTENCES[:3], spec=ExtractionSpec())
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_storage_rounds_and_no_more(
    decoder: Decoder, texts: list[str], whole: LatentCache, tmp_path: Path, dtype: str
) -> None:
    spec = ExtractionSpec(poolings=SPEC.poolings, storage_dtype=dtype, batch_tokens=64)
    cache = extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    expected = whole.layer("block_02", "mean").to(getattr(torch, dtype))
    assert torch.equal(cache.layer("block_02", "mean"), expected)


def test_windows_of_texts_do_not_change_latents(
    decoder: Decoder, texts: list[str], whole: LatentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.run.extraction.WINDOW_TEXTS", 7)
    cache = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert cache.manifest.provenance["batching"]["window_texts"] == 7
    one, other = (c.gather(c.rows_of(texts), "mean") for c in (cache, whole))
    assert torch.allclose(one, other, atol=1e-4)


def spoil(decoder: Decoder, factor: float) -> Recorder:
    """Multiply the output of the second block once the certificates are done."""

    def hook(_: Any, __: Any, output: Any) -> Any:
        return output * factor

    return Recorder(on_start=lambda: decoder.blocks[1].register_forward_hook(hook))


@pytest.mark.parametrize(("factor", "value"), [(float("nan"), "nan"), (float("inf"), "-?inf")])
def test_a_latent_that_is_not_finite_stops(texts: list[str], tmp_path: Path, factor: float, value: str) -> None:
    decoder = make_decoder()
    with pytest.raises(NonFiniteLatentError, match=f"latent {value} at layer block_02, pooling last, dim") as caught:
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=spoil(decoder, factor))
    found = re.search(r"text (\d+) \((.*)\) is not finite although computed in float32", str(caught.value))
    assert found is not None
    assert found[2] == repr(texts[int(found[1])][:40])
    assert LatentCache(only_file(tmp_path), allow_partial=True).n_done == 0


def test_half_precision_that_overflows_proposes_another_dtype(texts: list[str], tmp_path: Path) -> None:
    decoder = wrap_decoder(make_model().to(torch.bfloat16), make_tokenizer())
    with pytest.raises(NonFiniteLatentError, match="compute in float32 or bfloat16 instead of bfloat16"):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=spoil(decoder, float("inf")))


def test_an_overflow_of_float16_proposes_bfloat16(texts: list[str], tmp_path: Path) -> None:
    decoder = make_decoder()
    spec = ExtractionSpec(storage_dtype="float16")
    message = (
        r"latent -?\d\.\d+e\+\d+ at layer block_02, pooling mean, .* does not fit the storage dtype float16; choose"
    )
    with pytest.raises(NonFiniteLatentError, match=message + " storage_dtype bfloat16 or float32"):
        extract_latents(decoder, texts, spec=spec, folder=tmp_path, progress=spoil(decoder, 1e7))


def test_changed_weights_void_their_rows(
    decoder: Decoder, texts: list[str], whole: LatentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.run.extraction.SHARE", 0.0)  # the weights are compared at the end alone
    victim = make_decoder(adds_bos=True)
    weight = next(victim.blocks[0].parameters())
    with pytest.raises(KeyboardInterrupt):
        extract_latents(victim, texts, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=interrupt_after(2)))
    n_done = LatentCache(only_file(tmp_path), allow_partial=True).n_done

    def change(n_batches: int) -> None:
        if n_batches == 2:
            weight.data.mul_(1.5)

    before = victim.description.weight_digest[:12]
    with pytest.raises(CertificateError, match=f"the weights changed during the extraction: .* after, {before} before"):
        extract_latents(victim, texts, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=change))
    assert LatentCache(only_file(tmp_path), allow_partial=True).n_done == n_done
    cache = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert_same_arrays(whole.path, cache.path)


def test_a_store_under_a_wrong_name_is_not_touched(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path, progress=Recorder(on_advance=interrupt_after(1)))
    wanted = describe_extraction(decoder, texts, ExtractionSpec(poolings=("max",)))
    path = only_file(tmp_path).rename(cache_path(tmp_path, wanted))
    before = read_arrays(path)
    with pytest.raises(CacheIdentityError, match=r"poolings is \['last', 'mean'\], expected \['max'\]"):
        extract_latents(decoder, texts, spec=ExtractionSpec(poolings=("max",)), folder=tmp_path)
    assert all(np.array_equal(values, before[name]) for name, values in read_arrays(path).items())


def test_an_error_in_a_text_surfaces(decoder: Decoder, tmp_path: Path) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=5, on_long="error"))
    with pytest.raises(InputError, match=r"text 1 \('The mouse ran under the table.'\) has 10 tokens; at most 5 fit"):
        extract_latents(decoder, ["a", SENTENCES[0]], spec=spec, folder=tmp_path)


def test_unique_texts() -> None:
    assert unique_texts(iter(["b", "a", "b"])) == ["b", "a"]
    for texts, message in (
        ([], "there are no texts to extract"),
        (["a", "a", " \t"], r"text 2 is ' \\t'; allowed: a string with at least one visible character"),
        (iter(["a", 3]), "text 1 is 3; allowed: a string"),
        ("ice core", "texts is the single string 'ice core'; give a list of texts"),
    ):
        given: Any = texts
        with pytest.raises(InputError, match=message):
            unique_texts(given)


def test_a_cache_is_named_for_people(decoder: Decoder, texts: list[str]) -> None:
    manifest = describe_extraction(decoder, texts, SPEC)
    assert cache_path(Path("caches"), manifest) == Path(f"caches/in-memory-causal-{manifest.short_id}.h5")
    named = Manifest(manifest.identity, {"decoder": {"name": "owner/model"}})
    assert cache_path(Path("c"), named).name.startswith("owner--model-causal-")


@pytest.mark.parametrize(
    ("field", "value", "kind", "message"),
    [
        ("plan", "casual", UnknownNameError, "unknown mask plan 'casual'"),
        ("poolings", ("meen",), UnknownNameError, "unknown pooling 'meen': did you mean 'mean'"),
        ("storage_dtype", "float61", UnknownNameError, "unknown storage dtype 'float61': did you mean 'float16'"),
        ("batch_tokens", 0, InputError, "batch_tokens is 0; allowed: a whole number of at least 1"),
    ],
)
def test_a_spec_refuses_values_outside_the_tables(field: str, value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ExtractionSpec(**{field: value})


def test_a_layer_the_decoder_lacks_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'block_04'"):
        extract_latents(decoder, make_texts(2), spec=ExtractionSpec(layers=("block_04",)), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["extract.run.extraction", "extract.run.shards"])
def test_a_cache_that_another_process_finished_meanwhile_keeps_its_certificate(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    first = extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    before = first.path.read_bytes()
    monkeypatch.setattr(f"{where}.find_cache", lambda *_: None)  # it was not there when this process looked
    if where == "extract.run.shards":
        sweep_latents(decoder, texts, [parse_plan("causal")], spec=SPEC, folder=tmp_path)
    else:
        extract_latents(decoder, texts, spec=SPEC, folder=tmp_path)
    assert first.path.read_bytes() == before


@pytest.mark.parametrize("is_sweep", [False, True])
def test_refused_texts_leave_no_file(decoder: Decoder, texts: list[str], tmp_path: Path, is_sweep: bool) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=3, on_long="error"))
    with pytest.raises(InputError):
        if is_sweep:
            sweep_latents(decoder, texts, [parse_plan("causal"), parse_plan("backward")], spec=spec, folder=tmp_path)
        else:
            extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_is_not_resumed(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    path = extract_latents(decoder, texts, folder=tmp_path).path
    with h5py.File(path, "r+") as file:
        whole = file["latents/mean/block_01"][3, 1]
        file["latents/mean/block_01"][3, 1] += 1
    with (
        pytest.warns(CacheWarning, match="finished rows do not match their checksums"),
        pytest.raises(CacheError, match=r"is damaged: .* delete the file and extract again"),
    ):
        extract_latents(decoder, texts, folder=tmp_path)
    with h5py.File(path, "r+") as file:
        file["rows/is_done"][3] = 0
        file["latents/mean/block_01"][3, 1] = whole
    with pytest.raises(CacheError, match="it has a certificate, but rows are missing"):
        extract_latents(decoder, texts, folder=tmp_path)


def test_the_decoder_may_be_named_and_the_latents_are_an_array(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "named")
    texts = [SENTENCES[2], SENTENCES[0], SENTENCES[2]]
    cache = extract_latents(folder, iter(texts), folder=tmp_path / "caches")
    again = extract_latents({"name": str(folder)}, texts[:2], folder=tmp_path / "caches")
    assert np.asarray(cache).shape == (len(cache.layers), 3, cache.width)
    np.testing.assert_array_equal(np.asarray(cache)[:, :2], np.asarray(again))
    expected = embed_texts(load_decoder(folder), texts, spec=ExtractionSpec())[:, 0].numpy()
    np.testing.assert_allclose(np.asarray(cache), expected, atol=1e-5)
