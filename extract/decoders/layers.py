"""Names of layers: `embedding`, `block_01` ... `block_L` (pre-norm outputs), `final_norm`, and taps inside blocks."""

import re
from collections.abc import Iterable, Sequence

from extract.errors import UnknownNameError, unknown_name

EMBEDDING = "embedding"
FINAL_NORM = "final_norm"
TAPS = {
    "value": "the values of its attention, key heads side by side",
    "attention": "the output of its attention module, before anything is added to it",
    "mid": "the state between attention and MLP, the residual included",
}
"""States inside a block, in the order they are computed; `block_07.value` is that of the seventh."""
GROUPS = {
    "all": "embedding, every block and the final norm",
    "blocks": "every block output",
    "upper-half": "the blocks of the upper half and the final norm",
    **{f"taps:{tap}": f"of every block {what}" for tap, what in TAPS.items()},
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


def split_tap(layer: str) -> tuple[str, str]:
    """Split a layer into its block and its tap, which is empty for what is no tap.

    Example:
        >>> split_tap("block_07.value"), split_tap("final_norm")
        (('block_07', 'value'), ('final_norm', ''))
    """
    block, _, tap = layer.partition(".")
    return block, tap


def relative_depths(layers: Sequence[str], n_blocks: int) -> tuple[float, ...]:
    """Place layers of a decoder between 0, the embedding, and 1, the final norm; by their order if a plan added any.

    Taps are placed with the output of their block.

    Example:
        >>> relative_depths(["block_01", "final_norm"], 3)
        (0.25, 1.0)
    """
    known = layer_names(n_blocks)
    places = [split_tap(layer)[0] for layer in layers]
    names = known if set(places) <= set(known) else tuple(dict.fromkeys(places))
    return tuple(names.index(layer) / max(len(names) - 1, 1) for layer in places)


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
    """Resolve a layer selection against a decoder of `n_blocks` blocks, as `select_from` does; `all` holds no taps.

    Example:
        >>> select_layers(["final_norm", "embedding"], 2), select_layers([1, -1], 2)
        (('embedding', 'final_norm'), ('block_01', 'final_norm'))
        >>> select_layers("taps:mid,block_02", 2)
        ('block_01.mid', 'block_02.mid', 'block_02')
    """
    names = layer_names(n_blocks)
    tapped = (f"{name}.{tap}" if tap else name for name in names[1:-1] for tap in (*TAPS, ""))
    return _select(spec, (EMBEDDING, *tapped, FINAL_NORM), every=names)


def select_from(spec: str | int | Iterable[str | int], names: Sequence[str]) -> tuple[str, ...]:
    """Resolve a layer selection against the layers at hand, for instance those of a cache.

    Args:
        spec: `"all"`, another name of `GROUPS`, a layer name, a number (12 is `block_12`, 0 the embedding, -1 the
            last layer at hand that is no tap, -2 the one below), or several of them in any order, also as one text
            with commas.
        names: The layers to choose from, bottom up.

    Returns:
        The selected names in the order of `names`, without repeats.

    Raises:
        UnknownNameError: A name or number that is not among `names`, or an empty selection.
    """
    return _select(spec, names, every=names)


def _select(spec: str | int | Iterable[str | int], names: Sequence[str], *, every: Sequence[str]) -> tuple[str, ...]:
    plain = [name for name in names if not split_tap(name)[1]] or names
    blocks = [name for name in plain if name.startswith("block_")]
    groups: dict[str, Sequence[str]] = {
        "all": every,
        "blocks": blocks,
        "upper-half": [*blocks[len(blocks) // 2 :], *([FINAL_NORM] if FINAL_NORM in names else [])],
    }
    tapped = {f"taps:{tap}": [name for name in names if split_tap(name)[1] == tap] for tap in TAPS}
    groups |= {group: found for group, found in tapped.items() if found}
    wanted: set[str] = set()
    for item in split_layers(spec if isinstance(spec, str | int) else list(spec)):
        name = _by_number(int(item), plain) if is_number(item) else item
        if name not in groups and name not in names:
            raise unknown_name("layer", name, [*groups, *(names if "." in name else plain)])
        wanted.update(groups.get(name, [name]))
    if not wanted:
        raise UnknownNameError(f"no layer was selected by {spec!r}. Allowed: {', '.join([*groups, *plain])}.")
    return tuple(name for name in names if name in wanted)


def _by_number(number: int, names: Sequence[str]) -> str:
    by_number = {int(split_tap(name)[0].rpartition("_")[2]): name for name in names if name.startswith("block_")}
    by_number |= {0: EMBEDDING} if EMBEDDING in names else {}
    by_number |= {place - len(names): name for place, name in enumerate(names)}
    if number not in by_number:
        positive = sorted(each for each in by_number if each >= 0)
        counted = f"{positive[0]} to {positive[-1]} for blocks (0 is the embedding), or " if positive else ""
        raise UnknownNameError(
            f"layer {number} is not there; allowed: {counted}-1 to {-len(names)} from the last down."
        )
    return by_number[number]
