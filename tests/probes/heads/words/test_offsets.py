"""Moving the bias of O: by validation alone, never for the worse, and only as far as it helps."""

import numpy as np
import torch

from probes.heads.word_fits import OFFSETS, Score, choose_offsets
from probes.metrics.prediction_metrics import NO_PREDICTION


def agreement(gold: list[int]) -> Score:
    """Score classes by how many of them are right."""
    return lambda ids: float((ids == np.array(gold)).mean())


def choose(logits: torch.Tensor, gold: list[int], *, parts: int = 1) -> tuple[list[float], list[float]]:
    words = np.array_split(np.arange(logits.shape[1]), parts)
    predicted = [(some, logits[:, some]) for some in words]
    chosen = choose_offsets(predicted, agreement(gold), shape=(len(logits), len(gold)), outside=0)
    return chosen.offsets.tolist(), chosen.scores.tolist()


def test_each_probe_gets_the_smallest_change_that_is_best() -> None:
    logits = torch.tensor(
        [
            [[5.0, 0.0], [1.2, 0.0], [2.3, 0.0]],  # the last two want an offset above 2.3
            [[0.0, 0.4], [-3.0, 0.0], [-3.0, 0.0]],  # the first wants one below -0.4
            [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]],  # right as it is
        ]
    )
    for parts in (1, 2, 3):
        offsets, scores = choose(logits, [0, 1, 1], parts=parts)
        assert offsets == [2.5, -0.5, 0.0]
        assert scores == [1.0, 1.0, 1.0]


def test_the_score_is_that_of_the_moved_bias_and_no_worse_than_before() -> None:
    logits = torch.randn(4, 200, 3, generator=torch.Generator().manual_seed(0))
    gold = torch.randint(3, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    offsets, scores = choose(logits, gold, parts=7)
    for probe, (offset, score) in enumerate(zip(offsets, scores, strict=True)):
        assert offset in OFFSETS
        moved = logits[probe] - torch.tensor([offset, 0.0, 0.0])
        assert score == agreement(gold)(moved.argmax(-1).numpy())
        assert score >= agreement(gold)(logits[probe].argmax(-1).numpy())


def test_words_without_logits_have_no_prediction() -> None:
    seen: list[np.ndarray] = []

    def look(ids: np.ndarray) -> float:
        seen.append(ids.copy())
        return 0.0

    chosen = choose_offsets([(np.array([1]), torch.zeros(1, 1, 2))], look, shape=(1, 3), outside=0)
    assert chosen.offsets.tolist() == [0.0]
    assert all(ids[0] == ids[2] == NO_PREDICTION for ids in seen)
    assert len(seen) == len(OFFSETS)
