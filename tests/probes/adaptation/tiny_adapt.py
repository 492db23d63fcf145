"""A tiny language model, and a language in which every other token is decided by its right neighbour."""

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from probes.adaptation.adapt import as_adapt_config
from probes.adaptation.adapt_config import AdaptConfig
from probes.adaptation.objectives import LanguageModel, load_language_model
from tests.extract.tiny_decoders import make_model

N_SYMBOLS = 8
FIRST, SECOND = (tuple(f"{letter}{n}" for n in range(N_SYMBOLS)) for letter in "ab")


def pair_tokenizer() -> PreTrainedTokenizerBase:
    """Make a tokenizer of the symbols and a mask token."""
    words = ["<unk>", "<s>", "</s>", "[MASK]", *FIRST, *SECOND]
    core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "[MASK]"}
    make: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerBase = make(tokenizer_object=core, **named)
    return tokenizer


def write_pairs(path: Path, *, n_lines: int = 400, n_pairs: int = 8, seed: int = 0) -> Path:
    """Write lines of pairs: a second symbol is drawn, and the first one, before it, is the one of its number."""
    generator = np.random.default_rng(seed)
    lines = [" ".join(f"a{n} b{n}" for n in generator.integers(0, N_SYMBOLS, n_pairs)) for _ in range(n_lines)]
    path.write_text("\n".join(lines) + "\n")
    return path


def pair_language(family: str = "llama", **changes: Any) -> LanguageModel:
    """Make a random language model over the symbols."""
    tokenizer = pair_tokenizer()
    return load_language_model(make_model(family, vocab_size=len(tokenizer), **changes), tokenizer)


def pair_config(folder: Path, **changes: Any) -> AdaptConfig:
    """Make the settings of a short adaptation to such lines, written to the folder."""
    path = folder / "pairs.txt"
    if not path.exists():
        write_pairs(path)
    training = {"batch": 8, "length": 16, "check_every": 5, "held_out": 8, **changes.pop("training", {})}
    values = {"phases": [{"steps": 10, "weights": {"mntp": 1.0}}], "training": training, **changes}
    return as_adapt_config({"corpus": [{"files": str(path)}], "adapters": str(folder / "adapters"), **values})
