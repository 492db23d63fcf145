"""A fitted pair head taken apart: the similarity of every layer, and the head on some layers alone."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32

from extract.poolings.pages import keep_blocks
from probes.heads.options import HeadOptions
from probes.heads.pairs.fitting import FittedHead, fit_seed
from probes.heads.parts import HeadParts, split_scorer
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.networks.layer_cosine import LayerCosine
from probes.networks.pair_head import PairHead, collect_similarities

AT_ONCE = 1 << 18
"""Similarities at once: few, so that the memory of what a network makes of them is used again and again."""


def pair_parts(
    network: type[PairHead], resolved: HeadOptions, setting: Setting, result: HeadResult, split: str, watch: Watch
) -> HeadParts:
    """Take a pair head apart; arguments are those of `probes.heads.apart.take_apart`."""
    seeds = setting.seeds if network.is_trained else setting.seeds[:1]
    fitted = [fit_seed(network, resolved, setting, seed=seed, watch=watch) for seed in seeds]
    muted = [Muted.of(each, split) for each in fitted]
    data, is_joint = fitted[0].data, not isinstance(fitted[0].head, LayerCosine)
    return HeadParts(
        data.pooling,
        data.layers,
        split_scorer(setting.task, split, result.metric),
        np.stack([each.cosines for each in muted]),
        (lambda masks: np.stack([each.predict(masks) for each in muted])) if is_joint else None,
        "the similarity that the fitted head makes of the layer",
    )


class Muted:
    """A head with one seed, its similarities of a split, and their means over train."""

    def __init__(self, head: PairHead, similarities: torch.Tensor, means: torch.Tensor) -> None:
        self.head, self.similarities, self.means = head, similarities, means

    @classmethod
    def of(cls, fitted: FittedHead, split: str) -> "Muted":
        """Collect the similarities of a split."""
        head = fitted.head
        means = collect_similarities(head, fitted.data, "train").mean(1)
        return cls(head, collect_similarities(head, fitted.data, split), means)

    @property
    def cosines(self) -> Float32[np.ndarray, "L N"]:
        """The similarity of each layer; what else the head makes of it has no sign to be ranked by."""
        return np.asarray(self.similarities[: self.head.n_layers].numpy())

    def predict(self, masks: Bool[np.ndarray, "M L"]) -> Float[np.ndarray, "M N"]:
        """Predict with every set of layers: all that the head makes of the other layers is its mean over train."""
        n_channels, n_rows = self.similarities.shape
        step = max(1, AT_ONCE // (n_channels * n_rows))
        blocks = n_channels // self.head.n_layers
        keeps = torch.from_numpy(np.ascontiguousarray(masks)).repeat(1, blocks)
        found = []
        keep_blocks()
        with torch.no_grad():
            for part in torch.split(keeps, step):
                kept = part.T.unsqueeze(2)  # channels, sets, rows
                values = torch.where(kept, self.similarities.unsqueeze(1), self.means.reshape(-1, 1, 1))
                found.append(self.head.combine(values.flatten(1)).reshape(len(part), n_rows))
        return np.asarray(torch.cat(found).numpy())
