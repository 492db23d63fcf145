"""Latents of texts as arrays: an encoder that computes no text twice, and the settings it shares with a probe."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, TransformerMixin

from extract.decoders.decoder import Decoder, load_decoder
from extract.decoders.decoder_spec import DecoderSource, DecoderSpec, Layer, as_decoder_spec, plain_decoder, select_one
from extract.decoders.fetch import icecore_home
from extract.errors import CacheError, ConfigError, InputError
from extract.inputs.joined_text import JoinedText
from extract.poolings.pooling_table import split_poolings
from extract.records import to_plain
from extract.run.extraction import describe_extraction, extract_latents, unique_texts
from extract.run.extraction_spec import ExtractionSpec
from extract.run.progress import ExtractionProgress
from extract.store.cache import LatentCache, ViewCache, cache_path, whole_caches
from extract.store.compose import CachePart, compose_cache
from extract.store.manifest import of_all_texts
from probes.latents.text_latents import Transform
from probes.runs.config_file import as_config, nest_options
from probes.runs.run_config import RunConfig
from probes.runs.watcher import notebook_line

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
        return _loaded(json.dumps(plain_decoder(config.decoder), sort_keys=True), _changed(config.decoder))

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
    del changed
    return load_decoder(json.loads(settings))


def _changed(spec: DecoderSpec) -> float:
    """Return when a local decoder was changed last; 0 for others."""
    names = [spec.name, *spec.adapters, *(name for part in spec.merge for name in (part.name, *part.adapters))]
    paths = [Path(name).expanduser() for name in names if name]
    files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]
    return max((file.stat().st_mtime for file in files), default=0.0)


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
        views = {}
        for name, view in spec.readings.items():
            cache = reuse_latents(decoder, texts, spec=view, folder=folder, progress=progress)
            manifest = describe_extraction(decoder, unique_texts(texts), view, n_rows=len(cache))
            if cache.identity.text_digest != manifest.identity.text_digest:  # views hold the same texts, and no others
                manifest = describe_extraction(decoder, unique_texts(texts), view)
                plain = [text for text in unique_texts(texts) if isinstance(text, str)]
                cache = compose_cache([CachePart(cache, plain)], manifest=manifest, folder=folder)
            views[name] = cache
        return ViewCache(views).with_texts(texts)
    plain = [text for text in unique_texts(texts) if isinstance(text, str)]
    parts, is_missing = list[CachePart](), np.ones(len(plain), np.bool_)
    manifest = describe_extraction(decoder, plain or unique_texts(texts), spec)
    if plain and len(spec.members) == 1 and not cache_path(folder, manifest).exists():
        for cache in whole_caches(folder):
            if of_all_texts(cache.identity) == of_all_texts(manifest.identity):
                is_here = cache.holds(plain)
                if is_here.all():
                    cache.verify_latents()
                    return cache.with_texts(texts)
                if (is_new := is_here & is_missing).any():
                    cache.verify_latents()
                    parts.append(CachePart(cache, [plain[k] for k in np.flatnonzero(is_new)]))
                    is_missing &= ~is_new
    if not parts:
        return extract_latents(decoder, texts, spec=spec, folder=folder, progress=progress)
    if not is_missing.any():
        return compose_cache(parts, manifest=manifest, folder=folder).with_texts(texts)
    missing = [plain[k] for k in np.flatnonzero(is_missing)]
    before = {*folder.glob("*.h5")}
    new = extract_latents(decoder, missing, spec=spec, folder=folder, progress=progress)
    whole = compose_cache([*parts, CachePart(new, missing)], manifest=manifest, folder=folder)
    if new.path not in before:
        new.path.unlink()  # its rows are in the whole one
    return whole.with_texts(texts)


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
        layer: The layer that `encode` and `transform` give, by its name or number (-1 is the last); all of them for
            `encode`, and the last for `transform`, when None.
        verbose: Whether to show a bar in a notebook.
        read_out: A fitted transform of the layer's latents, as of `Encoder.from_sweep`; none when None.
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
        layer: Layer | None = None,
        verbose: bool = True,
        read_out: Transform | None = None,
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
        decoder: Decoder | DecoderSource | None = None,
        allow_code: str | Iterable[str] = (),
        **options: Any,
    ) -> "Encoder":
        """Make the encoder that a sweep, search or run ends with: its plan, template, pooling, layer and transform.

        Args:
            folder: A folder made by `icecore sweep` or `icecore run`.
            head: The head whose choice is taken; the best of those that read one layer if empty.
            decoder: The decoder if it is in memory already, or where it is now; where the folder says, when None.
            allow_code: Modules of your own poolings and masks that the folder may import.
            options: As of the encoder, such as `caches`.

        Raises:
            HeadError: No such folder, a run on words, or a head that reads several layers together.
            UnknownNameError: No such head in it.

        Example:
            >>> Encoder.from_sweep("runs/demo-sweep").encode(["Ice is cold."]).shape  # doctest: +SKIP
            (1, 576)
        """
        from probes.runs.chosen_encoder import ChosenEncoder

        chosen = ChosenEncoder.of(folder, head=head, allow_code=allow_code)
        spec = {key: value for key, value in to_plain(chosen.spec).items() if key not in ("views", "store_texts")}
        spec["template"] = chosen.spec.template.settings()
        return cls(
            decoder or chosen.decoder, layer=chosen.layer, read_out=chosen.read_out, **{"extraction": spec, **options}
        )

    def encode(
        self, texts: Iterable[str], *, layer: Layer | None = None, pooling: str = ""
    ) -> Float[np.ndarray, "..."]:
        """Return the latents of texts in float32: `(L, N, D)`, or `(N, D)` of one layer.

        Args:
            texts: N texts, which may repeat: a list, an array or a column.
            layer: A layer by its name or number; that of the encoder when None.
            pooling: Which pooling, where several are extracted; of views which one, all of them side by side
                (`V D` instead of `D`) when empty.

        Raises:
            InputError: No texts, or one that cannot be read.
            UnknownNameError: A layer or pooling that is not extracted.
            CacheError: Several poolings, of which none is named, or layers that differ in width.
        """
        rows = list_rows(texts)
        cache = self.cache(rows)
        if not pooling and len(cache.poolings) > 1 and not isinstance(cache, ViewCache):
            raise CacheError(f"the encoder extracts the poolings {', '.join(cache.poolings)}; name one with pooling=.")
        layer = self.layer if layer is None else layer
        layers = cache.layers if layer is None else (select_one(layer, cache.layers),)
        read = split_poolings(pooling or cache.default_pooling)
        parts = [cache.gather(cache.rows_of(rows), name, layers=layers).numpy() for name in read]
        latents = np.concatenate(parts, axis=-1)
        if self.read_out is not None:
            latents = self.read_out(torch.from_numpy(latents)).numpy()
        return latents if layer is None else latents[0]

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
        from probes.report.blocks import Table, cell
        from probes.report.page import notebook_html

        config = self.config()
        rows = [
            ("decoder", cell(config.decoder.name)),
            ("plan", cell(config.extraction.plan)),
            ("poolings", cell(", ".join(config.extraction.poolings))),
            ("layers", cell(", ".join(config.extraction.layers))),
            ("caches", cell(config.caches)),
        ]
        return notebook_html("Encoder", f"`encode(texts)` gives {self._gives()}.", blocks=[Table(("", ""), rows)])
