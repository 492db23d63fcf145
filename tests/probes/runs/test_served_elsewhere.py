"""A head served from another folder, with its decoder somewhere else, over a file of a thousand pairs."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from probes.cli.main import main
from probes.runs.predict import load_run
from tests.probes.finished_run import write_config

N_PAIRS = 1000


@pytest.mark.long
def test_a_thousand_pairs_without_the_original_places(tmp_path: Path, decoder_folder: Path) -> None:
    base = tmp_path / "theirs"
    base.mkdir()
    decoder = Path(shutil.copytree(decoder_folder, base / "decoder"))
    config = write_config(base, decoder)
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    values["heads"] = {"cosine-mlp": values["heads"]["cosine-mlp"]}
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert main(["run", str(config)]) == 0
    pairs = [(f"The tram was {k} minutes late.", f"The bus came {k % 7} minutes early.") for k in range(N_PAIRS)]
    expected = load_run(base / "runs" / "tiny").predict(pairs[:5])

    ours = tmp_path / "ours"
    (base / "runs" / "tiny").rename(ours)
    decoder.rename(tmp_path / "moved-decoder")
    shutil.rmtree(base)
    with (tmp_path / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("left", "right"), *pairs])
    where = [str(ours), "--decoder", str(tmp_path / "moved-decoder")]
    out = tmp_path / "scores.csv"
    assert main(["predict", *where, str(tmp_path / "pairs.csv"), "--columns", "left,right", "--out", str(out)]) == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == N_PAIRS
    assert [float(row["score"]) for row in rows[:5]] == pytest.approx(expected, abs=1e-3)

    lines = "".join(json.dumps({"left": a, "right": b}) + "\n" for a, b in pairs[:20])
    command = [sys.executable, "-m", "probes.cli.main", "predict", *where, "--serve", "--columns", "left,right"]
    served = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
    answers = [json.loads(line)["score"] for line in served.stdout.splitlines()]
    assert answers == pytest.approx([float(row["score"]) for row in rows[:20]], abs=1e-3)
