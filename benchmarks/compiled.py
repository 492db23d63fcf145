"""Blocks compiled by `torch.compile`: what they save, what their start-up takes, and from how many texts on that pays.

`python -m benchmarks.compiled` measures a CPU and writes results/cpu-compiled.json; benchmarks/gpu.py measures a card.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.extraction import N_SENTENCES, choose_sentences, make_batches
from benchmarks.machine import describe_machine
from benchmarks.timing import compare, seconds_of
from extract.decoders.decoder import Decoder, load_decoder
from extract.decoders.decoder_spec import DecoderSpec
from extract.errors import first_line
from extract.inputs.batches import Batch
from extract.linear import QuickLinear
from extract.wiring.plan_wiring import forward_inputs

OUT = Path(__file__).parent / "results" / "cpu-compiled.json"
Way = Callable[[torch.nn.Module], Any]
"""Makes the compiled forward of a block."""


@torch.library.custom_op("icecore_benchmarks::quick_linear", mutates_args=())
def quick_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear map as an extraction does; compilers take it as it is and fuse what is around it."""
    with QuickLinear(varied=True):
        return torch.nn.functional.linear(x, weight, bias)


@quick_linear.register_fake
def _(x: Tensor, weight: Tensor, _bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def compile_plainly(block: torch.nn.Module) -> Any:
    """Compile a block with PyTorch's own products."""
    return torch.compile(block.forward, dynamic=True)


def compile_around_products(block: torch.nn.Module) -> Any:
    """Compile what is between the products of a block, which stay those of an extraction."""
    linear: list[Any] = [part for part in block.modules() if type(part) is torch.nn.Linear]
    forwards = [lambda x, own=part: quick_linear(x, own.weight, own.bias) for part in linear]
    compiled = torch.compile(block.forward, dynamic=True)

    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            for part, quick in zip(linear, forwards, strict=True):
                part.forward = quick
            return compiled(*args, **kwargs)
        finally:
            for part in linear:
                vars(part).pop("forward", None)

    return forward


WAYS: dict[str, Way] = {
    "compiled, PyTorch's products": compile_plainly,
    "compiled around oneDNN's products": compile_around_products,
}


def with_forwards(decoder: Decoder, forwards: list[Any], run: Callable[[], object]) -> Callable[[], None]:
    """Run something with other forwards of the blocks; hooks stay outside of them."""

    def side() -> None:
        try:
            for block, forward in zip(decoder.blocks, forwards, strict=True):
                block.forward = forward
            run()
        finally:
            for block in decoder.blocks:
                vars(block).pop("forward", None)

    return side


def compare_ways(
    decoder: Decoder,
    ways: Mapping[str, Way],
    *,
    plain: Callable[[], object],
    run: Callable[[], object],
    look: Callable[[], Tensor],
    repeats: int,
) -> Iterator[dict[str, Any]]:
    """Compare compiled blocks with plain ones, and what they compute; a way that does not work says why.

    Args:
        decoder: The decoder.
        ways: How blocks are compiled, by what it is called.
        plain: Computes everything with plain blocks.
        run: Computes the same with whatever forwards the blocks have.
        look: Returns something that `run` computes.
        repeats: Timings of each side, in turn.

    Yields:
        Of each way, the ratio of times, the largest difference to plain blocks against the largest value, and the
        seconds that the first run took longer than later ones; or why it failed.
    """
    wanted, found = look(), []
    for name, compile_block in ways.items():
        torch.compiler.reset()
        try:
            compiled = [compile_block(block) for block in decoder.blocks]
            side = with_forwards(decoder, compiled, run)
            first = seconds_of(side)
            with_forwards(decoder, compiled, lambda: found.append(look()))()
            drift = float((found.pop() - wanted).abs().max() / wanted.abs().max())
            ratio = compare(f"plain vs {name} blocks", (("plain", plain), (name, side)), bar="> 1", repeats=repeats)
            yield {
                "name": name,
                "largest_difference": drift,
                "start_up_seconds": first - ratio.seconds[name],
                "comparison": ratio.to_dict(),
            }
        except Exception as error:  # whatever a compiler raises
            yield {"name": name, "failed": first_line(error)}
        finally:
            torch.compiler.reset()


def rows_to_pay(found: Mapping[str, Any], n_rows: int) -> int | None:
    """Count the rows from which on compiling saves more than its start-up takes; None where it never does."""
    seconds = found["comparison"]["seconds"]
    saved = (seconds["plain"] - seconds[found["name"]]) / n_rows
    return round(found["start_up_seconds"] / saved) if saved > 0 else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--sentences", type=int, default=N_SENTENCES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    decoder = load_decoder(DecoderSpec(asked.decoder), report=print)
    _, texts = choose_sentences(asked.sentences)
    batches = make_batches(decoder, texts)
    n_rows = sum(len(batch.ids) for batch in batches)

    def forward(batch: Batch) -> Tensor:
        states: Tensor = decoder.module(**forward_inputs(decoder, batch)).last_hidden_state
        return states

    def run() -> None:
        for batch in batches:
            forward(batch)

    def plain() -> None:
        with QuickLinear(varied=True):
            run()

    # Nothing that an earlier process has compiled is used, since start-up is measured.
    with torch.inference_mode(), torch._inductor.config.patch(force_disable_caches=True):
        look = partial(forward, batches[0])
        ways = list(compare_ways(decoder, WAYS, plain=plain, run=run, look=look, repeats=asked.repeats))
    for way in ways:
        if "failed" not in way:
            way["rows_to_pay"] = rows_to_pay(way, n_rows)
    results = {
        "decoder": asked.decoder,
        "n_rows": n_rows,
        "ways": ways,
        **describe_machine(),
    }
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(ways, indent=1))


if __name__ == "__main__":
    main()
