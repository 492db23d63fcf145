"""Certificates: proof, stored in every cache, that masks, batches and weights behaved as promised."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.inputs.batching import Batch, collate
from extract.inputs.spans import CONTEXT
from extract.inputs.tokenised import TEXT, EncodedText
from extract.masks.plan import MaskPlan
from extract.masks.reach import expected_reach
from extract.wiring.capture import pool_batch, run_batch
from extract.wiring.interface import only_causal, require_obedient, wiring_of

PROBE_LENGTHS = (2, 5, 9)  # rows of the batch-invariance check, in tokens; the last one pads the others
INFLUENCE_TOKENS = 6
DRIFT_ALLOWED = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 3e-2}  # relative to the largest latent of the layer


def _probe_ids(decoder: Decoder, n_tokens: int, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, _n_vocabulary(decoder), (n_tokens,), generator=generator)


def _n_vocabulary(decoder: Decoder) -> int:
    config: Any = decoder.module.config
    return int(config.get_text_config().vocab_size)


def _encode(ids: Tensor) -> EncodedText:
    return EncodedText(ids.numpy(), np.full(len(ids), TEXT, np.int8), is_truncated=False)


def _plain_batch(ids: Tensor) -> Batch:
    return collate([_encode(row) for row in ids], range(len(ids)))


def influence(decoder: Decoder, *, n_tokens: int = INFLUENCE_TOKENS) -> Bool[Tensor, "L T T"]:
    """Measure which input positions move which outputs, layer by layer, under the plan in force.

    Each position in turn gets another token; rows of one batch hold the variants. The result is true at `[l, i, j]`
    when output `i` of layer `l`, from the embedding to the final norm, changes with input `j`.
    """
    base = _probe_ids(decoder, n_tokens, seed=0)
    other = _probe_ids(decoder, n_tokens, seed=1)
    other = torch.where(other == base, (other + 1) % _n_vocabulary(decoder), other)
    variants = base.repeat(n_tokens + 1, 1)
    variants[range(1, n_tokens + 1), range(n_tokens)] = other
    moved = torch.zeros(len(decoder.layers), n_tokens, n_tokens, dtype=torch.bool)

    def visit(position: int, hidden: Tensor) -> None:
        # Rows of equal shape go through identical kernels, so an untouched position is equal up to rounding only.
        scale = hidden[0].float().abs().amax(-1).clamp(min=1e-6)
        change = (hidden[1:].float() - hidden[:1].float()).abs().amax(-1) / scale
        moved[position] = (change > 1e-6 if hidden.dtype == torch.float32 else change > 1e-3).cpu().T

    batch = replace(_plain_batch(variants), spans=probe_spans(n_tokens).repeat(n_tokens + 1, 1))
    run_batch(decoder, batch, visit)
    return moved


def probe_spans(n_tokens: int) -> Int[Tensor, " T"]:
    """Put one span over the third and fourth token of the probe row, so that a hybrid mask shows itself."""
    spans = torch.full((n_tokens,), CONTEXT)
    spans[2:4] = 0
    return spans


def check_influence(decoder: Decoder, plan: MaskPlan) -> dict[str, Any]:
    """Certify that exactly the positions reached by a plan, which is in force, move at every layer.

    Raises:
        CertificateError: Names the first layer and position where plan and decoder differ.
        DecoderError: A block never asked for its mask: the family ignores plans.
    """
    n_tokens = min(INFLUENCE_TOKENS, decoder.description.window)
    moved = influence(decoder, n_tokens=n_tokens)
    n_blocks = len(decoder.blocks)
    wiring = wiring_of(decoder.blocks)
    windows: list[int | None] = [None] * n_blocks
    if wiring is not None:
        require_obedient(wiring, family=decoder.description.family)
        windows = [wiring.windows[block] for block in range(n_blocks)]
    expected = expected_reach(plan, n_blocks, n_tokens, windows=windows, spans=probe_spans(n_tokens))
    for position, layer in enumerate(decoder.layers):
        # A position outside the plan that moves is proof of a wrong mask. One inside it that does not may only be too
        # weak to see in rounding: its own token and its neighbours must show, and nine in ten of all.
        leak = moved[position] & ~expected[position]
        deaf = expected[position] & ~moved[position]
        # The untouched causal path does not reveal its windows, so only neighbours can be required there.
        if wiring is None or int(deaf.sum()) * 10 <= int(expected[position].sum()):
            deaf = deaf.triu(-1).tril(1)
        for wrong, verb in ((leak.nonzero(), "depends on"), (deaf.nonzero(), "ignores")):
            if len(wrong):
                i, j = wrong[0].tolist()
                raise CertificateError(
                    f"the plan {plan.text!r} did not take effect: output {i} of layer {layer} {verb} input {j}. "
                    f"The family {decoder.description.family!r} cannot be extracted under this plan."
                )
    return {"is_as_planned": True, "n_tokens": n_tokens, "n_layers": len(decoder.layers)}


def probe_layers(decoder: Decoder) -> Float[Tensor, "L T D"]:
    """Compute hidden states of one short row, from the embedding to the last block, on the CPU."""
    ids = _probe_ids(decoder, min(INFLUENCE_TOKENS, decoder.description.window), seed=0)
    found: list[Tensor] = []
    top = len(decoder.blocks)
    run_batch(decoder, _plain_batch(ids.unsqueeze(0)), lambda _, h: found.append(h[0].float().cpu()), depth=top)
    return torch.stack(found)


def require_equal(untouched: Float[Tensor, "L T D"], wired: Float[Tensor, "L T D"], decoder: Decoder) -> None:
    """Check that wiring a decoder, causal at every block, changes no layer by more than rounding (`DecoderError`)."""
    drift = _drift(wired, untouched)
    wrong = (drift > DRIFT_ALLOWED[decoder.description.dtype]).nonzero()
    if len(wrong):
        layer = int(wrong[0])
        raise only_causal(
            decoder.description.family,
            "gives other results through the wiring than without it "
            f"(layer {decoder.layers[layer]} differs by {float(drift[layer]):.2g} under causal masks)",
        )


def _drift(found: Float[Tensor, "L *N"], wanted: Float[Tensor, "L *N"]) -> Float[Tensor, " L"]:
    """Largest difference per layer, relative to the largest wanted value; infinite where it is NaN."""
    scale = wanted.abs().flatten(1).amax(1).clamp(min=1e-6)
    return ((found - wanted).abs().flatten(1).amax(1) / scale).nan_to_num(nan=float("inf"))


def check_batch_invariance(decoder: Decoder) -> dict[str, Any]:
    """Certify that a text's latents do not depend on its neighbours or on the padding side.

    Returns the largest drift per padding side, relative to the largest latent of the layer.

    Raises:
        CertificateError: A drift beyond rounding; names side, layer and size.
    """
    lengths = [min(n, decoder.description.window) for n in PROBE_LENGTHS]
    encoded = [_encode(_probe_ids(decoder, n, seed=n)) for n in lengths]
    short, n_short = encoded[:-1], len(encoded) - 1
    alone = torch.cat([_latents(decoder, collate([text], [0])) for text in short], dim=2)
    # One batch pads every short row on either side: whatever each row's padding is, its latents must be its own.
    width = len(encoded[-1].ids)
    right, left = collate(encoded, range(len(encoded))), collate(short, range(n_short), side="left", width=width)
    together = _latents(decoder, _joined(right, left))
    by_side = {"right": together[:, :, :n_short], "left": together[:, :, len(encoded) :]}
    allowed = DRIFT_ALLOWED[decoder.description.dtype]
    result: dict[str, Any] = {"allowed": allowed}
    for side, found in by_side.items():
        drift = _drift(found, alone)
        worst = int(drift.argmax())
        if float(drift[worst]) > allowed:
            raise CertificateError(
                f"latents depend on {side} padding: layer {decoder.layers[worst]} drifts by {float(drift[worst]):.2g} "
                f"of its largest value (allowed {allowed:g}). The family {decoder.description.family!r} needs another "
                "attention implementation or dtype."
            )
        result[side] = float(drift[worst])
    return result


def _joined(one: Batch, other: Batch) -> Batch:
    """Put two batches of one width into one."""
    rows = np.arange(len(one.rows) + len(other.rows))
    return Batch(
        rows=rows, positions=rows,
        ids=torch.cat((one.ids, other.ids)),
        is_real=torch.cat((one.is_real, other.is_real)),
        is_text=torch.cat((one.is_text, other.is_text)),
        n_tokens=np.concatenate([one.n_tokens, other.n_tokens]),
        is_truncated=np.concatenate([one.is_truncated, other.is_truncated]),
    )  # fmt: skip


def _latents(decoder: Decoder, batch: Batch) -> Float[Tensor, "L P B D"]:
    return pool_batch(decoder, batch, poolings=("last", "mean"), layers=decoder.layers).cpu()
