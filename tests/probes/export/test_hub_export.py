"""What `icecore push` sends: a run that loads again, a card, and nothing that nobody else should read."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import yaml

from extract.errors import CacheError, ConfigError, HeadError
from extract.store.cache import LatentCache
from probes.cli.main import main
from probes.export.sentence_transformers import PairScorer, push_run, stage_run
from probes.runs.folder import RunFolder
from probes.runs.predict import load_run
from tests.probes.finished_run import Finished

PAIRS = [("A cat sleeps.", "The cat is asleep."), ("Ice melts.", "A bus came late.")]


class Hub:
    """Stands in for the client of the hub; keeps what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.calls, self.files = error, list[tuple[str, dict[str, Any]]](), dict[str, int]()

    def create_repo(self, repo: str, **how: Any) -> None:
        self.calls.append((repo, how))
        if self.error:
            raise self.error

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any:
        assert commit_message
        base = Path(folder_path)
        self.files = {str(p.relative_to(base)): p.stat().st_size for p in base.rglob("*") if p.is_file()}
        self.card = (base / "README.md").read_text("utf-8")
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    return found


def test_a_staged_run_loads_and_predicts_as_the_run_does(finished: Finished, tmp_path: Path) -> None:
    files = stage_run(finished.folder, tmp_path / "staged")
    staged = tmp_path / "staged"
    assert {"README.md", "config.yaml", "scores.json", "report.html"} <= {str(file) for file in files}
    assert sorted(str(p.relative_to(staged)) for p in staged.rglob("*") if p.is_file()) == sorted(map(str, files))
    decoder = load_run(finished.folder).scorer().decoder
    one, other = (load_run(folder, decoder=decoder).predict(PAIRS) for folder in (finished.folder, staged))
    np.testing.assert_array_equal(one, other)
    [cache] = (staged / "caches").glob("*.h5")
    assert LatentCache(cache).identity == LatentCache(finished.cache).identity


def test_the_card_has_metadata_and_shows_how_to_load(finished: Finished, tmp_path: Path) -> None:
    stage_run(finished.folder, tmp_path / "staged", repo="me/tiny", has_cache=False)
    card = (tmp_path / "staged" / "README.md").read_text("utf-8")
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert found
    metadata = yaml.safe_load(found[1])
    assert metadata["library_name"] == "icecore"
    assert "pairs" in metadata["tags"]
    assert 'icecore.load_run(snapshot_download("me/tiny"))' in card
    assert (tmp_path / "staged" / "summary.md").read_text("utf-8").strip() in card
    assert not (tmp_path / "staged" / "caches").exists()


HOME = "/".join(["", "home", "me", "data.csv"])


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("notes.md", "hf_" + "a1B2" * 8, r"'notes\.md' has a token of the hub in it"),
        ("heads/notes.md", HOME, r"'heads/notes\.md' has the absolute path .*data\.csv' in it, and a digest"),
    ],
)
def test_what_is_private_is_not_sent(
    finished: Finished, tmp_path: Path, hub: Hub, file: str, text: str, message: str
) -> None:
    run = tmp_path / "tiny"
    shutil.copytree(finished.folder, run)
    (run / file).write_text(f"See {text}.")
    with pytest.raises(ConfigError, match=message) as caught:
        push_run(run, "me/tiny", has_cache=False)
    assert "a1B2" not in str(caught.value)
    assert not hub.calls
    assert not list(tmp_path.glob(".push-*"))


def test_absolute_paths_are_shortened_and_scores_sealed_again(finished: Finished, tmp_path: Path) -> None:
    whole = str(finished.base)
    assert whole in (finished.folder / "scores.json").read_text("utf-8"), "the run names no absolute path"
    stage_run(finished.folder, tmp_path / "staged", has_cache=False)
    for path in (tmp_path / "staged").rglob("*"):
        if path.is_file() and path.name != "config.yaml":  # its paths are relative; read again, they are looked up
            assert whole not in path.read_text("utf-8", errors="replace"), path
    assert "pairs.tsv" in (tmp_path / "staged" / "scores.json").read_text("utf-8")
    assert load_run(tmp_path / "staged").best == load_run(finished.folder).best
    assert whole in (finished.folder / "scores.json").read_text("utf-8"), "the run itself was changed"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("icecore run ../../../home/me/runs/a.yaml", "icecore run a.yaml"),
        ("icecore run ../a.yaml --data.path ../../data/b.csv", "icecore run ../a.yaml --data.path ../../data/b.csv"),
        (f"read {HOME}, twice", "read data.csv, twice"),
    ],
)
def test_a_page_names_no_home(finished: Finished, tmp_path: Path, written: str, sent: str) -> None:
    run = tmp_path / "tiny"
    shutil.copytree(finished.folder, run)
    (run / "report.html").write_text(written)
    stage_run(run, tmp_path / "staged", has_cache=False)
    assert (tmp_path / "staged" / "report.html").read_text() == sent


def test_a_push_makes_a_private_repository_and_sends_everything(finished: Finished, hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(finished.base, tmp_path / "whole")
    said: list[str] = []
    where = push_run(tmp_path / "whole" / "runs" / "tiny", "me/tiny", report=said.append)
    assert where == "https://hub/me/tiny/commit/1"
    assert hub.calls == [("me/tiny", {"private": True, "exist_ok": True})]
    assert f"caches/{finished.cache.name}" in hub.files
    assert "scores.json" in hub.files
    assert 'snapshot_download("me/tiny")' in hub.card
    assert re.match(rf"uploading {len(hub.files)} files, .* MB, to me/tiny", said[0])


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, r"log in with: hf auth login \(HTTP 401\)"), (403, "write access"), (404, "no such owner"), (None, "gone")],
)
def test_a_refusal_is_a_sentence(finished: Finished, hub: Hub, tmp_path: Path, status: int, message: str) -> None:
    run = tmp_path / "tiny"
    shutil.copytree(finished.folder, run)
    hub.error = OSError("the hub is gone")
    hub.error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=rf"not uploaded to 'me/tiny': .*{message}"):
        push_run(run, "me/tiny", has_cache=False)
    assert not list(tmp_path.glob(".push-*")), "a draft was left behind"
    with pytest.raises(ConfigError, match="the repository is 'tiny'; allowed: OWNER/NAME"):
        push_run(run, "tiny")


def test_nothing_is_sent_without_a_repository(
    finished: Finished, hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, staged = str(finished.folder), tmp_path / "staged"
    assert main(["push", run]) == 2
    assert main(["push", run, "--repo", "me/tiny", "--to", str(staged)]) == 2
    assert "give one of --repo OWNER/NAME" in capsys.readouterr().err
    assert main(["push", run, "--to", str(staged), "--no-cache"]) == 0
    assert "nothing was uploaded" in capsys.readouterr().out
    assert not hub.calls
    with pytest.raises(ConfigError, match="holds something already"):
        stage_run(run, staged)
    with pytest.raises(HeadError, match="holds no finished run"):
        stage_run(tmp_path, tmp_path / "other")


def test_a_run_whose_cache_is_gone_can_be_sent_without_it(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: RunFolder, __: object) -> LatentCache:
        raise CacheError("it is not there")

    monkeypatch.setattr(RunFolder, "cache", gone)
    with pytest.raises(CacheError, match="not there"):
        stage_run(finished.folder, tmp_path / "staged")
    assert stage_run(finished.folder, tmp_path / "staged", has_cache=False)


def test_a_pair_scorer_predicts_and_ranks_as_a_cross_encoder(finished: Finished) -> None:
    run = load_run(finished.folder)
    scorer = PairScorer(finished.folder, head="siamese-cosine", decoder=run.scorer().decoder)
    expected = np.asarray(run.predict(PAIRS, head="siamese-cosine"), np.float32)
    np.testing.assert_allclose(scorer.predict(PAIRS, show_progress_bar=False), expected, rtol=1e-6)
    np.testing.assert_allclose(scorer.predict(PAIRS, batch_size=1), expected, rtol=1e-6)
    assert scorer.predict(PAIRS[0]) == pytest.approx(float(expected[0]))
    ranked = scorer.rank("A cat sleeps.", ["A bus came late.", "The cat is asleep.", "Ice."], return_documents=True)
    scores = [each["score"] for each in ranked]
    assert scores == sorted(scores, reverse=True)
    assert {each["corpus_id"] for each in ranked} == {0, 1, 2}
    assert all(each["text"] == ["A bus came late.", "The cat is asleep.", "Ice."][each["corpus_id"]] for each in ranked)
