"""Folders that sentence-transformers encodes with, equal to the latents of a cache."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float

from extract.decoders.decoder import Decoder, load_decoder, quiet_loading
from extract.decoders.decoder_spec import EMBEDDING, FINAL_NORM, DecoderSpec, select_layers
from extract.decoders.fetch import working_folder
from extract.errors import CodeError, ConfigError, HeadError, first_line
from extract.inputs.template import InputTemplate
from extract.registry import require_extra
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec
from probes.runs.folder import UNREADABLE, read_spec
from probes.runs.predict import load_scorer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


# What a folder of sentence-transformers is made of, before anything of that package is imported.

STOCK_POOLINGS = {"last": "lasttoken", "mean": "mean", "max": "max", "first": "cls"}
"""Poolings to what sentence-transformers calls them; its weighted mean counts on from the tokens of a prompt."""
MODULES = {
    "transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "normalize": "sentence_transformers.base.modules.normalize.Normalize",
}


@dataclass(frozen=True)
class Recipe:
    """How texts become vectors: one layer and pooling of an extraction.

    Attributes:
        spec: The extraction, of this layer and pooling alone.
        normalise: Whether vectors are divided by their length.
        decoder: `name`, `weight_digest` and `tokenizer_digest` of the decoder.
        is_stock: Whether sentence-transformers' own modules read it, or the module of this project.
    """

    spec: ExtractionSpec
    normalise: bool
    decoder: Mapping[str, str]
    is_stock: bool = False
    FILE: ClassVar[str] = "icecore.json"
    SCHEMA: ClassVar[int] = 1

    @classmethod
    def of(cls, decoder: Decoder, spec: ExtractionSpec, *, layer: str, pooling: str, normalise: bool) -> "Recipe":
        """Narrow an extraction to one layer and pooling.

        Raises:
            UnknownNameError: No such layer or pooling.
            ConfigError: Several layers, or the template reads spans from a file, which the folder would lack.
        """
        layers = select_layers(layer, len(decoder.blocks))
        if len(layers) != 1:
            raise ConfigError(f"the layer is {layer!r}, which are {len(layers)}; allowed: one, as block_12, 12 or -1.")
        if spec.template.spans and not spec.template.spans.startswith("random:"):
            raise ConfigError(
                f"template.spans is the file {Path(spec.template.spans).name!r}, which new texts are not in; allowed: "
                "none, or 'random:SEED'."
            )
        described = decoder.description
        told = {key: getattr(described, key) for key in ("name", "weight_digest", "tokenizer_digest")}
        return cls(replace(spec, layers=layers, poolings=(pooling,), batch_tokens=None), normalise, told)

    @property
    def layer(self) -> str:
        """The layer."""
        return self.spec.layers[0]

    @property
    def pooling(self) -> str:
        """The pooling."""
        return self.spec.poolings[0]

    def with_instruction(self, instruction: str) -> ExtractionSpec:
        """Return the extraction with another instruction before the text."""
        return replace(self.spec, template=replace(self.spec.template, name="", instruction=instruction))

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values."""
        return {
            "schema": self.SCHEMA,
            "is_stock": self.is_stock,
            "normalise": self.normalise,
            "decoder": dict(self.decoder),
            "extraction": json.loads(json.dumps(asdict(self.spec))),
        }

    @classmethod
    def read(cls, folder: Path) -> "Recipe":
        """Read the recipe of a folder; HeadError where it has none that can be read."""
        try:
            values = json.loads((folder / cls.FILE).read_text("utf-8"))
            if values["schema"] != cls.SCHEMA:
                raise ValueError(f"its schema is {values['schema']}, this version reads {cls.SCHEMA}")
            spec = read_spec(values["extraction"])
            return cls(spec, bool(values["normalise"]), dict(values["decoder"]), bool(values["is_stock"]))
        except UNREADABLE as error:
            raise HeadError(
                f"folder {str(folder)!r} holds no {cls.FILE} that can be read ({first_line(error)}); allowed: a folder "
                "made by icecore export sentence-transformers."
            ) from error

    def require_decoder(self, decoder: Decoder, folder: Path) -> None:
        """Refuse a decoder or tokenizer that is not the one the folder was made with."""
        for key in ("weight_digest", "tokenizer_digest"):
            if getattr(decoder.description, key) != self.decoder[key]:
                what = "decoder" if key == "weight_digest" else "tokenizer"
                raise HeadError(
                    f"the {what} in {str(folder)!r} is not the one it was exported with: its digest differs; export "
                    "the folder again."
                )


def why_not_stock(recipe: Recipe, decoder: Decoder) -> str:
    """Say why the modules of sentence-transformers cannot read what a recipe asks for; empty where they can."""
    spec, pooling = recipe.spec, recipe.pooling
    special = decoder.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    reasons = {
        f"the plan is {spec.plan!r}, and a stock folder is causal": not spec.mask_plan.is_untouched,
        "its template is not that of the tokenizer alone": replace(spec.template, max_tokens=None) != InputTemplate(),
        f"{recipe.layer} is inside a block": recipe.layer not in decoder.layers,
        f"transformers hands out {recipe.layer} only after the final norm": recipe.layer == decoder.layers[-2],
        f"its pooling is {pooling!r}; stock ones are {', '.join(STOCK_POOLINGS)}": pooling not in STOCK_POOLINGS,
        f"the tokenizer adds special tokens, which a stock {pooling} would pool": pooling != "last" and any(special),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def save_decoder_files(decoder: Decoder, folder: Path, *, max_tokens: int | None = None) -> None:
    """Write a decoder and its tokenizer in hub layout; texts are padded on the right."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer: Any = copy(decoder.tokenizer)
    if max_tokens is not None:
        tokenizer.padding_side, tokenizer.model_max_length = "right", max_tokens
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token  # masked, so any token will do
    with quiet_loading():
        tokenizer.save_pretrained(folder)
        decoder.module.save_pretrained(folder)  # type: ignore[operator]


def write_stock(recipe: Recipe, decoder: Decoder, folder: Path) -> None:
    """Write a folder of stock modules: Transformer, Pooling and perhaps Normalize."""
    window = decoder.description.window
    save_decoder_files(decoder, folder, max_tokens=min(window, recipe.spec.template.max_tokens or window))
    number = {EMBEDDING: 0, FINAL_NORM: len(decoder.blocks)}.get(recipe.layer, decoder.layers.index(recipe.layer))
    output = {"method": "forward", "method_output_name": ["hidden_states", number]}
    parts = [("transformer", ""), ("pooling", "1_Pooling"), *[("normalize", "2_Normalize")] * recipe.normalise]
    pooling = {
        "embedding_dimension": decoder.description.width,
        "pooling_mode": STOCK_POOLINGS[recipe.pooling],
        "include_prompt": False,
    }
    files = {
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": output},
            "module_output_name": "token_embeddings",
        },
        "1_Pooling/config.json": pooling,
        "modules.json": _modules([(MODULES[name], path) for name, path in parts]),
        "config_sentence_transformers.json": _model_config(),
        Recipe.FILE: replace(recipe, is_stock=True).to_dict(),
    }
    _write(files, folder, [path for _, path in parts])


def write_own(recipe: Recipe, decoder: Decoder, folder: Path) -> None:
    """Write a folder that the module of this project reads."""
    save_decoder_files(decoder, folder)
    parts = [("probes.export.latents_module.DecoderLatents", "")]
    parts += [(MODULES["normalize"], "1_Normalize")] * recipe.normalise
    files = {
        "modules.json": _modules(parts),
        "config_sentence_transformers.json": _model_config(),
        Recipe.FILE: recipe.to_dict(),
    }
    _write(files, folder, [path for _, path in parts])


def _write(files: Mapping[str, Any], folder: Path, parts: list[str]) -> None:
    for path in filter(None, parts):
        (folder / path).mkdir(exist_ok=True)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _modules(parts: list[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"idx": number, "name": str(number), "path": path, "type": kind} for number, (kind, path) in enumerate(parts)
    ]


def _model_config() -> dict[str, Any]:
    return {
        "model_type": "SentenceTransformer",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }


TOLERANCE = 1e-4
"""Of the difference to a cache, relative to the largest value of a vector."""
TRIALS = (
    "Ice.",
    "  Two words, after two blanks.",
    "A much longer sentence, so that the batch of these four has padding in it.",
    "Ein Satz mit Umlauten: über, schön, groß.",
)
"""Texts on which a folder is compared with an extraction before it is handed out."""


def export_sentence_transformer(
    decoder: Decoder,
    spec: ExtractionSpec,
    folder: str | Path,
    *,
    layer: str = "final_norm",
    pooling: str = "",
    normalise: bool = False,
) -> Recipe:
    """Write a folder that encodes texts as an extraction does, and compare the two on a few texts.

    Where the modules of sentence-transformers can do so, the folder has nothing else, and any program can load it with
    `SentenceTransformer(folder)`. For other plans, templates, layers and poolings it names the module of this project:
    load it with `load_sentence_transformer`.

    Args:
        decoder: The decoder, which is written into the folder.
        spec: Plan, template and poolings.
        folder: A new or empty folder.
        layer: A layer, by name or number.
        pooling: A pooling; the only one of `spec` when empty.
        normalise: Divide vectors by their length.

    Returns:
        What the folder holds; `is_stock` says which of the two it is.

    Raises:
        ConfigError: The extra is missing, the folder holds something, or the vectors are not those of an extraction.
        UnknownNameError: No such layer or pooling.
    """
    require_extra("sentence_transformers")
    place = Path(folder)
    if place.exists() and any(place.iterdir()):
        raise ConfigError(f"folder {str(folder)!r} holds something already; name a new one, or empty it.")
    if not pooling and len(spec.poolings) != 1:
        raise ConfigError(f"the poolings are {', '.join(spec.poolings)}; name one of them.")
    recipe = Recipe.of(decoder, spec, layer=layer, pooling=pooling or spec.poolings[0], normalise=normalise)
    with working_folder(place) as draft:
        reason = why_not_stock(recipe, decoder)
        if not reason:
            write_stock(recipe, decoder, draft)
            reason = _difference(recipe, decoder, draft)
        if reason:
            shutil.rmtree(draft)
            write_own(recipe, decoder, draft)
            if unequal := _difference(recipe, decoder, draft):
                raise ConfigError(f"the folder would not encode as the extraction does: {unequal}; please report it.")
        if place.exists():
            place.rmdir()
        shutil.copytree(draft, place)
    return Recipe.read(place)


def _difference(recipe: Recipe, decoder: Decoder, folder: Path) -> str:
    """Compare the vectors of a folder with those of an extraction; empty where they are equal."""
    expected = embed_texts(decoder, TRIALS, spec=recipe.spec)[0, 0].numpy()
    if recipe.normalise:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    model = load_sentence_transformer(folder, device=str(decoder.device), dtype=decoder.description.dtype)
    found = np.asarray(model.encode(list(TRIALS), show_progress_bar=False), np.float32)
    gap = float((np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())
    return "" if gap <= TOLERANCE else f"its vectors differ by {gap:.1e} of their largest value"


def _require_stock(folder: Path) -> None:
    """Refuse a folder whose modules are not those of a stock folder: sentence-transformers runs what a folder names."""
    try:
        types = [module["type"] for module in json.loads((folder / "modules.json").read_text("utf-8"))]
    except UNREADABLE as error:
        raise HeadError(f"{str(folder / 'modules.json')!r} cannot be read ({first_line(error)}).") from error
    for name in types:
        if name not in MODULES.values():
            raise CodeError(
                f"{str(folder / 'modules.json')!r} names {str(name)[:60]!r}; allowed: {', '.join(MODULES.values())}. "
                "Export the folder again."
            )


def load_sentence_transformer(
    folder: str | Path, *, device: str = "auto", dtype: str = "auto", trust_remote_code: bool = False
) -> "SentenceTransformer":
    """Load a folder of `export_sentence_transformer` for encoding; no flag is needed, as no code is in it.

    Args:
        folder: The folder.
        device: As `decoder.device`.
        dtype: As `decoder.dtype`.
        trust_remote_code: Run code that comes with the decoder.

    Raises:
        ConfigError: The extra is missing.
        HeadError: No such folder, or its decoder is not the one it was exported with.
        CodeError: It names modules that no export has.

    Example:
        >>> model = load_sentence_transformer("encoder")  # doctest: +SKIP
        >>> model.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 576)
    """
    package: Any = require_extra("sentence_transformers")
    place, recipe = Path(folder), Recipe.read(Path(folder))
    if recipe.is_stock:
        _require_stock(place)
        where = None if device == "auto" else device
        with quiet_loading():
            found: SentenceTransformer = package.SentenceTransformer(str(place), device=where, local_files_only=True)
        return found
    from sentence_transformers.base.modules import Normalize

    from probes.export.latents_module import DecoderLatents

    spec: Any = DecoderSpec(str(place), dtype=dtype, device=device, trust_remote_code=trust_remote_code)  # type: ignore[arg-type]
    decoder = load_decoder(spec)
    recipe.require_decoder(decoder, place)
    modules = [DecoderLatents(decoder, recipe), *[Normalize()] * recipe.normalise]
    own: SentenceTransformer = package.SentenceTransformer(
        modules=modules, device=str(decoder.device), similarity_fn_name="cosine"
    )
    return own


# A fitted pair head with the interface of a cross-encoder of sentence-transformers; that package is not needed.


class PairScorer:
    """Scores pairs of texts with a head of a finished run, by the methods of `CrossEncoder`.

    Args:
        run: A run folder on pairs.
        head: Which head, for instance `siamese-cosine`; the best when empty.
        decoder: As for `load_scorer`.
        trust_remote_code: As for `load_scorer`.
        allow_code: As for `load_scorer`.

    Raises:
        HeadError: No finished run there, or one that is not on pairs.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        head: str = "",
        decoder: Decoder | str | None = None,
        trust_remote_code: bool = False,
        allow_code: str | Iterable[str] = (),
    ) -> None:
        self.scorer = load_scorer(
            run, head=head or None, decoder=decoder, trust_remote_code=trust_remote_code, allow_code=allow_code
        )
        if self.scorer.kind != "pairs":
            raise HeadError(f"the run {str(run)!r} is on {self.scorer.kind}; allowed: a run on pairs of texts.")

    def predict(
        self, sentences: Sequence[Sequence[str]] | Sequence[str], batch_size: int = 1024, **kwargs: Any
    ) -> Float[np.ndarray, " N"] | float:
        """Score pairs, in the units of the run's gold; a single pair gives a single number.

        Args:
            sentences: Pairs of texts, or one pair.
            batch_size: Pairs scored at a time; bounds memory.
            **kwargs: Arguments of `CrossEncoder.predict` that make no difference here.
        """
        del kwargs
        if len(sentences) == 2 and all(isinstance(each, str) for each in sentences):
            return float(self.scorer.score([tuple(sentences)])[0])
        starts = range(0, len(sentences), batch_size)
        self.scorer.require_rows(sentences)
        parts = [self.scorer.score([tuple(pair) for pair in sentences[k : k + batch_size]]) for k in starts]
        return np.concatenate(parts).astype(np.float32)

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Rank documents by their score with a query, the highest first, as `corpus_id`, `score` and perhaps `text`."""
        scores = np.atleast_1d(self.predict([(query, document) for document in documents], **kwargs))
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [
            {"corpus_id": int(i), "score": float(scores[i]), **({"text": documents[i]} if return_documents else {})}
            for i in order
        ]
