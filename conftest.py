"""Fixtures that the examples in docstrings use, and which functions have their shapes checked."""

import os
import re
import sys
from functools import partial, wraps
from importlib import import_module
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

import jaxtyping
import pytest

# Imported before the hook reads the first module of ours: what is imported below one is compiled again each time.
# The process that only hands out tests to others needs none of it.
if "PYTEST_XDIST_WORKER" in os.environ or not re.search(" -n ?[1-9]", " ".join(sys.argv)):
    for _library in ("datasets", "lightning", "matplotlib.pyplot", "pandas", "scipy.stats", "sklearn", "transformers"):
        import_module(_library)
    from hypothesis import settings

    settings.register_profile("few", settings(), max_examples=40)
    settings.load_profile("few")

collect_ignore = ["probes/export/latents_module.py", "probes/export/layer_encoder.py"]
"""Modules that need an extra; they have no examples."""
FIRST_CALLS, EVERY = 100, 20
TOGETHER = ("tests/probes/report/", "tests/probes/runs/", "tests/probes/cli/")
"""Folders whose tests look at the same finished runs, which take seconds to make."""
ON_RAY = ("tests/extract/run/on_ray/", "tests/probes/cli/test_on_ray.py")
"""Tests that start Ray, which two processes cannot do at once."""
APART = ("tests/test_notebook.py", "tests/test_docs_run.py", "tests/extract/run/test_kills.py")
"""Files of long tests that share nothing."""
_jaxtyped: Any = jaxtyping.jaxtyped


def _check_shapes(function: Any = None, **typechecker: Any) -> Any:
    """Check the shapes of the first calls of a function and then of some: all of them take half the time of the suite.

    One made inside another function would be decorated at every call, and is not checked.
    """
    if function is None:
        return partial(_check_shapes, **typechecker)
    if not isinstance(function, FunctionType):
        return _jaxtyped(function, **typechecker)
    if "<locals>" in function.__qualname__:
        return function
    checked = _jaxtyped(function, **typechecker)
    calls = count()

    @wraps(function)
    def checked_now_and_then(*args: Any, **kwargs: Any) -> Any:
        n = next(calls)
        return (checked if n < FIRST_CALLS or n % EVERY == 0 else function)(*args, **kwargs)

    return checked_now_and_then


jaxtyping.jaxtyped = _check_shapes


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give tests that share finished runs or Ray to one process, those of a module to any, and long ones one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByRuns(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ON_RAY):
                return "Ray"
            if nodeid.startswith(APART):
                return nodeid
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))

    return ByRuns(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture
def checked_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the shapes of every call."""
    monkeypatch.setattr(sys.modules[__name__], "EVERY", 1)


@pytest.fixture
def tiny_cache(tmp_path: Path) -> Path:
    """A whole cache of three rows, written without a decoder."""
    # Imported here: jaxtyping's plugin must come before the first import of the package.
    import numpy as np
    from numpy.typing import NDArray

    from extract.inputs.joined_text import digest_texts
    from extract.store.format import create_store
    from extract.store.manifest import DECODER_IDENTITY, CacheIdentity, Manifest
    from extract.store.writer import StoreWriter

    texts = ["ice", "snow", "water"]
    layers = ("embedding", "block_01", "final_norm")
    identity = CacheIdentity(
        decoder={**dict.fromkeys(DECODER_IDENTITY, ""), "width": 4},
        plan="causal",
        architecture="inplace",
        template={},
        poolings=("mean",),
        layers=layers,
        storage_dtype="float32",
        n_rows=len(texts),
        text_digest="",
        versions={},
    )
    path = tmp_path / "tiny.h5"
    create_store(path, Manifest(identity))
    writer = StoreWriter(path)
    latents = np.arange(3 * 1 * 3 * 4, dtype=np.float32).reshape(3, 1, 3, 4)
    rows: dict[str, NDArray[Any]] = {
        "digest": digest_texts(texts),
        "n_tokens": np.ones(3, np.int32),
        "is_truncated": np.zeros(3, np.uint8),
    }
    writer.write_rows(0, latents, rows=rows)
    writer.write_certificate({"frozen": {"is_bit_identical": True}})
    writer.close()
    return path
