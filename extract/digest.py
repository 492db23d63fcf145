"""Digests of what was used: SHA-256 in hexadecimal digits."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from extract.errors import DecoderError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn
    from transformers import PreTrainedTokenizerBase

DIGEST_BYTES = 16  # of a row digest


def digest_json(value: object) -> str:
    """Digest plain values by their canonical JSON."""
    return digest_text(canonical_json(value))


def digest_text(text: str) -> str:
    """Digest a text by its UTF-8 bytes."""
    return digest_bytes(text.encode())


def digest_bytes(content: bytes) -> str:
    """Digest the content of a file."""
    return hashlib.sha256(content).hexdigest()


def canonical_json(value: object) -> str:
    """Write plain values as canonical JSON: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_rows(rows: "NDArray[np.uint8]") -> str:
    """Digest a whole list of row digests in its order."""
    return hashlib.sha256(rows.tobytes()).hexdigest()


def digest_module(module: "nn.Module") -> str:
    """Digest names, shapes, dtypes and bytes of every parameter and buffer, non-persistent buffers included.

    Equal digests mean bit-identical tensors. They are hashed two at a time on the CPU, and offloaded ones are read from
    where they wait. Rotary frequencies that change with the length of a batch (longrope) are no weights: those that a
    decoder began with are hashed.
    """
    import torch

    def one(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        found = _read_offloaded(module, name, tensor) if tensor.device.type == "meta" else tensor
        found = found.full_tensor() if hasattr(found, "full_tensor") else found  # split over processes
        flat = found.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        head = f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode()
        return hashlib.sha256(head + hashlib.sha256(flat.numpy().data).digest()).digest()

    buffers = dict(module.named_buffers())
    for name in buffers:
        path, _, last = name.rpartition(".")
        owner, before = module.get_submodule(path), last.replace("inv_freq", "original_inv_freq")
        if "longrope" in str(getattr(owner, "rope_type", "")) and last.endswith("inv_freq") and hasattr(owner, before):
            buffers[name] = getattr(owner, before)
    known = {name for name, _ in module.named_parameters(remove_duplicate=False)} | buffers.keys()
    scales = {name: value for name, value in module.state_dict().items() if name not in known}  # of quantised weights
    tensors = [*module.named_parameters(), *buffers.items()]
    tensors += [(name, value) for name, value in scales.items() if isinstance(value, torch.Tensor)]
    is_split = any(hasattr(tensor, "full_tensor") for _, tensor in tensors)  # gathered in one order everywhere
    with ThreadPoolExecutor(max_workers=1 if is_split else 2) as pool:
        parts = list(pool.map(one, tensors))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def hooks_of(module: "nn.Module") -> list[Any]:
    """Return the hooks by which accelerate moves a module's inputs and weights between devices."""
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))


def _read_offloaded(module: "nn.Module", name: str, empty: "torch.Tensor") -> "torch.Tensor":
    """Read an offloaded tensor from main memory or disk, in the dtype it is used in."""
    path, _, last = name.rpartition(".")
    for hook in hooks_of(module.get_submodule(path)):
        if getattr(hook, "weights_map", None) is not None:
            found: torch.Tensor = hook.weights_map[last].to(empty.dtype)
            return found
    raise DecoderError(f"the weight {name!r} is on no device and was not offloaded by accelerate; load it first.")


def digest_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Digest what decides a tokenizer's output: the whole fast tokenizer and its special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state: Any = sorted(tokenizer.get_vocab().items())
    if backend is not None:
        # Padding and truncation are settings of the last caller, which none of our calls keep.
        state = {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("padding", "truncation")}
    return digest_json([state, {key: str(value) for key, value in tokenizer.special_tokens_map.items()}])
