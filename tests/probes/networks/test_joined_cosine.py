"""The untrained mean of views: its choice is the best of all sets, and a cosine of vectors side by side."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr

from extract.errors import HeadError
from probes.data.pair_task import PairTask
from probes.fitting.fit import fit_head, predict_pairs
from probes.fitting.fit_options import EpochOptions
from probes.fitting.saved_fits import FitRecord, SavedHead
from probes.heads.layer_head import only_chosen
from probes.latents.text_latents import PairLatents
from probes.networks.pair_networks import JoinedCosine
from tests.probes.planted_latents import LAYERS, WIDTH, make_task, pair_data, write_latents

VIEWS = ("mean", "last")


def draw_latents(task: PairTask, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    shape = len(LAYERS), len(task.texts()), WIDTH
    return {view: rng.normal(size=shape).astype(np.float32) for view in VIEWS}


def numbered_pairs(task: PairTask) -> Iterator[tuple[int, int, float]]:
    """Give the numbers of both texts and the gold score of every row of every split."""
    numbers = {text: k for k, text in enumerate(task.texts())}
    for rows in task.splits.values():
        for a, b, gold in zip(rows["sentence1"], rows["sentence2"], rows["score"], strict=True):
            yield numbers[a], numbers[b], gold


@pytest.fixture
def joint(tmp_path: Path) -> PairLatents:
    """Latents of two poolings that know about the gold in part, each layer with a noise of its own."""
    task = make_task(sizes={"train": 40, "validation": 90, "test": 60})
    rng = np.random.default_rng(3)
    texts, latents = task.texts(), draw_latents(task, rng)
    for a, b, gold in numbered_pairs(task):
        for latent in latents.values():
            latent[:, b] += latent[:, a] * (gold / 5 + rng.normal(scale=0.5, size=(len(LAYERS), 1)))
    return pair_data(write_latents(tmp_path / "c.h5", texts, latents), task, batch_size=16, pooling="mean+last")


def fitted(data: PairLatents, **options: object) -> JoinedCosine:
    head = JoinedCosine(len(data.layers), WIDTH, **options)  # type: ignore[arg-type]
    fit_head(head, data, options=EpochOptions())
    return head


def test_the_choice_is_the_best_of_all_pairs_of_layers_and_transforms(joint: PairLatents) -> None:
    head = fitted(joint)
    cosines, gold = head.split_cosines(joint, "validation"), joint.split("validation").gold.numpy()
    n = len(LAYERS)
    places = {view: [(k, joint.layers.index(f"{view}/{layer}")) for k in (0, 1) for layer in LAYERS] for view in VIEWS}
    scores = {pair: pearsonr(cosines[pair[0]] + cosines[pair[1]], gold).statistic for pair in product(*places.values())}
    best = max(scores, key=scores.__getitem__)
    assert head.choice(joint.layers)["views"] == [
        {"layer": joint.layers[layer], "kind": head.kinds[kind]} for kind, layer in sorted(best, key=lambda at: at[1])
    ]
    alone = tuple(max(places[view], key=lambda at: pearsonr(cosines[at], gold).statistic) for view in VIEWS)
    assert alone != best  # the layers that are best together are not those that are best alone
    assert len(scores) == (2 * n) ** 2


def test_a_score_is_the_cosine_of_the_views_side_by_side_each_of_length_one(joint: PairLatents) -> None:
    head = fitted(joint, transform="standardise+abtt")
    views = head.choice(joint.layers)["views"]
    sides = []
    for rows in joint.split("test").rows:
        parts = []
        for view in views:
            at = joint.layers.index(view["layer"])
            pooling, _, layer = view["layer"].rpartition("/")
            latents = torch.from_numpy(joint.cache.layer(layer, pooling).numpy()[rows.numpy()]).float()
            parts.append(torch.nn.functional.normalize(head.read_out(at)(latents.unsqueeze(0))[0], dim=-1))
        sides.append(torch.cat(parts, dim=-1))
    expected = torch.nn.functional.cosine_similarity(sides[0], sides[1], dim=-1)
    np.testing.assert_allclose(predict_pairs(head, joint, "test"), expected.numpy(), atol=1e-5)
    assert head.identical_similarity() == pytest.approx(1.0)


def test_new_rows_are_read_at_the_chosen_layers_alone(joint: PairLatents) -> None:
    head = fitted(joint)
    record = FitRecord("joined-cosine", "mean+last", joint.channels.layers)
    chosen = head.choice(joint.layers)
    one = only_chosen(SavedHead(head, record), chosen)
    assert list(one.record.layers) == [view["layer"] for view in chosen["views"]]
    latents = torch.randn(2, len(joint.layers), 5, WIDTH, generator=torch.Generator().manual_seed(0))
    assert torch.equal(one.head(*latents[:, head.read_layers]), head(*latents))
    other = next(name for name in joint.layers if name not in one.record.layers)
    forged = {"views": [chosen["views"][0], {"layer": other, "kind": "raw"}]}
    with pytest.raises(HeadError, match=f"chose the layers .*{other}', and its saved head reads others"):
        only_chosen(SavedHead(head, record), forged)


def test_a_view_whose_cosine_never_varies_is_refused(tmp_path: Path) -> None:
    task = make_task(sizes={"train": 8, "validation": 8})
    rng = np.random.default_rng(0)
    latents = {"mean": rng.normal(size=(len(LAYERS), len(task.texts()), WIDTH)).astype(np.float32)}
    latents["last"] = np.ones_like(latents["mean"])
    cache = write_latents(tmp_path / "c.h5", task.texts(), latents)
    with pytest.raises(HeadError, match="the cosine of the 'last' latents is the same for every validation pair"):
        fitted(pair_data(cache, task, batch_size=8, pooling="mean+last"))


def test_a_layer_that_is_the_same_for_every_text_is_not_chosen(tmp_path: Path) -> None:
    """Beside a good view a constant costs nothing, and the noise of the other layers of its view does."""
    task = make_task(sizes={"train": 40, "validation": 90})
    texts, latents = task.texts(), draw_latents(task, np.random.default_rng(3))
    for a, b, gold in numbered_pairs(task):
        latents["mean"][:, b] += latents["mean"][:, a] * gold
    latents["last"][0] = latents["last"][0, 0]  # the embedding of the last token of a prompt
    data = pair_data(write_latents(tmp_path / "c.h5", texts, latents), task, batch_size=16, pooling="mean+last")
    layers = [view["layer"] for view in fitted(data).choice(data.layers)["views"]]
    assert [name.partition("/")[0] for name in layers] == ["mean", "last"]
    assert layers[1] != f"last/{LAYERS[0]}"
