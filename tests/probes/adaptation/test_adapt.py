"""Adapting a decoder: what training gives, that it resumes, and that the decoder stays what it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extract.decoders.decoder import load_decoder, quiet_peft
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import ConfigError
from extract.files import digest_module
from extract.masks.mask_plan import parse_plan
from extract.wiring.plan_wiring import plain_batch, plan_in_force, states_with_gradients
from probes.adaptation.adapt import Objectives, StepData, StepReport, Texts, adapt, add_lora, rate_at
from probes.adaptation.adapt_config import AdaptConfig, LoraSpec
from probes.adaptation.objectives import load_language_model, read_excluded, read_rows
from probes.fitting import saved_fits
from tests.extract.tiny_decoders import SENTENCES, encode_batch, make_model, make_tokenizer, save_decoder
from tests.probes.adaptation.tiny_adapt import N_SYMBOLS, pair_config, pair_language, pair_tokenizer

FULL: dict[str, Any] = {
    "plan": "hybrid",
    "phases": [
        {"steps": 6, "weights": {"mntp": 1.0, "msg": 1.0}},
        {"steps": 4, "weights": {"mntp": 1.0, "msg": 1.0, "sscl": 9.0}},
    ],
    "objectives": {"sscl": {"batch": 4, "length": 16, "instruction": ""}, "msg": {"shortest": 2}},
}


@pytest.fixture(autouse=True)
def written_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the state to resume from at every look, however short the training is."""
    monkeypatch.setattr(saved_fits, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(saved_fits, "LARGEST_SHARE", 1e9)


def write_adapter(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def read_adapter(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = load_file(folder / "adapter_model.safetensors")
    return tensors


def test_an_adapter_of_no_steps_is_the_decoder_bit_for_bit(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "decoder")
    language = load_language_model(str(folder))
    lora = add_lora(language, LoraSpec(), seed=0)
    write_adapter(tmp_path / "none", lora.files())
    lora.remove()
    assert digest_module(language.decoder.module) == language.decoder.description.weight_digest
    adapted = load_decoder({"name": str(folder), "adapter": str(tmp_path / "none")})
    assert adapted.description.weight_digest == language.decoder.description.weight_digest


def test_a_saved_adapter_computes_what_the_updates_in_place_compute(tmp_path: Path) -> None:
    folder = save_decoder(tmp_path / "decoder")
    language = load_language_model(str(folder))
    lora = add_lora(language, LoraSpec(), seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in lora.weights:
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    write_adapter(tmp_path / "adapter", lora.files())
    batch = encode_batch(language.decoder, SENTENCES)
    top = len(language.decoder.blocks) + 1
    in_place = states_with_gradients(language.decoder, batch)[top].detach()
    merged = load_decoder({"name": str(folder), "adapter": str(tmp_path / "adapter")})
    after = states_with_gradients(merged, batch)[top]
    untouched = states_with_gradients(load_decoder(str(folder)), batch)[top]
    assert (after - in_place).abs().max() < 1e-5
    assert (after - untouched).abs().max() > 1e-2


def test_training_lowers_the_held_out_loss_and_leaves_the_decoder_alone(tmp_path: Path) -> None:
    language = pair_language()
    adapted = adapt(pair_config(tmp_path, training={"learning_rate": 0.01}), language=language)
    record = adapted.record
    assert record["held_out"]["kept"]["loss"] < record["held_out"]["before"]["loss"] - 0.05
    assert digest_module(language.decoder.module) == language.decoder.description.weight_digest
    assert not list(adapted.folder.glob("unfinished*"))
    assert len(adapted.losses) == 10
    assert adapted.held_out["step"].tolist() == [0, 5, 10]
    assert "which was kept" in repr(adapted)


def test_the_same_settings_find_the_adapter_and_others_are_refused(tmp_path: Path) -> None:
    config = pair_config(tmp_path)
    first = adapt(config, language=pair_language())
    said: list[str] = []
    again = adapt(config, language=pair_language(), say=said.append)
    assert again.was_there
    assert again.record == first.record
    assert any("holds this adapter already" in line for line in said)
    with pytest.raises(ConfigError, match="holds an adapter of other settings"):
        adapt(replace(config, seed=1), language=pair_language())


class StoppedError(Exception):
    """What ends a training in the middle."""


@pytest.mark.parametrize("changes", [{}, FULL], ids=["mntp", "all objectives"])
def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    whole = adapt(pair_config(tmp_path / "one", **changes), language=pair_language())

    def stop(step: StepReport) -> None:
        if step.step == 8:
            raise StoppedError

    config = pair_config(tmp_path / "two", **changes)
    with pytest.raises(StoppedError):
        adapt(config, language=pair_language(), report=stop)
    assert list(config.folder.glob("unfinished*"))
    seen: list[int] = []
    resumed = adapt(config, language=pair_language(), report=lambda step: seen.append(step.step))
    assert seen == [6, 7, 8, 9, 10]
    first, second = read_adapter(whole.folder), read_adapter(resumed.folder)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert whole.losses.drop(columns="seconds").equals(resumed.losses.drop(columns="seconds"))
    assert whole.held_out.equals(resumed.held_out)


def make_data(config: AdaptConfig, language: Any) -> StepData:
    excluded = read_excluded(())
    held_out, length = config.training.held_out, config.training.length
    tokens, held = read_rows(
        config.corpus, language.decoder.tokenizer, length=length, held_out=held_out, excluded=excluded
    )
    return StepData(config, Texts(tokens, held, None, None), Objectives(config, language))


def test_losses_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = pair_config(tmp_path, lora={"dropout": 0.0}, training={"learning_rate": 0.01})
    adapted = adapt(config, language=pair_language())
    language = pair_language()
    data = make_data(config, language)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        peft_config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        with quiet_peft():
            model = get_peft_model(language.model, peft_config)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=0.01, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(config, step, 10))
    losses = []
    for step in range(10):
        part = data.part(step, 0)
        assert part.tokens is not None
        ids = part.tokens.batch.ids
        everything = torch.zeros(len(ids), 1, ids.shape[1], ids.shape[1])
        logits = model(input_ids=ids, attention_mask=everything).logits
        tokens, places = part.tokens.targets["mntp"]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1)[places], tokens)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
    drift = np.abs(adapted.losses["mntp"].to_numpy() - losses)
    assert drift[0] < 1e-6
    assert drift.max() < 1e-5  # Adam spreads the rounding of other kernels over the steps; less than 2e-6 was seen
    assert losses[-1] < losses[0] - 0.05


def accuracy(config: AdaptConfig, language: Any, *, plan: str) -> float:
    """Predict every first symbol of the rows held out, masked alone; the share that is right."""
    decoder = language.decoder
    data = make_data(config, language)
    assert data.texts.held_out_tokens is not None
    rows = torch.from_numpy(np.stack(data.texts.held_out_tokens.rows))
    mask_id = int(decoder.tokenizer.mask_token_id)
    right = []
    with plan_in_force(decoder, parse_plan(plan)), torch.no_grad():
        for column in range(2, rows.shape[1], 2):
            shown = rows.clone()
            shown[:, column] = mask_id
            states = states_with_gradients(decoder, plain_batch(shown))[len(decoder.blocks) + 1]
            right.append(language.logits(states[:, column - 1]).argmax(-1) == rows[:, column])
    return float(torch.cat(right).float().mean())


@pytest.mark.long
def test_only_a_plan_that_looks_ahead_learns_a_token_from_its_right_neighbour(tmp_path: Path) -> None:
    scores = {}
    for plan in ("bidirectional", "causal"):
        (tmp_path / plan).mkdir()
        config = pair_config(
            tmp_path / plan,
            plan=plan,
            phases=[{"steps": 400, "weights": {"mntp": 1.0}}],
            lora={"rank": 32, "dropout": 0.0},
            training={"batch": 32, "learning_rate": 0.01, "check_every": 50, "held_out": 40},
        )
        folder = tmp_path / "decoder"
        if not folder.exists():
            tokenizer = pair_tokenizer()
            make_model("llama", vocab_size=len(tokenizer)).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        config = replace(config, decoder=DecoderSpec(str(folder)))
        adapted = adapt(config)
        language = load_language_model({"name": str(folder), "adapter": str(adapted.folder)})
        scores[plan] = accuracy(config, language, plan=plan)
    assert scores["bidirectional"] > 0.95
    assert scores["causal"] < 2 / N_SYMBOLS


def test_parts_of_a_step_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    """Where every part has as many targets, the mean of the parts is that of the whole."""
    losses = []
    for accumulate in (1, 2):
        folder = tmp_path / str(accumulate)
        folder.mkdir()
        config = pair_config(
            folder,
            objectives={"mtp": {"rate": 1.0, "masked": 0.0, "random": 0.0}},
            phases=[{"steps": 3, "weights": {"mtp": 1.0}}],
            lora={"dropout": 0.0},
            training={"accumulate": accumulate, "learning_rate": 0.01},
        )
        losses.append(adapt(config, language=pair_language()).losses["mtp"].to_numpy())
    assert np.abs(losses[0] - losses[1]).max() < 1e-5
    assert losses[0][0] != losses[0][2]


def test_a_tokenizer_without_any_mask_token_is_named(tmp_path: Path) -> None:
    language = load_language_model(make_model("llama"), make_tokenizer())
    config = pair_config(tmp_path, objectives={"mntp": {"mask_token": "<nothing>"}})
    with pytest.raises(ConfigError, match="the mask token '<nothing>' is no token of this tokenizer"):
        adapt(config, language=language)


def write_triples(path: Path) -> Path:
    rows = [f'{{"anchor": "a{n} b{n}", "positive": "b{n} a{n}", "negative": "a{(n + 1) % 8} b{n}"}}' for n in range(8)]
    more = [f'{{"anchor": "a{n} a{n}", "positive": "b{n} b{n}", "negative": "b{(n + 3) % 8}"}}' for n in range(8)]
    path.write_text("\n".join([*rows, *more]) + "\n")
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"negative": "negative", "pooling": "mean", "eos": "none", "layers": ["block_01", "final_norm"]},
        {"negative": "negative"},
        {},
    ],
    ids=["two layers, mean", "eos", "pairs"],
)
def test_contrast_brings_pairs_together(tmp_path: Path, options: dict[str, Any]) -> None:
    files = write_triples(tmp_path / "triples.jsonl")
    sscl = {"files": str(files), "batch": 4, "length": 8, "instruction": "", **options}
    config = pair_config(
        tmp_path,
        corpus=[],
        objectives={"sscl": sscl},
        phases=[{"steps": 20, "weights": {"sscl": 1.0}}],
        training={"held_out": 4, "learning_rate": 0.01},
    )
    adapted = adapt(config, language=pair_language())
    losses = adapted.losses["sscl"]
    assert losses[-5:].mean() < losses[:5].mean() - 0.1
    assert adapted.record["rows"]["contrast"] == 12


def test_training_stops_when_the_held_out_loss_no_longer_falls(tmp_path: Path) -> None:
    config = pair_config(
        tmp_path,
        phases=[{"steps": 200, "weights": {"mntp": 1.0}}],
        training={"learning_rate": 2.0, "clip": 0.0, "patience": 2, "schedule": "constant"},
    )
    adapted = adapt(config, language=pair_language())
    assert adapted.record["best_step"] + 10 == len(adapted.losses) < 200
    assert "did not fall" in adapted.verdict or "fell" in adapted.verdict
