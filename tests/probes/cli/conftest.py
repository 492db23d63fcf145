"""Whole commands are tested without checks of shapes, some on the same finished runs; figures are not rendered."""

from pathlib import Path

import pytest

from tests.sketched import sketched


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None, sketched_figures: None) -> None:
    """Save the time of checking shapes and of rendering."""


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    """A run on tagged words."""
    from tests.probes.scored_runs import run_words

    with sketched():
        return run_words(tmp_path_factory.mktemp("words"), decoder_folder, seeds=(0,))


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory, decoder_folder: Path) -> Path:
    """A run on texts of two classes."""
    from tests.probes.scored_runs import run_classes

    with sketched():
        return run_classes(tmp_path_factory.mktemp("classes"), decoder_folder)
