"""`Encoder(decoder).encode(texts)`: arrays in the order of the texts, and no text computed twice."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from extract.decoders.decoder import load_decoder
from extract.errors import CacheError, ConfigError, InputError, UnknownNameError
from extract.run.embed import embed_texts
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import whole_caches
from extract.store.items import SUFFIX
from probes.runs import probe as module
from probes.runs.probe import Encoder, list_rows

TEXTS = [f"a text of number {k} {'and more ' * (k % 4)}" for k in range(12)]


@pytest.fixture
def encoder(decoder_folder: Path, tmp_path: Path) -> Encoder:
    """An encoder with an empty folder of caches."""
    return Encoder(decoder_folder, caches=str(tmp_path / "caches"))


def test_latents_are_in_the_order_of_the_texts(encoder: Encoder, decoder_folder: Path) -> None:
    expected = embed_texts(load_decoder(decoder_folder), TEXTS, spec=ExtractionSpec())[:, 0].numpy()
    latents = encoder.encode(TEXTS)
    assert latents.shape == expected.shape
    assert latents.dtype == np.float32
    np.testing.assert_allclose(latents, expected, atol=1e-5)
    np.testing.assert_array_equal(encoder.encode([TEXTS[5], TEXTS[0], TEXTS[5]]), latents[:, [5, 0, 5]])
    for layer, k in ((0, 0), (2, 2), ("block_02", 2), (-1, -1), (np.int64(1), 1), ("final_norm", -1)):
        np.testing.assert_array_equal(encoder.encode(TEXTS, layer=layer), latents[k])
    for rows in (pd.Series(TEXTS), np.array(TEXTS), pd.DataFrame({"x": TEXTS})):
        np.testing.assert_array_equal(encoder.encode(rows), latents)


def test_no_text_is_computed_twice(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extracted: list[list[str]] = []

    def counted(decoder: Any, texts: Any, **options: Any) -> Any:
        before = {*(tmp_path / "caches").glob("*.h5")}
        cache = extract_latents(decoder, texts, **options)
        extracted.append(list(texts) if cache.path not in before else [])
        return cache

    monkeypatch.setattr(module, "extract_latents", counted)
    first = encoder.encode(TEXTS[:6])
    again = encoder.encode(TEXTS[:6])
    fewer = encoder.encode(TEXTS[2:4])
    more = encoder.encode(TEXTS[3:9])
    assert [text for texts in extracted for text in texts] == TEXTS[:9]
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(fewer, first[:, 2:4])
    np.testing.assert_array_equal(more[:, :3], first[:, 3:6])
    both = encoder.encode(TEXTS[:9])  # between them, two caches hold these
    assert sum(map(len, extracted)) == 9
    np.testing.assert_array_equal(both[:, :6], first)
    encoder.set_params(plan="backward").encode(TEXTS[:2])
    assert extracted[-1] == TEXTS[:2]


def test_texts_are_kept_of_whatever_cache_is_reused(decoder_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    without, keeping = (Encoder(decoder_folder, caches=str(folder), store_texts=keeps) for keeps in (False, True))
    without.encode(TEXTS[:6])
    for texts in (TEXTS[:6], TEXTS[1:3], [*TEXTS[5:9]]):
        keeping.encode(texts)
        assert any(cache.keeps_texts and {*texts} <= {*cache.texts} for cache in whole_caches(folder))
    kept = {file.name.removesuffix(SUFFIX) for file in folder.glob(f"*{SUFFIX}")}
    assert kept <= {file.stem for file in folder.glob("*.h5")}  # none is left of a cache that was joined


def test_a_decoder_that_was_changed_is_loaded_again(decoder_folder: Path) -> None:
    encoder = Encoder(decoder_folder)
    config = encoder.config()
    assert encoder._load(config) is Encoder(str(decoder_folder), plan="backward")._load(config)
    loaded = encoder._load(config)
    file = decoder_folder / "config.json"
    file.write_bytes(file.read_bytes())
    assert encoder._load(config) is not loaded


def test_it_is_a_transformer(encoder: Encoder) -> None:
    labels = [k % 2 for k in range(12)]
    last, first = clone(encoder), clone(encoder).set_params(layer=1)
    assert last.transform(TEXTS).shape == (12, 32)
    np.testing.assert_array_equal(last.transform(TEXTS), encoder.encode(TEXTS, layer=-1))
    np.testing.assert_array_equal(first.fit_transform(TEXTS), encoder.encode(TEXTS, layer=1))
    model = make_pipeline(first, LogisticRegression(max_iter=2000)).fit(TEXTS, labels)
    assert model.predict(TEXTS).shape == (12,)
    assert first.encode(TEXTS).shape == (12, 32)


def test_what_cannot_be_encoded_ends_in_a_sentence(encoder: Encoder) -> None:
    with pytest.raises(InputError, match="text 1 is None"):
        encoder.encode(["a", None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="texts are a str, 'a text'"):
        encoder.encode("a text")
    with pytest.raises(UnknownNameError, match="layer 77 is not there"):
        encoder.encode(TEXTS[:2], layer=77)
    with pytest.raises(UnknownNameError, match="layer 'blocks' names 3 layers"):
        encoder.encode(TEXTS[:2], layer="blocks")
    with pytest.raises(ConfigError, match="option 'heads' does nothing in an encoder"):
        clone(encoder).set_params(heads="ridge-probe").encode(TEXTS[:2])
    several = clone(encoder).set_params(poolings=["mean", "last"])
    with pytest.raises(CacheError, match="the poolings mean, last; name one"):
        several.encode(TEXTS[:2])
    assert several.encode(TEXTS[:2], pooling="last", layer=1).shape == (2, 32)
    with pytest.raises(InputError, match="texts are one value"):
        list_rows(np.array("a"))


def test_it_prints_itself(encoder: Encoder) -> None:
    assert len(repr(encoder).splitlines()) == 2
    assert "encode(texts) gives latents (layers, texts, width)" in repr(encoder)
    assert "<code>encode(texts)</code> gives" in encoder._repr_mimebundle_()["text/html"]
