"""Threads around the computation: order kept, errors handed over, nothing left running."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from extract.run.extraction import ITEMS_AHEAD, ITEMS_WAITING, Ahead, Sink


def n_threads() -> int:
    """Count the threads of the pipeline."""
    return sum(thread.name.startswith(("icecore-writer", "icecore-tokeniser")) for thread in threading.enumerate())


def test_a_sink_keeps_the_order_and_finishes() -> None:
    got: list[int] = []
    sink = Sink()
    for i in range(50):
        sink.put(partial(got.append, i))
    sink.close()
    assert got == list(range(50))
    assert n_threads() == 0


def test_an_error_surfaces_once_and_later_items_are_dropped() -> None:
    got: list[int] = []

    def consume(item: int) -> None:
        if item == 3:
            raise ValueError("item 3")
        got.append(item)

    sink = Sink()
    with pytest.raises(ValueError, match=r"^item 3$"):
        for i in range(1000):
            sink.put(partial(consume, i))
    with pytest.raises(ValueError, match=r"^item 3$"):
        sink.close()
    assert got == [0, 1, 2]
    assert n_threads() == 0


def test_an_error_in_the_last_item_surfaces_at_close() -> None:
    sink = Sink()
    sink.put(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        sink.close()
    assert n_threads() == 0


def test_a_slow_sink_holds_few_items() -> None:
    may_go_on, taken = threading.Event(), threading.Semaphore(0)

    def consume() -> None:
        taken.release()
        assert may_go_on.wait(timeout=60)

    put: list[int] = []
    sink = Sink()

    def feed() -> None:
        for i in range(20):
            sink.put(consume)
            put.append(i)

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert taken.acquire(timeout=60)  # one is being consumed, the queue fills up behind it
    feeder.join(timeout=0.5)
    assert feeder.is_alive()
    assert len(put) <= ITEMS_WAITING + 1
    may_go_on.set()
    feeder.join(timeout=60)
    sink.close()
    assert put == list(range(20))


def test_ahead_gives_every_item_and_stays_at_its_end() -> None:
    ahead = Ahead(iter(range(20)))
    assert list(ahead) == list(range(20))
    assert next(ahead, "end") == "end"
    ahead.close()
    assert n_threads() == 0


def test_ahead_is_only_a_few_items_ahead() -> None:
    made: list[int] = []

    def make() -> Iterator[int]:
        for i in range(1000):
            made.append(i)
            yield i

    ahead = Ahead(make())
    assert next(ahead) == 0
    ahead.close()
    assert len(made) <= ITEMS_AHEAD + 1
    assert n_threads() == 0


def test_an_error_while_making_items_surfaces_in_its_place() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise KeyError("second")

    ahead = Ahead(make())
    assert next(ahead) == 1
    for _ in range(2):
        with pytest.raises(KeyError, match="second"):
            next(ahead)
    ahead.close()
    assert n_threads() == 0
