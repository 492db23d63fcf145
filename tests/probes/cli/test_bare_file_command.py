"""`icecore run reviews.csv` and `icecore init reviews.csv`: a file of data stands for a configuration."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from probes.cli.main import main
from probes.runs.config_file import dump_config, read_config, read_data
from tests.probes.data.test_bare_file import COMMAS, IDS, TEXTS, delimited, some


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("reviews.csv")
    texts = some(TEXTS, "", every=20)
    path.write_text(delimited(["id", "Review Text", "Stars"], IDS, texts, COMMAS, by=";"), encoding="utf-8")
    return path


@pytest.mark.usefixtures("reviews")
def test_a_file_is_run_and_its_configuration_written_beside_the_run(
    decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "reviews.csv", "--decoder.name", str(decoder_folder), "--bootstrap", "100"]) == 0
    streams = capsys.readouterr()
    assert streams.err.startswith("reviews.csv: 80 rows, text = 'Review Text', number = 'Stars' (0.5 to 2.5), not read")
    assert "4 of 80 rows dropped (empty text: 4; first at line 2)" in streams.err
    assert "ridge-probe" in streams.out
    scores = json.loads(Path("runs/reviews/scores.json").read_text(encoding="utf-8"))
    assert sum(scores["task"]["n_rows"].values()) == 76
    written = Path("runs/reviews.yaml").read_text(encoding="utf-8")
    assert written.startswith("# icecore run runs/reviews.yaml\n# reviews.csv: 80 rows")
    data = read_data("reviews.csv", {})
    again = read_config([], file="runs/reviews.yaml")
    assert data is not None
    before = dict(data.options)
    dump_config(data, Path("elsewhere/reviews.yaml"))
    assert data.options == before
    assert "files: ../reviews.csv" in written  # relative to itself
    assert (again.task, again.heads) == (read_config([], data=data).task, {"ridge-probe": {}})


@pytest.mark.usefixtures("reviews")
def test_the_written_configuration_is_the_run_and_one_that_was_changed_stays(
    decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("decoder").symlink_to(decoder_folder)
    typed = ["--name", "mine", "--decoder.name", "decoder", "--extraction.layers", "1,-1", "--bootstrap", "100"]
    typed += ["--task.options.seed", "3"]
    assert main(["run", "reviews.csv", *typed, "--caches", "elsewhere"]) == 0
    path = Path("runs/mine.yaml")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (values["name"], values["extraction"], values["bootstrap"]) == ("mine", {"layers": ["1", "-1"]}, 100)
    assert values["decoder"]["name"] == "../decoder"
    assert values["task"]["options"]["seed"] == 3
    assert not {"caches", "runs"} & values.keys()
    assert main(["run", str(path), "--caches", "elsewhere"]) == 0
    assert "runs/mine is finished, and nothing that decides it has changed" in capsys.readouterr().err
    with path.open("a", encoding="utf-8") as file:
        file.write("# my remark\n")
    again = ["run", "reviews.csv", *typed, "--caches", "elsewhere"]
    assert main(again) == 0
    assert "is left as it is" not in capsys.readouterr().err
    with path.open("a", encoding="utf-8") as file:
        file.write("seeds: [3]\n")
    assert main(again) == 0
    assert "runs/mine.yaml differs from this run, and is left as it is" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8").endswith("# my remark\nseeds: [3]\n")


@pytest.mark.usefixtures("reviews")
def test_keys_on_the_command_line_win(capsys: pytest.CaptureFixture[str]) -> None:
    data = read_data("reviews.csv", {"label": "Stars"})
    config = read_config([("name", "mine"), ("task.options.seed", "3")], data=data)
    assert (config.name, config.task.name, config.task.options["seed"]) == ("mine", "class-files", 3)
    assert config.sources["task.options"] == "reviews.csv"
    assert main(["run", "reviews.csv", "--label", "stars", "--dry-run"]) == 1
    assert "unknown column 'stars'" in capsys.readouterr().err


@pytest.mark.usefixtures("reviews")
def test_init_writes_the_configuration_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "reviews.csv"]) == 0
    assert capsys.readouterr().out.endswith("written: reviews.yaml; run it: icecore run reviews.yaml\n")
    assert sorted(path.name for path in Path().iterdir()) == ["reviews.csv", "reviews.yaml"]
    values = yaml.safe_load(Path("reviews.yaml").read_text(encoding="utf-8"))
    assert values["task"]["options"]["decimal"] == ","
    assert main(["init", "reviews.csv"]) == 0  # nothing would change
    assert main(["init", "reviews.csv", "--label", "Stars"]) == 1
    assert "'reviews.yaml' is there already" in capsys.readouterr().err
    assert main(["init", "reviews.csv", "--label", "Stars", "--out", "classes.yaml"]) == 0


@pytest.mark.usefixtures("reviews")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "configs.yaml", "--text", "a"], "--text does nothing without a file of data"),
        (["run", "reviews.csv", "--labl", "Stars"], "unknown key 'labl'. Did you mean 'label'?"),
        (["run", "reviews.csv", "test.csv"], "Several files go into a config, as task: {name: pair-files, options: {"),
        (["run", "--score", "a"], "--score does nothing by itself; give it with CONFIG"),
        (["run", "reviews.csv", "--score", "a", "--label", "b"], "--label and --score exclude each other"),
        (["run", "absent.csv"], "there is no config file 'absent.csv'"),
        (["init", "notes.md"], "'notes.md' is no file of data"),
    ],
)
def test_what_cannot_be_is_refused(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("reviews")
def test_a_sweep_of_a_file_asks_for_columns_as_a_run_does(
    decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ["--over", "poolings=mean,last", "--decoder.name", str(decoder_folder), "--dry-run"]
    assert main(["sweep", "reviews.csv", "--label", "Stars", *over]) == 0
    shown = capsys.readouterr()
    assert "label = 'Stars' (" in shown.err
    assert shown.out == "poolings=mean\npoolings=last\n"


def test_a_spreadsheet_is_no_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.xlsx").write_bytes(b"PK\x03\x04\xf6")
    assert main(["run", "book.xlsx"]) == 1
    assert "'book.xlsx' is a spreadsheet, which is not read; save it as CSV in UTF-8" in capsys.readouterr().err


@pytest.mark.usefixtures("reviews")
def test_a_wrong_column_is_noticed_before_torch_is_imported() -> None:
    code = (
        "import sys\nfrom probes.cli.main import main\nassert main(['run', 'reviews.csv', '--text', 'body']) == 1\n"
        "assert 'torch' not in sys.modules and 'datasets' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
