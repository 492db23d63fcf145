"""Ratios of the benchmarks as tables: `python -m benchmarks.speed_page` writes them into README.md and docs/results.md.

`make bench` measures what they say and writes its JSON, one file a section.
"""

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from benchmarks.curves import read_results
from benchmarks.training_free_page import ROOT, filled

MAIN = {
    "extraction": ("extraction vs plain loop over AutoModelForCausalLM", "capture and pooling vs bare forward"),
    "peers": ("extraction vs sentence-transformers", "extraction vs NeuroX"),
    "masks": ("all k of nosink-bidirectional, 31 plans: sweep vs separate", "plan nosink-bidirectional:10 vs causal"),
    "words": ("extraction of words vs of sentences",),
    "heads": ("32 layers, autoencoders: loop vs at once", "32 layers, siamese cosine, encoder mlp: loop vs at once"),
    "tokens": ("32 layers, token classifiers: one by one vs at once",),
    "probes": ("probes, 31 layers x 5 C, 3000 rows: loop vs at once",),
}
"""Section to what of it the README shows."""
SECTIONS = ("extraction", "peers", "masks", "words", "heads", "tokens", "probes", "reba", "checksums")
HEADER = ("| what | ratio | range | bar | of these times |", "|---|---|---|---|---|")


def ratio_row(each: dict[str, Any]) -> str:
    """Write a comparison: the first time is the ratio's numerator."""
    times = " / ".join(f"{side} {seconds:.3g} s" for side, seconds in each["seconds"].items())
    spread = f"{min(each['ratios']):.2f} to {max(each['ratios']):.2f}"
    bar = "" if each["bar"] == "(none)" else each["bar"]
    return f"| {each['name']} | **{each['ratio']:.2f}** | {spread} | {bar} | {times} |"


def ratio_rows(sections: Sequence[str]) -> Iterator[str]:
    """Write every comparison of sections, once where several have it."""
    yield from HEADER
    found = [each for section in sections for each in read_results(f"cpu-{section}")["comparisons"]]
    firsts: dict[str, dict[str, Any]] = {}
    for each in found:
        firsts.setdefault(each["name"], each)
    yield from map(ratio_row, firsts.values())


def main_rows() -> Iterator[str]:
    """Write the comparisons that the README shows."""
    yield from HEADER
    for section, names in MAIN.items():
        found = {each["name"]: each for each in read_results(f"cpu-{section}")["comparisons"]}
        yield from (ratio_row(found[name]) for name in names)


def fact_rows() -> Iterator[str]:
    """Write what is no ratio of two times, with what it must keep to."""
    yield from ("| what | measured | bar |", "|---|---|---|")
    share = read_results("cpu-extraction")["matmul_share"]
    rates = f"{share['extraction_gflops']:.0f} of {share['matmul_gflops']:.0f} GFLOP/s"
    yield f"| share of the processor's matmul rate, on real tokens | {share['share']:.2f} ({rates}) | >= 0.75 |"
    for what, shares in read_results("cpu-checksums")["checksums"].items():
        made, read = (f"{100 * shares[side]:.1f} %" for side in ("writing", "reading"))
        yield f"| checksums of {what} made, and compared on reuse: share of an extraction | {made}, {read} | <= 2 % |"
    memory = read_results("cpu-memory")
    for key, what in (("memory", "texts"), ("memory_of_words", "texts with their words")):
        few, many = (f"{memory[key][name] / 1e9:.2f} GB" for name in ("bytes", "bytes_10x"))
        n = memory[key]["rows"]
        yield (
            f"| peak memory of extracting {n:,} and {10 * n:,} {what} | {few}, {many} "
            f"({100 * memory[key]['growth']:+.1f} %) | <= +5 % |"
        )
    probes = read_results("cpu-probes")["probes"]
    counted = f"{probes['n_lower']} of {probes['n_problems']}"
    yield f"| logistic probes with an objective no higher than scikit-learn's | {counted} | all |"


def machine_line() -> str:
    """Say what the ratios were measured on, and what the first one is on a processor of another kind."""
    here, there = (read_results(name) for name in ("cpu-extraction", "cpu-extraction-zen4"))
    shares = here["matmul_share"], there["matmul_share"]
    rates = [
        f"{share['matmul_gflops']:.0f} GFLOP/s through oneDNN and {share['pytorch_matmul_gflops']:.0f} through "
        "PyTorch's library"
        for share in shares
    ]
    return fill(
        f"The first row was measured on two cores that reach {rates[0]}. This gap is most of its ratio: on another "
        f"processor ({there['processor']}, {there['cores']} cores) that reaches {rates[1]}, it is "
        f"{there['comparisons'][0]['ratio']:.2f}. Other rows come from other days and machines; only the newest "
        "files in `benchmarks/results` name the processor.",
        width=128,
    )


def tables() -> dict[str, str]:
    """Make the tables by their names on the pages."""
    return {
        "speed": "\n".join(main_rows()),
        "all ratios": "\n".join(ratio_rows(SECTIONS)),
        "facts": "\n".join(fact_rows()),
        "machine": machine_line(),
    }


def main() -> None:
    """Write the tables into the pages."""
    for page in (ROOT / "README.md", ROOT / "docs" / "results.md"):
        page.write_text(filled(page.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
