"""How much is computed at a time."""

import torch

from extract.spec import ExtractionSpec

WINDOW_TEXTS = 4096  # texts tokenised and sorted at a time; bounds memory


def batch_limits(spec: ExtractionSpec, device: torch.device) -> tuple[int, int]:
    """Choose the most and the fewest tokens per batch for a device.

    Args:
        spec: The extraction; its own `batch_tokens` counts first.
        device: Where the decoder is.

    Returns:
        Most tokens, padding included, and the count below which batches of neighbouring lengths are joined.
    """
    most = spec.batch_tokens or (2048 if device.type == "cpu" else 16384)
    return most, most // 8
