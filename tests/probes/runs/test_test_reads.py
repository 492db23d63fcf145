"""For which plans of a sweep test is read: the chosen ones and causal, or every plan where that is asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError, TaskError
from extract.masks.mask_plan import parse_plan
from extract.run.extraction_spec import ExtractionSpec, WordSpec
from probes.cli.main import main
from probes.heads import pair_heads as fitted
from probes.heads import word_heads as words_evaluate
from probes.runs.run import run
from probes.runs.run_config import RunConfig, TaskSpec
from tests.probes.runs.plan_sweeps import run_sweep

PLANS = [parse_plan(text) for text in ("backward:1", "causal", "backward:2", "bidirectional:2")]
KINDS: dict[str, dict[str, Any]] = {
    "classes": {
        "task": TaskSpec("class-sample", pairs=40),
        "heads": {"logistic-probe": {"Cs": [0.1, 1.0]}},
    },
    "pairs": {
        "task": TaskSpec("sts-sample", pairs=24),
        "heads": {"layer-cosine": {}, "cosine-mlp": {"max_epochs": 1, "batch_size": 8, "hidden": 4}},
    },
    "words": {
        "task": TaskSpec("words-sample", {"tags": "pos"}, pairs=16),
        "heads": {"token-classifier": {"max_epochs": 1}},
        "extraction": ExtractionSpec(words=WordSpec(("mean",))),
    },
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reads")


def config_of(kind: str, base: Path, decoder: Path, **more: Any) -> RunConfig:
    config = RunConfig(
        name=kind,
        decoder=DecoderSpec(str(decoder), device="cpu"),
        bootstrap=100,
        caches=str(base / "caches"),
        runs=str(base / "runs"),
        **KINDS[kind],
    )
    return replace(config, **more)


def count_fits(patch: pytest.MonkeyPatch) -> list[str]:
    """Note every fit of a head of pairs or of words."""
    calls: list[str] = []

    def spy(module: Any, name: str) -> None:
        fit: Callable[..., Any] = getattr(module, name)

        def noted(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return fit(*args, **options)

        patch.setattr(module, name, noted)

    spy(fitted, "fit_head")
    spy(words_evaluate, "fit_token_head")
    return calls


def plans_with_test(scores: dict[str, Any], head: str) -> set[str]:
    return {row["plan"] for row in scores["plans"] if "test" in row["heads"][head]["summary"]}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_test_is_read_for_chosen_plans_and_causal_alone(
    kind: str, base: Path, decoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_fits(monkeypatch)
    config = config_of(kind, base, decoder_folder)
    result = run_sweep(config, PLANS)
    scores = result.scores
    read = {"causal"}
    for name in config.heads:
        mine = {scores["chosen"][name]["plan"], "causal"}
        read |= mine
        assert plans_with_test(scores, name) == mine
        assert scores["chosen"][name]["gain"]["over"] == "causal"
        assert "test" in scores["chosen"][name]["summary"]
    assert scores["test_read"] == " and ".join(plan.text for plan in PLANS if plan.text in read)
    summary = (result.folder / "summary.md").read_text(encoding="utf-8")
    assert f"Test was read for {scores['test_read']}, after" in summary
    assert len(calls) == {"classes": 0, "pairs": 2, "words": 1}[kind] * len(PLANS)  # nothing is fitted again for test
    if kind == "pairs":
        zero_shot = {row["plan"] for row in scores["plans"] if "test" in row["zero_shot"]}
        assert zero_shot == {scores["chosen"]["layer-cosine"]["plan"], "causal"}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_plan_is_read_where_that_is_asked_for(kind: str, base: Path, decoder_folder: Path) -> None:
    some = run_sweep(config_of(kind, base, decoder_folder), PLANS).scores
    config = config_of(kind, base, decoder_folder, name=f"{kind}-all")
    result = run_sweep(config, PLANS, test="all")
    assert result.scores["test_read"] == "every plan"
    summary = (result.folder / "summary.md").read_text(encoding="utf-8")
    assert "Test was read for **every plan**" in summary
    for name in config.heads:
        assert plans_with_test(result.scores, name) == {plan.text for plan in PLANS}
        assert f"| test, {name} " in summary
        assert result.scores["chosen"][name] == some["chosen"][name]


@pytest.mark.long
def test_without_causal_the_first_plan_stands_beside_the_chosen(base: Path, decoder_folder: Path) -> None:
    config = config_of("classes", base, decoder_folder, name="first")
    result = run_sweep(config, [plan for plan in PLANS if plan.text != "causal"])
    chosen = result.scores["chosen"]["logistic-probe"]
    assert plans_with_test(result.scores, "logistic-probe") == {chosen["plan"], "backward:1"}
    assert chosen["gain"]["over"] == "backward:1"
    assert "| test, chosen - backward:1 |" in (result.folder / "summary.md").read_text(encoding="utf-8")


def test_what_reads_test_too_early_is_refused(
    base: Path, decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="test is 'best'; allowed: chosen, all"):
        run_sweep(config_of("pairs", base, decoder_folder), PLANS, test="best")
    config = config_of("pairs", base, decoder_folder, name="released", protocol="freeze-released")
    with pytest.raises(ConfigError, match="protocol 'freeze-released' chooses epochs on test"):
        run_sweep(config, PLANS)
    assert main(["sweep", "--k", "0-2", "--k0", "0-2", "--search", "halving", "--test", "all"]) == 1
    assert "test is 'all', but a search reads test for what it found" in capsys.readouterr().err


@pytest.mark.long
def test_a_protocol_that_reads_test_reads_it_for_every_plan(base: Path, decoder_folder: Path) -> None:
    config = config_of("pairs", base, decoder_folder, name="released", protocol="freeze-released")
    assert run_sweep(config, PLANS[:2], test="all").scores["test_read"] == "every plan"


@pytest.mark.parametrize(
    ("kind", "module", "name"), [("pairs", fitted, "fit_head"), ("words", words_evaluate, "fit_token_head")]
)
def test_a_fit_cannot_read_test(
    kind: str, module: Any, name: str, base: Path, decoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = getattr(module, name)

    def peeks(head: Any, data: Any, *rest: Any, **options: Any) -> Any:
        data.split("validation")
        with pytest.raises(TaskError, match="has no split 'test'"):
            data.split("test")
        assert "test" not in data.task.splits
        peeked.append(kind)
        return fit(head, data, *rest, **options)

    peeked: list[str] = []
    monkeypatch.setattr(module, name, peeks)
    config = config_of(kind, base, decoder_folder, name=f"{kind}-peeks")
    heads = {head: options for head, options in config.heads.items() if head != "layer-cosine"}
    [result] = run(replace(config, heads=heads)).scores["heads"].values()
    assert peeked == [kind] * len(result["seeds"])
    assert "test" in result["summary"]
