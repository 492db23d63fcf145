"""Read any fitted head back by its name: pair heads, autoencoders, token heads, logistic probes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from extract.errors import unknown_name
from probes.fitting.saved import FittedModule, SavedHead, load_fitted
from probes.heads.pairs.autoencoders import AUTOENCODER
from probes.heads.registry import HEADS
from probes.networks.autoencoder import LayerAutoencoder


def build_head(record: dict[str, Any]) -> FittedModule:
    """Build the module of a saved head from its record, without its weights.

    Raises:
        UnknownNameError: An unknown head.
        ValueError: A schema that is too old for this head.
    """
    name, schema = record["name"], record["schema"]
    build: Callable[..., FittedModule] = LayerAutoencoder
    oldest = 2
    if name in HEADS:
        build, oldest = HEADS[name].build, HEADS[name].oldest_schema
    elif name != AUTOENCODER:
        hint = "If it is your own, import what registers it first, or read its run by load_run."
        raise unknown_name("head", name, [AUTOENCODER, *HEADS], hint=hint)
    if schema < oldest:
        raise ValueError(f"its schema is {schema}, this version reads {name} from {oldest} on; fit it again")
    return build(**record["arguments"])


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
