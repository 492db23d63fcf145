"""What a GPU reaches: tokens per second, the share of its matmul rate, and what plans, copies and compilation change.

`python -m benchmarks.gpu` measures a card and writes results/gpu.json. No card has been measured yet. `--quick --out
FILE` tries every part on a CPU with tiny decoders; its numbers say nothing about a GPU.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from benchmarks.compiled import Way, compare_ways
from benchmarks.heads import compare_heads
from benchmarks.machine import describe_machine
from benchmarks.masks import compare_plans
from benchmarks.timing import Comparison, compare, seconds_of
from extract.decoders.decoder import Decoder, wrap_decoder
from extract.inputs.batches import Batch
from extract.poolings.memory import HostCopies, HostCopy
from extract.run.extraction import Sink
from extract.run.extraction_spec import ExtractionSpec, batch_limits
from extract.store.writer import round_latents
from extract.wiring.plan_wiring import plain_batch
from extract.wiring.states import pool_batch

POOLINGS = ("mean", "last")
LENGTHS = (16, 512)
STORAGE = "bfloat16"
N_BATCHES = 8
WAYS: dict[str, Way] = {
    "compiled": lambda block: torch.compile(block.forward),
    "CUDA graphs": lambda block: torch.compile(block.forward, mode="reduce-overhead"),
}
"""How blocks are compiled, by what it is called."""


@dataclass(frozen=True)
class Shape:
    """A decoder with random weights: Llama's architecture in these sizes."""

    name: str
    width: int
    inner: int
    n_blocks: int
    n_heads: int
    n_key_heads: int
    vocabulary: int

    def make(self, device: torch.device) -> Decoder:
        """Draw the weights and put the decoder on a device, in bfloat16."""
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=self.inner,
            num_hidden_layers=self.n_blocks,
            num_attention_heads=self.n_heads,
            num_key_value_heads=self.n_key_heads,
            max_position_embeddings=max(LENGTHS),
            bos_token_id=1,
            eos_token_id=2,
        )
        torch.manual_seed(0)
        with torch.device(device):
            model: Any = LlamaModel(config)
        core = Tokenizer(models.WordLevel({"<s>": 0, "ice": 1}, unk_token="<s>"))
        wrap: Any = PreTrainedTokenizerFast
        return wrap_decoder(model.to(torch.bfloat16), wrap(tokenizer_object=core, bos_token="<s>", pad_token="<s>"))

    def flops(self, n_tokens: int, length: int) -> float:
        """Count the operations of the blocks: products with weights, and causal attention at half of all pairs."""
        head = self.width // self.n_heads
        weights = self.width * (2 * self.width + 2 * self.n_key_heads * head + 3 * self.inner)
        return float(n_tokens) * self.n_blocks * (2 * weights + 2 * length * self.width)


SHAPES = (
    Shape("135M (SmolLM2)", 576, 1536, 30, 9, 3, 49152),
    Shape("1B (Llama)", 2048, 8192, 16, 32, 8, 128256),
    Shape("7B (Llama)", 4096, 11008, 32, 32, 32, 32000),
)
QUICK = (Shape("tiny", 64, 96, 10, 4, 2, 320),)


def matmul_rate(device: torch.device, size: int) -> float:
    """Measure the rate of large dense bfloat16 products, in operations per second; the median of nine."""
    x, weight = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)

    def multiply() -> None:
        for _ in range(8):
            torch.mm(x, weight)

    seconds_of(multiply)
    return 8 * 2.0 * size**3 / statistics.median(seconds_of(multiply) for _ in range(9))


def make_batches(shape: Shape, length: int, device: torch.device) -> list[Batch]:
    """Draw batches of one length, as full as an extraction makes them."""
    n_rows = max(1, batch_limits(ExtractionSpec(), device)[0] // length)
    drawn = torch.Generator().manual_seed(length)
    return [
        plain_batch(torch.randint(0, shape.vocabulary, (n_rows, length), generator=drawn)) for _ in range(N_BATCHES)
    ]


def loop_over(decoder: Decoder, batches: list[Batch], *, is_waiting: bool = False) -> Callable[[], None]:
    """Build the loop of an extraction without tokeniser and file: every layer pooled, rounded and on the host.

    Where it is waiting, the latents of each batch are fetched before the next one is computed.
    """
    copies = HostCopies()

    def consume(copy: HostCopy) -> None:
        with copy as (stored, report):
            if int(report[0]):
                raise RuntimeError(f"a latent of {tuple(stored.shape)} is not finite")

    def run() -> None:
        with closing(Sink()) as sink:
            for batch in batches:
                latents = pool_batch(decoder, batch, poolings=POOLINGS, layers=decoder.layers)
                stored, report = round_latents(latents, STORAGE)
                if is_waiting:
                    stored, report = stored.cpu(), report.cpu()
                sink.put(partial(consume, copies.start(stored, report)))

    return run


def measure_shape(shape: Shape, device: torch.device, rate: float, *, repeats: int) -> Iterator[dict[str, Any]]:
    """Measure one decoder at every length; yields a record for each."""
    decoder = shape.make(device)
    for length in LENGTHS:
        batches = make_batches(shape, length, device)
        n_tokens = sum(int(batch.n_tokens.sum()) for batch in batches)
        look = partial(pool_batch, decoder, batches[0], poolings=POOLINGS, layers=decoder.layers)
        overlapping, waiting = (loop_over(decoder, batches, is_waiting=waits) for waits in (False, True))
        sides = (("waiting", waiting), ("overlapping", overlapping))
        ratio = compare(f"{shape.name}, {length} tokens: waiting vs overlapping", sides, bar=">= 1", repeats=repeats)
        seconds = ratio.seconds["overlapping"]
        found = compare_ways(decoder, WAYS, plain=overlapping, run=overlapping, look=look, repeats=repeats)
        yield {
            "decoder": shape.name,
            "tokens_of_a_text": length,
            "tokens_per_batch": n_tokens // len(batches),
            "tokens_per_second": n_tokens / seconds,
            "share_of_matmul_rate": shape.flops(n_tokens, length) / seconds / rate,
            "comparisons": _plain([ratio, *compare_plans(decoder, batches, repeats=repeats)]),
            "options": list(found),
        }


def _plain(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    return [each.to_dict() for each in comparisons]


def measure(device: torch.device, shapes: tuple[Shape, ...], *, size: int, repeats: int) -> dict[str, Any]:
    """Measure everything on a device; `size` is that of the products that show its rate."""
    rate = matmul_rate(device, size)
    shown = [each for shape in shapes for each in measure_shape(shape, device, rate, repeats=repeats)]
    heads, facts = compare_heads(device, repeats=repeats, steps=5 if device.type == "cuda" else 1)
    return {
        "is_of_a_card": device.type == "cuda",
        "matmul_tflops": rate / 1e12,
        "extractions": shown,
        "heads": {"comparisons": _plain(heads), "facts": facts},
        **describe_machine(device),
    }


def main() -> None:
    """Measure the card, or try the benchmark on a CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny decoders, on whatever there is")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    has_card = torch.cuda.is_available()
    if not has_card and not (asked.quick and asked.out):
        sys.exit("no GPU was found; try the benchmark on a CPU with --quick --out FILE.")
    device = torch.device("cuda" if has_card else "cpu")
    shapes, size = (QUICK, 256) if asked.quick else (SHAPES, 8192)
    results = measure(device, shapes, size=size, repeats=asked.repeats)
    out = asked.out or Path(__file__).parent / "results" / "gpu.json"
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for each in results["extractions"]:
        print(
            f"{each['decoder']}, {each['tokens_of_a_text']} tokens: {each['tokens_per_second']:,.0f} tokens/s, "
            f"{each['share_of_matmul_rate']:.2f} of {results['matmul_tflops']:.3g} TFLOP/s"
        )
    if not results["is_of_a_card"]:
        print("no card was measured: these are numbers of a CPU, from a trial of the benchmark")
    print(f"written to {out.name}")


if __name__ == "__main__":
    main()
