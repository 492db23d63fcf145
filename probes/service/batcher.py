"""Rows of many requests predicted together: a bounded queue, and one thread that takes what waits."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from probes.runs.new_rows import NewRow
from probes.runs.predict import Answer, Scorer


class QueueFullError(Exception):
    """More rows wait than the queue may hold."""


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one request, and what they are answered with."""

    scorer: Scorer
    rows: Sequence[NewRow]
    with_probabilities: bool = False
    is_clipped: bool = False
    answers: "Future[list[Answer]]" = field(default_factory=Future)


class Batcher:
    """Predicts the rows of waiting requests together, in one thread, so that decoders are never used by two.

    Args:
        batch: Most rows that are predicted together; a larger request is predicted alone.
        wait: Seconds that the first of a batch waits for others.
        queue: Most rows that wait or are predicted.
    """

    def __init__(self, *, batch: int, wait: float, queue: int) -> None:
        self._batch, self._wait, self._most = batch, wait, queue
        self._jobs = SimpleQueue[Job | None]()  # None ends the thread
        self._lock = threading.Lock()
        self._n_rows = 0
        self.n_batches = 0
        self._thread = threading.Thread(target=self._work, name="predictions", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Predict what waits, and end the thread; what is not done after some seconds is left."""
        self._jobs.put(None)
        self._thread.join(seconds)

    @property
    def is_alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    @property
    def n_rows(self) -> int:
        """Rows that wait or are predicted."""
        return self._n_rows

    def submit(self, job: Job) -> "Future[list[Answer]]":
        """Put a request in the queue; `QueueFullError` where it has no room."""
        with self._lock:
            if self._n_rows + len(job.rows) > self._most:
                raise QueueFullError
            self._n_rows += len(job.rows)
        job.answers.add_done_callback(lambda _: self._leave(len(job.rows)))
        self._jobs.put(job)
        return job.answers

    def _leave(self, n_rows: int) -> None:
        with self._lock:
            self._n_rows -= n_rows

    def _work(self) -> None:
        pending = [self._jobs.get()]
        while (first := pending.pop()) is not None:
            jobs, pending = self._collect(first)
            groups: dict[tuple[int, bool, bool], list[Job]] = {}
            for job in jobs:
                if job.answers.set_running_or_notify_cancel():  # nobody waits for one that ran out of time
                    key = (id(job.scorer), job.with_probabilities, job.is_clipped)
                    groups.setdefault(key, []).append(job)
            for group in groups.values():
                self.n_batches += 1
                _answer(group)
            pending = pending or [self._jobs.get()]

    def _collect(self, first: Job) -> tuple[list[Job], list[Job | None]]:
        """Take the jobs of a batch, and the one that begins the next if it has come."""
        jobs, n_rows, until = [first], len(first.rows), time.monotonic() + self._wait
        while n_rows < self._batch:
            try:
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if job is None or n_rows + len(job.rows) > self._batch:
                return jobs, [job]
            jobs.append(job)
            n_rows += len(job.rows)
        return jobs, []


def _answer(jobs: Sequence[Job]) -> None:
    """Predict the rows of jobs of one head, and give each its answers, or the error of all."""
    first = jobs[0]
    try:
        answers = first.scorer.answer(
            [row for job in jobs for row in job.rows],
            with_probabilities=first.with_probabilities,
            is_clipped=first.is_clipped,
        )
    except BaseException as error:  # the thread outlives whatever happens
        for job in jobs:
            job.answers.set_exception(error)
        return
    start = 0
    for job in jobs:
        job.answers.set_result(answers[start : start + len(job.rows)])
        start += len(job.rows)
