import shutil
from pathlib import Path

import pandas as pd
import pytest

from extract.files import read_file
from probes.cli.main import main
from probes.layers.findings import load_findings
from tests.probes.finished_run import Finished


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.folder, tmp_path / "renamed"))


def test_layers_prints_an_answer_and_a_table_and_writes_both(
    finished: Finished, copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "layers.csv"
    arguments = ["--head", "cosine-mlp", "--views", "shapley,sets", "--orders", "4", "--resamples", "100"]
    folders = ["--caches", str(finished.base / "caches"), "--out", str(out), "--figures", "pdf,svg,png"]
    assert main(["layers", str(copied), *arguments, *folders]) == 0
    screen = capsys.readouterr().out
    assert "renamed: cosine-mlp, pearson x 100 on test" in screen
    assert "block_02" in screen
    assert "Shapley" in screen
    [kept] = load_findings(copied)
    assert kept.answer in " ".join(screen.split())
    assert "Note: Only 32 rows were scored" in screen
    assert max(map(len, screen.partition(kept.answer[:20])[0].splitlines())) <= 80
    frame = pd.read_csv(out)
    assert {"alone", "shapley", "without", "greedy"} <= set(frame["view"])
    assert (copied / "layers.json").exists()
    for suffix in ("pdf", "svg", "png"):
        assert f"figures/layer_curve_cosine_mlp.{suffix}" in "".join(screen.split())
        assert (copied / f"figures/layer_curve_cosine_mlp.{suffix}").stat().st_size > 500
    assert "Its caption: Every layer alone. cosine-mlp, pooling mean" in " ".join(screen.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--views", "shap"], "unknown view of layers 'shap'"),
        (["--controls", "typo"], "unknown control 'typo'"),
        (["--orders", "3"], "orders is 3"),
        (["--split", "train"], "split is 'train'; allowed: validation, test"),
        (["--head", "ridge-probe"], "unknown head of this run"),
        (["--figures", "pdf,tiff"], "unknown format of figures 'tiff'. Allowed: png, svg, pdf."),
    ],
)
def test_bad_input_is_one_sentence(
    finished: Finished, copied: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layers", str(copied), "--caches", str(finished.base / "caches"), *arguments]) == 1
    found = capsys.readouterr().err
    assert said in found
    assert "Traceback" not in found
    assert not (copied / "layers.json").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["layers", "RUN", "--views", "baselines", "--resamples", "100", "--caches", "CACHES"],
        ["compare", "RUN", "OTHER", "--across"],
        ["compare", "RUN", "OTHER", "--by-layer", "--resamples", "100", "--caches", "CACHES"],
        ["compare", "RUN", "OTHER", "--resamples", "100"],
        ["report", "RUN", "OTHER", "--out", "PAGE"],
        ["score", "RUN", "A cat sleeps.", "The cat is asleep."],
    ],
)
def test_a_command_reads_the_scores_of_a_run_once(
    finished: Finished, copied: Path, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(copied, copied.with_name("other"))
    places = {"RUN": copied, "OTHER": other, "CACHES": finished.base / "caches", "PAGE": tmp_path / "both.html"}
    reads = []

    def read(path: Path) -> bytes:
        reads.append(path.relative_to(copied.parent).as_posix())
        return read_file(path)

    monkeypatch.setattr("probes.runs.folder.read_file", read)
    assert main([str(places.get(word, word)) for word in command]) == 0
    for name in ("renamed/scores.json", *(["other/scores.json"] if "OTHER" in command else [])):
        assert reads.count(name) == 1, f"{name} is read {reads.count(name)} times"
