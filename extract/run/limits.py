"""How much is computed at a time."""

import torch

from extract.run.spec import ExtractionSpec

WINDOW_TEXTS = 4096  # texts tokenised and sorted at a time; bounds memory
LATENT_BYTES = 1 << 28  # of one batch's words; a few batches wait to be written
LATENT_BYTES_CPU = 1 << 27  # with half of it, words take a tenth longer than their sentences
FEWEST_TOKENS = 256  # of a batch of words, whatever its latents take


def batch_limits(spec: ExtractionSpec, device: torch.device, *, token_bytes: int = 0) -> tuple[int, int]:
    """Choose the most and the fewest tokens per batch for a device.

    Args:
        spec: The extraction; its own `batch_tokens` counts first.
        device: Where the decoder is.
        token_bytes: Bytes of latents that a token can bring: of a word of one token, at every layer and pooling. 0
            for whole texts, whose latents take next to nothing.

    Returns:
        Most tokens, padding included, and the count below which batches of neighbouring lengths are joined.
    """
    most, latent_bytes = (2048, LATENT_BYTES_CPU) if device.type == "cpu" else (16384, LATENT_BYTES)
    if token_bytes:
        most = min(most, max(FEWEST_TOKENS, latent_bytes // token_bytes))
    most = spec.batch_tokens or most
    return most, most // 8
