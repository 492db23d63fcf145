"""`icecore infill`, and `icecore compare` of what it wrote."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from transformers import AutoModelForCausalLM

from probes.adaptation.abilities import load_abilities
from probes.cli.main import main
from tests.extract.tiny_decoders import make_texts, save_decoder

SENTENCES = [
    f"The {one} ran under the {two}." for one in ("mouse", "dog", "cat", "owl") for two in ("sea", "ice", "sky")
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two decoders and texts, and what was measured of each."""
    folder = tmp_path_factory.mktemp("desk")
    texts = [
        *(text for text in make_texts(24) if len(text.split()) > 4),
        " ".join(SENTENCES),
        " ".join(SENTENCES[::-1]),
    ]
    rows = [("number", "body"), *enumerate(texts)]
    with (folder / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    for seed, name in enumerate(("base", "other")):
        save_decoder(folder / name, seed=seed, max_position_embeddings=256)
        assert main(["infill", str(folder / name), *arguments(folder), "--out", str(folder / f"{name}-infilling")]) == 0
    return folder


def arguments(folder: Path) -> list[str]:
    texts = ["--texts", str(folder / "texts.csv"), "--column", "body", "--span-tokens", "2-4", "--quiet"]
    counts = ["--choices", "2", "--infillings", "2", "--window", "16", "--continuations", "2", "--new-tokens", "8"]
    return [*texts, *counts, "--device", "cpu", "--threads", "1"]


def test_a_folder_holds_scores_rows_texts_and_a_page(desk: Path) -> None:
    folder = desk / "base-infilling"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("scores.json", "rows.csv", "report.html", "summary.md", "abilities.png"),
        *("infillings.csv", "continuations.csv"),
    }
    scores = load_abilities(folder)
    assert scores.name == "base"
    assert json.loads((folder / "scores.json").read_text())["options"]["spans"]["shortest"] == 2
    for file in ("report.html", "summary.md"):
        text = (folder / file).read_text(encoding="utf-8")
        for part in ("infilling perplexity", "choice of five", "causal perplexity", "Rep-Sen", "Greedy infillings"):
            assert part in text, (file, part)
        assert str(desk) not in text
    assert str(desk) not in (folder / "scores.json").read_text()
    with (folder / "infillings.csv").open(encoding="utf-8", newline="") as table:
        [header, *rows] = csv.reader(table)
    assert header == ["text", "before", "true", "causal", "hybrid", "after"]
    assert len(rows) == 2


def test_two_folders_are_compared(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(desk / "base-infilling"), str(desk / "other-infilling")]
    assert main(["compare", *folders, "--resamples", "50", "--out", str(tmp_path)]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "too few articles or texts" in screen
    assert "other-infilling under hybrid" in screen
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "summary.md",
        "comparison.csv",
        "abilities.png",
    }
    with (tmp_path / "comparison.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    [row] = [
        row
        for row in rows
        if (row["ability"], row["decoder"][:5], row["plan"]) == ("infilling-perplexity", "other", "hybrid")
    ]
    values = {name: load_abilities(desk / f"{name}-infilling").abilities[1].value for name in ("base", "other")}
    assert float(row["difference_plan"]) == pytest.approx(values["other"] - values["base"])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # which peft reads
def test_an_adapter_is_merged_first(desk: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    adapter, out = tmp_path / "lora", tmp_path / "out"
    config = peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(desk / "base"), config).save_pretrained(str(adapter))
    words = [*arguments(desk), "--adapter", str(adapter), "--plans", "hybrid", "--out", str(out)]
    assert main(["infill", str(desk / "base"), *words]) == 0
    adapted, base = load_abilities(out), load_abilities(desk / "base-infilling")
    assert adapted.name == "base + lora"
    assert str(tmp_path) not in (out / "scores.json").read_text()
    assert adapted.abilities[0].is_on_same_rows(base.abilities[1])
    assert abs(adapted.abilities[0].value - base.abilities[1].value) > 1e-3


def test_it_is_no_run_and_says_what_reads_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "table"):
        assert main([command, str(desk / "base-infilling")]) == 1
        assert "it holds what icecore infill measured, which icecore compare alone reads" in capsys.readouterr().err


def test_other_spans_are_refused(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infill", str(desk / "other"), *arguments(desk), "--seed", "1", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["compare", str(desk / "base-infilling"), str(tmp_path)]) == 1
    assert "are not of the same texts and spans (infilling-perplexity" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--plans", "bidirectional"], 1, "under the plan 'bidirectional' tokens of a span are seen"),
        (["--plans", "bidirektional"], 1, "unknown mask plan 'bidirektional'"),
        (["--span-tokens", "8"], 1, "'8' is no range of tokens; allowed: the fewest and the most, as 8-32"),
        (["--span-tokens", "9-8"], 1, "3 spans of 9 to 8 tokens cannot be drawn"),
        (["--split", "dev"], 2, "unknown split 'dev'"),
        (["--split", "test"], 2, "--split is one of wikitext2, and the texts come from"),
        (["--new-tokens", "8"], 2, "--new-tokens does nothing by itself; give it with --continuations"),
    ],
)
def test_bad_input_is_one_sentence(
    desk: Path, words: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["infill", str(desk / "base"), "--texts", str(desk / "texts.csv"), "--column", "body", *words]) == code
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--across", "--by-layer", "--head=x"])
def test_options_of_runs_are_refused_for_abilities(desk: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(desk / "base-infilling"), option]) == 2
    assert f"{option.partition('=')[0]} is for runs" in capsys.readouterr().err


def test_a_run_beside_abilities_is_refused(desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(desk / "base-infilling"), str(tmp_path)]) == 1
    assert f"folder {str(tmp_path)!r} holds no abilities" in capsys.readouterr().err


def test_a_merge_of_a_config_is_measured_as_its_own_decoder(desk: Path) -> None:
    parts = [{"name": str(desk / name), "weight": weight} for name, weight in (("base", 1.0), ("other", 0.0))]
    config = desk / "merged.yaml"
    config.write_text(yaml.safe_dump({"decoder": {"merge": parts}}), encoding="utf-8")
    assert main(["infill", str(config), *arguments(desk), "--out", str(desk / "merged")]) == 0
    merged, base = load_abilities(desk / "merged"), load_abilities(desk / "base-infilling")
    assert merged.name == "1*base+0*other"
    for mine, theirs in zip(merged.abilities, base.abilities, strict=True):
        np.testing.assert_allclose(mine.sums, theirs.sums, rtol=1e-5)


def test_a_config_without_a_decoder_is_refused(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = desk / "no-decoder.yaml"
    config.write_text("task: sts-sample\n", encoding="utf-8")
    assert main(["infill", str(config), *arguments(desk)]) != 0
    assert "no-decoder.yaml' names no decoder; give it a section decoder" in capsys.readouterr().err
