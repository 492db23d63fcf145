"""What is written around a text: instruction, further copies, suffix, and the marks of a chat, each with its role."""

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int, Int8
from numpy.typing import NDArray

from extract.digest import digest_json
from extract.errors import InputError
from extract.inputs.chat import render_chat
from extract.inputs.roles import CHAT, INSTRUCTION, JOINER, SUFFIX, TEXT
from extract.inputs.template import InputTemplate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\ue000"  # for private use; stands for the copies of a text while a chat is written
Pieces = tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Frame:
    """What is written around texts.

    Attributes:
        before: Pieces before the first copy, each with its role.
        after: Pieces after the last copy.
        joiner: What is written between copies.
        repeat: Copies of a text.
        is_chat: The pieces bring special tokens with them.
        changes_ends: Normalise the end and the quotes of texts first.
    """

    before: Pieces
    after: Pieces
    joiner: str
    repeat: int
    is_chat: bool
    changes_ends: bool

    @property
    def is_open(self) -> bool:
        """Whether nothing is written after a text, so that the tokens at its end can be dropped."""
        return self.repeat == 1 and not any(piece for _, piece in self.after)

    def lay(self, text: str) -> "WrittenText":
        """Write a text, as it is, with everything around it."""
        copies: list[tuple[int, str]] = [(TEXT, text), *((JOINER, self.joiner), (TEXT, text)) * (self.repeat - 1)]
        pieces = [*self.before, *copies, *self.after]
        borders = np.array([0, *accumulate(len(piece) for _, piece in pieces)], np.int64)
        return WrittenText("".join(piece for _, piece in pieces), borders, np.array([role for role, _ in pieces]))


@dataclass(frozen=True, eq=False)
class WrittenText:
    """The characters of a row, before the tokenizer adds its specials."""

    whole: str
    borders: NDArray[np.int64]  # `(P + 1,)` where each piece begins, and the end
    roles: NDArray[np.int64]  # `(P,)`

    @property
    def starts(self) -> Int[np.ndarray, " K"]:
        """The character at which each copy of the text begins."""
        starts: NDArray[np.int64] = self.borders[:-1][self.roles == TEXT]
        return starts

    def assign(self, offsets: Int[np.ndarray, "T 2"]) -> tuple[Int8[np.ndarray, " T"], Int8[np.ndarray, " T"]]:
        """Find the role of each token, and the copy of the text that it is of; 0 outside the text.

        A token across a border holds characters of the text, so it counts as text, and as that of the first copy it
        touches.
        """
        end = np.maximum(offsets[:, 1] - 1, 0)
        last = self._piece_of(end)
        first = np.minimum(self._piece_of(offsets[:, 0]), last)
        texts = np.flatnonzero(self.roles == TEXT)
        next_text = np.append(texts, len(self.roles))[np.searchsorted(texts, first)]
        piece = np.where(next_text <= last, next_text, first)
        roles = self.roles[piece].astype(np.int8)
        copies = np.where(roles == TEXT, np.searchsorted(texts, piece) + 1, 0).astype(np.int8)
        return roles, copies

    def _piece_of(self, characters: Int[np.ndarray, " T"]) -> Int[np.ndarray, " T"]:
        """Find the piece of each character; empty pieces hold none."""
        found: NDArray[np.int64] = np.searchsorted(self.borders, characters, side="right") - 1
        return found.clip(max=len(self.roles) - 1)


def build_frame(tokenizer: "PreTrainedTokenizerBase", template: InputTemplate) -> Frame:
    """Build the frame of a template.

    Raises:
        InputError: A chat is asked for that the tokenizer's chat template does not write.
    """
    before: Pieces = ((INSTRUCTION, template.instruction),)
    after: Pieces = ((SUFFIX, template.suffix),)
    is_chat = template.chat != "none"
    if is_chat:
        found, rest = _write_chat(tokenizer, template)
        before = _split(found, template.instruction, INSTRUCTION)
        after = _split(rest[::-1], template.suffix[::-1], SUFFIX)
        after = (*((role, piece[::-1]) for role, piece in after[::-1]), (SUFFIX, template.answer))
    return Frame(before, after, template.joiner, template.repeat, is_chat, template.normalise == "sentence")


def _write_chat(tokenizer: "PreTrainedTokenizerBase", template: InputTemplate) -> tuple[str, str]:
    """Write what a chat has before and after the copies of a text."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(f"the tokenizer has no chat template; set chat to 'none', not {template.chat!r}.")
    messages = [{"role": "user", "content": template.instruction + MARK + template.suffix}]
    if template.system:
        messages.insert(0, {"role": "system", "content": template.system})
    written = render_chat(tokenizer, messages, begins_answer=template.chat == "assistant")
    before, *after = written.split(MARK)
    if len(after) != 1:
        raise InputError(
            f"the chat template of this tokenizer writes the user's text {len(after)} times; allowed: once."
        )
    return before, after[0]


def _split(written: str, own: str, role: int) -> Pieces:
    """Split the template's own words off the end of what a chat has there; it may strip blanks at the far end."""
    for kept in (own, own.lstrip()):
        if written.endswith(kept):
            return ((CHAT, written.removesuffix(kept)), (role, kept))
    raise InputError(f"the chat template of this tokenizer changes {own!r}, written at the side of the text.")


def digest_chat(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Digest the chat template of a tokenizer, and what it writes today, as some write the date."""
    written = _write_chat(tokenizer, InputTemplate(chat="assistant"))
    return digest_json([str(getattr(tokenizer, "chat_template", "")), written])


def normalise_sentence(text: str) -> str:
    """Do to a text what the released programs of PromptEOL do; no character moves to another place.

    Example:
        >>> normalise_sentence('Is it "cold"?'), normalise_sentence("It is cold")
        ("Is it 'cold'.", 'It is cold.')
    """
    ended = text if text[-1:] in (".", "?", '"', "'") else text + "."
    quoted = ended.replace('"', "'")
    return f"{quoted[:-1]}." if quoted.endswith("?") else quoted
