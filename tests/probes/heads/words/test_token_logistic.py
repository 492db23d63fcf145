"""The head `token-logistic` solves scikit-learn's problem on every layer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from extract.errors import HeadError
from probes.data.word_task import WordTask
from probes.heads.head_table import resolve_head
from probes.heads.layer_head import load_head
from probes.heads.word_fits import LogisticOptions, fit_token_logistic
from probes.latents.word_latents import WordLatents
from probes.networks.layerwise_networks import TokenClassifier
from tests.probes.heads.evaluating import evaluate, make_setting
from tests.probes.heads.words.planted_words import PLANTED, make_task, plant


def test_weights_are_those_of_scikit_learn() -> None:
    task = make_task(n_documents=3)
    data = WordLatents(plant(task), task, layers=[PLANTED, "final_norm"])
    head = TokenClassifier(2, data.cache.width, len(data.classes))
    found = fit_token_logistic(head, data, LogisticOptions(is_standardised=False, C=0.5))
    for layer in range(2):
        batches = [(batch.latents[0].clone(), batch.words) for batch in data.loader("train", channel=layer)]
        latents, words = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
        theirs = LogisticRegression(C=0.5, max_iter=5000, tol=1e-6).fit(latents, data.gold("train").ids[words])
        np.testing.assert_allclose(head.weight[layer].detach().numpy(), theirs.coef_, atol=0.01)
    assert found.scores[0] > found.scores[1] + 0.2


def test_it_reads_the_planted_layer_and_is_fitted_once(tmp_path: Path) -> None:
    task = make_task(n_documents=3)
    result = evaluate("token-logistic", {}, make_setting(plant(task), task, tmp_path, seeds=(3, 4)))
    assert result.chosen["layer"] == PLANTED
    assert [seed["seed"] for seed in result.seeds] == [3]
    saved = load_head(tmp_path / "token-logistic" / "seed_3")
    assert isinstance(saved.head, TokenClassifier)


@pytest.mark.parametrize("metric", ["accuracy", "span-f1"])
def test_a_tag_whose_training_words_all_lack_a_latent_hides_no_layer(metric: str, tmp_path: Path) -> None:
    task = make_task(metric=metric)
    columns = {split: rows[:] for split, rows in task.splits.items()}
    row = next(row for row, tags in enumerate(columns["train"]["tags"]) if tags[-1] == "O")
    last = sum(map(len, columns["train"]["tags"][: row + 1])) - 1
    columns["train"]["tags"][row][-1] = "B-RARE"
    with_rare = replace(task, splits=WordTask.hold(columns))
    whole, cut = (plant(with_rare, truth=task, cut=words) for words in ([], [last]))
    result = evaluate("token-logistic", {}, make_setting(cut, with_rare, tmp_path / "cut"))
    assert result.chosen["layer"] == PLANTED
    assert np.isfinite([curve.values for curve in result.curves]).all()
    inputs = [LogisticOptions().fit_inputs(WordLatents(cache, with_rare)) for cache in (whole, cut)]
    assert inputs == [[], ["B-RARE"] if metric == "accuracy" else []]


def test_under_look_both_ways_it_is_as_released() -> None:
    found = resolve_head("token-logistic", {}, protocol="look-both-ways")
    expected = LogisticOptions(C=1.0, max_iterations=100, is_standardised=False, decoding="plain", leaves_out_cut=True)
    assert (found.options, found.layers) == (expected, ("final_norm",))


@pytest.mark.parametrize("options", [{"C": 0}, {"max_iterations": 0}])
def test_what_the_solver_refuses_is_refused_before(options: dict[str, float]) -> None:
    with pytest.raises(HeadError, match=r"0"):
        resolve_head("token-logistic", options)
