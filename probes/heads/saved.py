"""Read any fitted head back by its name: pair heads, autoencoders, token heads, logistic probes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import unknown_name
from probes.fitting.saved import FittedModule, SavedHead, load_fitted
from probes.heads.registry import HEADS
from probes.logistic.probe import LinearProbe
from probes.networks.autoencoder import LayerAutoencoder
from probes.networks.token_heads import TOKEN_HEADS

AUTOENCODER = "autoencoder"


@dataclass(frozen=True)
class SavedKind:
    """How the module of a saved head is built."""

    module: Callable[..., FittedModule]
    """Takes the arguments of the record."""
    oldest: int = 1
    """Oldest schema that can still be read."""


SAVED: dict[str, SavedKind] = {
    **{name: SavedKind(entry.head, oldest=2) for name, entry in HEADS.items()},
    AUTOENCODER: SavedKind(LayerAutoencoder, oldest=2),
    **{name: SavedKind(head) for name, head in TOKEN_HEADS.items()},
    "logistic-probe": SavedKind(LinearProbe, oldest=3),
}


def build_head(record: dict[str, Any]) -> FittedModule:
    """Build the module of a saved head, without its weights.

    Args:
        record: The record that was saved with it.

    Returns:
        The module.

    Raises:
        UnknownNameError: An unknown head.
        ValueError: A schema that is too old for this head.
    """
    name, schema = record["name"], record["schema"]
    if name not in SAVED:
        raise unknown_name("head", name, SAVED)
    if schema < SAVED[name].oldest:
        raise ValueError(
            f"its schema is {schema}, this version reads {name} from {SAVED[name].oldest} on; fit it again"
        )
    return SAVED[name].module(**record["arguments"])


def load_head(folder: str | Path) -> SavedHead[FittedModule]:
    """Read any fitted head back, ready to score latents.

    Args:
        folder: A folder of a head, such as RUN/heads/NAME/seed_0.

    Returns:
        The head and its record.

    Raises:
        HeadError: No head there, or one that cannot be read.
        UnknownNameError: A head that this version does not know.

    Example:
        >>> saved = load_head("runs/words-sample/heads/token-classifier/seed_0")  # doctest: +SKIP
        >>> saved.head(latents).argmax(-1)  # (layers, words) of (layers, words, width)  # doctest: +SKIP
    """
    return load_fitted(folder, build_head)
