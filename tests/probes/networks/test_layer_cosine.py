"""The untrained head: its curve is SciPy's correlation of plain cosines, its choice the best on validation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from extract.errors import HeadError
from probes.fitting.fit import fit_head
from probes.fitting.fit_options import EpochOptions
from probes.latents.text_latents import PairLatents
from probes.networks.pair_networks import LayerCosine
from tests.probes.planted_latents import LAYERS, PLANTED, WIDTH, make_task, pair_data, write_latents


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_curves_equal_scipy_on_plain_cosines(data: PairLatents, split: str) -> None:
    head = LayerCosine(len(LAYERS), WIDTH)
    head.prepare(data, data.standardiser())
    found = head.curves(data, split)
    rows, gold = data.split(split).rows, data.split(split).gold.numpy()
    texts = np.concatenate([part.numpy() for part in data.split("train").rows])
    for k, layer in enumerate(LAYERS):
        whole = data.cache.layer(layer, "mean").double().numpy()
        fitted = whole[np.unique(texts)]
        scaled = (whole - fitted.mean(0)) / fitted.std(0, ddof=1)
        for kind, vectors in enumerate((whole, scaled)):
            a, b = vectors[rows[0]], vectors[rows[1]]
            cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            assert found["pearson"][kind, k] == pytest.approx(pearsonr(cosine, gold).statistic, abs=1e-5)
            assert found["spearman"][kind, k] == pytest.approx(spearmanr(cosine, gold).statistic, abs=1e-5)


def test_kind_and_layer_are_the_best_on_validation(data: PairLatents) -> None:
    head = LayerCosine(len(LAYERS), WIDTH)
    result = fit_head(head, data, options=EpochOptions())
    curves = head.curves(data, "validation")["pearson"]
    kind, layer = head.chosen.tolist()
    assert curves[kind, layer] == curves.max()
    assert LAYERS[layer] == PLANTED
    assert head.kinds[kind] in ("raw", "standardised")
    assert (result.best_epoch, result.history) == (0, ())


def test_a_cosine_that_never_varies_is_refused(tmp_path: Path) -> None:
    task = make_task(sizes={"train": 8, "validation": 8})
    latents = np.ones((len(LAYERS), len(task.texts()), WIDTH), np.float32)
    data = pair_data(write_latents(tmp_path / "c.h5", task.texts(), {"mean": latents}), task, batch_size=8)
    with pytest.raises(HeadError, match="the cosine of the 'mean' latents is the same for every validation pair"):
        fit_head(LayerCosine(len(LAYERS), WIDTH), data, options=EpochOptions())


def test_zero_vectors_have_cosine_zero() -> None:
    head = LayerCosine(1, 3)
    assert float(head(torch.zeros(1, 1, 3), torch.ones(1, 1, 3))) == 0.0
