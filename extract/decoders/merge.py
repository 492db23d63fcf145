"""Merging checkpoints by a weighted sum of their parameters, and how alike two checkpoints are, block by block.

Source: BidirLM, section 4.1 (linear merging) and appendix F.2 (cosines per layer).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from extract.decoders.decoder import Decoder, body_of
from extract.errors import DecoderError

if TYPE_CHECKING:
    import pandas as pd

PARTS = {"attention": ("attn", "attention"), "mlp": ("mlp", "feed_forward", "ffn", "fc1", "fc2", "block_sparse_moe")}
"""Parts of a block, by what the names of their modules hold."""
CHUNK = 1 << 24
"""Numbers of a tensor that are widened to float64 at a time."""


class WeightSum:
    """The weighted sum of the parameters of several checkpoints, in float32.

    The sum takes the place of the first checkpoint's parameters, and each further checkpoint is emptied as it is added:
    no more than two are in memory.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self._name = ""
        self._is_empty = True  # nothing with a weight was added yet

    def add(self, model: nn.Module, *, weight: float, name: str) -> None:
        """Add a checkpoint, whose parameters are gone afterwards unless it is the first.

        Raises:
            DecoderError: Its parameters have other names or shapes than those of the first, or its positions differ.
        """
        if self._model is None:
            self._model, self._name = model, name
        else:
            self._require_alike(model, name)
        given = dict(model.named_parameters())
        for key, total in self._model.named_parameters():
            if self._is_empty:
                total.data = given[key].data.float() * weight
            elif weight:  # a part that weighs nothing must not turn -0.0 into 0.0
                total.data.add_(given[key].data.float(), alpha=weight)
            if model is not self._model:
                given[key].data = torch.empty(0)
        self._is_empty = self._is_empty and weight == 0

    def finished(self, dtype: torch.dtype) -> Any:
        """Return the merged checkpoint, its parameters in a dtype."""
        for parameter in self._model.parameters():
            parameter.data = parameter.data.to(dtype)
        return self._model

    def _require_alike(self, model: nn.Module, name: str) -> None:
        mine, other = ({key: tuple(p.shape) for key, p in each.named_parameters()} for each in (self._model, model))
        unequal = sorted(key for key in mine.keys() | other.keys() if mine.get(key) != other.get(key))
        if unequal:
            key = unequal[0]
            raise DecoderError(
                f"{self._name!r} and {name!r} cannot be merged: {len(unequal)} of their parameters have other names or "
                f"shapes, such as {key!r}, which is {_shape(mine.get(key))} in the first and "
                f"{_shape(other.get(key))} in the other; allowed: checkpoints of one architecture and size."
            )
        buffers = dict(body_of(model).named_buffers())
        for key, buffer in body_of(self._model).named_buffers():
            if key not in buffers or not torch.equal(buffer.cpu(), buffers[key].cpu()):
                raise DecoderError(
                    f"{self._name!r} and {name!r} cannot be merged: their {key!r} differ, so they were trained with "
                    "other settings (such as rope_theta); allowed: checkpoints with one configuration."
                )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "x".join(map(str, shape))


def compare_weights(one: Decoder, other: Decoder) -> "pd.DataFrame":
    """Compare two checkpoints of one architecture block by block.

    The weights of a part of a block are read as one long vector, matrices and their biases, as BidirLM's F.2 does.

    Returns:
        A row per block and part (`attention`, `mlp` and both together, `block`), for `block` also `embedding`: `layer`,
        `part`, `cosine` of the two vectors, `distance` (the length of their difference over that of the first), and
        `n_parameters`.

    Raises:
        DecoderError: They have other blocks, or weights of other shapes.

    Example:
        >>> compare_weights(load_decoder("A"), load_decoder("B"))  # doctest: +SKIP
    """
    import pandas as pd

    pairs = list(_pairs(one, other))
    sums: dict[tuple[str, str], Tensor] = {}
    for layer, part, a, b in pairs:
        found = _products(a, b)
        for where in dict.fromkeys([part, "block"]):
            sums[layer, where] = sums.get((layer, where), torch.zeros(4, dtype=torch.float64)) + found
    rows = []
    for (layer, part), (dot, a, b, n) in ((key, value.tolist()) for key, value in sums.items()):
        distance = max(a + b - 2 * dot, 0.0) ** 0.5
        cosine = dot / (a * b) ** 0.5 if a and b else float("nan")
        relative = distance / a**0.5 if a else float("nan")
        rows.append((layer, part, cosine, relative, int(n)))
    return pd.DataFrame(rows, columns=["layer", "part", "cosine", "distance", "n_parameters"])


def _pairs(one: Decoder, other: Decoder) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield every two tensors to compare, with their layer and part; norms are left out, as in the paper."""
    if len(one.blocks) != len(other.blocks):
        raise DecoderError(
            f"{one.description.name!r} has {len(one.blocks)} blocks and {other.description.name!r} "
            f"{len(other.blocks)}; allowed: checkpoints of one architecture and size."
        )
    embeddings: Any = [each.module.get_input_embeddings() for each in (one, other)]  # type: ignore[operator]
    yield "embedding", "block", *_same("embedding", embeddings[0].weight, embeddings[1].weight)
    for layer, first, second in zip(one.layers[1:-1], one.blocks, other.blocks, strict=True):
        others = dict(second.named_parameters())
        for key, tensor in first.named_parameters():
            part = next((part for part, words in PARTS.items() if any(word in key for word in words)), "")
            if part and "norm" not in key:
                yield layer, part, *_same(f"{layer}.{key}", tensor, others.get(key))


def _same(key: str, a: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
    if b is None or a.shape != b.shape:
        shape = None if b is None else tuple(b.shape)
        raise DecoderError(
            f"{key!r} is {_shape(tuple(a.shape))} in one checkpoint and {_shape(shape)} in the other; allowed: "
            "checkpoints of one architecture and size."
        )
    return a, b


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Return a.b, a.a, b.b and the number of values, in float64."""
    total = torch.zeros(4, dtype=torch.float64)
    one, other = a.detach().flatten(), b.detach().flatten()
    for start in range(0, len(one), CHUNK):
        u, v = (each[start : start + CHUNK].cpu().double() for each in (one, other))
        total += torch.stack([u @ v, u @ u, v @ v, torch.tensor(float(len(u)), dtype=torch.float64)])
    return total
