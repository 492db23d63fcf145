"""What the tests of extraction share."""

import pytest
from tiny_decoders import make_decoder, make_texts

from extract.decoder import Decoder


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    """A tiny random Llama with its tokenizer; read-only."""
    return make_decoder("llama", adds_bos=True)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Forty distinct short texts of mixed lengths."""
    return make_texts(40)
