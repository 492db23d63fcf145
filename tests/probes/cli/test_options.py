"""No option is ever ignored: beside every other option of its command it works, or is refused in one sentence."""

from dataclasses import MISSING
from itertools import permutations
from pathlib import Path

import pytest

from extract.errors import UsageError
from extract.store.cache import LatentCache
from probes.cli.arguments import Argument, Command, read_command
from probes.cli.commands import COMMANDS
from probes.cli.main import main
from tests.probes.finished_run import Finished


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["score", "RUN", "a", "b", "--file", "pairs.tsv"], "--file and TEXTS exclude each other; give one of them"),
        (["score", "RUN", "a", "b", "--pairs", "pairs.tsv"], "--file and TEXTS exclude each other"),
        (["score", "RUN", "a", "b", "--head", "x", "--head", "y"], "--head is typed twice; give it once"),
        (["predict", "RUN", "t.csv", "--serve"], "FILE and --serve exclude each other"),
        (["predict", "RUN", "--serve", "--out", "x.csv"], "--out and --serve exclude each other"),
        (["predict", "RUN", "--serve", "--format", "csv"], "--format and --serve exclude each other"),
        (["predict", "RUN", "t.csv", "--out", "x.parquet"], "--out is 'x.parquet'; allowed: a name that ends in .csv"),
        (["extract", "--out", "x.npy"], "--out does nothing by itself; give it with --texts"),
        (["extract", "--column", "body"], "--column does nothing by itself; give it with --texts"),
        (["extract", "--window", "8"], "--window does nothing by itself; give it with --shards"),
        (["extract", "--texts", "t.txt", "--dry-run", "--out", "x.npy"], "--dry-run and --out exclude each other"),
        (["extract", "--shards", "some", "--dry-run"], "--dry-run and --shards exclude each other"),
        (["extract", "--shards", "some", "--texts", "t.txt", "--out", "x.npy"], "--out and --shards exclude"),
        (["extract", "--texts", "-", "--column", "body"], "--column names a column of a table"),
        (["extract", "--texts", "t.txt", "--column", "body"], "--column names a column of a table"),
        (["extract", "--texts", "t.txt", "--column", "body", "--shards", "x"], "--column names a column of a table"),
        (["embed", "t.txt", "--column", "body"], "--column names a column of a table"),
        (["run", "--quiet", "--verbose"], "--verbose and --quiet exclude each other"),
        (["sweep", "--plans", "causal", "--kinds", "backward"], "--plans and --kinds exclude each other"),
        (["sweep", "--plans", "causal", "--k", "1"], "--plans and --k exclude each other"),
        (["sweep", "--kinds", "backward", "--k", "1", "--k0", "1"], "--k0 and --kinds exclude each other"),
        (["sweep", "--kinds", "backward", "--k", "1", "--windows", "1", "--read", "2"], "--windows and --k exclude"),
        (["sweep", "--kinds", "backward", "--k", "1", "--read", "2"], "--read does nothing by itself"),
        (["sweep", "--plans", "causal", "--budget", "0.5"], "--budget does nothing by itself; give it with --search"),
        (["sweep", "--plans", "causal", "--search", "best", "--dry-run"], "unknown search 'best'"),
        (["sweep", "--plans", "causal", "--test", "best", "--dry-run"], "unknown test 'best'"),
        (["compare", "a", "b", "--across", "--split", "test"], "--split and --across exclude each other"),
        (["compare", "a", "b", "--across", "--resamples", "9"], "--resamples and --across exclude each other"),
        (["compare", "a", "b", "--across", "--by-layer"], "--by-layer and --across exclude each other"),
        (["compare", "a", "b", "--figures", "svg"], "--figures does nothing by itself; give it with --out"),
        (["geometry", "a.h5", "--figures", "svg"], "--figures does nothing by itself; give it with --out"),
        (["geometry", "a.h5", "--measures", "gold"], "the measure 'gold' needs the pairs of a run, and 'a.h5' is no"),
        (["geometry", "RUN", "--measures", "gold", "--rows", "9"], "--rows does nothing for the measure 'gold'"),
        (["weights", "a", "b", "--figures", "svg"], "--figures does nothing by itself; give it with --out"),
        (["layers", "RUN", "--views", "alone", "--orders", "8"], "--orders counts for the views shapley, none of"),
        (["layers", "RUN", "--views", "sets", "--orders", "8"], "--orders counts for the views shapley, none of"),
        (["export", "parquet", "RUN", "x.parquet", "--normalise"], "--normalise does nothing for the format 'parquet'"),
        (["export", "parquet", "RUN", "x.parquet", "--head", "h"], "--head does nothing for the format 'parquet'"),
        (["export", "parquet", "RUN", "x.parquet", "--decoder", "d"], "--decoder does nothing for the format"),
        (["export", "parquet", "RUN", "x.parquet", "--column", "c"], "--column does nothing by itself"),
        (["export", "parquet", "RUN", "x.parquet", "--texts", "task", "--column", "c"], "--column names a column of"),
        (["export", "sentence-transformers", "RUN", "x", "--texts", "task"], "--texts does nothing for the format"),
        (["export", "sentence-transformers", "c.yaml", "x", "--head", "h"], "--head is for a run folder"),
        (["push", "RUN", "--to", "staged", "--public"], "--public and --to exclude each other"),
    ],
)
def test_what_would_be_ignored_is_refused(
    finished: Finished,
    argv: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("Ice melts.\n", encoding="utf-8")
    (tmp_path / "t.csv").write_text("text1,text2\na,b\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    assert main([str(finished.folder) if word == "RUN" else word for word in argv]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"icecore: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(tmp_path.iterdir()) == before


def typed(argument: Argument) -> list[str]:
    """An option as it is typed, with a value that it takes."""
    if argument.hint is bool:
        return [argument.name]
    values: dict[object, str] = {int: "8", int | None: "8", float: "0.5"}
    special = {"--plans": "causal", "--span-tokens": "8-32", "--kinds": "backward", "--figures": "png"}
    return [argument.name, special.get(argument.name) or next(iter(argument.values), values.get(argument.hint, "1"))]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_options_in_pairs_are_read_or_refused(command: Command) -> None:
    """Rows of the table name options and places of their own command, and what they say holds for every pair."""
    names = {argument.name for argument in command.arguments}
    for argument in command.arguments:
        assert {*argument.needs, *argument.excludes} <= names - {argument.name}
    places = {"PLAN": "causal", "SHELL": "bash", "FORMAT": "parquet", "TABLE": "heads"}
    words = [places.get(place.name, "x") for place in command.positional if place.default is MISSING]
    words += ["--corpus", "[{files: texts.txt}]"] * (command.name == "adapt")
    for one, other in permutations(command.options, 2):
        argv = [*words, *typed(one), *typed(other)]
        excluded = other.name in one.excludes or one.name in other.excludes
        needs = [set(argument.needs) for argument in (one, other) if argument.needs]
        lacking = any(not {one.name, other.name} & names for names in needs)
        if excluded or lacking:
            with pytest.raises(UsageError, match=r"exclude each other|does nothing by itself"):
                read_command(command, argv)
        else:
            assert {one.name, other.name} <= read_command(command, argv).typed


def test_a_dry_run_of_texts_extracts_nothing(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.txt").write_text("Ice melts.\nSnow falls.\nIce melts.\n", encoding="utf-8")
    options = ["--decoder.name", str(decoder_folder), "--caches", str(tmp_path / "c")]
    assert main(["extract", "--texts", str(tmp_path / "t.txt"), "--dry-run", *options]) == 0
    assert "\nrows      2 unique texts" in capsys.readouterr().out
    assert not (tmp_path / "c").exists()
    assert main(["extract", "--texts", str(tmp_path / "t.txt"), *options]) == 0
    assert len(LatentCache(capsys.readouterr().out.strip())) == 2
