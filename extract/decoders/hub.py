"""The Hugging Face hub: one quick question for a commit, then the download of that commit."""

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.errors import FetchError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PROBE_SECONDS = 3.0
"""How long the hub may take for each step of one answer."""

GRACE_SECONDS = 1.0
"""How much longer the whole answer may take; name look-ups and slow trickles know no other limit."""

KEPT_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)
"""Weights, config and tokenizer; no pickle, no code, and nothing from subfolders."""

_TRUE = {"1", "ON", "YES", "TRUE"}


class HubError(Exception):
    """The hub gave nothing; the text goes on after the word `hub`: `not reachable (ConnectError)`."""


def is_offline(switch: str) -> bool:
    """Return whether the environment variable `switch`, or `HF_HUB_OFFLINE`, forbids the hub."""
    from huggingface_hub import constants

    asked = {os.environ.get(name, "").upper() for name in ("HF_HUB_OFFLINE", switch)}
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


def resolve_revision(hub_id: str, revision: str) -> str:
    """Ask the hub once and quickly for the full hash of a branch, tag or commit; HubError when it gives none."""
    if is_offline("TRANSFORMERS_OFFLINE"):
        raise HubError("not asked (HF_HUB_OFFLINE is set)")
    # `model_info` sends one request and never retries (huggingface_hub/hf_api.py); the timeout holds for each phase.
    answer = ask_commit(lambda hub, seconds: hub.model_info(hub_id, revision=revision, timeout=seconds).sha)
    if isinstance(answer, TimeoutError):
        raise HubError(f"not reachable ({answer})")
    if isinstance(answer, Exception):
        raise HubError(_reason(answer)) from answer
    return answer


def resolve_hub(hub_id: str, revision: str | None = None) -> str:
    """Return the commit of a revision (`main` when None) from the hub, else from the hub's local cache.

    Raises:
        FetchError: The hub gave no commit and its local cache holds no whole snapshot.
    """
    wanted = revision or "main"
    try:
        return resolve_revision(hub_id, wanted)
    except HubError as error:
        if snapshot := local_snapshot(hub_id, wanted):
            return snapshot.name
        raise FetchError(
            f"cannot get decoder {hub_id!r} at revision {wanted!r}: hub {error}, and its local cache holds no whole "
            "snapshot of it; set HF_ENDPOINT to a mirror, or pass a local folder as the decoder."
        ) from error


def download_snapshot(hub_id: str, commit: str) -> Path:
    """Download the `KEPT_FILES` of one commit into the hub's own cache, resuming what is there.

    Raises:
        HubError: The download failed, or the repository has no safetensors.
    """
    try:
        folder = _snapshot(hub_id, commit, endpoint=hub_endpoint())
    except Exception as error:  # the hub's client raises its own, httpx's and the operating system's
        raise HubError(f"download failed ({type(error).__name__})") from error
    if not _is_loadable(folder):
        raise HubError(f"repository {hub_id} has no config.json with safetensors weights")
    return folder


def local_snapshot(hub_id: str, revision: str) -> Path | None:
    """Find a loadable snapshot, a folder named by its commit, in the hub's own cache without asking the hub."""
    try:
        folder = _snapshot(hub_id, revision, local_files_only=True)
    except (OSError, ValueError):  # LocalEntryNotFoundError is a FileNotFoundError, a bad name a ValueError
        return None
    return folder if _is_loadable(folder) else None


def _snapshot(hub_id: str, revision: str, **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    kept = list(KEPT_FILES)
    return Path(snapshot_download(hub_id, revision=revision, allow_patterns=kept, ignore_patterns=["*/*"], **options))


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    name = type(error).__name__
    if status is None:
        return f"not reachable ({name})"
    if status in (401, 404) or name in ("GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError"):
        return f"refused (HTTP {status}, {name}: accept the licence on its page and run `hf auth login`)"
    return f"not reachable (HTTP {status})"


def _is_loadable(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
