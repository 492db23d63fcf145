"""The untouched decoder as a reference: what wiring it, causal at every block, must leave as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.wiring.forward import run_batch
from extract.wiring.interface import only_causal
from extract.wiring.precision import in_float32
from extract.wiring.probe_rows import plain_batch, probe_ids

INFLUENCE_TOKENS = 6
DRIFT_ALLOWED = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 3e-2}  # relative to the largest latent of the layer
SHORT_WINDOW = 4
WINDOW_NAMES = ("sliding_window", "window_size", "sliding_window_size")


@contextmanager
def short_windows(decoder: Decoder) -> Iterator[None]:
    """Shorten every sliding window to `SHORT_WINDOW` tokens until the `with` block ends."""
    config: Any = decoder.module.config
    owners = [config, config.get_text_config(), *decoder.module.modules()]
    found = {(id(owner), name): owner for owner in owners for name in WINDOW_NAMES if _is_long(vars(owner).get(name))}
    before = {key: vars(owner)[key[1]] for key, owner in found.items()}
    try:
        for (_, name), owner in found.items():
            setattr(owner, name, SHORT_WINDOW)
        yield
    finally:
        for key, owner in found.items():
            setattr(owner, key[1], before[key])


def _is_long(window: object) -> bool:
    return isinstance(window, int) and not isinstance(window, bool) and window > SHORT_WINDOW


def probe_layers(decoder: Decoder) -> Float[Tensor, "L T D"]:
    """Compute hidden states of one short row in float32, from the embedding to the last block, on the CPU."""
    ids = probe_ids(decoder, min(INFLUENCE_TOKENS, decoder.description.window), seed=0)
    found: list[Tensor] = []
    top = len(decoder.blocks)
    with in_float32(decoder):
        run_batch(decoder, plain_batch(ids.unsqueeze(0)), lambda _, h: found.append(h[0].float().cpu()), depth=top)
    return torch.stack(found)


def looks_ahead(decoder: Decoder) -> bool:
    """Whether the first token of a short row changes with the last one, in a decoder that is not wired."""
    n_tokens = min(INFLUENCE_TOKENS, decoder.description.window)
    row, other = (probe_ids(decoder, n_tokens, seed=seed) for seed in (0, 1))
    rows = torch.stack([row, torch.cat([row[:1], other[1:]])])
    moved = False

    def visit(_: int, hidden: Tensor) -> None:
        nonlocal moved
        first = hidden[:, 0].float()
        moved = moved or bool((first[1] - first[0]).abs().max() > 1e-6 * first.abs().max())

    with in_float32(decoder):
        run_batch(decoder, plain_batch(rows), visit, depth=len(decoder.blocks))
    return moved


def require_equal(untouched: Float[Tensor, "L T D"], wired: Float[Tensor, "L T D"], decoder: Decoder) -> None:
    """Check that wiring a decoder, causal at every block, changes no layer by more than rounding (`DecoderError`)."""
    drift = layer_drift(wired, untouched)
    wrong = (drift > DRIFT_ALLOWED["float32"]).nonzero()
    if len(wrong):
        layer = int(wrong[0])
        raise only_causal(
            decoder.description.family,
            "gives other results through the wiring than without it "
            f"(layer {decoder.layers[layer]} differs by {float(drift[layer]):.2g} under causal masks)",
        )


def layer_drift(found: Float[Tensor, "L *N"], wanted: Float[Tensor, "L *N"]) -> Float[Tensor, " L"]:
    """Largest difference per layer, relative to the largest wanted value; infinite where it is NaN."""
    scale = wanted.abs().flatten(1).amax(1).clamp(min=1e-6)
    return ((found - wanted).abs().flatten(1).amax(1) / scale).nan_to_num(nan=float("inf"))
