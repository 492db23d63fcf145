"""Run every benchmark, print a table, write JSON: `make bench`, or `python -m benchmarks.run --help`."""

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.agreement import describe_agreement
from benchmarks.checksums import compare_checksums
from benchmarks.extraction import choose_sentences, compare_capture, compare_with_loops, make_batches, matmul_share
from benchmarks.heads import compare_heads
from benchmarks.masks import compare_plans, compare_sweeps
from benchmarks.memory import memory_growth
from benchmarks.probes import banking77_rows, compare_probes, why_skipped
from benchmarks.reba import compare_reba
from benchmarks.timing import Comparison
from benchmarks.tokens import Sizes, compare_layers, describe_streaming, time_streaming
from benchmarks.words import choose_word_texts, compare_words
from extract.decoders.decoder import Decoder
from extract.decoders.loading import load_decoder, quiet_loading
from extract.decoders.locate import locate_decoder
from extract.decoders.spec import DecoderSpec
from probes.logistic.options import SolverOptions
from probes.runs.record import describe_program

SECTIONS = ["extraction", "masks", "heads", "probes", "words", "tokens", "memory", "checksums", "reba"]
N_CHECKED = 96
"""Sentences of the section `checksums`."""


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=SECTIONS, choices=SECTIONS)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    comparisons: list[Comparison] = []
    results: dict[str, Any] = {}
    decoder = load_decoder(DecoderSpec(asked.decoder, dtype=asked.dtype), report=print)
    if "extraction" in asked.only:
        source, texts = choose_sentences()
        results["sentences"] = {"source": source, "n": len(texts), "n_unique": len(set(texts))}
        with quiet_loading():
            path = locate_decoder(asked.decoder, report=print).path
            whole: Any = AutoModelForCausalLM.from_pretrained(path, dtype=next(decoder.module.parameters()).dtype)
        comparisons += compare_with_loops(decoder, whole.eval().to(decoder.device), texts, repeats=asked.repeats)
        batches = make_batches(decoder, texts)
        comparisons.append(compare_capture(decoder, batches, repeats=asked.repeats))
        results["matmul_share"] = matmul_share(decoder, batches, repeats=asked.repeats)
    if "masks" in asked.only:
        batches = make_batches(decoder, choose_sentences()[1])
        comparisons += compare_plans(decoder, batches, repeats=asked.repeats)
        fullest = max(batches, key=lambda b: int(b.n_tokens.sum()))
        found, results["sweeps"] = compare_sweeps(decoder, [fullest], repeats=asked.repeats)
        comparisons += found
    if "heads" in asked.only:
        found, results["heads"] = compare_heads(decoder.device, repeats=asked.repeats)
        comparisons += found
    if "probes" in asked.only:
        results["probes"] = {"skipped": why_skipped()}
        if not why_skipped():
            options = SolverOptions(device=decoder.device.type)
            each, results["probes"] = compare_probes(banking77_rows(decoder), repeats=asked.repeats, options=options)
            comparisons.append(each)
    found, of_words = measure_words(decoder, asked.only, repeats=asked.repeats)
    comparisons += found
    results |= of_words
    if "memory" in asked.only:
        results["memory"] = memory_growth(asked.decoder)
        results["memory_of_words"] = memory_growth(asked.decoder, of="words")
    device = (
        torch.cuda.get_device_name() if decoder.device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    )
    results |= {
        "device": device,
        "machine": platform.machine(),
        "decoder": decoder.description.to_dict(),
        "repeats": asked.repeats,
        "comparisons": [item.to_dict() for item in comparisons],
        **describe_program(),
    }
    show(comparisons, results)
    out = asked.out or Path(__file__).parent / "results" / f"{decoder.device.type}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out.name}")


def measure_words(decoder: Decoder, only: list[str], *, repeats: int) -> tuple[list[Comparison], dict[str, Any]]:
    """Measure ReBA, the extraction of words, the heads that read them, and what checksums take of extractions.

    Args:
        decoder: The decoder.
        only: Sections that were asked for.
        repeats: Timed pairs.

    Returns:
        Comparisons, and facts by section.
    """
    comparisons: list[Comparison] = []
    results: dict[str, Any] = {}
    if "reba" in only:
        comparisons, results["reba"] = compare_reba(decoder, repeats=repeats)
    if "words" in only:
        found, results["words"] = compare_words(decoder, choose_word_texts()[1], repeats=repeats)
        comparisons += found
    if "tokens" in only:
        with tempfile.TemporaryDirectory() as name:
            each, facts = compare_layers(Path(name), Sizes(), device=decoder.device.type, repeats=repeats)
            results["tokens"] = {**facts, "streaming": time_streaming(Path(name), Sizes())}
        comparisons.append(each)
    if "checksums" in only:
        results["checksums"] = {}
        for what, texts in (("texts", choose_sentences(N_CHECKED)[1]), ("words", choose_word_texts(N_CHECKED)[1])):
            each, results["checksums"][what] = compare_checksums(decoder, texts, repeats=repeats)
            comparisons.append(each)
    return comparisons, results


def show(comparisons: list[Comparison], results: dict[str, Any]) -> None:
    """Print the table: the median ratio, its range, the bar, and the median seconds of both sides."""
    print(f"\n{results['device']}, {results['decoder']['name']} in {results['decoder']['dtype']}, medians")
    print(f"{'what':58} {'ratio':>6} {'range':>13} {'bar':>8}  seconds")
    for item in comparisons:
        low, high = min(item.ratios), max(item.ratios)
        seconds = ", ".join(f"{label} {value:.3g}" for label, value in item.seconds.items())
        print(f"{item.name:58} {item.ratio:6.2f} {low:6.2f}-{high:6.2f} {item.bar:>8}  {seconds}")
    if "matmul_share" in results:
        share = results["matmul_share"]
        print(
            f"{'share of the matmul rate on real tokens':58} {share['share']:6.2f} {'':13} {'>= 0.75':>8}  "
            f"{share['extraction_gflops']:.0f} of {share['matmul_gflops']:.0f} GFLOP/s "
            f"(PyTorch's own products: {share['pytorch_matmul_gflops']:.0f})"
        )
    for name, facts in results.get("heads", {}).items():
        epochs = ", ".join(f"{label} {seconds:.1f} s" for label, seconds in facts["epoch_seconds"].items())
        print(f"{name}: an epoch takes {epochs}; {facts['share']:.2f} of {facts['matmul_gflops']:.0f} GFLOP/s at once")
    for name, facts in results.get("sweeps", {}).items():
        print(
            f"{name}: predicted {facts['predicted']:.2f}, latents differ by {facts['largest_difference']:.1e} at most"
        )
    if "probes" in results:
        probes = results["probes"]
        print(f"probes: {f'skipped, {why}' if (why := probes.get('skipped')) else describe_agreement(probes)}")
    for what, shares in results.get("checksums", {}).items():
        for side, share in shares.items():
            title = f"checksums of {what}, {side}: share of the extraction's time"
            print(f"{title:58} {share:6.2%} {'':13} {'<= 2%':>8}")
    if "tokens" in results:
        print(describe_streaming(results["tokens"]["streaming"]))
    for key, what in (("memory", "rows"), ("memory_of_words", "rows of words")):
        if key not in results:
            continue
        memory = results[key]
        print(
            f"{f'growth of peak memory with 10x the {what}':58} {memory['growth']:6.2%} {'':12} {'<= 5%':>8}  "
            f"{memory['bytes'] / 1e6:.0f} MB to {memory['bytes_10x'] / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
