"""`icecore geometry` and `icecore compare --across` on a finished run: what is shown, written and refused."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from extract.errors import CacheError, HeadError
from probes.cli.main import main
from probes.runs.folder import RunFolder
from tests.probes.finished_run import Finished, edit_config


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the finished run that may be changed."""
    return Path(shutil.copytree(finished.folder, tmp_path / "copy"))


def test_a_run_shows_the_geometry_of_its_cache(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["geometry", str(finished.folder), "--pooling", "mean", "--out", str(out), "--figures", "svg"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, [line for line in shown.splitlines() if "written" not in line])) <= 80
    assert "final_norm" in shown
    assert {path.name for path in out.iterdir()} == {"geometry.csv", "similarity.csv", "geometry.svg", "similarity.svg"}
    frame = pd.read_csv(out / "geometry.csv")
    gold = frame[frame["measure"] == "gold-pearson"]
    assert set(gold["n_rows"]) == {32}
    rows = frame[frame["measure"] == "norm"]["n_rows"].unique()
    assert rows < len(RunFolder(finished.folder).cache())  # the first texts of pairs alone
    assert len(gold) == len(frame[frame["measure"] == "norm"])


def test_caches_are_compared_by_what_was_asked_for(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(finished.cache, tmp_path / "other.h5"))
    words = ["geometry", str(finished.cache), str(other), "--measures", "similarity", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "similarity.csv",
        "similarity_1.png",
        "similarity_2.png",
        "similarity_3.png",
    }
    frame = pd.read_csv(tmp_path / "out" / "similarity.csv")
    across = frame[(frame["cache"] != frame["other_cache"]) & (frame["layer"] == frame["other_layer"])]
    assert across["value"].dropna().tolist() == pytest.approx([1.0] * across["value"].notna().sum(), abs=1e-5)
    capsys.readouterr()
    assert main(["geometry", str(other), "--measures", "norm,gold"]) == 2
    assert "is no run folder" in capsys.readouterr().err  # a cache alone knows no gold
    assert main(["geometry", str(other), "--measures", "rank"]) == 1
    assert "unknown measure 'rank'" in capsys.readouterr().err


def test_the_cache_of_a_run_is_found_by_what_it_holds(finished: Finished, copy: Path, tmp_path: Path) -> None:
    assert RunFolder(finished.folder).cache().path.samefile(finished.cache)
    moved = tmp_path / "caches"
    moved.mkdir()
    shutil.copy(finished.cache, moved / "renamed.h5")
    edit_config(copy, lambda config: config.update(caches=str(moved)))
    assert RunFolder(copy).cache().path.name == "renamed.h5"
    edit_config(copy, lambda config: config.update(caches=str(tmp_path / "nowhere")))
    with pytest.raises(CacheError, match=r"the cache '.*' of the run '.*copy' is not in '.*nowhere'; say where it is"):
        RunFolder(copy).cache()
    shutil.rmtree(copy / "manifests")
    with pytest.raises(HeadError, match=r"'.*copy' does not say which cache it read"):
        RunFolder(copy).cache()


def test_a_task_that_is_gone_is_said_unless_gold_was_asked_for(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(copy, lambda config: config["task"]["options"].update(files=str(tmp_path / "gone.tsv")))
    assert main(["geometry", str(copy), "--measures", "norm,gold"]) == 1
    assert "gone.tsv" in capsys.readouterr().err
    assert main(["geometry", str(copy), "--pooling", "mean", "--rows", "30"]) == 0
    assert "cannot be loaded, so no gold" in capsys.readouterr().out


def test_runs_of_any_tasks_are_laid_side_by_side(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["compare", str(finished.folder), "--across", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tiny-pairs" in shown
    assert "no ranks: 1 plans on 1 tasks cannot be ranked" in shown
    drawn = {"across.csv", "centres.csv", "across.png", "centres.png", "report.html"}
    assert {path.name for path in out.iterdir()} == drawn
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Where do layers gain their scores?" in page
    assert page.count("<svg") == 2


def test_two_runs_are_compared_at_every_layer(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = str(finished.folder), tmp_path / "out"
    same = Path(shutil.copytree(folder, tmp_path / "same"))
    how = ["--by-layer", "--head", "layer-cosine", "--resamples", "50"]
    assert main(["compare", folder, str(same), *how, "--out", str(out)]) == 0
    name = finished.folder.name
    shown = " ".join(capsys.readouterr().out.split())
    assert f"same is better than {name} at 0 of 5 layers and worse at 0" in shown
    assert shown.index("same has the same settings.") < shown.index("written: ")
    assert (pd.read_csv(out / "by-layer.csv")["difference"].dropna() == 0).all()
    assert f"At which layers do same and {name} differ?" in (out / "report.html").read_text(encoding="utf-8")
    assert (out / "by-layer.png").exists()
    assert main(["compare", folder, *how]) == 1
    assert "--by-layer compares two runs, and 1 were given" in capsys.readouterr().err
