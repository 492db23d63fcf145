"""A word task from any token dataset in the layout of the hub, by the names of its columns."""

from collections.abc import Mapping
from pathlib import Path

from extract.errors import TaskError, unknown_name
from probes.readers.hub_folder import read_hub
from probes.readers.raw_rows import RawTable
from probes.readers.token_rows import TokenColumns, check_token_rows
from probes.tasks.base import SPLITS
from probes.tasks.pairs.validate import canonical_split
from probes.tasks.words.assemble import build_task, hold_out
from probes.tasks.words.task import WordTask

_NO_HUB = "check the name and the connection, or give local files to task 'word-files'"


def load_word_hub(  # noqa: PLR0913  (flat, because these are the keys of a task in a YAML file)
    hub_id: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    splits: Mapping[str, str] | None = None,
    words: str = "tokens",
    tags: str = "ner_tags",
    document: str | None = None,
    metric: str = "auto",
    scheme: str = "auto",
    validation_fraction: float = 0.1,
    seed: int = 0,
) -> WordTask:
    """Load a token dataset by its column names through `datasets`.

    Args:
        hub_id: A dataset of the hub, or a local folder laid out like one.
        config: Its configuration, where the repository keeps several.
        revision: Branch, tag or commit; None is the main branch.
        splits: Split (train, validation, test) to what the repository calls it; None takes the usual names, and leaves
            splits of other names alone.
        words: Column of the lists of words.
        tags: Column of the lists of tags: texts, or whole numbers whose names the dataset declares.
        document: Column that names the document of a sentence; None where there is none.
        metric: `span-f1`, `accuracy`, or `auto`: spans if every tag is a span tag, accuracy if none but O is one.
        scheme: `auto` detects IOB1, IOB2, IO, BIOES or BILOU and refuses mixtures; a name is taken at its word.
        validation_fraction: Share of the training sentences to hold out where the dataset has no validation split; 0
            holds out none.
        seed: Seed of that draw, by sentence.

    Returns:
        The task; its source names the commit.

    Raises:
        TaskError: If the hub is out of reach and the cache has no copy (noticed in seconds), a row is bad, schemes are
            mixed, no split has a usual name, or nothing can be held out.
        UnknownNameError: If a configuration, split, column, metric or scheme is unknown.
    """
    columns = TokenColumns(words, tags, document, needs_document=document is not None)
    found, source = read_hub(hub_id, config, revision=revision, help_text=_NO_HUB)
    tables = {
        split: check_token_rows(table, columns) for split, table in _pick_splits(found, splits, source).items()
    }  # fmt: skip
    notes: tuple[str, ...] = ()
    if "train" in tables and "validation" not in tables and validation_fraction != 0:
        train, validation, note = hold_out(tables["train"], fraction=validation_fraction, seed=seed)
        tables, notes = {**tables, "train": train, "validation": validation}, (note,)
    name = Path(hub_id).name if config is None else f"{Path(hub_id).name}-{config}"
    return build_task(tables, name=name, source=source, metric=metric, scheme=scheme, notes=notes)


def _pick_splits(found: Mapping[str, RawTable], splits: Mapping[str, str] | None, source: str) -> dict[str, RawTable]:
    if splits is None:
        named = {canonical_split(split): table for split, table in found.items()}
        tables = {split: table for split, table in named.items() if split is not None}
        if not tables:
            raise TaskError(
                f"{source} has no split named train, validation or test: map each to one of {', '.join(found)} with "
                "`splits`."
            )
        return tables
    if not isinstance(splits, Mapping) or not splits:
        raise TaskError(f"`splits` is {splits!r}, but a mapping is needed, such as {{train: train, test: unseen}}.")
    tables = {}
    for key, theirs in splits.items():
        split = canonical_split(key)
        if split is None:
            raise unknown_name("split", key, SPLITS, hint="`splits` maps a split to its name in the repository.")
        if theirs not in found:
            raise unknown_name("split", theirs, found, hint=f"These are the splits of {source}.")
        if split in tables:
            raise TaskError(f"`splits` names the {split} split twice: leave one out.")
        tables[split] = found[theirs]
    return tables
