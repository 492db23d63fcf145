"""Golden files: written, read, and compared with what a run gives now."""

import json
import math
import platform
import re
from pathlib import Path
from typing import Any

import torch

from tests.golden.numbers import Numbers

FOLDER = Path(__file__).parent
TOLERANCE = 1e-6
PRINTED = 1.01e-4
"""One unit of the last of the four places to which `predictions.csv` is rounded."""

PROCESSOR = FOLDER / "processor.txt"
CPU = Path("/proc/cpuinfo")


def processor() -> str:
    """Name what sums are rounded by here: torch's instructions, and the maker by which MKL chooses its own."""
    lines = CPU.read_text(encoding="utf-8") if CPU.exists() else ""
    found = re.search(r"^vendor_id\s*:\s*(\S+)", lines, re.MULTILINE)
    return f"{torch.backends.cpu.get_cpu_capability()}, {found[1] if found else platform.machine()}"


def golden_path(case: str) -> Path:
    """Return the golden file of a case."""
    return FOLDER / f"{case}.json"


def write_golden(case: str, numbers: Numbers) -> None:
    """Write the golden file of a case, a name a line, floats to their last bit."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(numbers[name])}" for name in sorted(numbers))
    golden_path(case).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    PROCESSOR.write_text(f"{processor()}\n", encoding="utf-8")


def read_golden(case: str) -> Numbers:
    """Read the golden file of a case."""
    found: Numbers = json.loads(golden_path(case).read_text(encoding="utf-8"))
    return found


def differences(found: Numbers, golden: Numbers, *, is_exact: bool) -> list[str]:
    """Compare numbers with the golden ones.

    Args:
        found: The numbers of a run.
        golden: What they should be.
        is_exact: Whether floats must agree to the last bit, and not to `TOLERANCE` (or `PRINTED`).

    Returns:
        A line for each name that is missing, that is new, or whose value differs.
    """
    lines = differing_names(found, golden)
    for name in sorted(golden.keys() & found.keys()):
        tolerance = 0.0 if is_exact else PRINTED if name.startswith("predictions/") else TOLERANCE
        lines += _compare(name, found[name], golden[name], tolerance)
    return lines


def differing_names(found: Numbers, golden: Numbers) -> list[str]:
    """Compare the names alone."""
    lines = [f"{name}: missing" for name in sorted(golden.keys() - found.keys())]
    return lines + [f"{name}: not in the golden file" for name in sorted(found.keys() - golden.keys())]


def _compare(name: str, found: Any, golden: Any, tolerance: float) -> list[str]:
    if isinstance(found, list) and isinstance(golden, list) and len(found) == len(golden):
        pairs = enumerate(zip(found, golden, strict=True))
        return [line for k, (a, b) in pairs for line in _compare(f"{name}[{k}]", a, b, tolerance)]
    if _is_float(found) and _is_float(golden):
        is_same = found == golden or math.isclose(found, golden, rel_tol=tolerance, abs_tol=tolerance)
    else:
        is_same = type(found) is type(golden) and found == golden
    return [] if is_same else [f"{name}: {found!r}, golden {golden!r}"]


def _is_float(value: Any) -> bool:
    """Whole numbers count as well, where the other side is a float: 1.0 may be stored as 1."""
    return isinstance(value, float | int) and not isinstance(value, bool)
