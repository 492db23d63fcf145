"""`import icecore`: every public name, quickly and without torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import extract
import icecore
import probes


def test_it_has_every_public_name() -> None:
    assert sorted(icecore.__all__) == sorted([*extract.__all__, *probes.__all__]) == dir(icecore)
    for name in icecore.__all__:
        home = extract if name in extract.__all__ else probes
        assert getattr(icecore, name) is getattr(home, name)
    with pytest.raises(AttributeError, match="no attribute 'load_runs'; allowed: AbilityOptions, AbilityScores, Ad"):
        icecore.load_runs  # noqa: B018


def test_a_type_checker_sees_the_same_names() -> None:
    source = Path(icecore.__file__).read_text(encoding="utf-8")
    imports = re.findall(r"^    from [\w.]+ import (\w+) as (\w+)$", source, re.MULTILINE)
    assert sorted(imports) == sorted((name, name) for name in icecore.__all__)


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = "torch", "transformers", "pandas", "h5py", "numpy", "lightning"
    found = subprocess.run(
        [sys.executable, "-c", f"import icecore, sys; print([name for name in {heavy} if name in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n"
