"""A probe as a scikit-learn estimator, whose texts and gold become a file and then a run; and its encoder."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from extract.decoders.decoder import Decoder, code_as_now, load_decoder
from extract.decoders.decoder_spec import DecoderSource, DecoderSpec, Layer, as_decoder_spec, plain_decoder, select_one
from extract.decoders.fetch import icecore_home
from extract.errors import CacheError, ConfigError, InputError, TaskError, unknown_name
from extract.files import digest_bytes, write_file
from extract.inputs.joined_text import JoinedText
from extract.poolings.pooling_table import JOIN, split_poolings
from extract.records import to_plain
from extract.run.extraction import describe_extraction, extract_latents, unique_texts
from extract.run.extraction_spec import ExtractionProgress, ExtractionSpec
from extract.run.shards import CachePart, compose_cache
from extract.store.cache import LatentCache, ViewCache, cache_path, whole_caches
from extract.store.items import remove_cache
from extract.store.manifest import of_all_texts
from probes.data.bare_file import MISSING, Column, Roles, holds_numbers, read_bare_file
from probes.data.task_table import TASKS
from probes.latents.text_latents import Transform
from probes.layers.study import StudyOptions
from probes.metrics.prediction_metrics import CLASS_METRICS, CORRELATIONS, count_tag_spans, score_classes, score_spans
from probes.report.blocks import Table, cell
from probes.report.page import notebook_html
from probes.runs.config_file import as_config, config_of_data, nest_options
from probes.runs.layer_studies import LayerStudy
from probes.runs.predict import ChosenEncoder, LoadedRun, moved_decoder
from probes.runs.run import check_heads, run
from probes.runs.run_config import RunConfig, load_run_task
from probes.runs.watcher import SILENT, notebook_line, watching

DEFAULT_DECODER = DecoderSpec().name


class Configured(BaseEstimator):  # type: ignore[misc]
    """A decoder and options of a configuration by name, with scikit-learn's manners."""

    def __init__(self, decoder: Decoder | DecoderSource = DEFAULT_DECODER, **options: Any) -> None:
        self.decoder, self.options = decoder, options

    def _own_params(self) -> tuple[str, ...]:
        """Name the parameters that are no options of a configuration."""
        return ("decoder",)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return every parameter that was given, and the defaults of those that are no options of a run."""
        del deep
        return {**{name: getattr(self, name) for name in self._own_params()}, **self.options}

    def set_params(self, **params: Any) -> "Configured":
        """Set parameters; unknown ones are refused when they are used."""
        for name, value in params.items():
            if name in self._own_params():
                setattr(self, name, value)
            else:
                self.options = {**self.options, name: value}
        return self

    def _config(self, values: Mapping[str, Any], options: Mapping[str, Any]) -> RunConfig:
        """Build the configuration of values that options change, in the user's cache folder by default."""
        home = icecore_home()
        nested = nest_options({"caches": str(home / "caches"), "runs": str(home / "runs"), **options})
        decoder = self.decoder
        if isinstance(decoder, Decoder):
            about = decoder.description
            decoder = {"name": about.name, "adapter": about.adapter or None, "dtype": about.dtype}
        plain = {**plain_decoder(as_decoder_spec(decoder)), **nested.pop("decoder", {})}
        return as_config({**_merged(values, nested), "decoder": plain})

    def _load(self, config: RunConfig) -> Decoder:
        """Return the decoder, which stays in memory for the next one that asks for the same."""
        if isinstance(self.decoder, Decoder):
            return self.decoder
        spec = config.decoder
        names = [spec.name, *spec.adapters, *(name for part in spec.merge for name in (part.name, *part.adapters))]
        paths = [Path(name).expanduser() for name in names if name]
        files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]
        changed = max((file.stat().st_mtime for file in files), default=0.0)
        return _loaded(json.dumps(plain_decoder(spec), sort_keys=True), changed)

    def _show_params(self) -> str:
        """Write the parameters that differ from their defaults."""
        shown = {name: value for name, value in self.get_params().items() if name != "decoder" and value != ""}
        shown = {name: value for name, value in shown.items() if (name, value) not in (("seed", 0), ("verbose", True))}
        name = self.decoder.description.name if isinstance(self.decoder, Decoder) else self.decoder
        return ", ".join([repr(name), *(f"{key}={value!r}" for key, value in shown.items() if value is not None)])

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put changes into values, section by section; heads replace the default ones."""
    both = dict(values)
    for key, value in changes.items():
        is_section = key != "heads" and isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = _merged(both[key], value) if is_section else value
    return both


@lru_cache(maxsize=1)
def _loaded(settings: str, changed: float) -> Decoder:
    """Load a decoder, whose local files were `changed` last."""
    del changed
    return load_decoder(json.loads(settings))


def reuse_latents(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    *,
    spec: ExtractionSpec,
    folder: str | Path,
    progress: ExtractionProgress | None = None,
) -> LatentCache:
    """Return a cache that holds the texts; only those that no cache of the folder holds are extracted.

    Texts that several caches hold between them are copied into a new one. Raises as `extract_latents`.
    """
    texts, folder = list(texts), Path(folder)
    if spec.views:
        with code_as_now(decoder):
            return _reuse_views(decoder, texts, spec=spec, folder=folder, progress=progress)
    plain = [text for text in unique_texts(texts) if isinstance(text, str)]
    parts, is_missing = list[CachePart](), np.ones(len(plain), np.bool_)
    manifest = describe_extraction(decoder, plain or unique_texts(texts), spec)
    if plain and len(spec.members) == 1 and not cache_path(folder, manifest).exists():
        for cache in whole_caches(folder):
            if of_all_texts(cache.identity) == of_all_texts(manifest.identity.like(cache.identity)):
                is_here = cache.holds(plain)
                if is_here.all():
                    cache.verify_latents()
                    if spec.store_texts and not cache.keeps_texts:
                        parts = [CachePart(cache, plain)]
                        return compose_cache(parts, manifest=manifest, folder=folder, stores_texts=True).with_texts(
                            texts
                        )
                    return cache.with_texts(texts)
                if (is_new := is_here & is_missing).any():
                    cache.verify_latents()
                    parts.append(CachePart(cache, [plain[k] for k in np.flatnonzero(is_new)]))
                    is_missing &= ~is_new
    if not parts:
        return extract_latents(decoder, texts, spec=spec, folder=folder, progress=progress)
    if not is_missing.any():
        return compose_cache(parts, manifest=manifest, folder=folder, stores_texts=spec.store_texts).with_texts(texts)
    missing = [plain[k] for k in np.flatnonzero(is_missing)]
    before = {*folder.glob("*.h5")}
    new = extract_latents(decoder, missing, spec=spec, folder=folder, progress=progress)
    whole = compose_cache(
        [*parts, CachePart(new, missing)], manifest=manifest, folder=folder, stores_texts=spec.store_texts
    )
    if new.path not in before:
        remove_cache(new.path)  # its rows are in the whole one
    return whole.with_texts(texts)


def _reuse_views(
    decoder: Decoder,
    texts: Sequence[str | JoinedText],
    *,
    spec: ExtractionSpec,
    folder: Path,
    progress: ExtractionProgress | None,
) -> LatentCache:
    """Return the views of the texts, each as `reuse_latents` does; views hold the same texts, and no others."""
    unique = unique_texts(texts)
    views = {}
    for name, view in spec.readings.items():
        cache = reuse_latents(decoder, texts, spec=view, folder=folder, progress=progress)
        manifest = describe_extraction(decoder, unique, view, n_rows=len(cache))
        if cache.identity.text_digest != manifest.identity.text_digest:
            manifest = describe_extraction(decoder, unique, view)
            parts = [CachePart(cache, [text for text in unique if isinstance(text, str)])]
            cache = compose_cache(parts, manifest=manifest, folder=folder, stores_texts=view.store_texts)
        views[name] = cache
    return ViewCache(views).with_texts(texts)


def list_rows(rows: object, noun: str = "texts") -> list[Any]:
    """List texts, or rows of several texts, of whatever holds them: a list, an array, a Series, a frame.

    A row of one cell is that cell. `InputError` where there are no rows.
    """
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InputError(f"{noun} are a {type(rows).__name__}, {str(rows)[:40]!r}; give a list, an array or a column.")
    if hasattr(rows, "columns") and hasattr(rows, "to_numpy"):  # a frame, which iterates over its names
        names = [str(name) for name in rows.columns]
        if len(names) > 2:
            raise InputError(f"{noun} have the columns {', '.join(names)}; choose one, or two for pairs.")
        frame: Any = rows
        rows = frame.to_numpy()
    if isinstance(rows, np.ndarray) and not rows.ndim:
        raise InputError(f"{noun} are one value, {rows!r}; give a list, an array or a column.")
    listed: Any = rows
    items = [_plain_row(row) for row in listed]
    if not items:
        raise InputError(f"there are no {noun}; give at least one.")
    return items


def _plain_row(row: Any) -> Any:
    if isinstance(row, np.ndarray | list | tuple) or (hasattr(row, "to_list") and not isinstance(row, str)):
        cells = [plain_value(cell) for cell in row]
        return cells[0] if len(cells) == 1 and isinstance(row, np.ndarray) else cells
    return plain_value(row)


def plain_value(value: Any) -> Any:
    """Return a value of NumPy or pandas as one of Python, and None for a missing one."""
    value = value.item() if isinstance(value, np.generic) else value
    is_missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and np.isnan(value))
    return None if is_missing else value


class Encoder(TransformerMixin, Configured):  # type: ignore[misc]
    """Texts as latents of a frozen decoder, computed once and then found in a cache.

    Args:
        decoder: A name (`icecore list decoders`), a path, the settings of a `DecoderSpec` as a mapping or that record,
            or a decoder in memory.
        layer: The layer that `encode` and `transform` give, by its name or number (-1 is the last), or view to layer;
            all of them for `encode`, and the last for `transform`, when None.
        verbose: Whether to show a bar in a notebook.
        read_out: A fitted transform of the layer's latents, as of `Encoder.from_sweep`, or view to one of its latents;
            none when None.
        options: Keys of the decoder and the extraction of a configuration by name: `plan`, `poolings`, `layers`,
            `template`, `instruction`, `dtype`, `caches` and so on; `caches` is in the user's cache folder by default.

    Raises:
        IcecoreError: When it is used: an unknown option, decoder or plan, or a text that cannot be read.

    Example:
        >>> encoder = Encoder("smollm2-135m-instruct", plan="nosink-bidirectional:10")
        >>> encoder.encode(["Ice is cold.", "Snow falls."]).shape  # doctest: +SKIP
        (32, 2, 576)
    """

    def __init__(
        self,
        decoder: Decoder | DecoderSource = DEFAULT_DECODER,
        *,
        layer: Layer | Mapping[str, Layer] | None = None,
        verbose: bool = True,
        read_out: Transform | Mapping[str, Transform] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(decoder, **options)
        self.layer, self.verbose, self.read_out = layer, verbose, read_out

    def _own_params(self) -> tuple[str, ...]:
        return ("decoder", "layer", "verbose", "read_out")

    @classmethod
    def from_sweep(
        cls,
        folder: str | Path,
        *,
        head: str = "",
        pooling: str = "",
        decoder: Decoder | DecoderSource | None = None,
        allow_code: str | Iterable[str] = (),
        **options: Any,
    ) -> "Encoder":
        """Make the encoder that a sweep, search or run ends with: its plan, template, pooling, layer and transform.

        Args:
            folder: A folder made by `icecore sweep` or `icecore run`.
            head: The head whose choice is taken; if empty the best of those that read one layer, or one of each view.
            pooling: Views, or poolings, that the head reads, joined by `+`: side by side, each with the layer and
                transform that the head would choose of it alone, or of `joined-cosine` chose with the others, and with
                length 1 where the head compares by cosines. What it chose if empty.
            decoder: The decoder if it is in memory already, or where it is now; where the folder says, when None. It is
                loaded and compared with what the head was fitted on.
            allow_code: Modules of your own poolings and masks that the folder may import.
            options: As of the encoder, such as `caches`.

        Raises:
            HeadError: No such folder, a run on words, or a head that combines layers in another way.
            CacheIdentityError: The decoder is not the one that the head was fitted on.
            UnknownNameError: No such head in it, or no such view.

        Example:
            >>> Encoder.from_sweep("runs/demo-sweep").encode(["Ice is cold."]).shape  # doctest: +SKIP
            (1, 576)
        """
        chosen = ChosenEncoder.of(folder, head=head, pooling=pooling, allow_code=allow_code)
        values = {"extraction": _plain_spec(chosen.spec)}
        if chosen.spec.views:  # each with all keys, so that none is that of the extraction
            values["views"] = {name: _plain_spec(view, "layers") for name, view in chosen.spec.readings.items()}
        place = decoder if isinstance(decoder, Decoder) else moved_decoder(chosen.decoder, decoder)
        encoder = cls(place, layer=chosen.layer, read_out=chosen.read_out, **{**values, **options})
        chosen.require(encoder._load(encoder.config()))
        return encoder

    def encode(
        self, texts: Iterable[str], *, layer: Layer | Mapping[str, Layer] | None = None, pooling: str = ""
    ) -> Float[np.ndarray, "..."]:
        """Return the latents of texts in float32: `(L, N, D)`, or `(N, D)` of one layer.

        Args:
            texts: N texts, which may repeat: a list, an array or a column.
            layer: A layer by its name or number; that of the encoder, or of each view, when None.
            pooling: Which pooling, where several are extracted; of views which one, all of them side by side
                (`V D` instead of `D`) when empty.

        Raises:
            InputError: No texts, or one that cannot be read.
            UnknownNameError: A layer or pooling that is not extracted.
            CacheError: Several poolings, of which none is named, or layers that differ in width.
        """
        rows = list_rows(texts)
        cache = self.cache(rows)
        if not pooling and isinstance(self.layer, Mapping):
            pooling = JOIN.join(self.layer)
        if not pooling and len(cache.poolings) > 1 and not isinstance(cache, ViewCache):
            raise CacheError(f"the encoder extracts the poolings {', '.join(cache.poolings)}; name one with pooling=.")
        layer = self.layer if layer is None else layer
        read = split_poolings(pooling or cache.default_pooling)
        parts = []
        for name in read:
            part = cache.gather(cache.rows_of(rows), name, layers=_layers_of(layer, name, cache.layers))
            if isinstance(self.read_out, Mapping) and name in self.read_out:
                part = self.read_out[name](part)
            parts.append(part)
        latents = torch.cat(parts, dim=-1)
        if isinstance(self.read_out, Transform):
            latents = self.read_out(latents)
        return latents.numpy() if layer is None else latents[0].numpy()

    def cache(self, texts: Iterable[str]) -> LatentCache:
        """Return the cache that holds the latents of texts, with whatever is missing extracted."""
        config = self.config()
        rows = list_rows(texts)
        with notebook_line() as line:
            progress = line.extraction("encoding") if line is not None and self.verbose else None
            return reuse_latents(
                self._load(config), rows, spec=config.extraction, folder=config.caches, progress=progress
            )

    def config(self) -> RunConfig:
        """Return decoder, extraction and folder of caches as a configuration."""
        unread = {"task", "heads", "name", "runs", "seeds", "pretraining"} & set(self.options)
        if unread:
            raise ConfigError(f"option {unread.pop()!r} does nothing in an encoder, which fits no head; leave it out.")
        return self._config({}, self.options)

    def fit(self, X: object = None, y: object = None) -> "Encoder":
        """Do nothing: the decoder is frozen."""
        del X, y
        return self

    def transform(self, X: Iterable[str]) -> Float[np.ndarray, "N D"]:
        """Return the latents `(N, D)` of one layer, the last unless the encoder names one; raises as `encode`."""
        return self.encode(X, layer=-1 if self.layer is None else self.layer)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.string, tags.input_tags.two_d_array = False, True, False
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        return f"Encoder({self._show_params()})\n encode(texts) gives {self._gives()}"[:N_CHAR_MAX]

    def _gives(self) -> str:
        return "latents (layers, texts, width)" if self.layer is None else f"latents (texts, width) of {self.layer}"

    def _repr_html_(self) -> str:
        config = self.config()
        rows = [
            ("decoder", cell(config.decoder.name)),
            ("plan", cell(config.extraction.plan)),
            ("poolings", cell(", ".join(config.extraction.poolings))),
            ("layers", cell(", ".join(config.extraction.layers))),
            ("caches", cell(config.caches)),
        ]
        return notebook_html("Encoder", f"`encode(texts)` gives {self._gives()}.", blocks=[Table(("", ""), rows)])


def _plain_spec(spec: ExtractionSpec, *without: str) -> dict[str, object]:
    """Return an extraction as keys of a configuration, which its views are beside."""
    left_out = ("views", "store_texts", *without)
    plain = {key: value for key, value in to_plain(spec).items() if key not in left_out}
    return {**plain, "template": spec.template.settings()}


def _layers_of(layer: Layer | Mapping[str, Layer] | None, name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Choose the layer that is read of a view or pooling; all where none is named."""
    if isinstance(layer, Mapping):
        if name not in layer:
            raise unknown_name("view with a layer", name, layer)
        layer = layer[name]
    return tuple(names) if layer is None else (select_one(layer, names),)


PROBE_KINDS = ("classes", "numbers", "pairs", "words")
"""What can be predicted; numbers of pairs are `pairs`."""
TEXT_COLUMNS = ("sentence1", "sentence2")
DIGITS = 12
"""Of the digest in the name of a probe's file and run."""


@dataclass(frozen=True)
class Gold:
    """Rows with what is predicted of them."""

    rows: list[Any]
    """Texts, pairs of texts, or lists of words; None where one is missing."""
    targets: list[Any]
    """Classes, numbers, or lists of tags; None where one is missing."""
    name: str = ""
    """What the targets are called, as a Series is."""

    @classmethod
    def of(cls, rows: object, targets: object) -> "Gold":
        """Read rows and targets; `InputError` unless there are as many of both."""
        if targets is None:
            raise InputError("y is missing; give a label, a number or a list of tags for each text.")
        listed, gold = list_rows(rows), list_rows(targets, "labels")
        if len(listed) != len(gold):
            raise InputError(f"there are {len(listed):,} texts and {len(gold):,} labels; give one label for each text.")
        return cls(listed, gold, str(getattr(targets, "name", None) or ""))

    @property
    def has_words(self) -> bool:
        """Whether the targets are lists of tags."""
        return any(isinstance(target, list) for target in self.targets)

    @property
    def n_texts(self) -> int:
        """Texts of a row; 1 for a list of words."""
        if self.has_words:
            return 1
        sizes = {len(row) if isinstance(row, list) else 1 for row in self.rows if row is not None}
        if not sizes <= {1} and not sizes <= {2}:
            raise InputError(f"rows have {min(sizes)} to {max(sizes)} texts; give one text for each label, or two.")
        return max(sizes, default=1)

    def guess_kind(self) -> str:
        """Name the kind by the rules of a bare file (docs/cookbook/file.md); TaskError where they do not decide."""
        if self.has_words:
            return "words"
        present = [target for target in self.targets if target is not None and str(target).strip() not in MISSING]
        column = Column(self.name or ("score" if self.n_texts == 2 else "label"), present)
        if len(column.distinct) < 2:
            value = next(iter(column.distinct), None)
            raise TaskError(f"the labels are all {value!r}; give at least two different ones.")
        is_number = holds_numbers(column)
        if is_number is None and column.numbers:
            raise TaskError(
                f"the {len(column.numbers):,} different whole numbers of y may be classes or numbers; say which: "
                "kind='classes' or kind='numbers'."
            )
        return "classes" if not is_number else "pairs" if self.n_texts == 2 else "numbers"

    def lines(self, kind: str) -> Iterator[str]:
        """Write the rows as JSON Lines."""
        is_paired = kind != "words" and self.n_texts == 2
        for row, target in zip(self.rows, self.targets, strict=True):
            if kind == "words":
                yield json.dumps({"words": row, "tags": [str(tag) for tag in target or ()]})
            else:
                texts = dict(zip(TEXT_COLUMNS, row or (None, None), strict=True)) if is_paired else {"text": row}
                label = str(target) if isinstance(target, bool) else target
                yield json.dumps({**texts, "label" if kind == "classes" else "score": label}, default=str)


class Probe(Configured):
    """Light heads on every layer of a frozen decoder, fitted on texts, pairs or words, with scikit-learn's manners.

    `fit` is a run (`icecore.run`): it draws splits, extracts latents that no cache holds yet, fits the heads, chooses
    layer and penalty on validation, and scores test once, with intervals. That run is `probe.run`, with its table, its
    folder and its record.

    Args:
        decoder: A name (`icecore list decoders`), a path, the settings of a `DecoderSpec` as a mapping or that record,
            or a decoder in memory.
        kind: What is predicted: `classes`, `numbers`, `pairs` (a number for two texts) or `words` (a tag for each
            word). Guessed by the rules of a file of data where empty (docs/cookbook/file.md).
        seed: Seed of the heads, and of the draw of splits.
        verbose: Whether to show a bar in a notebook.
        options: Every other key of a configuration by name: `plan`, `poolings`, `layers`, `template`, `heads`, `seeds`,
            `bootstrap`, `dtype`, `caches`, `runs` and so on (`icecore run --help`), and options of the task
            (`metric="f1-macro"`). Of several keys with one name that nearest to the top is meant; `decoder__revision`
            names another. `caches` and `runs` are in the user's cache folder by default.

    Attributes:
        classes_: `(K,)` the classes, as they were given; of classes only.

    Example:
        >>> probe = Probe("smollm2-135m-instruct").fit(texts, labels)  # doctest: +SKIP
        >>> probe.layers()  # doctest: +SKIP
    """

    def __init__(
        self,
        decoder: Decoder | DecoderSource = DEFAULT_DECODER,
        *,
        kind: str = "",
        seed: int = 0,
        verbose: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(decoder, **options)
        self.kind, self.seed, self.verbose = kind, seed, verbose

    def _own_params(self) -> tuple[str, ...]:
        return ("decoder", "kind", "seed", "verbose")

    def fit(
        self,
        X: object,
        y: object,
        *,
        validation: tuple[object, object] | None = None,
        test: tuple[object, object] | None = None,
    ) -> "Probe":
        """Fit heads on every layer.

        Splits are drawn as a run draws them: 80/10/10 with `seed`, classes alike in all parts, equal texts together. So
        a tenth of the rows is held out as test, which `run` and `layers` report on; give rows that are held out already
        as `test`, and then all others are fitted on, but for the tenth that chooses (or give that, as `validation`).

        Args:
            X: N texts; or pairs of texts; or lists of words. A list, an array, a Series, or a frame of one or two
                columns.
            y: N classes or numbers; or lists of tags, one for each word.
            validation: Texts and labels to choose layer and penalty by.
            test: Texts and labels to report on.

        Returns:
            The probe itself. Rows without a text or label are left out, with a warning.

        Raises:
            InputError: No rows, or not as many texts as labels.
            TaskError: Too few rows or classes; or labels that may be classes or numbers, where `kind` decides.
            IcecoreError: An unknown option or decoder, or as `icecore.run`.
        """
        parts = {"train": Gold.of(X, y)}
        parts |= {
            split: Gold.of(*rows) for split, rows in (("validation", validation), ("test", test)) if rows is not None
        }
        kind = self._kind_of(parts["train"])
        values, given = self._values(parts, kind)
        config = self._config(values, given)
        with watching(None if self.verbose else SILENT) as watcher:
            task = load_run_task(config)
            check_heads(config, task)  # before the decoder is loaded
            n_given, n_read = sum(len(part.rows) for part in parts.values()), sum(task.n_rows().values())
            if n_read < n_given:
                notes = [note.rpartition(".jsonl: ")[2] for note in task.notes]
                dropped = "; ".join([note for note in notes if "dropped" in note] or notes)
                warnings.warn(f"{n_given - n_read:,} of {n_given:,} rows are left out: {dropped}.", stacklevel=2)
            decoder = self._load(config)
            cache = reuse_latents(
                decoder,
                task.texts(),
                spec=config.extraction,
                folder=config.caches,
                progress=watcher.extraction(f"extracting {len(parts['train'].rows):,} rows"),
            )
            self.run_ = run(config, cache=cache, decoder=decoder, watcher=watcher)
        self._labels = {}
        if kind == "classes":
            self._labels = {str(target).strip(): target for part in parts.values() for target in part.targets}
            self._labels |= {name.removesuffix(".0"): label for name, label in self._labels.items()}
            names = self.run_.record.header.task["class_names"]
            self.classes_ = np.array([self._labels[name] for name in names])
        return self

    def _kind_of(self, gold: Gold) -> str:
        if self.kind not in ("", *PROBE_KINDS):
            raise unknown_name("kind", self.kind, PROBE_KINDS)
        kind = gold.guess_kind() if not self.kind or gold.has_words else self.kind
        wrong = next((y for y in gold.targets if isinstance(y, str) and _number_of(y) is None), None)
        if kind in ("numbers", "pairs") and wrong is not None:
            raise TaskError(f"kind is {kind!r}, but y holds {wrong[:60]!r}, which is no number; use kind='classes'.")
        if kind in ("numbers", "pairs"):
            kind = "pairs" if gold.n_texts == 2 else "numbers"
        if kind == "words" and not gold.has_words:
            raise ConfigError(
                f"kind is 'words', but y holds {gold.targets[0]!r}; give a list of tags for each sentence."
            )
        if self.kind and self.kind != kind and (self.kind, kind) != ("numbers", "pairs"):
            raise ConfigError(f"kind is {self.kind!r}, but the rows are {kind}; leave kind out, or give other rows.")
        return kind

    def _values(self, parts: Mapping[str, Gold], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Write the rows to files beside the run; return the configuration that they stand for, and further options."""
        texts = {split: "".join(f"{line}\n" for line in gold.lines(kind)) for split, gold in parts.items()}
        digest = digest_bytes("".join(f"{split}\n{text}" for split, text in texts.items()).encode())[:DIGITS]
        runs = Path(str(self.options.get("runs", icecore_home() / "runs")))
        files = {split: runs / f"probe-{digest}-{split}.jsonl" for split in texts}
        for split, path in files.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, texts[split])
        columns = ",".join(TEXT_COLUMNS) if parts["train"].n_texts == 2 and kind != "words" else "text"
        roles = Roles(columns, label="label") if kind == "classes" else Roles(columns, score="score")
        data = read_bare_file(files["train"], Roles() if kind == "words" else roles)
        values = config_of_data(data)
        task: dict[str, Any] = {**data.options, "seed": self.seed}
        if len(files) > 1:
            task["files"] = {split: str(path) for split, path in files.items()}
        known = TASKS[data.task].options()
        task |= {name: value for name, value in self.options.items() if name in known}
        given = {name: value for name, value in self.options.items() if name not in known}
        if kind == "words" and "poolings" in given:
            given["words__poolings"] = given.pop("poolings")
        values |= {"name": f"probe-{digest}", "seeds": [self.seed], "task": {"name": data.task, "options": task}}
        return values, given

    @property
    def run(self) -> LoadedRun:
        """The run of the last `fit`; NotFittedError before."""
        if not hasattr(self, "run_"):
            raise NotFittedError("this Probe is not fitted yet; call fit(texts, labels) first.")
        fitted: LoadedRun = self.run_
        return fitted

    def predict(self, X: object) -> Any:
        """Predict with the head and layer that were chosen on validation.

        Args:
            X: N rows as for `fit`.

        Returns:
            `(N,)` classes as they were given, or numbers; of words a list of tags for each row, None for a word that
            no token covers.

        Raises:
            InputError: No rows, or one that is no text (or no pair, no list of words); names it.
            NotFittedError: Before `fit`.
        """
        predicted = self.run.predict(list_rows(X))
        if self.run.kind == "words":
            return predicted
        return np.array([self._labels[name] for name in predicted] if self._labels else predicted)

    def predict_proba(self, X: object) -> NDArray[np.floating[Any]]:
        """Return the probability `(N, K)` of every class, in the order of `classes_`; HeadError for other kinds."""
        shares: NDArray[np.floating[Any]] = self.run.predict_proba(list_rows(X)).to_numpy()
        return shares

    def score(self, X: object, y: object) -> float:
        """Score predictions of rows by the metric that the layer was chosen by (`metric`).

        That is accuracy of classes, Pearson's correlation of numbers, and span F1 or accuracy of tags, as a fraction.
        """
        gold = Gold.of(X, y)
        predicted = self.predict(gold.rows)
        if self.metric in CORRELATIONS:
            return float(CORRELATIONS[self.metric](predicted, np.array(gold.targets, np.float64)))
        if self.run.kind == "words":
            if self.metric not in CLASS_METRICS:
                return float(score_spans(count_tag_spans(gold.targets, predicted)).micro.f1)
            tags = [zip(*both, strict=True) for both in zip(gold.targets, predicted, strict=True)]
            return float(np.mean([str(right) == guess for sentence in tags for right, guess in sentence]))
        names = {
            str(name): code
            for code, name in enumerate(dict.fromkeys([*map(str, self.classes_), *map(str, gold.targets)]))
        }
        codes = [np.array([names[str(plain_value(label))] for label in side]) for side in (predicted, gold.targets)]
        return float(score_classes(codes[0], codes[1], metric=self.metric))

    @property
    def metric(self) -> str:
        """Name of the metric that the layer was chosen by, and that `score` gives."""
        return self.run.record.heads[self.run.best].metric

    def layers(self, head: str = "", *, options: StudyOptions | None = None) -> LayerStudy:
        """Study every layer by itself: scores on test with intervals, the tied set, baselines; see `LayerStudy`.

        Args:
            head: A head of the run; the best one if empty.
            options: Further views, such as Shapley values (`icecore.StudyOptions`); every layer and baselines if None.
        """
        return LayerStudy.of(self.run, head=head, options=options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        kind = self.run_.kind if hasattr(self, "run_") else self.kind
        tags.estimator_type = {"": "classifier", "classes": "classifier", "words": None}.get(kind, "regressor")
        tags.target_tags.required = True
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        about = "not fitted" if not hasattr(self, "run_") else self.run.answer
        return f"Probe({self._show_params()})\n {about}"[:N_CHAR_MAX]

    def _repr_html_(self) -> str:
        if hasattr(self, "run_"):
            return self.run._repr_html_()
        return notebook_html(f"Probe({self._show_params()})", "Not fitted: call `fit(texts, labels)`.")


def _number_of(text: str) -> float | None:
    if text.strip() in ("", *MISSING):
        return np.nan
    try:
        return float(text)
    except ValueError:
        return None
