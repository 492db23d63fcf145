"""What large extractions take, where their time goes, and what others take: the tables of docs/scaling.md.

`python -m benchmarks.scaling` writes them into the page.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.curves import read_results
from benchmarks.training_free_page import ROOT, filled

PAGE = ROOT / "docs" / "scaling.md"
GPU_FLOPS, SHARE = 989e12, 0.5
"""Dense bfloat16 rate of an H100 as its maker states it, and the share of it that is assumed."""
TEXT_TOKENS, STORED_BYTES = 16, 2
"""Tokens of a text, and bytes of a number: float16."""
FEW_LAYERS = 4
N_TOKENS = (10**6, 10**8, 10**10)


@dataclass(frozen=True)
class Size:
    """A decoder: its blocks, their width, and the parameters that every token passes."""

    name: str
    n_blocks: int
    width: int
    n_passed: float

    def seconds(self, n_tokens: float, flops: float) -> float:
        """Seconds for tokens at a rate; attention over short texts is left out."""
        return 2 * self.n_passed * n_tokens / flops

    def n_bytes(self, n_tokens: float, n_layers: int) -> float:
        """Bytes of one pooling of texts of 16 tokens."""
        return n_tokens / TEXT_TOKENS * n_layers * self.width * STORED_BYTES


SIZES = (
    Size("135M (SmolLM2)", 30, 576, 106.2e6),
    Size("7B (Llama)", 32, 4096, 6.48e9),
    Size("70B (Llama)", 80, 8192, 68.5e9),
)


def cpu_flops() -> float:
    """The measured rate of an extraction on two CPU cores, on real tokens."""
    return float(read_results("cpu-extraction")["matmul_share"]["extraction_gflops"]) * 1e9


def written_time(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"


def written_bytes(n_bytes: float) -> str:
    """Write bytes in the unit that suits them."""
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes / 1e6:,.0f} MB"


def rows() -> Iterator[str]:
    """Write the table."""
    yield f"| decoder | tokens | two CPU cores | one GPU | eight GPUs | all layers | {FEW_LAYERS} layers |"
    yield "|---" * 7 + "|"
    for size in SIZES:
        for n in N_TOKENS:
            times = [cpu_flops(), GPU_FLOPS * SHARE, 8 * GPU_FLOPS * SHARE]
            cells = [written_time(size.seconds(n, flops)) for flops in times]
            cells += [written_bytes(size.n_bytes(n, layers)) for layers in (size.n_blocks + 2, FEW_LAYERS)]
            yield f"| {size.name} | {n:,} | {' | '.join(cells)} |"


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
        yield f"| {what} | {f'{100 * share:.1f} %' if share > 0 else 'below what can be told'} |"


def peer_rows() -> Iterator[str]:
    """Write what other programs take beside an extraction of the same texts."""
    yield "| the same sentences by | times as long as icecore | range | seconds of both |"
    yield "|---|---|---|---|"
    for each in read_results("cpu-peers")["comparisons"]:
        (other, theirs), (_, ours) = each["seconds"].items()
        if each["name"].startswith("extraction vs "):
            name = other if other != "plain loop" else each["name"].removeprefix("extraction vs ")
            spread = f"{min(each['ratios']):.2f} to {max(each['ratios']):.2f}"
            yield f"| {name} | {each['ratio']:.2f} | {spread} | {theirs:.1f} and {ours:.1f} |"


def precision_rows() -> Iterator[str]:
    """Write what bfloat16 does to the score of every head."""
    yield "| task | head | float32 | with bfloat16 | 95 % |"
    yield "|---|---|---|---|---|"
    for task, heads in read_results("cpu-precision")["heads"].items():
        for head, row in heads.items():
            low, high = 100 * row["low"], 100 * row["high"]
            yield (
                f"| {task} | {head} | {100 * row['float32']:.1f} | {100 * row['difference']:+.2f} | "
                f"{low:+.2f} to {high:+.2f} |"
            )


def compiled_rows() -> Iterator[str]:
    """Write what compiled blocks save, and from how many texts on their start-up pays."""
    yield "| blocks | time of plain ones / theirs | range | start-up | pays from |"
    yield "|---|---|---|---|---|"
    for way in read_results("cpu-compiled")["ways"]:
        ratio, n_rows = way["comparison"], way["rows_to_pay"]
        spread = f"{min(ratio['ratios']):.2f} to {max(ratio['ratios']):.2f}"
        pays = "never" if n_rows is None else f"{float(f'{n_rows:.2g}'):,.0f} texts"
        yield f"| {way['name']} | {ratio['ratio']:.2f} | {spread} | {way['start_up_seconds']:.0f} s | {pays} |"


def cache_rows() -> Iterator[str]:
    """Write the peak memory of training on caches that are larger."""
    yield "| training | cache | its size | peak memory of the process |"
    yield "|---|---|---|---|"
    for fit in read_results("cpu-big-caches")["fits"]:
        peak = written_bytes(fit["peak_bytes"]["after"])
        yield f"| {fit['fit']} | {fit['cache']} | {written_bytes(fit['bytes'])} | {peak} |"


def tables() -> dict[str, str]:
    """Make every table of the page by its name there."""
    made = {"sizes": rows(), "parts": part_rows(), "peers": peer_rows(), "precision": precision_rows()}
    made |= {"compiled": compiled_rows(), "caches": cache_rows()}
    return {name: "\n".join(lines) for name, lines in made.items()}


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
