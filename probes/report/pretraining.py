"""What layer-wise autoencoders lose: lines of a summary."""

from collections.abc import Iterator, Mapping
from typing import Any


def pretraining_lines(pretraining: Mapping[str, Any]) -> Iterator[str]:
    """Write the losses of autoencoders, a line per pooling; nothing where there are none.

    Args:
        pretraining: What scores.json records of them.

    Yields:
        Markdown.
    """
    found = pretraining.get("autoencoders", {})
    if found:
        yield "\n## Layer-wise autoencoders\n"
    for pooling, record in found.items():
        losses, layers = record["held_out_losses"], record["layers"]
        first, last = min(record["best_epochs"]), max(record["best_epochs"])
        kept = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        yield (
            f"- `{pooling}`: codes of {', '.join(map(str, dict.fromkeys(record['codes'])))}, "
            f"{record['n_texts']['train']:,} texts, {kept} of {len(record['history'])}; share of the variance lost on "
            f"{record['n_texts']['held_out']:,} held-out texts: {sum(losses) / len(losses):.3f} on average, "
            f"{min(losses):.3f} ({layers[losses.index(min(losses))]}) to {max(losses):.3f} "
            f"({layers[losses.index(max(losses))]})"
        )
