"""The module of every head of classes: what it holds of one layer, and how rows become classes."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from probes.heads.layerwise import only_channel
from probes.latents.class_features import ClassFeatures
from probes.logistic.checks import check_finite


class ClassHead(nn.Module):
    """A classifier of raw features of one layer, with the standardisation it was fitted under.

    Args:
        width: Dimension `D` of a feature.
        class_names: Names of the `K` classes, in the order of the outputs.
        dtype: Precision of mean and scale.
    """

    compares_texts: ClassVar[bool] = False
    """Whether it is called with the latents of both texts of a pair; otherwise with their joined features."""

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, class_names: Sequence[str], *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.width, self.class_names = width, tuple(class_names)
        self.register_buffer("mean", torch.zeros(width, dtype=dtype))
        self.register_buffer("scale", torch.ones(width, dtype=dtype))

    def standardise(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Take the mean off, and divide by the scale."""
        return (features - self.mean) / self.scale

    def decide(self, outputs: Tensor) -> Int[Tensor, " N"]:
        """Turn outputs into positions in `class_names`."""
        return outputs.argmax(-1)

    def predict(self, *features: Float[Tensor, "N D"]) -> list[str]:
        """Name the class of each row, from features of the head's layer and pooling.

        Args:
            features: Of texts, or of pairs as `join_pair` joins them; two arguments for a head that compares texts.

        Raises:
            HeadError: A feature that is NaN or infinite.
        """
        for side in features:
            check_features(side[None], split="to predict")
        return [self.class_names[code] for code in self.decide(self(*features)).tolist()]

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain values."""
        return {"width": self.width, "class_names": list(self.class_names)}


def check_features(latents: Float[Tensor, "l N W"], *, split: str, first_layer: int = 0) -> None:
    """Refuse NaN and infinite features of a split: their class would silently be the first one."""
    rows = torch.ones(latents.shape[1], dtype=torch.bool)
    check_finite(latents, rows=rows, first_layer=first_layer, where=f"{split}: ")


def predict_split(
    features: ClassFeatures, head: Callable[[Tensor], Tensor], *, layer: int, split: str
) -> Int[np.ndarray, "*S N"]:
    """Classify the rows of a split, as the task numbers classes, reading only the layer at a position.

    There are as many predictions of a row as the head gives scores of it: `S` where it gives `(S, N, K)`.
    """
    one = ClassFeatures(features.cache, features.task, only_channel(features.channels, layer))
    (chunk,) = one.chunks([split])
    check_features(chunk[split], split=split, first_layer=layer)
    return np.asarray(features.task.training_classes[head(chunk[split][0]).argmax(-1).numpy()])
