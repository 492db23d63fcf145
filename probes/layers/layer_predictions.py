"""What a head predicts from every layer by itself, row by row, kept compactly in the folder of a run."""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt
from numpy.typing import NDArray

from extract.errors import HeadError, first_line
from extract.files import read_file, write_file
from probes.layers import PREDICTED

MOST_HALF = 60_000
"""Numbers below it fit half floats; others are kept in single precision."""
MOST_BYTES = 1 << 30
"""Of a file that is read, once unpacked."""


@dataclass(frozen=True, eq=False)
class LayerPredictions:
    """Predictions of one split from each of `L` layers alone: `N` numbers, or the `T` likeliest of `K` names.

    Attributes:
        head: The head.
        split: The split that was predicted.
        layers: Its `L` layers, bottom up.
        numbers: `(L, N)` numbers, the mean over seeds, as the head gives them; None where it predicts names.
        names: What the codes are positions of; empty for numbers.
        codes: `(L, N, T)` positions of names, the likeliest first, and `K` for no prediction; None for numbers.
        shares: `(L, N, T)` probabilities of these names; None for a head without probabilities.
    """

    head: str
    split: str
    layers: tuple[str, ...]
    numbers: Float[np.ndarray, "L N"] | None = None
    names: tuple[str, ...] = ()
    codes: UInt[np.ndarray, "L N T"] | None = None
    shares: Float[np.ndarray, "L N T"] | None = None

    @classmethod
    def of(
        cls,
        head: str,
        split: str,
        layers: Sequence[str],
        alone: NDArray[np.generic],
        names: Sequence[str],
        likely: tuple[NDArray[np.generic], NDArray[np.generic]] | None = None,
    ) -> "LayerPredictions":
        """Keep `(S, L, N)` predictions of `S` seeds: of numbers the mean, of names those of the first seed.

        `likely` are the codes and probabilities `(L, N, T)` of the likeliest classes.
        """
        if not names:
            numbers = np.asarray(alone, np.float64).mean(0)
            is_small = np.abs(np.nan_to_num(numbers)).max(initial=0) < MOST_HALF
            return cls(head, split, tuple(layers), numbers=numbers.astype(np.float16 if is_small else np.float32))
        first, shares = (alone[0][..., None], None) if likely is None else likely
        codes = np.where(np.asarray(first) < 0, len(names), first).astype(np.uint16)
        kept = None if shares is None else np.asarray(shares, np.float16)
        return cls(head, split, tuple(layers), names=tuple(names), codes=codes, shares=kept)

    def of_layer(self, k: int) -> list[str] | list[float]:
        """Return what the `k`-th layer predicts: numbers, or the likeliest names, empty for none."""
        if self.codes is None:
            return [] if self.numbers is None else self.numbers[k].astype(np.float64).tolist()
        return [(*self.names, "")[code] for code in self.codes[k, :, 0].tolist()]

    @property
    def n_rows(self) -> int:
        """How many rows were predicted."""
        return int(next(part for part in (self.numbers, self.codes) if part is not None).shape[1])


def save_predictions(folder: Path, predictions: LayerPredictions) -> None:
    """Write them into the folder of a run, in place of those of the same head."""
    arrays = {name: getattr(predictions, name) for name in ("numbers", "codes", "shares")}
    about = {name: getattr(predictions, name) for name in ("head", "split", "layers", "names")}
    content = io.BytesIO()
    np.savez_compressed(
        content,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        **{name: array for name, array in arrays.items() if array is not None},
    )
    path = folder / PREDICTED / f"{predictions.head}.npz"
    path.parent.mkdir(exist_ok=True)
    write_file(path, content.getvalue())


def load_predictions(folder: Path, head: str) -> LayerPredictions | None:
    """Read those of a head back; None where the run has none.

    Raises:
        HeadError: A file that is damaged, or whose parts do not fit each other.
    """
    path = folder / PREDICTED / f"{head}.npz"
    if not path.exists():
        return None
    try:
        content = io.BytesIO(read_file(path))
        if sum(part.file_size for part in zipfile.ZipFile(content).infolist()) > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES:,} bytes")
        with np.load(content, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            arrays = {name: file[name] for name in ("numbers", "codes", "shares") if name in file}
        layers, names = (tuple(map(str, about[name])) for name in ("layers", "names"))
        _check(layers, names, arrays)
    except (OSError, ValueError, KeyError, TypeError, EOFError, StopIteration, zipfile.BadZipFile) as error:
        raise HeadError(
            f"{str(path)!r} cannot be read ({first_line(error)}); make it again: icecore layers {folder.name}."
        ) from error
    return LayerPredictions(head, str(about["split"]), layers, names=names, **arrays)


def _check(layers: Sequence[str], names: Sequence[str], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Refuse arrays that are not of these layers and names."""
    for name, kind, n_axes in (("numbers", "f", 2), ("codes", "u", 3), ("shares", "f", 3)):
        if name in arrays and (arrays[name].dtype.kind, arrays[name].ndim) != (kind, n_axes):
            raise ValueError(f"{name} is an array of {arrays[name].dtype} of {arrays[name].ndim} axes")
    shapes = {array.shape[:2] for array in arrays.values()}
    if len(shapes) != 1 or next(iter(shapes))[0] != len(layers) or ("codes" in arrays) == ("numbers" in arrays):
        raise ValueError("its arrays are not of its layers")
    if "codes" in arrays and int(np.max(arrays["codes"], initial=0)) > len(names):
        raise ValueError("a code is that of no name")
    if "shares" in arrays and ("codes" not in arrays or arrays["shares"].shape != arrays["codes"].shape):
        raise ValueError("its probabilities are not of its codes")
