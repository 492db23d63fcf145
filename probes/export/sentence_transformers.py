"""Folders that sentence-transformers encodes with, equal to the latents of a cache."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from extract.decoders.decoder import Decoder, load_decoder, quiet_loading
from extract.decoders.decoder_spec import DecoderSpec
from extract.decoders.fetch import working_folder
from extract.errors import CodeError, ConfigError, HeadError, first_line
from extract.registry import require_extra
from extract.run.embed import embed_texts
from extract.run.extraction_spec import ExtractionSpec, require_one_reading
from probes.export.recipe import MODULES, Recipe, why_not_stock, write_custom, write_stock
from probes.runs.folder import UNREADABLE
from probes.runs.predict import load_scorer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from probes.latents.text_latents import Transform

TOLERANCE = 1e-4
"""Largest difference to a cache, relative to the largest value of a vector."""
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
    read_out: "Transform | None" = None,
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
        read_out: A fitted transform of the latents, as of `ChosenEncoder`; none when None.

    Returns:
        What the folder holds; `is_stock` says which of the two it is.

    Raises:
        ConfigError: The extra is missing, the folder holds something, or the vectors are not those of an extraction.
        UnknownNameError: No such layer or pooling.
    """
    require_extra("sentence_transformers")
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise ConfigError(f"folder {str(folder)!r} holds something already; name a new one, or empty it.")
    if not pooling and len(spec.poolings) != 1:
        raise ConfigError(f"the poolings are {', '.join(spec.poolings)}; name one of them.")
    require_one_reading(spec, "a folder encodes one")
    pooling = pooling or spec.poolings[0]
    recipe = Recipe.of(decoder, spec, layer=layer, pooling=pooling, normalise=normalise, read_out=read_out)
    with working_folder(target) as draft:
        reason = why_not_stock(recipe, decoder)
        if not reason:
            write_stock(recipe, decoder, draft)
            reason = _difference(recipe, decoder, draft)
        if reason:
            shutil.rmtree(draft)
            write_custom(recipe, decoder, draft)
            if unequal := _difference(recipe, decoder, draft):
                raise ConfigError(f"the folder would not encode as the extraction does: {unequal}; please report it.")
        if target.exists():
            target.rmdir()
        shutil.copytree(draft, target)
    return Recipe.read(target)


def _difference(recipe: Recipe, decoder: Decoder, folder: Path) -> str:
    """Compare the vectors of a folder with those of an extraction; empty where they are equal."""
    expected = recipe.vectors(embed_texts(decoder, TRIALS, spec=recipe.spec)[0, 0]).numpy()
    if recipe.normalise:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    model = load_sentence_transformer(folder, device=str(decoder.device), dtype=decoder.description.dtype)
    vectors = np.asarray(model.encode(list(TRIALS), show_progress_bar=False), np.float32)
    gap = float((np.abs(vectors - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())
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
    recipe = Recipe.read(Path(folder))
    model: SentenceTransformer
    if recipe.is_stock:
        _require_stock(Path(folder))
        with quiet_loading():
            model = package.SentenceTransformer(
                str(folder), device=None if device == "auto" else device, local_files_only=True
            )
        return model
    from sentence_transformers.base.modules import Normalize

    from probes.export.latents_module import DecoderLatents

    spec: Any = DecoderSpec(str(folder), dtype=dtype, device=device, trust_remote_code=trust_remote_code)  # type: ignore[arg-type]
    decoder = load_decoder(spec)
    recipe.require_decoder(decoder, Path(folder))
    modules = [DecoderLatents(decoder, recipe), *[Normalize()] * recipe.normalise]
    model = package.SentenceTransformer(modules=modules, device=str(decoder.device), similarity_fn_name="cosine")
    return model


class PairScorer:
    """Scores pairs of texts with a head of a finished run, by the methods of `CrossEncoder`, without that package.

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
        self, sentences: Sequence[Sequence[str]] | Sequence[str], batch_size: int = 1024, **kwargs: object
    ) -> Float[np.ndarray, " N"] | float:
        """Score pairs, in the units of the run's gold; a single pair gives a single number.

        Args:
            sentences: Pairs of texts, or one pair.
            batch_size: Pairs scored at a time; bounds memory.
            **kwargs: Arguments of `CrossEncoder.predict` that make no difference here.
        """
        del kwargs
        is_single = len(sentences) == 2 and all(isinstance(text, str) for text in sentences)
        scores = self.scorer.predict([sentences] if is_single else sentences, at_a_time=batch_size)  # type: ignore[list-item]
        return float(scores[0]) if is_single else np.array(scores, np.float32)  # type: ignore[arg-type]

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
