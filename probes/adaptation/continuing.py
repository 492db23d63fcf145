"""Causal text: the perplexity of windows, and greedy continuations with how much they repeat themselves."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig

from extract.decoders.decoder import Decoder, changed, flags_off
from extract.decoders.language_model import LanguageModel
from extract.errors import ConfigError
from extract.inputs.spans import SPECIAL
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import EncodedText, Tokeniser
from extract.run.progress import ExtractionProgress
from probes.adaptation.infilling import SILENT, ScoredRow, is_unread
from probes.data.wikitext import UNREAD, split_sentences

N_GRAM = 4
AT_ONCE = 32
"""Continuations that are generated together."""


def cut_windows(
    decoder: Decoder, text: str, *, n_tokens: int, template: InputTemplate | None = None
) -> Iterator[ScoredRow]:
    """Cut a text into windows of `n_tokens` tokens, each begun with BOS where the tokenizer adds one.

    All tokens of a window but the first are scored, and of WikiText's `<unk>` and `<formula>` none is. A rest of one
    token is left out. `ConfigError` for a window that is longer than the decoder's.
    """
    most = decoder.description.window
    if not 2 <= n_tokens <= most:
        raise ConfigError(f"a window of {n_tokens} tokens cannot be scored; allowed: 2 to {most}, the decoder's own.")
    [item] = Tokeniser(decoder.tokenizer, template or InputTemplate())([text])
    is_special = item.roles == SPECIAL
    n_before = int(is_special.cumprod().sum())  # BOS
    before, rest = np.arange(n_before), np.arange(n_before, len(item.ids) - int(is_special[n_before:].sum()))
    for start in range(0, len(rest), n_tokens - n_before):
        columns = np.concatenate([before, rest[start : start + n_tokens - n_before]])
        row = EncodedText(item.ids[columns], item.roles[columns], is_truncated=False)
        is_scored = ~is_unread(text, item.offsets[columns])
        is_scored[: max(n_before, 1)] = False
        if is_scored.any():
            yield ScoredRow(row, np.flatnonzero(is_scored))


def first_words(text: str, n_words: int) -> str:
    """Take the first words of a text; empty where it has fewer, or WikiText has something in place of one."""
    words = text.split()[:n_words]
    prefix = " ".join(words)
    return "" if len(words) < n_words or UNREAD.search(prefix) else prefix


def continue_greedily(
    model: LanguageModel,
    prefixes: Sequence[str],
    *,
    n_tokens: int,
    template: InputTemplate | None = None,
    progress: ExtractionProgress = SILENT,
) -> list[list[int]]:
    """Continue every prefix with `n_tokens` new tokens, each the most probable one, on the path of transformers.

    No plan is in force, so it is causal. The end of sequence is not generated, so that all are equally long. Prefixes
    of equal length go together, and nothing is padded.
    """
    decoder, whole = model.decoder, model.model
    tokenise = Tokeniser(decoder.tokenizer, replace(template or InputTemplate(), eos="none"))
    rows = [item.ids for item in tokenise(prefixes)]
    untyped: Any = whole
    make: Any = GenerationConfig
    settings = make(
        do_sample=False,
        min_new_tokens=n_tokens,
        max_new_tokens=n_tokens,
        eos_token_id=getattr(whole.generation_config, "eos_token_id", None),
        pad_token_id=0,
    )
    continuations: list[list[int]] = [[] for _ in rows]
    progress.expect(n_tokens=n_tokens * len(rows))
    progress.start(n_rows=len(rows), n_done=0)
    try:
        for group in _equally_long(rows):
            ids = torch.from_numpy(np.stack([rows[i] for i in group])).to(decoder.device)
            with (
                torch.inference_mode(),
                changed(whole, generation_config=settings),  # a checkpoint's own may punish repetition
                flags_off(decoder.module, decoder.blocks, decoder.description.bidirectional or {}),
            ):
                generated = untyped.generate(ids, attention_mask=torch.ones_like(ids))
            for i, row in zip(group, generated[:, ids.shape[1] :].tolist(), strict=True):
                continuations[i] = row
            progress.advance(n_rows=len(group), n_tokens=n_tokens * len(group))
    finally:
        progress.finish()
    return continuations


def _equally_long(rows: Sequence[NDArray[np.int64]]) -> Iterator[list[int]]:
    """Group rows of one length, `AT_ONCE` at most, by their positions."""
    by_length: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        by_length.setdefault(len(row), []).append(i)
    for _, group in sorted(by_length.items()):
        yield from (group[k : k + AT_ONCE] for k in range(0, len(group), AT_ONCE))


def repeated_share(items: Sequence[Hashable]) -> float:
    """Compute the share of items that repeat an earlier one; 0 of none.

    Example:
        >>> repeated_share(["a", "b", "a", "a"])
        0.5
    """
    return 1 - len(set(items)) / len(items) if items else 0.0


def rep_n(tokens: Sequence[int], n: int = N_GRAM) -> float:
    """Compute the share of the n-grams of tokens that repeat an earlier one (seq-rep-n, Welleck et al. 2020).

    Example:
        >>> rep_n([1, 2, 1, 2, 1], 2), rep_n([1, 2, 3], 4)
        (0.5, 0.0)
    """
    return repeated_share([tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1)])


def rep_sentences(text: str) -> float:
    """Compute the share of the sentences of a text that repeat an earlier one (Rep-Sen).

    Example:
        >>> rep_sentences("It is cold. It is cold. It is not.")
        0.33333333333333337
    """
    return repeated_share(split_sentences(text))
