"""Micro-batches: batched equals looped, nobody gets another's answer, and the thread outlives errors."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from probes.runs.new_rows import NewRow
from probes.runs.predict import Answer, RowScorer
from probes.service.app import Batcher, Job, QueueFullError


class Upper(RowScorer):
    """Answers a text by its upper case, and remembers what it was asked together."""

    def __init__(self) -> None:
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "gate", threading.Event())
        self.gate.set()

    asked: list[int]
    gate: threading.Event

    def answer(self, rows: Sequence[NewRow], **_: Any) -> list[Answer]:
        self.gate.wait(10)
        self.asked.append(len(rows))
        if any(row.row == "break" for row in rows):
            raise RuntimeError("broken")
        return [Answer(str(row.row).upper()) for row in rows]


def job(scorer: RowScorer, *texts: str, is_clipped: bool = False) -> Job:
    return Job(scorer, [NewRow(text) for text in texts], is_clipped=is_clipped)


def predictions(answers: Sequence[Answer]) -> list[object]:
    return [answer.prediction for answer in answers]


def test_everybody_gets_what_they_asked_for_and_batches_are_full() -> None:
    scorers = [Upper(), Upper()]
    batcher = Batcher(batch=16, wait=0.01, queue=10_000)
    batcher.start()

    def ask(k: int) -> None:
        texts = [f"t{k}-{n}" for n in range(1 + k % 3)]
        found = batcher.submit(job(scorers[k % 2], *texts)).result(30)
        assert predictions(found) == [text.upper() for text in texts]

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(600)))
    batcher.stop()
    assert not batcher.is_alive
    assert batcher.n_rows == 0
    asked = [n for scorer in scorers for n in scorer.asked]
    assert sum(asked) == 1200
    assert max(asked) <= 16
    assert len(asked) < 500  # together, not one by one


def test_a_request_larger_than_a_batch_is_predicted_alone() -> None:
    scorer = Upper()
    batcher = Batcher(batch=4, wait=0.05, queue=100)
    batcher.start()
    first, second = batcher.submit(job(scorer, *"abcdef")), batcher.submit(job(scorer, "g"))
    assert (predictions(first.result(10)), predictions(second.result(10))) == (list("ABCDEF"), ["G"])
    assert scorer.asked == [6, 1]
    batcher.stop()


def test_requests_with_other_options_are_not_mixed() -> None:
    scorer = Upper()
    batcher = Batcher(batch=8, wait=0.2, queue=100)
    batcher.start()
    asked = [batcher.submit(job(scorer, "a", is_clipped=flag)) for flag in (True, False, True)]
    assert [predictions(answers.result(10)) for answers in asked] == [["A"]] * 3
    assert sorted(scorer.asked) == [1, 2]
    batcher.stop()


def test_a_full_queue_refuses_and_one_that_nobody_waits_for_is_left_out() -> None:
    scorer = Upper()
    scorer.gate.clear()
    batcher = Batcher(batch=1, wait=0.0, queue=3)
    batcher.start()
    first = batcher.submit(job(scorer, "a"))
    until = time.monotonic() + 10
    while not first.running() and time.monotonic() < until:
        time.sleep(0.001)
    second, third = batcher.submit(job(scorer, "b")), batcher.submit(job(scorer, "c"))
    with pytest.raises(QueueFullError):
        batcher.submit(job(scorer, "d"))
    assert second.cancel()
    assert batcher.n_rows == 2
    scorer.gate.set()
    assert predictions(third.result(10)) == ["C"]
    assert scorer.asked == [1, 1]
    batcher.stop()


def test_the_thread_outlives_an_error() -> None:
    scorer = Upper()
    batcher = Batcher(batch=1, wait=0.0, queue=3)
    batcher.start()
    with pytest.raises(RuntimeError, match="broken"):
        batcher.submit(job(scorer, "break")).result(10)
    assert predictions(batcher.submit(job(scorer, "a")).result(10)) == ["A"]
    batcher.stop()
