"""Damaged files in the folder of a finished run: refused with an `IcecoreError`, or the same scores."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.decoders.decoder import Decoder, load_decoder
from extract.errors import IcecoreError
from probes.runs.predict import load_scorer
from tests.probes.finished_run import Finished
from tests.probes.fuzz.settings import bounded, damaged

HEAD = "siamese-cosine"
PAIR = ("Ice is cold.", "Snow is white.")
FILES = ("scores.json", "config.yaml", f"heads/{HEAD}/seed_0/head.json", f"heads/{HEAD}/seed_0/model.safetensors")


@pytest.fixture(scope="module")
def decoder(decoder_folder: Path) -> Decoder:
    """The decoder of the run."""
    return load_decoder(str(decoder_folder))


@pytest.fixture(scope="module")
def expected(finished: Finished, decoder: Decoder) -> float:
    """What the whole run scores the pair."""
    return float(load_scorer(finished.folder, head=HEAD, decoder=decoder).score([PAIR])[0])


@pytest.fixture(scope="module")
def copy(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run folder, of which one file at a time is damaged."""
    return Path(shutil.copytree(finished.folder, tmp_path_factory.mktemp("damaged") / "run"))


@bounded(30)
@given(data=st.data())
def test_damaged_files_of_a_run(data: st.DataObject, copy: Path, decoder: Decoder, expected: float) -> None:
    path = copy / data.draw(st.sampled_from(FILES))
    content = path.read_bytes()
    path.write_bytes(data.draw(damaged(content)))
    try:
        scorer = load_scorer(copy, head=HEAD, decoder=decoder)
    except IcecoreError as error:
        assert str(error)
    else:
        assert float(scorer.score([PAIR])[0]) == expected
    finally:
        path.write_bytes(content)
