"""Latents of a few texts in memory, without a cache."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.decoders.layers import select_layers
from extract.inputs.batching import collate, group_by_length
from extract.inputs.template import TextEncoder
from extract.run.spec import ExtractionSpec, batch_limits
from extract.wiring.applied import plan_in_force
from extract.wiring.capture import pool_batch


def embed_texts(decoder: Decoder, texts: Sequence[str], *, spec: ExtractionSpec) -> Float[Tensor, "L P N D"]:
    """Compute latents in memory, exactly as an extraction does.

    Args:
        decoder: The frozen decoder.
        texts: `N` texts.
        spec: What to extract; storage dtype does not matter here.

    Returns:
        `(L, P, N, D)` float32 on the CPU.

    Raises:
        InputError: A text that cannot be pooled; names it.
    """
    layers = select_layers(spec.layers, len(decoder.blocks))
    encoder = TextEncoder(decoder.tokenizer, spec.template, window=decoder.description.window)
    encoded = encoder(texts)
    most, fewest = batch_limits(spec, decoder.device)
    shape = (len(layers), len(spec.poolings), len(texts), decoder.description.width)
    latents = torch.empty(shape, dtype=torch.float32)
    groups = group_by_length([len(item.ids) for item in encoded], batch_tokens=most, min_tokens=fewest)
    with plan_in_force(decoder, spec.mask_plan):
        for group in groups:
            batch = collate([encoded[i] for i in group], group)
            latents[:, :, group] = pool_batch(decoder, batch, poolings=spec.poolings, layers=layers).cpu()
    return latents
