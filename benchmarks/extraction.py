"""Extraction against a plain loop, capture against the bare forward, and the share of the matmul rate."""

import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import torch
from torch import Tensor

from benchmarks.timing import Comparison, compare, seconds_of
from extract.decoders.decoder import Decoder
from extract.inputs.batches import Batch, collate, group_by_length
from extract.inputs.template import InputTemplate
from extract.inputs.tokens import TextEncoder
from extract.linear import QuickLinear
from extract.run.extraction import extract_latents
from extract.run.extraction_spec import ExtractionSpec, batch_limits
from extract.wiring.plan_wiring import forward_inputs
from extract.wiring.states import pool_batch
from probes.data.task_table import load_task

N_SENTENCES = 512
POOLINGS = ("last", "mean")
SPEC = ExtractionSpec(poolings=POOLINGS)
PROMPTS, N_IN_PROMPTS = ("prompt-eol", "pretended-cot", "knowledge"), 128
"""Templates whose rows share a prefix, and the sentences of the shipped sample that are read in them."""


def choose_sentences(n: int = N_SENTENCES) -> tuple[str, list[str]]:
    """Take sentences of STS-B test evenly over the file, in its order; the shipped sample if STS-B is not available.

    Args:
        n: How many.

    Returns:
        Name of the source, and the sentences, repeats included.
    """
    import os

    has_data = bool(os.environ.get("ICECORE_DATA"))
    task = load_task("stsb-local" if has_data else "sts-sample")
    rows = task.splits["test" if has_data else "train"]
    texts = [text for pair in zip(rows["sentence1"], rows["sentence2"], strict=True) for text in pair]
    step = max(1, len(texts) // n)
    return task.name, texts[::step][:n]


def plain_loop(model: Any, decoder: Decoder, texts: list[str], path: Path) -> Callable[[], None]:
    """Build the loop a script would have: 32 texts in dataset order, padded, all hidden states, the same outputs."""

    def run() -> None:
        kept: list[Tensor] = []
        for start in range(0, len(texts), 32):
            batch = decoder.tokenizer(texts[start : start + 32], return_tensors="pt", padding=True).to(decoder.device)
            with torch.no_grad():
                states = torch.stack(model(**batch, output_hidden_states=True).hidden_states).float()
            mask = batch["attention_mask"]
            last = states[:, torch.arange(len(mask), device=mask.device), mask.sum(1) - 1]
            mean = (states * mask[None, :, :, None]).sum(2) / mask.sum(1)[None, :, None]
            kept.append(torch.stack([last, mean]).cpu())
        latents = torch.cat(kept, dim=2)
        with h5py.File(path, "w") as file:
            for p, pooling in enumerate(POOLINGS):
                for layer in range(latents.shape[1]):
                    file[f"{pooling}/{layer}"] = latents[p, layer].numpy()

    return run


def whole_extraction(decoder: Decoder, texts: list[str], folder: Path) -> Callable[[], None]:
    """Build a whole extraction into an empty folder: tokenising, certificates, writing, digests and all."""

    def run() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        extract_latents(decoder, texts, spec=SPEC, folder=folder)

    return run


def make_batches(decoder: Decoder, texts: list[str], spec: ExtractionSpec = SPEC) -> list[Batch]:
    """Make the batches an extraction of these texts computes."""
    encoder = TextEncoder(decoder.tokenizer, spec.template, window=decoder.description.window)
    encoded = encoder(list(dict.fromkeys(texts)))
    most, fewest = batch_limits(spec, decoder.device)
    groups = group_by_length([len(item.ids) for item in encoded], batch_tokens=most, min_tokens=fewest)
    return [collate([encoded[i] for i in group], range(len(group))) for group in groups]


def compare_with_loops(decoder: Decoder, causal_lm: Any, texts: list[str], *, repeats: int) -> list[Comparison]:
    """Compare an extraction with the plain loop, with and without the language-model head."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = whole_extraction(decoder, texts, folder / "caches")
        return [
            compare(
                f"extraction vs plain loop over {label}",
                (("plain loop", plain_loop(model, decoder, texts, folder / "loop.h5")), ("icecore", ours)),
                bar=bar,
                repeats=repeats,
            )
            for label, model, bar in (
                ("AutoModelForCausalLM", causal_lm, ">= 2.5"),
                ("the model without its head", decoder.module, "(none)"),
            )
        ]


def compare_templates(decoder: Decoder, *, repeats: int) -> tuple[list[Comparison], dict[str, Any]]:
    """Compare extractions in prompts whose rows share what they begin with against rows that do not, certificates too.

    Args:
        decoder: The decoder.
        repeats: Timed pairs.

    Returns:
        The comparisons, apart / shared, and for each template the tokens of all batches, those that are left were every
        batch to share, and the largest difference of latents, relative to the largest of the layer.
    """
    rows = load_task("sts-sample").splits["train"]
    texts = list(dict.fromkeys([*rows["sentence1"], *rows["sentence2"]]))[:N_IN_PROMPTS]
    found, facts = [], {}
    for name in PROMPTS:
        spec = ExtractionSpec(poolings=POOLINGS, template=InputTemplate(name=name))
        with tempfile.TemporaryDirectory() as folder:
            apart, shared = (Path(folder) / side for side in ("apart", "shared"))
            sides = (
                ("apart", in_prompts(decoder, texts, spec, apart, shares=False)),
                ("shared", in_prompts(decoder, texts, spec, shared, shares=True)),
            )
            found.append(
                compare(f"template {name}: rows apart vs shared", sides, bar="> 1", repeats=repeats, warm_up=False)
            )
            caches = [extract_latents(decoder, texts, spec=spec, folder=side) for side in (apart, shared)]  # found
            one, other = (cache.gather(cache.rows_of(texts), "last") for cache in caches)
        batches = make_batches(decoder, texts, spec)
        n_apart = sum(batch.ids.numel() for batch in batches)
        facts[name] = {
            "tokens_apart": n_apart,
            "tokens_shared": n_apart - sum(batch.n_shared * (len(batch.rows) - 1) for batch in batches),
            "n_prefix": caches[1].certificate["batches"]["n_prefix"],
            "largest_difference": float(((one - other).abs().amax((1, 2)) / one.abs().amax((1, 2))).max()),
        }
    return found, {"n": len(texts), "templates": facts}


def in_prompts(
    decoder: Decoder, texts: list[str], spec: ExtractionSpec, folder: Path, *, shares: bool
) -> Callable[[], None]:
    """Build a whole extraction into an empty folder, with rows that share what they begin with or without."""

    def run() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        with patch.object(ExtractionSpec, "shares_prefix", lambda *_: shares):
            extract_latents(decoder, texts, spec=spec, folder=folder)

    return run


def compare_capture(decoder: Decoder, batches: list[Batch], *, repeats: int) -> Comparison:
    """Compare capture and pooling of all layers with the bare forward on the same batches, by the same products."""

    def bare() -> None:
        with torch.inference_mode(), QuickLinear(varied=True):
            for batch in batches:
                decoder.module(**forward_inputs(decoder, batch))

    def captured() -> None:
        for batch in batches:
            pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)

    sides = (("capture and pooling", captured), ("bare forward", bare))
    return compare("capture and pooling vs bare forward", sides, bar="<= 1.05", repeats=repeats)


Clock = Callable[[Callable[[], object]], float]
"""Times one call, in seconds."""


def matmul_rate(device: torch.device, *, repeats: int = 5, size: int = 1024, clock: Clock = seconds_of) -> float:
    """Measure the machine's own rate of float32 products by the way heads and extraction take, in GFLOP/s."""
    x, weight = torch.randn(2, size, size, device=device)

    def multiply() -> None:
        with torch.inference_mode(), QuickLinear():
            for _ in range(8):
                torch.nn.functional.linear(x, weight)

    clock(multiply)
    return 8 * 2.0 * size**3 / statistics.median(clock(multiply) for _ in range(repeats)) / 1e9


def matmul_share(decoder: Decoder, batches: list[Batch], *, repeats: int) -> dict[str, float]:
    """Work out the share of the machine's own matmul rate reached on real tokens.

    The rate is that of the products the extraction uses; PyTorch's own rate is reported beside it.

    Args:
        decoder: The decoder.
        batches: Batches of an extraction.
        repeats: Timings of each side, in turn; medians are used.

    Returns:
        `share`, and in GFLOP/s the rate of the products alone, PyTorch's own, and the extraction's.
    """
    linear = [m for m in decoder.module.modules() if isinstance(m, torch.nn.Linear)]
    n_tokens = sum(int(batch.n_tokens.sum()) for batch in batches)
    flops = 2.0 * n_tokens * sum(m.in_features * m.out_features for m in linear)
    widest = max(linear, key=lambda m: m.in_features * m.out_features)
    rows = max(batch.ids.numel() for batch in batches)
    x = torch.randn(rows, widest.in_features, dtype=widest.weight.dtype, device=decoder.device)
    rounds = max(1, int(flops / (2.0 * rows * widest.in_features * widest.out_features) / 8))

    def multiply() -> None:
        for _ in range(rounds):
            torch.nn.functional.linear(x, widest.weight)

    def plain() -> None:
        with torch.inference_mode():
            multiply()

    def quick() -> None:
        with torch.inference_mode(), QuickLinear():
            multiply()

    def extract() -> None:
        for batch in batches:
            pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)

    timed = [[seconds_of(side) for side in (quick, plain, extract)] for _ in range(repeats + 1)][1:]
    work = (2.0 * rounds * rows * widest.in_features * widest.out_features,) * 2 + (flops,)
    own, by_pytorch, reached = (
        flop / statistics.median(seconds) / 1e9 for flop, seconds in zip(work, zip(*timed, strict=True), strict=True)
    )
    return {
        "share": reached / own,
        "matmul_gflops": own,
        "pytorch_matmul_gflops": by_pytorch,
        "extraction_gflops": reached,
    }
