"""Rows of a dataset repository: from the hub, asked once and quickly, from its cache, or from a local folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from extract.errors import TaskError
from extract.hub_probe import ask_commit, is_offline
from probes.tasks.hf_rows import first_line, quiet_datasets
from probes.tasks.raw_rows import RawRow, RawTable

if TYPE_CHECKING:
    import datasets


def read_repository(repository: str, revision: str | None, *, help_text: str) -> tuple[dict[str, RawTable], str]:
    """Read every split of a dataset repository.

    Args:
        repository: A hub id, or a local folder laid out like a repository of the hub.
        revision: Branch, tag or commit; None is the main branch. A folder knows none.
        help_text: What else to do when the hub cannot be had, as the end of a sentence.

    Returns:
        Split to its rows, and one line that says where they came from (with the commit, for the hub).

    Raises:
        TaskError: If the hub is off, unreachable (noticed in about 4 seconds) or does not know the repository, and
            its cache has no copy; or if the repository cannot be read.
    """
    if Path(repository).expanduser().is_dir():
        return _read_folder(Path(repository).expanduser(), revision)
    if is_offline("HF_DATASETS_OFFLINE"):
        missing = "the hub was not asked, because HF_HUB_OFFLINE is set"
    else:
        answer = ask_commit(lambda hub, seconds: hub.dataset_info(repository, revision=revision, timeout=seconds).sha)
        if not isinstance(answer, Exception):
            with quiet_datasets():
                return _load(repository, answer, help_text), f"{repository} at {answer} of the Hugging Face hub"
        missing = f"the hub gave nothing ({first_line(answer)})"
    if revision is not None:
        raise TaskError(
            f"dataset {repository!r} cannot be loaded at revision {revision!r}: {missing}, and the cache cannot tell "
            f"revisions apart; {help_text}."
        )
    with quiet_datasets(), _datasets_offline():
        try:
            return _load(repository, None, help_text), f"{repository} from the cache of `datasets` (hub not asked)"
        except TaskError as error:
            raise TaskError(
                f"dataset {repository!r} cannot be loaded: {missing}, and the cache has no copy; {help_text}."
            ) from error


def _read_folder(folder: Path, revision: str | None) -> tuple[dict[str, RawTable], str]:
    if revision is not None:
        raise TaskError(f"{folder} is a local folder, which has no revision {revision!r}: leave `revision` out.")
    with quiet_datasets(), TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        return _load(str(folder.absolute()), None, "check the folder", cache_dir=cache), f"folder {folder}"


def _load(repository: str, commit: str | None, help_text: str, *, cache_dir: str | None = None) -> dict[str, RawTable]:
    import datasets

    try:
        loaded = datasets.load_dataset(repository, revision=commit, cache_dir=cache_dir)
        return {str(split): _as_table(repository, str(split), rows) for split, rows in loaded.items()}
    except Exception as error:  # the builders and the hub's client raise a dozen unrelated types
        cause = error.__cause__ or error
        raise TaskError(f"dataset {repository!r} cannot be read ({first_line(cause)}); {help_text}.") from error


def _as_table(repository: str, split: str, rows: "datasets.Dataset") -> RawTable:
    numbered = [RawRow(number, row) for number, row in enumerate(rows.to_list(), start=1)]
    return RawTable(f"{repository} ({split})", "row", tuple(rows.column_names), numbered)


@contextmanager
def _datasets_offline() -> Iterator[None]:
    """Let `datasets` look into its cache at once, without first retrying a hub known to be out of reach."""
    from datasets import config

    was_offline = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = was_offline
