"""Run every benchmark, print its table, write its JSON: `make bench`, or `python -m benchmarks.run --help`."""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from benchmarks.adapting import compare_adapting
from benchmarks.agreement import describe_agreement
from benchmarks.checksums import compare_checksums
from benchmarks.extraction import (
    N_SENTENCES,
    choose_sentences,
    compare_capture,
    compare_templates,
    compare_with_loops,
    make_batches,
    matmul_share,
)
from benchmarks.heads import compare_heads
from benchmarks.ladder import climb
from benchmarks.machine import describe_machine
from benchmarks.masks import compare_plans, compare_sweeps
from benchmarks.memory import memory_growth
from benchmarks.peers import compare_with_peers
from benchmarks.probes import banking77_rows, compare_probes, why_skipped
from benchmarks.reba import compare_reba
from benchmarks.roofline import break_down
from benchmarks.service import compare_service
from benchmarks.timing import Comparison
from benchmarks.tokens import Sizes, compare_layers, describe_streaming, time_streaming
from benchmarks.words import choose_word_texts, compare_words
from extract.decoders.decoder import Decoder, load_decoder, quiet_loading
from extract.decoders.decoder_spec import DecoderSpec
from extract.decoders.fetch import locate_decoder
from probes.logistic.problem import SolverOptions

N_CHECKED = 96
"""Sentences of the section `checksums`."""
QUICK, N_QUICK = ("extraction",), 128
"""Sections and sentences of `--quick`."""
RESULTS = Path(__file__).parent / "results"
Found = tuple[list[Comparison], dict[str, Any]]
"""Comparisons of a section, and its facts by name."""


def measure_extraction(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure extraction against plain loops, capture against the bare forward, and the share of the matmul rate."""
    source, texts = choose_sentences(asked.sentences)
    with quiet_loading():
        path = locate_decoder(asked.decoder, report=print).path
        whole: Any = AutoModelForCausalLM.from_pretrained(path, dtype=next(decoder.module.parameters()).dtype)
    found = compare_with_loops(decoder, whole.eval().to(decoder.device), texts, repeats=asked.repeats)
    batches = make_batches(decoder, texts)
    found.append(compare_capture(decoder, batches, repeats=asked.repeats))
    facts = {"source": source, "n": len(texts), "n_unique": len(set(texts))}
    return found, {"sentences": facts, "matmul_share": matmul_share(decoder, batches, repeats=asked.repeats)}


def measure_templates(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure what the prefix that rows of a template share saves."""
    return compare_templates(decoder, repeats=asked.repeats)


def measure_roofline(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure where the time of an extraction goes."""
    return [], {"roofline": break_down(decoder, choose_sentences(asked.sentences)[1], repeats=asked.repeats)}


def measure_masks(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure what plans cost, and what sweeps save."""
    batches = make_batches(decoder, choose_sentences()[1])
    comparisons = compare_plans(decoder, batches, repeats=asked.repeats)
    fullest = max(batches, key=lambda b: int(b.n_tokens.sum()))
    found, facts = compare_sweeps(decoder, [fullest], repeats=asked.repeats)
    return comparisons + found, {"sweeps": facts}


def measure_heads(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure heads of all layers at once."""
    found, facts = compare_heads(decoder.device, repeats=asked.repeats)
    return found, {"heads": facts}


def measure_probes(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure logistic probes against scikit-learn's loop."""
    if why := why_skipped():
        return [], {"probes": {"skipped": why}}
    options = SolverOptions(device=decoder.device.type)
    each, facts = compare_probes(banking77_rows(decoder), repeats=asked.repeats, options=options)
    return [each], {"probes": facts}


def measure_ladder(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure the released ladder of FREEZE against the floor of its products."""
    return [], {"ladder": climb(decoder, repeats=asked.repeats)}


def measure_words(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure the extraction of words."""
    found, facts = compare_words(decoder, choose_word_texts()[1], repeats=asked.repeats)
    return found, {"words": facts}


def measure_tokens(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure the heads that read words."""
    with tempfile.TemporaryDirectory() as name:
        each, facts = compare_layers(Path(name), Sizes(), device=decoder.device.type, repeats=asked.repeats)
        return [each], {"tokens": {**facts, "streaming": time_streaming(Path(name), Sizes())}}


def measure_memory(_: Decoder, asked: argparse.Namespace) -> Found:
    """Measure how peak memory grows with the rows."""
    of_words = memory_growth(asked.decoder, of="words")
    return [], {"memory": memory_growth(asked.decoder), "memory_of_words": of_words}


def measure_checksums(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure what checksums take of extractions."""
    comparisons, facts = [], {}
    for what, texts in (("texts", choose_sentences(N_CHECKED)[1]), ("words", choose_word_texts(N_CHECKED)[1])):
        each, facts[what] = compare_checksums(decoder, texts, repeats=asked.repeats)
        comparisons.append(each)
    return comparisons, {"checksums": facts}


def measure_reba(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure ReBA against the plain forward of the same rows."""
    found, facts = compare_reba(decoder, repeats=asked.repeats)
    return found, {"reba": facts}


def measure_peers(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure extraction against other programs, where they are installed."""
    texts = list(dict.fromkeys(" ".join(text.split()) for text in choose_sentences(asked.sentences)[1]))
    place = Path(locate_decoder(asked.decoder, report=print).path)
    found, skipped = compare_with_peers(decoder, place, texts, repeats=asked.repeats)
    return found, {"peers": skipped, "n_sentences": len(texts)}


def measure_service(decoder: Decoder, asked: argparse.Namespace) -> Found:
    """Measure the requests of many clients at once against those of one."""
    found, facts = compare_service(decoder, repeats=asked.repeats)
    return [found], {"service": facts}


def measure_adapting(_: Decoder, asked: argparse.Namespace) -> Found:
    """Measure a training step of an adaptation against a plain loop."""
    found, facts = compare_adapting(asked.decoder, repeats=asked.repeats)
    return found, {"adapting": facts}


SECTIONS: dict[str, Callable[[Decoder, argparse.Namespace], Found]] = {
    "extraction": measure_extraction,
    "templates": measure_templates,
    "masks": measure_masks,
    "heads": measure_heads,
    "ladder": measure_ladder,
    "probes": measure_probes,
    "words": measure_words,
    "tokens": measure_tokens,
    "memory": measure_memory,
    "checksums": measure_checksums,
    "reba": measure_reba,
    "peers": measure_peers,
    "roofline": measure_roofline,
    "service": measure_service,
    "adapting": measure_adapting,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], choices=SECTIONS, help="sections; all unless told otherwise")
    parser.add_argument("--sentences", type=int, default=N_SENTENCES, help="sentences of `extraction` and `peers`")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} on {N_QUICK} sentences: two minutes")
    parser.add_argument("--out", type=Path, help="folder of the JSON, one file a section; runs/bench with --quick")
    asked = parser.parse_args()
    if asked.quick:
        asked.sentences = N_QUICK
    decoder = load_decoder(DecoderSpec(asked.decoder, dtype=asked.dtype), report=print)
    folder = asked.out or (Path("runs/bench") if asked.quick else RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    for name in asked.only or (QUICK if asked.quick else SECTIONS):
        comparisons, facts = SECTIONS[name](decoder, asked)
        results = {
            **facts,
            **describe_machine(decoder.device),
            "decoder": decoder.description.to_dict(),
            "repeats": asked.repeats,
            "comparisons": [item.to_dict() for item in comparisons],
        }
        show(comparisons, results)
        out = folder / f"{decoder.device.type}-{name}.json"
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {out.name}")


def show(comparisons: list[Comparison], results: dict[str, Any]) -> None:
    """Print the table: the median ratio, its range, the bar, and the median seconds of both sides."""
    print(f"\n{results['device']}, {results['decoder']['name']} in {results['decoder']['dtype']}, medians")
    print(f"{'what':58} {'ratio':>6} {'range':>13} {'bar':>8}  seconds")
    for item in comparisons:
        low, high = min(item.ratios), max(item.ratios)
        seconds = ", ".join(f"{label} {value:.3g}" for label, value in item.seconds.items())
        print(f"{item.name:58} {item.ratio:6.2f} {low:6.2f}-{high:6.2f} {item.bar:>8}  {seconds}")
    for peer, why in results.get("peers", {}).items():
        print(f"{peer}: skipped, {why}")
    show_shares(results)
    for name, facts in results.get("heads", {}).items():
        epochs = ", ".join(f"{label} {seconds:.1f} s" for label, seconds in facts["epoch_seconds"].items())
        print(f"{name}: an epoch takes {epochs}; {facts['share']:.2f} of {facts['matmul_gflops']:.0f} GFLOP/s at once")
    for name, facts in results.get("ladder", {}).items():
        title, seconds = f"released ladder, {name}: time / floor of its products", facts["seconds"]
        print(f"{title:58} {facts['ratio']:6.2f} {'':13} {'<= 1.5':>8}  {seconds:.0f} s, {facts['floor']:.0f} s")
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


def show_shares(results: dict[str, Any]) -> None:
    """Print the share of the matmul rate, and where the rest goes."""
    if "matmul_share" in results:
        share = results["matmul_share"]
        print(
            f"{'share of the matmul rate on real tokens':58} {share['share']:6.2f} {'':13} {'>= 0.75':>8}  "
            f"{share['extraction_gflops']:.0f} of {share['matmul_gflops']:.0f} GFLOP/s "
            f"(PyTorch's own products: {share['pytorch_matmul_gflops']:.0f})"
        )
    if "roofline" in results:
        print("where the time goes:", ", ".join(f"{part} {value:.3g}" for part, value in results["roofline"].items()))


if __name__ == "__main__":
    main()
