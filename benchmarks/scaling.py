"""What large extractions and trainings take: `python -m benchmarks.scaling` writes the tables of docs/scaling.md."""

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
    yield f"| decoder | tokens | two CPU cores | one GPU | all layers | {FEW_LAYERS} layers |"
    yield "|---" * 6 + "|"
    for size in SIZES:
        for n in N_TOKENS:
            cells = [written_time(size.seconds(n, flops)) for flops in (cpu_flops(), GPU_FLOPS * SHARE)]
            cells += [written_bytes(size.n_bytes(n, layers)) for layers in (size.n_blocks + 2, FEW_LAYERS)]
            yield f"| {size.name} | {n:,} | {' | '.join(cells)} |"


def cache_rows() -> Iterator[str]:
    """Write the peak memory of training on caches that are larger."""
    yield "| training | cache | its size | peak memory of the process |"
    yield "|---|---|---|---|"
    for fit in read_results("cpu-big-caches")["fits"]:
        peak = written_bytes(fit["peak_bytes"]["after"])
        yield f"| {fit['fit']} | {fit['cache']} | {written_bytes(fit['bytes'])} | {peak} |"


def tables() -> dict[str, str]:
    """Make the tables of the page by their names there."""
    return {"sizes": "\n".join(rows()), "caches": "\n".join(cache_rows())}


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
