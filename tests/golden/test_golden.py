"""The golden record: the numbers of every kind of run, so that code can move without a number moving with it.

Every case runs the command line on a tiny random decoder and a shipped sample, reads what was written through
`numbers.py`, and compares it with `tests/golden/CASE.json`:

- by default to 1e-6, relative or absolute, whichever is looser (and predictions to the four places they are written
  with). On another processor than `processor.txt` names, only the names of the numbers
  are compared and the test is skipped: rounding differs there, and training and near ties in ranks amplify it beyond
  any tolerance that would still catch a fault;
- with `ICECORE_GOLDEN=exact` to the last bit, for two commits on one machine;
- with `ICECORE_GOLDEN=write` not at all: the golden files are written again. Do so only where numbers are meant to
  change, and say in the commit which and why.

When the layout of a run folder changes, `numbers.py` alone has to follow.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from probes.cli.main import main
from probes.runs.predict import load_scorer
from tests.extract.tiny_decoders import save_decoder
from tests.golden.cases import Case, make_cases, write_labelled
from tests.golden.numbers import Numbers, numbers_of
from tests.golden.record import (
    FOLDER,
    PROCESSOR,
    differences,
    differing_names,
    golden_path,
    processor,
    read_golden,
    write_golden,
)

OFTEN = ("classes", "sweep-pairs-all")
"""Cases of the default suite; the others are `long`."""
MODES = ("", "exact", "write")
SHOWN = 20
NEW_PAIRS = [
    ("A cat sleeps on the sofa.", "The cat is asleep on the couch."),
    ("A cat sleeps on the sofa.", "A cat sleeps on the sofa."),
    ("Snow fell on the harbour.", "The firm paid its debts."),
    ("He plays the guitar.", "He does not play the guitar."),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums over several are rounded in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("golden") / "tiny-llama", max_position_embeddings=256)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("labelled")
    return {
        "labelled": str(write_labelled(folder / "labelled.csv")),
        "unsplit": str(write_labelled(folder / "unsplit.csv", with_validation=False)),
    }


@pytest.fixture(scope="module", autouse=True)
def fast(unchecked_shapes: None) -> None:
    """Save the time of checking shapes."""


@pytest.fixture(autouse=True)
def only_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no figure; other tests do."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)


@pytest.fixture
def mode() -> str:
    found = os.environ.get("ICECORE_GOLDEN", "")
    assert found in MODES, f"ICECORE_GOLDEN is {found!r}; allowed: exact, write, or nothing"
    return found


def run_case(name: str, case: Case, folder: Path, decoder: Path) -> Numbers:
    """Run the commands of a case in an empty folder and collect its numbers."""
    settings: dict[str, Any] = {
        "name": name,
        "decoder": {"name": str(decoder), "device": "cpu"},
        "bootstrap": 100,
        "caches": str(folder / "caches"),
        "runs": str(folder / "runs"),
        **case.settings,
    }
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    for command, *arguments in case.commands:
        assert main([command, str(config), *arguments]) == 0
    finished = folder / "runs" / f"{name}{case.suffix}"
    found = numbers_of(finished)
    for head in case.scores_with:
        found[f"new pairs/{head}"] = load_scorer(finished, head=head).score(NEW_PAIRS).tolist()
    return found


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in make_cases()]
)
def test_the_numbers_are_the_golden_ones(
    name: str, tmp_path: Path, decoder: Path, labelled: dict[str, str], mode: str
) -> None:
    found = run_case(name, make_cases(**labelled)[name], tmp_path, decoder)
    if mode == "write":
        write_golden(name, found)
        pytest.skip(f"{golden_path(name).name} was written")
    golden, is_exact = read_golden(name), mode == "exact"
    is_same_rounding = PROCESSOR.read_text(encoding="utf-8").strip() == processor()
    wrong = differences(found, golden, is_exact=is_exact) if is_same_rounding else differing_names(found, golden)
    assert not wrong, "\n".join([f"{len(wrong)} differences in {len(found)} names:", *wrong[:SHOWN]])
    if not is_same_rounding:
        pytest.skip(f"{processor()} rounds otherwise than the processor of the golden files; only names were compared")


def test_every_golden_file_has_its_case() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(make_cases())


@pytest.mark.parametrize(
    ("found", "is_close", "is_exact"),
    [
        ({"a": [1.0, 2], "b": "x"}, True, True),
        ({"a": [1.0 + 1e-7, 2], "b": "x"}, True, False),
        ({"a": [1.0 + 1e-5, 2], "b": "x"}, False, False),
        ({"a": [1.0, 3], "b": "x"}, False, False),
        ({"a": [1.0, None], "b": "x"}, False, False),
        ({"a": [1.0], "b": "x"}, False, False),
        ({"a": [1.0, 2], "b": "y"}, False, False),
        ({"a": [1.0, 2]}, False, False),
        ({"a": [1.0, 2], "b": "x", "c": 0}, False, False),
    ],
)
def test_a_difference_is_found(found: Numbers, is_close: bool, is_exact: bool) -> None:
    golden = {"a": [1.0, 2], "b": "x"}
    assert (not differences(found, golden, is_exact=False)) is is_close
    assert (not differences(found, golden, is_exact=True)) is is_exact
