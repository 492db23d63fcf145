"""Where the time of an extraction goes: products on real tokens, the rest of the forward pass, pooling, all else."""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.extraction import POOLINGS, make_batches, whole_extraction
from benchmarks.timing import seconds_of
from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch
from extract.linear import QuickLinear, is_quick, round_rows
from extract.wiring.plan_wiring import forward_inputs
from extract.wiring.states import pool_batch

PRODUCTS = ("mkldnn::_linear_pointwise", "aten::mm", "aten::addmm", "aten::linear")
ATTENTION = ("scaled_dot_product",)


def break_down(decoder: Decoder, texts: Sequence[str], *, repeats: int) -> dict[str, float]:
    """Split the time of a whole extraction; every part is a share of it, and together they are 1.

    The forward pass, pooling and the whole are timed in turn, and their medians subtracted. A profile of the forward
    pass splits it further; what padding and rounded rows cost is their share of the rows that products compute.

    Args:
        decoder: The decoder, on a CPU.
        texts: The texts.
        repeats: Timings of each side, in turn.

    Returns:
        `products` on real tokens, `padding` and `rounding` of rows inside products, `attention`, `elementwise` (norms,
        rotations, activations, sums), `capture` (hooks and pooling), `rest` (tokenising, certificates, digests,
        writing that is not hidden), and `seconds` of the whole.
    """
    batches = make_batches(decoder, list(texts))

    def bare() -> None:
        with torch.inference_mode(), QuickLinear(varied=True):
            for batch in batches:
                decoder.module(**forward_inputs(decoder, batch))

    def captured() -> None:
        for batch in batches:
            pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)

    with tempfile.TemporaryDirectory() as name:
        sides = (bare, captured, whole_extraction(decoder, list(texts), Path(name) / "caches"))
        timed = [[seconds_of(side) for side in sides] for _ in range(repeats + 1)][1:]
    forward, pooled, whole = (statistics.median(seconds) for seconds in zip(*timed, strict=True))
    products, attention = _shares_of_ops(bare)
    parts = {"attention": attention, "elementwise": 1 - products - attention}
    found = {name: share * forward / whole for name, share in {"products": products, **parts}.items()}
    real, computed, rounded = _count_rows(decoder, batches)
    spent = found["products"]
    found |= {
        "products": spent * real / rounded,
        "padding": spent * (computed - real) / rounded,
        "rounding": spent * (rounded - computed) / rounded,
        "capture": (pooled - forward) / whole,
        "rest": (whole - pooled) / whole,
    }
    return {**found, "seconds": whole}


def _count_rows(decoder: Decoder, batches: Sequence[Batch]) -> tuple[int, int, int]:
    """Count tokens that are real, computed, and computed after rounding."""
    sizes = [batch.ids.numel() for batch in batches]
    real = sum(int(batch.n_tokens.sum()) for batch in batches)
    is_rounded = is_quick(next(decoder.module.parameters()))
    return real, sum(sizes), sum(map(round_rows, sizes)) if is_rounded else sum(sizes)


def _shares_of_ops(side: Callable[[], None]) -> tuple[float, float]:
    """Profile a forward pass; return the shares of products and of attention in its CPU time."""
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        side()
    events = watched.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    products = sum(event.self_cpu_time_total for event in events if event.key in PRODUCTS)
    attention = sum(event.self_cpu_time_total for event in events if any(name in event.key for name in ATTENTION))
    return products / total, attention / total
