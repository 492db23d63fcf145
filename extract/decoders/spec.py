"""Settings of a decoder. Reading a config loads no torch."""

import re
from dataclasses import dataclass
from typing import Literal

from extract.errors import unknown_name

ComputeDtype = Literal["auto", "float32", "bfloat16", "float16"]
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class DecoderSpec:
    """Which decoder, and its dtype and device."""

    name: str = "smollm2-135m-instruct"
    """A known name (`icecore list decoders`), a hub id, a local folder, or a .gguf file; with `@random-SEED` behind it,
    a decoder of the same shape with random weights, as a control."""
    revision: str | None = None
    """Hub revision: branch, tag or commit; the default branch when absent. The commit is recorded."""
    adapter: str | None = None
    """PEFT/LoRA adapter (hub id or folder), merged into the frozen weights in memory."""
    dtype: ComputeDtype = "auto"
    """Compute dtype; auto: float32 on CPU, on a GPU the checkpoint's own with float16 widened to bfloat16."""
    device: str = "auto"
    """Device, for instance `cpu` or `cuda:1`; auto: the first GPU, else the CPU."""
    trust_remote_code: bool = False
    """Run code that comes with the checkpoint; off unless asked for."""

    def __post_init__(self) -> None:
        """Refuse values outside the table."""
        if self.dtype not in ("auto", *COMPUTE_DTYPES):
            raise unknown_name("compute dtype", self.dtype, ["auto", *COMPUTE_DTYPES])


def split_random(name: str) -> tuple[str, int | None]:
    """Split the name of a decoder from the seed of its random weights; None where they are the trained ones.

    Example:
        >>> split_random("gpt2@random-3"), split_random("gpt2")
        (('gpt2', 3), ('gpt2', None))
    """
    found = re.fullmatch(r"(.+)@random-(\d{1,9})", name)
    return (found[1], int(found[2])) if found else (name, None)
