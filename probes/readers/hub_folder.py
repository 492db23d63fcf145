"""One configuration of a dataset repository: one that it declares, or a folder of that name (LexGLUE, GLUE)."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from extract.decoders.hub_probe import ask_commit, hub_endpoint, is_offline
from extract.errors import TaskError, unknown_name
from probes.readers.hf_rows import first_line
from probes.readers.hub import declared_configurations, read_repository
from probes.readers.raw_rows import RawTable


def read_hub(
    hub_id: str, config: str | None, *, revision: str | None, help_text: str
) -> tuple[dict[str, RawTable], str]:
    """Read every split of a dataset repository, or of one of its configurations.

    Args:
        hub_id: A dataset of the hub, or a local folder laid out like one.
        config: The configuration, declared in README.md or kept in a folder of that name; None for a repository that
            has only one.
        revision: Branch, tag or commit; None is the main branch. A folder knows none.
        help_text: What else to do when the hub cannot be had, as the end of a sentence.

    Returns:
        Split to its rows, and one line that says where they came from (with the commit, for the hub).

    Raises:
        TaskError: If the hub is off, unreachable or does not know the repository, and its cache has no copy; or if
            the rows cannot be read.
        UnknownNameError: If the repository has neither.
    """
    local = Path(hub_id).expanduser()
    if config is None or (local.is_dir() and declared_configurations(str(local.absolute()))):
        return read_repository(hub_id, revision, help_text=help_text, config=config)
    if local.is_dir():
        return read_repository(str(_config_folder(local, config, hub_id)), revision, help_text=help_text)
    snapshot, came_from = _fetch_config(hub_id, config, revision=revision, help_text=help_text)
    if not (snapshot / config).is_dir():  # its files lie elsewhere, so it is declared or unknown
        return read_repository(hub_id, revision, help_text=help_text, config=config)
    folder = _config_folder(snapshot, config, hub_id)
    tables, _ = read_repository(str(folder), None, help_text=help_text)
    named = {split: replace(table, where=f"{hub_id}/{config} ({split})") for split, table in tables.items()}
    return named, f"{hub_id}/{config} {came_from}"


def _config_folder(repository: Path, config: str, hub_id: str) -> Path:
    folders = sorted(each.name for each in repository.iterdir() if each.is_dir() and not each.name.startswith("."))
    if config not in folders:
        raise unknown_name("configuration", config, folders, hint=f"These are the folders of {hub_id}.")
    return repository / config


def _fetch_config(hub_id: str, config: str, *, revision: str | None, help_text: str) -> tuple[Path, str]:
    """Download one folder of a repository into the hub's own cache; without the hub, take what is there."""
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, hub_id, repo_type="dataset", allow_patterns=[f"{config}/*"])
    missing = "the hub was not asked, because HF_HUB_OFFLINE is set"
    if not is_offline("HF_DATASETS_OFFLINE"):
        answer = ask_commit(lambda hub, seconds: hub.dataset_info(hub_id, revision=revision, timeout=seconds).sha)
        if isinstance(answer, str):
            try:
                path = fetch(revision=answer, endpoint=hub_endpoint())
            except Exception as error:  # the hub's client raises its own, httpx's and the operating system's
                raise TaskError(
                    f"dataset {hub_id!r} cannot be downloaded ({first_line(error)}); {help_text}."
                ) from error
            return Path(path), f"at {answer} of the Hugging Face hub"
        missing = f"the hub gave nothing ({first_line(answer)})"
    try:
        path = fetch(revision=revision, local_files_only=True)
    except Exception as error:  # LocalEntryNotFoundError, or an id the client does not take
        raise TaskError(
            f"dataset {hub_id!r} cannot be loaded: {missing}, and the cache has no copy; {help_text}."
        ) from error
    return Path(path), f"at {Path(path).name} from the cache of the hub (hub not asked)"
