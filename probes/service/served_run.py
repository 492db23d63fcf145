"""Runs that a service holds: their heads, and decoders that several share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from extract.decoders.decoder import Decoder
from extract.errors import UsageError
from probes.heads.head_table import HEADS
from probes.runs.new_rows import RowReader
from probes.runs.predict import LoadedRun, Scorer, read_run_folder
from probes.runs.task_kinds import KINDS


@dataclass(frozen=True, eq=False)
class ServedRun:
    """One run of a service."""

    name: str
    """Its part of the address."""
    scorer: Scorer
    reader: RowReader

    @property
    def kind(self) -> str:
        """Kind of its task."""
        return self.scorer.kind

    @property
    def predicts(self) -> str:
        """What a prediction is called."""
        return "tag" if self.scorer.reads_words else KINDS[self.kind].predicts

    @property
    def columns(self) -> tuple[str, ...]:
        """Keys of the texts of a row."""
        n_texts = self.scorer.n_texts
        return tuple(f"text{k}" for k in range(1, n_texts + 1)) if n_texts > 1 else (self._single,)

    @property
    def _single(self) -> str:
        return "words" if self.scorer.reads_words else "text"

    @property
    def gives_probabilities(self) -> bool:
        """Whether its head gives the probability of every class."""
        return HEADS[self.scorer.name].gives_probabilities

    @property
    def can_clip(self) -> bool:
        """Whether it predicts numbers and knows the range of gold."""
        return self.kind in ("pairs", "numbers") and self.scorer.gold_range is not None


def open_runs(
    folders: Sequence[str], *, head: str = "", decoder: str = "", trust_remote_code: bool = False
) -> list[ServedRun]:
    """Open runs, each decoder once, and predict a row with each, so that the first request is no slower than others.

    Raises:
        UsageError: No run, or two of one name.
        HeadError: A run cannot be read, or predicts nothing of single rows.
        IcecoreError: As `load_scorer`.
    """
    if not folders:
        raise UsageError("no run was named; give one or several, as runs/demo.")
    runs: dict[str, ServedRun] = {}
    decoders: dict[str, Decoder] = {}
    for path in folders:
        folder = read_run_folder(path)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.path.resolve().name)
        if name in runs:
            raise UsageError(f"two runs are called {name!r}, which is part of their address; rename a folder.")
        spec = folder.decoder
        if Path(spec.name).exists():
            spec = replace(spec, name=str(Path(spec.name).resolve()))
        key = decoder or repr(spec)
        run = LoadedRun(folder, decoder=decoders.get(key) or decoder or None, trust_remote_code=trust_remote_code)
        scorer = run.scorer(head)
        decoders.setdefault(key, scorer.decoder)
        row = "ice" if scorer.n_texts == 1 else ("ice",) * scorer.n_texts
        scorer.score([row])  # a kind whose rows mean nothing alone says so
        runs[name] = ServedRun(name, scorer, run.reader(head))
    return list(runs.values())
