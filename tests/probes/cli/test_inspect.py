"""`icecore inspect`: whole, half done, foreign."""

import json
import shutil
from pathlib import Path

import h5py
import pytest

from extract.errors import CacheError
from extract.inputs.joined_text import join_words
from extract.inputs.template import InputTemplate
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from probes.cli.main import main
from tests.extract.tiny_decoders import make_decoder, make_texts
from tests.probes.finished_run import Finished


def test_inspect_a_whole_cache(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    cache = LatentCache(finished.cache)
    assert main(["inspect", str(finished.cache)]) == 0
    out = capsys.readouterr().out
    assert f"{len(cache)} of {len(cache)} rows, complete" in out
    assert "tiny-llama (llama, 3 blocks, width 32)" in out
    assert "mean, last x 5 layers (embedding ... final_norm), float32" in out
    assert "influence as planned" in out
    assert f"tokens       {int(cache.n_tokens.sum()):,} in all" in out
    assert f"identity     {cache.manifest.id}" in out
    assert "decoder.weight_digest" in out


def test_inspect_a_cache_of_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [join_words(text.split(), [True] * len(text.split())) for text in make_texts(5)]
    template = InputTemplate(max_tokens=9, on_long="windows")
    cache = extract_latents(make_decoder(), words, spec=ExtractionSpec(template=template), folder=tmp_path)
    assert main(["inspect", str(cache.path)]) == 0
    out = capsys.readouterr().out
    n_windows = cache.word_report()["n_windows"]
    assert n_windows > 0
    assert "last x 5 layers" in out
    assert f"words        {cache.n_words} in all: 0 begin inside a token of the word before, 0 truncated, 0" in out
    assert f"without a token; {n_windows} texts read in windows" in out


def test_inspect_as_json(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(finished.cache), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    cache = LatentCache(finished.cache)
    assert value["identity"] == cache.identity.to_plain()
    assert value["n_done"] == len(cache)
    assert value["certificate"] == cache.certificate


def test_inspect_a_half_done_cache(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = tmp_path / "half.h5"
    shutil.copy(finished.cache, half)
    with h5py.File(half, "r+") as file:
        file["rows/is_done"][5:] = 0
        file["certificate"][:] = 0
    assert main(["inspect", str(half)]) == 0
    out = capsys.readouterr().out
    assert "5 of" in out
    assert "half done: run the same extraction again to go on" in out
    assert "none yet (written when the extraction ends)" in out
    assert main(["fit", str(finished.config), "--cache", str(half)]) == 1
    assert "is half done: 5 of" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"plain text", b"\x89HDF\r\n\x1a\n" + b"\0" * 64])
def test_inspect_a_foreign_file(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.h5").write_bytes(content)
    assert main(["inspect", str(tmp_path / "x.h5")]) == 1
    err = capsys.readouterr().err
    assert str(tmp_path / "x.h5") in err
    assert "Traceback" not in err


def test_inspect_verifies(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(finished.cache), "--verify"]) == 0
    assert "verified     every finished row is as it was written" in capsys.readouterr().out
    path = tmp_path / "a.h5"
    shutil.copy(finished.cache, path)
    with h5py.File(path, "r+") as file:
        file["latents/mean/block_01"][7, 3] += 1e-6
    assert main(["inspect", str(path)]) == 0
    assert main(["inspect", str(path), "--verify"]) == 1
    assert "finished rows do not match their checksums; delete the file" in capsys.readouterr().err
    assert main(["fit", str(finished.config), "--cache", str(path)]) == 1
    assert "is damaged: " in capsys.readouterr().err


def test_a_cache_of_an_earlier_version_opens_and_says_that_it_has_no_checksums(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.h5"
    shutil.copy(finished.cache, path)
    with h5py.File(path, "r+") as file:
        del file["checksums"], file.attrs["manifest_digest"]
    assert main(["inspect", str(path)]) == 0
    assert "checksums    none: written by an earlier version" in capsys.readouterr().out
    cache = LatentCache(path)
    cache.verify()
    assert main(["inspect", str(path), "--verify"]) == 1
    assert "cannot be verified: it was written by an earlier version" in capsys.readouterr().err


@pytest.mark.parametrize("gone", ["checksums", "manifest_digest"])
def test_half_of_the_checksums_is_damage(finished: Finished, tmp_path: Path, gone: str) -> None:
    path = tmp_path / "a.h5"
    shutil.copy(finished.cache, path)
    with h5py.File(path, "r+") as file:
        del (file if gone in file else file.attrs)[gone]
    with pytest.raises(CacheError, match=r"the manifest of cache .* is damaged"):
        LatentCache(path)


@pytest.mark.parametrize("name", ["identity", "provenance"])
def test_a_changed_manifest_is_refused(finished: Finished, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.h5"
    shutil.copy(finished.cache, path)
    with h5py.File(path, "r+") as file:
        value = json.loads(file.attrs["manifest"])
        value[name]["x"] = 1
        file.attrs["manifest"] = json.dumps(value, indent=1, sort_keys=True)
    with pytest.raises(CacheError, match="it does not match its digest"):
        LatentCache(path)
