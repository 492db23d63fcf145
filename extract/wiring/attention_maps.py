"""Attention maps: how a decoder spreads its attention under a plan, and how much of it the first token gets."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import ConfigError
from extract.inputs.batching import collate
from extract.inputs.template import InputTemplate
from extract.inputs.text_encoder import TextEncoder
from extract.masks.plan import MaskPlan
from extract.wiring.applied import Skip, masks_in_force, skip_in_force
from extract.wiring.arguments import ScoreWatch
from extract.wiring.forward import run_batch
from extract.wiring.interface import AttentionCall

SINK_POSITIONS = 4
"""First positions whose share of the attention is told."""


@dataclass(frozen=True)
class AttentionMaps:
    """Attention under a plan, averaged over heads, and over texts where lengths allow.

    Attributes:
        blocks: Block names, bottom up.
        sink_mass: `(blocks, 4)` mean attention on each of the first four real tokens, of the tokens after it, 0 to 1;
            where the first is hidden, the sink may shift to the next (LBW, Figure 3 I to L). 0 beyond the texts.
        maps: `(blocks, T, T)` mean attention over heads and texts, cut to the shortest text.
        tokens: The tokens of the first text, cut to the same length.
    """

    blocks: tuple[str, ...]
    sink_mass: Float[Tensor, "L 4"]
    maps: Float[Tensor, "L T T"]
    tokens: tuple[str, ...]


def attention_maps(
    decoder: Decoder,
    texts: Sequence[str],
    plan: MaskPlan,
    *,
    template: InputTemplate = InputTemplate(),  # noqa: B008
) -> AttentionMaps:
    """Compute attention maps of a handful of texts of two tokens or more, one at a time.

    Of a text that is read in windows it is the first window's.

    Raises:
        ConfigError: No texts, or a plan that is more than masks and a skip.
        DecoderError: The family does not let its attention be chosen.
        InputError: A text without tokens.
    """
    if not texts:
        raise ConfigError("no text was given to draw attention for; give at least one.")
    if plan.architecture != "inplace" or plan.prepend or plan.prefix:
        raise ConfigError(f"the plan {plan.text!r} is more than masks; allowed here: plans that swap masks only.")
    encoder = TextEncoder(decoder.tokenizer, template, window=decoder.description.window)
    encoded = [item.rows[0] for item in encoder(list(texts))]  # of a text in windows, the first
    n_blocks, n_tokens = len(decoder.blocks), min(len(item.ids) for item in encoded)
    maps = torch.zeros(n_blocks, n_tokens, n_tokens)
    sink, n_queries = torch.zeros(n_blocks, SINK_POSITIONS), torch.zeros(SINK_POSITIONS)

    def watch(block: int, call: AttentionCall) -> None:
        add(block, call.weights())

    def add(block: int, weights: Tensor) -> None:
        mean = weights[0].float().mean(0).cpu()
        maps[block] += mean[:n_tokens, :n_tokens]
        seen = mean.tril(-1).sum(0)[:SINK_POSITIONS]
        sink[block, : len(seen)] += seen

    skip = Skip.of(plan)
    with masks_in_force(decoder, plan.kinds(n_blocks)) as wiring, skip_in_force(decoder.blocks, plan, skip):
        wiring.watch = watch
        for item in encoded:
            n_queries += (len(item.ids) - 1 - torch.arange(SINK_POSITIONS)).clamp(min=0)
            with ScoreWatch(wiring, lambda block, _scores, weights: add(block, weights)):
                run_batch(decoder, collate([item], [0]), lambda _position, _hidden: None)
    names = tuple(decoder.layers[1:-1])
    tokens = tuple(decoder.tokenizer.convert_ids_to_tokens(encoded[0].ids[:n_tokens].tolist()))
    return AttentionMaps(names, sink / n_queries.clamp(min=1), maps / len(texts), tokens)
