"""The shipped sample: balanced, disjoint, without repeats, and called a sample."""

import re
from collections import Counter

import numpy as np

from probes.data.class_task import load_class_sample


def normalise(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def test_it_is_a_sample_of_six_topics() -> None:
    task = load_class_sample()
    assert task.is_sample
    assert task.class_names == ("cooking", "health", "money", "sport", "travel", "weather")
    assert "no benchmark" in task.notes[0]
    assert len(task.notes) == 1  # no duplicate, no overlap, no thin class
    assert task.source == "samples/classes.csv, shipped with icecore"


def test_splits_are_balanced() -> None:
    task = load_class_sample()
    per_class = {split: np.bincount(task.labels(split)).tolist() for split in task.splits}
    assert per_class == {"train": [36] * 6, "validation": [12] * 6, "test": [12] * 6}


def test_no_sentence_stands_twice_even_nearly() -> None:
    texts = [normalise(text) for text in load_class_sample().texts()]
    assert len(set(texts)) == 360
    words = [set(text.split()) for text in texts]
    shared = [len(a & b) / len(a | b) for i, a in enumerate(words) for b in words[:i]]
    assert max(shared) < 0.35


def test_sentences_vary() -> None:
    texts = load_class_sample().texts()
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 4
    assert max(lengths) >= 20
    assert np.std(lengths) > 3
    assert sum(text.endswith("?") for text in texts) >= 30
    openings = Counter(" ".join(normalise(text).split()[:3]) for text in texts)
    assert max(openings.values()) <= 2
