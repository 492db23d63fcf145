"""A finished run in Python: what came of it, and its heads on new rows."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.decoders.decoder import Decoder
from extract.errors import InputError
from extract.own import gate
from extract.store.cache import LatentCache
from probes.report.document import result_rows
from probes.runs.existing import find_cache_of_run
from probes.runs.finished import read_finished
from probes.runs.kinds import KINDS
from probes.runs.results import results
from probes.runs.scorer import Scorer, load_scorer

if TYPE_CHECKING:
    import pandas as pd

CHUNK_ROWS = 4096
"""Rows predicted at a time; bounds memory."""


class LoadedRun:
    """A finished run, read back from its folder.

    The decoder is loaded when a head is first used, and only the layers that the head reads are computed.

    Attributes:
        folder: The run folder.
        name: Name of the run.
        kind: Kind of its task.
        plan: The mask plan, as text.
        heads: Names of the heads, as fitted.
        best: The head with the best selection score, on validation as a rule.
        layers: Layers that the best head could choose from, bottom up.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        decoder: Decoder | str | None = None,
        trust_remote_code: bool = False,
        allow_code: str | Iterable[str] = (),
    ) -> None:
        self._allows = (allow_code,) if isinstance(allow_code, str) else tuple(allow_code)
        with gate.allow_code(self._allows):
            self._found = read_finished(Path(folder))
        self._decoder, self._trusts = decoder, trust_remote_code
        self._scorers: dict[str, Scorer] = {}
        self.folder = self._found.folder
        self.name, self.kind = self._found.scores.header.name, self._found.scores.header.kind
        self.plan: str = self._found.scores.cache["plan"]
        self.heads, self.best = tuple(self._found.heads), self._found.best
        self.layers = self._found.scores.heads[self.best].layers

    def __repr__(self) -> str:
        result = self._found.scores.heads[self.best]
        return (
            f"<run {self.name!r}: {self.kind}, plan {self.plan}, {len(self.heads)} heads, best {self.best} with "
            f"{result.metric} {result.selection_score:.3f} on {result.selection.partition(' (')[0]}>"
        )

    def scorer(self, head: str = "") -> Scorer:
        """Return what predicts with a head, the best one if empty; raises as `load_scorer`."""
        name = head or self.best
        if name not in self._scorers:
            found = load_scorer(
                self.folder, head=name, decoder=self._decoder, trust_remote_code=self._trusts, allow_code=self._allows
            )
            self._decoder, self._scorers[name] = found.decoder, found
        return self._scorers[name]

    def predict(self, rows: Sequence[Any], *, head: str = "") -> list[Any]:
        """Predict rows: a score per pair of texts, a class or a number per text, a list of tags per sentence.

        Args:
            rows: Pairs of texts, texts, or sentences as `Scorer.score` takes them; a frame's column works too.
            head: A head of the run; the best one if empty.

        Raises:
            InputError: No rows, a row that is none of these (a text or a triple where the run is on pairs), or a text
                that cannot be read.
            IcecoreError: As `load_scorer`.
        """
        self.scorer(head).require_rows(rows)
        return list(self.stream(rows, head=head))

    def stream(self, rows: Iterable[Any], *, head: str = "", at_a_time: int = CHUNK_ROWS) -> Iterator[Any]:
        """Predict rows one after the other, however many: as many as `at_a_time` are held in memory."""
        rest, n_read = iter(rows), 0
        while chunk := list(islice(rest, at_a_time)):
            self.scorer(head).require_rows(chunk, first=n_read)
            n_read += len(chunk)
            predicted = self.scorer(head).score(chunk)
            yield from (each.item() if hasattr(each, "item") else each for each in predicted)

    def predict_proba(self, rows: Sequence[Any], *, head: str = "") -> "pd.DataFrame":
        """Return the probability of every class, a row per row and a column per class; HeadError for other heads."""
        import pandas as pd

        scorer = self.scorer(head)
        found = scorer.probabilities(rows).detach().numpy()
        return pd.DataFrame(found, columns=list(scorer.seeds[0].head.arguments()["class_names"]))

    def score_pairs(self, pairs: Sequence[Sequence[str]], *, head: str = "") -> list[float]:
        """Score pairs of texts in the units of the task's gold; InputError for a run on something else."""
        self._require_kind("pairs")
        return self.predict(pairs, head=head)

    def tag(self, sentences: Sequence[Any], *, head: str = "") -> list[list[str | None]]:
        """Tag the words of sentences, None for a word without a latent; InputError for a run on something else."""
        self._require_kind("words")
        return self.predict(sentences, head=head)

    def cache(self) -> LatentCache:
        """Open the cache that the run read; CacheError where it is gone."""
        return find_cache_of_run(self.folder)

    def results(self) -> "pd.DataFrame":
        """Return every number of the run, tidy, as `probes.results`."""
        return results(self.folder)

    def table(self) -> "pd.DataFrame":
        """Return the results table of the run's summary: a row per head and metric, as text, scores times 100."""
        import pandas as pd

        titles, rows = result_rows(self._found.scores, KINDS[self.kind].report)
        return pd.DataFrame(rows, columns=list(titles))

    def _require_kind(self, kind: str) -> None:
        if self.kind != kind:
            raise InputError(f"run {self.name!r} is on {self.kind}, not on {kind}; use predict.")


def load_run(
    folder: str | Path,
    *,
    decoder: Decoder | str | None = None,
    trust_remote_code: bool = False,
    allow_code: str | Iterable[str] = (),
) -> LoadedRun:
    """Load a finished run: its results, and its heads for new rows.

    A run folder may come from anybody: nothing in it is run, and no module that it names is imported unless
    `allow_code` says so (SECURITY.md).

    Args:
        folder: A folder made by `icecore run`.
        decoder: The run's decoder if it is in memory already, or where it is now; where the run says, when absent.
        trust_remote_code: Whether to run code that comes with the decoder. What the run folder says of it is ignored.
        allow_code: Modules of your own poolings, masks and heads that the run may import, as `my_parts`, or several.

    Raises:
        HeadError: No finished run there, or one of an earlier version.
        CodeError: It names a module that is not allowed, or is not the one it recorded.

    Example:
        >>> [score] = load_run("runs/demo").predict([("A cat sleeps.", "The cat is asleep.")])  # doctest: +SKIP
    """
    return LoadedRun(folder, decoder=decoder, trust_remote_code=trust_remote_code, allow_code=allow_code)
