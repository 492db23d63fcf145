"""A training step of `icecore adapt` against a plain loop of peft with the same rows, and the peak memory of both."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.timing import Comparison, compare
from extract.masks.mask_plan import parse_plan
from extract.poolings.memory import keep_blocks
from extract.wiring.plan_wiring import plan_in_force
from probes.adaptation.adapt import Objectives, StepPart, add_lora
from probes.adaptation.adapt_config import AdaptConfig, CorpusPart, LoraSpec, MntpOptions
from probes.adaptation.objectives import (
    LanguageModel,
    MaskedTokens,
    TokenBatch,
    find_mask_id,
    gather_rows,
    load_language_model,
    mark_row,
)

ROWS, TOKENS, STEPS = 4, 128, 4
DRIFT = 1e-3
"""Largest difference of the losses of the two sides."""
CHILD = """
import json, sys
from pathlib import Path
import torch
from benchmarks.adapting import Side
from extract.poolings.memory import keep_blocks
side = Side(sys.argv[1])
if sys.argv[2] == "icecore":
    with side.plan(), keep_blocks():
        side.ours()
else:
    side.plain()
lines = Path("/proc/self/status").read_text().splitlines()
on_host = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
print(json.dumps(torch.cuda.max_memory_allocated() if side.language.decoder.device.type == "cuda" else on_host))
"""


class Side:
    """One language model with updates in place, and the same rows for both ways of training them."""

    def __init__(self, name: str) -> None:
        self.language = load_language_model(name)
        self.lora = add_lora(self.language, LoraSpec(dropout=0.0), seed=0)
        self.rows = _rows(self.language)
        config = AdaptConfig(corpus=(CorpusPart("texts.txt"),))
        self.objectives = Objectives(config, self.language)
        self.optimiser = torch.optim.AdamW(self.lora.weights, lr=1e-5)

    def plan(self) -> Any:
        """Put the bidirectional plan in force."""
        return plan_in_force(self.language.decoder, parse_plan("bidirectional"))

    def ours(self) -> float:
        """Take a step as `icecore adapt` does, the plan being in force."""
        return self._step(self.objectives.losses(StepPart(0, self.rows))["mntp"])

    def plain(self) -> float:
        """Take a step with the model's own forward call: a mask of zeros, and logits at every token."""
        ids = self.rows.batch.ids.to(self.language.decoder.device)
        everything = torch.zeros(len(ids), 1, TOKENS, TOKENS, device=ids.device, dtype=self.language.model.dtype)
        logits = self.language.model(input_ids=ids, attention_mask=everything, use_cache=False).logits
        tokens, places = self.rows.targets["mntp"]
        labels = torch.full((ids.numel(),), -100)
        labels[places] = tokens
        return self._step(cross_entropy(logits.flatten(0, 1).float(), labels.to(ids.device)))

    def _step(self, loss: Tensor) -> float:
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        self.optimiser.step()
        return float(loss.detach())


def _rows(language: LanguageModel) -> TokenBatch:
    """Draw rows of the vocabulary, a fifth of whose tokens are predicted."""
    generator = np.random.default_rng(0)
    rows = [generator.integers(3, language.vocabulary, TOKENS) for _ in range(ROWS)]
    mask_id = find_mask_id(language.decoder.tokenizer)
    objectives = [MaskedTokens("mntp", MntpOptions(), mask_id, language.vocabulary)]
    return gather_rows([mark_row(row, objectives, (0, number)) for number, row in enumerate(rows)])


def compare_adapting(name: str, *, repeats: int) -> tuple[list[Comparison], dict[str, Any]]:
    """Compare training steps with those of a plain loop and of freed memory that goes back, and measure peak memory."""
    side = Side(name)
    with side.plan():
        ours = side.ours()
    drift = abs(ours - Side(name).plain())
    if drift > DRIFT:
        raise RuntimeError(f"the two sides train differently, losses drift by {drift:g}")
    other = Side(name)

    def step() -> None:
        for _ in range(STEPS):
            side.ours()

    def keeping() -> None:
        with keep_blocks():
            step()

    def plain() -> None:
        for _ in range(STEPS):
            other.plain()

    title = f"adapting, {STEPS} steps of {ROWS} x {TOKENS} tokens"
    with side.plan():
        against = compare(
            f"{title}: plain peft vs icecore", (("plain", plain), ("icecore", keeping)), bar=">= 1", repeats=repeats
        )
        kept = compare(
            f"{title}: freed memory given back vs kept",
            (("given back", step), ("kept", keeping)),
            bar=">= 1",
            repeats=repeats,
        )
    tokens = STEPS * ROWS * TOKENS
    return [against, kept], {
        "tokens_per_second": {label: tokens / seconds for label, seconds in against.seconds.items()},
        "peak_bytes": {label: _peak(name, label) for label in ("plain", "icecore")},
        "drift": drift,
    }


def _peak(name: str, label: str) -> int:
    words: Sequence[str] = [sys.executable, "-c", CHILD, name, label]
    return int(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
