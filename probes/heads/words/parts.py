"""A fitted token head taken apart: every layer's classifier, or what each layer adds to a mix."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int

from probes.heads.options import HeadOptions
from probes.heads.parts import HeadParts, Together
from probes.heads.result import HeadResult
from probes.heads.setting import Setting, Watch
from probes.heads.words.evaluation import fit_seeds
from probes.heads.words.fitting import TokenFit, predict_logits
from probes.heads.words.judging import Judge, judge_of
from probes.heads.words.options import token_options
from probes.latents.word_latents import WordLatents
from probes.networks.token_heads import TokenHead, TokenMix


def token_parts(
    network: type[TokenHead],
    fit: Callable[..., TokenFit] | None,
    resolved: HeadOptions,
    setting: Setting,
    result: HeadResult,
    split: str,
    watch: Watch,
) -> HeadParts:
    """Take a token head apart; further arguments are those of `probes.heads.apart.take_apart`.

    Tags are decoded as the run chose to.
    """
    data, fitted = fit_seeds(network, fit, resolved, setting, watch)
    judge = judge_of(data, split, **token_options(resolved).judging())
    decoding = str(result.chosen.get("decoding", "plain"))
    heads = [each.head for each in fitted]
    mixes = [_Mixed(head, data, split, judge, decoding) for head in heads if isinstance(head, TokenMix)]
    together: Together | None = None
    if mixes:
        one_by_one = np.eye(len(data.layers), dtype=bool)
        alone = np.stack([mix.predict(one_by_one) for mix in mixes])
        together = lambda masks: np.stack([mix.predict(masks) for mix in mixes])  # noqa: E731
    else:
        layers = range(len(data.layers))
        alone = np.stack([[_alone(head, data, split, k, judge, decoding) for k in layers] for head in heads])
    how = "the mix with the means of all other layers" if mixes else "the classifier of the layer"
    return HeadParts(data.channels.pooling, data.layers, judge.scorer(), alone, together, how)


def _alone(
    head: TokenHead, data: WordLatents, split: str, layer: int, judge: Judge, decoding: str
) -> Int[np.ndarray, " W"]:
    return judge.decode(predict_logits(head.only(layer), data, split, channel=layer), decoding)


class _Mixed:
    """What every layer adds to the logits of a mix, on a split, with its means over train."""

    def __init__(self, head: TokenMix, data: WordLatents, split: str, judge: Judge, decoding: str) -> None:
        self.judge, self.decoding = judge, decoding
        self.bias: Float32[np.ndarray, " K"] = head.bias.detach().numpy()[0]
        self.parts, _ = _contributions(head, data, split)
        _, self.means = _contributions(head, data, "train", keep=False)

    def predict(self, masks: Bool[np.ndarray, "M L"]) -> Int[np.ndarray, "M W"]:
        """Predict with every set of layers, the others adding their means over train."""
        found = []
        for mask in masks:
            logits = self.parts[mask].sum(0) + self.means[~mask].sum(0) + self.bias
            logits[np.isnan(self.parts[0, :, 0])] = np.nan  # words without a latent, also where no layer is left
            found.append(self.judge.decode(logits, self.decoding))
        return np.stack(found)


def _contributions(
    head: TokenMix, data: WordLatents, split: str, *, keep: bool = True
) -> tuple[Float32[np.ndarray, "L W K"], Float32[np.ndarray, "L K"]]:
    """Return what each layer adds to the logits of every word (NaN without a latent), and the mean over words."""
    n_words = data.split(split).n_words if keep else 0
    found = np.full((head.n_layers, n_words, head.n_classes), np.nan, np.float32)
    sums, n_seen = np.zeros((head.n_layers, head.n_classes)), 0
    with torch.no_grad():
        weights = head.weights().reshape(-1, 1, 1)
        for batch in data.loader(split, prepare=head.preparation()):
            parts = (weights * head.parts(batch.latents)).numpy()
            sums += parts.sum(1)
            n_seen += parts.shape[1]
            if keep:
                found[:, batch.words.numpy()] = parts
    return found, (sums / max(n_seen, 1)).astype(np.float32)
