"""Shards on the command line: written, inspected, verified, and fitted on."""

import io
import json
import sys
from pathlib import Path

import pytest

from extract.store.cache import ShardedCache, whole_caches
from probes.cli.main import main
from tests.extract.tiny_decoders import make_texts, write_shards
from tests.probes.finished_run import Finished, write_config


def test_texts_of_a_file_become_shards(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Ice melts.\n\nSnow falls.\nRain freezes.\n"
    (tmp_path / "weather.txt").write_text(lines, encoding="utf-8")
    folder = tmp_path / "caches" / "weather"
    options = ["--decoder.name", str(decoder_folder), "--shards", str(folder), "--window", "2", "--quiet"]
    assert main(["extract", "--texts", str(tmp_path / "weather.txt"), *options]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder)]
    cache = ShardedCache(folder)
    assert cache.rows_of(["Rain freezes."]).tolist() == [2]
    assert cache.n_shards == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["extract", "--texts", "-", *options]) == 0, "the same texts were not found"
    [found] = whole_caches(tmp_path / "caches")
    assert found.identity == cache.identity


def test_swapped_shards_end_in_a_sentence(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weather.txt").write_text("Ice melts.\nSnow falls.\nRain freezes.\nHail hits.\n", encoding="utf-8")
    folder, texts = tmp_path / "weather", str(tmp_path / "weather.txt")
    command = ["extract", "--texts", texts, "--decoder.name", str(decoder_folder), "--shards", str(folder)]
    assert main([*command, "--window", "2", "--quiet"]) == 0
    first, second = folder / "shard-000000.h5", folder / "shard-000001.h5"
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    capsys.readouterr()
    assert main([*command, "--window", "2", "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("icecore: shard 'shard-000000.h5' of cache ")
    assert (second.read_bytes(), first.read_bytes()) == contents


def test_inspect_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path, make_texts(23), window=8)
    assert main(["inspect", str(tmp_path / "index.json"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["n_done"], value["certificate"]["n_shards"]) == (23, 3)
    (tmp_path / "shard-000001.h5").write_bytes(b"core")
    assert main(["inspect", str(tmp_path), "--verify"]) == 1
    assert "shard 'shard-000001.h5' of cache" in capsys.readouterr().err


def test_processes_together_read_no_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["extract", "--shards", "some", "--texts", "-"]) == 2
    assert "2 processes were launched together, and only one can read the standard input" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "value"), [("device_map", "auto"), ("tp_plan", "auto")])
def test_processes_together_have_a_decoder_each(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "some.txt").write_text("Ice melts.", encoding="utf-8")
    options = ["--shards", str(tmp_path / "some"), "--texts", str(tmp_path / "some.txt"), f"--decoder.{key}", value]
    assert main(["extract", *options]) == 1
    assert f"2 processes were started, and decoder.{key} s" in capsys.readouterr().err
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--ray", "2"], "--ray lets workers fill a folder of shards together; name the folder with --shards"),
        (["--ray", "0", "--shards", "some"], "--ray is 0; allowed: a number of workers, at least 1"),
        (["--ray", "two", "--shards", "some"], "--ray is 'two'; allowed: a whole number"),
        (["--ray", "2", "--shards", "some", "--texts", "-"], "none of them can read the standard input"),
        (["--ray", "2", "--shards", "some", "--dry-run"], "--dry-run and --shards exclude each other"),
    ],
)
def test_what_does_not_go_with_ray(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", *more]) == 2
    assert message in capsys.readouterr().err


def test_ray_is_started_from_one_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert main(["extract", "--shards", "some", "--ray", "2"]) == 2
    assert "2 processes were launched together, and --ray starts workers itself" in capsys.readouterr().err


def test_ray_has_decoders_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.txt").write_text("Ice melts.", encoding="utf-8")
    options = ["extract", "--shards", str(tmp_path / "some"), "--texts", str(tmp_path / "some.txt"), "--ray", "2"]
    assert main([*options, "--decoder.device_map", "auto"]) == 1
    assert "decoder.device_map spreads one decoder over all devices" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(options) == 1
    assert "install it with: pip install 'ray'" in capsys.readouterr().err
    assert not (tmp_path / "some").exists()


@pytest.mark.long
def test_heads_are_fitted_on_shards(
    finished: Finished, decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scores are those of the run on one file, up to what other batches change."""
    config = str(write_config(tmp_path, decoder_folder))
    assert main(["extract", config, "--shards", str(tmp_path / "caches" / "some"), "--window", "64"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "caches" / "some"), "--verify"]) == 0
    out = capsys.readouterr().out
    assert "complete" in out
    assert "SHA-256 of each of" in out
    assert main(["fit", config, "--cache", str(tmp_path / "caches" / "some")]) == 0
    scores = json.loads((tmp_path / "runs" / "tiny" / "scores.json").read_text(encoding="utf-8"))
    for name in ("layer-cosine", "cosine-mlp"):
        mine, theirs = (each["heads"][name]["summary"]["test"]["pearson"]["mean"] for each in (scores, finished.scores))
        assert mine == pytest.approx(theirs, abs=1e-3)
    assert main(["export", "parquet", str(tmp_path / "runs" / "tiny"), str(tmp_path / "x.parquet")]) == 0
