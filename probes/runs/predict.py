"""A finished run in Python: its results, its heads on new rows, and the encoder that it ends with."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from extract import registry as gate
from extract.decoders.decoder import Decoder, load_decoder
from extract.decoders.decoder_spec import DecoderSource, DecoderSpec, as_decoder_spec, read_recorded_decoder
from extract.errors import (
    CacheIdentityError,
    DecoderError,
    HeadError,
    IcecoreError,
    InputError,
    first_line,
    unknown_name,
)
from extract.files import digest_bytes, read_file
from extract.inputs.joined_text import JoinedText
from extract.inputs.template import DEFAULTS, InputTemplate
from extract.masks.mask_plan import parse_plan
from extract.poolings.pooling_table import select_poolings, select_word_poolings, split_poolings
from extract.records import to_plain, with_values
from extract.registry import import_own, require_own, require_recorded
from extract.run.embed import embed_readings
from extract.run.extraction_spec import ExtractionSpec
from extract.store.cache import LatentCache
from extract.store.manifest import differences
from probes.fitting.saved_fits import DECODER_KEYS, FittedModule, SavedHead, unlike
from probes.heads.head_table import TaskKind, find_head
from probes.heads.layer_head import classify_texts, load_head, narrow_spec, only_chosen, saved_channels
from probes.heads.result import HeadResult
from probes.latents.text_latents import Transform, no_transform
from probes.report.blocks import Table, plain_text
from probes.report.document import result_rows, run_lead
from probes.report.scores import RunScores, label_of, read_plans
from probes.runs.folder import CHANGED, CONFIG, UNREADABLE, RunFolder, no_run
from probes.runs.new_rows import NewRow, Row, RowReader, row_reader
from probes.runs.task_kinds import KINDS

if TYPE_CHECKING:
    import pandas as pd

    from probes.report.page import ShownPage


CHUNK_ROWS = 4096
"""Rows predicted at a time; bounds memory."""


Prediction = float | str | list[str | None]
"""A number, a class, or the tags of a sentence."""


@dataclass(frozen=True)
class Answer:
    """What became of a row: a prediction, or the reason why there is none."""

    prediction: Prediction | None
    error: str = ""
    """A sentence; empty beside a prediction."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """Class to its probability, where that was asked for."""


@dataclass(frozen=True, eq=False)
class RowScorer:
    """Scores rows with one head of a run, the mean of its seeds: a score, a class or a number, or a tag per word."""

    kind: str
    """Kind of task of the run, a key of `KINDS`."""
    name: str
    """The head."""
    seeds: tuple[SavedHead[FittedModule], ...]
    """The fitted heads, one per seed, each reduced to the layers that it needs."""
    decoder: Decoder
    spec: ExtractionSpec
    """What the heads read: no other layer or pooling is computed."""
    gold_range: tuple[float, float] | None = None
    """Lowest and highest gold of the run's task; None for classes and words, and in runs that do not record it."""

    @property
    def n_texts(self) -> int:
        """Texts in a row."""
        return self._kind.n_texts(self.seeds[0].record)

    @property
    def reads_words(self) -> bool:
        """Whether a row is a sentence of words."""
        return self._kind.reads_words

    @property
    def _kind(self) -> TaskKind:
        return KINDS[self.kind]

    def score(self, rows: Sequence[Row]) -> Any:
        """Score rows, all of them at once; `predict` bounds memory.

        Example:
            >>> load_scorer("runs/words-sample").score(["Oslo is cold ."])  # doctest: +SKIP
            [['B-LOC', 'O', 'O', 'O']]
        """
        self.require_rows(rows)
        return self._kind.score(self.seeds, rows, self.decoder, self.spec)

    def predict(self, rows: Sequence[Row], *, at_a_time: int = CHUNK_ROWS) -> list[Prediction]:
        """Predict rows, as many as `at_a_time` together."""
        self.require_rows(rows)
        return list(self.stream(rows, at_a_time=at_a_time))

    def stream(self, rows: Iterable[Row], *, at_a_time: int = CHUNK_ROWS) -> Iterator[Prediction]:
        """Predict rows one after the other, however many: as many as `at_a_time` are held in memory."""
        iterator, n_read = iter(rows), 0
        while chunk := list(islice(iterator, at_a_time)):
            self.require_rows(chunk, first=n_read)
            n_read += len(chunk)
            for prediction in self._kind.score(self.seeds, chunk, self.decoder, self.spec):
                yield prediction.item() if hasattr(prediction, "item") else prediction

    def answer(
        self, rows: Sequence[NewRow], *, with_probabilities: bool = False, is_clipped: bool = False
    ) -> list[Answer]:
        """Predict rows of which some may be bad: each gets its prediction, or the reason why there is none.

        With `is_clipped`, numbers outside the range of gold become its nearest end.
        """
        if is_clipped:
            self.require_range()
        answers: dict[int, Answer] = {}
        good = [k for k, row in enumerate(rows) if row.row is not None]
        parts = [good[start : start + CHUNK_ROWS] for start in range(0, len(good), CHUNK_ROWS)]
        while parts:
            part = parts.pop()
            texts = [row for k in part if (row := rows[k].row) is not None]
            try:
                answers |= zip(part, self._answer(texts, with_probabilities, is_clipped), strict=True)
            except HeadError:
                raise
            except Exception as error:  # whatever a stranger's row does, the others are answered
                if len(part) > 1:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
                    continue
                where = rows[part[0]].where or "the row"
                reason = (
                    str(error) if isinstance(error, IcecoreError) else f"it cannot be predicted ({first_line(error)})."
                )
                answers[part[0]] = Answer(None, f"{where}: {reason}")
        return [answers.get(k) or Answer(None, row.error) for k, row in enumerate(rows)]

    def _answer(self, rows: Sequence[Row], with_probabilities: bool, is_clipped: bool) -> list[Answer]:
        if with_probabilities:
            self.require_rows(rows)
            names, shares = classify_texts(self.seeds, rows, self.decoder, self.spec)
            listed = self._name_columns(shares).to_dict("records")
            return [Answer(name, probabilities=share) for name, share in zip(names, listed, strict=True)]
        predictions = self.predict(rows)
        if is_clipped and self.gold_range is not None:
            low, high = self.gold_range
            predictions = [min(max(value, low), high) if isinstance(value, float) else value for value in predictions]
        return [Answer(value) for value in predictions]

    def require_range(self) -> None:
        """Refuse to clip predictions that are no numbers, or whose range no run recorded."""
        if not self._kind.predicts_numbers:
            raise HeadError(f"--clip does nothing for a run on {self.kind}; allowed: pairs and numbers.")
        if self.gold_range is None:
            raise HeadError("the run does not record the range of its gold, so nothing can be clipped; run it again.")

    def table(self, rows: Sequence[NewRow], answers: Iterable[Answer]) -> Iterator[dict[str, Any]]:
        """Put answers, or why there is none, beside the columns of their rows, in columns whose names are free."""
        used = {name for row in rows for name in row.values}
        for row, answer in zip(rows, answers, strict=True):
            fields: dict[str, Any] = {self._kind.predicts: None, "error": answer.error}
            if row.row is not None and answer.prediction is not None:
                shares = {f"p_{name}": value for name, value in answer.probabilities.items()}
                fields = {**self.fields(row.row, answer.prediction), **shares}
            if row.values:  # beside the user's own columns, which hold the texts
                fields = {name: value for name, value in fields.items() if not name.startswith(("text", "word"))}
            values = {  # half a character, which no file can hold, is written as its code
                name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
                for name, value in row.values.items()
            }
            yield {**values, **{_free_name(name, used): value for name, value in fields.items()}}

    def predict_proba(self, rows: Sequence[Row]) -> "pd.DataFrame":
        """Return `probabilities` as a frame with a column per class."""
        return self._name_columns(self.probabilities(rows))

    def _name_columns(self, shares: Float[Tensor, "N K"]) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(shares.detach().numpy(), columns=list(self.seeds[0].head.arguments()["class_names"]))

    def probabilities(self, rows: Sequence[Row]) -> Float[Tensor, "N K"]:
        """Return the `(N, K)` probability of every class, in the order of `seeds[0].head.arguments()["class_names"]`.

        Rows are as for `score`.
        """
        self.require_rows(rows)
        return classify_texts(self.seeds, rows, self.decoder, self.spec)[1]

    def fields(self, row: Row, prediction: Prediction) -> dict[str, Any]:
        """Name what a scored row holds: a value by name, or for words a list of one value per word."""
        return self._kind.fields(row, prediction)

    def require_rows(self, rows: Sequence[object], *, first: int = 0) -> None:
        """Refuse no rows at all, and a row of another form, with an InputError; `first` numbers the first row."""
        if isinstance(rows, str | Mapping) or hasattr(rows, "columns"):  # their items are characters, keys or names
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
        return {1: "texts", 2: "pairs of two texts"}.get(self.n_texts, f"rows of {self.n_texts} texts")

    def _is_row(self, row: object) -> bool:
        texts = row if isinstance(row, list | tuple | np.ndarray) and all(isinstance(text, str) for text in row) else ()
        if self.n_texts > 1:
            return len(texts) == self.n_texts
        return isinstance(row, str) or (self.reads_words and (texts is row or isinstance(row, JoinedText)))


def _free_name(name: str, used: Collection[str]) -> str:
    """Name a column of ours: `score`, or where the table has one `predicted_score`, `predicted_score_2` and so on."""
    tries = chain([name, f"predicted_{name}"], (f"predicted_{name}_{number}" for number in count(2)))
    return next(free for free in tries if free not in used)


def load_scorer(
    run: str | Path,
    *,
    head: str | None = None,
    decoder: Decoder | DecoderSource | None = None,
    trust_remote_code: bool = False,
    allow_code: str | Iterable[str] = (),
) -> RowScorer:
    """Load a saved run to score new rows.

    A run folder may come from anybody: nothing in it is run, no code that comes with its decoder unless
    `trust_remote_code` says so, and no module that it names unless `allow_code` does (SECURITY.md).

    Args:
        run: A run folder.
        head: Which head; the one with the best selection score, on validation as a rule, when absent.
        decoder: The run's decoder if it is in memory already, or where it is now (a name, a path or settings, as
            `load_decoder` takes them); where the run says, when absent.
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
        return _open_scorer(read_run_folder(run), head or "", decoder, trust_remote_code=trust_remote_code)


def _open_scorer(
    folder: RunFolder, head: str, decoder: Decoder | DecoderSource | None, *, trust_remote_code: bool = False
) -> RowScorer:
    name = head or folder.best
    if name not in folder.heads:
        raise unknown_name("head of this run", name, folder.heads)
    heads = [load_head(path) for path in folder.heads[name]]
    for saved in heads:
        _require_head(folder, saved, name)
    if not isinstance(decoder, Decoder):
        decoder = _load_decoder(folder, decoder, trust_remote_code=trust_remote_code)
    _require_latents(folder, decoder, heads)
    seeds = tuple(only_chosen(saved, folder.scores.heads[name].chosen) for saved in heads)
    kind = folder.scores.header.kind
    spec = narrow_spec(folder.spec, seeds, decoder, reads_words=KINDS[kind].reads_words)
    ends = folder.scores.header.task.get("score_range")
    return RowScorer(kind, name, seeds, decoder, spec, (float(ends[0]), float(ends[1])) if ends else None)


def read_run_folder(run: str | Path | RunFolder) -> RunFolder:
    """Read and check all that predictions need of a run folder, and import the custom code that it recorded."""
    folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    values = folder.values
    if values["what"] != "run":
        raise HeadError(
            f"folder {str(folder.path)!r} is a {values['what']}, which has heads at many points; allowed: a folder "
            "made by `icecore run`. Run the chosen point, or `icecore export sentence-transformers` this one."
        )
    try:
        if values.get("config_sha256") != digest_bytes(read_file(folder.path / CONFIG)):
            raise ValueError(f"{CONFIG} {CHANGED}")
        _import_code(folder)
        scores, _ = folder.scores, (folder.heads, folder.spec, folder.decoder)
        if scores.header.kind not in KINDS or not scores.heads:
            raise ValueError(f"it has {len(scores.heads)} heads for tasks of {scores.header.kind!r}")
        for part, keys in ((scores.cache, ("id", "plan", "template")), (scores.header.decoder, DECODER_KEYS)):
            if missing := [key for key in keys if key not in part]:
                raise KeyError(f"{', '.join(missing)} is missing")
    except UNREADABLE as error:
        raise no_run(folder.path, error) from error
    return folder


def list_code(folder: RunFolder) -> list[str]:
    """List the names in the settings of a run, sweep or search that may be those of a user's code."""
    values, settings = folder.values, folder.settings
    extraction, plans = settings["extraction"], values.get("plans", [])
    heads = [name for part in ([values] if "heads" in values else plans) for name in part["heads"]]
    names = [*extraction["poolings"], *extraction["words"]["poolings"], extraction["plan"], *heads]
    views = [changes or {} for changes in settings.get("views", {}).values()]
    parts = [part for changes in views for part in (changes, changes.get("words") or {})]
    names += [str(part[key]) for part in parts for key in ("plan", "poolings") if key in part]
    return [*names, *(str(plan["plan"]) for plan in plans)]


def _require_head(folder: RunFolder, saved: SavedHead[FittedModule], name: str) -> None:
    """Refuse a head in another head's folder, or one that was fitted on another cache than the scores are of."""
    record = saved.record
    try:
        latents = dict(record.latents)  # early heads do not say
        if missing := [key for key in ("decoder", "plan", "template") if latents and key not in latents]:
            raise KeyError(f"{', '.join(missing)} of the latents is missing")
        if not isinstance(latents.get("decoder", {}), dict):
            raise TypeError(f"the decoder of the latents is {latents['decoder']!r}")
        if not record.pooling or not record.layers:
            raise KeyError("it names no pooling or no layers")
        KINDS[folder.scores.header.kind].check_record(record)
    except (*UNREADABLE, ArithmeticError) as error:
        raise HeadError(
            f"the record of head {name!r} of {str(folder.path)!r} is not one that this version writes "
            f"({first_line(error)}); run its config again."
        ) from error
    scored = {"name": name, "cache": folder.scores.cache["id"]}
    fitted = {"name": record.name, "cache": latents.get("cache", scored["cache"])}
    if unequal := differences(fitted, scored):
        listing = "; ".join(f"{key} is {a!r}, its scores are of {b!r}" for key, (a, b) in unequal.items())
        raise CacheIdentityError(
            f"a head of {str(folder.path)!r} is not the one that was scored: {listing}. Run it again: icecore run "
            f"{folder.path / CONFIG}."
        )


def _require_latents(folder: RunFolder, decoder: Decoder, heads: Sequence[SavedHead[FittedModule]]) -> None:
    """Refuse a decoder whose latents are not those that the run scored and the heads were fitted on."""
    require_own(folder.scores.header.own, folder=folder.path)
    described, readings = decoder.description, folder.spec.readings
    of_words = KINDS[folder.scores.header.kind].reads_words
    views = {name: _describe_view(view, decoder, of_words=of_words) for name, view in readings.items()}
    first = next(iter(views.values()))
    now = {
        "plan": first["plan"],
        "template": first["template"],
        "views": views if folder.spec.views else {},
    }
    scored = {
        "decoder": folder.scores.header.decoder,
        "plan": folder.scores.cache["plan"],
        "template": folder.scores.cache["template"],
        "views": {
            name: {key: value for key, value in view.items() if key != "n_tokens"}
            for name, view in folder.scores.cache.get("views", {}).items()
        },
    }
    for latents in filter(None, [scored, *(saved.record.latents for saved in heads)]):
        unequal = differences(now, {key: {"views": {}, **latents}[key] for key in now})
        unequal |= {f"decoder.{key}": pair for key, pair in unlike(vars(described), latents["decoder"]).items()}
        if unequal:
            listing = "; ".join(f"{key} is {a!r}, the run has {b!r}" for key, (a, b) in unequal.items())
            raise CacheIdentityError(
                f"the heads of {str(folder.path)!r} were fitted on something else: {listing}. Score with the decoder "
                "and the config.yaml of the run, or run it again."
            )


def _describe_view(spec: ExtractionSpec, decoder: Decoder, *, of_words: bool) -> dict[str, object]:
    """Describe what a view reads as the record of a cache does."""
    n_blocks = len(decoder.blocks)
    poolings = (
        select_word_poolings(spec.words.poolings, spec.mask_plan, n_blocks, n_copies=spec.template.repeat)
        if of_words
        else select_poolings(spec.poolings)
    )
    template = {**spec.template.to_dict(), "window": decoder.description.window}
    return {"plan": spec.mask_plan.text, "template": template, "pooling": poolings[0]}


def moved_decoder(spec: DecoderSpec, source: DecoderSource | None) -> DecoderSpec:
    """Return a recorded decoder with the place where it is now; settings that are given whole replace it."""
    if source is None:
        return spec
    if isinstance(source, str | Path):
        return replace(spec, name=str(source), merge=())
    return as_decoder_spec(source)


def _load_decoder(folder: RunFolder, source: DecoderSource | None, *, trust_remote_code: bool) -> Decoder:
    spec = moved_decoder(replace(folder.decoder, trust_remote_code=trust_remote_code), source)
    try:
        return load_decoder(spec)
    except DecoderError as error:
        hint = "If it has moved, say where it is: icecore score --decoder NAME."
        if folder.decoder.trust_remote_code and not trust_remote_code:
            hint += (
                " It was run with code that comes with it, which is never run because a run folder says so; if you "
                "trust its authors, add --trust-remote-code."
            )
        raise DecoderError(f"{error} {hint}") from error


class LoadedRun:
    """A finished run: `run` returns it, and `load_run` reads it back from its folder.

    The decoder is loaded when a head is first used, and only the layers that the head reads are computed.

    Attributes:
        folder: The run folder.
        name: Name of the run.
        kind: Kind of its task.
        plan: The mask plan, as text.
        heads: Names of the heads, as fitted.
        best: The head with the best selection score, on validation as a rule.
        layers: Layers that the best head could choose from, bottom up.

    Printed in a notebook, it shows the verdict, the best head's figure and the table.
    """

    def __init__(
        self,
        folder: str | Path | RunFolder,
        *,
        decoder: Decoder | DecoderSource | None = None,
        trust_remote_code: bool = False,
        allow_code: str | Iterable[str] = (),
    ) -> None:
        self._allows = (allow_code,) if isinstance(allow_code, str) else tuple(allow_code)
        with gate.allow_code(self._allows):  # a folder that this process has just written is read as it is
            self._run = folder if isinstance(folder, RunFolder) else read_run_folder(folder)
        self._decoder, self._trusts = decoder, trust_remote_code
        self._scorers: dict[str, RowScorer] = {}
        self.folder, scores = self._run.path, self._run.scores
        self.name, self.kind = scores.header.name, scores.header.kind
        self.plan: str = scores.cache["plan"]
        self.heads, self.best = tuple(self._run.heads), self._run.best
        self.layers = scores.heads[self.best].layers

    def __repr__(self) -> str:
        result = self.record.heads[self.best]
        score = f"{result.metric} {result.selection_score:.3f}{f' on {result.chosen_on}' * bool(result.chosen_on)}"
        return (
            f"<run {self.name!r}: {self.kind}, plan {self.plan}, {len(self.heads)} heads, best {self.best} with "
            f"{score}\n in {self.folder}>"
        )

    @property
    def record(self) -> RunScores:
        """The scores as a typed record."""
        return self._run.scores

    @property
    def scores(self) -> dict[str, Any]:
        """The scores as the plain values of scores.json."""
        return dict(self.record.to_dict())

    @property
    def answer(self) -> str:
        """The first sentences of the report: the best head, its layer, and its score on test with the interval."""
        return plain_text(run_lead(self.record, KINDS[self.kind].report.bare, {}))

    def _repr_html_(self) -> str:
        from probes.report.page import notebook_html, read_picture

        report = KINDS[self.kind].report
        pictures = sorted((self.folder / "figures").glob(f"{self.best.replace('-', '_')}_layers*.png"))
        return notebook_html(
            f"Run {self.name}",
            run_lead(self.record, report.bare, {}),
            picture=read_picture(pictures[0]) if pictures else b"",
            blocks=[Table(*result_rows(self.record, report))],
        )

    def show(self, height: int = 900) -> "ShownPage":
        """Show the page of the run inline in a notebook, which can be explored as the file can.

        Args:
            height: Its height in pixels; it scrolls.

        Raises:
            HeadError: A folder whose page cannot be made.

        Example:
            >>> load_run("runs/demo").show()  # doctest: +SKIP
        """
        from probes.report.page import ShownPage
        from probes.runs.compare import write_report

        return ShownPage(write_report(self.folder).read_text(encoding="utf-8"), height)

    def scorer(self, head: str = "") -> RowScorer:
        """Return what predicts with a head, the best one if empty; raises as `load_scorer`."""
        name = head or self.best
        if name not in self._scorers:
            with gate.allow_code(self._allows):
                scorer = _open_scorer(self._run, name, self._decoder, trust_remote_code=self._trusts)
            self._decoder, self._scorers[name] = scorer.decoder, scorer
        return self._scorers[name]

    def reader(self, head: str = "") -> RowReader:
        """Return what reads files of new rows as the run read its own, for a head, the best one if empty."""
        name = head or self.best
        if name not in self._run.heads:
            raise unknown_name("head of this run", name, self._run.heads)
        kind = KINDS[self.kind]
        with gate.allow_code(self._allows):
            record = load_head(self._run.heads[name][0]).record
        return row_reader(self._run, kind.n_texts(record), reads_words=kind.reads_words)

    def predict_file(
        self, file: str | Path, *, columns: Sequence[str] = (), head: str = "", is_clipped: bool = False
    ) -> "pd.DataFrame":
        """Predict the rows of a file, read as the run read its own.

        Args:
            file: A table, lines of texts, or for words a file of a word a line.
            columns: Columns of the texts; those of the run, or usual names, when empty.
            head: A head of the run; the best one if empty.
            is_clipped: Whether numbers outside the range of gold become its nearest end.

        Returns:
            The columns of the file and beside them what was predicted. A bad row has an empty prediction, and its
            reason in a column `error`, which is there only if some row is bad.

        Raises:
            TaskError: The file cannot be read as a whole.
            IcecoreError: As `load_scorer`, for columns that are not there, or nothing to clip to.
        """
        import pandas as pd

        rows = self.reader(head).read_file(file, columns)
        scorer = self.scorer(head)
        return pd.DataFrame(scorer.table(rows, scorer.answer(rows, is_clipped=is_clipped)))

    def predict(self, rows: Sequence[Row], *, head: str = "") -> list[Any]:
        """Predict rows: a score per pair of texts, a class or a number per text, a list of tags per sentence.

        Args:
            rows: Pairs of texts, texts, or sentences as `RowScorer.score` takes them; a frame's column works too.
            head: A head of the run; the best one if empty.

        Raises:
            InputError: No rows, a row that is none of these (a text or a triple where the run is on pairs), or a text
                that cannot be read.
            IcecoreError: As `load_scorer`.
        """
        return list(self.scorer(head).predict(rows))

    def stream(self, rows: Iterable[Row], *, head: str = "", at_a_time: int = CHUNK_ROWS) -> Iterator[Any]:
        """Predict rows one after the other, however many: as many as `at_a_time` are held in memory."""
        return self.scorer(head).stream(rows, at_a_time=at_a_time)

    def predict_proba(self, rows: Sequence[Row], *, head: str = "") -> "pd.DataFrame":
        """Return the probability of every class, a row per row and a column per class; HeadError for other heads."""
        return self.scorer(head).predict_proba(rows)

    def score_pairs(self, pairs: Sequence[Sequence[str]], *, head: str = "") -> list[float]:
        """Score pairs of texts in the units of the task's gold; InputError for a run on something else."""
        self._require_kind("pairs")
        return self.predict(pairs, head=head)

    def tag(self, sentences: Sequence[Row], *, head: str = "") -> list[list[str | None]]:
        """Tag the words of sentences, None for a word without a latent; InputError for a run on something else."""
        self._require_kind("words")
        return self.predict(sentences, head=head)

    def cache(self) -> LatentCache:
        """Open the cache that the run read; CacheError where it is gone."""
        return self._run.cache()

    def results(self) -> "pd.DataFrame":
        """Return every number of the run, tidy, as `probes.results`."""
        from probes.runs.results import results

        return results([self._run])

    def table(self) -> "pd.DataFrame":
        """Return the table of the summary: a row per head and metric, as text, scores times 100."""
        import pandas as pd

        titles, rows = result_rows(self.record, KINDS[self.kind].report)
        return pd.DataFrame(rows, columns=list(titles))

    def _require_kind(self, kind: str) -> None:
        if self.kind != kind:
            raise InputError(f"run {self.name!r} is on {self.kind}, not on {kind}; use predict.")


def load_run(
    folder: str | Path,
    *,
    decoder: Decoder | DecoderSource | None = None,
    trust_remote_code: bool = False,
    allow_code: str | Iterable[str] = (),
) -> LoadedRun:
    """Load a finished run: its results, and its heads for new rows.

    A run folder may come from anybody: nothing in it is run, and no module that it names is imported unless
    `allow_code` says so (SECURITY.md).

    Args:
        folder: A folder made by `icecore run`.
        decoder: The run's decoder if it is in memory already, or where it is now (a name, a path or settings, as
            `load_decoder` takes them); where the run says, when absent.
        trust_remote_code: Whether to run code that comes with the decoder. What the run folder says of it is ignored.
        allow_code: Modules of your own poolings, masks and heads that the run may import, as `my_parts`, or several.

    Raises:
        HeadError: No finished run there, or one of an earlier version.
        CodeError: It names a module that is not allowed, or is not the one it recorded.

    Example:
        >>> [score] = load_run("runs/demo").predict([("A cat sleeps.", "The cat is asleep.")])  # doctest: +SKIP
    """
    return LoadedRun(folder, decoder=decoder, trust_remote_code=trust_remote_code, allow_code=allow_code)


# --- The encoder that a run ends with ---


@dataclass(frozen=True, eq=False)
class ChosenEncoder:
    """How texts become vectors: by one layer, or by those of several views side by side."""

    head: str
    """The head whose choice it is."""
    decoder: DecoderSpec
    """The decoder."""
    spec: ExtractionSpec
    """The extraction, of one layer and one pooling; of the view that was chosen where there are views. Of views side by
    side it has these, and the layers of all."""
    layer: str | Mapping[str, str]
    """The layer; of views side by side, view to layer."""
    read_out: Transform | Mapping[str, Transform] | None
    """What is done to the latents, fitted on train; None where nothing is. Of views side by side, view to what is done
    to its latents."""
    fitted_on: Mapping[str, object] = field(default_factory=dict)
    """Name and digests of the decoder that the head was fitted on; empty in early versions."""

    def require(self, decoder: Decoder) -> None:
        """Raise `CacheIdentityError` for another decoder than the one that the choice is of."""
        unequal = unlike(vars(decoder.description), self.fitted_on) if self.fitted_on else {}
        if unequal:
            listing = "; ".join(f"decoder.{key} is {a!r}, the run has {b!r}" for key, (a, b) in unequal.items())
            raise CacheIdentityError(
                f"the head {self.head!r} was fitted on something else: {listing}. Give the decoder of the run, or run "
                "it again."
            )

    @classmethod
    def of(
        cls, folder: str | Path, *, head: str = "", pooling: str = "", allow_code: str | Iterable[str] = ()
    ) -> "ChosenEncoder":
        """Read what a head of a finished run, sweep or search chose.

        An empty `head` is the best of those that read one layer, or one of each view. Of each of the poolings or views
        in `pooling`, joined by `+`, the layer and transform are those that the head would have chosen of it alone, by
        the same scores, or of `joined-cosine` chose with the others; when empty, it is what the head chose.
        """
        with gate.allow_code(allow_code):
            run = RunFolder(Path(folder))
            try:
                if run.values["what"] == "run":
                    read_run_folder(run)
                else:
                    _import_code(run)
                return cls._read(run, head, pooling)
            except UNREADABLE as error:
                raise no_run(run.path, error) from error

    @classmethod
    def _read(cls, run: RunFolder, head: str, pooling: str) -> "ChosenEncoder":
        if KINDS[run.values["kind"]].reads_words:
            raise HeadError(
                f"{str(run.path)!r} is on words, and an encoder reads whole texts; give a run or sweep on those."
            )
        choices = dict(_choices(run))
        if head and head not in choices:
            raise unknown_name("head", head, choices)
        of_one = {name: choice for name, choice in choices.items() if {"layer", "views"} & choice[1].chosen.keys()}
        scores = {name: result.selection_score for name, (_, result) in of_one.items()}
        name = head or max(scores, key=lambda name: np.nan_to_num(scores[name], nan=-np.inf), default="")
        if name not in of_one:
            allowed = ", ".join(of_one) or "none of its heads; run layer-cosine, or joined-cosine"
            raise HeadError(
                f"head {name or next(iter(choices))!r} of {str(run.path)!r} reads several layers together, which are "
                f"no vector of a text; allowed: {allowed}."
            )
        place, result = of_one[name]
        spec, decoder, fitted = _find_point(run, place)
        saved = _find_head(run, result, place, spec, fitted)
        one = only_chosen(saved, result.chosen)
        channels, fitted_on = saved_channels(one.record), dict(saved.record.latents.get("decoder", {}))
        wanted = split_poolings(pooling) if pooling else tuple(view for view, _ in channels)
        if "views" in result.chosen:
            layers, read_outs = _read_joined(one, wanted)
        elif not pooling:
            [(view, layer)] = channels
            layers, read_outs = {view: layer}, {view: _read_out(one.head)}
        else:
            picks = {view: _pick(result, view) for view in wanted}
            layers = {view: layer for view, (layer, _) in picks.items()}
            read_outs = {view: _read_out_of(saved, one, result, view, *pick) for view, pick in picks.items()}
        if len(layers) == 1:
            [(view, layer)] = layers.items()
            return cls(name, decoder, spec.of_layer(layer, view), layer, read_outs[view], fitted_on)
        views = {view: changes for view, changes in spec.views.items() if view in layers}
        poolings = spec.poolings if views else tuple(layers)
        several = tuple(dict.fromkeys(layers.values()))
        spec = replace(spec, layers=several, poolings=poolings, views=views, batch_tokens=None)
        units = {view: _as_unit(one.head, read_out) for view, read_out in read_outs.items()}
        done = {view: unit for view, unit in units.items() if unit is not None}
        return cls(name, decoder, spec, layers, done, fitted_on)


def _pick(result: HeadResult, view: str) -> tuple[str, str]:
    """Choose the layer of a view, and the name of its curve, by the scores by which a head chose one of all."""
    names = [name if "/" in name else f"{result.pooling}/{name}" for name in result.layers]
    views = dict.fromkeys(name.rpartition("/")[0] for name in names)
    if view not in views:
        raise unknown_name(f"view or pooling that head {result.name!r} reads", view, views)
    at = [k for k, name in enumerate(names) if name.rpartition("/")[0] == view]
    chosen = str(result.chosen["layer"])
    if chosen in (result.layers[k] for k in at):
        return chosen.rpartition("/")[2], str(result.chosen.get("kind", ""))
    curves = [c for c in result.curves if c.metric == result.metric and c.split in ("validation", result.selection)]
    scores = np.array([[curve.values[k] for k in at] for curve in curves], np.float64)
    if not np.isfinite(scores).any():
        raise HeadError(f"head {result.name!r} has no score of the view {view!r}, by which its layer can be chosen.")
    kind, layer = np.unravel_index(int(np.nanargmax(scores)), scores.shape)
    return names[at[int(layer)]].rpartition("/")[2], curves[int(kind)].name


def _read_out_of(
    saved: SavedHead[FittedModule],
    one: SavedHead[FittedModule],
    result: HeadResult,
    view: str,
    layer: str,
    kind: str,
) -> Transform | None:
    """Read what a head does to the latents of one layer of one view; `one` is the head of the chosen layer alone."""
    from probes.heads.zero_shot_heads import MEASURES

    head: Any = saved.head
    channels = saved_channels(saved.record)
    if (view, layer) in saved_channels(one.record):
        return _read_out(one.head)
    if hasattr(head, "only"):
        return _read_out(head.only(channels.index((view, layer)), kind))
    if hasattr(head, "read_out") and kind not in ("raw", *MEASURES):
        raise HeadError(
            f"head {result.name!r} saved what it does to latents of {'/'.join(channels[0])} alone, and of {view} it "
            f"would choose {layer} ({kind}); allowed: layer-cosine, or a head with transform: none or kind: raw."
        )
    return None


def _read_joined(
    one: SavedHead[FittedModule], wanted: Sequence[str]
) -> tuple[dict[str, str], dict[str, Transform | None]]:
    """Read the layer of some of the views that a head chose together, and what it does to their latents."""
    channels = saved_channels(one.record)
    places = {view: k for k, (view, _) in enumerate(channels)}
    for view in wanted:
        if view not in places:
            raise unknown_name(f"view or pooling that head {one.record.name!r} reads", view, places)
    layers = {view: channels[places[view]][1] for view in wanted}
    return layers, {view: _read_out(one.head, places[view]) for view in wanted}


def _read_out(head: Any, *layer: int) -> Transform | None:
    """Read what a head of one layer, or at a layer, does to latents: what compares texts transforms them first."""
    give = getattr(head, "read_out", None)
    read_out: Transform | None = None if give is None else give(*layer)
    return None if read_out is None or read_out.name == "none" else read_out


def _as_unit(head: Any, read_out: Transform | None) -> Transform | None:
    """Give the vectors of a view length 1 where a head compares by cosines: those of joined vectors are their mean."""
    if not hasattr(head, "read_out") or getattr(head, "measure", "cosine") != "cosine":
        return read_out
    return replace(read_out or no_transform(1, 0), is_unit=True)


COST_TEXTS = tuple("The river rose above the lower bridge overnight. " * n for n in (1, 2, 3))
COST_TRIALS = 3


def relative_cost(decoder: Decoder, readings: Mapping[str, ExtractionSpec]) -> float:
    """Measure how much longer texts take than as the plain mean of the final norm: the best of a few trials each."""
    seconds = []
    for spec_by_view in ({"": ExtractionSpec(layers=("final_norm",))}, readings):
        times = []
        for _ in range(COST_TRIALS + 1):  # the first one warms up
            started = time.perf_counter()
            embed_readings(decoder, COST_TEXTS, readings=spec_by_view)
            times.append(time.perf_counter() - started)
        seconds.append(min(times[1:]))
    return seconds[1] / seconds[0]


@dataclass(frozen=True)
class _Place:
    """Where a choice was made: a plan, and of a sweep over axes the whole point."""

    plan: str
    point: Mapping[str, str] = field(default_factory=dict)


def _choices(run: RunFolder) -> Iterable[tuple[str, tuple[_Place, HeadResult]]]:
    """Give the place and the result of every head, where it was chosen."""
    if run.values["what"] == "run":
        return [(result.name, (_Place(plan), result)) for plan, result in run.results]
    chosen = read_plans(run.values).chosen
    return [(slot, (_Place(choice.plan.text, choice.point), choice.result)) for slot, choice in chosen.items()]


def _find_point(run: RunFolder, place: _Place) -> tuple[ExtractionSpec, DecoderSpec, str]:
    """Find what was extracted at a place, of which decoder, and of a sweep the digest of what was fitted."""
    if run.values["what"] == "run":
        return run.spec, run.decoder, ""
    digest = run.values["task"]["digest"]
    if not place.point:
        return run.spec.with_plan(parse_plan(place.plan)), run.decoder, run.config.check_heads().digest_fit(digest)
    from probes.runs.grid import PLAN_KEY, set_point

    config = run.config  # what is on record as its default was not given, so that the point's template decides it
    typed = {key: value for key, value in config.extraction.template.settings().items() if value != DEFAULTS[key]}
    typed |= run.settings["sweep"].get("typed", {})
    config = replace(config, extraction=with_values(config.extraction, template=InputTemplate(**typed)))
    over = run.settings["sweep"]["over"]
    settings = {key: value for axis, name in place.point.items() for key, value in over[axis][name].items()}
    if PLAN_KEY in settings:
        settings[PLAN_KEY] = place.plan  # which has shares of the depth as numbers
    at = set_point(config, settings)
    decoder = read_recorded_decoder(to_plain(at.decoder))  # a stranger's point must not choose where it is held
    return at.extraction, decoder, at.check_heads().digest_fit(digest)


def _find_head(
    run: RunFolder, result: HeadResult, place: _Place, spec: ExtractionSpec, fitted: str
) -> SavedHead[FittedModule]:
    """Load the saved head of a run, or of a place of a sweep: of several of one place, the last one."""
    if run.values["what"] == "run":
        return load_head(run.heads[result.name][0])
    if not find_head(result.name):  # so that no name leads out of the folder
        raise ValueError(f"it names a head {result.name!r}, which this version does not know")
    folder, end = run.path / "heads", f"-{fitted}"  # which may hold heads of other rows, or of early versions
    paths = list(folder.glob(f"{'*' + end if place.point else '*'}/{result.name}/**/head.json"))
    paths.sort(key=lambda path: (path.relative_to(folder).parts[0].endswith(end), path.stat().st_mtime))
    heads = [load_head(path.parent) for path in paths]
    first = next(iter(spec.readings.values()))  # whose plan and template are on record for those of views
    matches = [saved for saved in heads if saved.record.latents.get("plan") == first.mask_plan.text]
    if place.point or spec.views:
        matches = [saved for saved in matches if _reads(saved, spec)]
    if place.point:
        matches = [saved for saved in matches if saved.record.pooling == result.pooling]
        decoders = [row.decoder for row in read_plans(run.values).plans if dict(row.point) == dict(place.point)]
        matches = [
            saved
            for saved in matches
            if any(decoder is not None and not unlike(decoder, saved.record.latents["decoder"]) for decoder in decoders)
        ]
    if not matches:
        where = f"at the point {label_of(place.point)!r}" if place.point else f"under the plan {place.plan!r}"
        raise HeadError(
            f"head {result.name!r} {where} is not among the saved heads of {str(run.path)!r}; run it again."
        )
    return matches[-1]


def _reads(saved: SavedHead[FittedModule], spec: ExtractionSpec) -> bool:
    """Whether a head was fitted on latents of the template of an extraction, and of every view of it."""
    latents, readings = saved.record.latents, spec.readings
    recorded = latents.get("views") or {"": {"plan": spec.mask_plan.text, "template": latents["template"]}}
    if recorded.keys() != readings.keys():
        return False
    for name, view in readings.items():
        template = {key: value for key, value in recorded[name]["template"].items() if key != "window"}
        expected = view.mask_plan.text, json.loads(json.dumps(view.template.to_dict()))
        pooling = recorded[name].get("pooling") or view.poolings[0]
        if expected != (recorded[name]["plan"], template) or pooling not in view.poolings:
            return False
    return True


def _import_code(run: RunFolder) -> None:
    """Import the custom code that a run, sweep or search recorded, and no other that it names."""
    custom = run.values.get("own", {})
    require_recorded(custom, list_code(run))
    import_own(custom, folder=run.path)
