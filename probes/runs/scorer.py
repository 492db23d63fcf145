"""Scoring new rows with a finished run, whatever kind of task it is on."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extract.decoders.decoder import Decoder
from extract.decoders.loading import load_decoder
from extract.decoders.spec import DecoderSpec
from extract.errors import CacheIdentityError, HeadError, InputError, unknown_name
from extract.inputs.template import InputTemplate
from extract.masks.plan import parse_plan
from extract.run.spec import ExtractionSpec, WordSpec
from extract.store.manifest import differences
from probes.fitting.saved import FittedModule, SavedHead
from probes.heads.saved import load_head
from probes.heads.scoring import class_probabilities, narrow_spec, only_chosen
from probes.report.scores import SCORES_SCHEMA, RunScores, read_run
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
            InputError: No rows, or a text that cannot be read.

        Example:
            >>> load_scorer("runs/words-sample").score(["Oslo is cold ."])  # doctest: +SKIP
            [['B-LOC', 'O', 'O', 'O']]
        """
        self._require_rows(rows)
        return KINDS[self.kind].scoring.score(self.seeds, rows, self.decoder, self.spec)

    def probabilities(self, rows: Sequence[Any]) -> Any:
        """Return the `(N, K)` probability of every class, in the order of `seeds[0].head.arguments()["class_names"]`.

        Rows are as for `score`.

        Raises:
            InputError: As by `score`.
            HeadError: A head without probabilities.
        """
        self._require_rows(rows)
        return class_probabilities(self.seeds, rows, self.decoder, self.spec)

    def fields(self, row: Any, prediction: Any) -> dict[str, Any]:
        """Name what a scored row holds: a value by name, or for words a list of one value per word."""
        return KINDS[self.kind].scoring.fields(row, prediction)

    def _require_rows(self, rows: Sequence[Any]) -> None:
        if not len(rows):
            raise InputError(f"there are no {self.kind} to score; give at least one row.")


def load_scorer(run: str | Path, *, head: str | None = None, decoder: Decoder | None = None) -> Scorer:
    """Load a saved run to score new rows.

    Args:
        run: A run folder.
        head: Which head; the one with the best selection score, on validation as a rule, when absent.
        decoder: The run's decoder, if it is in memory already.

    Raises:
        HeadError: No finished run there, or one of an earlier version.
        UnknownNameError: No such head in it.
        CacheIdentityError: The decoder, the plan or the template is not what the heads were fitted on.

    Example:
        >>> load_scorer("runs/demo").score([("A cat sleeps.", "The cat is asleep.")])  # doctest: +SKIP
    """
    folder = Path(run)
    scores, spec, decoder_spec = _read_folder(folder)
    name = head or max(scores.heads, key=lambda key: _selection_score(scores, key))
    if name not in scores.heads:
        raise unknown_name("head of this run", name, scores.heads)
    result, place = scores.heads[name], folder / "heads" / name
    folders = [place / f"seed_{seed['seed']}" for seed in result.seeds] or [place]  # a head without seeds has one
    seeds = tuple(only_chosen(load_head(each), result.chosen) for each in folders)
    decoder = decoder or load_decoder(decoder_spec)
    _require_same(folder, scores, decoder, spec)
    kind = scores.header.kind
    spec = narrow_spec(spec, seeds, decoder, reads_words=KINDS[kind].reads_words)
    return Scorer(kind, name, seeds, decoder, spec)


def _read_folder(folder: Path) -> tuple[RunScores, ExtractionSpec, DecoderSpec]:
    try:
        values = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        schema = values["schema"]
        if schema == SCORES_SCHEMA:
            return read_run(values), read_spec(config["extraction"]), DecoderSpec(**config["decoder"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise HeadError(
            f"folder {str(folder)!r} holds no finished run; allowed: a folder made by `icecore run`, as runs/demo."
        ) from error
    raise HeadError(
        f"folder {str(folder)!r} holds a run of another version (schema {schema}, this one reads {SCORES_SCHEMA}); run "
        f"it again: icecore run {folder / 'config.yaml'}."
    )


def read_spec(values: dict[str, Any]) -> ExtractionSpec:
    """Read the `extraction` of a run's config.yaml back; an unknown key is a `TypeError`."""
    parts = {"template": InputTemplate(**_tuples(values["template"])), "words": WordSpec(**_tuples(values["words"]))}
    return ExtractionSpec(**{**_tuples(values), **parts})


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in values.items()}


def _selection_score(scores: RunScores, head: str) -> float:
    score = scores.heads[head].selection_score
    return -math.inf if math.isnan(score) else score


def _require_same(folder: Path, scores: RunScores, decoder: Decoder, spec: ExtractionSpec) -> None:
    """Refuse latents that are not like those that the heads were fitted on."""
    keys = ("weight_digest", "tokenizer_digest", "dtype")
    described, window = decoder.description.to_dict(), decoder.description.window
    now = {
        "decoder": {key: described[key] for key in keys},
        "plan": parse_plan(spec.plan).text,
        "template": {**spec.template.to_dict(), "window": window},
    }
    fitted_on = {
        "decoder": {key: scores.header.decoder[key] for key in keys},
        "plan": scores.cache["plan"],
        "template": scores.cache["template"],
    }
    unequal = differences(now, fitted_on)
    if unequal:
        listing = "; ".join(f"{key} is {found!r}, the run has {wanted!r}" for key, (found, wanted) in unequal.items())
        raise CacheIdentityError(
            f"the heads of {str(folder)!r} were fitted on something else: {listing}. Score with the decoder and the "
            "config.yaml of the run, or run it again."
        )
