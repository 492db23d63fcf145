"""What the benchmarks measured as tables: `python -m benchmarks.speed_page` writes them into docs/speed.md.

`make bench` measures and writes JSON, one file a section.
"""

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from benchmarks.curves import read_results
from benchmarks.training_free_page import ROOT, filled

PAGE = ROOT / "docs" / "speed.md"
SECTIONS = (
    "extraction",
    "peers",
    "templates",
    "masks",
    "words",
    "heads",
    "tokens",
    "probes",
    "adapting",
    "reba",
    "service",
)


def ratio_row(each: dict[str, Any]) -> str:
    """Write a comparison: the first time is the ratio's numerator."""
    times = " / ".join(f"{side} {seconds:.3g} s" for side, seconds in each["seconds"].items())
    spread = f"{min(each['ratios']):.2f} to {max(each['ratios']):.2f}"
    return f"| {each['name']} | **{each['ratio']:.2f}** | {spread} | {times} |"


def ratio_rows(sections: Sequence[str]) -> Iterator[str]:
    """Write every comparison of sections, once where several have it."""
    yield from ("| what | ratio | range | of these times |", "|---|---|---|---|")
    found = [each for section in sections for each in read_results(f"cpu-{section}")["comparisons"]]
    firsts: dict[str, dict[str, Any]] = {}
    for each in found:
        firsts.setdefault(each["name"], each)
    yield from map(ratio_row, firsts.values())


def product_shares(facts: dict[str, Any]) -> tuple[float, float]:
    """Return the shares of the rate of products that training in a loop, and of all layers at once, reach."""
    seconds = facts["epoch_seconds"]
    return facts["share"] * seconds["at once"] / seconds["loop"], facts["share"]


def fact_rows() -> Iterator[str]:
    """Write what is no ratio of two times."""
    yield from ("| what | measured |", "|---|---|")
    for what, shares in read_results("cpu-checksums")["checksums"].items():
        made, read = (f"{100 * shares[side]:.1f} %" for side in ("writing", "reading"))
        yield f"| checksums of {what} made, and compared on reuse: share of an extraction | {made}, {read} |"
    memory = read_results("cpu-memory")
    for key, what in (("memory", "texts"), ("memory_of_words", "texts with their words")):
        few, many = (f"{memory[key][name] / 1e9:.2f} GB" for name in ("bytes", "bytes_10x"))
        n, growth = memory[key]["rows"], 100 * memory[key]["growth"]
        yield f"| peak memory of extracting {n:,} and {10 * n:,} {what} | {few}, {many} ({growth:+.1f} %) |"
    here, there = (read_results(name)["heads"] for name in ("cpu-heads", "cpu-heads-zen4"))
    for head in here:
        shares = "; ".join(f"{100 * share:.0f} %" for heads in (here, there) for share in product_shares(heads[head]))
        what = f"32 layers, {head}: share of the rate of products in a loop, at once; both on the second processor"
        yield f"| {what} | {shares} |"
    probes = read_results("cpu-probes")["probes"]
    counted = f"{probes['n_lower']} of {probes['n_problems']}"
    yield f"| logistic probes with an objective no higher than scikit-learn's | {counted} |"
    adapting = read_results("cpu-adapting")["adapting"]
    rates, peaks = (adapting[key] for key in ("tokens_per_second", "peak_bytes"))
    both = "; ".join(f"{rates[side]:.0f}, {peaks[side] / 1e9:.2f} GB" for side in ("plain", "icecore"))
    yield f"| tokens a second of a training step of LoRA, and peak memory: a plain loop of peft; icecore | {both} |"
    words = read_results("cpu-tokens-ud-ewt")
    n = sum(words["task"]["n_sentences"][split] for split in ("train", "validation"))
    what = f"token classifiers of {words['n_layers']} layers on {n:,} sentences: share of the time of their extraction"
    yield f"| {what} | {100 * words['fit_over_extraction']:.0f} % |"


PARTS = {
    "products": "products of the decoder's weights with real tokens",
    "padding": "the same with padding",
    "rounding": "the same with rows of zeros up to a number of rows that oneDNN has compiled",
    "attention": "attention",
    "elementwise": "norms, rotations, activations and sums between the products",
    "capture": "hooks, pooling and capturing every layer",
    "rest": "certificates, digest of the weights, tokenising, laying out and writing",
}


def part_rows() -> Iterator[str]:
    """Write where the time of an extraction goes."""
    yield "| part | share of the time |"
    yield "|---|---|"
    for part, what in PARTS.items():
        share = read_results("cpu-roofline")["roofline"][part]
        yield f"| {what} | {f'{100 * share:.1f} %' if share > 0 else 'too small to measure'} |"


RUNGS = {
    "cosine-mlp": "1: cosine MLP",
    "siamese": "2: siamese, fresh encoders",
    "autoencoders": "3: autoencoders, every layer to its last epoch",
    "mse, pretrained": "3: siamese, their encoders",
    "log-variance, pretrained": "4: the same with the log-variance loss",
    "all": "all four",
}


def ladder_rows() -> Iterator[str]:
    """Write what a released ladder takes."""
    yield from ("| rung | hours | its products | ratio |", "|---|---|---|---|")
    for name, what in RUNGS.items():
        row = read_results("cpu-ladder")["ladder"][name]
        # The products of the cosine MLP take less than a second.
        floor = [f"{row['floor'] / 3600:.2f}", f"{row['ratio']:.2f}"] if row["floor"] > 1 else ["0.00", ""]
        yield f"| {what} | {row['seconds'] / 3600:.2f} | {' | '.join(floor)} |"


def precision_line() -> str:
    """Say how far bfloat16 moves the scores of all heads, and how many of the differences are certain."""
    heads = [(task, row) for task, rows in read_results("cpu-precision")["heads"].items() for row in rows.values()]
    moved = [100 * row["difference"] for _, row in heads]
    certain = [task for task, row in heads if row["low"] > 0 or row["high"] < 0]
    pairs = [100 * abs(row["difference"]) for task, row in heads if task == "stsb"]
    return fill(
        f"Of {len(heads)} heads on {len(read_results('cpu-precision')['heads'])} tasks, {len(certain) or 'none'} has a "
        "test score with a certain difference (paired 95 % intervals; 400 rows of STS-B and Banking77, and the "
        f"shipped samples). On STS-B differences are at most {max(pairs):.2f} points; on the smallest samples they "
        f"reach from {min(moved):+.1f} to {max(moved):+.1f}, within intervals of ten points and more.",
        width=128,
    )


def compiled_line() -> str:
    """Say what compiled blocks save, and from how many texts on their start-up pays."""
    ways = read_results("cpu-compiled")["ways"]
    plain, around = (f"{way['comparison']['ratio']:.2f}" for way in ways)
    n_rows = float(f"{ways[1]['rows_to_pay']:.2g}")
    return fill(
        f"An extraction compiles nothing: on the second processor above, plain blocks take {plain} of the time of "
        f"blocks under `torch.compile`, and {around} of that of blocks compiled around oneDNN's products, which pays "
        f"from {n_rows:,.0f} texts on (`python -m benchmarks.compiled`).",
        width=128,
    )


def machine_line() -> str:
    """Say what the ratios were measured on, and what the first one is on a processor of another kind."""
    here, there = (read_results(name) for name in ("cpu-extraction", "cpu-extraction-zen4"))
    shares = here["matmul_share"], there["matmul_share"]
    rates = [
        f"{share['matmul_gflops']:.0f} GFLOP/s through oneDNN and {share['pytorch_matmul_gflops']:.0f} through "
        "PyTorch's library"
        for share in shares
    ]
    heads = read_results("cpu-heads-zen4")
    gains = ", ".join(f"{each['ratio']:.2f}" for each in heads["comparisons"])
    most = max(product_shares(facts)[0] for facts in heads["heads"].values())
    return fill(
        f"The first row was measured on two cores that reach {rates[0]}. This gap is most of its ratio: on another "
        f"processor ({there['processor']}, {there['cores']} cores) that reaches {rates[1]}, it is "
        f"{there['comparisons'][0]['ratio']:.2f}. Heads of 32 layers at once gain {gains} there: the loop "
        f"of the last reaches {100 * most:.0f} % of the rate of products by itself, so nothing could gain more than "
        f"{1 / most:.1f}. Other rows come from other days and machines.",
        width=128,
    )


def tables() -> dict[str, str]:
    """Make the tables by their names on the page."""
    rows = {
        "ratios": ratio_rows(SECTIONS),
        "facts": fact_rows(),
        "parts": part_rows(),
        "ladder": ladder_rows(),
    }
    lines = {"machine": machine_line(), "compiled": compiled_line(), "precision": precision_line()}
    return {**lines, **{name: "\n".join(table) for name, table in rows.items()}}


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
