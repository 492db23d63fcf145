"""Two threads around the computation: one makes items ahead, one consumes them, through bounded queues."""

import queue
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from extract.poolings.pages import trim_heap

QUEUE_BATCHES = 2  # items made ahead at most
QUEUE_WRITES = 1  # items waiting to be consumed at most: those of words are large
TRIM_ITEMS = 2  # after so many consumed items, free pages of the heap go back to the system
T = TypeVar("T")


class Sink:
    """A thread that consumes items in order; its error surfaces at the next `put` or at `close`."""

    def __init__(self, consume: Callable[[Any], None]) -> None:
        self._consume = consume
        self._queue: queue.Queue[Any] = queue.Queue(QUEUE_WRITES)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="icecore-writer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        for number in count(1):
            if (item := self._queue.get()) is None:
                return
            if self._error is None:
                try:
                    self._consume(item)
                except BaseException as error:  # handed to the caller's thread
                    self._error = error
            del item  # else it would outlive the wait for the next one
            if number % TRIM_ITEMS == 0:
                trim_heap()

    def __enter__(self) -> "Sink":
        """Use the sink in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the sink."""
        self.close()

    def put(self, item: Any) -> None:
        """Hand over an item, waiting while the queue is full."""
        if self._error is not None:
            raise self._error
        self._queue.put(item)

    def close(self) -> None:
        """Consume what is queued, end the thread, and raise its error if it has not surfaced yet."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class Ahead(Iterator[T]):
    """An iterator whose items are made in a thread, a few ahead; its error surfaces where the items are used."""

    def __init__(self, items: Iterator[T]) -> None:
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue(QUEUE_BATCHES)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(items,), name="icecore-tokeniser", daemon=True)
        self._thread.start()

    def _work(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                if not self._offer((True, item)):
                    return
            self._offer((False, StopIteration()))
        except BaseException as error:  # handed to the caller's thread
            self._offer((False, error))

    def _offer(self, entry: tuple[bool, Any]) -> bool:
        while not self._is_closed.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __next__(self) -> T:
        """Return the next item, waiting for it."""
        is_item, value = self._queue.get()
        if is_item:
            item: T = value
            return item
        self._queue.put((False, value))
        raise value

    def __enter__(self) -> "Ahead[T]":
        """Use the iterator in a `with` block, which closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the iterator."""
        self.close()

    def close(self) -> None:
        """End the thread; drop items not taken yet."""
        self._is_closed.set()
        self._thread.join()
