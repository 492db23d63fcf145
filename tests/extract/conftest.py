"""What the tests of extraction share.

Nothing of `extract` is imported before a fixture runs: jaxtyping's plugin must come first to check its shapes.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from extract.decoders.decoder import Decoder


@pytest.fixture(scope="session")
def decoder() -> "Decoder":
    """A tiny random Llama with its tokenizer; read-only."""
    from tests.extract.tiny_decoders import make_decoder

    return make_decoder("llama", adds_bos=True)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Forty distinct short texts of mixed lengths."""
    from tests.extract.tiny_decoders import make_texts

    return make_texts(40)
