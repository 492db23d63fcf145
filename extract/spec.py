"""What is extracted from every text: plan, template, poolings, layers, storage."""

from dataclasses import dataclass, field

from extract.errors import InputError, unknown_name
from extract.layout import STORAGE_DTYPES
from extract.plan import parse_plan
from extract.pooling import select_poolings
from extract.template import InputTemplate


@dataclass(frozen=True)
class ExtractionSpec:
    """What is extracted from every text."""

    plan: str = "causal"
    """Mask plan (`icecore list plans`)."""
    template: InputTemplate = field(default_factory=InputTemplate)
    """How a text becomes tokens."""
    poolings: tuple[str, ...] = ("mean",)
    """Poolings (`icecore list poolings`)."""
    layers: tuple[str, ...] = ("all",)
    """Layer names, or `all`, `blocks`, `upper-half`."""
    storage_dtype: str = "float32"
    """How latents are stored: `float32`, `float16` or `bfloat16`."""
    batch_tokens: int | None = None
    """Most tokens per batch, padding included; chosen for the device when absent."""

    def __post_init__(self) -> None:
        """Refuse values outside the tables."""
        parse_plan(self.plan)
        select_poolings(self.poolings)
        if self.storage_dtype not in STORAGE_DTYPES:
            raise unknown_name("storage dtype", self.storage_dtype, STORAGE_DTYPES)
        if self.batch_tokens is not None and self.batch_tokens < 1:
            raise InputError(f"batch_tokens is {self.batch_tokens}; allowed: a whole number of at least 1, or none.")
