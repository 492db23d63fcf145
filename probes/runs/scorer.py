"""Scoring new rows with a finished run, whatever kind of task it is on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from extract.decoders.decoder import Decoder
from extract.decoders.loading import load_decoder
from extract.errors import DecoderError, InputError, unknown_name
from extract.inputs.joined import JoinedText
from extract.own import gate
from extract.run.spec import ExtractionSpec
from probes.fitting.saved import FittedModule, SavedHead
from probes.heads.saved import load_head
from probes.heads.scoring import class_probabilities, narrow_spec, only_chosen
from probes.runs.finished import FinishedRun, read_finished
from probes.runs.kinds import KINDS


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores rows with one head of a run, the mean of its seeds."""

    kind: str
    """Kind of task of the run, a key of `KINDS`."""
    name: str
    """The head."""
    seeds: tuple[SavedHead[FittedModule], ...]
    """The fitted heads, one per seed, each reduced to the layers that it needs."""
    decoder: Decoder
    spec: ExtractionSpec
    """What the heads read: no other layer or pooling is computed."""

    @property
    def n_texts(self) -> int:
        """Texts in a row."""
        return KINDS[self.kind].scoring.n_texts(self.seeds[0].record)

    @property
    def reads_words(self) -> bool:
        """Whether a row is a sentence of words."""
        return KINDS[self.kind].reads_words

    def score(self, rows: Sequence[Any]) -> Any:
        """Score rows.

        Args:
            rows: `N` pairs of texts (in any order within a pair), texts, or sentences: a text whose words are parted by
                white space, a list of words, or a `JoinedText`.

        Returns:
            For pairs `(N,)` scores in the units of the task's gold; for classes `N` class names; for numbers `(N,)`
            numbers; for words a list of tags per sentence, None for a word without a latent.

        Raises:
            InputError: No rows, a row that is none of these, or a text that cannot be read.

        Example:
            >>> load_scorer("runs/words-sample").score(["Oslo is cold ."])  # doctest: +SKIP
            [['B-LOC', 'O', 'O', 'O']]
        """
        self.require_rows(rows)
        return KINDS[self.kind].scoring.score(self.seeds, rows, self.decoder, self.spec)

    def probabilities(self, rows: Sequence[Any]) -> Any:
        """Return the `(N, K)` probability of every class, in the order of `seeds[0].head.arguments()["class_names"]`.

        Rows are as for `score`.

        Raises:
            InputError: As by `score`.
            HeadError: A head without probabilities.
        """
        self.require_rows(rows)
        return class_probabilities(self.seeds, rows, self.decoder, self.spec)

    def fields(self, row: Any, prediction: Any) -> dict[str, Any]:
        """Name what a scored row holds: a value by name, or for words a list of one value per word."""
        return KINDS[self.kind].scoring.fields(row, prediction)

    def require_rows(self, rows: Sequence[Any], *, first: int = 0) -> None:
        """Refuse no rows at all, and a row of another form, with an InputError; `first` is the number of the first."""
        if isinstance(rows, str | Mapping) or hasattr(rows, "columns"):  # whose characters, keys or names are no rows
            raise InputError(f"rows is a {type(rows).__name__}, {str(rows)[:40]!r}; give a list of {self._row_noun}.")
        if not len(rows):
            raise InputError(f"there are no {self.kind} to score; give at least one row.")
        for number, row in enumerate(rows, start=first):
            if not self._is_row(row):
                raise InputError(
                    f"row {number} is {str(row)[:60]!r}, a {type(row).__name__}; allowed for a run on {self.kind}: "
                    f"{self._row_noun}."
                )

    @property
    def _row_noun(self) -> str:
        if self.reads_words:
            return "sentences, each a text or a list of words"
        return "pairs of two texts" if self.n_texts == 2 else "texts"

    def _is_row(self, row: Any) -> bool:
        is_list = isinstance(row, list | tuple | np.ndarray) and all(isinstance(text, str) for text in row)
        if self.n_texts == 2:
            return is_list and len(row) == 2
        return isinstance(row, str) or (self.reads_words and (is_list or isinstance(row, JoinedText)))


def load_scorer(
    run: str | Path,
    *,
    head: str | None = None,
    decoder: Decoder | str | None = None,
    trust_remote_code: bool = False,
    allow_code: str | Iterable[str] = (),
) -> Scorer:
    """Load a saved run to score new rows.

    A run folder may come from anybody: nothing in it is run, no code that comes with its decoder unless
    `trust_remote_code` says so, and no module that it names unless `allow_code` does (SECURITY.md).

    Args:
        run: A run folder.
        head: Which head; the one with the best selection score, on validation as a rule, when absent.
        decoder: The run's decoder if it is in memory already, or where it is now; where the run says, when absent.
        trust_remote_code: Whether to run code that comes with the decoder. What the run folder says of it is ignored.
        allow_code: Modules of your own poolings, masks and heads that the run may import, as `my_parts`, or several.

    Raises:
        HeadError: No finished run there, or one of an earlier version.
        UnknownNameError: No such head in it.
        CodeError: It names a module that is not allowed, or is not the one it recorded.
        CacheIdentityError: The decoder, the plan or the template is not what the heads were fitted on.
        DecoderError: The decoder cannot be found or loaded.

    Example:
        >>> load_scorer("runs/demo").score([("A cat sleeps.", "The cat is asleep.")])  # doctest: +SKIP
    """
    with gate.allow_code(allow_code):
        found = read_finished(Path(run))
        name = head or found.best
        if name not in found.heads:
            raise unknown_name("head of this run", name, found.heads)
        kept = [load_head(place) for place in found.heads[name]]
        for saved in kept:
            found.require_head(saved, name)
        if not isinstance(decoder, Decoder):
            decoder = _load_decoder(found, decoder, trust_remote_code=trust_remote_code)
        found.require_latents(decoder, kept)
        seeds = tuple(only_chosen(saved, found.scores.heads[name].chosen) for saved in kept)
        kind = found.scores.header.kind
        spec = narrow_spec(found.spec, seeds, decoder, reads_words=KINDS[kind].reads_words)
        return Scorer(kind, name, seeds, decoder, spec)


def _load_decoder(found: FinishedRun, name: str | None, *, trust_remote_code: bool) -> Decoder:
    spec = replace(found.decoder, trust_remote_code=trust_remote_code)
    try:
        return load_decoder(replace(spec, name=name, merge=()) if name else spec)
    except DecoderError as error:
        hint = "If it has moved, say where it is: icecore score --decoder NAME."
        if found.decoder.trust_remote_code and not trust_remote_code:
            hint += (
                " It was run with code that comes with it, which is never run because a run folder says so; if you "
                "trust its authors, add --trust-remote-code."
            )
        raise DecoderError(f"{error} {hint}") from error
