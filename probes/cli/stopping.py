"""Ctrl-C and SIGTERM: one message and one exit code, whatever the command is doing."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

INTERRUPTED = 130
MESSAGE = "icecore: interrupted; every row and head that is done is kept. Run the same command to go on.\n"


@contextmanager
def stop_signals(handler: Callable[..., Any]) -> Iterator[None]:
    """Let `handler` answer Ctrl-C and SIGTERM inside the block; in the main thread, unless they are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    taken = {number: before for number, before in found.items() if before not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)


def interrupt(*_: object) -> NoReturn:
    """Raise KeyboardInterrupt, so that what is being written is finished."""
    raise KeyboardInterrupt


def leave_at_once(*_: object) -> NoReturn:
    """End the process; while modules are imported an exception may be swallowed or shown by the module."""
    sys.stderr.write(MESSAGE)
    sys.stderr.flush()
    os._exit(INTERRUPTED)
