"""Certificates: proof, stored in every cache, that masks, batches and weights behaved as promised."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from extract.decoders.decoder import Decoder
from extract.errors import CertificateError
from extract.inputs.batching import Batch, collate
from extract.masks.plan import MaskPlan
from extract.masks.reach import expected_reach
from extract.masks.truth import require_truth
from extract.proofs.block_proof import TOLERANCE, prove_blocks
from extract.proofs.copy_proof import prove_copies
from extract.proofs.isolation import drift_when_watched
from extract.proofs.score_proof import prove_scores
from extract.wiring.capture import Pooler, pool_batch
from extract.wiring.forward import run_batch
from extract.wiring.interface import Wiring, require_attention, wiring_of
from extract.wiring.precision import has_experts, in_float32
from extract.wiring.probe_rows import encode_ids, plain_batch, probe_ids, probe_spans, vocabulary_size
from extract.wiring.untouched import DRIFT_ALLOWED, INFLUENCE_TOKENS, layer_drift

PLACEHOLDER = 0  # its column in the rows of certificates
PROBE_LENGTHS = (2, 5, 9)  # rows of the batch-invariance check, in tokens; the last one pads the others
DRIFT_SHOWN = 1e6  # stands for what is not finite, which JSON cannot hold


def influence(decoder: Decoder, *, n_tokens: int = INFLUENCE_TOKENS) -> Bool[Tensor, "L T T"]:
    """Measure which input positions move which outputs, layer by layer, under the plan in force.

    Each position in turn gets another token; rows of one batch hold the variants. The result is true at `[l, i, j]`
    when output `i` of layer `l`, from the embedding to the final norm, changes with input `j`.
    """
    base = probe_ids(decoder, n_tokens, seed=0)
    other = probe_ids(decoder, n_tokens, seed=1)
    other = torch.where(other == base, (other + 1) % vocabulary_size(decoder), other)
    variants = base.repeat(n_tokens + 1, 1)
    variants[range(1, n_tokens + 1), range(n_tokens)] = other
    moved = torch.zeros(len(decoder.layers), n_tokens, n_tokens, dtype=torch.bool)

    def visit(position: int, hidden: Tensor) -> None:
        # Rows of equal shape go through identical kernels, so an untouched position is equal up to rounding only.
        scale = hidden[0].float().abs().amax(-1).clamp(min=1e-6)
        change = (hidden[1:].float() - hidden[:1].float()).abs().amax(-1) / scale
        moved[position] = (change > 1e-6).cpu().T

    batch = plain_batch(variants, spans=probe_spans(n_tokens))
    if _prepends(decoder):
        batch = replace(batch, placeholder=torch.full((len(variants),), PLACEHOLDER))
    with in_float32(decoder):
        run_batch(decoder, batch, visit)
    return moved


def check_influence(decoder: Decoder, plan: MaskPlan, *, n_rows: int = 32, n_tokens: int = 64) -> dict[str, Any]:
    """Certify a plan in force: the mask of every block by itself, and that what it reaches moves at every layer.

    Args:
        decoder: The decoder.
        plan: The plan; blocks of an unwired decoder are left to transformers and not looked at by themselves.
        n_rows: Rows of a large batch of the extraction.
        n_tokens: Tokens of its longest row.

    Returns:
        Plain values for the cache.

    Raises:
        CertificateError: Names the first layer and position where plan and decoder differ.
        DecoderError: A block never asked for its mask: the family ignores plans.
    """
    require_truth()
    n_probed = min(INFLUENCE_TOKENS, decoder.description.window)
    moved = influence(decoder, n_tokens=n_probed)
    n_blocks = len(decoder.blocks)
    wiring = wiring_of(decoder.blocks)
    windows: list[int | None] = [None] * n_blocks
    blocks: dict[str, Any] = {}
    is_recurrent = wiring is not None and bool(wiring.silent)  # before proofs begin batches of their own
    if wiring is not None:
        require_attention(wiring, plan, family=decoder.description.family)
        prove = prove_scores if wiring.by_argument else prove_blocks
        blocks = prove(decoder, wiring, plan, n_rows=n_rows, n_tokens=n_tokens)
        _require_equal_when_watched(decoder, wiring, plan)
        if plan.prepend is not None:
            prove_copies(decoder, plan, n_tokens=n_probed, placeholder=PLACEHOLDER)
        windows = [wiring.windows.get(block) for block in range(n_blocks)]
    expected = expected_reach(
        plan,
        n_blocks,
        n_probed,
        windows=windows,
        spans=probe_spans(n_probed),
        placeholder=PLACEHOLDER if plan.prepend else None,
    )
    for position, layer in enumerate(decoder.layers):
        # A position outside the plan that moves is proof of a wrong mask. One inside it that does not may only be too
        # weak to see in rounding: where blocks are proved one by one, few of those are no matter.
        leak = moved[position] & ~expected[position]
        deaf = expected[position] & ~moved[position]
        if wiring is None:  # the untouched causal path does not reveal its windows: neighbours are required
            deaf = deaf.triu(-1).tril(1)
        elif is_recurrent or int(deaf.sum()) * 10 <= int(expected[position].sum()):
            deaf = deaf.triu().tril()
        for wrong, verb in ((leak.nonzero(), "depends on"), (deaf.nonzero(), "ignores")):
            if len(wrong):
                i, j = wrong[0].tolist()
                raise CertificateError(
                    f"the plan {plan.text!r} did not take effect: output {i} of layer {layer} {verb} input {j}. "
                    f"The family {decoder.description.family!r} cannot be extracted under this plan."
                )
    return {"is_as_planned": True, "n_tokens": n_probed, "n_layers": len(decoder.layers), **blocks}


def _require_equal_when_watched(decoder: Decoder, wiring: Wiring, plan: MaskPlan) -> None:
    """Check that a decoder computes the same states whether its blocks are watched or not."""
    with in_float32(decoder) as wide:
        drift = drift_when_watched(wide, wiring)
    worst = int(drift.argmax())
    if float(drift[worst]) > TOLERANCE["float32"]:
        raise CertificateError(
            f"the plan {plan.text!r} did not take effect: layer {decoder.layers[worst]} differs by "
            f"{float(drift[worst]):.2g} of its largest value when its blocks are not watched, so what was proved of "
            f"them does not hold. The family {decoder.description.family!r} cannot be extracted under this plan."
        )


def check_batch_invariance(decoder: Decoder) -> dict[str, Any]:
    """Certify that a text's latents do not depend on its neighbours or on padding on the right, as extraction pads.

    Returns the largest drift per padding side, relative to the largest latent of the layer; that of the left is only
    reported. Decoders with experts are looked at in float32, where rounding does not flip their routers.

    Raises:
        CertificateError: A drift beyond rounding; names side, layer and size.
    """
    if has_experts(decoder) and decoder.description.dtype != "float32":
        with in_float32(decoder) as wide:
            return check_batch_invariance(wide)
    lengths = [min(n, decoder.description.window) for n in PROBE_LENGTHS]
    place = PLACEHOLDER if _prepends(decoder) else None
    encoded = [replace(encode_ids(probe_ids(decoder, n, seed=n)), placeholder=place) for n in lengths]
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
        drift = layer_drift(found, alone)
        worst = int(drift.argmax())
        # Extraction pads on the right; some families count positions from the left whatever is padding there.
        if side == "right" and float(drift[worst]) > allowed:
            raise CertificateError(
                f"latents depend on {side} padding: layer {decoder.layers[worst]} drifts by {float(drift[worst]):.2g} "
                f"of its largest value (allowed {allowed:g}). The family {decoder.description.family!r} needs another "
                "attention implementation or dtype."
            )
        result[side] = min(float(drift[worst]), DRIFT_SHOWN)
    return result


def check_devices(decoder: Decoder) -> dict[str, Any]:
    """Certify that hidden states and latents are the same after they moved between the devices of a decoder's blocks.

    On some machines a copy from one GPU to another arrives as zeros, and nobody is told (transformers issue 36636).
    Every layer is copied to every device, pooled there, and compared with itself read straight from where it was
    computed. Other certificates prove the blocks, each on its own device.

    Raises:
        CertificateError: Names the layer and both devices.
    """
    devices = list(dict.fromkeys((decoder.device, *decoder.devices)))
    batch = plain_batch(probe_ids(decoder, min(INFLUENCE_TOKENS, decoder.description.window), seed=0).unsqueeze(0))
    pooler = Pooler(decoder, batch, poolings=("last",), layers=decoder.layers)

    def visit(position: int, hidden: Tensor) -> None:
        pooler(position, hidden)
        straight = hidden.cpu()
        arrived = [(device, hidden.to(device).cpu()) for device in devices]
        pooled = pooler.latents[position].cpu(), straight[:, -1:].float().transpose(0, 1)
        for device, found, wanted in [
            *((device, found, straight) for device, found in arrived),
            (decoder.device, *pooled),
        ]:
            if not torch.equal(found, wanted):
                raise CertificateError(
                    f"layer {decoder.layers[position]} changes on its way from {hidden.device} to {device}. Copies "
                    "between these devices cannot be trusted on this machine: use one of them (decoder.device, or "
                    "decoder.max_memory), or switch peer-to-peer copies off."
                )

    run_batch(decoder, batch, visit)
    return {"devices": list(map(str, devices)), "n_layers": len(decoder.layers)}


def _prepends(decoder: Decoder) -> bool:
    """Whether the plan in force has a placeholder before every text."""
    wiring = wiring_of(decoder.blocks)
    return wiring is not None and wiring.prepends


def _joined(one: Batch, other: Batch) -> Batch:
    """Put two batches of one width into one."""
    rows = np.arange(len(one.rows) + len(other.rows))
    places = [side.placeholder for side in (one, other) if side.placeholder is not None]
    return Batch(
        rows=rows,
        positions=rows,
        ids=torch.cat((one.ids, other.ids)),
        is_real=torch.cat((one.is_real, other.is_real)),
        roles=torch.cat((one.roles, other.roles)),
        copies=torch.cat((one.copies, other.copies)),
        last=torch.cat((one.last, other.last)),
        placeholder=torch.cat(places) if places else None,
        n_tokens=np.concatenate([one.n_tokens, other.n_tokens]),
        is_truncated=np.concatenate([one.is_truncated, other.is_truncated]),
    )


def _latents(decoder: Decoder, batch: Batch) -> Float[Tensor, "L P B D"]:
    return pool_batch(decoder, batch, poolings=("last", "mean"), layers=decoder.layers).cpu()
