"""Names of layers: `embedding`, `block_01` ... `block_L` (pre-norm outputs), `final_norm`."""

import re
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


def relative_depths(layers: Sequence[str], n_blocks: int) -> tuple[float, ...]:
    """Place layers of a decoder between 0, the embedding, and 1, the final norm; by their order if a plan added any.

    Example:
        >>> relative_depths(["block_01", "final_norm"], 3)
        (0.25, 1.0)
    """
    known = layer_names(n_blocks)
    names = known if set(layers) <= set(known) else tuple(layers)
    return tuple(names.index(layer) / max(len(names) - 1, 1) for layer in layers)


def split_layers(spec: object) -> tuple[str, ...]:
    """Read a selection of layers as a config writes it: a name, a number, a list of them, or a text with commas.

    Example:
        >>> split_layers("4, 8,final_norm"), split_layers([12, -1]), split_layers("blocks")
        (('4', '8', 'final_norm'), ('12', '-1'), ('blocks',))
    """
    items = spec.split(",") if isinstance(spec, str) else spec if isinstance(spec, list | tuple) else [spec]
    if not all(type(item) in (str, int) and str(item).strip() for item in items):
        raise UnknownNameError(f"layers are {spec!r}; allowed: names or numbers, such as [4, block_08, -1], or all.")
    return tuple(str(item).strip() for item in items)


def is_number(item: str) -> bool:
    """Whether a layer is given by its number, which counts blocks from 1, or from the last layer down from -1."""
    return re.fullmatch(r"-?\d+", item) is not None


def select_layers(spec: str | int | Iterable[str | int], n_blocks: int) -> tuple[str, ...]:
    """Resolve a layer selection against a decoder of `n_blocks` blocks, as `select_from` does.

    Example:
        >>> select_layers(["final_norm", "embedding"], 2), select_layers([1, -1], 2)
        (('embedding', 'final_norm'), ('block_01', 'final_norm'))
    """
    return select_from(spec, layer_names(n_blocks))


def select_from(spec: str | int | Iterable[str | int], names: Sequence[str]) -> tuple[str, ...]:
    """Resolve a layer selection against the layers at hand, for instance those of a cache.

    Args:
        spec: `"all"`, `"blocks"`, `"upper-half"`, a layer name, a number (12 is `block_12`, 0 the embedding, -1 the
            last layer at hand, -2 the one below), or several of them in any order, also as one text with commas.
        names: The layers to choose from, bottom up.

    Returns:
        The selected names in the order of `names`, without repeats.

    Raises:
        UnknownNameError: A name or number that is not among `names`, or an empty selection.
    """
    blocks = [name for name in names if name.startswith("block_")]
    groups: dict[str, Sequence[str]] = {
        "all": names,
        "blocks": blocks,
        "upper-half": [*blocks[len(blocks) // 2 :], *([FINAL_NORM] if FINAL_NORM in names else [])],
    }
    wanted: set[str] = set()
    for item in split_layers(spec if isinstance(spec, str | int) else list(spec)):
        name = _by_number(int(item), names) if is_number(item) else item
        if name not in groups and name not in names:
            raise unknown_name("layer", name, [*groups, *names])
        wanted.update(groups.get(name, [name]))
    if not wanted:
        raise UnknownNameError(f"no layer was selected by {spec!r}. Allowed: {', '.join([*groups, *names])}.")
    return tuple(name for name in names if name in wanted)


def _by_number(number: int, names: Sequence[str]) -> str:
    by_number = {int(name.rpartition("_")[2]): name for name in names if name.startswith("block_")}
    by_number |= {0: EMBEDDING} if EMBEDDING in names else {}
    by_number |= {place - len(names): name for place, name in enumerate(names)}
    if number not in by_number:
        positive = sorted(each for each in by_number if each >= 0)
        counted = f"{positive[0]} to {positive[-1]} for blocks (0 is the embedding), or " if positive else ""
        raise UnknownNameError(
            f"layer {number} is not there; allowed: {counted}-1 to {-len(names)} from the last down."
        )
    return by_number[number]
