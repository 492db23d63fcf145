"""The extraction: texts in, a whole cache out, resumable at any moment."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from extract.decoders.decoder import Decoder
from extract.decoders.layers import select_layers
from extract.decoders.placement import count_places
from extract.digest import digest_rows
from extract.errors import InputError, TruncationWarning
from extract.inputs.frame import digest_chat
from extract.inputs.joined import JoinedText, digest_texts, require_words
from extract.linear import describe_products
from extract.masks.plan import MaskPlan
from extract.own.names import describe_own
from extract.poolings.reba_options import REBA
from extract.poolings.table import select_poolings, select_word_poolings
from extract.run.extraction import Extraction, open_store
from extract.run.progress import ExtractionProgress
from extract.run.spec import WINDOW_TEXTS, ExtractionSpec, batch_limits
from extract.run.word_encoder import make_encoder
from extract.run.workers import Workers
from extract.store.cache import LatentCache
from extract.store.disk import require_locks
from extract.store.manifest import Manifest, build_identity
from extract.store.mean import MeanCache
from extract.store.reuse import cache_path, find_cache
from extract.wiring.applied import draw_placeholder
from extract.wiring.taps import layer_widths

PACKAGES = ("icecore", "torch", "transformers", "tokenizers")
Text = TypeVar("Text", bound=str | JoinedText)


def unique_texts(texts: Iterable[Text], *, first_index: int = 0) -> list[Text]:
    """Drop repeated texts, keeping the first of each.

    Texts are all plain or all with their words; equal texts with other words are different. `first_index` is the
    position of the first in the caller's list, for messages.

    Raises:
        InputError: No texts, one that is empty or no text, one with words that are not in it, or plain texts among
            those with words; names the position.
    """
    if isinstance(texts, str):
        raise InputError(f"texts is the single string {texts[:40]!r}; give a list of texts.")
    unique: dict[Text, None] = {}
    for i, text in enumerate(texts, first_index):
        if isinstance(text, JoinedText):
            require_words(text, i)
        elif not isinstance(text, str) or not text.strip():
            raise InputError(f"text {i} is {text!r}; allowed: a string with at least one visible character.")
        if unique and type(text) is not type(next(iter(unique))):
            raise InputError(f"text {i} is {text!r}; allowed: either plain texts or texts with their words, not both.")
        unique[text] = None
    if not unique:
        raise InputError("there are no texts to extract; give at least one.")
    return list(unique)


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    """Read the versions once: a sweep describes hundreds of extractions, and each look parses a file per package."""
    return tuple((package, version(package)) for package in PACKAGES)


def describe_extraction(
    decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec, *, n_rows: int | None = None
) -> Manifest:
    """Work out the manifest that an extraction of unique texts would have; `n_rows` saves a `count_rows`.

    Raises:
        UnknownNameError: A layer this decoder does not have.
        DecoderError: A tap that its family does not show, or not under this plan.
        InputError: Windows are asked for, and a pooling cannot be joined from them or a text cannot be read.
    """
    plan = spec.mask_plan
    plan.kinds(len(decoder.blocks))  # a plan that does not fit is refused before anything is written
    words = _describe_words(decoder, texts, spec)
    layers = select_layers(spec.layers, len(decoder.blocks))
    widths = layer_widths(decoder, plan, layers)
    n_pooled = 0 if words is None else len(words["poolings"]) * len(layers)
    token_bytes = n_pooled * decoder.description.width * 4
    batch_tokens, min_tokens = batch_limits(spec, decoder.device, token_bytes=token_bytes)
    own = describe_own(own_names(plan, spec.poolings, None if words is None else words["poolings"]))
    contents = {
        "poolings": list(select_poolings(spec.poolings)) if words is None else [],
        "layers": list(layers),
        "storage_dtype": spec.storage_dtype,
        "n_rows": count_rows(decoder, texts, spec) if n_rows is None else n_rows,
        "text_digest": digest_rows(digest_texts(texts)),
        # The identity of a cache without words taps or ReBA, or of a plan whose rules never changed, has no such field.
        **({} if words is None else {"words": words}),
        **({"rules": plan.rules} if plan.rules else {}),
        **({"widths": widths} if widths else {}),
        **({} if plan.prepend is None else {"placeholder": _describe_draw(decoder, plan.prepend[2])}),
        **({"reba": asdict(spec.reba)} if REBA & {*(spec.poolings if words is None else words["poolings"])} else {}),
        **({"own": {key: each["sha256"] for key, each in own.items()}} if own else {}),
        **({"chat": digest_chat(decoder.tokenizer)} if any(t.chat != "none" for t in spec.template.members) else {}),
    }
    identity = build_identity(
        decoder=decoder.description.to_dict(),
        plan=plan.text,
        architecture=plan.architecture,
        template={**spec.template.to_dict(), "window": decoder.description.window},
        contents=contents,
        versions=dict(_versions()),
    )
    provenance = {
        "decoder": decoder.description.to_dict(),
        "device": str(decoder.device),
        "products": describe_products(_like_weights(decoder)),
        **({"blocks": placed} if (placed := count_places(decoder.blocks)).keys() - {str(decoder.device)} else {}),
        "batching": {"batch_tokens": batch_tokens, "min_tokens": min_tokens, "window_texts": WINDOW_TEXTS},
        **({"own": own} if own else {}),
    }
    return Manifest(identity, provenance)


def _like_weights(decoder: Decoder) -> torch.Tensor:
    """Make a tensor like the weights while they are used; offloaded ones are elsewhere meanwhile."""
    return torch.empty(1, dtype=next(decoder.module.parameters()).dtype, device=decoder.device)


def own_names(plan: MaskPlan, poolings: Iterable[str], word_poolings: Iterable[str] | None) -> list[tuple[str, str]]:
    """Give the nouns and names that may be a user's own; `word_poolings` are None where whole texts are pooled."""
    kinds = [("mask kind", name) for name in plan.kind_names]
    if word_poolings is None:
        return kinds + [("pooling", name) for name in poolings]
    return kinds + [("word pooling", name) for name in word_poolings]


def count_rows(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec) -> int:
    """Count the rows that texts take: one each, unless words are read in windows, which takes a tokenisation."""
    if spec.template.on_long != "windows":
        return len(texts)
    return _count_encoded(decoder, texts, spec)


def check_texts(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec, *, path: Path) -> None:
    """Refuse texts that cannot be read before a store for them is laid out at `path`: `InputError`, naming the text.

    Tokenising takes less than a hundredth of the extraction.
    """
    if spec.template.on_long != "windows" and not path.exists():  # counting the rows has read those already
        _count_encoded(decoder, texts, spec)


def _count_encoded(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec) -> int:
    encoder = make_encoder(decoder, spec, has_words=isinstance(texts[0], JoinedText))
    starts = range(0, len(texts), WINDOW_TEXTS)
    return sum(len(encoder(texts[start : start + WINDOW_TEXTS], first_index=start)) for start in starts)


def _describe_draw(decoder: Decoder, seed: int) -> dict[str, Any]:
    """Name the draw of a placeholder; the seed gives the very same one again."""
    draw = draw_placeholder(decoder.description.width, seed).numpy()
    return {"seed": seed, "sha256": sha256(draw.astype("<f4").tobytes()).hexdigest()}


def _describe_words(decoder: Decoder, texts: Sequence[str | JoinedText], spec: ExtractionSpec) -> dict[str, Any] | None:
    joined = [text for text in texts if isinstance(text, JoinedText)]
    if not joined:
        return None
    return {
        "poolings": list(select_word_poolings(spec.words.poolings, spec.mask_plan, len(decoder.blocks))),
        "shift": spec.words.shift,
        "on_lost": spec.words.on_lost,
        "n_words": sum(len(text.spans) for text in joined),
    }


def extract_latents(
    decoder: Decoder,
    texts: Iterable[str | JoinedText],
    *,
    spec: ExtractionSpec = ExtractionSpec(),  # noqa: B008 - frozen
    folder: str | Path = "caches",
    progress: ExtractionProgress | None = None,
    workers: Workers = Workers(),  # noqa: B008 - frozen
) -> LatentCache:
    """Extract latents of texts, or of their words, into a cache, or find the cache that already holds them.

    Args:
        decoder: The frozen decoder.
        texts: Texts, all plain or all with their words; repeats are stored once.
        spec: What to extract.
        folder: Where caches live. A whole cache of the same identity, or one that holds more, is reused; a half-done
            one is resumed.
        progress: Receives what has been done.
        workers: This process's place in a group that writes one store together.

    Returns:
        The whole cache; a `MeanCache` of several where the template's name is that of several.

    Raises:
        InputError: A text that cannot be pooled; named.
        CacheLockedError: Another process is writing this cache.
        DiskFullError: No space left; rows that are done stay.
        NonFiniteLatentError: A latent that cannot be stored; names layer, pooling, text and value.
        CertificateError: The plan did not take effect, latents depend on padding, or weights changed.
        KeyboardInterrupt: Rows that are done stay.
    """
    unique = unique_texts(texts)
    manifest = describe_extraction(decoder, unique, spec)
    if len(spec.members) > 1:
        how: dict[str, Any] = {"folder": folder, "progress": progress, "workers": workers}
        parts = [extract_latents(decoder, unique, spec=each, **how) for each in spec.members]
        return MeanCache(parts, identity=manifest.identity)
    cache = find_cache(Path(folder), manifest.identity)
    if cache is None:
        require_locks()  # said before texts are tokenised, not after it
        path = cache_path(Path(folder), manifest)
        check_texts(decoder, unique, spec, path=path)
        with open_store(path, manifest, workers=workers) as writer:
            Extraction(decoder, unique, spec, writer, progress or ExtractionProgress(), workers).run()
        cache = LatentCache(path, expected=manifest.identity)
    if workers.rank == 0:
        warn_truncated(cache)
    return cache


def warn_truncated(cache: LatentCache, *, n_cut: int | None = None) -> None:
    """Warn, with counts, where texts of a cache were longer than the longest row; `n_cut`, if known, saves a count."""
    n_cut, template = int(cache.is_truncated.sum()) if n_cut is None else n_cut, cache.identity["template"]
    if not n_cut:
        return
    most, window = template["max_tokens"] or template["window"], template["window"]
    more = f"raise template.max_tokens (this decoder takes {window})" if most < window else "shorten or split them"
    warnings.warn(
        f"{n_cut:,} of {len(cache):,} texts have more than {min(most, window)} tokens, and their ends were left out; "
        f"{more}, or set template.on_long to 'error'.",
        TruncationWarning,
        stacklevel=3,
    )
