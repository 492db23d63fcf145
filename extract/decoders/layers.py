"""Names of layers: `embedding`, `block_01` ... `block_L` (pre-norm outputs), `final_norm`."""

from collections.abc import Iterable, Sequence

from extract.errors import UnknownNameError, unknown_name

EMBEDDING = "embedding"
FINAL_NORM = "final_norm"
GROUPS = {
    "all": "embedding, every block and the final norm",
    "blocks": "every block output",
    "upper-half": "the blocks of the upper half and the final norm",
}


def layer_names(n_blocks: int) -> tuple[str, ...]:
    """Name every layer of a decoder, from the bottom up: `n_blocks + 2` names.

    Block outputs are pre-norm; the normed output of the last block is its own layer.

    Example:
        >>> layer_names(2)
        ('embedding', 'block_01', 'block_02', 'final_norm')
    """
    digits = max(2, len(str(n_blocks)))
    return (EMBEDDING, *(f"block_{i:0{digits}d}" for i in range(1, n_blocks + 1)), FINAL_NORM)


def select_layers(spec: str | Iterable[str], n_blocks: int) -> tuple[str, ...]:
    """Resolve a layer selection against a decoder of `n_blocks` blocks, as `select_from` does.

    Example:
        >>> select_layers(["final_norm", "embedding"], 2)
        ('embedding', 'final_norm')
    """
    return select_from(spec, layer_names(n_blocks))


def select_from(spec: str | Iterable[str], names: Sequence[str]) -> tuple[str, ...]:
    """Resolve a layer selection against the layers at hand, for instance those of a cache.

    Args:
        spec: `"all"`, `"blocks"`, `"upper-half"`, one layer name, or several names in any order.
        names: The layers to choose from, bottom up.

    Returns:
        The selected names in the order of `names`, without repeats.

    Raises:
        UnknownNameError: A name that is not among `names`, or an empty selection.
    """
    blocks = [name for name in names if name.startswith("block_")]
    groups: dict[str, Sequence[str]] = {
        "all": names,
        "blocks": blocks,
        "upper-half": [*blocks[len(blocks) // 2 :], *([FINAL_NORM] if FINAL_NORM in names else [])],
    }
    wanted: set[str] = set()
    for item in [spec] if isinstance(spec, str) else spec:
        if item not in groups and item not in names:
            raise unknown_name("layer", item, [*groups, *names])
        wanted.update(groups.get(item, [item]))
    if not wanted:
        raise UnknownNameError(f"no layer was selected by {spec!r}. Allowed: {', '.join([*groups, *names])}.")
    return tuple(name for name in names if name in wanted)
