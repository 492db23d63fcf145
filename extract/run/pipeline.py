"""Two threads around the computation: one makes items ahead, one consumes them, a few at a time."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TypeVar

from extract.poolings.pages import trim_heap

ITEMS_AHEAD = 3  # made ahead at most
ITEMS_WAITING = 1  # to be consumed at most: those of words are large
TRIM_ITEMS = 2  # after so many consumed items, free pages of the heap go back to the system
T = TypeVar("T")


class Sink:
    """A thread that consumes items in order; its error surfaces at the next `put` or at `close`."""

    def __init__(self, consume: Callable[[Any], None]) -> None:
        self._consume = consume
        self._queue: queue.Queue[Any] = queue.Queue(ITEMS_WAITING)
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
        self._items = items
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="icecore-tokeniser")
        self._made = deque(self._pool.submit(next, items) for _ in range(ITEMS_AHEAD))

    def __next__(self) -> T:
        """Return the next item, waiting for it."""
        item = self._made[0].result()  # an error, or the end, stays in its place
        self._made.popleft()
        self._made.append(self._pool.submit(next, self._items))
        return item

    def close(self) -> None:
        """End the thread; drop items not taken yet."""
        self._pool.shutdown(cancel_futures=True)
