"""One quick question to the hub before anything is downloaded."""

import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PROBE_SECONDS = 3.0
"""How long the hub may take for each step of one answer."""

GRACE_SECONDS = 1.0
"""How much longer the whole answer may take; name look-ups and slow trickles know no other limit."""

_TRUE = {"1", "ON", "YES", "TRUE"}


def is_offline(*switches: str) -> bool:
    """Return whether the user forbids the hub.

    Args:
        switches: Environment variables that forbid it besides `HF_HUB_OFFLINE`.

    Returns:
        True when one of them is set now, or `HF_HUB_OFFLINE` was when the hub's client was imported.
    """
    from huggingface_hub import constants

    asked = {os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", *switches)}
    return bool(constants.HF_HUB_OFFLINE) or bool(asked & _TRUE)


def hub_endpoint() -> str:
    """Return the hub's address: `HF_ENDPOINT` if set, else the client's own."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def ask_commit(question: Callable[["HfApi", float], str | None]) -> str | Exception:
    """Ask the hub once, without retries and for about four seconds at most, which commit a revision is.

    Args:
        question: Called with the hub's client and the seconds one step may take; gives the commit's full hash.

    Returns:
        The commit, or whatever went wrong; nothing is raised, for all of it means: no hub.
    """
    answers: queue.Queue[str | Exception] = queue.Queue()

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            commit = question(HfApi(endpoint=hub_endpoint()), PROBE_SECONDS)
            answers.put(commit or ValueError("the answer names no commit"))
        except Exception as error:  # whatever a proxy, a portal or a resolver does means: no hub
            answers.put(error)

    # A daemon thread, because no timeout of the HTTP client covers a name look-up or an answer that trickles.
    threading.Thread(target=ask, name="icecore-hub-probe", daemon=True).start()
    try:
        return answers.get(timeout=PROBE_SECONDS + GRACE_SECONDS)
    except queue.Empty:
        return TimeoutError(f"no answer in {PROBE_SECONDS + GRACE_SECONDS:g} s")
