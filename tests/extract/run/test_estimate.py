from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from extract.decoders.decoder import Decoder
from extract.errors import InputError
from extract.inputs.batches import Batch
from extract.inputs.joined_text import join_words
from extract.inputs.template import InputTemplate
from extract.run.embed import (
    FEWEST_TIMED,
    N_TIMED,
    N_WARM,
    _work,
    embed_texts,
    embed_words,
    estimate_extraction,
    make_encoder,
)
from extract.run.extraction import describe_extraction, extract_latents
from extract.run.extraction_spec import (
    FEWEST_TOKENS,
    LATENT_BYTES,
    LATENT_BYTES_CPU,
    ExtractionSpec,
    WordSpec,
    batch_limits,
)
from extract.wiring.states import pool_batch


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
    assert 0 <= cache.path.stat().st_size - estimate.n_bytes < 2 * 4096 * (len(estimate.bytes_by_array) + 12)
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


LONG = InputTemplate(max_tokens=9, on_long="windows")
CUT = InputTemplate(max_tokens=9)


@pytest.mark.parametrize("template", [InputTemplate(), LONG, CUT])
def test_words_in_memory_equal_those_of_a_cache(
    decoder: Decoder, texts: list[str], tmp_path: Path, template: InputTemplate
) -> None:
    joined = [join_words(text.split(), [True] * len(text.split())) for text in texts]
    spec = ExtractionSpec(template=template, words=WordSpec(("auto", "mean")), layers=("block_01", "final_norm"))
    cache = extract_latents(decoder, joined, spec=spec, folder=tmp_path)
    places = cache.words_of(joined)
    found = embed_words(decoder, joined, spec=spec)
    assert found.offsets.tolist() == places.offsets.tolist()
    assert found.flags.tolist() == places.flags.tolist()
    assert found.has_latent.all() != (template is CUT)
    for p, pooling in enumerate(("last", "mean")):
        torch.testing.assert_close(found.latents[:, p], cache.gather(places.positions, pooling), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.of(3), found.latents[:, :, places.offsets[3] : places.offsets[4]])


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
    cpu = torch.device("cpu")
    assert batch_limits(ExtractionSpec(), cpu, token_bytes=LATENT_BYTES_CPU // 1000) == (1000, 125)


@pytest.mark.parametrize("on_long", ["truncate", "windows"])
def test_a_very_long_text_is_timed_by_its_beginning(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, on_long: Literal["truncate", "windows"]
) -> None:
    long = join_words(["a", "bcd"] * 3000, [True] * 6000)
    short = join_words(["a", "bcd", "e"], [True] * 3)
    spec = ExtractionSpec(template=InputTemplate(on_long=on_long), words=WordSpec(poolings=("mean",)))
    window = decoder.description.window
    monkeypatch.setattr("extract.run.embed.TIMED_TOKENS", 16)
    assert window > 16
    seen: list[int] = []

    def spy(decoder: Decoder, batch: Batch, **how: Any) -> torch.Tensor:
        assert batch.words is not None
        assert (batch.words.starts + batch.words.counts <= batch.ids.numel()).all()
        seen.append(batch.ids.numel())
        return pool_batch(decoder, batch, **how)

    monkeypatch.setattr("extract.run.embed.pool_batch", spy)
    estimates = [
        estimate_extraction(decoder, texts, spec=spec, manifest=describe_extraction(decoder, texts, spec))
        for texts in ([short], [short, long])
    ]
    assert max(seen) <= 16
    assert estimates[1].longest == window
    assert estimates[1].n_words == 6003
    assert estimates[1].seconds == pytest.approx(estimates[1].n_tokens / estimates[1].tokens_per_second)


@pytest.mark.parametrize("second", [1e-5, 1.0])
def test_neither_the_first_batches_nor_a_hiccup_move_the_estimate(
    decoder: Decoder, texts: list[str], monkeypatch: pytest.MonkeyPatch, second: float
) -> None:
    """By a clock on which a token takes this long, and 20 times as long in the first two batches and in another."""
    now, asked = [0.0], [0]

    def run(decoder: Decoder, batch: Batch, **_: Any) -> torch.Tensor:
        asked[0] += 1
        work = _work(decoder, batch.n_tokens.tolist()) / _work(decoder, [1])
        now[0] += second * work * (20 if asked[0] in (1, 2, 5) else 1)
        return torch.zeros(1)

    monkeypatch.setattr("extract.run.embed.pool_batch", run)
    monkeypatch.setattr("extract.run.embed.time.perf_counter", lambda: now[0])
    spec = ExtractionSpec()
    estimate = estimate_extraction(decoder, texts, spec=spec, manifest=describe_extraction(decoder, texts, spec))
    lengths = [len(item.ids) for item in make_encoder(decoder, spec, has_words=False)(texts)]
    assert estimate.seconds == pytest.approx(second * _work(decoder, lengths) / _work(decoder, [1]), rel=0.01)
    assert asked[0] == N_WARM + (N_TIMED if second < 1 else FEWEST_TIMED)


def test_work_is_counted_for_rows_as_they_are(decoder: Decoder) -> None:
    n_weights = sum(weights.numel() for block in decoder.blocks for weights in block.parameters())
    one, two, both = (_work(decoder, lengths) for lengths in ([10], [20], [10, 20]))
    assert both == one + two
    assert two - 2 * one == 2 * len(decoder.blocks) * decoder.description.width * 200
    assert two > 20 * n_weights
