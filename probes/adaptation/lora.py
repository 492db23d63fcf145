"""LoRA on a decoder by peft: updates are put in place, found, switched to training, and saved in peft's own format."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from extract.decoders.decoder import quiet_peft
from extract.decoders.language_model import LanguageModel
from extract.errors import DecoderError, first_line
from probes.adaptation.adapt_config import LoraSpec

UNUSED = 1e-9
"""Dropout of updates that have none, so that an objective may set one."""


@dataclass(frozen=True, eq=False)
class Lora:
    """The updates of a language model, in place and trainable; everything else of it is frozen."""

    tuned: Any
    """peft's model around it."""
    weights: tuple[nn.Parameter, ...]
    """The matrices of all updates."""
    dropouts: tuple[nn.Dropout, ...]

    @property
    def n_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(weight.numel() for weight in self.weights)

    @contextmanager
    def training(self, dropout: float) -> Iterator[None]:
        """Let dropout act on what enters the updates until the `with` block ends; the decoder itself has none."""
        before = [layer.p for layer in self.dropouts]
        try:
            for layer in self.dropouts:
                layer.p = dropout
                layer.train()
            yield
        finally:
            for layer, p in zip(self.dropouts, before, strict=True):
                layer.p = p
                layer.eval()

    def save(self, folder: Path) -> None:
        """Write the adapter as peft does, for `decoder.adapter` and any other program that reads adapters."""
        self.tuned.save_pretrained(folder)

    def remove(self) -> None:
        """Take the updates away for good; what is left is the language model as it was."""
        self.tuned.unload()


def add_lora(language: LanguageModel, spec: LoraSpec, *, seed: int) -> Lora:
    """Put updates in place, which change nothing yet: one matrix of each is zero, the other is drawn from the seed.

    Raises:
        DecoderError: peft is missing, or no module has a name of `lora.targets`.
    """
    try:
        from peft import LoraConfig, get_peft_model
        from peft.tuners.lora import LoraLayer
    except ImportError as error:
        raise DecoderError(
            "icecore adapt needs the extra package peft; install it with: pip install peft accelerate."
        ) from error
    targets: str | list[str] = "all-linear" if spec.targets == ("all-linear",) else list(spec.targets)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]
        lora_dropout=spec.dropout or UNUSED,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), quiet_peft():
        torch.manual_seed(seed)
        try:
            tuned = get_peft_model(language.model, config)
        except ValueError as error:
            raise DecoderError(
                f"lora.targets {', '.join(spec.targets)!r} cannot be adapted ({first_line(error)}); allowed: "
                "all-linear, or names of linear modules in the blocks of this decoder."
            ) from error
    layers = [module for module in tuned.modules() if isinstance(module, LoraLayer)]
    dropouts = [part for layer in layers for part in layer.lora_dropout.values() if isinstance(part, nn.Dropout)]
    weights = tuple(parameter for parameter in tuned.parameters() if parameter.requires_grad)
    config.lora_dropout = spec.dropout
    tuned.eval()
    for layer in dropouts:
        layer.p = spec.dropout
    return Lora(tuned, weights, tuple(dropouts))
