"""The data module of words: what it refuses, what it standardises by, and when it looks at tags."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from extract.errors import CacheError, TaskError, UnknownNameError
from probes.data.word_task import WordTask
from probes.latents.word_latents import Streaming, WordLatents
from tests.probes.heads.words.planted_words import LAYERS, TAGS, PlantedCache, make_task, plant
from tests.probes.planted_latents import make_task as make_pairs
from tests.probes.planted_latents import plant as plant_pairs


def columns(task: WordTask) -> dict[str, Any]:
    return {split: rows.to_dict() for split, rows in task.splits.items()}


@pytest.fixture(scope="module")
def task() -> WordTask:
    return make_task()


def test_words_stand_in_the_order_of_the_sentences(task: WordTask) -> None:
    data = WordLatents(plant(task, cut=[2]), task)
    rows = data.split("test")
    assert rows.n_words == sum(map(len, task.splits["test"]["words"]))
    assert np.diff(rows.offsets).tolist() == [len(words) for words in task.splits["test"]["words"]]
    assert np.flatnonzero(~data.split("train").has_latent).tolist() == [2]
    assert data.layers == LAYERS


def test_the_mean_and_scale_are_those_of_training_words_each_counted_once(task: WordTask) -> None:
    values = columns(task)
    for column in values["train"].values():
        column.extend(column[:30])  # sentences that stand twice
    twice = replace(task, splits=WordTask.hold(values))
    cache = plant(task, cut=[0, 7])
    streaming = Streaming(chunk_words=25)
    found = WordLatents(cache, twice, streaming=streaming).standardiser
    rows = WordLatents(cache, task).split("train")
    latents = torch.stack([cache.layer(layer, "mean") for layer in LAYERS])[:, rows.positions[rows.has_latent]].double()
    assert torch.allclose(found.mean.double(), latents.mean(1), atol=1e-6)
    assert torch.allclose(found.scale.double(), latents.std(1), atol=1e-6)


def test_tags_of_a_split_are_those_of_train_and_then_its_own(task: WordTask) -> None:
    values = columns(task)
    values["test"]["tags"][0] = ["B-ZOO", *values["test"]["tags"][0][1:]]
    values["test"]["tags"][0] = [tag if tag.startswith("B") else "O" for tag in values["test"]["tags"][0]]
    strange = replace(task, splits=WordTask.hold(values))
    data = WordLatents(plant(task), strange)
    assert data.classes == TAGS
    assert data.gold("validation").names == TAGS
    assert data.gold("test").names == (*TAGS, "B-ZOO")
    assert data.gold("test").ids[0] == len(TAGS)
    assert data.gold("train").ids.tolist() == [TAGS.index(tag) for tags in task.splits["train"]["tags"] for tag in tags]


def test_a_text_without_its_latents_is_named(task: WordTask) -> None:
    other = make_task(sizes={"train": 200})
    with pytest.raises(CacheError, match=r"does not hold the text 'train120\.0"):
        WordLatents(plant(task), other)


def test_a_cache_of_texts_is_refused(task: WordTask, tmp_path: Any) -> None:
    pairs = make_pairs(sizes={"train": 8, "validation": 8, "test": 8})
    cache = plant_pairs(tmp_path / "pairs.h5", pairs)
    with pytest.raises(CacheError, match=r"pairs\.h5' holds latents of whole texts, but task 'planted' asks for words"):
        WordLatents(cache, task)


def test_a_task_without_training_words_is_refused() -> None:
    tests_only = make_task(sizes={"test": 5})
    with pytest.raises(TaskError, match="task 'planted' has no split 'train'; it has: test"):
        WordLatents(plant(tests_only), tests_only)
    few = make_task(sizes={"train": 3, "test": 5})
    n_words = sum(map(len, few.splits["train"]["words"]))
    with pytest.raises(TaskError, match="no training word of task 'planted' has a latent"):
        WordLatents(plant(few, cut=range(n_words)), few)


def test_one_tag_in_train_is_refused(task: WordTask) -> None:
    values = columns(task)
    values["train"]["tags"] = [["NOUN"] * len(tags) for tags in values["train"]["tags"]]
    data = WordLatents(plant(task), WordTask("dull", WordTask.hold(values), "accuracy", "made up"))
    with pytest.raises(TaskError, match="every training word of task 'dull' has the tag 'NOUN'"):
        _ = data.classes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "meen"}, "unknown pooling 'meen': did you mean 'mean'"),
        ({"layers": "block_99"}, "unknown layer 'block_99'"),
    ],
)
def test_unknown_names_are_refused(task: WordTask, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        WordLatents(plant(task), task, **options)
    with pytest.raises(TaskError, match="has no split 'dev'; it has: train, validation, test"):
        WordLatents(plant(task), task).split("dev")


def test_the_first_pooling_is_read_unless_told_otherwise(task: WordTask) -> None:
    cache: PlantedCache = plant(task)
    assert WordLatents(cache, task).channels.pooling == "mean"
    assert WordLatents(cache, task, pooling="last").channels.pooling == "last"
