"""Tiny tokenizers of every type that matters to words, trained in memory on a few sentences."""

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

N_VOCABULARY = 400
SPECIALS = ["<unk>", "<s>", "</s>"]
CORPUS = (
    *["The mouse ran under the table, didn't it?", "Über 3.053 Meter tief, im Jahr 1993; schön!"] * 20,
    "氷は水に浮く。東京から大阪まで。",
    "A cold core was drilled through the ice sheet of Greenland.",
    "naïve café résumé e\u0301 o\u0308 👩\u200d🔬 👍🏽 🇳🇴 state-of-the-art isn't can't",
)


def _trained(core: Tokenizer, trainer: Any) -> Tokenizer:
    core.train_from_iterator(CORPUS, trainer)
    return core


def _byte_level(
    *, add_prefix_space: bool = False, trim_offsets: bool | None = None, use_regex: bool = True
) -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    core.decoder = decoders.ByteLevel()
    if trim_offsets is not None:
        core.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(
        core,
        trainers.BpeTrainer(
            vocab_size=N_VOCABULARY, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
        ),
    )


def _bytes() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def _unigram(*, normalizer: Any = None, prepend_scheme: str = "always") -> Tokenizer:
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    core.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    if normalizer is not None:
        core.normalizer = normalizer
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False, shrinking_factor=0.8
    )
    return _trained(core, trainer)


def _unigram_with_bytes() -> Tokenizer:
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((byte, -9.0) for byte in _bytes())]
    pieces += [("▁", -2.0), *((letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz")]
    pieces += [("▁the", -3.0), ("ing", -3.0), ("▁mo", -3.5), ("use", -3.5), ("▁b", -3.0), ("c▁", -3.0)]
    core = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return core


def _llama(*, normalizer: Any = None) -> Tokenizer:
    """Make a BPE as of Llama 2: blanks become characters of the text, unknown characters become bytes."""
    core = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    core.normalizer = normalizers.Sequence([*([] if normalizer is None else [normalizer]), *spaces])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCABULARY + 256, special_tokens=[*SPECIALS, *_bytes()], limit_alphabet=40, show_progress=False
    )
    return _trained(core, trainer)


def _metaspace_bpe(*, normalizer: Any = None, unk_token: str | None = "<unk>") -> Tokenizer:
    core = Tokenizer(models.BPE(unk_token=unk_token))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    if normalizer is not None:
        core.normalizer = normalizer
    return _trained(core, trainers.BpeTrainer(vocab_size=N_VOCABULARY, special_tokens=SPECIALS, show_progress=False))


def _word_piece(*, normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    core = Tokenizer(models.WordPiece(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit() if pre_tokenizer is None else pre_tokenizer
    if normalizer is not None:
        core.normalizer = normalizer
    return _trained(
        core, trainers.WordPieceTrainer(vocab_size=N_VOCABULARY, special_tokens=SPECIALS, show_progress=False)
    )


WORD_TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": _byte_level,
    "byte-level, prefix space, trimmed offsets": lambda: _byte_level(add_prefix_space=True, trim_offsets=True),
    "byte-level, trimmed offsets": lambda: _byte_level(trim_offsets=True),
    "byte-level, prefix space, whole offsets": lambda: _byte_level(add_prefix_space=True, trim_offsets=False),
    "byte-level, merges across blanks": lambda: _byte_level(use_regex=False),
    "unigram": _unigram,
    "unigram, no prefix": lambda: _unigram(prepend_scheme="never"),
    "unigram, NFKC": lambda: _unigram(normalizer=normalizers.NFKC()),
    "unigram, bytes": _unigram_with_bytes,
    "llama": _llama,
    "llama, NFKC": lambda: _llama(normalizer=normalizers.NFKC()),
    "metaspace BPE": _metaspace_bpe,
    "metaspace BPE, NFKC": lambda: _metaspace_bpe(normalizer=normalizers.NFKC()),
    "metaspace BPE, NFD": lambda: _metaspace_bpe(normalizer=normalizers.NFD()),
    "word piece": _word_piece,
    "word piece, BERT": lambda: _word_piece(
        normalizer=normalizers.BertNormalizer(), pre_tokenizer=pre_tokenizers.BertPreTokenizer()
    ),
}
LOSSLESS = [name for name in WORD_TOKENIZERS if name.startswith("byte-level") or name in ("llama", "unigram, bytes")]


@cache
def word_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Make a tokenizer of the table."""
    return wrapped(WORD_TOKENIZERS[name]())


def dropping_tokenizer(*, normalizer: Any = None) -> PreTrainedTokenizerBase:
    """Make a tokenizer that drops what it does not know, and then tells wrong offsets."""
    return wrapped(_metaspace_bpe(normalizer=normalizer, unk_token=None))


def wrapped(core: Tokenizer) -> PreTrainedTokenizerBase:
    """Wrap a tokenizer in the shape that decoders have theirs in."""
    wrap: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerBase = wrap(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    return made
