"""Fixtures that the examples in docstrings use, and which functions have their shapes checked."""

from functools import partial
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

_jaxtyped: Any = jaxtyping.jaxtyped


def _check_shapes(function: Any = None, **typechecker: Any) -> Any:
    """Check the shapes of a function, but not of one made inside another, which would be decorated at every call."""
    if function is None:
        return partial(_check_shapes, **typechecker)
    return function if "<locals>" in function.__qualname__ else _jaxtyped(function, **typechecker)


jaxtyping.jaxtyped = _check_shapes


@pytest.fixture
def tiny_cache(tmp_path: Path) -> Path:
    """A whole cache of three rows, written without a decoder."""
    # Imported here: jaxtyping's plugin must come before the first import of the package.
    import numpy as np
    from numpy.typing import NDArray

    from extract.inputs.joined import digest_texts
    from extract.store.create import create_store
    from extract.store.manifest import Manifest
    from extract.store.writer import StoreWriter

    texts = ["ice", "snow", "water"]
    layers = ["embedding", "block_01", "final_norm"]
    identity = {
        "decoder": {"width": 4}, "poolings": ["mean"], "layers": layers,
        "storage_dtype": "float32", "n_rows": len(texts),
    }  # fmt: skip
    path = tmp_path / "tiny.h5"
    create_store(path, Manifest(identity))
    writer = StoreWriter(path)
    latents = np.arange(3 * 1 * 3 * 4, dtype=np.float32).reshape(3, 1, 3, 4)
    rows: dict[str, NDArray[Any]] = {
        "digest": digest_texts(texts),
        "n_tokens": np.ones(3, np.int32),
        "is_truncated": np.zeros(3, np.uint8),
    }
    writer.write_rows(0, latents, poolings=["mean"], layers=layers, rows=rows)
    writer.write_certificate({"frozen": {"is_bit_identical": True}})
    writer.close()
    return path
