"""Digests: what was used, in a few hexadecimal digits."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from extract.joined import JoinedText

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

DIGEST_BYTES = 16  # of a row digest


def digest_json(value: object) -> str:
    """Digest plain values by their canonical JSON (sorted keys, no blanks): SHA-256, hexadecimal."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def digest_texts(texts: Sequence[str | JoinedText]) -> NDArray[np.uint8]:
    """Digest each text by itself, a text with words together with the places of its words.

    Args:
        texts: `N` texts.

    Returns:
        `(N, 16)` uint8, BLAKE2b with a digest of 16 bytes over the UTF-8 bytes of the text, or of the canonical JSON
        of text and spans; lone surrogates are kept as they are.
    """
    joined = b"".join(
        hashlib.blake2b(_written(text).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
        for text in texts
    )
    return np.frombuffer(joined, np.uint8).reshape(len(texts), DIGEST_BYTES)


def _written(text: str | JoinedText) -> str:
    return text if isinstance(text, str) else _canonical([text.text, text.spans])


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_rows(rows: NDArray[np.uint8]) -> str:
    """Digest a whole list of row digests in its order: SHA-256, hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


def digest_module(module: "nn.Module") -> str:
    """Digest every parameter and buffer of a module, non-persistent buffers included.

    Args:
        module: Any module, on any device; tensors are hashed two at a time on the CPU.

    Returns:
        SHA-256 over names, shapes, dtypes and bytes, hexadecimal. Equal digests mean bit-identical tensors.
    """
    import torch

    def one(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        head = f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode()
        return hashlib.sha256(head + hashlib.sha256(flat.numpy().data).digest()).digest()

    tensors: Iterable[tuple[str, torch.Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    with ThreadPoolExecutor(max_workers=2) as pool:
        parts = list(pool.map(one, tensors))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def digest_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Digest what decides a tokenizer's output: the whole fast tokenizer and its special tokens; hexadecimal."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state: Any = sorted(tokenizer.get_vocab().items())
    if backend is not None:
        # Padding and truncation are left behind by whoever called the tokenizer last; no call of ours keeps them.
        state = {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("padding", "truncation")}
    return digest_json([state, {key: str(value) for key, value in tokenizer.special_tokens_map.items()}])
