"""Characters that a tokenizer drops silently, which makes the offsets of their neighbours wrong."""

from typing import TYPE_CHECKING, Any

from extract.errors import InputError
from extract.inputs.tokenised import SPECIAL, TokenisedText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DroppedCharacters:
    """Finds texts of which a tokenizer drops characters that it does not know.

    Only a BPE without an unknown token, without byte fallback and without all 256 bytes in its vocabulary does so. It
    then counts the characters that are left, so that later tokens of the same piece get the characters of earlier
    ones. Characters that a normaliser removes are fine: the offsets account for them.

    Args:
        tokenizer: A fast tokenizer.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        core: Any = tokenizer.backend_tokenizer
        model = core.model
        is_bpe = type(model).__name__ == "BPE"
        is_open = is_bpe and model.unk_token is None and not model.byte_fallback
        if is_open and (model.continuing_subword_prefix or model.end_of_word_suffix):
            is_open = False  # tokens hold more than the text's own characters and cannot be compared with it
        self._core = core if is_open and not set(ByteLevel.alphabet()) <= tokenizer.get_vocab().keys() else None

    def require_none(self, item: TokenisedText, *, instruction: str) -> None:
        """Refuse a text whose offsets cannot be trusted.

        Args:
            item: The text and its tokens.
            instruction: Text in front of it.

        Raises:
            InputError: A character was dropped; names the text and the first such character.
        """
        if self._core is None:
            return
        text = instruction + item.text
        if self._core.normalizer is not None:
            text = self._core.normalizer.normalize_str(text)
        if self._core.pre_tokenizer is not None:
            text = "".join(piece for piece, _ in self._core.pre_tokenizer.pre_tokenize_str(text))
        kept = iter("".join(self._core.id_to_token(token) for token in item.ids[item.roles != SPECIAL].tolist()))
        for character in text:
            if character != next(kept, ""):
                raise InputError(
                    f"the tokenizer has no token for {character!r} in {item.label} and drops it, after which it no "
                    "longer reports where its tokens are; remove the character, or use a tokenizer with an unknown "
                    "token."
                )
