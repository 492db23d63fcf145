"""A run with a pooling, a mask and a head of the user: found again while their code is the same, and read elsewhere."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extract import registry as own
from extract.errors import CodeError
from extract.masks.mask_plan import KINDS
from extract.poolings.pooling_table import POOLINGS, register_pooling
from extract.run.extraction_spec import ExtractionSpec
from probes.cli.main import main
from probes.heads.head_table import HEADS
from probes.runs.predict import load_run, read_run_folder
from probes.runs.run import _warn_of_notebook_parts
from probes.runs.run_config import RunConfig
from tests.probes.finished_run import write_config

SOURCE = """
    import torch
    from icecore import pair_head, register_head, register_mask
    from probes.fitting.fit import EpochOptions
    from probes.networks.pair_networks import CosineLinear

    SHARE = 0.5

    def first_part(hidden, index):
        "The mean of the first tokens of a text."
        ranks = (index.weights.cumsum(1) / index.counts) * index.weights
        kept = index.weights * (ranks <= SHARE + 1 / index.counts)
        states = hidden.float().masked_fill(kept.unsqueeze(-1) == 0, 0.0)
        return states.sum(1) / kept.sum(1, keepdim=True)

    @register_mask("near-ones", default=3)
    def allow_near(i, j, n, spans):
        return (i - j).abs() < n

    class Tempered(CosineLinear):
        "The linear head, tempered."

        def combine(self, similarities):
            return super().combine(similarities) * 1.0

    tempered = pair_head("tempered", Tempered, EpochOptions(batch_size=16, max_epochs=3), "my head")
    register_head(tempered)
"""
PAIR = ("Ice is cold.", "Snow is white.")


def test_parts_of_a_notebook_are_warned_of() -> None:
    """No other process can import them, so nothing there could load the run."""

    def mine(hidden: Any, index: Any) -> Any:
        return hidden[:, 0] + index.counts

    register_pooling("mine-here", mine)
    config = RunConfig(extraction=ExtractionSpec(poolings=("mean", "mine-here")))
    _warn_of_notebook_parts(config)  # a module of its own: nothing to say
    mine.__module__ = "__main__"
    register_pooling("mine-here", mine)
    with pytest.warns(UserWarning, match="pooling mine-here is defined in a notebook or script, so another process"):
        _warn_of_notebook_parts(config)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Take off what a test adds."""
    tables: list[dict[Any, Any]] = [own.ADDED, POOLINGS, KINDS, HEADS]
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)
    sys.modules.pop("mine_parts", None)


@pytest.fixture
def place(tmp_path: Path, decoder_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of the user and a configuration that names what is in it."""
    modules = tmp_path / "modules"
    modules.mkdir()
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (modules / "mine_parts.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    path = write_config(tmp_path, decoder_folder)
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["extraction"] = {"poolings": ["mine_parts:first_part"], "plan": "mine_parts:allow_near:1+near2-ones:1"}
    config["heads"] = {"layer-cosine": {}, "tempered": {}}
    config["seeds"] = [0]
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return tmp_path


def run(place: Path) -> Path:
    """Run the configuration; give the folder."""
    assert main(["run", str(place / "run.yaml"), "--allow-code", "mine_parts"]) == 0
    return place / "runs" / "tiny"


@pytest.mark.long
def test_parts_of_the_user_are_known_by_their_code(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [config] = place.glob("*.yaml")
    config.rename(place / "run.yaml")
    folder = run(place)
    names = {
        "pooling mine_parts:first_part",
        "mask kind near-ones",
        "mask kind mine_parts:allow_near",
        "head tempered",
    }
    assert read_run_folder(folder).scores.header.own.keys() == names
    score = load_run(folder, allow_code="mine_parts").predict([PAIR], head="tempered")
    caches = {path.name for path in (place / "caches").glob("*.h5")}
    record = (folder / "heads" / "tempered" / "seed_0" / "head.json").read_bytes()

    forget()
    run(place)
    assert {path.name for path in (place / "caches").glob("*.h5")} == caches
    assert (folder / "heads" / "tempered" / "seed_0" / "head.json").read_bytes() == record

    for old, new in [("SHARE = 0.5", "SHARE = 0.25"), ("* 1.0", "* 1.5")]:
        forget()
        module = place / "modules" / "mine_parts.py"
        source = module.read_text(encoding="utf-8")
        module.write_text(source.replace(old, new), encoding="utf-8")
        with pytest.raises(CodeError, match=r"the module 'mine_parts', whose source is not the one that was recorded"):
            load_run(folder, allow_code="mine_parts").predict([PAIR], head="tempered")
        module.write_text(source, encoding="utf-8")

    forget()
    module.write_text(source.replace("SHARE = 0.5", "SHARE = 0.25"), encoding="utf-8")
    run(place)
    assert {
        path.name for path in (place / "caches").glob("*.h5")
    } > caches  # the old latents are not taken for new ones

    module.write_text(source, encoding="utf-8")
    capsys.readouterr()
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "probes.cli.main", "score", str(folder), *PAIR, "--head", "tempered"]
    command += ["--allow-code", "mine_parts"]
    elsewhere = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert not elsewhere.returncode, elsewhere.stderr
    assert float(elsewhere.stdout.split()[0]) == pytest.approx(score[0], abs=1e-3)

    path = os.pathsep.join(entry for entry in sys.path if "modules" not in entry)
    missing = subprocess.run(
        command, check=False, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert missing.returncode == 1
    assert "of your module 'mine_parts', which cannot be imported" in " ".join(missing.stderr.split())


def forget() -> None:
    """Behave as a new process."""
    tables: list[dict[Any, Any]] = [own.ADDED, POOLINGS, KINDS, HEADS]
    for table in tables:
        for key in [key for key in table if any(word in str(key) for word in ("mine_parts", "near-ones", "tempered"))]:
            del table[key]
    sys.modules.pop("mine_parts", None)
