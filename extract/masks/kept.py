"""Masks of unpadded rows, kept from batch to batch: the length of the rows decides them, so each is built once."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from extract.masks.kinds import MaskKind
from extract.masks.matrices import batch_mask

KEPT_BYTES = 64 << 20
"""Bytes of masks that are kept."""


class KeptMasks:
    """The masks that were used last, up to `KEPT_BYTES` of them, by kind, sliding window, length and device."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Tensor] = {}

    def build(self, kind: MaskKind, is_real: Bool[Tensor, "B T"], *, window: int | None) -> Bool[Tensor, "1 1 T T"]:
        """Build the mask that all rows of an unpadded batch share, or take that of an earlier batch.

        The kind must not need spans; `window` is the sliding window, in tokens.
        """
        # Tensors that are made in inference mode cannot be used everywhere outside.
        key = kind, window, is_real.shape[1], is_real.device, torch.is_inference_mode_enabled()
        mask = self._kept.pop(key, None)
        self._kept[key] = batch_mask(kind, is_real[:1], window=window).unsqueeze(1) if mask is None else mask
        while len(self._kept) > 1 and sum(each.numel() for each in self._kept.values()) > KEPT_BYTES:
            del self._kept[next(iter(self._kept))]  # the one that was not used for longest
        return self._kept[key]
