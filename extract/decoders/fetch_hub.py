"""The first source of a known decoder: the hub, asked once and quickly before anything is downloaded."""

from pathlib import Path
from typing import Any

from extract.decoders.hub_probe import ask_commit, hub_endpoint, is_offline
from extract.decoders.known import KnownDecoder

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


class HubError(Exception):
    """The hub gave nothing; the text goes on after the word `hub`: `not reachable (ConnectError)`."""


def resolve_revision(hub_id: str, revision: str) -> str:
    """Ask the hub once, without retries and for about three seconds at most, which commit a revision is.

    Args:
        hub_id: Repository, `owner/name`.
        revision: Branch, tag or commit.

    Returns:
        The commit's full hash.

    Raises:
        HubError: The hub is switched off, did not answer in time, refused, or does not know the revision.
    """
    if is_offline("TRANSFORMERS_OFFLINE"):
        raise HubError("not asked (HF_HUB_OFFLINE is set)")
    # `model_info` sends one request and never retries (huggingface_hub/hf_api.py); the timeout holds for each phase.
    answer = ask_commit(lambda hub, seconds: hub.model_info(hub_id, revision=revision, timeout=seconds).sha)
    if isinstance(answer, TimeoutError):
        raise HubError(f"not reachable ({answer})")
    if isinstance(answer, Exception):
        raise HubError(_reason(answer)) from answer
    return answer


def download_snapshot(decoder: KnownDecoder, commit: str) -> Path:
    """Download weights, config and tokenizer of one commit into the hub's own cache, resuming what is there.

    Args:
        decoder: The table's entry.
        commit: Hash from `resolve_revision`.

    Returns:
        The snapshot's folder.

    Raises:
        HubError: The download failed, or the repository has no safetensors.
    """
    try:
        folder = _snapshot(decoder.hub_id, commit, endpoint=hub_endpoint())
    except Exception as error:  # the hub's client raises its own, httpx's and the operating system's
        raise HubError(f"download failed ({type(error).__name__})") from error
    if not _is_loadable(folder):
        raise HubError(f"repository {decoder.hub_id} has no config.json with safetensors weights")
    return folder


def local_snapshot(hub_id: str, revision: str) -> Path | None:
    """Find a decoder in the hub's own cache, without asking the hub.

    Args:
        hub_id: Repository, `owner/name`.
        revision: Branch, tag or commit.

    Returns:
        The snapshot's folder, named by its commit; None when there is no loadable one.
    """
    try:
        folder = _snapshot(hub_id, revision, local_files_only=True)
    except OSError:  # LocalEntryNotFoundError and IncompleteSnapshotError are FileNotFoundError
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
