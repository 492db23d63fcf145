"""A head is fitted once under the same circumstances."""

import json
from pathlib import Path
from typing import Any

import pytest

from probes.fitting.saved import fit_or_load
from probes.heads.classes.logistic_probe import LinearProbe


def obtain(folder: Path, fit_id: str, calls: list[str]) -> dict[str, Any]:
    def fit() -> tuple[LinearProbe, dict[str, Any]]:
        calls.append(fit_id)
        return LinearProbe(3, ["a", "b"]), {"name": "logistic-probe", "n": len(calls)}

    return fit_or_load(folder, fit_id, fit, lambda record: LinearProbe(**record["arguments"])).record


def test_a_head_is_found_again_with_the_same_record(tmp_path: Path) -> None:
    calls: list[str] = []
    assert obtain(tmp_path / "head", "one", calls) == obtain(tmp_path / "head", "one", calls)
    assert calls == ["one"]
    assert obtain(tmp_path / "head", "two", calls)["n"] == 2


@pytest.mark.parametrize("spoil", ["schema", "cut"])
def test_a_head_that_cannot_be_read_is_fitted_again(spoil: str, tmp_path: Path) -> None:
    calls: list[str] = []
    record = obtain(tmp_path, "one", calls)
    text = json.dumps({**record, "schema": 99}) if spoil == "schema" else "{"
    (tmp_path / "head.json").write_text(text, encoding="utf-8")
    obtain(tmp_path, "one", calls)
    assert calls == ["one", "one"]
