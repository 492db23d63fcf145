from pathlib import Path

import pytest
import torch

from extract.decoder import Decoder
from extract.embed import embed_texts
from extract.errors import InputError
from extract.estimate import estimate_extraction
from extract.limits import FEWEST_TOKENS, LATENT_BYTES, batch_limits
from extract.runner import describe_extraction, extract_latents
from extract.spec import ExtractionSpec
from extract.template import InputTemplate


def test_an_estimate_counts_what_the_extraction_then_stores(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    spec = ExtractionSpec(poolings=("mean", "last"), storage_dtype="float16")
    manifest = describe_extraction(decoder, texts, spec)
    estimate = estimate_extraction(decoder, texts, spec=spec, manifest=manifest)
    cache = extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    assert (estimate.n_rows, estimate.n_tokens) == (len(cache), int(cache.n_tokens.sum()))
    assert estimate.longest == int(cache.n_tokens.max())
    per_pooling = len(cache) * cache.width * 2 * len(cache.layers)
    assert estimate.bytes_by_pooling() == {"mean": per_pooling, "last": per_pooling}
    # What is left is the file's own structure and the gaps before arrays, which start on page borders.
    assert 0 <= cache.path.stat().st_size - estimate.n_bytes < 2 * 4096 * (len(estimate.bytes_by_array) + 8)
    assert estimate.seconds == pytest.approx(estimate.n_tokens / estimate.tokens_per_second)


def test_an_estimate_writes_nothing_and_counts_truncated_texts(
    decoder: Decoder, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = ExtractionSpec(template=InputTemplate(max_tokens=2))
    estimate = estimate_extraction(decoder, texts, spec=spec, manifest=describe_extraction(decoder, texts, spec))
    assert list(tmp_path.iterdir()) == []
    assert estimate.longest == 2
    assert estimate.n_truncated > 0


def test_an_estimate_names_the_text_that_could_not_be_extracted(decoder: Decoder) -> None:
    spec = ExtractionSpec(template=InputTemplate(max_tokens=2, on_long="error"))
    texts = ["a", "a much longer text than one token"]
    with pytest.raises(InputError, match=r"text 1 .*at most 2 fit"):
        estimate_extraction(decoder, texts, spec=spec, manifest=describe_extraction(decoder, texts, spec))


def test_latents_in_memory_equal_those_of_a_cache(decoder: Decoder, texts: list[str], tmp_path: Path) -> None:
    spec = ExtractionSpec(poolings=("last", "mean"))
    cache = extract_latents(decoder, texts, spec=spec, folder=tmp_path)
    latents = embed_texts(decoder, texts, spec=spec)
    rows = cache.rows_of(texts)
    for p, pooling in enumerate(spec.poolings):
        torch.testing.assert_close(latents[:, p], cache.gather(rows, pooling), atol=1e-5, rtol=0)


def test_latents_in_memory_keep_the_order_of_the_texts(decoder: Decoder, texts: list[str]) -> None:
    forward = embed_texts(decoder, texts[:9], spec=ExtractionSpec())
    backward = embed_texts(decoder, texts[:9][::-1], spec=ExtractionSpec())
    torch.testing.assert_close(forward, backward.flip(2), atol=1e-5, rtol=0)


def test_the_limits_of_a_batch_follow_the_device_unless_they_are_given() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert batch_limits(ExtractionSpec(), cpu)[0] < batch_limits(ExtractionSpec(), gpu)[0]
    assert batch_limits(ExtractionSpec(batch_tokens=80), cpu) == batch_limits(ExtractionSpec(batch_tokens=80), gpu)
    assert batch_limits(ExtractionSpec(batch_tokens=80), cpu) == (80, 10)


def test_a_batch_of_words_holds_no_more_latents_than_fit() -> None:
    gpu = torch.device("cuda")
    most, _ = batch_limits(ExtractionSpec(), gpu)
    assert batch_limits(ExtractionSpec(), gpu, token_bytes=LATENT_BYTES // most) == batch_limits(ExtractionSpec(), gpu)
    assert batch_limits(ExtractionSpec(), gpu, token_bytes=LATENT_BYTES // 1000) == (1000, 125)
    assert batch_limits(ExtractionSpec(), gpu, token_bytes=LATENT_BYTES) == (FEWEST_TOKENS, FEWEST_TOKENS // 8)
    assert batch_limits(ExtractionSpec(batch_tokens=80), gpu, token_bytes=LATENT_BYTES) == (80, 10)
