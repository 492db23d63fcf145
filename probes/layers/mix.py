"""A learned mix of layers: weights on layer-normed layers that sum to 1, fitted together with a linear readout."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from probes.layers.rows import LayerRows

MOST_NUMBERS = 1 << 28
"""Most numbers of latents held in memory: 1 GiB."""
EPOCHS, BATCH = 20, 128


@dataclass(frozen=True, eq=False)
class LearnedMix:
    """Weights of layers in a mix, of several seeds."""

    weights: Float[np.ndarray, "S L"]


class _Mix(nn.Module):
    """`gamma * sum_k softmax(s)_k norm(h_k)`, then a linear map; for pairs the cosine of both mixes instead."""

    def __init__(self, n_layers: int, width: int, n_outputs: int) -> None:
        super().__init__()
        self.preference = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.readout = nn.Linear(width, n_outputs)
        nn.init.zeros_(self.readout.weight)
        self.line = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, latents: Float[Tensor, "L B T D"]) -> Float[Tensor, "B K"]:
        mixed = torch.einsum("l,lbtd->btd", self.preference.softmax(0), latents)
        if mixed.shape[1] == 2:
            cosine = nn.functional.cosine_similarity(mixed[:, 0], mixed[:, 1], dim=-1)
            return (self.line[0] * cosine + self.line[1])[:, None]
        outputs: Tensor = self.readout(self.gamma * mixed[:, 0])
        return outputs


def learn_mix(rows: LayerRows, *, seeds: tuple[int, ...]) -> LearnedMix:
    """Fit a mix of all layers with every seed (the scalar mix of Peters et al. 2018, section 3.2), on rows of train.

    A weight is no measure of what a layer knows: layers alike share one.
    """
    first = rows.read(0, True)
    most = max(BATCH, MOST_NUMBERS // (len(rows.layers) * first.shape[0] * first.shape[2]))
    kept = np.sort(np.random.default_rng(0).permutation(first.shape[1])[:most])
    latents = np.stack([_normed(rows.read(k, True)[:, kept]) for k in range(len(rows.layers))])
    data = torch.from_numpy(latents).permute(0, 2, 1, 3)
    gold = torch.from_numpy(rows.gold[kept])
    return LearnedMix(np.stack([_fit(data, gold, rows.n_classes, seed) for seed in seeds]))


def _normed(latents: Float32[np.ndarray, "T N D"]) -> Float32[np.ndarray, "T N D"]:
    tensor = torch.from_numpy(latents)
    return np.asarray(nn.functional.layer_norm(tensor, tensor.shape[-1:]).numpy())


def _fit(data: Float[Tensor, "L N T D"], gold: Tensor, n_classes: int, seed: int) -> Float[np.ndarray, " L"]:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        mix = _Mix(data.shape[0], data.shape[3], n_classes or 1)
    if not n_classes:
        gold = ((gold - gold.mean()) / gold.std().clamp(min=1e-12)).float()
    slow = [*mix.readout.parameters()]
    optimiser = torch.optim.AdamW(slow, lr=1e-3, weight_decay=0.01)
    optimiser.add_param_group({"params": [mix.preference, mix.gamma, mix.line], "lr": 3e-2, "weight_decay": 0.0})
    n = data.shape[1]
    for _ in range(max(EPOCHS, -(-EPOCHS * 50 * BATCH // (20 * n)))):  # a small task is gone over more often
        for index in torch.split(torch.randperm(n, generator=generator), BATCH):
            outputs = mix(data[:, index])
            loss = (
                nn.functional.cross_entropy(outputs, gold[index])
                if n_classes
                else nn.functional.mse_loss(outputs[:, 0], gold[index])
            )
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
    return np.asarray(mix.preference.detach().softmax(0).numpy(), np.float64)
