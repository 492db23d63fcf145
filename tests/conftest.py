"""What holds for the whole suite: no hub, no window, one thread.

Set before anything is imported, and inherited by every process a test starts. Nothing of `extract` or `probes` may be
imported here: jaxtyping's plugin must come first to check their shapes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sketched

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
# Tiny decoders gain nothing from threads and lose much when another process wants the core. torch reads this when it is
# first imported; importing it here would cost every test run two seconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def unchecked_shapes() -> Iterator[None]:
    """Check no shapes, which takes a third of the time of whole runs; tests of the parts check them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        yield


@pytest.fixture(scope="module")
def sketched_figures() -> Iterator[None]:
    """Make figures and render none, which takes most of the time of whole runs; tests of reports render them."""
    with sketched.sketched():
        yield


@pytest.fixture
def rendered_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render figures where the module makes them alone."""
    for place, original in sketched.originals().items():
        monkeypatch.setattr(place, original)


@pytest.fixture(scope="session")
def icecore_data() -> Path:
    """The folder of local benchmark files, or a skip that says why there is none."""
    named = os.environ.get("ICECORE_DATA")
    if not named:
        pytest.skip("ICECORE_DATA is not set; point it at a folder of local benchmark files")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"ICECORE_DATA={named!r} is no folder")
    return folder
